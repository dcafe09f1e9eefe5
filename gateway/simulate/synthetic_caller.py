"""
A synthetic caller for demo and benchmark: a voice, line noise, and when to speak.

The caller speaks prepared lines, each after the agent has finished, and times the agent's answers.
"""

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np

from gateway.audio import FRAME_BYTES, SILENCE_BYTE
from gateway.simulate.softphone import FRAME_SECONDS, Softphone
from gateway.speech.samples import downsample, encode, trim

_PAUSE: Final = 0.6
"""Seconds between the end of the agent's speech and the caller's next line."""
_ANSWER_TIMEOUT: Final = 12.0
"""Seconds without an answer after which the caller continues."""
_VOICE_LEVEL: Final = 0.5
_NOISE_LEVEL: Final = 10 ** (-56 / 20)
"""Noise level of a quiet line, relative to full scale."""


def pico(text: str) -> bytes:
    """Telephone audio from SVOX Pico, American English: sounds different from the agent's voice."""
    import py_nanotts

    pcm = py_nanotts.NanoTTS().speak(text, voice="en-US")
    samples = downsample(np.frombuffer(pcm, "<i2").astype(np.float32), 2)  # it speaks at 16 kHz
    loudest = max(float(np.abs(samples).max(initial=0.0)), 1e-6)
    return encode(trim(samples * (_VOICE_LEVEL / loudest), before=0.0, after=0.0))


def line_noise(frames: int) -> list[bytes]:
    """Frames of background noise, the same in every run."""
    noise = np.random.default_rng(8000).normal(0, _NOISE_LEVEL, (frames, FRAME_BYTES))
    return [encode(frame) for frame in noise.astype(np.float32)]


@dataclass
class ScriptedCaller:
    """One caller on one softphone: pass `speak` and `listen` to `Softphone.talk`. Counts time in frames."""

    line: Softphone
    lines: Sequence[bytes]
    last_wait: float = 8.0
    """Seconds after the last line in which the agent may say goodbye and hang up."""
    answered_after: list[float] = field(default_factory=list)
    """Seconds from the end of each line to the first audio of the answer."""
    spoken: bytearray = field(default_factory=bytearray)
    heard: bytearray = field(default_factory=bytearray)
    """What was sent and what was played, frame by frame: both are equally long, at any speed of the call."""
    gaps: list[int] = field(default_factory=list)
    """Interruptions of the agent's speech because audio arrived late, in frames."""

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
        if (frame := self._next_frame()) is not None:
            self.spoken += frame
        return frame

    @property
    def speaker(self) -> Literal["caller", "agent", ""]:
        """Who can be heard now."""
        if self._speech:
            return "caller"
        return "agent" if self.line.playout.is_playing else ""

    def _next_frame(self) -> bytes | None:
        if self._speech:
            frame = self._speech.pop(0)
            if not self._speech:
                self._ended_at = self._clock()
            return frame
        self._quiet += FRAME_SECONDS
        is_my_turn = (self._agent_spoke and self._quiet > _PAUSE) or self._quiet > _ANSWER_TIMEOUT
        if self._said == len(self.lines):
            return None if self._quiet > self.last_wait else next(self._noise)
        if is_my_turn:
            audio = self.lines[self._said]
            audio += bytes([SILENCE_BYTE]) * (-len(audio) % FRAME_BYTES)
            self._speech = [audio[at : at + FRAME_BYTES] for at in range(0, len(audio), FRAME_BYTES)]
            self._said += 1
            self._agent_spoke, self._quiet = False, 0.0
        return next(self._noise)

    def listen(self, frame: bytes) -> None:
        self.heard += frame
        if self.line.playout.is_playing:
            if self._agent_spoke and self._silent_frames:
                self.gaps.append(self._silent_frames)
            # A word while the caller is still speaking is not an answer.
            self._agent_spoke = self._agent_spoke or not self._speech
            self._quiet, self._silent_frames = 0.0, 0
        else:
            self._silent_frames += 1
        if self._ended_at is not None and self.line.arrived_at > self._ended_at:
            self.answered_after.append(self.line.arrived_at - self._ended_at)
            self._ended_at = None
