"""
When the machine got in the way: what is measured then tells nothing about the gateway.

On a shared machine the hypervisor takes a core away for tens of milliseconds now and then. A figure such as the 99th
percentile is made of little else if those moments are counted.
"""

import asyncio
import time
from bisect import bisect_left
from typing import Final

from gateway.bench.measures import LATE_MS
from gateway.bench.processes import GatewayProcess

_LOOK_SECONDS: Final = 0.01
_TAKEN_SECONDS: Final = 0.001
_AFTERMATH_NS: Final = 50_000_000
"""What has piled up meanwhile has to be worked off."""


class Weather:
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
            late_ms = (now_ns - looked_ns) / 1e6 - _LOOK_SECONDS * 1000
            if late_ms > LATE_MS or now_waited - waited > _TAKEN_SECONDS:
                self.was_foul(looked_ns, now_ns + _AFTERMATH_NS)
            looked_ns, waited = now_ns, now_waited

    def was_foul(self, since_ns: int, until_ns: int) -> None:
        """Spans are told in the order in which they ended."""
        self._foul.append((since_ns, until_ns))

    def was_clear(self, since_ns: int, until_ns: int) -> bool:
        at = bisect_left(self._foul, since_ns, key=lambda span: span[1])
        return at == len(self._foul) or self._foul[at][0] > until_ns
