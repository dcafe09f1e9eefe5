"""
What nodes know of each other's calls: who answers for which call, its token, its turns, and word for its node.

Every call has one owner. Tokens, ownership and questions are asked of the board at once. Everything else is put into
one queue and written in order, as soon as the board takes it: the call does not wait, and an outage loses nothing.
"""

import asyncio
import contextlib
import enum
import hmac
import logging
import os
import secrets
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import orjson

from gateway.cluster.store import SharedStore
from gateway.errors import SharedStoreUnavailable
from gateway.session import CallKey

BEAT_SECONDS: Final = 1.0
ALIVE_SECONDS: Final = 4.0
"""A node that has not shown a sign of life for so long is dead, and its calls are anybody's."""

PARDON_SECONDS: Final = 10.0
"""Nobody is taken for dead so soon after the board was out of reach: it was for all, and each tries again in turn."""

ANSWER_SECONDS: Final = 1.0
"""A message that its node has not taken by then shows the same, sooner."""
RELEASE_SECONDS: Final = 4.0
"""How long a node that lives may take to let a call go: it waits for the caller's last words."""
LOOK_SECONDS: Final = 0.02

CALL_SECONDS: Final = 24 * 3600.0
"""How long a call is known that nobody writes about any more."""
OVER_SECONDS: Final = 3600.0
RETRY_SECONDS: Final = 0.5
MOST_WAITING: Final = 100_000
MOST_FOREIGN: Final = 1000

_log = logging.getLogger(__name__)


class CallState(enum.StrEnum):
    RINGING = "ringing"
    LIVE = "live"
    PARKED = "parked"
    """It has lost its media and waits for other."""
    OVER = "over"


@dataclass(frozen=True)
class CallRecord:
    """What every node knows of a call. `session` is without its turns; a nameless caller's call has none."""

    key: CallKey
    node: str
    state: CallState
    account_id: str = ""
    caller: str = ""
    called: str = ""
    media_url: str = ""
    attempt: int = 0
    token: str = field(default="", repr=False)
    session: Mapping[str, Any] | None = None
    number: str = ""
    tier: int = 0
    handed_over: bool = False
    order: Mapping[str, Any] | None = None
    """Why we call, where it is us who do."""

    def as_bytes(self) -> bytes:
        return orjson.dumps(asdict(self))

    @classmethod
    def from_bytes(cls, stored: bytes) -> "CallRecord":
        """What a newer version may have added is left out."""
        values = {name: value for name, value in orjson.loads(stored).items() if name in cls.__dataclass_fields__}
        carrier, call_id = values.pop("key")
        return cls(key=(carrier, call_id), **{**values, "state": CallState(values["state"])})


class NodeCommandKind(enum.StrEnum):
    """What one node tells another about a call."""

    ENDED = "ended"
    """The carrier says that the call is over."""
    STREAM_FAILED = "stream failed"
    """The carrier says that the media is over; the caller may be there."""
    TRANSFERRED = "transferred"
    """Somebody has picked up the call that was put through to them."""
    TRANSFER_FAILED = "transfer failed"
    RELEASE = "release"
    """The carrier asks here for new media: park the call."""
    TAKEN = "taken"
    """The call is another node's now."""
    END = "end"
    """An operator ends the call."""
    SAY = "say"
    """An operator has the agent say something."""


@dataclass(frozen=True)
class NodeCommand:
    word: NodeCommandKind
    key: CallKey
    text: str = field(default="", repr=False)
    id: str = field(default_factory=lambda: secrets.token_hex(8))

    def as_bytes(self) -> bytes:
        return orjson.dumps(asdict(self))

    @classmethod
    def from_bytes(cls, stored: bytes) -> "NodeCommand":
        values = orjson.loads(stored)
        carrier, call_id = values["key"]
        return cls(NodeCommandKind(values["word"]), (carrier, call_id), values.get("text", ""), values["id"])


class CallDirectory:
    """One node's view of what all of them share. `run` writes what is queued, and shows that the node is alive."""

    def __init__(self, shared_store: SharedStore, *, token_seconds: float, node: str = "") -> None:
        self.node = node or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._shared_store = shared_store
        self._token_seconds = token_seconds
        self._mine: dict[CallKey, CallRecord] = {}
        self._queue: deque[Callable[[], Awaitable[None]]] = deque()
        self._queued = asyncio.Event()
        self._reachable = True
        self._gap_at = float("-inf")
        self._figures = b"{}"
        self._is_known = False
        self._was_forgotten = False
        self._foreign: dict[CallKey, str] = {}
        """Sessions of calls that others have taken from us. What is still to be written of them is not the board's."""

    # Asked at once

    async def open(self, record: CallRecord) -> CallRecord:
        """Make a ringing call known, or return what is already known of it."""
        while True:
            if await self._shared_store.add(_call(record.key), record.as_bytes(), CALL_SECONDS):
                await self._owns(record)
                await self._shared_store.put(_token(record.key), record.token.encode(), self._token_seconds)
                return record
            if there := await self.find(record.key):
                return there

    async def find(self, key: CallKey) -> CallRecord | None:
        stored = await self._shared_store.get(_call(key))
        return CallRecord.from_bytes(stored) if stored else None

    async def redeem(self, key: CallKey, token: str, account_id: str) -> CallRecord | None:
        """Spend a token. Of all sockets at all nodes one gets the call, as it was; it is this node's from then on."""
        record = await self.find(key)
        if record is None:  # it may have lost the call; who gave the token knows
            raise SharedStoreUnavailable("the call is not known")
        if record.state is not CallState.RINGING or account_id not in ("", record.account_id):
            return None
        stored = await self._shared_store.get(_token(key)) or b""
        if not (
            stored and hmac.compare_digest(stored, token.encode()) and await self._shared_store.delete(_token(key))
        ):
            return None
        live = replace(record, node=self.node, state=CallState.LIVE, token="")
        await self._shared_store.put(_call(key), live.as_bytes(), CALL_SECONDS)
        await self._took(live, record.node)
        return record

    async def adopt(self, key: CallKey, former: str, *, state: CallState | None = None) -> CallRecord | None:
        """
        Take a call over from a node that is dead or has let it go; None when somebody else was quicker.

        Returns it as it was; it is in the same `state` here unless one is given.
        """
        record = await self.find(key)
        if record is None:
            return None
        half_ours = record.node == self.node and key not in self._mine  # the board went away while we took it
        if record.node != former and not half_ours:
            return None
        mine = replace(record, node=self.node, state=state or record.state)
        if not await self._shared_store.swap(_call(key), record.as_bytes(), mine.as_bytes(), CALL_SECONDS):
            return None
        await self._took(mine, former)
        return record

    async def ring_again(self, record: CallRecord) -> None:
        """A call of this node's gets a new token. On return every node honours it."""
        # In its turn with what is queued: that the call is over may be said while this is on its way.
        self._post(lambda: self._change(record))
        await self.written()
        if record.key in self._mine:
            await self._shared_store.put(_token(record.key), record.token.encode(), self._token_seconds)

    async def release(self, record: CallRecord) -> bool:
        """Ask a call's node to let go of it, and wait until it has, or must be dead. Whether it has."""
        if not await self.reached(record.node, NodeCommandKind.RELEASE, record.key):
            return False
        give_up = asyncio.get_running_loop().time() + RELEASE_SECONDS
        while asyncio.get_running_loop().time() < give_up:
            now = await self.find(record.key)
            if now is None or now.state is not CallState.LIVE:
                return True
            await asyncio.sleep(LOOK_SECONDS)
        return False

    async def reached(self, node: str, word: NodeCommandKind, key: CallKey, text: str = "") -> bool:
        """Tell a node about a call of its; whether it took the message, and so is alive."""
        message = NodeCommand(word, key, text)
        await self._send(node, message)
        give_up = asyncio.get_running_loop().time() + ANSWER_SECONDS
        while message.as_bytes() in await self._shared_store.items(_inbox(node)):
            if asyncio.get_running_loop().time() > give_up:
                return False
            await asyncio.sleep(LOOK_SECONDS)
        return True

    async def turns(self, session_id: str) -> list[dict[str, Any]]:
        """The journal entries of a call, as far as its node could share them."""
        return [orjson.loads(entry) for entry in await self._shared_store.items(journal_name(session_id))]

    async def bearer(self, digest: str) -> tuple[str, str, int] | None:
        """Agent and caller of the call that this bearer belongs to, and how much may be told."""
        stored = await self._shared_store.get(f"bearer:{digest}")
        if stored is None:
            return None
        agent, caller, tier = orjson.loads(stored)
        return agent, caller, tier

    async def is_new_event(self, event_id: str, seconds: float = OVER_SECONDS) -> bool:
        """Whether no node has asked this for so long."""
        return await self._shared_store.add(f"event:{event_id}", b"1", seconds)

    async def alive(self, node: str) -> bool:
        """Whether it has shown a sign of life. When the board comes back, each gets the time to show one again."""
        pardoned = asyncio.get_running_loop().time() - self._gap_at < PARDON_SECONDS
        return node == self.node or pardoned or await self._shared_store.get(f"alive:{node}") is not None

    async def nodes(self) -> list[dict[str, Any]]:
        """Those that are alive, each with its `node` and the figures of its last sign of life."""
        names = sorted(await self._shared_store.members("nodes"))
        signs = [(name, await self._shared_store.get(f"alive:{name}")) for name in names]
        return [{"node": name, **orjson.loads(sign)} for name, sign in signs if sign]

    async def live_elsewhere(self) -> list[CallRecord]:
        """The calls that have their media at other nodes."""
        others = await self._shared_store.members("nodes") - {self.node}
        names = [name for node in others for name in await self._shared_store.members(f"calls:{node}")]
        records = [await self.find(_key(name)) for name in names]
        return [record for record in records if record is not None and record.state is CallState.LIVE]

    async def orphans(self) -> list[tuple[CallKey, str]]:
        """Calls whose node is dead, and that node. A dead node without calls is forgotten."""
        found: list[tuple[CallKey, str]] = []
        for node in await self._shared_store.members("nodes"):
            if await self.alive(node):
                continue
            calls = await self._shared_store.members(f"calls:{node}")
            found += [(_key(name), node) for name in calls]
            if not calls:
                await self._shared_store.leave("nodes", node)
                await self._shared_store.delete(_inbox(node))
        return found

    async def disown(self, key: CallKey, node: str) -> None:
        """It is none of that node's calls."""
        await self._shared_store.leave(f"calls:{node}", _name(key))

    async def next_message(self) -> NodeCommand | None:
        """The next word for this node; None when there was none for a second, or one that only newer versions know."""
        stored = await self._shared_store.take(_inbox(self.node), wait=1.0)
        with contextlib.suppress(ValueError, KeyError):
            return NodeCommand.from_bytes(stored) if stored else None
        return None

    # Written soon

    def answered(self, key: CallKey) -> None:
        """A call of this node's has its media here, though its token could not be spent on the board in time."""

        async def write() -> None:
            record = self._mine.get(key)
            if record is not None and record.state is CallState.RINGING:
                await self._shared_store.delete(_token(key))
                await self._change(replace(record, state=CallState.LIVE, token=""))

        self._post(write)

    def parked(self, record: CallRecord) -> None:
        self._post(lambda: self._change(record))

    def over(self, key: CallKey) -> None:
        """The call is over; that it has come to its ending is still to be said."""

        async def write() -> None:
            if record := self._mine.get(key):
                await self._change(replace(record, state=CallState.OVER, token=""))

        self._post(write)

    def settled(self, key: CallKey, session_id: str = "") -> None:
        """Nothing of it is needed here any more. Only that there was such a call is known for a while."""
        tombstone = CallRecord(key, self.node, CallState.OVER)

        async def write() -> None:
            there = await self.find(key)
            if there is None or there.node == self.node:
                await self._shared_store.put(_call(key), tombstone.as_bytes(), OVER_SECONDS)
                await self._shared_store.delete(journal_name(session_id))
            await self._shared_store.leave(f"calls:{self.node}", _name(key))
            self._mine.pop(key, None)
            self._foreign.pop(key, None)

        self._post(write)

    def said(self, session_id: str, entry: bytes) -> None:
        """One more entry of a call's journal."""

        async def write() -> None:
            if session_id not in self._foreign.values():
                await self._shared_store.append(journal_name(session_id), [entry], CALL_SECONDS)

        self._post(write)

    def bearer_opened(self, digest: str, agent: str, caller: str, tier: int) -> None:
        """The engine may ask any node for this call's answers, and shows a bearer with this digest."""
        self._post(
            lambda: self._shared_store.put(f"bearer:{digest}", orjson.dumps([agent, caller, tier]), CALL_SECONDS)
        )

    def bearer_closed(self, digest: str) -> None:
        async def write() -> None:
            await self._shared_store.delete(f"bearer:{digest}")

        self._post(write)

    def checkpoint(self, key: CallKey, session_id: str, entries: Iterable[Mapping[str, Any]]) -> None:
        """All entries so far: mends what the board may have lost, and shows that the call is still there."""
        values = [orjson.dumps(entry) for entry in entries]

        async def write() -> None:
            if record := self._mine.get(key):
                await self._change(record)
            if key in self._mine:  # else another node has the call, and knows more of it
                await self._shared_store.rewrite(journal_name(session_id), values, CALL_SECONDS)
                await self._shared_store.join(f"calls:{self.node}", _name(key))

        self._post(write)

    def post(self, write: Callable[[], Awaitable[None]]) -> None:
        """Write for all nodes, in order. `write` raises SharedStoreUnavailable to be retried."""
        self._post(write)

    async def written(self) -> None:
        """Wait until everything queued so far is on the board."""
        done = asyncio.Event()

        async def tell() -> None:
            done.set()

        self._post(tell)
        await done.wait()

    # At work

    async def run(self) -> None:
        """Write what is queued, in order, until cancelled. What can't be written waits."""
        while True:
            await self._queued.wait()
            self._queued.clear()
            while self._queue:
                try:
                    if not self._reachable:
                        await self.mend()
                    await self._queue[0]()
                except SharedStoreUnavailable as error:
                    self._tell(error)
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                self._queue.popleft()
                self._tell(None)

    async def beat(self, figures: Mapping[str, int]) -> bool:
        """Show that this node is alive, and what it has to do. Whether the board has forgotten that it was."""
        self._figures = orjson.dumps(figures)
        try:
            await self._show_life()
        except SharedStoreUnavailable:
            self._gap_at = asyncio.get_running_loop().time()
            raise
        was_forgotten, self._was_forgotten = self._was_forgotten, False
        return was_forgotten

    async def mend(self) -> None:
        """
        After the board was away: make known again what it has forgotten, and see which calls are others' now.

        A call that rings here may have got its media elsewhere, and the board have forgotten who told us.
        """
        await self._show_life()
        for key, record in list(self._mine.items()):
            there = await self.find(key)
            if there is None and record.state is not CallState.RINGING:
                await self._shared_store.put(_call(key), record.as_bytes(), CALL_SECONDS)
                await self._owns(record)
            elif there is not None and there.node != self.node:
                await self._send(
                    self.node, NodeCommand(NodeCommandKind.TAKEN, key)
                )  # who took it may have said so in vain
                self.lost(key)

    def lost(self, key: CallKey) -> None:
        """The call is another node's."""
        record = self._mine.pop(key, None)
        if record is not None and record.session is not None:
            self._foreign[key] = record.session["id"]
            while len(self._foreign) > MOST_FOREIGN:
                del self._foreign[next(iter(self._foreign))]

    async def leave(self) -> None:
        """This node goes: whatever calls it still has are anybody's."""
        await self._shared_store.delete(f"alive:{self.node}")

    # Itself

    def _post(self, write: Callable[[], Awaitable[None]]) -> None:
        self._queue.append(write)
        if len(self._queue) > MOST_WAITING:
            del self._queue[1]  # not the first: it is being written
        self._queued.set()

    async def _change(self, record: CallRecord) -> None:
        """Write a call of this node's anew, unless it has become another's."""
        name, before = _call(record.key), self._mine.get(record.key)
        if before and await self._shared_store.swap(name, before.as_bytes(), record.as_bytes(), CALL_SECONDS):
            self._mine[record.key] = record
            return
        there = await self.find(record.key)
        if there is None or there.node == self.node:  # the board never knew it, has lost it, or has an older state
            await self._shared_store.put(name, record.as_bytes(), CALL_SECONDS)
            await self._owns(record)
        else:
            self.lost(record.key)

    async def _show_life(self) -> None:
        await self._shared_store.put(f"alive:{self.node}", self._figures, ALIVE_SECONDS)
        self._was_forgotten |= await self._shared_store.join("nodes", self.node) and self._is_known
        self._is_known = True

    async def _owns(self, record: CallRecord) -> None:
        """Nobody looks for the calls of a node that the board does not know."""
        await self._show_life()
        await self._shared_store.join(f"calls:{self.node}", _name(record.key))
        self._mine[record.key] = record
        self._foreign.pop(record.key, None)

    async def _took(self, record: CallRecord, former: str) -> None:
        await self._shared_store.join(f"calls:{self.node}", _name(record.key))
        if former != self.node:
            await self._send(former, NodeCommand(NodeCommandKind.TAKEN, record.key))
            # Last: until here it is found among a dead node's calls, and taken again if this was interrupted.
            await self._shared_store.leave(f"calls:{former}", _name(record.key))
        self._mine[record.key] = record
        self._foreign.pop(record.key, None)

    async def _send(self, node: str, message: NodeCommand) -> None:
        await self._shared_store.append(_inbox(node), [message.as_bytes()], OVER_SECONDS)

    def _tell(self, error: SharedStoreUnavailable | None) -> None:
        """Once when the board is gone, once when it is back."""
        if error is not None and self._reachable:
            _log.error("shared storage can't be reached, this node goes on by itself", extra={"reason": str(error)})
        elif error is None and not self._reachable:
            _log.info("shared storage is back")
        self._reachable = error is None


def _name(key: CallKey) -> str:
    return f"{key[0]}:{key[1]}"


def _key(name: str) -> CallKey:
    carrier, _, call_id = name.partition(":")
    return carrier, call_id


def _call(key: CallKey) -> str:
    return f"call:{_name(key)}"


def _token(key: CallKey) -> str:
    return f"token:{_name(key)}"


def _inbox(node: str) -> str:
    return f"inbox:{node}"


def journal_name(session_id: str) -> str:
    """Under which the turns of a call are shared."""
    return f"journal:{session_id}"
