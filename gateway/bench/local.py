"""
`gateway bench --engine local`: how well the local engine understands, how soon it answers, how many calls it holds.

Everything is real: synthetic voices are heard through 8 kHz mu-law with line noise, and phone a gateway that runs in
processes of its own, with the scripted agent, at the pace of life.
"""

import asyncio
import contextlib
import statistics
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Final

import httpx

from gateway.audio import FRAME_BYTES
from gateway.bench.processes import ADMIN_TOKEN, GatewayProcess, running_gateway
from gateway.bench.variants import Variant
from gateway.errors import BenchFailed
from gateway.settings import Secret
from gateway.simulate import voices
from gateway.simulate.scripted_caller import ScriptedCaller
from gateway.simulate.softphone import phone_line
from gateway.simulate.voices import CallerVoice
from gateway.simulate.word_error import WordError, total, word_error
from gateway.speech.models import Models
from gateway.speech.stt_stream import SpeechEnded, SttStream, TranscribeRequest
from gateway.speech.vad import SpeechMeter

TURNS: Final = 12
"""Of the one call whose answers are timed."""
TURNS_TOGETHER: Final = 5
WORD_ERROR_LIMITS: Final = {"hibari": 0.05, "pico": 0.15}
ANSWER_LIMITS: Final = (0.7, 1.1)
"""Seconds from the caller's last sound to the agent's first, at p50 and p90."""
_READY_SECONDS: Final = 60.0
_GAP_FRAMES: Final = 2
"""A gap of so many frames in what the agent says can be heard."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Answers:
    """How soon calls were answered, and whether the agent's words came without gaps."""

    calls: int
    seconds: tuple[float, ...]
    gaps: int
    unanswered: int = 0
    """Turns that got no answer while the caller waited."""

    @property
    def p50(self) -> float:
        return statistics.median(self.seconds) if self.seconds else float("inf")

    @property
    def p90(self) -> float:
        ordered = sorted(self.seconds)
        return ordered[max(-(-len(ordered) * 9 // 10) - 1, 0)] if ordered else float("inf")


@dataclass(frozen=True)
class LocalMeasurement:
    """All that was found out."""

    sentences: int
    word_errors: dict[str, WordError]
    alone: Answers
    together: Answers

    @property
    def understood(self) -> bool:
        return all(self.word_errors[voice].share < limit for voice, limit in WORD_ERROR_LIMITS.items())

    @property
    def answered_in_time(self) -> bool:
        return self.alone.p50 < ANSWER_LIMITS[0] and self.alone.p90 < ANSWER_LIMITS[1]

    @property
    def held(self) -> bool:
        unanswered = self.alone.unanswered + self.together.unanswered
        return self.understood and self.answered_in_time and not self.together.gaps and not unanswered


def measure(calls: int, *, progress: Progress) -> LocalMeasurement:
    """Takes about three minutes."""
    sentences = bench_sentences()
    progress(f"{len(sentences)} sentences in two voices")
    errors = hearing(sentences)
    alone, together = asyncio.run(_phone(sentences, calls, progress))
    return LocalMeasurement(len(sentences), errors, alone, together)


def bench_sentences() -> list[str]:
    return resources.files("gateway.bench").joinpath("sentences.txt").read_text(encoding="utf-8").splitlines()


def hearing(sentences: Sequence[str]) -> dict[str, WordError]:
    """The word error of each voice, over the whole way: line, ear, recogniser."""
    models = Models.load()
    speakers: dict[str, CallerVoice] = {"hibari": models.voice.say, "pico": voices.pico}
    return {
        name: total(word_error(sentence, _heard(speak(sentence), models)) for sentence in sentences)
        for name, speak in speakers.items()
    }


def _heard(sound: bytes, models: Models) -> str:
    quiet = b"".join(voices.line_noise(75))
    stt_stream, texts = SttStream(SpeechMeter(models.silero)), []
    line = quiet + sound + quiet
    for at in range(0, len(line), FRAME_BYTES):
        todo = stt_stream.hear(line[at : at + FRAME_BYTES])
        while todo:
            event = todo.pop(0)
            if isinstance(event, TranscribeRequest):
                todo += stt_stream.words_are(event.number, models.recogniser.text_of(event.samples))
            elif isinstance(event, SpeechEnded):
                texts.append(event.text)
    return " ".join(texts)


async def _phone(sentences: Sequence[str], calls: int, progress: Progress) -> tuple[Answers, Answers]:
    spoken = [voices.pico(sentence) for sentence in sentences[: TURNS + calls]]
    async with _local_gateway(calls) as process:
        progress(f"one call, {TURNS} turns")
        alone = await _answers(process, [spoken[:TURNS]])
        progress(f"{calls} calls at once")
        together = await _answers(process, [spoken[at : at + TURNS_TOGETHER] for at in range(calls)])
    return alone, together


@contextlib.asynccontextmanager
async def _local_gateway(calls: int) -> AsyncIterator[GatewayProcess]:
    environment = {"VOICE_ENGINE": "local", "LOCAL_ENGINE_CALLS": str(calls)}
    variant = Variant("local", environment=environment)
    async with running_gateway("ws://127.0.0.1:9", variant, core=None) as process:
        try:
            async with asyncio.timeout(_READY_SECONDS), httpx.AsyncClient(trust_env=False) as http:
                while True:
                    if (await http.get(f"{process.url}/ready")).is_success:
                        break
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise BenchFailed("the local engine was not ready in time") from None
        yield process


async def _answers(process: GatewayProcess, conversations: Sequence[Sequence[bytes]]) -> Answers:
    async with asyncio.TaskGroup() as tasks:
        callers = [
            tasks.create_task(_talk(process, lines, f"+120255501{number:02}", delay=0.37 * number))
            for number, lines in enumerate(conversations)
        ]
    done = [caller.result() for caller in callers]
    seconds = tuple(after for caller in done for after in caller.answered_after)
    gaps = sum(gap >= _GAP_FRAMES for caller in done for gap in caller.gaps)
    return Answers(len(conversations), seconds, gaps, sum(map(len, conversations)) - len(seconds))


async def _talk(process: GatewayProcess, lines: Sequence[bytes], number: str, *, delay: float) -> ScriptedCaller:
    await asyncio.sleep(delay)  # callers do not ring in step
    async with phone_line(process.url, Secret(ADMIN_TOKEN), caller=number) as line:
        caller = ScriptedCaller(line, lines, last_wait=5.0)
        await line.talk(caller.speak, caller.listen)
    return caller
