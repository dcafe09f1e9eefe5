"""
One figure everywhere: the response time of an answer is what the recording of the call shows, and every page, command
and metric shows the same.
"""

import asyncio
import base64
import contextlib
import csv
import html
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from gateway.audio import FRAME_BYTES, SILENCE_FRAME, bundled_sound, mulaw_to_linear
from gateway.cli.main import main
from gateway.cli.sessions import call_details
from gateway.cli.tail import event_line
from gateway.cli.terminal import as_text
from gateway.settings import Secret
from gateway.simulate.softphone import phone_line
from gateway.simulate.synthetic_caller import ScriptedCaller, pico
from gateway.text.figures import milliseconds
from gateway.web.login_sessions import LoginLinks
from tests.fakes.cascade import FakeCascade
from tests.fakes.deepgram import FakeDeepgram
from tests.fakes.llm import FakeLlm
from tests.fakes.llm_script import Pace
from tests.fakes.openai_realtime import FakeRealtime
from tests.live import watching
from tests.stage import (
    ADMIN,
    CALLER,
    SOUND,
    Stage,
    make_carrier,
    patient_client,
    running_gateway,
    staged,
    until,
    until_it,
)
from tests.web.dashboard.test_live_pages import form_of, logged_in

FRAME = 0.02
LINEAR = np.array([mulaw_to_linear(sample) for sample in range(256)], np.float64)
WORDS = bundled_sound("apology")[:8_000]  # a second of speech
CASCADE = "deepgram/flux-general-en+deepgram/aura-2-thalia-en"
FUNCTION = {"name": "search_memory", "arguments": '{"query": "bike"}'}
SAID = "I can't continue this call right now."
SLOW_MODEL = 'greeting = "Hello."\nfirst_token_seconds = 0.2\nno_answer = "Sorry."'
"""After 0.2 s the caller hears "One moment, please.", which is not an answer."""


def measured_in(recording: Path) -> float:
    """
    From the last frame in which the caller is heard to the first audio of the last answer, by the times of the frames.

    By the power of whole frames, 40 dB below the loudest: not how the gateway measures.
    """
    lines = [json.loads(line) for line in recording.read_bytes().splitlines()]
    heard = [
        (line["t"], base64.b64decode(line["frame"]["media"]["payload"]))
        for line in lines
        if line.get("from") == "carrier" and line.get("frame", {}).get("event") == "media"
    ]
    sent = [line["t"] for line in lines if line.get("to") == "carrier" and line.get("bytes")]
    answered = max(after for before, after in zip([-1.0, *sent], sent, strict=False) if after - before > 0.25)
    power = {at: float(np.mean(LINEAR[np.frombuffer(audio, np.uint8)] ** 2)) for at, audio in heard if at < answered}
    return answered - max(at for at, level in power.items() if level > max(power.values()) / 10_000)


async def in_real_time(call: Any, audio: bytes) -> None:
    for start in range(0, len(audio), FRAME_BYTES):
        await call.speak(audio[start : start + FRAME_BYTES])
        await asyncio.sleep(FRAME)


async def service_call(
    engine: Any, folder: Path, url_of: list[str], *, calls_function: bool = False
) -> AsyncIterator[None]:
    """
    A call in which the engine takes 0.4 s to hear that the caller has finished, and 0.2 s to answer.

    `calls_function`: between the text of the answer and its audio.
    """
    async with staged(folder, make_carrier("twilio"), engine=engine, RECORD_DIR=str(folder / "records")) as stage:
        url_of.append(stage.url)
        yield
        call, conversation = await stage.dial()
        await stage.played(call, conversation)
        await in_real_time(call, SILENCE_FRAME * 20 + WORDS)
        silence = asyncio.create_task(in_real_time(call, SILENCE_FRAME * 50))
        await asyncio.sleep(0.4)
        await conversation.user_says(SAID)
        await asyncio.sleep(0.2)
        if calls_function:
            await conversation.send_conversation_text("assistant", "Let me look.")
            await conversation.call_functions([FUNCTION])
            await conversation.send_audio(SOUND * 20)
            await conversation.agent_audio_done()
            await stage.played(call, conversation)
        else:
            await stage.answer(call, conversation, "What a pity.")
        if isinstance(engine, FakeRealtime) and engine.behaviour.transcription == "after":
            await conversation.late_text()
        await silence
        await call.hang_up()
        yield


async def slow_call(engine: Any, folder: Path, url_of: list[str]) -> AsyncIterator[None]:
    """A call in which the engine's model takes 0.8 s."""
    records = str(folder / "records")
    async with staged(folder, make_carrier("twilio"), engine=engine, RECORD_DIR=records) as stage:
        url_of.append(stage.url)
        yield
        call, conversation = await stage.dial()
        await stage.played(call, conversation)
        await in_real_time(call, SILENCE_FRAME * 20 + WORDS)
        silence = asyncio.create_task(in_real_time(call, SILENCE_FRAME * 70))
        await asyncio.sleep(0.4)
        await conversation.user_says(SAID)
        await asyncio.sleep(0.8)
        await stage.answer(call, conversation, "What a pity.")
        await silence
        await call.hang_up()
        yield


async def slow_deepgram_call(folder: Path, url_of: list[str]) -> AsyncIterator[None]:
    """A call in which the agent's own language model, which Deepgram reaches at the gateway, takes 0.8 s."""
    async with FakeLlm(pace=Pace(before_first_token=0.8)) as llm:
        llm.answers("What a pity.")
        brain = f'brain = {{ url = "{llm.url}/v1", model = "test", api_key = "test-key" }}'
        (folder / "gateway.toml").write_text(f"[agents.maya]\n{SLOW_MODEL}\n{brain}\n")
        async with staged(folder, make_carrier("twilio"), RECORD_DIR=str(folder / "records")) as stage:
            url_of.append(stage.url)
            yield
            call, conversation = await stage.dial()
            await stage.played(call, conversation)
            await in_real_time(call, SILENCE_FRAME * 20 + WORDS)
            silence = asyncio.create_task(in_real_time(call, SILENCE_FRAME * 90))
            await asyncio.sleep(0.4)
            await conversation.user_says(SAID)
            await silence
            await stage.played(call, conversation)
            await call.hang_up()
            yield


async def local_call(folder: Path, url_of: list[str]) -> AsyncIterator[None]:
    """The local engine, with real speech models."""
    async with FakeLlm() as llm:
        llm.answers("It is ready.")
        brain = f'{{ url = "{llm.url}/v1", model = "test", api_key = "test-key" }}'
        toml = f'[agents.maya]\ngreeting = "Hello."\nprompt = "prompts/maya.md"\nbrain = {brain}\n'
        (folder / "gateway.toml").write_text(toml)
        environ = {
            "DATA_DIR": str(folder / "data"),
            "VOICE_SESSION_ARCHIVE_DIR": str(folder / "archive"),
            "GATEWAY_ADMIN_TOKEN": ADMIN,
            "MEMORY_VECTORS": "false",
            "SUMMARY_PROVIDER": "extractive",
            "RECORD_DIR": str(folder / "records"),
        }
        async with running_gateway(environ, folder) as url, patient_client(url) as http:

            async def ready() -> bool:
                return (await http.get("/ready")).is_success

            await until_it(ready)
            url_of.append(url)
            yield
            async with phone_line(url, Secret(ADMIN), caller=CALLER) as line:
                person = ScriptedCaller(line, [pico("Is my bike ready?")], last_wait=4.0)
                await line.talk(person.speak, person.listen)
            yield


@pytest.mark.parametrize(
    "engine",
    [
        "deepgram",
        "deepgram, function before the audio",
        "openai",
        "openai, text after the answer",
        "xai",
        "cascade",
        "cascade, slow model",
        "deepgram, slow model",
        "deepgram, filler phrase",
        "deepgram, filler sound",
        "local",
    ],
)
async def test_every_place_shows_what_the_recording_shows(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GATEWAY_ADMIN_TOKEN", ADMIN)
    urls: list[str] = []
    named = CASCADE if "cascade" in engine else engine.partition(",")[0]
    match engine:
        case "local":
            call = local_call(tmp_path, urls)
        case "deepgram" | "deepgram, function before the audio":
            call = service_call(FakeDeepgram(), tmp_path, urls, calls_function="function" in engine)
        case "cascade, slow model":
            call = slow_call(FakeCascade(tmp_path, {"maya": SLOW_MODEL}), tmp_path, urls)
        case "deepgram, filler phrase" | "deepgram, filler sound":
            filler = '"typing"' if "sound" in engine else '{ after = 0.3, say = ["Let me see."] }'
            (tmp_path / "gateway.toml").write_text(f"[agents.maya]\nfiller = {filler}\n")
            call = slow_call(FakeDeepgram(), tmp_path, urls)
        case "deepgram, slow model":
            call = slow_deepgram_call(tmp_path, urls)
        case "cascade":
            call = service_call(FakeCascade(tmp_path, {"maya": 'greeting = "Hello."'}), tmp_path, urls)
        case "xai":
            call = service_call(FakeRealtime("xai-test-key", is_xai=True), tmp_path, urls)
        case _:
            order = "after" if "after" in engine else "before"
            call = service_call(FakeRealtime("sk-test-key", transcription=order), tmp_path, urls)
    async with contextlib.aclosing(call) as steps:
        await anext(steps)
        async with watching(urls[0]) as watcher, patient_client(urls[0], headers={"X-API-Key": ADMIN}) as http:
            before = await metric(http, named)
            await anext(steps)
            await watcher.sees("finished")
            [path] = (tmp_path / "records").glob("*.jsonl")
            await until(lambda: b'"note":"ended"' in path.read_bytes())
            expected = measured_in(path)
            [listed] = (await http.get("/v1/sessions")).json()
            session = (await http.get(f"/v1/sessions/{listed['session']}")).json()
            # The figure
            [answer] = [turn for turn in session["transcript"] if turn.get("latency") is not None]
            seconds, text = answer["latency"], milliseconds(answer["latency"])
            assert answer["counted_from"] == "voice"
            assert seconds == pytest.approx(expected, abs=1.5 * FRAME)
            # The same in events, the call log, the API and the metrics
            [event] = [event for event in watcher.events if event.get("latency") is not None]
            assert event["event"] == ("answer_started" if "function" in engine else "turn")
            assert (event["latency"], event["counted_from"]) == (seconds, "voice")
            [timing] = session["timings"]
            assert (timing["first_frame"], timing["counted_from"]) == (seconds, "voice")
            count, total = await metric(http, named)
            assert (count - before[0], total - before[1]) == (1, pytest.approx(seconds, abs=1e-4))
            # In the terminal
            assert event_line(event).plain.endswith(f"  {text}")
            assert f"{answer['text']}  {text}\n" in as_text(*call_details(session))
            assert await asyncio.to_thread(main, ["latency", "--url", urls[0]]) == 0
            assert f"Response time: {text} median, {text} p95 (1 answer);" in capsys.readouterr().out
            # On pages
            await http.get(f"/login?code={LoginLinks(Secret(ADMIN)).make()}", follow_redirects=True)
            page = (await http.get(f"/calls/{session['session'].partition(':')[2]}")).text
            [(title, chip)] = re.findall(r'<span class="chip[^"]*" title="Response time: ([^"]*)">([^<]*)</span>', page)
            assert chip == text
            assert re.findall(r'class="wait-label[^"]*"[^>]*>([^<]*)</text>', page) == [text]
            assert f"longest response time {text}" in page
            parts = [float(part) / (1000 if unit == "ms" else 1) for part, unit in steps_of(title)]
            assert sum(parts) == pytest.approx(seconds, abs=0.005 * len(parts))  # each is rounded
            health = (await http.get("/vitals?period=day")).text
            assert f"<dt>Response time</dt><dd>{text}</dd>" in health
            assert f"median; {text} p95 (1 answer)" in health


NOISE = np.random.default_rng(8000).integers(0, 256, 16_000, np.uint8).tobytes()
SETTINGS = 'greeting = "Hello."\nsilence = { ask_after = 6 }'
LOST = "Sorry, I lost you for a second."


class LongCall:
    """A call in which much happens. `texts_late`: the engine sends the caller's words after its answer."""

    def __init__(self, stage: Stage, call: Any, conversation: Any, *, texts_late: bool) -> None:
        self.stage = stage
        self.call = call
        self.conversation = conversation
        self._texts_late = texts_late

    async def say(self, text: str, *, sound: bytes = WORDS[:4_000] + SILENCE_FRAME * 15) -> None:
        """The engine reports the text when the caller has made this sound."""
        await in_real_time(self.call, sound)
        await self.conversation.user_says(text)

    async def answer(self, text: str) -> None:
        await asyncio.sleep(0.1)
        await self.stage.answer(self.call, self.conversation, text)
        if self._texts_late:
            await self.conversation.late_text()

    async def silence(self, frames: int) -> None:
        await in_real_time(self.call, SILENCE_FRAME * frames)

    async def engine_lost(self) -> None:
        self.conversation.abort()
        self.conversation = await self.stage.engine.next_conversation()
        await self.conversation.configured()
        await self.silence(30)


@pytest.mark.parametrize("engine", ["deepgram", "openai, text after the answer", "cascade"])
async def test_every_answer_of_a_call_has_one_figure(engine: str, tmp_path: Path) -> None:
    """Interruption, function, operator, split turn, noise, silent caller, lost engine."""
    made: Any
    if engine == "cascade":
        made = FakeCascade(tmp_path, {"maya": SETTINGS})
    else:
        (tmp_path / "gateway.toml").write_text(f"[agents.maya]\n{SETTINGS}\n")
        made = FakeDeepgram() if engine == "deepgram" else FakeRealtime("sk-test-key", transcription="after")
    named = CASCADE if engine == "cascade" else engine.partition(",")[0]
    async with (
        staged(tmp_path, make_carrier("twilio"), engine=made) as stage,
        watching(stage.url) as watcher,
        logged_in(stage) as pages,
    ):
        before = await metric(stage.http, named)
        talk = LongCall(stage, *await stage.dial(), texts_late="after" in engine)
        await stage.played(talk.call, talk.conversation)
        await talk.say("Is it ready?")
        await talk.answer("It is.")
        await talk.conversation.barge_in()
        await talk.say("No, the other one.")
        await talk.conversation.call_functions([FUNCTION])
        await talk.answer("That one, too.")
        form = await form_of(pages)
        await talk.say("May I come today?")
        await pages.post(f"/live/{form['uuid']}/say", data={**form, "words": "We are closed today."})
        await talk.silence(20)
        await talk.answer("Come tomorrow.")
        await talk.say("Tomorrow I can")
        await talk.silence(10)
        await talk.say("come at nine.")
        await talk.answer("At nine, then.")
        noise = asyncio.create_task(in_real_time(talk.call, NOISE * 2))
        await asyncio.sleep(2.0)
        await talk.say("Can you hear me?", sound=b"")
        await talk.answer("Hardly.")
        await noise
        await talk.silence(350)
        if engine != "cascade":  # its sockets are replaced one by one
            await talk.engine_lost()
        await talk.say("I am here.")
        await talk.answer("Good.")
        await talk.call.hang_up()
        await watcher.sees("finished")
        [listed] = (await stage.http.get("/v1/sessions")).json()
        session = (await stage.http.get(f"/v1/sessions/{listed['session']}")).json()
        # Which answers have a figure
        figures = {turn["text"]: turn["latency"] for turn in session["transcript"] if turn["latency"] is not None}
        said = [turn["text"] for turn in session["transcript"] if turn["speaker"] == "agent"]
        answered = [
            "It is.",
            "That one, too.",
            "Come tomorrow.",
            "At nine, then.",
            "Hardly. Are you still there?",
            "Good.",
        ]
        if said.index("We are closed today.") < said.index("Come tomorrow."):
            answered.remove("Come tomorrow.")
        assert [text.removesuffix(f" {LOST}") for text in figures] == answered
        # The same figures elsewhere
        shown = list(figures.values())
        assert [event["latency"] for event in watcher.events if event.get("latency") is not None] == shown
        timings = [answer for answer in session["timings"] if answer["first_frame"] is not None]
        assert [answer["first_frame"] for answer in timings] == shown
        assert [text for text, answer in zip(figures, timings, strict=True) if answer["counted_from"] != "voice"] == [
            text for text in figures if text.startswith("Hardly.")
        ]
        measured = [answer["first_frame"] for answer in timings if answer["counted_from"] == "voice"]
        count, total = await metric(stage.http, named)
        assert (count - before[0], total - before[1]) == (len(measured), pytest.approx(sum(measured), abs=1e-3))
        page = (await pages.get(f"/calls/{session['session'].partition(':')[2]}")).text
        chips = re.findall(r'<span class="chip[^"]*" title="Response time: [^"]*">([^< ]* [^< ]*)', page)
        assert chips == [milliseconds(seconds) for seconds in shown]
        assert f"longest response time {milliseconds(max(measured))}" in page
        latency = (await stage.http.get("/v1/latency")).json()
        assert (latency["turns"], latency["elsewhere"]["turns"]) == (len(measured), 1)
        assert latency["stages"]["first_frame"]["max"] == pytest.approx(max(measured), abs=1e-4)
        [exported] = csv.DictReader((await pages.get("/calls/export.csv")).text.splitlines())
        assert float(exported["median_response_seconds"]) == latency["stages"]["first_frame"]["p50"]


async def metric(http: httpx.AsyncClient, engine: str) -> tuple[float, float]:
    """Count and sum of the response times."""
    lines = (await http.get("/metrics")).text.splitlines()
    labels = f'{{engine="{engine}",stage="first_frame"}} '
    read = {line.partition("{")[0]: float(line.split(" ")[-1]) for line in lines if labels in line}
    name = "voice_gateway_turn_stage_seconds"
    return read.get(f"{name}_count", 0.0), read.get(f"{name}_sum", 0.0)


def steps_of(title: str) -> list[tuple[str, str]]:
    return re.findall(r"\+([\d.]+) (ms|s)", html.unescape(title))
