"""
One caller's ear: sound in; out come the beginning and the end of turns, and stretches whose words are to be found.

Recognition begins in the first pause, so that most of its time is spent while we wait whether the caller goes on. What
is no speech (keypad tones, noise, a cough) never gets there. No clock, no thread: time is counted in sound.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np

from gateway.speech.dtmf_filter import DtmfFilter
from gateway.speech.endpointing import TurnBoundary, TurnDetector
from gateway.speech.samples import RATE, Samples, decode
from gateway.speech.vad import FRAME_SAMPLES, SpeechMeter

_LEAD_FRAMES: Final = 12
"""Sound up to the first certain speech that belongs to it: 0.4 s."""
_TAIL_FRAMES: Final = 5
_FEWEST_VOICED: Final = 5
"""Frames of speech in a turn; with less it was none. The shortest "yes" has 8."""
_LONG_STRETCH: Final = 12 * RATE
"""From here on a pause ends a stretch: its words are final, and the turn goes on with a new one."""
_LONGEST_STRETCH: Final = 25 * RATE
_TONE_TAIL_FRAMES: Final = 3
"""After a keypad tone: its last, broken frame, and what the line makes of it."""
_FAINTEST: Final = FRAME_SAMPLES * 1e-6
"""Below -60 dB nobody speaks: it is the line, which can pass for a voice after a stretch of perfect silence."""
_SILENT: Final = np.zeros(FRAME_SAMPLES, np.float32)


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """The caller speaks."""


@dataclass(frozen=True, slots=True)
class SpeechEnded:
    """The caller has finished, with these words; none where it was no speech after all."""

    text: str


@dataclass(frozen=True, slots=True)
class TranscribeRequest:
    """The words in this stretch. The answer is given back with its number, whenever it is there."""

    number: int
    samples: Samples


Heard = SpeechStarted | SpeechEnded | TranscribeRequest


class SttStream:
    """Listens to one call."""

    def __init__(self, meter: SpeechMeter) -> None:
        self._meter = meter
        self._tones = DtmfFilter(FRAME_SAMPLES)
        self._turn = TurnDetector()
        self._rest = b""
        self._lead: deque[Samples] = deque(maxlen=_LEAD_FRAMES)
        self._stretch: list[Samples] = []
        self._final: dict[int, str | None] = {}
        """Stretches of this turn that are complete, with their words once they are known."""
        self._guess: str | None = None
        """The words of the open stretch, as long as nothing was added to it."""
        self._number = 0
        self._forced = False
        self._deaf_frames = 0

    def hear(self, mulaw: bytes) -> list[Heard]:
        """Any length of sound."""
        self._rest += mulaw
        heard: list[Heard] = []
        while len(self._rest) >= FRAME_SAMPLES:
            frame, self._rest = decode(self._rest[:FRAME_SAMPLES]), self._rest[FRAME_SAMPLES:]
            heard += self._frame(frame)
        return heard

    def words_are(self, number: int, text: str) -> list[Heard]:
        """An answer to what was `Wanted`. One that came too late is ignored; signs for music are no words."""
        text = text if any(map(str.isalnum, text)) else ""
        if number in self._final:
            self._final[number] = text
        elif number == self._number:
            self._guess = text
        return self._ended_if_over()

    def wants(self, number: int) -> bool:
        """Whether the words of this stretch are still of use. May be asked on any thread."""
        return number == self._number or number in self._final

    def end_turn(self) -> list[Heard]:
        """Nothing more comes: whatever the caller was saying is complete."""
        if not self._turn.speaking:
            return []
        self._forced = True
        return [*([] if self._guess is not None else self._look()), *self._ended_if_over()]

    def _frame(self, frame: Samples) -> list[Heard]:
        self._deaf_frames = _TONE_TAIL_FRAMES + 1 if self._tones.sound_in(frame) else max(0, self._deaf_frames - 1)
        probability, sound = (0.0, _SILENT) if self._deaf_frames else (self._meter.probability(frame), frame)
        if self._deaf_frames:
            self._meter.forget()  # it would take what follows a tone for a voice
        elif float(np.dot(frame, frame)) < _FAINTEST:
            probability = 0.0
        moment = self._turn.hear(probability)
        self._lead.append(sound)
        if moment is TurnBoundary.BEGAN:
            self._stretch = list(self._lead)
            self._forced = False
            return [SpeechStarted()]
        if not self._turn.speaking:
            return []
        self._stretch.append(sound)
        return self._in_turn(moment)

    def _in_turn(self, moment: TurnBoundary | None) -> list[Heard]:
        length = len(self._stretch) * FRAME_SAMPLES
        if moment is TurnBoundary.WENT_ON:
            self._number += 1  # the words of the pause are not all of them
            self._guess = None
        elif moment is TurnBoundary.PAUSED:
            looks = self._look()
            if length > _LONG_STRETCH:
                self._close_stretch()
            return [*looks, *self._ended_if_over()]
        elif length > _LONGEST_STRETCH:
            looks = self._look()
            self._close_stretch()
            return looks
        return self._ended_if_over()

    def _look(self) -> list[Heard]:
        """Ask for the words of the open stretch, without the silence after them."""
        if self._turn.voiced_frames < _FEWEST_VOICED:
            self._guess = ""
            return []
        self._number += 1
        self._guess = None
        silent_frames = max(0, round(self._turn.silence * RATE / FRAME_SAMPLES) - _TAIL_FRAMES)
        return [TranscribeRequest(self._number, np.concatenate(self._stretch[: len(self._stretch) - silent_frames]))]

    def _close_stretch(self) -> None:
        self._final[self._number] = self._guess
        self._number += 1
        self._stretch, self._guess = [], ""

    def _ended_if_over(self) -> list[Heard]:
        if not self._turn.speaking or self._guess is None or None in self._final.values():
            return []
        text = " ".join(filter(None, [*self._final.values(), self._guess]))
        if self._turn.silence < self._turn.patience(text) and not self._forced:
            return []
        self._turn.over()
        self._number += 1
        self._stretch, self._final, self._guess = [], {}, None
        return [SpeechEnded(text)]
