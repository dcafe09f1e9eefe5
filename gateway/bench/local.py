"""
`gateway bench --engine local`: word error, response time, and number of calls of the local engine.

Synthetic voices speak through 8 kHz mu-law with line noise. They call a gateway in separate processes with the
scripted agent, in real time.

JSON output: `sentences`, `word_error` by voice (`share`, `errors`, `words`, `limit`), `answers` of one call and of
several at once (`calls`, `turns`, `p50_s`, `p90_s`, `gaps`, `unanswered`), `limits_s` (p50 and p90 of one call)
and `held`.
"""

import asyncio
import contextlib
import statistics
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

import httpx

from gateway.audio import FRAME_BYTES
from gateway.bench.processes import ADMIN_TOKEN, GatewayProcess, Variant, running_gateway
from gateway.errors import BenchFailed
from gateway.settings import Secret
from gateway.simulate import voices
from gateway.simulate.scripted_caller import ScriptedCaller
from gateway.simulate.softphone import phone_line
from gateway.simulate.voices import CallerVoice
from gateway.simulate.word_error import WordError, total, word_error
from gateway.speech.models import Models
from gateway.speech.stt_stream import SpeechEnded, SttStream, TranscribeRequest
from gateway.speech.vad import VoiceActivityDetector

TURNS: Final = 12
"""Turns of the single call."""
TURNS_TOGETHER: Final = 5
"""Turns of each simultaneous call."""
WORD_ERROR_LIMITS: Final = {"hibari": 0.05, "pico": 0.15}
ANSWER_LIMITS: Final = (0.7, 1.1)
"""Seconds from the caller's last audio to the agent's first, at p50 and p90."""
_READY_SECONDS: Final = 60.0
_GAP_FRAMES: Final = 2
"""The shortest audible gap in the agent's speech."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Answers:
    """Response times of one or several calls, and gaps in the agent's speech."""

    calls: int
    seconds: tuple[float, ...]
    gaps: int
    unanswered: int = 0
    """Turns without an answer while the caller waited."""

    @property
    def p50(self) -> float:
        return statistics.median(self.seconds) if self.seconds else float("inf")

    @property
    def p90(self) -> float:
        ordered = sorted(self.seconds)
        return ordered[max(-(-len(ordered) * 9 // 10) - 1, 0)] if ordered else float("inf")


@dataclass(frozen=True)
class LocalMeasurement:
    """The result of a run."""

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
    """Run all measurements. Takes about three minutes."""
    sentences = bench_sentences()
    progress(f"{len(sentences)} sentences in two voices")
    errors = word_errors(sentences)
    alone, together = asyncio.run(_phone(sentences, calls, progress))
    return LocalMeasurement(len(sentences), errors, alone, together)


def bench_sentences() -> list[str]:
    return resources.files("gateway.bench").joinpath("sentences.txt").read_text(encoding="utf-8").splitlines()


def word_errors(sentences: Sequence[str]) -> dict[str, WordError]:
    """The word error of each voice through line noise, endpointing and recognition."""
    models = Models.load()
    speakers: dict[str, CallerVoice] = {"hibari": models.voice.synthesize, "pico": voices.pico}
    return {
        name: total(word_error(sentence, _transcribed(speak(sentence), models)) for sentence in sentences)
        for name, speak in speakers.items()
    }


def _transcribed(audio: bytes, models: Models) -> str:
    quiet = b"".join(voices.line_noise(75))
    stt_stream, texts = SttStream(VoiceActivityDetector(models.silero)), []
    line = quiet + audio + quiet
    for at in range(0, len(line), FRAME_BYTES):
        todo = stt_stream.feed(line[at : at + FRAME_BYTES])
        while todo:
            event = todo.pop(0)
            if isinstance(event, TranscribeRequest):
                todo += stt_stream.transcribed(event.number, models.recogniser.transcribe(event.samples))
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
            raise BenchFailed("the local engine did not become ready") from None
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
    await asyncio.sleep(delay)  # callers do not call in step
    async with phone_line(process.url, Secret(ADMIN_TOKEN), caller=number) as line:
        caller = ScriptedCaller(line, lines, last_wait=5.0)
        await line.talk(caller.speak, caller.listen)
    return caller


# Output


def local_as_json(found: LocalMeasurement) -> dict[str, Any]:
    return {
        "sentences": found.sentences,
        "word_error": {
            voice: {
                "share": round(error.share, 4),
                "errors": error.errors,
                "words": error.words,
                "limit": WORD_ERROR_LIMITS[voice],
            }
            for voice, error in found.word_errors.items()
        },
        "answers": [_answers_as_json(found.alone), _answers_as_json(found.together)],
        "limits_s": {"p50": ANSWER_LIMITS[0], "p90": ANSWER_LIMITS[1]},
        "held": found.held,
    }


def local_as_text(found: LocalMeasurement) -> str:
    lines = [f"{found.sentences} sentences, 8 kHz mu-law with line noise:"]
    for voice, error in found.word_errors.items():
        lines.append(f"  word error, voice {voice:7} {error}; limit {WORD_ERROR_LIMITS[voice]:.0%}")
    lines.append("From the caller's last audio to the agent's first, with the scripted agent:")
    for answers in (found.alone, found.together):
        calls = "1 call " if answers.calls == 1 else f"{answers.calls} calls"
        timing = f"p50 {answers.p50:.2f} s, p90 {answers.p90:.2f} s"
        turns = f"{len(answers.seconds)} turns, {answers.unanswered} without answer"
        lines.append(f"  {calls}  {timing}, {turns}, {answers.gaps} gaps in the agent's speech")
    lines.append(f"  limits for one call: p50 {ANSWER_LIMITS[0]:.1f} s, p90 {ANSWER_LIMITS[1]:.1f} s; no gaps")
    lines.append("held" if found.held else "not held: this machine is too slow or too busy for it")
    return "\n".join(lines)


def _answers_as_json(answers: Answers) -> dict[str, Any]:
    return {
        "calls": answers.calls,
        "turns": len(answers.seconds),
        "p50_s": round(answers.p50, 3),
        "p90_s": round(answers.p90, 3),
        "gaps": answers.gaps,
        "unanswered": answers.unanswered,
    }
