"""
End of turn on human speech: how often each rule cuts a speaker off in a pause, and how long it waits at the end.

The turns are built from recordings: whole sentences, two sentences, phrases that were recorded to be continued,
sentences cut between words, digits and letters read one by one, with pauses of 0.3 to 1.2 s. Every pause is transcribed
as in a call. The rules are then compared on the same pauses.
"""

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from gateway.simulate.synthetic_caller import line_noise
from gateway.speech.endpointing import COMPLETE, FRAME_SECONDS, INCOMPLETE, TurnDetector, silence_after
from gateway.speech.models import FRAME_SAMPLES, Models, VoiceActivityDetector
from gateway.speech.samples import RATE, Samples, decode, encode
from gateway.speech.stt_stream import SttStream, TranscribeRequest
from scripts.speech_bench.recordings import Recordings
from scripts.speech_bench.smart_turn import SmartTurn

_AFTER: Final = 1.6
"""Seconds of silence after a turn; more than any rule waits."""
_TRANSCRIBED: Final = 0.27
"""Seconds of silence after which the text of a pause is known, on an idle machine."""
_SURE, _UNSURE = 0.5, 0.3

Rule = Callable[[str, float], float]
"""The silence that ends a turn, from its text and from the probability of Smart Turn."""


@dataclass(frozen=True)
class SpokenTurn:
    kind: str
    samples: Samples


@dataclass
class Pause:
    text: str
    probability: float
    began: float
    """In seconds from the beginning of the turn."""
    seconds: float = 0.0
    is_end: bool = True


@dataclass(frozen=True)
class RuleResult:
    rule: str
    pauses: int
    cut: dict[str, int]
    """Pauses within turns that ended them, by kind of turn."""
    delays: dict[str, list[float]]
    """Seconds from the last sound to the end of the turn."""


RULES: Final[dict[str, Rule]] = {
    "text, as shipped": lambda text, probability: silence_after(text),
    "Smart Turn alone": lambda text, probability: COMPLETE if probability > _SURE else INCOMPLETE,
    "both: Smart Turn below 0.3 waits 1 s": lambda text, probability: (
        INCOMPLETE if probability < _UNSURE else silence_after(text)
    ),
}


def measure(*, progress: Callable[[str], None]) -> list[RuleResult]:
    models, smart_turn = Models.load(), SmartTurn()
    spoken = _turns(Recordings())
    found: list[tuple[SpokenTurn, list[Pause]]] = []
    for number, turn in enumerate(spoken):
        if number % 20 == 0:
            progress(f"turn {number} of {len(spoken)}")
        found.append((turn, _pauses(turn, models, smart_turn)))
    return [_apply(name, rule, found) for name, rule in RULES.items()]


def _apply(name: str, rule: Rule, found: Sequence[tuple[SpokenTurn, list[Pause]]]) -> RuleResult:
    count, cut = 0, dict.fromkeys((turn.kind for turn, _ in found), 0)
    delays: dict[str, list[float]] = {kind: [] for kind in cut}
    for turn, pauses in found:
        caller = TurnDetector()  # how this caller pauses counts with every rule
        for pause in pauses:
            _feed(caller, 1.0, 0.5)
            required = max(rule(pause.text, pause.probability), caller.required_silence("Yes."))
            if pause.is_end:
                delays[turn.kind].append(pause.began + max(required, _TRANSCRIBED) - len(turn.samples) / RATE)
            else:
                count += 1
                cut[turn.kind] += pause.seconds >= required
                _feed(caller, 0.0, pause.seconds)
    return RuleResult(name, count, cut, delays)


def _feed(caller: TurnDetector, probability: float, seconds: float) -> None:
    for _ in range(round(seconds / FRAME_SECONDS)):
        caller.feed(probability)


def _pauses(turn: SpokenTurn, models: Models, smart_turn: SmartTurn) -> list[Pause]:
    """The pauses of a turn that never ends. The last one is its end."""
    lead = RATE // 2
    silence = np.zeros(int(_AFTER * RATE), np.float32)
    samples = np.concatenate([np.zeros(lead, np.float32), turn.samples, silence])
    noise = np.resize(np.concatenate([decode(frame) for frame in line_noise(50)]), len(samples))
    audio = encode((samples + noise).astype(np.float32))
    detector = EndlessTurn()
    stream = SttStream(VoiceActivityDetector(models.silero), detector)
    pauses: list[Pause] = []
    for at in range(0, len(audio) - FRAME_SAMPLES + 1, FRAME_SAMPLES):
        for event in stream.feed(audio[at : at + FRAME_SAMPLES]):
            if isinstance(event, TranscribeRequest):
                stream.transcribed(event.number, models.recogniser.transcribe(event.samples))
                began = (at + FRAME_SAMPLES - lead) / RATE - detector.silence
                pauses.append(Pause(detector.text, smart_turn.probability(event.samples), began))
        if pauses and pauses[-1].is_end:
            if detector.silence:
                pauses[-1].seconds = detector.silence
            else:
                pauses[-1].is_end = False
    return pauses


class EndlessTurn(TurnDetector):
    """Keeps the text of the turn so far, and never ends it."""

    text = ""

    def required_silence(self, text: str) -> float:
        self.text = text
        return _AFTER * 2


# The turns


def _turns(recordings: Recordings) -> list[SpokenTurn]:
    """The same in every run."""
    clips, chosen = recordings.clips, random.Random(5)

    def pause(low: float = 0.3, high: float = 1.2) -> Samples:
        return np.zeros(int(chosen.uniform(low, high) * RATE), np.float32)

    def read(folder: str, names: str, length: int) -> list[Samples]:
        parts: list[Samples] = []
        for _ in range(length):
            parts += [clips[f"{folder}/{chosen.choice(names)}"].samples, pause(high=0.8)]
        return parts[:-1]

    sentences = [clip for clip in recordings.sentences() if "..." not in clip.text and len(clip.samples) < 5 * RATE]
    sentences.sort(key=lambda clip: clip.name)
    turns = [("whole sentence", [clip.samples]) for clip in chosen.sample(sentences, 40)]
    for _ in range(25):
        first, second = chosen.sample(sentences, 2)
        turns.append(("two sentences", [first.samples, pause(), second.samples]))
    for _, clip in sorted(clips.items()):
        if clip.text.endswith("...") and not clip.text.startswith("...") and len(clip.text.split()) >= 3:
            digit = clips[f"digits/{chosen.randrange(10)}"].samples
            turns.append(("open phrase", [clip.samples, pause(), clips["vm-press"].samples, pause(0.05, 0.1), digit]))
    for clip in chosen.sample([clip for clip in sentences if len(clip.samples) > 2 * RATE], 35):
        at = _quietest(clip.samples)
        turns.append(("sentence cut between words", [clip.samples[:at], pause(), clip.samples[at:]]))
    turns += [("digits one by one", read("digits", "0123456789", chosen.choice([4, 6, 7]))) for _ in range(20)]
    turns += [("letters one by one", read("letters", "abcdefghijklmnopqrstuvwxyz", 5)) for _ in range(12)]
    return [SpokenTurn(kind, np.concatenate(parts)) for kind, parts in turns]


def _quietest(samples: Samples) -> int:
    """The quietest place in the middle of a sentence, which is mostly between two words."""
    size = RATE // 100
    energy = np.square(samples[: len(samples) // size * size]).reshape(-1, size).mean(axis=1)
    energy = np.convolve(energy, np.ones(3), "same")
    first, last = int(len(energy) * 0.3), int(len(energy) * 0.7)
    return (first + int(np.argmin(energy[first:last]))) * size


def as_table(results: Sequence[RuleResult]) -> str:
    kinds = list(results[0].cut)
    lines = ["| rule | pauses that ended a turn | " + " | ".join(kinds) + " | delay at the end, p50 / p90 |"]
    lines.append("| --- " * (len(kinds) + 3) + "|")
    for result in results:
        cut, every = sum(result.cut.values()), sorted(sum(result.delays.values(), []))
        delay = f"{statistics.median(every):.2f} / {every[len(every) * 9 // 10]:.2f} s"
        by_kind = " | ".join(str(result.cut[kind]) for kind in kinds)
        lines.append(f"| {result.rule} | {cut} of {result.pauses} ({cut / result.pauses:.0%}) | {by_kind} | {delay} |")
    for result in results[:1]:
        for kind, delays in result.delays.items():
            lines.append(f"{result.rule}, {kind}: delay p50 {statistics.median(delays):.2f} s")
    return "\n".join(lines)
