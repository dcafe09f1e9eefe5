"""
Endings that any of several nodes carries out: a Redis stream, read by one group.

An ending stays in the table of the node where the call ended until some node has done it, so that neither a dead node
nor a Redis that forgets loses one. A node reads an entry, or claims a dead node's; what it writes is refused once
another one has claimed it. So a step with an effect outside is not begun by two.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal

import orjson
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from gateway.calls.endings import Ending
from gateway.calls.nodes.redis_board import ANSWER_SECONDS, PREFIX, foreign_errors
from gateway.errors import TakenOver

STREAM: Final = f"{PREFIX}endings"
GROUP: Final = "gateways"
DONE_SECONDS: Final = 7 * 24 * 3600
"""How long it is known that an ending was done; a node that was away so long asks the remote store."""
CLAIM_AFTER: Final = 2.0
"""Seconds that an entry lies with a dead node before another one claims it."""

# Only who sees to an ending may write about it.
_SAVE: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[2], ARGV[2])
return 1
"""
_LEAVE: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('XACK', KEYS[4], ARGV[2], ARGV[3])
redis.call('XDEL', KEYS[4], ARGV[3])
redis.call('DEL', KEYS[1])
if ARGV[4] == '' then
  redis.call('DEL', KEYS[2])
  redis.call('SET', KEYS[3], '1', 'EX', ARGV[5])
else
  redis.call('SET', KEYS[2], ARGV[4])
end
return 1
"""

Whereabouts = Literal["done", "resting", "under way", "lost"]


class EndingStream:
    """The endings of all nodes. Also the EndingStore of those that this node carries out."""

    def __init__(self, client: Redis, node: str, alive: Callable[[str], Awaitable[bool]]) -> None:
        self._client: Any = client  # its types can't tell bytes from text
        self._node = node
        self._alive = alive
        self._save = client.register_script(_SAVE)
        self._leave = client.register_script(_LEAVE)
        self._entries: dict[str, bytes] = {}
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    # Where the call ended

    @foreign_errors
    async def hand_over(self, ending: Ending) -> None:
        """Let any node carry it out. One that was handed over before, or done, is not again."""
        if await self._whereabouts(ending.session.id) in ("done", "under way"):
            return
        ending.problem = ""
        async with self._client.pipeline(transaction=True) as pipeline:
            pipeline.set(_state(ending.session.id), orjson.dumps(ending.as_json()))
            pipeline.xadd(STREAM, {"session": ending.session.id})
            await pipeline.execute()

    @foreign_errors
    async def whereabouts(self, ending: Ending) -> Whereabouts:
        """What has become of an ending. One that rests brings its state with it."""
        where = await self._whereabouts(ending.session.id)
        if where == "resting" and (stored := await self._client.get(_state(ending.session.id))):
            vars(ending).update(vars(_read(stored)))
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
    async def next(self) -> list[Ending]:
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
        return [ending for id_, values in entries if (ending := await self._received(id_, values))]

    async def _make_group(self) -> None:
        with contextlib.suppress(ResponseError):  # another node was quicker
            await self._client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)

    async def _claim(self) -> list[Ending]:
        """Entries that lie with nodes that are dead."""
        found: list[Ending] = []
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
                if ending := await self._received(id_, values):
                    found.append(ending)
        return found

    async def _received(self, entry_id: bytes, values: dict[bytes, bytes]) -> Ending | None:
        session_id = values[b"session"].decode()
        stored = await self._client.get(_state(session_id))
        if stored is None:  # done, and only its entry was left behind
            await self._client.xack(STREAM, GROUP, entry_id)
            await self._client.xdel(STREAM, entry_id)
            return None
        await self._client.set(_owner(session_id), self._node)
        self._entries[session_id] = entry_id
        return _read(stored)

    @foreign_errors
    async def save(self, ending: Ending) -> None:
        keys = [_owner(ending.session.id), _state(ending.session.id)]
        async with self._turns[ending.session.id]:  # on two connections, an older state could come after a newer one
            saved = await self._save(keys=keys, args=[self._node, orjson.dumps(ending.as_json())])
        if not saved:
            raise TakenOver("another node carries out this ending")

    async def finish(self, ending: Ending) -> None:
        await self._left(ending, b"")

    async def rest(self, ending: Ending) -> None:
        await self._left(ending, orjson.dumps(ending.as_json()))

    @foreign_errors
    async def _left(self, ending: Ending, state: bytes) -> None:
        session_id = ending.session.id
        keys = [_owner(session_id), _state(session_id), _done(session_id), STREAM]
        entry_id = self._entries[session_id]
        if not await self._leave(keys=keys, args=[self._node, GROUP, entry_id, state, DONE_SECONDS]):
            raise TakenOver("another node carries out this ending")
        del self._entries[session_id]
        self._turns.pop(session_id, None)


def _read(stored: bytes) -> Ending:
    return Ending.from_json(orjson.loads(stored))


def _pairs(answer: Any) -> list[Any]:
    """Streams and their entries, in either version of the protocol."""
    return list(answer.items()) if isinstance(answer, dict) else list(answer or [])


def _state(session_id: str) -> str:
    return f"{PREFIX}ending:{session_id}"


def _owner(session_id: str) -> str:
    return f"{PREFIX}ending-node:{session_id}"


def _done(session_id: str) -> str:
    return f"{PREFIX}ending-done:{session_id}"
