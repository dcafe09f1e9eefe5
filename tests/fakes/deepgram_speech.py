"""Audio of the fake Voice Agent: generated for a text, split into frames, and detected in the caller's audio."""

import itertools
import re
from collections.abc import Iterator, Sequence

from gateway.audio import mulaw_to_linear

SIZES = (1, 159, 160, 960, 3200)
"""Frame sizes of the agent's audio; never a multiple of a carrier's frame."""


def speech(text: str) -> bytes:
    """Audio for a text: loud mu-law, 20 bytes per character, deterministic and different for each text."""
    return b"".join(_letter(ord(letter)) for letter in text)


def _letter(code: int) -> bytes:
    # 0x10 to 0x3F are loud; the top bit, the sign, changes from sample to sample.
    return bytes((0x10 + (code * 7 + index * 13) % 0x30) | (index % 2) << 7 for index in range(20))


def sentences(text: str) -> list[str]:
    """Split a text into sentences; the last may be incomplete."""
    return re.split(r"(?<=[.!?])\s+", text)


def with_sound(parts: Sequence[str], audio: bytes | None) -> Iterator[tuple[str, bytes]]:
    """Each sentence with its audio: its own pattern or its share of the given audio."""
    if audio is None:
        yield from ((part, speech(part)) for part in parts)
        return
    per_character = len(audio) / max(1, sum(map(len, parts)))
    start = 0
    for part in parts[:-1]:
        end = start + int(len(part) * per_character)
        yield part, audio[start:end]
        start = end
    yield parts[-1], audio[start:]


def frames(audio: bytes, sizes: Sequence[int]) -> Iterator[bytes]:
    """Split audio into frames of these sizes, repeatedly."""
    start = 0
    for size in itertools.cycle(sizes):
        if start >= len(audio):
            return
        yield audio[start : start + size]
        start += size


class SttStream:
    """Detects speech by loudness. Time is counted in received audio, so a line without audio leaves a turn open."""

    ONSET_BYTES = 480
    PAUSE_BYTES = 4000
    _LOUD = bytes(abs(mulaw_to_linear(sample)) > 500 for sample in range(256))

    def __init__(self) -> None:
        self.speaking = False
        self._run = 0

    def feed(self, audio: bytes) -> bool:
        """Whether this audio began or ended an utterance."""
        loud = audio.translate(self._LOUD).count(1) * 10 > len(audio)
        self._run = 0 if loud is self.speaking else self._run + len(audio)
        if self._run < (self.PAUSE_BYTES if self.speaking else self.ONSET_BYTES):
            return False
        self.speaking, self._run = not self.speaking, 0
        return True
