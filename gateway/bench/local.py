"""
`gateway bench --engine local`: word error, response time, and number of calls of the local engine.

Synthetic voices speak through 8 kHz mu-law with line noise. They call a gateway in separate processes with the
scripted agent, in real time.

JSON output: `sentences`, `word_error` by voice (`share`, `errors`, `words`, `limit`), `answers` of one call and of
several at once (`calls`, `turns`, `p50_s`, `p90_s`, `gaps`, `unanswered`), `limits_s` (p50 and p90 of one call)
and `held`.
"""

import asyncio
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Any, Final

from gateway.audio import FRAME_BYTES
from gateway.bench.processes import ADMIN_TOKEN, GatewayProcess, Variant, running_gateway
from gateway.settings import Secret
from gateway.simulate.softphone import phone_line
from gateway.simulate.synthetic_caller import ScriptedCaller, line_noise, pico
from gateway.simulate.word_error import WordError, word_error
from gateway.speech.endpointing import TurnDetector
from gateway.speech.models import Models, VoiceActivityDetector
from gateway.speech.stt_stream import SpeechEnded, SttStream, TranscribeRequest

TURNS: Final = 12
"""Turns of the single call."""
TURNS_TOGETHER: Final = 5
"""Turns of each simultaneous call."""
WORD_ERROR_LIMITS: Final = {"hibari": 0.05, "pico": 0.15}
ANSWER_LIMITS: Final = (0.7, 1.1)
"""Seconds from the caller's last audio to the agent's first, at p50 and p90."""
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
    def held(self) -> bool:
        understood = all(self.word_errors[voice].share < limit for voice, limit in WORD_ERROR_LIMITS.items())
        in_time = self.alone.p50 < ANSWER_LIMITS[0] and self.alone.p90 < ANSWER_LIMITS[1]
        unanswered = self.alone.unanswered + self.together.unanswered
        return understood and in_time and not self.together.gaps and not unanswered


def measure(calls: int, *, progress: Progress) -> LocalMeasurement:
    """Run all measurements. Takes about three minutes."""
    sentences = bench_sentences()
    progress(f"{len(sentences)} sentences in two voices")
    models = Models.load()
    errors = {
        name: sum((word_error(one, hear(speak(one), models)) for one in sentences), WordError(0, 0))
        for name, speak in {"hibari": models.voice.synthesize, "pico": pico}.items()
    }
    alone, together = asyncio.run(_phone(sentences, calls, progress))
    return LocalMeasurement(len(sentences), errors, alone, together)


def bench_sentences() -> list[str]:
    return resources.files("gateway.bench").joinpath("sentences.txt").read_text(encoding="utf-8").splitlines()


def hear(audio: bytes, models: Models) -> str:
    """What endpointing and recognition make of the audio on a noisy line."""
    quiet = b"".join(line_noise(75))
    stt_stream, texts = SttStream(VoiceActivityDetector(models.silero), TurnDetector()), []
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
    spoken = [pico(sentence) for sentence in sentences[: TURNS + calls]]
    environment = {"VOICE_ENGINE": "local", "LOCAL_ENGINE_CALLS": str(calls)}
    variant = Variant("local", environment=environment, ready_seconds=60.0)
    async with running_gateway("ws://127.0.0.1:9", variant, core=None) as process:
        progress(f"one call, {TURNS} turns")
        alone = await _answers(process, [spoken[:TURNS]])
        progress(f"{calls} calls at once")
        together = await _answers(process, [spoken[at : at + TURNS_TOGETHER] for at in range(calls)])
    return alone, together


async def _answers(process: GatewayProcess, conversations: Sequence[Sequence[bytes]]) -> Answers:
    async with asyncio.TaskGroup() as tasks:
        callers = [
            tasks.create_task(_talk(process, lines, f"+120255501{number:02}", delay=0.37 * number))
            for number, lines in enumerate(conversations)
        ]
    done = [caller.result() for caller in callers]
    seconds = tuple(after for caller in done for after in caller.answered_after)
    gaps = sum(gap >= 2 for caller in done for gap in caller.gaps)  # shorter ones are not audible
    return Answers(len(conversations), seconds, gaps, sum(map(len, conversations)) - len(seconds))


async def _talk(process: GatewayProcess, lines: Sequence[bytes], number: str, *, delay: float) -> ScriptedCaller:
    await asyncio.sleep(delay)  # callers do not call in step
    async with phone_line(process.url, Secret(ADMIN_TOKEN), caller=number) as line:
        caller = ScriptedCaller(line, lines, last_wait=5.0)
        await line.talk(caller.speak, caller.listen)
    return caller


# Output


def local_as_json(found: LocalMeasurement) -> dict[str, Any]:
    errors = {
        voice: {**asdict(error), "share": round(error.share, 4), "limit": WORD_ERROR_LIMITS[voice]}
        for voice, error in found.word_errors.items()
    }
    answers = [
        {
            "calls": one.calls,
            "turns": len(one.seconds),
            "p50_s": round(one.p50, 3),
            "p90_s": round(one.p90, 3),
            "gaps": one.gaps,
            "unanswered": one.unanswered,
        }
        for one in (found.alone, found.together)
    ]
    limits = {"p50": ANSWER_LIMITS[0], "p90": ANSWER_LIMITS[1]}
    return {
        "sentences": found.sentences,
        "word_error": errors,
        "answers": answers,
        "limits_s": limits,
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
    lines.append("limits met" if found.held else "limits not met: this machine is too slow or too busy")
    return "\n".join(lines)
