"""
Measures from inside how long a gateway's event loop is held. For scripts/attack, which starts the gateway with it.

A timer of 2 ms: what passes between two of its runs is at most 2 ms longer than the longest hold. As CPU time of the
loop's thread, which other work on the machine does not change, and as wall time.
"""

import asyncio
import mmap
import os
import struct
import time
from pathlib import Path
from typing import Final

from gateway.cli.main import main as gateway_main
from gateway.cli.serve import DrainingServer

VARIABLE: Final = "LOOP_METER_FILE"
_SECONDS: Final = 0.002
_FIGURES: Final = struct.Struct("dd")


class LoopMeter:
    """The figures, in a file that both processes map."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), _FIGURES.size)

    @staticmethod
    def create(path: Path) -> "LoopMeter":
        path.write_bytes(bytes(_FIGURES.size))
        return LoopMeter(path)

    def reset(self) -> None:
        self._shared[:] = bytes(_FIGURES.size)

    @property
    def longest_ms(self) -> tuple[float, float]:
        """CPU time and wall time."""
        cpu, wall = _FIGURES.unpack(self._shared)
        return cpu * 1000, wall * 1000

    async def run(self) -> None:
        """In the gateway: never returns."""
        loop = asyncio.get_running_loop()
        cpu, wall = time.thread_time(), time.monotonic()

        def tick() -> None:
            nonlocal cpu, wall
            loop.call_later(_SECONDS, tick)
            before, cpu, wall_before, wall = cpu, time.thread_time(), wall, time.monotonic()
            most_cpu, most_wall = _FIGURES.unpack(self._shared)
            if cpu - before > most_cpu or wall - wall_before > most_wall:
                self._shared[:] = _FIGURES.pack(max(cpu - before, most_cpu), max(wall - wall_before, most_wall))

        tick()


def main() -> int:
    """The gateway's command line, with a meter in the server."""
    startup = DrainingServer.startup

    async def startup_with_meter(self, sockets=None):
        await startup(self, sockets)
        await LoopMeter(Path(os.environ[VARIABLE])).run()

    DrainingServer.startup = startup_with_meter
    return gateway_main()
