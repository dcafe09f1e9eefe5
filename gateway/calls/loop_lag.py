"""How long the event loop is blocked, which delays the audio of every call."""

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from gateway.metrics import WATCHDOG

WINDOW_SECONDS: Final = 60.0
NOTABLE_SECONDS: Final = 0.25
"""A delay that callers can hear; it is logged."""

_log = logging.getLogger(__name__)


class LoopLag:
    """Keeps the worst delay of the last minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._worst: deque[tuple[float, float]] = deque()  # falling delays, each with its time

    def held_up(self, seconds: float) -> None:
        """A timer came so much too late."""
        now = self._clock()
        if seconds > NOTABLE_SECONDS:
            WATCHDOG.labels("event loop held up").inc()
            _log.warning("event loop was held up", extra={"ms": round(seconds * 1000)})
        while self._worst and self._worst[-1][1] <= seconds:
            self._worst.pop()
        self._worst.append((now, seconds))
        self._forget(now)

    @property
    def worst(self) -> float:
        self._forget(self._clock())
        return max(self._worst[0][1], 0.0) if self._worst else 0.0

    def _forget(self, now: float) -> None:
        while self._worst and self._worst[0][0] < now - WINDOW_SECONDS:
            self._worst.popleft()
