"""
What the workers of one `gateway serve --workers` have counted, as if they were one process.

Whichever of them is scraped answers for all: each writes its figures to the board every second. What a worker had
counted when it died stays in the sum, or counters would fall.
"""

import asyncio
import os
import socket
from typing import Any, Final

import orjson

from gateway import metrics
from gateway.cluster.directory import CallDirectory
from gateway.cluster.store import SharedStore
from gateway.errors import SharedStoreUnavailable

WRITE_SECONDS: Final = 1.0
KEEP_SECONDS: Final = 7 * 24 * 3600.0


class WorkerMetrics:
    """One worker among those that have the same parent process."""

    def __init__(self, shared_store: SharedStore, directory: CallDirectory) -> None:
        self._shared_store = shared_store
        self._directory = directory
        self._supervisor = f"crew:{socket.gethostname()}-{os.getppid()}"
        self._joined = False

    async def run(self) -> None:
        """Until cancelled, show the others what this one has counted."""
        while True:
            try:
                await self._write()
            except SharedStoreUnavailable:
                pass  # the writer of the commons has said so
            await asyncio.sleep(WRITE_SECONDS)

    async def render(self) -> str:
        """The sum over all; this one's alone while the board can't be asked."""
        try:
            others = [await self._of(node) for node in await self._others()]
        except SharedStoreUnavailable:
            others = []
        return metrics.render(others)

    async def _write(self) -> None:
        node = self._directory.node
        await self._shared_store.append(self._supervisor, [] if self._joined else [node.encode()], KEEP_SECONDS)
        self._joined = True
        await self._shared_store.put(f"metrics:{node}", orjson.dumps(metrics.snapshot()), KEEP_SECONDS)

    async def _others(self) -> list[str]:
        members = {member.decode() for member in await self._shared_store.items(self._supervisor)}
        return sorted(members - {self._directory.node})

    async def _of(self, node: str) -> metrics.Snapshot:
        stored = await self._shared_store.get(f"metrics:{node}")
        taken: dict[str, Any] = orjson.loads(stored) if stored else {}
        return taken if await self._directory.alive(node) else metrics.without_gauges(taken)
