"""The events of all nodes in one Redis stream, kept for an hour: a watcher at any node sees every call."""

import time
from typing import Any, Final

import orjson
from redis.asyncio import Redis

from gateway.cluster.directory import CallDirectory
from gateway.cluster.redis_store import ANSWER_SECONDS, PREFIX, foreign_errors
from gateway.history.call_log import MAX_EVENTS, Cursor, Entry
from gateway.history.live_events import EventSource

STREAM: Final = f"{PREFIX}events"
KEEP_SECONDS: Final = 3600


class EventStream:
    """An EventSource over all nodes. Cursors are Redis' own ids."""

    def __init__(self, client: Redis, directory: CallDirectory) -> None:
        self._client: Any = client
        self._directory = directory

    def share(self, event: bytes) -> None:
        """Returns at once; while Redis is away events wait with everything else that others are to know."""
        self._directory.post(lambda: self._add(event))

    def source(self, log: EventSource) -> EventSource:
        """What readers see: the events of all nodes instead of those in this node's log."""
        return self

    @foreign_errors
    async def _add(self, event: bytes) -> None:
        oldest = int((time.time() - KEEP_SECONDS) * 1000)
        async with self._client.pipeline(transaction=False) as pipeline:
            pipeline.xadd(STREAM, {"event": event}, minid=oldest, approximate=True)
            pipeline.pexpire(STREAM, KEEP_SECONDS * 1000)
            await pipeline.execute()

    @foreign_errors
    async def head(self) -> Cursor:
        newest = await self._client.xrevrange(STREAM, count=1)
        return Cursor.parse(newest[0][0].decode()) if newest else Cursor.now()

    @foreign_errors
    async def after(self, place: Cursor, *, wait: float = 0.0) -> list[Entry]:
        # The server's own patience has to end before the socket's.
        patience = max(1, int(min(wait, ANSWER_SECONDS / 2) * 1000))
        answer = await self._client.xread({STREAM: str(place)}, count=MAX_EVENTS, block=patience)
        streams = answer.items() if isinstance(answer, dict) else answer or []
        entries = [entry for _, found in streams for entry in found]
        return [(Cursor.parse(id_.decode()), orjson.loads(values[b"event"])) for id_, values in entries]
