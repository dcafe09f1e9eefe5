"""What a phone does with what it is sent: plays it in order, at its own pace, and tells when a mark is reached."""

from collections import deque
from typing import Final

from gateway.audio import FRAME_BYTES, SILENCE_BYTE, SILENCE_FRAME


class SoftphonePlayout:
    """A carrier's play-out queue. `take` is called once every 20 ms."""

    def __init__(self) -> None:
        self._queue: deque[bytes | str] = deque()
        self._rest = b""
        self.is_playing = False
        """Whether there was sound in the frame taken last."""

    def sound(self, audio: bytes) -> None:
        self._queue.append(audio)

    def mark(self, name: str) -> None:
        self._queue.append(name)

    def clear(self) -> list[str]:
        """Drop what is queued; the marks in it are told all the same, as carriers do."""
        marks = [item for item in self._queue if isinstance(item, str)]
        self._queue.clear()
        self._rest = b""
        return marks

    def take(self) -> tuple[bytes, list[str]]:
        """The next 20 ms, and the marks that are reached with it."""
        marks: list[str] = []
        while self._queue and (len(self._rest) < FRAME_BYTES or isinstance(self._queue[0], str)):
            item = self._queue.popleft()
            if isinstance(item, bytes):
                self._rest += item
            elif len(self._rest) <= FRAME_BYTES:
                marks.append(item)
            else:
                self._queue.appendleft(item)
                break
        self.is_playing = bool(self._rest)
        if not self._rest:
            return SILENCE_FRAME, marks
        frame, self._rest = self._rest[:FRAME_BYTES], self._rest[FRAME_BYTES:]
        return frame + bytes([SILENCE_BYTE]) * (FRAME_BYTES - len(frame)), marks


FRAME_SECONDS: Final = 0.02
