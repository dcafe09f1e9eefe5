"""
Engines measured from outside, with voicebench (Apache-2.0): a caller on the phone, and what that caller hears.

voicebench plays human recordings into a call, records both sides and finds speech by energy. The local engine has a
simulated language model; the engines of services are simulators that detect speech by loudness. All of them say the
same answer in the same voice, so their figures show what gateway and local engine add, not how good a service is.
"""

import asyncio
import contextlib
import random
import sys
import tempfile
import wave
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from gateway.bench.processes import ADMIN_TOKEN, GatewayProcess, Variant, running_gateway
from gateway.settings import Secret
from gateway.simulate.softphone import Softphone, phone_line
from gateway.simulate.synthetic_caller import line_noise
from gateway.speech.models import HibariVoice
from gateway.speech.samples import RATE, decode, encode
from scripts.speech_bench.recordings import CACHE, Clip, Recordings, download_wheel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))  # the simulators of the tests

from tests.fakes.deepgram import FakeDeepgram
from tests.fakes.llm import FakeLlm
from tests.fakes.openai_realtime import FakeRealtime

ENGINES: Final = ("local", "deepgram", "openai")
_PACKAGE: Final = "voicebench==0.2.0"
_ANSWER: Final = (
    "Everything you asked for is waiting at the front desk and somebody will be there all day to help you with it."
)
_PLAN: Final = (
    "respond",
    "respond",
    "stop",
    "ignore",
    "respond",
    "stop",
    "ignore",
    "respond",
    "stop",
    "ignore",
    "respond",
)
"""What the agent should do in each turn: answer, stop speaking, or go on speaking after a cough."""
_STARTS: Final = {
    "respond": {"after": "agent_speech_end", "delay_ms": 700},
    "stop": {"after": "agent_speech_start", "delay_ms": 1500},
    "ignore": {"after": "agent_speech_start", "delay_ms": 1500},
}
_NOISE: Final = np.concatenate([decode(frame) for frame in line_noise(50)])

Summary = dict[str, Any]


def measure(engines: Sequence[str], calls: int, *, progress: Callable[[str], None]) -> dict[str, Summary]:
    """The summary of voicebench for each engine."""
    sys.path.append(str(download_wheel(_PACKAGE, CACHE)))  # pure Python: imported from the wheel
    short = [
        clip for clip in Recordings().sentences() if RATE < len(clip.samples) < 3 * RATE and "..." not in clip.text
    ]
    clips = random.Random(3).sample(sorted(short, key=lambda clip: clip.name), len(_PLAN))
    answer = HibariVoice().synthesize(_ANSWER)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        scenario = _scenario(clips, Path(folder))
        for engine in engines:
            progress(f"{engine}: {calls} calls of about 90 s")
            found[engine] = asyncio.run(_measure(engine, scenario, clips, answer, calls))
    return found


def _scenario(clips: Sequence[Clip], folder: Path) -> Any:
    from voicebench.scenario import parse_scenario

    turns = []
    for number, (expect, clip) in enumerate(zip(_PLAN, clips, strict=True)):
        audio: dict[str, Any] = {"synth": "noise", "duration_ms": 180, "level_db": -25, "seed": number}
        if expect != "ignore":
            path = folder / f"{number}.wav"
            with wave.open(str(path), "wb") as file:
                file.setparams((1, 2, RATE, 0, "NONE", ""))
                file.writeframes((clip.samples * 32767).clip(-32768, 32767).astype("<i2").tobytes())
            audio = {"file": str(path)}
        turns.append({"id": f"{number} {expect}", "audio": audio, "expect": expect, "start": _STARTS[expect]})
    speech = {"agent": {"min_silence_ms": 500}}  # the voice pauses for up to 0.4 s within a sentence
    return parse_scenario({"name": "phone call", "sample_rate": RATE, "frame_ms": 20, "vad": speech, "turns": turns})


async def _measure(engine: str, scenario: Any, clips: Sequence[Clip], answer: bytes, calls: int) -> Summary:
    from voicebench.metrics import analyze, summarize
    from voicebench.runner import run

    async with _gateway(engine, clips, answer) as process:
        sessions = [analyze(await run(scenario, PhoneAdapter(process))) for _ in range(calls)]
    summary: Summary = summarize(sessions)
    return summary


@contextlib.asynccontextmanager
async def _gateway(engine: str, clips: Sequence[Clip], answer: bytes) -> AsyncIterator[GatewayProcess]:
    """A gateway whose engine answers everything with `answer`."""
    # The simulators do not recognise words: they are given the text of each turn, and none for a cough.
    texts = [None if expect == "ignore" else clip.text for expect, clip in zip(_PLAN, clips, strict=True)]
    script = {text: lambda talk: talk.agent_says(_ANSWER, audio=answer) for text in texts if text}
    async with contextlib.AsyncExitStack() as stack:
        if engine == "local":
            llm = await stack.enter_async_context(FakeLlm())
            llm.answers(_ANSWER)
            environment = {"VOICE_ENGINE": "local", "ANTHROPIC_API_KEY": llm.api_key, "ANTHROPIC_BASE_URL": llm.url}
        else:
            behaviour = {"listen_by_energy": True, "turns": texts, "script": script, "speech_rate": 2.0}
            service = FakeDeepgram(**behaviour) if engine == "deepgram" else FakeRealtime(**behaviour)
            await stack.enter_async_context(service)
            environment = {"DEEPGRAM_API_KEY": service.api_key, "DEEPGRAM_AGENT_URL": service.url}
            if isinstance(service, FakeRealtime):
                environment = service.settings()
        environment |= {"SUMMARY_PROVIDER": "extractive", "MEMORY_VECTORS": "false"}
        variant = Variant(engine, environment=environment, ready_seconds=60.0)
        yield await stack.enter_async_context(running_gateway("ws://127.0.0.1:9", variant, core=None))


class PhoneAdapter:
    """What voicebench needs of its adapters: a softphone that says what it is given and reports what is heard."""

    name = "phone"
    supports_virtual_clock = False

    def __init__(self, process: GatewayProcess) -> None:
        self._process = process
        self._speech: list[bytes] = []
        self._events: list[Any] = []
        self._noise = self._frames_of_noise()
        self._stack = contextlib.AsyncExitStack()
        self._talking: asyncio.Task[None] | None = None
        self._is_over = False

    async def start(self, session: Any) -> None:
        self._clock = session.clock
        self._line: Softphone = await self._stack.enter_async_context(
            phone_line(self._process.url, Secret(ADMIN_TOKEN), caller="+12025550143")
        )
        self._talking = asyncio.create_task(self._line.talk(self._speak, self._listen))

    async def send_audio(self, pcm: Any) -> None:
        self._speech.append(encode((pcm + next(self._noise)).astype(np.float32)))

    def drain(self) -> list[Any]:
        events, self._events = self._events, []
        return events

    async def close(self) -> None:
        self._is_over = True
        if self._talking is not None:
            await self._talking
        await self._stack.aclose()

    def describe(self) -> dict[str, Any]:
        return {"type": self.name}

    def _speak(self) -> bytes | None:
        if self._is_over:
            return None
        return self._speech.pop(0) if self._speech else encode(next(self._noise))

    def _listen(self, frame: bytes) -> None:
        from voicebench.adapters.base import AgentAudio

        if self._line.playout.is_playing:
            self._events.append(AgentAudio(decode(frame), self._clock.now()))

    def _frames_of_noise(self) -> Iterator[Any]:
        while True:
            yield from _NOISE.reshape(-1, RATE // 50)


def as_table(found: dict[str, Summary]) -> str:
    lines = [
        "| engine | answers | response time p50 / p90 | barge-ins, stopped | stop time p50 / max "
        "| false barge-ins on a cough | talk-over |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for engine, one in found.items():
        latency, stop = one["response_latency_ms"], one["barge_in_stop_ms"]
        answers = f"{latency['count']}, {one['missed_responses']} missed"
        stopped = f"{one['barge_in_turns']}, {one['barge_in_success_rate']:.0%}"
        coughs = f"{one['false_barge_ins']} of {one['noise_turns']}"
        lines.append(
            f"| {engine} | {answers} | {latency['p50']:.0f} / {latency['p90']:.0f} ms | {stopped} "
            f"| {stop['p50']} / {stop['max']} ms | {coughs} | {one['talk_over_ms']:.0f} ms |"
        )
    return "\n".join(lines)
