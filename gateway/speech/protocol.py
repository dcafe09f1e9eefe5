"""
What the gateway and its speech process say to each other: short binary messages on two pipes.

A message is its length, its kind, the number of the call it is about, and a body of text or sound. Things said have a
number of their own, which stands before the body.
"""

import enum
import struct
from dataclasses import dataclass
from typing import Final

_HEAD: Final = struct.Struct("<IBII")
_LONGEST_BODY: Final = 16 * 1024 * 1024


class MessageKind(enum.IntEnum):
    # To the speech process
    OPEN = 1
    AUDIO = 2
    END_TURN = 3
    SAY = 4
    HUSH = 5
    CLOSE = 6
    # From it
    READY = 16
    FAILED = 17
    BEGAN = 18
    ENDED = 19
    SOUND = 20
    SPOKEN = 21
    BROKE = 22


@dataclass(frozen=True, slots=True)
class SpeechMessage:
    """`number` is that of the thing said, where the message is about one."""

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
    """Takes bytes as they come, and gives the messages in them."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[SpeechMessage]:
        """Raises ValueError for what is no message: the other side is not what we think it is."""
        self._buffer += data
        messages = []
        while len(self._buffer) >= _HEAD.size:
            length, kind, call, number = _HEAD.unpack_from(self._buffer)
            if length > _LONGEST_BODY:
                raise ValueError("a message is too long")
            if len(self._buffer) < _HEAD.size + length:
                break
            body = bytes(self._buffer[_HEAD.size : _HEAD.size + length])
            del self._buffer[: _HEAD.size + length]
            messages.append(SpeechMessage(MessageKind(kind), call, number, body))
        return messages
