"""Erasure of the copies in Redis: turns of live calls, finalization jobs, and events."""

from collections.abc import Collection
from typing import Any, Final

import orjson
from redis.asyncio import Redis

from gateway.cluster.directory import journal_name
from gateway.cluster.event_stream import STREAM
from gateway.cluster.redis_store import PREFIX, foreign_errors
from gateway.finalization.redis_queue import keys_of_job

_AT_ONCE: Final = 500


class SharedErasure:
    """Deletes them. Raises SharedStoreUnavailable."""

    def __init__(self, client: Redis) -> None:
        self._client: Any = client

    @foreign_errors
    async def forget(self, sessions: Collection[str], caller: str, agent: str) -> int:
        """Delete everything about these calls and this caller. Returns the number of deleted items."""
        removed, place = 0, "-"
        for session_id in sessions:
            removed += await self._client.delete(PREFIX + journal_name(session_id), *keys_of_job(session_id))
        while page := await self._client.xrange(STREAM, min=place, count=_AT_ONCE):
            ids = [id_ for id_, values in page if _is_of(orjson.loads(values[b"event"]), sessions, caller, agent)]
            removed += await self._client.xdel(STREAM, *ids) if ids else 0
            place = f"({page[-1][0].decode()}"
        return removed


def _is_of(event: dict[str, Any], sessions: Collection[str], caller: str, agent: str) -> bool:
    is_theirs = bool(caller) and event["caller"] == caller and agent in ("", event["agent"])
    return is_theirs or event["session"] in sessions
