"""
Endings that any of several nodes carries out: a Redis stream, read by one group.

An ending stays in the table of the node where the call ended until some node has done it, so that neither a dead node
nor a Redis that forgets loses one. A node reads an entry, or claims a dead node's; what it writes is refused once
another one has claimed it. So a step with an effect outside is not begun by two.

Two nodes may tell of the same call: one that was taken for dead, and the one that ended the call in its place. What
either knows is put together. An ending to which that adds something is begun anew, with its documents replaced.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final, Literal

import orjson
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from gateway.cluster.redis_store import ANSWER_SECONDS, PREFIX, foreign_errors
from gateway.errors import TakenOver
from gateway.finalization.job_table import FinalizationJob, retold

STREAM: Final = f"{PREFIX}endings"
GROUP: Final = "gateways"
DONE_SECONDS: Final = 7 * 24 * 3600
"""How long it is known that an ending was done; a node that was away so long asks the remote store."""
CLAIM_AFTER: Final = 2.0
"""Seconds that an entry lies with a dead node before another one claims it."""

TOLD_SECONDS: Final = 24 * 3600
"""How long it is known what was said in a call that was taken over, for its former node to add to."""

# In one step, and only where nobody else has changed what is known. Whoever carries it out is stopped.
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
# An entry counts only while it is the ending's last.
_TAKE: Final = """
local state, last = redis.call('GET', KEYS[1]), redis.call('GET', KEYS[3])
if not state or (last and last ~= ARGV[1]) then return {} end
local begun = redis.call('EXISTS', KEYS[2])
redis.call('SET', KEYS[2], ARGV[2])
return {state, begun}
"""
# Only who sees to an ending may write about it.
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

Whereabouts = Literal["done", "resting", "under way", "lost"]


class RedisJobQueue:
    """The endings of all nodes. Also the JobStore of those that this node carries out."""

    def __init__(self, client: Redis, node: str, alive: Callable[[str], Awaitable[bool]]) -> None:
        self._client: Any = client  # its types can't tell bytes from text
        self._node = node
        self._alive = alive
        self._hand = client.register_script(_HAND_OVER)
        self._take = client.register_script(_TAKE)
        self._save = client.register_script(_SAVE)
        self._leave = client.register_script(_LEAVE)
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    # Where the call ended

    @foreign_errors
    async def hand_over(self, job: FinalizationJob) -> None:
        """
        Let any node carry it out. One that was handed over before, or done, is not again.

        Unless this one tells more of the call: then all that is known is carried out anew.
        """
        id_ = job.session.id
        job.problem = ""
        while True:
            known = await self._client.mget(_state(id_), _done(id_), _told(id_))
            new = _due(job, *known)
            if new is None:
                return
            keys = [_state(id_), _done(id_), _told(id_), _owner(id_), _entry(id_), STREAM]
            values = [value or b"" for value in known]
            if await self._hand(keys=keys, args=[*values, GROUP, orjson.dumps(new.as_json()), id_]):
                return

    @foreign_errors
    async def whereabouts(self, job: FinalizationJob) -> Whereabouts:
        """What has become of an ending. One that rests brings its state with it."""
        where = await self._whereabouts(job.session.id)
        if where == "resting" and (stored := await self._client.get(_state(job.session.id))):
            vars(job).update(vars(_read(stored)))
        return where

    async def _whereabouts(self, session_id: str) -> Whereabouts:
        if await self._client.exists(_done(session_id)):
            return "done"
        stored = await self._client.get(_state(session_id))
        if stored is None:
            return "lost"
        return "resting" if _read(stored).problem else "under way"

    # Who carries it out

    @foreign_errors
    async def next(self) -> list[FinalizationJob]:
        """The next ending, or a dead node's; none when there was none for a second."""
        try:
            claimed = await self._claim()
            if claimed:
                return claimed
            wait = int(ANSWER_SECONDS * 500)
            answer = await self._client.xreadgroup(GROUP, self._node, {STREAM: ">"}, count=1, block=wait)
        except ResponseError as error:
            if "NOGROUP" not in str(error):
                raise
            await self._make_group()
            return []
        entries = [entry for _, found in _pairs(answer) for entry in found]
        return [job for id_, values in entries if (job := await self._received(id_, values))]

    async def _make_group(self) -> None:
        with contextlib.suppress(ResponseError):  # another node was quicker
            await self._client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)

    async def _claim(self) -> list[FinalizationJob]:
        """Entries that lie with nodes that are dead."""
        found: list[FinalizationJob] = []
        for consumer in await self._client.xinfo_consumers(STREAM, GROUP):
            name = consumer["name"].decode()
            if name == self._node or consumer["idle"] < CLAIM_AFTER * 1000 or await self._alive(name):
                continue
            if not consumer["pending"]:
                await self._client.xgroup_delconsumer(STREAM, GROUP, name)
                continue
            pending = await self._client.xpending_range(STREAM, GROUP, min="-", max="+", count=10, consumername=name)
            ids = [entry["message_id"] for entry in pending]
            idle = int(CLAIM_AFTER * 1000)
            for id_, values in await self._client.xclaim(
                STREAM, GROUP, self._node, min_idle_time=idle, message_ids=ids
            ):
                if job := await self._received(id_, values):
                    found.append(job)
        return found

    async def _received(self, entry_id: bytes, values: dict[bytes, bytes]) -> FinalizationJob | None:
        id_ = values[b"session"].decode()
        claim = f"{self._node} {entry_id.decode()}"
        taken = await self._take(keys=[_state(id_), _owner(id_), _entry(id_)], args=[entry_id, claim])
        if not taken:  # done, or handed over anew, and only its entry was left behind
            await self._client.xack(STREAM, GROUP, entry_id)
            await self._client.xdel(STREAM, entry_id)
            return None
        job = _read(taken[0])
        # What whoever began it has sent may still arrive; what nobody began is there, or was never sent.
        job.claim, job.looked_for = claim, not taken[1]
        return job

    @foreign_errors
    async def save(self, job: FinalizationJob) -> None:
        keys = [_owner(job.session.id), _state(job.session.id)]
        async with self._turns[job.claim]:  # on two connections, an older state could come after a newer one
            saved = await self._save(keys=keys, args=[job.claim, orjson.dumps(job.as_json())])
        if not saved:
            self._turns.pop(job.claim, None)
            raise TakenOver("another node carries out this ending")

    async def finish(self, job: FinalizationJob) -> None:
        await self._left(job, b"")

    async def rest(self, job: FinalizationJob) -> None:
        await self._left(job, orjson.dumps(job.as_json()))

    @foreign_errors
    async def _left(self, job: FinalizationJob, state: bytes) -> None:
        id_, entry_id = job.session.id, job.claim.rpartition(" ")[2]
        keys = [_owner(id_), _state(id_), _done(id_), _told(id_), _entry(id_), STREAM]
        told = orjson.dumps(replace(job, summary=None).as_json()) if job.session.taken_over else b""
        turns = len(job.session.turns)
        arguments: list[Any] = [job.claim, GROUP, entry_id, state, turns, DONE_SECONDS, told, TOLD_SECONDS]
        left = await self._leave(keys=keys, args=arguments)
        self._turns.pop(job.claim, None)
        if not left:
            raise TakenOver("another node carries out this ending")


def _due(job: FinalizationJob, state: bytes | None, done: bytes | None, told: bytes | None) -> FinalizationJob | None:
    """What is to be carried out, where so much is known of the ending; None when that is seen to."""
    if state is not None:
        known = _read(state)
        resting = replace(known, problem="") if known.problem else None
        return retold(known, job.session) or resting
    if told is not None:
        return retold(_read(told), job.session)
    if done is not None:
        more = len(job.session.turns) > int(done)
        return FinalizationJob(job.session, version=1, remote_sent=True) if more else None
    return job


def _read(stored: bytes) -> FinalizationJob:
    return FinalizationJob.from_json(orjson.loads(stored))


def _pairs(answer: Any) -> list[Any]:
    """Streams and their entries, in either version of the protocol."""
    return list(answer.items()) if isinstance(answer, dict) else list(answer or [])


def ending_names(session_id: str) -> tuple[str, ...]:
    """All that holds words of an ending, and the right to write them again: whoever carries it out is stopped."""
    return _state(session_id), _owner(session_id), _entry(session_id), _told(session_id)


def _state(session_id: str) -> str:
    return f"{PREFIX}ending:{session_id}"


def _owner(session_id: str) -> str:
    """Whose it is: a node, and the entry that gives it the right."""
    return f"{PREFIX}ending-node:{session_id}"


def _entry(session_id: str) -> str:
    """Its entry in the stream."""
    return f"{PREFIX}ending-entry:{session_id}"


def _done(session_id: str) -> str:
    """Of how many turns it told."""
    return f"{PREFIX}ending-done:{session_id}"


def _told(session_id: str) -> str:
    return f"{PREFIX}ending-told:{session_id}"
