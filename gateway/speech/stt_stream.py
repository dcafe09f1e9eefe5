"""
Speech recognition of one call: audio in; out come turn boundaries, and segments to be transcribed.

Transcription begins in the first pause of a turn, so that most of it happens while we wait for the end of the turn.
Keypad tones, noise and coughs are never transcribed. No clock and no threads: time is counted in audio.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np

from gateway.speech.endpointing import TurnBoundary, TurnDetector
from gateway.speech.models import FRAME_SAMPLES, VoiceActivityDetector
from gateway.speech.samples import RATE, Samples, decode

_LEAD_FRAMES: Final = 12
"""Audio before the detected start that belongs to the turn: 0.4 s."""
_TAIL_FRAMES: Final = 5
_MIN_VOICED_FRAMES: Final = 5
"""A turn with fewer frames of speech has no words. The shortest "yes" has 8."""
_LONG_SEGMENT: Final = 12 * RATE
"""From here on a pause ends a segment: its text is final, and the turn goes on in a new one."""
_MAX_SEGMENT: Final = 25 * RATE
_TONE_TAIL_FRAMES: Final = 3
"""Ignored after a keypad tone: its last, partial frame and its echo on the line."""
_MIN_ENERGY: Final = FRAME_SAMPLES * 1e-6
"""Below -60 dB: line noise, which looks like a voice after perfect silence."""
_SILENT_FRAME: Final = np.zeros(FRAME_SAMPLES, np.float32)


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """The caller started to speak."""


@dataclass(frozen=True, slots=True)
class SpeechEnded:
    """The caller's turn is complete. `text` is empty if it had no words."""

    text: str


@dataclass(frozen=True, slots=True)
class TranscribeRequest:
    """A segment to transcribe. The text is returned to `SttStream.transcribed` under its number."""

    number: int
    samples: Samples


SttEvent = SpeechStarted | SpeechEnded | TranscribeRequest


class SttStream:
    """The recognition of one call."""

    def __init__(self, vad: VoiceActivityDetector, turn: TurnDetector) -> None:
        self._vad = vad
        self._dtmf_filter = DtmfFilter(FRAME_SAMPLES)
        self._turn = turn
        self._rest = b""
        self._lead: deque[Samples] = deque(maxlen=_LEAD_FRAMES)
        self._segment: list[Samples] = []
        self._closed: dict[int, str | None] = {}
        """The closed segments of this turn by number, with their text once it is known."""
        self._text: str | None = None
        """The text of the open segment, while nothing was added to it since."""
        self._number = 0
        self._turn_forced = False
        self._ignored_frames = 0

    def feed(self, mulaw: bytes) -> list[SttEvent]:
        self._rest += mulaw
        events: list[SttEvent] = []
        while len(self._rest) >= FRAME_SAMPLES:
            frame, self._rest = decode(self._rest[:FRAME_SAMPLES]), self._rest[FRAME_SAMPLES:]
            events += self._feed_frame(frame)
        return events

    def set_patience(self, patience: str) -> None:
        """How long a pause may be from now on: short, normal, long, or dictation."""
        self._turn.patience = patience

    def transcribed(self, number: int, text: str) -> list[SttEvent]:
        """The text of a `TranscribeRequest`. Outdated ones are ignored; text without letters or digits is empty."""
        text = text if any(map(str.isalnum, text)) else ""
        if number in self._closed:
            self._closed[number] = text
        elif number == self._number:
            self._text = text
        return self._check_end()

    def needs(self, number: int) -> bool:
        """Whether the text of this segment is still of use. May be called on any thread."""
        return number == self._number or number in self._closed

    def end_turn(self) -> list[SttEvent]:
        """Treat the current turn as complete."""
        if not self._turn.speaking:
            return []
        self._turn_forced = True
        return [*([] if self._text is not None else self._transcribe()), *self._check_end()]

    def _feed_frame(self, frame: Samples) -> list[SttEvent]:
        self._ignored_frames = (
            _TONE_TAIL_FRAMES + 1 if self._dtmf_filter.is_tone(frame) else max(0, self._ignored_frames - 1)
        )
        probability, audio = (0.0, _SILENT_FRAME) if self._ignored_frames else (self._vad.probability(frame), frame)
        if self._ignored_frames:
            self._vad.reset()  # else it takes what follows a tone for a voice
        elif float(np.dot(frame, frame)) < _MIN_ENERGY:
            probability = 0.0
        boundary = self._turn.feed(probability)
        self._lead.append(audio)
        if boundary is TurnBoundary.STARTED:
            self._segment = list(self._lead)
            self._turn_forced = False
            return [SpeechStarted()]
        if not self._turn.speaking:
            return []
        self._segment.append(audio)
        return self._continue_turn(boundary)

    def _continue_turn(self, boundary: TurnBoundary | None) -> list[SttEvent]:
        length = len(self._segment) * FRAME_SAMPLES
        if boundary is TurnBoundary.RESUMED:
            self._number += 1  # the text of the pause is incomplete
            self._text = None
        elif boundary is TurnBoundary.PAUSED:
            requests = self._transcribe()
            if length > _LONG_SEGMENT:
                self._close_segment()
            return [*requests, *self._check_end()]
        elif length > _MAX_SEGMENT:
            requests = self._transcribe()
            self._close_segment()
            return requests
        return self._check_end()

    def _transcribe(self) -> list[SttEvent]:
        """Request the text of the open segment, without its trailing silence."""
        if self._turn.voiced_frames < _MIN_VOICED_FRAMES:
            self._text = ""
            return []
        self._number += 1
        self._text = None
        silent_frames = max(0, round(self._turn.silence * RATE / FRAME_SAMPLES) - _TAIL_FRAMES)
        return [TranscribeRequest(self._number, np.concatenate(self._segment[: len(self._segment) - silent_frames]))]

    def _close_segment(self) -> None:
        self._closed[self._number] = self._text
        self._number += 1
        self._segment, self._text = [], ""

    def _check_end(self) -> list[SttEvent]:
        if not self._turn.speaking or self._text is None or None in self._closed.values():
            return []
        text = " ".join(filter(None, [*self._closed.values(), self._text]))
        if self._turn.silence < self._turn.required_silence(text) and not self._turn_forced:
            return []
        self._turn.end_turn()
        self._number += 1
        self._segment, self._closed, self._text = [], {}, None
        return [SpeechEnded(text)]


# Keypad tones

_ROWS: Final = (697, 770, 852, 941)
_COLUMNS: Final = (1209, 1336, 1477, 1633)
_DEVIATIONS: Final = (0.988, 1.0, 1.012)
"""A telephone's tones may be off by 1.5 %."""
_SHARE: Final = 0.5
"""Of a frame's energy in one row and one column. Speech spreads over more; a short tone fills half a frame."""
_TWIST: Final = 8.0  # how much stronger one of the two tones may be, in energy
_MIN_TONE_ENERGY: Final = 1e-5  # mean square; about -50 dB


class DtmfFilter:
    """Detects keypad tones in frames of one length: a recogniser would take them for words."""

    def __init__(self, frame_samples: int) -> None:
        at = np.arange(frame_samples) / RATE
        frequencies = np.outer(_ROWS + _COLUMNS, _DEVIATIONS).ravel()
        waves = np.exp(-2j * np.pi * frequencies[:, None] * at[None, :])
        self._waves = (waves * np.sqrt(2) / frame_samples).astype(np.complex64)

    def is_tone(self, frame: Samples) -> bool:
        energy = float(np.dot(frame, frame)) / len(frame)
        if energy < _MIN_TONE_ENERGY:
            return False
        strengths = np.abs(self._waves @ frame) ** 2
        row, column = float(strengths[:12].max()), float(strengths[12:].max())
        return row + column > _SHARE * energy and max(row, column) < _TWIST * min(row, column)
