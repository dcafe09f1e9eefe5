"""A caller who says prepared lines, each when the agent has finished, and notes how long the agent took to answer."""

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from gateway.audio import FRAME_BYTES, SILENCE_BYTE
from gateway.simulate.playout import FRAME_SECONDS
from gateway.simulate.softphone import Softphone
from gateway.simulate.voices import line_noise

_PAUSE: Final = 0.6
"""From the end of the agent's words to the caller's, in seconds."""
_PATIENCE: Final = 12.0
"""How long a caller waits for an answer before going on all the same."""
LAST_WAIT: Final = 8.0


@dataclass
class PreparedCaller:
    """Speaks and listens on one line: `speak` and `listen` are for `Softphone.talk`. Counts time in frames."""

    line: Softphone
    lines: Sequence[bytes]
    last_wait: float = LAST_WAIT
    """After the last line the agent has so long to say goodbye and hang up."""
    answered_after: list[float] = field(default_factory=list)
    """Seconds from the end of each line to the first sound of the answer."""
    heard: bytearray = field(default_factory=bytearray)
    gaps: list[int] = field(default_factory=list)
    """Silences in the midst of what the agent says, where sound came too late: of how many frames."""

    def __post_init__(self) -> None:
        self._clock = asyncio.get_running_loop().time
        self._noise = itertools.cycle(line_noise(50))
        self._speech: list[bytes] = []
        self._said = 0
        self._quiet = 0.0
        self._agent_spoke = False
        self._silent_frames = 0
        self._ended_at: float | None = None

    def speak(self) -> bytes | None:
        if self._speech:
            frame = self._speech.pop(0)
            if not self._speech:
                self._ended_at = self._clock()
            return frame
        self._quiet += FRAME_SECONDS
        is_my_turn = (self._agent_spoke and self._quiet > _PAUSE) or self._quiet > _PATIENCE
        if self._said == len(self.lines):
            return None if self._quiet > self.last_wait else next(self._noise)
        if is_my_turn:
            self._begin()
        return next(self._noise)

    def listen(self, frame: bytes) -> None:
        self.heard += frame
        if self.line.earpiece.is_playing:
            if self._agent_spoke and self._silent_frames:
                self.gaps.append(self._silent_frames)
            self._agent_spoke = (
                self._agent_spoke or not self._speech
            )  # a word in the middle of a line is no answer to it
            self._quiet, self._silent_frames = 0.0, 0
        else:
            self._silent_frames += 1
        if self._ended_at is not None and self.line.arrived_at > self._ended_at:
            self.answered_after.append(self.line.arrived_at - self._ended_at)
            self._ended_at = None

    def _begin(self) -> None:
        audio = self.lines[self._said]
        audio += bytes([SILENCE_BYTE]) * (-len(audio) % FRAME_BYTES)
        self._speech = [audio[at : at + FRAME_BYTES] for at in range(0, len(audio), FRAME_BYTES)]
        self._said += 1
        self._agent_spoke, self._quiet = False, 0.0
