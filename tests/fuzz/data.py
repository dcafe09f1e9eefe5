"""The bytes of one fuzz input, read as choices."""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """Reads bytes from the front. At their end every choice is the first one."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def peek(self) -> int:
        return self._data[self._at] if self._at < len(self._data) else 0

    def byte(self) -> int:
        at = self._at
        self._at = at + 1
        return self._data[at] if at < len(self._data) else 0

    def one_of(self, values: Sequence[T]) -> T:
        return values[self.byte() % len(values)]

    def take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        self._at += count
        return taken

    def line(self) -> bytes:
        """Up to the next newline, without it."""
        line = self._data[self._at :].partition(b"\n")[0]
        self._at += len(line) + 1
        return line


def pieces(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    """The data, cut at some places."""
    places = sorted({0, *(cut % (len(data) + 1) for cut in cuts), len(data)})
    return [data[start:end] for start, end in zip(places, places[1:], strict=False)]


def in_time(call: Callable[[], T], seconds: float) -> T:
    """What the call returns. It must not take more CPU time than this."""
    began = time.perf_counter()
    result = call()
    if time.perf_counter() - began > seconds:  # perhaps the machine was busy; CPU time is slow to read
        began = time.thread_time()
        call()
        assert time.thread_time() - began <= seconds, "too slow"
    return result
