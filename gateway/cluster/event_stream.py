"""The live events of all nodes in one Redis stream, and the erasure of what Redis has of a caller."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any, Final

import orjson
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from gateway.cluster.directory import CallDirectory, journal_name
from gateway.cluster.redis_store import ANSWER_SECONDS, PREFIX, foreign_errors
from gateway.finalization.redis_queue import keys_of_job
from gateway.history.call_log import MAX_EVENTS, Cursor, Entry
from gateway.history.live_events import EventSource

STREAM: Final = f"{PREFIX}events"
KEEP_SECONDS: Final = 3600
REWRITE_SECONDS: Final = 30.0
_ERASED_AT_ONCE: Final = 500
_ERASING: Final = f"{PREFIX}erasing"
"""Held by the erasure that rewrites the stream: another one's copy would bring back what this one deletes."""
_ERASING_MS: Final = 60_000
_POLL_SECONDS: Final = 0.05
_IN_PROGRESS: Final = ("aof_rewrite_in_progress", "aof_rewrite_scheduled", "rdb_bgsave_in_progress")

# Copies one page of a stream. The last one replaces the stream by the copy.
_COPY: Final = """
local page = redis.call('XRANGE', KEYS[1], ARGV[1], '+', 'COUNT', ARGV[2])
for _, entry in ipairs(page) do redis.call('XADD', KEYS[2], entry[1], unpack(entry[2])) end
redis.call('PEXPIRE', KEYS[2], ARGV[3])
if #page == tonumber(ARGV[2]) then return '(' .. page[#page][1] end
if redis.call('GET', KEYS[3]) ~= ARGV[4] then return redis.error_reply('another erasure has begun') end
redis.call('DEL', KEYS[1])
if redis.call('EXISTS', KEYS[2]) == 1 then
  redis.call('RENAME', KEYS[2], KEYS[1])
  redis.call('PEXPIRE', KEYS[1], ARGV[5])
end
return ''
"""


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
    """
    Deletes turns of live calls, finalization jobs, and events from Redis, and from the files it writes.

    Raises SharedStoreUnavailable. `patience`: seconds to wait for another erasure, and for Redis to write its files.
    """

    def __init__(self, client: Redis, *, patience: float = REWRITE_SECONDS) -> None:
        self._client: Any = client
        self._patience = patience
        self._copy = client.register_script(_COPY)

    @foreign_errors
    async def forget(self, sessions: Collection[str], caller: str, agent: str) -> int:
        """Delete everything about these calls and this caller. Returns the number of deleted items."""
        removed = 0
        for session_id in sessions:
            removed += await self._client.delete(PREFIX + journal_name(session_id), *keys_of_job(session_id))

        def is_theirs(event: dict[str, Any]) -> bool:
            by_caller = bool(caller) and event["caller"] == caller and agent in ("", event["agent"])
            return by_caller or event["session"] in sessions

        return removed + await self._delete_events(is_theirs)

    @foreign_errors
    async def forget_live(self, session_id: str) -> None:
        """Delete the turns and events of a call that is over. Its finalization goes on."""
        await self._client.delete(PREFIX + journal_name(session_id))
        await self._delete_events(lambda event: bool(event["session"] == session_id))

    @contextlib.asynccontextmanager
    async def _alone(self) -> AsyncIterator[str]:
        owner = uuid.uuid4().hex
        async with asyncio.timeout(self._patience):
            while True:
                if await self._client.set(_ERASING, owner, nx=True, px=_ERASING_MS):
                    break
                await asyncio.sleep(_POLL_SECONDS)
        try:
            yield owner
        finally:
            await self._client.delete(_ERASING)

    async def _delete_events(self, is_theirs: Callable[[dict[str, Any]], bool]) -> int:
        deleted, place = 0, "-"
        async with self._alone() as owner:
            while page := await self._client.xrange(STREAM, min=place, count=_ERASED_AT_ONCE):
                ids = [id_ for id_, values in page if is_theirs(orjson.loads(values[b"event"]))]
                deleted += await self._client.xdel(STREAM, *ids) if ids else 0
                place = f"({page[-1][0].decode()}"
            if deleted:
                await self._rewrite_stream(owner)
        return deleted

    async def _rewrite_stream(self, owner: str) -> None:
        """
        Replace the stream by a copy: XDEL only marks an entry, and its bytes would be in Redis' memory and files.

        In pages, each of some milliseconds, because Redis serves all nodes and runs one script at a time.
        """
        keys, place = [STREAM, f"{STREAM}:{owner}", _ERASING], b"-"
        while place:
            place = await self._copy(keys=keys, args=[place, _ERASED_AT_ONCE, _ERASING_MS, owner, KEEP_SECONDS * 1000])

    @foreign_errors
    async def rewrite_files(self) -> bool:
        """Have Redis write its files again, without what was deleted. False if it can't, or has not in time."""
        try:
            async with asyncio.timeout(self._patience):
                state = await self._client.info("persistence")
                if state["aof_enabled"]:
                    await self._start("BGREWRITEAOF")
                if state.get("rdb_saves") or await self._may_make_snapshots():
                    await self._start("BGSAVE", "SCHEDULE")
                while True:
                    state = await self._client.info("persistence")
                    if not any(state[name] for name in _IN_PROGRESS):
                        break
                    await asyncio.sleep(_POLL_SECONDS)
        except (TimeoutError, ResponseError):  # the latter: not permitted
            return False
        return bool(state["aof_last_bgrewrite_status"] == state["rdb_last_bgsave_status"] == "ok")

    async def _may_make_snapshots(self) -> bool:
        try:
            return bool((await self._client.config_get("save"))["save"])
        except ResponseError:  # CONFIG is not permitted
            return True

    async def _start(self, *command: str) -> None:
        """Wait for one that is running already: it began before the deletion."""
        while True:
            try:
                await self._client.execute_command(*command)
                return
            except ResponseError as error:
                if "in progress" not in str(error):
                    raise
            await asyncio.sleep(_POLL_SECONDS)
