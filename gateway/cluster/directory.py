"""
The directory of calls that all nodes share: which node owns a call, its stream token, its turns, and node inboxes.

Every call has one owner. Tokens, ownership and lookups go to the shared store at once. Everything else is queued and
written in order as soon as the store accepts it: calls never wait for it, and an outage loses nothing.
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

from gateway.calls.state import CallState
from gateway.cluster.store import SharedStore
from gateway.errors import SharedStoreUnavailable
from gateway.session import CallKey

MAX_QUEUED: Final = 100_000
MAX_RELEASED: Final = 1000
ALL_CALLS: Final = "all"
"""The group of calls that MAX_CALLS limits."""
_DIALLED: Final = "dialled"
"""In the keys of outbound calls that were not answered yet, in place of a carrier."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ClusterTimeouts:
    """Durations of the cluster, in seconds."""

    heartbeat: float = 1.0
    node_expiry: float = 4.0
    """A node without a heartbeat for this long is dead, and any node may take over its calls."""
    outage_grace: float = 10.0
    """After the store was unreachable no node counts as dead for this long: each has to reach it again first."""
    delivery: float = 1.0
    """A node that has not read a command by then is dead too."""
    release: float = 4.0
    """How long a living node may take to release a call: it waits for the caller's last words."""
    poll: float = 0.02
    request: float = 2.0
    """How long a lookup in the store may take while a caller waits."""
    token_request: float = 0.1
    """The same for a token that this node issued itself: engine settings leave within 150 ms."""
    retry: float = 0.5
    fast_retry: float = 0.2
    """While a caller waits, and for heartbeats."""
    takeover_check: float = 3.0
    """How often some node asks the carrier about a call whose node is silent."""
    end_poll: float = 5.0
    """How often a node that has lost a call looks whether it has ended."""
    erasure: float = 2.0
    """How long a caller who asks to be forgotten waits for another erasure, and for Redis to write its files."""
    stream_token: float = 30.0
    keep_call: float = 24 * 3600.0
    """How long a call is kept that no node writes about any more."""
    keep_ended: float = 3600.0


@dataclass(frozen=True)
class CallRecord:
    """What every node can read of a call. `session` has no turns here; an anonymous caller's call has no session."""

    key: CallKey
    node: str
    state: CallState
    account_id: str = ""
    caller: str = ""
    called: str = ""
    media_url: str = ""
    attempt: int = 0
    token: str = field(default="", repr=False)
    """The open stream token; empty if none is open."""
    session: Mapping[str, Any] | None = None
    number: str = ""
    tier: int = 0
    order: Mapping[str, Any] | None = None
    """The request, if the gateway placed this call."""
    user_name: str = ""

    @property
    def awaits_media(self) -> bool:
        """Whether a node may attach media with the open token."""
        return bool(self.token) and self.state in (CallState.RINGING, CallState.RECONNECTING)

    def as_bytes(self) -> bytes:
        return orjson.dumps(asdict(self))

    @classmethod
    def from_bytes(cls, stored: bytes) -> "CallRecord":
        """Fields that a newer version added are dropped."""
        values = {name: value for name, value in orjson.loads(stored).items() if name in cls.__dataclass_fields__}
        carrier, call_id = values.pop("key")
        return cls(key=(carrier, call_id), **{**values, "state": CallState(values["state"])})


class NodeCommandKind(enum.StrEnum):
    ENDED = "ended"
    """The carrier reports the end of the call."""
    STREAM_FAILED = "stream failed"
    """The carrier reports the end of the media stream; the caller may still be there."""
    TRANSFERRED = "transferred"
    """The transfer target has answered."""
    TRANSFER_FAILED = "transfer failed"
    ANSWERED_BY = "answered by"
    """The carrier reports whether a person or a mailbox answered."""
    RELEASE = "release"
    """The carrier requests new media at the sending node: let the call go."""
    TAKEN = "taken"
    """Another node owns the call now."""
    END = "end"
    """An operator ends the call."""
    SAY = "say"
    """An operator has the agent say something."""


@dataclass(frozen=True)
class NodeCommand:
    """What one node asks of another, or reports to it, about a call."""

    kind: NodeCommandKind
    key: CallKey
    text: str = field(default="", repr=False)
    id: str = field(default_factory=lambda: secrets.token_hex(8))

    def as_bytes(self) -> bytes:
        return orjson.dumps(asdict(self))

    @classmethod
    def from_bytes(cls, stored: bytes) -> "NodeCommand":
        values = orjson.loads(stored)
        carrier, call_id = values["key"]
        return cls(NodeCommandKind(values["kind"]), (carrier, call_id), values.get("text", ""), values["id"])


class CallDirectory:
    """One node's access to the directory. `run` writes what is queued."""

    def __init__(self, store: SharedStore, timeouts: ClusterTimeouts, *, node: str = "") -> None:
        self.node = node or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._store = store
        self._timeouts = timeouts
        self._mine: dict[CallKey, CallRecord] = {}
        self._queue: deque[Callable[[], Awaitable[object]]] = deque()
        self._queued = asyncio.Event()
        self._reachable = True
        self._outage_at = float("-inf")
        self._counts = b"{}"
        self._is_registered = False
        self._lost_registration = False
        self._released: dict[CallKey, str] = {}
        """Sessions of calls that other nodes took from this one. Turns still queued for them are not written."""

    # Answered by the store at once

    async def open(self, record: CallRecord) -> CallRecord:
        """Register a ringing call, or return the record that exists already."""
        while True:
            if await self._store.add(_call(record.key), record.as_bytes(), self._timeouts.keep_call):
                await self._owns(record)
                await self._store.put(_token(record.key), record.token.encode(), self._timeouts.stream_token)
                return record
            if there := await self.find(record.key):
                return there

    async def claim(self, key: CallKey, groups: Mapping[str, int]) -> str | None:
        """
        Count a call among those of each group, on all nodes: all calls, or those of a number. 0: without a limit.

        Returns the group that has reached its limit, if one has: then the call is counted in none.
        """
        for group, limit in groups.items():
            name, member, seconds = f"claims:{group}", _name(key), self._timeouts.keep_call
            joined = await self._store.join_limited(name, member, limit, seconds)
            if not joined and await self.is_new_event(f"look {name}", self._timeouts.takeover_check):
                for other in await self._store.members(name):  # a dead node may have left ended calls behind
                    record = await self.find(_key(other))
                    if record is None and await self.is_new_event(f"look {name} {other}", self._timeouts.keep_ended):
                        continue  # perhaps it is about to be announced; the next look decides
                    if record is None or record.state is CallState.ENDED:
                        await self._store.leave(name, other)
                joined = await self._store.join_limited(name, member, limit, seconds)
            if not joined:
                await self._release_claims(key, groups)
                return group
        return None

    async def claim_dial(self, order_id: str, groups: Mapping[str, int], seconds: float) -> str | None:
        """The same for an outbound call that is not answered yet. It counts until it is released, or for `seconds`."""
        key = (_DIALLED, order_id)
        ringing = CallRecord(key, self.node, CallState.RINGING)  # in no node's list: no node takes it over
        await self._store.put(_call(key), ringing.as_bytes(), seconds)
        return await self.claim(key, groups)

    async def release_dial(self, order_id: str, groups: Iterable[str]) -> None:
        await self._release_claims((_DIALLED, order_id), groups)
        await self._store.delete(_call((_DIALLED, order_id)))

    async def _release_claims(self, key: CallKey, groups: Iterable[str]) -> None:
        for group in groups:
            await self._store.leave(f"claims:{group}", _name(key))

    async def find(self, key: CallKey) -> CallRecord | None:
        stored = await self._store.get(_call(key))
        return CallRecord.from_bytes(stored) if stored else None

    async def redeem(self, key: CallKey, token: str, account_id: str) -> CallRecord | None:
        """
        Spend a token. Of all sockets at all nodes one gets the call, which this node owns from then on.

        Returns the record as it was before; None for a wrong or spent token.
        """
        record = await self.find(key)
        if record is None:  # the store may have lost the call; the node that issued the token has not
            raise SharedStoreUnavailable("the call is not known")
        if not record.awaits_media or account_id not in ("", record.account_id):
            return None
        stored = await self._store.get(_token(key)) or b""
        if not (stored and hmac.compare_digest(stored, token.encode()) and await self._store.delete(_token(key))):
            return None
        live = replace(record, node=self.node, state=CallState.ACTIVE, token="")
        await self._store.put(_call(key), live.as_bytes(), self._timeouts.keep_call)
        await self._took(live, record.node)
        return record

    async def adopt(self, key: CallKey, former: str, *, state: CallState | None = None) -> CallRecord | None:
        """
        Take a call over from a node that is dead or has released it; None if another node was faster.

        Returns the record as it was before; the new one has the same state unless `state` is given.
        """
        record = await self.find(key)
        if record is None:
            return None
        interrupted = record.node == self.node and key not in self._mine  # the store failed during the takeover
        if record.node != former and not interrupted:
            return None
        mine = replace(record, node=self.node, state=state or record.state)
        if not await self._store.swap(_call(key), record.as_bytes(), mine.as_bytes(), self._timeouts.keep_call):
            return None
        await self._took(mine, former)
        return record

    async def publish_token(self, record: CallRecord) -> bool:
        """Open a new token for a call of this node. Returns True once every node accepts it."""
        # Through the queue, because the end of the call may be queued while this is on its way.
        self.post(lambda: self._change(record))
        await self.flushed()
        if record.key in self._mine:
            await self._store.put(_token(record.key), record.token.encode(), self._timeouts.stream_token)
        return True

    async def release(self, record: CallRecord) -> bool:
        """Ask a call's node to release it, and wait. False if it has not, and so must be dead."""
        if not await self.deliver(record.node, NodeCommandKind.RELEASE, record.key):
            return False
        give_up = _now() + self._timeouts.release
        while _now() < give_up:
            current = await self.find(record.key)
            if current is None or current.state is not CallState.ACTIVE:
                return True
            await asyncio.sleep(self._timeouts.poll)
        return False

    async def deliver(self, node: str, kind: NodeCommandKind, key: CallKey, text: str = "") -> bool:
        """Send a command to a node. False if it has not read it in time, and so must be dead."""
        command = NodeCommand(kind, key, text)
        await self._send(node, command)
        give_up = _now() + self._timeouts.delivery
        while command.as_bytes() in await self._store.items(_inbox(node)):
            if _now() > give_up:
                return False
            await asyncio.sleep(self._timeouts.poll)
        return True

    async def journal(self, session_id: str) -> list[dict[str, Any]]:
        """The journal entries of a call, as far as its node could share them."""
        return [orjson.loads(entry) for entry in await self._store.items(journal_name(session_id))]

    async def find_bearer(self, digest: str) -> tuple[str, str, int] | None:
        """Agent, caller and trust level of the call that this bearer token belongs to."""
        stored = await self._store.get(f"bearer:{digest}")
        if stored is None:
            return None
        agent, caller, tier = orjson.loads(stored)
        return agent, caller, tier

    async def is_new_event(self, event_id: str, seconds: float) -> bool:
        """Whether no node has asked for this event within that time."""
        return await self._store.add(f"event:{event_id}", b"1", seconds)

    async def alive(self, node: str) -> bool:
        """Whether the node has a recent heartbeat. For a while after an outage of the store every node has."""
        in_grace = _now() - self._outage_at < self._timeouts.outage_grace
        return node == self.node or in_grace or await self._store.get(f"alive:{node}") is not None

    async def nodes(self) -> list[dict[str, Any]]:
        """The living nodes, each with its name as `node` and the counts of its last heartbeat."""
        names = sorted(await self._store.members("nodes"))
        heartbeats = [(name, await self._store.get(f"alive:{name}")) for name in names]
        return [{"node": name, **orjson.loads(heartbeat)} for name, heartbeat in heartbeats if heartbeat]

    async def active_elsewhere(self) -> list[CallRecord]:
        """The calls that have media at other nodes."""
        others = await self._store.members("nodes") - {self.node}
        names = [name for node in others for name in await self._store.members(f"calls:{node}")]
        records = [await self.find(_key(name)) for name in names]
        return [record for record in records if record is not None and record.state is CallState.ACTIVE]

    async def orphans(self) -> list[tuple[CallKey, str]]:
        """Calls whose node is dead, and that node. A dead node without calls is removed."""
        found: list[tuple[CallKey, str]] = []
        for node in await self._store.members("nodes"):
            if await self.alive(node):
                continue
            calls = await self._store.members(f"calls:{node}")
            found += [(_key(name), node) for name in calls]
            if not calls:
                await self._store.leave("nodes", node)
                await self._store.delete(_inbox(node))
        return found

    async def remove_from(self, node: str, key: CallKey) -> None:
        """The call is not one of that node's any more."""
        await self._store.leave(f"calls:{node}", _name(key))

    async def next_command(self) -> NodeCommand | None:
        """The next command for this node; None if none came for a second, or one that only a newer version knows."""
        stored = await self._store.take(_inbox(self.node), wait=1.0)
        with contextlib.suppress(ValueError, KeyError):
            return NodeCommand.from_bytes(stored) if stored else None
        return None

    # Queued, and written in order

    def media_attached(self, key: CallKey) -> None:
        """A call of this node has media here, but its token could not be spent in the store in time."""

        async def write() -> None:
            record = self._mine.get(key)
            if record is not None and record.awaits_media:
                await self._store.delete(_token(key))
                await self._change(replace(record, state=CallState.ACTIVE, token=""))

        self.post(write)

    def update(self, record: CallRecord) -> None:
        self.post(lambda: self._change(record))

    def ended(self, key: CallKey) -> None:
        """The call has ended; its record stays until finalization has begun."""

        async def write() -> None:
            if record := self._mine.get(key):
                await self._change(replace(record, state=CallState.ENDED, token=""))
                await self._release_claims(key, (ALL_CALLS, record.number, record.caller))

        self.post(write)

    def forget(self, key: CallKey, session_id: str = "") -> None:
        """Finalization has begun, which needs nothing from here. A tombstone without content stays for a while."""
        tombstone = CallRecord(key, self.node, CallState.ENDED)

        async def write() -> None:
            there = await self.find(key)
            if there is None or there.node == self.node:
                await self._store.put(_call(key), tombstone.as_bytes(), self._timeouts.keep_ended)
                await self._store.delete(journal_name(session_id))
            await self._store.leave(f"calls:{self.node}", _name(key))
            self._mine.pop(key, None)
            self._released.pop(key, None)

        self.post(write)

    def append(self, session_id: str, entry: bytes) -> None:
        """Share one more entry of a call's journal."""

        async def write() -> None:
            if session_id not in self._released.values():
                await self._store.append(journal_name(session_id), [entry], self._timeouts.keep_call)

        self.post(write)

    def share_bearer(self, digest: str, agent: str, caller: str, tier: int) -> None:
        """The engine may send this call's LLM requests to any node, with the bearer token of this digest."""
        value = orjson.dumps([agent, caller, tier])
        self.post(lambda: self._store.put(f"bearer:{digest}", value, self._timeouts.keep_call))

    def withdraw_bearer(self, digest: str) -> None:
        self.post(lambda: self._store.delete(f"bearer:{digest}"))

    def checkpoint(self, key: CallKey, session_id: str, entries: Iterable[Mapping[str, Any]]) -> None:
        """Write all entries so far: restores what the store may have lost, and extends the record's expiry."""
        values = [orjson.dumps(entry) for entry in entries]

        async def write() -> None:
            if record := self._mine.get(key):
                await self._change(record)
            if key in self._mine:  # else another node has the call, and more of its turns
                await self._store.rewrite(journal_name(session_id), values, self._timeouts.keep_call)
                await self._store.join(f"calls:{self.node}", _name(key))

        self.post(write)

    def post(self, write: Callable[[], Awaitable[object]]) -> None:
        """Queue a write. `write` raises SharedStoreUnavailable to be retried."""
        self._queue.append(write)
        if len(self._queue) > MAX_QUEUED:
            del self._queue[1]  # not the first: it is being written
        self._queued.set()

    async def flushed(self) -> None:
        """Wait until everything queued so far is written."""
        done = asyncio.Event()

        async def notify() -> None:
            done.set()

        self.post(notify)
        await done.wait()

    # Background work

    async def run(self) -> None:
        """Write the queue in order, until cancelled; retry what fails."""
        while True:
            await self._queued.wait()
            self._queued.clear()
            while self._queue:
                try:
                    if not self._reachable:
                        await self.republish()
                    await self._queue[0]()
                except SharedStoreUnavailable as error:
                    self._log_reachability(error)
                    await asyncio.sleep(self._timeouts.retry)
                    continue
                self._queue.popleft()
                self._log_reachability(None)

    async def heartbeat(self, counts: Mapping[str, int]) -> bool:
        """Write this node's heartbeat with its counts. True if the store had lost this node since the last one."""
        self._counts = orjson.dumps(counts)
        try:
            await self._register()
        except SharedStoreUnavailable:
            self._outage_at = _now()
            raise
        lost, self._lost_registration = self._lost_registration, False
        return lost

    async def republish(self) -> None:
        """
        After an outage: write the records that the store has lost, and find the calls that other nodes have now.

        A call with an open token is left out: it may have media elsewhere by now, and the store lost that too.
        """
        await self._register()
        for key, record in list(self._mine.items()):
            there = await self.find(key)
            if there is None and not record.awaits_media:
                await self._store.put(_call(key), record.as_bytes(), self._timeouts.keep_call)
                await self._owns(record)
            elif there is not None and there.node != self.node:
                # The command of the node that took it may be lost.
                await self._send(self.node, NodeCommand(NodeCommandKind.TAKEN, key))
                self.disown(key)

    def disown(self, key: CallKey) -> None:
        """Another node owns the call."""
        record = self._mine.pop(key, None)
        if record is not None and record.session is not None:
            self._released[key] = record.session["id"]
            while len(self._released) > MAX_RELEASED:
                del self._released[next(iter(self._released))]

    async def leave(self) -> None:
        """This node stops; others take over the calls it still has."""
        await self._store.delete(f"alive:{self.node}")

    async def _change(self, record: CallRecord) -> None:
        """Replace the record of a call, unless another node owns it by now."""
        name, before = _call(record.key), self._mine.get(record.key)
        if before and await self._store.swap(name, before.as_bytes(), record.as_bytes(), self._timeouts.keep_call):
            self._mine[record.key] = record
            return
        there = await self.find(record.key)
        if there is None or there.node == self.node:  # new to the store, lost by it, or older there
            await self._store.put(name, record.as_bytes(), self._timeouts.keep_call)
            await self._owns(record)
        else:
            self.disown(record.key)

    async def _register(self) -> None:
        await self._store.put(f"alive:{self.node}", self._counts, self._timeouts.node_expiry)
        self._lost_registration |= await self._store.join("nodes", self.node) and self._is_registered
        self._is_registered = True

    async def _owns(self, record: CallRecord) -> None:
        await self._register()  # the calls of an unregistered node would never be taken over
        await self._store.join(f"calls:{self.node}", _name(record.key))
        self._mine[record.key] = record
        self._released.pop(record.key, None)

    async def _took(self, record: CallRecord, former: str) -> None:
        await self._store.join(f"calls:{self.node}", _name(record.key))
        if former != self.node:
            await self._send(former, NodeCommand(NodeCommandKind.TAKEN, record.key))
            # Last: an interrupted takeover is found among the dead node's calls, and repeated.
            await self._store.leave(f"calls:{former}", _name(record.key))
        self._mine[record.key] = record
        self._released.pop(record.key, None)

    async def _send(self, node: str, command: NodeCommand) -> None:
        await self._store.append(_inbox(node), [command.as_bytes()], self._timeouts.keep_ended)

    def _log_reachability(self, error: SharedStoreUnavailable | None) -> None:
        """Log once when the store goes away, and once when it is back."""
        if error is not None and self._reachable:
            _log.error("shared storage can't be reached, this node continues alone", extra={"reason": str(error)})
        elif error is None and not self._reachable:
            _log.info("shared storage is back")
        self._reachable = error is None


def _now() -> float:
    return asyncio.get_running_loop().time()


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
    """The name of the list with the journal entries of a call."""
    return f"journal:{session_id}"
