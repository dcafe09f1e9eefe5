"""
Messages between the gateway and its speech worker: short binary messages on two pipes.

A message is its length, its kind, the number of its call, the number of a synthesized text where it is about one, and a
body of text or audio.
"""

import enum
import struct
from dataclasses import dataclass
from typing import Final

_HEAD: Final = struct.Struct("<IBII")
_MAX_BODY_BYTES: Final = 16 * 1024 * 1024


class MessageKind(enum.IntEnum):
    # To the worker
    OPEN = 1
    AUDIO = 2
    END_TURN = 3
    SAY = 4
    CANCEL = 5
    """Cancels all texts with a lower number."""
    CLOSE = 6
    PATIENCE = 7
    """How long a pause of the caller may be; the body names it."""
    # From the worker
    READY = 16
    UNUSABLE = 17
    """The models can't be loaded; the body says why."""
    SPEECH_STARTED = 18
    SPEECH_ENDED = 19
    SYNTHESIZED = 20
    SPOKEN = 21
    """The audio of a text is complete."""
    FAILED = 22
    """A recognition or a synthesis failed; the body says why."""


@dataclass(frozen=True, slots=True)
class SpeechMessage:
    kind: MessageKind
    call: int = 0
    number: int = 0
    body: bytes = b""

    @property
    def text(self) -> str:
        return self.body.decode("utf-8")

    def encoded(self) -> bytes:
        return _HEAD.pack(len(self.body), self.kind, self.call, self.number) + self.body


class SpeechReader:
    """Splits a stream of bytes into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[SpeechMessage]:
        """Raises ValueError if the data are not messages: the peer is not what we think it is."""
        self._buffer += data
        messages = []
        while len(self._buffer) >= _HEAD.size:
            length, kind, call, number = _HEAD.unpack_from(self._buffer)
            if length > _MAX_BODY_BYTES:
                raise ValueError("a message is too long")
            if len(self._buffer) < _HEAD.size + length:
                break
            body = bytes(self._buffer[_HEAD.size : _HEAD.size + length])
            del self._buffer[: _HEAD.size + length]
            messages.append(SpeechMessage(MessageKind(kind), call, number, body))
        return messages
