"""Word error of the local engine on human speech: sentences, digits and letters, clear and on bad lines."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from gateway.bench.local import hear
from gateway.simulate.word_error import WordError, word_error
from gateway.speech.models import Models, Moonshine
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
    plain: WordError | None = None
    """Without noise reduction, where it was measured."""


class PlainMoonshine(Moonshine):
    """Moonshine without noise reduction."""

    def prepare(self, samples: Samples) -> Samples:
        return samples


def measure(*, sentences: int, progress: Progress) -> list[WordRow]:
    """All sets on a clear line; on each bad line `sentences` sentences and half of the strings of digits."""
    recordings, models = Recordings(), Models.load()
    plain = replace(models, recogniser=PlainMoonshine())
    everything = sorted(recordings.sentences(), key=lambda clip: clip.name)
    short = [clip for clip in everything if len(clip.samples) < 5 * RATE]
    sample = random.Random(1).sample(short, min(sentences, len(short)))
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
    bad_line_sets = {"sentences": sample, "strings of 6 digits": digit_strings[: _STRINGS // 2]}
    for line_name, line in bad_lines().items():
        for name, clips in bad_line_sets.items():
            progress(f"{name}, {line_name}")
            row = _row(name, line_name, clips, line, models)
            rows.append(replace(row, plain=_row(name, line_name, clips, line, plain).error))
    return rows


def bad_lines() -> dict[str, Line]:
    """A clear line for comparison; the noises of langwatch-scenario 10 dB below the speech; its line effects."""
    lines: dict[str, Line] = {"clear": lambda samples: samples}
    lines |= {name: with_noise(noise, 10) for name, noise in noises().items()}
    hiss = np.random.default_rng(3).normal(0, 0.1, 3 * RATE).astype(np.float32)
    return lines | {
        "hiss": with_noise(hiss, 10),
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
    lines = ["| speech | line | clips | without error | word error rate | without noise reduction |"]
    lines.append("| --- " * 6 + "|")
    for row in rows:
        plain = f"{row.plain.share:.1%}" if row.plain else ""
        lines.append(f"| {row.speech} | {row.line} | {row.clips} | {row.whole} | {row.error.share:.1%} | {plain} |")
    return "\n".join(lines)
