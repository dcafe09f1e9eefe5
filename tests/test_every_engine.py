"""What is promised of a call holds for every engine that is a service, and for both carriers."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gateway.history.stores import open_local_store
from gateway.memory.facts import FactStore
from tests.fakes.cascade import FakeCascade
from tests.fakes.deepgram import FakeDeepgram
from tests.fakes.deepgram_speech import sentences, speech
from tests.fakes.openai_realtime import FakeRealtime
from tests.fakes.remem import FakeRemem, Fault
from tests.fakes.webhook_receiver import SECRET, WebhookReceiver
from tests.replay.calls import replay_all
from tests.stage import CALLED, CALLER, GREETING_SOUND, SOUND, Stage, make_carrier, staged, until, until_it

GREETING = "Hello, this is Maya. How can I help you?"
SORRY = "Sorry, I lost you for a second."
CASCADE = "deepgram/flux-general-en+deepgram/aura-2-thalia-en"
OTHER = "+12025550177"
BLACKLISTED = "+12025550199"
DESK = "+12025550101"
"""The number of a second agent."""


def make_engine(
    name: str, folder: Path, agent: str = "", *, other_agents: Mapping[str, str] = {}, **behaviour: Any
) -> Any:
    """`agent`: lines of gateway.toml for Maya; `other_agents`: the same for others, by name."""
    agents = {"maya": agent, **other_agents}
    (folder / "gateway.toml").write_text("".join(f"[agents.{one}]\n{lines}\n" for one, lines in agents.items()))
    match name:
        case "cascade":
            return FakeCascade(folder, agents)
        case "deepgram":
            return FakeDeepgram(**behaviour)
        case "openai":
            return FakeRealtime("sk-test-key", **behaviour)
        case _:
            return FakeRealtime("xai-test-key", is_xai=True, **behaviour)


@pytest.fixture(params=["deepgram", "openai", "xai", "cascade"])
def engine_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
async def receiver() -> AsyncIterator[WebhookReceiver]:
    async with WebhookReceiver().running() as made:
        yield made


@pytest.fixture
async def any_stage(
    engine_name: str, carrier_name: str, tmp_path: Path, receiver: WebhookReceiver
) -> AsyncIterator[Stage]:
    """A gateway that records and posts calls, between a phone without playback delay and an engine."""
    environ = {"RECORD_DIR": str(tmp_path / "records"), "WEBHOOK_URL": receiver.url, "WEBHOOK_SECRET": SECRET}
    blacklist = f'memory.repeat_caller.identifier_blacklist = ["{BLACKLISTED}"]'
    engine = make_engine(engine_name, tmp_path, blacklist)
    async with staged(tmp_path, make_carrier(carrier_name), engine=engine, **environ) as stage:
        yield stage


async def greeted(stage: Stage) -> tuple[Any, Any]:
    """A call whose greeting was played."""
    call, conversation = await stage.dial()
    await call.wait_heard(len(GREETING_SOUND))
    await stage.played(call, conversation)
    return call, conversation


async def prompt_of_call(stage: Stage, caller: str = CALLER, called: str = CALLED, *, said: str = "Hello?") -> str:
    """Make a call. Returns the prompt that its agent had."""
    call, conversation = await stage.dial(caller, called)
    await conversation.user_says(said)
    prompt: str = conversation.prompt
    await call.hang_up()
    await stage.idle()
    return prompt


async def test_whole_call(
    any_stage: Stage, engine_name: str, carrier_name: str, tmp_path: Path, receiver: WebhookReceiver
) -> None:
    """
    Greeting, audio, turns, a tool, the loss of the engine, hangup, document, webhook, replay.

    The next call has the memory of it.
    """
    stage = any_stage
    call, conversation = await greeted(stage)
    assert bytes(call.heard).startswith(GREETING_SOUND)
    await call.speak(SOUND * 3)
    await conversation.hears(len(SOUND) * 4)
    assert SOUND * 3 in bytes(conversation.heard)
    await conversation.user_says("Is my bike ready?")
    assert "there are no notes of an earlier call" in conversation.prompt
    search = {"name": "search_memory", "arguments": '{"query": "elephants"}'}
    [result] = await conversation.call_functions([search])
    assert result == "Nothing was found."
    await stage.answer(call, conversation, "It will be on Friday.")
    conversation.abort()
    again = await stage.engine.next_conversation()
    await again.configured()
    await call.until(lambda: bytes(call.heard).endswith(speech(SORRY)))
    await stage.played(call, again)
    await again.user_says("Thanks, goodbye.")
    await call.hang_up()
    answer = f"AGENT: It will be on Friday. {SORRY}"
    archive = await stage.archive()
    assert archive == f"AGENT: {GREETING}\nCALLER: Is my bike ready?\n{answer}\nCALLER: Thanks, goodbye.\n"
    document = await stage.document()
    assert "bike" in document["content"]
    [message] = await until(receiver.messages)
    assert (message["caller"], message["agent"], message["carrier"]) == (CALLER, "maya", carrier_name)
    assert message["engine"] == {"cascade": CASCADE}.get(engine_name, engine_name)
    assert message["end_reason"] == "caller hung up"
    assert [turn["text"] for turn in message["turns"]] == [line.partition(": ")[2] for line in archive.splitlines()]
    assert message["session"] in document["content"]
    assert conversation.problems == again.problems == []
    await stage.idle()
    [path] = (tmp_path / "records").glob("*.jsonl")
    await until(lambda: b'"note":"summary"' in path.read_bytes())
    await replay_all(tmp_path / "records")
    assert "bike" in (await prompt_of_call(stage)).lower()


async def test_barge_in(engine_name: str, carrier_name: str, tmp_path: Path) -> None:
    """The phone is silent at once, the transcript has what was heard, and so has a model that can be given it."""
    carrier = make_carrier(carrier_name, hold_playback=True)
    async with staged(tmp_path, carrier, engine=make_engine(engine_name, tmp_path)) as stage:
        call, conversation = await stage.dial()
        await call.wait_queued(len(GREETING_SOUND))
        call.play()
        await stage.played(call, conversation)
        await conversation.user_says("When can I come?")
        text = "You can come on Monday or on Tuesday after lunch or on any other day of the week."
        await conversation.agent_says(text, audio=b"\x11" * 16000, sizes=(3200,))
        await call.wait_queued(16000)
        marks = len(call.marks_echoed)
        call.play(8000)
        await call.until(lambda: len(call.marks_echoed) >= marks + 2)
        await call.speak(SOUND)
        await conversation.hears(2 * len(SOUND))
        clears = call.clears
        await conversation.barge_in(late_audio=b"\x22" * 320, late_text=None)
        await call.until(lambda: call.clears > clears)
        await conversation.end_turn("Monday is fine.")
        await conversation.agent_says("All right.", audio=b"\x33" * 800)
        await call.wait_queued(800)
        call.play()
        await stage.played(call, conversation)
        await call.hang_up()
        archive = await stage.archive()
        assert "AGENT: You can come on Monday or on —\nCALLER: Monday is fine.\nAGENT: All right.\n" in archive
        assert b"\x22" * 100 not in call.heard
        assert b"\x11" * 8001 not in call.heard
        assert conversation.problems == []
        if isinstance(stage.engine, FakeRealtime):
            [cut] = conversation.received("conversation.item.truncate")
            # Marks come every 400 ms; what is between the last one and the next is known by the clock.
            assert 800 <= cut["audio_end_ms"] <= 1200
            assert ("assistant", f"{cut['audio_end_ms']} ms") in conversation.believed


async def test_conversation_goes_on_with_another_engine(tmp_path: Path) -> None:
    """From one protocol to the other, with the conversation so far, and once with words that came late."""
    async with FakeDeepgram() as second:
        first = make_engine("openai", tmp_path, transcription="after")
        engines = {"VOICE_ENGINE": "openai,deepgram", **second.settings()}
        async with staged(tmp_path, make_carrier("twilio"), engine=first, **engines) as stage:
            call, conversation = await greeted(stage)
            await conversation.user_says("Is my bike ready?")
            await stage.answer(call, conversation, "It will be on Friday.")
            await conversation.late_text()
            await conversation.fail("insufficient_quota")
            again = await second.next_conversation()
            settings = await again.configured()
            history = [turn["content"] for turn in settings["agent"]["context"]["messages"]]
            assert history == [GREETING, "Is my bike ready?", "It will be on Friday."]
            await call.until(lambda: bytes(call.heard).endswith(speech(SORRY)))
            await stage.played(call, again)
            await again.user_says("Thanks.")
            await call.hang_up()
            assert (await stage.archive()).endswith(f"AGENT: It will be on Friday. {SORRY}\nCALLER: Thanks.\n")


async def test_silent_caller(engine_name: str, carrier_name: str, tmp_path: Path) -> None:
    """They are asked, then hear a goodbye, and the reason is stored."""
    agent = 'silence = { ask_after = 0.3, ask = "Hello? Anyone?", hang_up_after = 0.8 }'
    engine, records = make_engine(engine_name, tmp_path, agent), {"RECORD_DIR": str(tmp_path / "records")}
    async with staged(tmp_path, make_carrier(carrier_name), engine=engine, **records) as stage:
        call, conversation = await stage.dial()
        await call.over()
        assert call.ended_by != "caller"
        assert (await stage.archive()).startswith(f"AGENT: {GREETING} Hello? Anyone? I can't hear anything")
        assert conversation.problems == []

        async def ended() -> list[str]:
            sessions = (await stage.http.get("/v1/sessions")).json()
            return [session["outcome"] for session in sessions if session["outcome"]]

        assert await until_it(ended) == ["caller silent"]
        await stage.idle()
    await replay_all(tmp_path / "records")


async def test_backchannel(engine_name: str, carrier_name: str, tmp_path: Path) -> None:
    """An agent that waits for words goes on speaking, and does not answer it."""
    engine = make_engine(engine_name, tmp_path, 'interrupt = "words"')
    async with staged(tmp_path, make_carrier(carrier_name, hold_playback=True), engine=engine) as stage:
        call, conversation = await stage.dial()
        await call.wait_queued(len(GREETING_SOUND))
        call.play()
        await stage.played(call, conversation)
        await conversation.user_says("When can I come?")
        text = "You can come on Monday or on Tuesday after lunch or on any other day of the week."
        await conversation.agent_says(text, audio=b"\x11" * 16000, sizes=(3200,))
        await call.wait_queued(16000)
        await call.until(lambda: call.sent_frames[-1]["event"] == "mark")
        marks, clears = len(call.marks_echoed), call.clears
        call.play(8000)
        await call.until(lambda: len(call.marks_echoed) >= marks + 2)
        await conversation.barge_in(late_audio=b"", late_text=None)
        await conversation.end_turn("Uh-huh, I see.")
        await call.speak(SOUND)
        await conversation.hears(2 * len(SOUND))
        call.play()
        await stage.played(call, conversation)
        await call.hang_up()
        assert call.clears == clears
        assert b"\x11" * 16000 in bytes(call.heard)
        assert (await stage.archive()).endswith(f"AGENT: {text}\nCALLER: Uh-huh, I see.\n")


async def test_stream_that_was_lost(any_stage: Stage, tmp_path: Path) -> None:
    """The same session goes on with another stream, without a second greeting, and leaves one document."""
    stage = any_stage
    call, conversation = await greeted(stage)
    await conversation.user_says("Is my bike ready?")
    await call.drop()
    await call.wait_stream(2)
    again = await stage.engine.next_conversation()
    await again.configured()
    await call.until(lambda: bytes(call.heard).endswith(speech(SORRY)))
    await stage.played(call, again)
    await call.hang_up()
    archive = await stage.archive()
    assert archive.startswith(f"AGENT: {GREETING}\nCALLER: Is my bike ready?\n")
    assert archive.count(GREETING) == archive.count(SORRY) == 1
    await stage.idle()
    assert len(await stage.documents()) == 1


async def test_agent_hangs_up_after_the_farewell(engine_name: str, carrier_name: str, tmp_path: Path) -> None:
    """Not before the caller has heard it."""
    carrier = make_carrier(carrier_name, hold_playback=True)
    async with staged(tmp_path, carrier, engine=make_engine(engine_name, tmp_path)) as stage:
        call, conversation = await stage.dial()
        await call.wait_queued(len(GREETING_SOUND))
        call.play()
        await stage.played(call, conversation)
        await conversation.user_says("That is all, goodbye.")
        [answer] = await conversation.call_functions([{"name": "end_call", "arguments": "{}"}])
        assert '"status": "ok"' in answer
        await conversation.agent_says("Goodbye, Ana.", audio=b"\x44" * 4000)
        await call.wait_queued(4000)
        assert not call.ended_by
        call.play()
        await call.over()
        assert call.ended_by in ("gateway-rest", "gateway-close", "twiml")
        assert bytes(call.heard).endswith(b"\x44" * 4000)
        assert (await stage.archive()).endswith("AGENT: Goodbye, Ana.\n")
        assert conversation.problems == []


# Memory


async def test_nothing_is_kept_of_withheld_and_blacklisted_numbers(
    any_stage: Stage, tmp_path: Path, receiver: WebhookReceiver
) -> None:
    """No transcript, no document, no recording, no webhook."""
    stage, records = any_stage, tmp_path / "records"
    for caller in ("", "anonymous", BLACKLISTED, BLACKLISTED):
        call, conversation = await stage.dial(caller)
        await conversation.user_says("My name is Ana.")
        assert "Ana" not in conversation.prompt
        assert [*records.glob("*")] == []  # not for a moment
        await call.hang_up()
        await stage.idle()
        assert [*records.glob("*")] == stage.archives() == (await stage.http.get("/v1/sessions")).json() == []
    found = await stage.http.post("/v1/query", json={"text": "voice call summary"})
    assert found.json()["results"] == []
    await prompt_of_call(stage)
    await until(receiver.messages)
    assert [message["caller"] for message in receiver.accepted.values()] == [CALLER]
    assert len([*records.glob("*")]) == len(stage.archives()) == 1


async def test_memory_belongs_to_one_caller_and_one_agent(engine_name: str, tmp_path: Path) -> None:
    """Also if they call at the same time."""
    desk = f'numbers = ["{DESK}"]\nprompt = "prompts/maya.md"'
    engine = make_engine(engine_name, tmp_path, f'numbers = ["{CALLED}"]', other_agents={"desk": desk})
    said = {(CALLER, CALLED): "red", (OTHER, CALLED): "blue", (CALLER, DESK): "green"}
    async with staged(tmp_path, make_carrier("twilio"), engine=engine) as stage:
        lines = [await stage.dial(caller, called) for caller, called in said]
        for (_, conversation), colour in zip(lines, said.values(), strict=True):
            await conversation.user_says(f"I ride a {colour} bike.")
        await asyncio.gather(*(call.hang_up() for call, _ in lines))
        await stage.idle()
        for (caller, called), colour in said.items():
            prompt = await prompt_of_call(stage, caller, called)
            assert [one for one in said.values() if f"{one} bike" in prompt] == [colour]


async def test_prompt_without_placeholder_gets_nothing(engine_name: str, tmp_path: Path) -> None:
    """Facts are still kept."""
    (tmp_path / "plain.md").write_text("You are plain.")
    engine = make_engine(engine_name, tmp_path, 'prompt = "plain.md"')
    async with staged(tmp_path, make_carrier("twilio"), engine=engine) as stage:
        await prompt_of_call(stage, said="My name is Ana Lopez.")
        assert await prompt_of_call(stage) == "You are plain."
    store = await open_local_store(tmp_path / "data")
    facts = await FactStore(store).known("maya", CALLER, 10)
    await store.close()
    assert ["Ana Lopez" in fact.text for fact in facts] == [True]


def remembers(remem: FakeRemem) -> dict[str, str]:
    """Store a call of the caller there. Returns the gateway's settings for this store."""
    title = "Voice Call Summary — 2026-11-06 11:15 PM"
    lines = ("**Session:** voice-session:1", f"**Caller:** Ana ({CALLER})", "**Agent:** maya", "")
    content = "\n".join((f"## {title}", "", *lines, "### Context for Next Call", "Ana rides a red bike."))
    remem.keeps(content, title=title, tags=("voice-session", f"caller:{CALLER}", "agent:maya"))
    return {"REMEM_API_URL": remem.url, "REMEM_API_KEY": remem.api_key}


@pytest.mark.virtual_time
async def test_slow_store_does_not_hold_the_call(
    engine_name: str, carrier_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The settings leave within 150 ms of `start` without its calls, which are added when they arrive."""
    caplog.set_level("INFO", "gateway")
    clock = asyncio.get_running_loop().time
    async with FakeRemem(always=Fault.SLOW) as remem:
        carrier, engine = make_carrier(carrier_name), make_engine(engine_name, tmp_path)
        async with staged(tmp_path, carrier, engine=engine, hurries=True, **remembers(remem)) as stage:
            rang = clock()
            call, conversation = await stage.dial()
            assert 0.0 < clock() - rang <= 0.15
            assert "late memory sent to the engine" not in caplog.messages
            remem.awake.set()
            await until(lambda: "late memory sent to the engine" in caplog.messages)
            await conversation.user_says("Hello?")
            assert "Ana rides a red bike." in conversation.prompt
            assert conversation.problems == []
            await call.hang_up()


async def test_switched_off_sessions_read_and_keep_nothing(engine_name: str, tmp_path: Path) -> None:
    async with FakeRemem() as remem:
        environ = {"VOICE_SESSION_ENABLED": "false", "RECORD_DIR": str(tmp_path / "records"), **remembers(remem)}
        engine = make_engine(engine_name, tmp_path)
        async with staged(tmp_path, make_carrier("twilio"), engine=engine, **environ) as stage:
            assert "Ana" not in await prompt_of_call(stage, said="I ride a blue bike.")
            assert "blue" not in await prompt_of_call(stage)
            assert remem.requests == await stage.documents() == (await stage.http.get("/v1/sessions")).json() == []
            assert [*(tmp_path / "records").glob("*")] == stage.archives() == []


# What only the Realtime protocol has


@pytest.fixture
async def openai_stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(tmp_path, make_carrier("twilio"), engine=make_engine("openai", tmp_path)) as stage:
        yield stage


async def test_words_that_come_after_the_answer(openai_stage: Stage) -> None:
    """The texts of two turns come late, and in the wrong order."""
    stage = openai_stage
    call, conversation = await greeted(stage)
    conversation.behave(transcription="after")
    for question, answer in (("Is my bike ready?", "It is."), ("When can I come?", "On Monday.")):
        await conversation.user_says(question)
        await stage.answer(call, conversation, answer)
    await conversation.late_text(1)
    await conversation.late_text(0)
    conversation.behave(transcription="before")
    await conversation.user_says("Goodbye.")
    await call.hang_up()
    assert (await stage.archive()).endswith(
        "CALLER: Is my bike ready?\nAGENT: It is.\nCALLER: When can I come?\nAGENT: On Monday.\nCALLER: Goodbye.\n"
    )
    assert conversation.problems == []


async def test_forgotten_words_are_not_answered_by_the_model(openai_stage: Stage) -> None:
    """A memory command is answered by the gateway, even if the model has begun to answer it."""
    stage = openai_stage
    call, conversation = await greeted(stage)
    conversation.behave(transcription="after")
    await conversation.user_says("Forget what I just told you.")
    await conversation.agent_says("I can't do that.", done=False)
    await conversation.late_text()
    await conversation.message("response.cancel")
    await conversation.until(lambda: len(conversation.received("response.create")) == 2)  # with the greeting
    said = conversation.received("response.create")[1]["response"]["instructions"].partition("\n\n")[2]
    sound = b"".join(map(speech, sentences(said)))
    await call.until(lambda: bytes(call.heard).endswith(sound))
    assert "I can't do that." not in [text for _, text in conversation.believed]
    await call.hang_up()


async def test_engine_without_mu_law_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = make_engine("openai", tmp_path, keeps_pcm=True)
    async with staged(tmp_path, make_carrier("twilio"), engine=engine) as stage:
        call = await stage.carrier.dial()
        await call.over(20)
    [reason] = [record.reason for record in caplog.records if record.message == "voice engine gone, apologising"]
    assert reason == "the engine gave up: it has no audio/pcmu for input, but audio/pcm"
    assert engine.models == ["gpt-realtime-2.1"]


async def test_account_without_credit_is_not_tried_again(openai_stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    call, conversation = await greeted(openai_stage)
    await conversation.fail("insufficient_quota", close=1000)
    await call.over(20)
    assert len(openai_stage.engine.conversations) == 1
    [reason] = [record.reason for record in caplog.records if record.message == "voice engine gone, apologising"]
    assert reason == "the engine gave up: insufficient_quota"
