"""
Counts, durations and lists as pages, commands and checks show them.

Halves are rounded up, as `transcript.js` does: a figure is the same on a live page and after it is loaded again.
"""

import math
from collections.abc import Sequence


def count(number: int, noun: str, plural: str = "") -> str:
    """1 call, 1,200 calls."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def duration(seconds: float) -> str:
    """4:05, 1:02:10."""
    minutes, rest = divmod(_rounded(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def milliseconds(seconds: float | None) -> str:
    """840 ms, 1.23 s; a dash for None."""
    if seconds is None:
        return "–"
    return f"{_rounded(seconds * 1000)} ms" if seconds < 0.9995 else f"{_rounded(seconds * 100) / 100:.2f} s"


def listed(names: Sequence[str], most: int) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _rounded(number: float) -> int:
    return math.floor(number + 0.5)
