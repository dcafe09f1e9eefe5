"""The live events of all nodes in one Redis stream, and the erasure of what Redis has of a caller."""

import time
from collections.abc import Collection
from typing import Any, Final

import orjson
from redis.asyncio import Redis

from gateway.cluster.directory import CallDirectory, journal_name
from gateway.cluster.redis_store import ANSWER_SECONDS, PREFIX, foreign_errors
from gateway.finalization.redis_queue import keys_of_job
from gateway.history.call_log import MAX_EVENTS, Cursor, Entry
from gateway.history.live_events import EventSource

STREAM: Final = f"{PREFIX}events"
KEEP_SECONDS: Final = 3600
_ERASED_AT_ONCE: Final = 500


class EventStream:
    """An EventSource over all nodes: a watcher at any of them sees every call. Cursors are Redis' own ids."""

    def __init__(self, client: Redis, directory: CallDirectory) -> None:
        self._client: Any = client
        self._directory = directory

    def share(self, event: bytes) -> None:
        """Returns at once; while Redis is away, events wait in the directory's queue."""
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
        # The server's timeout has to end before the socket's.
        timeout_ms = max(1, int(min(wait, ANSWER_SECONDS / 2) * 1000))
        answer = await self._client.xread({STREAM: str(place)}, count=MAX_EVENTS, block=timeout_ms)
        streams = answer.items() if isinstance(answer, dict) else answer or []
        entries = [entry for _, found in streams for entry in found]
        return [(Cursor.parse(id_.decode()), orjson.loads(values[b"event"])) for id_, values in entries]


class SharedErasure:
    """Deletes turns of live calls, finalization jobs, and events from Redis. Raises SharedStoreUnavailable."""

    def __init__(self, client: Redis) -> None:
        self._client: Any = client

    @foreign_errors
    async def forget(self, sessions: Collection[str], caller: str, agent: str) -> int:
        """Delete everything about these calls and this caller. Returns the number of deleted items."""

        def is_theirs(event: dict[str, Any]) -> bool:
            by_caller = bool(caller) and event["caller"] == caller and agent in ("", event["agent"])
            return by_caller or event["session"] in sessions

        removed, place = 0, "-"
        for session_id in sessions:
            removed += await self._client.delete(PREFIX + journal_name(session_id), *keys_of_job(session_id))
        while page := await self._client.xrange(STREAM, min=place, count=_ERASED_AT_ONCE):
            ids = [id_ for id_, values in page if is_theirs(orjson.loads(values[b"event"]))]
            removed += await self._client.xdel(STREAM, *ids) if ids else 0
            place = f"({page[-1][0].decode()}"
        return removed
