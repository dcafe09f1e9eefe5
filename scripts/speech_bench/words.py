"""Word error of the local engine on human speech: sentences, digits and letters, clear and on bad lines."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from gateway.bench.local import hear
from gateway.simulate.word_error import WordError, word_error
from gateway.speech.models import Models
from gateway.speech.samples import RATE, Samples, encode
from scripts.speech_bench.recordings import Clip, Line, Recordings, echo, noises, packet_loss, with_noise

_STRINGS: Final = 24
_DIGITS: Final = "0123456789"
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
_NUMBERS: Final = [*map(str, range(21)), *map(str, range(30, 100, 10))]

Progress = Callable[[str], None]


@dataclass(frozen=True)
class WordRow:
    """The result of one set of clips on one line. `whole` counts the clips without any error."""

    speech: str
    line: str
    clips: int
    whole: int
    error: WordError


def measure(*, sentences: int, progress: Progress) -> list[WordRow]:
    """All sets on a clear line; on each bad line `sentences` sentences and the strings of digits."""
    recordings, models = Recordings(), Models.load()
    everything = sorted(recordings.sentences(), key=lambda clip: clip.name)
    sample = random.Random(1).sample(everything, min(sentences, len(everything)))
    digit_strings = _strings(recordings, "digits", _DIGITS, 6)
    sets = {
        "sentences": everything,
        "single numbers": recordings.group("digits", _NUMBERS),
        "strings of 6 digits": digit_strings,
        "single letters": recordings.group("letters", _LETTERS),
        "strings of 5 letters": _strings(recordings, "letters", _LETTERS, 5),
        "radio alphabet (alpha, bravo)": recordings.group("phonetic", [f"{letter}_p" for letter in _LETTERS]),
    }
    rows = []
    for name, clips in sets.items():
        progress(name)
        rows.append(_row(name, "clear", clips, lambda samples: samples, models))
    for line_name, line in bad_lines().items():
        progress(line_name)
        rows.append(_row("sentences", line_name, sample, line, models))
        rows.append(_row("strings of 6 digits", line_name, digit_strings, line, models))
    return rows


def bad_lines() -> dict[str, Line]:
    """The noises of langwatch-scenario at 15 and 5 dB below the speech, and its line effects."""
    lines: dict[str, Line] = {}
    for name, noise in noises().items():
        lines |= {f"{name}, {decibels} dB": with_noise(noise, decibels) for decibels in (15, 5)}
    return lines | {
        "5 % of packets lost": packet_loss(0.05),
        "20 % lost, 0.1 s each": packet_loss(0.2, packet_seconds=0.1),
        "echo after 0.2 s": echo(),
    }


def _row(speech: str, line_name: str, clips: Sequence[Clip], line: Line, models: Models) -> WordRow:
    around = np.zeros(RATE, np.float32)  # the line is as bad before and after the words
    lines = [line(np.concatenate([around, clip.samples, around])) for clip in clips]
    errors = [word_error(clip.text, hear(encode(samples), models)) for clip, samples in zip(clips, lines, strict=True)]
    whole = sum(not error.errors for error in errors)
    return WordRow(speech, line_name, len(clips), whole, sum(errors, WordError(0, 0)))


def _strings(recordings: Recordings, folder: str, names: str, length: int) -> list[Clip]:
    """Digits or letters read one by one, 0.15 to 0.3 s apart. The same in every run."""
    chosen = random.Random(2)
    strings = []
    for number in range(_STRINGS):
        clips = recordings.group(folder, chosen.choices(names, k=length))
        parts: list[Samples] = []
        for clip in clips:
            parts += [clip.samples, np.zeros(int(chosen.uniform(0.15, 0.3) * RATE), np.float32)]
        text = " ".join(clip.text for clip in clips)
        strings.append(Clip(f"{folder} {number}", text, np.concatenate(parts[:-1])))
    return strings


def as_table(rows: Sequence[WordRow]) -> str:
    lines = ["| speech | line | clips | without error | word error rate |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        lines.append(f"| {row.speech} | {row.line} | {row.clips} | {row.whole} | {row.error.share:.1%} |")
    return "\n".join(lines)
