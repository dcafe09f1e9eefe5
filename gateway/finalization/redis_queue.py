"""
The queue of finalization jobs that several nodes share: a Redis stream, read by one consumer group.

A job stays in the table of the node where the call ended until some node has done it, so that neither a dead node nor a
Redis without persistence loses one. A node reads an entry, or claims that of a dead node; its writes are rejected once
another node has claimed the entry. So no two nodes start a step with an outside effect.

Two nodes may submit the same call: one that was believed dead, and the one that ended the call in its place. Their
sessions are merged. If that adds turns to a job that was handed over or done, it is queued again and replaces its
documents.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

import orjson
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from gateway.cluster.redis_store import ANSWER_SECONDS, PREFIX, foreign_errors
from gateway.errors import TakenOver
from gateway.finalization.job import FinalizationJob, JobState, QueueStatus, merge_and_requeue

STREAM: Final = f"{PREFIX}endings"
GROUP: Final = "gateways"
DONE_SECONDS: Final = 7 * 24 * 3600
"""How long a finished job is remembered; a node that was away longer searches the remote store."""
CLAIM_AFTER: Final = 2.0
"""Seconds after which an entry of a dead node may be claimed."""
SESSION_SECONDS: Final = 24 * 3600
"""How long the session of a call that was taken over is kept, for its former node to add to."""

# Atomic, and only if no other node has changed the job since it was read. A node that runs the job is stopped.
_HAND_OVER: Final = """
for i = 1, 3 do
  if (redis.call('GET', KEYS[i]) or '') ~= ARGV[i] then return 0 end
end
local before = redis.call('GET', KEYS[5])
if before then
  redis.call('XACK', KEYS[6], ARGV[4], before)
  redis.call('XDEL', KEYS[6], before)
end
if redis.call('EXISTS', KEYS[4]) == 1 then redis.call('SET', KEYS[4], '') end
redis.call('DEL', KEYS[2], KEYS[3])
redis.call('SET', KEYS[1], ARGV[5])
redis.call('SET', KEYS[5], redis.call('XADD', KEYS[6], '*', 'session', ARGV[6]))
return 1
"""
# An entry counts only while it is the last one of its job.
_TAKE: Final = """
local state, last = redis.call('GET', KEYS[1]), redis.call('GET', KEYS[3])
if not state or (last and last ~= ARGV[1]) then return {} end
local owned = redis.call('EXISTS', KEYS[2])
redis.call('SET', KEYS[2], ARGV[2])
return {state, owned}
"""
# Only the owner of a job may write it.
_SAVE: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[2], ARGV[2])
return 1
"""
_LEAVE: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('XACK', KEYS[6], ARGV[2], ARGV[3])
redis.call('XDEL', KEYS[6], ARGV[3])
redis.call('DEL', KEYS[1], KEYS[5])
if ARGV[4] ~= '' then
  redis.call('SET', KEYS[2], ARGV[4])
  return 1
end
redis.call('DEL', KEYS[2])
redis.call('SET', KEYS[3], ARGV[5], 'EX', ARGV[6])
if ARGV[7] ~= '' then redis.call('SET', KEYS[4], ARGV[7], 'EX', ARGV[8]) end
return 1
"""


class RedisJobQueue:
    """The jobs of all nodes. Also the JobStore of those that this node runs. Raises SharedStoreUnavailable."""

    is_shared = True

    def __init__(self, client: Redis, node: str, alive: Callable[[str], Awaitable[bool]]) -> None:
        self._client: Any = client  # redis-py's types do not distinguish bytes and text
        self._node = node
        self._alive = alive
        self._hand_over = client.register_script(_HAND_OVER)
        self._take = client.register_script(_TAKE)
        self._save = client.register_script(_SAVE)
        self._leave = client.register_script(_LEAVE)
        self._saving: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    # The node where the call ended

    @foreign_errors
    async def hand_over(self, job: FinalizationJob) -> None:
        """Let any node run the job, unless it was handed over or done before and this one adds no turn."""
        key = _Keys(job.session.id)
        keys = [key.state, key.done, key.session, key.owner, key.entry, STREAM]
        job.problem = ""
        while True:
            known = await self._client.mget(keys[:3])
            if (new := _due(job, *known)) is None:
                return
            arguments = [*(value or b"" for value in known), GROUP, orjson.dumps(new.as_json()), job.session.id]
            if await self._hand_over(keys=keys, args=arguments):
                return

    @foreign_errors
    async def status(self, session_id: str) -> QueueStatus:
        if await self._client.exists(_Keys(session_id).done):
            return QueueStatus.DONE
        if (job := await self.load(session_id)) is None:
            return QueueStatus.LOST
        return QueueStatus.FAILED if job.state is JobState.FAILED else QueueStatus.PENDING

    @foreign_errors
    async def load(self, session_id: str) -> FinalizationJob | None:
        stored = await self._client.get(_Keys(session_id).state)
        return _read(stored) if stored is not None else None

    # The node that runs the job

    @foreign_errors
    async def next(self) -> list[FinalizationJob]:
        """The next job, or that of a dead node; empty if there was none for a second."""
        try:
            if claimed := await self._claim():
                return claimed
            wait = int(ANSWER_SECONDS * 500)
            answer = await self._client.xreadgroup(GROUP, self._node, {STREAM: ">"}, count=1, block=wait)
        except ResponseError as error:
            if "NOGROUP" not in str(error):
                raise
            with contextlib.suppress(ResponseError):  # another node was faster
                await self._client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
            return []
        streams = answer.items() if isinstance(answer, dict) else answer or []  # by version of the protocol
        return await self._received([entry for _, entries in streams for entry in entries])

    async def _claim(self) -> list[FinalizationJob]:
        """Entries of nodes that have died."""
        found: list[FinalizationJob] = []
        idle = int(CLAIM_AFTER * 1000)
        for consumer in await self._client.xinfo_consumers(STREAM, GROUP):
            name = consumer["name"].decode()
            if name == self._node or consumer["idle"] < idle or await self._alive(name):
                continue
            if not consumer["pending"]:
                await self._client.xgroup_delconsumer(STREAM, GROUP, name)
                continue
            pending = await self._client.xpending_range(STREAM, GROUP, min="-", max="+", count=10, consumername=name)
            ids = [entry["message_id"] for entry in pending]
            claimed = await self._client.xclaim(STREAM, GROUP, self._node, min_idle_time=idle, message_ids=ids)
            found += await self._received(claimed)
        return found

    async def _received(self, entries: list[tuple[bytes, dict[bytes, bytes]]]) -> list[FinalizationJob]:
        jobs = []
        for entry_id, values in entries:
            keys, claim = _Keys(values[b"session"].decode()), f"{self._node} {entry_id.decode()}"
            taken = await self._take(keys=[keys.state, keys.owner, keys.entry], args=[entry_id, claim])
            if not taken:  # done or queued again: only the entry was left behind
                await self._client.xack(STREAM, GROUP, entry_id)
                await self._client.xdel(STREAM, entry_id)
                continue
            job = _read(taken[0])
            # A document sent by the previous owner may still arrive; without one it is there, or was never sent.
            job.claim, job.remote_checked = claim, not taken[1]
            jobs.append(job)
        return jobs

    @foreign_errors
    async def save(self, job: FinalizationJob) -> None:
        keys = _Keys(job.session.id)
        async with self._saving[job.claim]:  # on two connections an older state could overtake a newer one
            saved = await self._save(keys=[keys.owner, keys.state], args=[job.claim, orjson.dumps(job.as_json())])
        if not saved:
            self._saving.pop(job.claim, None)
            raise TakenOver("another node runs this job")

    async def finish(self, job: FinalizationJob) -> None:
        await self._left(job, b"")

    async def park(self, job: FinalizationJob) -> None:
        await self._left(job, orjson.dumps(job.as_json()))

    @foreign_errors
    async def _left(self, job: FinalizationJob, state: bytes) -> None:
        key, entry_id, turns = _Keys(job.session.id), job.claim.rpartition(" ")[2], len(job.session.turns)
        keys = [key.owner, key.state, key.done, key.session, key.entry, STREAM]
        session = orjson.dumps(replace(job, summary=None).as_json()) if job.session.taken_over else b""
        arguments: list[Any] = [job.claim, GROUP, entry_id, state, turns, DONE_SECONDS, session, SESSION_SECONDS]
        left = await self._leave(keys=keys, args=arguments)
        self._saving.pop(job.claim, None)
        if not left:
            raise TakenOver("another node runs this job")


def _due(
    job: FinalizationJob, state: bytes | None, done: bytes | None, session: bytes | None
) -> FinalizationJob | None:
    """The job to queue, given what Redis has of it; None if nothing is left to do."""
    if state is not None:
        known = _read(state)
        more = merge_and_requeue(known, job.session)
        if more is None and known.state is JobState.FAILED:
            known.requeue()
            return known
        return more
    if session is not None:
        return merge_and_requeue(_read(session), job.session)
    if done is not None:
        has_more = len(job.session.turns) > int(done)
        return FinalizationJob(job.session, version=1, remote_sent=True) if has_more else None
    return job


def _read(stored: bytes) -> FinalizationJob:
    return FinalizationJob.from_json(orjson.loads(stored))


class _Keys:
    """The keys of one job in Redis."""

    def __init__(self, session_id: str) -> None:
        self.state = f"{PREFIX}ending:{session_id}"
        self.owner = f"{PREFIX}ending-node:{session_id}"
        """The node that runs the job, and the entry that entitles it to."""
        self.entry = f"{PREFIX}ending-entry:{session_id}"
        """The job's entry in the stream."""
        self.done = f"{PREFIX}ending-done:{session_id}"
        """The number of turns of a finished job."""
        self.session = f"{PREFIX}ending-told:{session_id}"
        """The finished job of a call that was taken over."""


def keys_of_job(session_id: str) -> tuple[str, ...]:
    """All keys that hold words of a job, and the right to write them again. Without them its owner is stopped."""
    keys = _Keys(session_id)
    return keys.state, keys.owner, keys.entry, keys.session
