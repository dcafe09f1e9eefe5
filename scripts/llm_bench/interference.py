"""
Keeps other load on the machine away from a measurement, and detects when it spoiled one.

On a shared machine the hypervisor or another process takes a core away for tens of milliseconds now and then. Counting
those moments would make a 99th percentile mostly noise. The same holds while the load generator itself was delayed and
then sends a burst.
"""

import asyncio
import os
import time
from bisect import bisect_left
from typing import Final

from gateway.bench.processes import GatewayProcess
from gateway.bench.results import LATE_MS

_LOOK_SECONDS: Final = 0.005
_TAKEN_SECONDS: Final = 0.001
_RECOVERY_FACTOR: Final = 3
"""The backlog takes time to clear: a core that is two thirds busy needs twice the interruption."""


class Interference:
    """Watches one run. Times are `time.monotonic_ns`."""

    def __init__(self, process: GatewayProcess) -> None:
        self._process = process
        self._disturbed: list[tuple[int, int]] = []

    async def watch(self) -> None:
        """Run until cancelled. Checks the gateway's core by its run-queue wait and this core by its own lateness."""
        looked_ns, waited = time.monotonic_ns(), self._process.waited_seconds()
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            now_ns, now_waited = time.monotonic_ns(), self._process.waited_seconds()
            late, taken = (now_ns - looked_ns) / 1e9 - _LOOK_SECONDS, now_waited - waited
            if late > LATE_MS / 1000 or taken > _TAKEN_SECONDS:
                self.add(looked_ns, now_ns + int(_RECOVERY_FACTOR * max(late, taken) * 1e9))
            looked_ns, waited = now_ns, now_waited

    def add(self, since_ns: int, until_ns: int) -> None:
        """Record a disturbed span. Spans are added in order of their start."""
        if self._disturbed:
            until_ns = max(until_ns, self._disturbed[-1][1])
        self._disturbed.append((since_ns, until_ns))

    def was_clear(self, since_ns: int, until_ns: int) -> bool:
        at = bisect_left(self._disturbed, since_ns, key=lambda span: span[1])
        return at == len(self._disturbed) or self._disturbed[at][0] > until_ns


def raise_priority(pid: int = 0) -> bool:
    """
    Give a process (0: this one) real-time priority; not its other threads or children.

    Returns False if the system refuses; then other processes on the core disturb the measurement.
    """
    try:
        os.sched_setscheduler(pid, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except OSError:  # no permission, or not supported by the kernel
        return False
    return True


def restore_priority() -> None:
    """Give this process normal priority again."""
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
