"""
When the machine got in the way: what is measured then tells nothing about the gateway.

On a shared machine a core is taken away for tens of milliseconds now and then, by others or by the hypervisor. A figure
such as the 99th percentile is made of little else if those moments are counted. So is it when the load generator was
held up, and then sends all at once what was due meanwhile.
"""

import asyncio
import time
from bisect import bisect_left
from typing import Final

from gateway.bench.measures import LATE_MS
from gateway.bench.processes import GatewayProcess

_LOOK_SECONDS: Final = 0.005
_TAKEN_SECONDS: Final = 0.001
_AFTERMATH: Final = 3
"""What has piled up meanwhile has to be worked off: by a core that is two thirds busy in twice the time."""


class Interference:
    """Watches one run. Its moments are given by `time.monotonic_ns`."""

    def __init__(self, process: GatewayProcess) -> None:
        self._process = process
        self._foul: list[tuple[int, int]] = []

    async def watch(self) -> None:
        """Until cancelled. Both cores are looked at: the gateway's by its waiting, this one by its own lateness."""
        looked_ns, waited = time.monotonic_ns(), self._process.waited_seconds()
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            now_ns, now_waited = time.monotonic_ns(), self._process.waited_seconds()
            late, taken = (now_ns - looked_ns) / 1e9 - _LOOK_SECONDS, now_waited - waited
            if late > LATE_MS / 1000 or taken > _TAKEN_SECONDS:
                self.was_foul(looked_ns, now_ns + int(_AFTERMATH * max(late, taken) * 1e9))
            looked_ns, waited = now_ns, now_waited

    def was_foul(self, since_ns: int, until_ns: int) -> None:
        """Spans are told in the order in which they began."""
        if self._foul:
            until_ns = max(until_ns, self._foul[-1][1])
        self._foul.append((since_ns, until_ns))

    def was_clear(self, since_ns: int, until_ns: int) -> bool:
        at = bisect_left(self._foul, since_ns, key=lambda span: span[1])
        return at == len(self._foul) or self._foul[at][0] > until_ns
