"""
Listening in on a call: both voices as they are heard, for somebody who is not part of it.

The call puts frames into a tap and goes on. A listener takes them in their own time; what they are late for is dropped.
"""

from typing import Final

from gateway.audio import BYTES_PER_SECOND, SILENCE_BYTE

LATEST_BYTES: Final = BYTES_PER_SECOND * 2
"""So much of the caller is kept for a listener who is late; the oldest goes first."""
_LONGEST_ANSWER: Final = BYTES_PER_SECOND * 60


class AudioTap:
    """One listener's ear. The agent's sound comes in advance, and is heard when the caller hears it."""

    def __init__(self) -> None:
        self._caller = bytearray()
        self._agent = bytearray()

    # The call's side

    def heard(self, audio: bytes) -> None:
        self._caller += audio
        if len(self._caller) > LATEST_BYTES:
            del self._caller[:-LATEST_BYTES]

    def sent(self, audio: bytes) -> None:
        if len(self._agent) < _LONGEST_ANSWER:
            self._agent += audio

    def cleared(self) -> None:
        """The caller interrupted: the rest is not played to anybody."""
        self._agent.clear()

    # The listener's side

    def take(self, size: int) -> tuple[bytes, bytes]:
        """The next `size` bytes of each voice, mu-law; silence where there is none."""
        return _taken(self._caller, size), _taken(self._agent, size)


def _taken(voice: bytearray, size: int) -> bytes:
    taken = bytes(voice[:size])
    del voice[:size]
    return taken.ljust(size, bytes([SILENCE_BYTE]))
