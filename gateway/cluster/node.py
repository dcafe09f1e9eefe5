"""
This process as a node: alone (SingleNode), or one of several that share Redis (ClusterNode).

Nodes publish their calls, forward what carriers report to the call's owner, and take over the calls of dead nodes. The
call manager alone acts on calls; it uses either class through `Cluster`, and ClusterNode calls it through `LocalCalls`.
"""

import asyncio
import contextlib
import enum
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from gateway.calls.state import CallState
from gateway.cluster.directory import CallDirectory, CallRecord, ClusterTimeouts, NodeCommand, NodeCommandKind
from gateway.errors import SharedStoreUnavailable
from gateway.history.call_log import restore, rows_beside_turns, rows_of_turns
from gateway.logs import call_name
from gateway.metrics import WATCHDOG
from gateway.session import CallKey, VoiceSession
from gateway.telephony.codec import StreamStarted
from gateway.telephony.machine_detection import AnsweredBy

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Reclaim(enum.Enum):
    """What to do with a call found in this machine's journal after a start."""

    RESUME = enum.auto()
    """It is this node's."""
    CONTRIBUTE = enum.auto()
    """Another machine's node has it, and may not know all of its turns."""
    LEAVE = enum.auto()
    """Another worker on this disk has it, and uses that journal."""


class LocalCalls(Protocol):
    """What the cluster asks of this node's call manager."""

    def carrier_ended(self, key: CallKey) -> None: ...
    def stream_failed(self, key: CallKey, token: str = "") -> None: ...
    def transfer_finished(self, key: CallKey, *, answered: bool) -> None: ...
    def answered_by(self, key: CallKey, report: AnsweredBy) -> None: ...
    def operator_ends(self, key: CallKey) -> None: ...
    def operator_says(self, key: CallKey, words: str) -> None: ...
    def has_media(self, key: CallKey) -> bool: ...

    async def release(self, key: CallKey) -> None:
        """End the call's media here: another node continues it."""

    def drop(self, key: CallKey) -> None:
        """Another node owns the call now."""

    def take_over(self, record: CallRecord, session: VoiceSession | None) -> None:
        """This node owns the call now, without its media. `session` is None for an anonymous caller."""

    async def restore_turns(self, session: VoiceSession) -> None:
        """Add turns from the journal of a dead worker on the same disk."""

    async def may_be_alive(self, record: CallRecord) -> bool:
        """Whether the silent owner of this call may still have it, as far as the carrier knows."""

    def checkpoints(self) -> Iterable[tuple[CallKey, str, list[Mapping[str, Any]]]]:
        """Key, session id and all journal entries of each call with media here."""


class Cluster:
    """
    What this process needs of other nodes. This base class shares nothing: every call is its own.

    Unless stated, no method raises SharedStoreUnavailable.
    """

    node = ""
    """The name of this node; empty for a single one."""
    nodes: Sequence[Mapping[str, Any]] = ()
    """The living nodes at the last heartbeat, each with its counts; empty while unknown."""
    is_away = False
    """Whether the last heartbeat did not reach the shared store."""
    takes_over_calls = False
    """Whether other nodes continue the calls that this one has when it stops."""

    async def run(self) -> None:
        """Until cancelled: send heartbeats and write what is queued."""

    async def listen(self, calls: LocalCalls, counts: Callable[[], Mapping[str, int]]) -> None:
        """Until cancelled: carry out commands, take over calls of dead nodes, write checkpoints."""

    async def close(self) -> None: ...

    # A call of this node

    async def claim(self, key: CallKey, groups: Mapping[str, int]) -> str | None:
        """Count a call in groups of calls, over all nodes. Returns a group whose limit does not admit it, or None."""
        return None

    async def claim_dial(self, order_id: str, groups: Mapping[str, int], seconds: float) -> str | None:
        """The same for an outbound call that is not answered yet: until `release_dial`, or for `seconds`."""
        return None

    async def release_dial(self, order_id: str, groups: Iterable[str]) -> None: ...

    async def announce(self, record: CallRecord) -> CallRecord | None:
        """Publish a ringing call. Returns the record in force, which may be another's; None if none can be shared."""
        return None

    async def publish_token(self, record: CallRecord) -> bool:
        """Publish a new token. Whether other nodes accept it."""
        return False

    async def redeem(self, key: CallKey, started: StreamStarted, *, is_local: bool) -> CallRecord | None:
        """
        Spend a token that any node may have issued; None for a wrong one. The call is this node's from then on.

        `is_local`: this node issued one itself. Raises SharedStoreUnavailable if the store does not answer in time.
        """
        return None

    def media_attached(self, key: CallKey) -> None: ...
    def stream_lost(self, record: CallRecord, session: VoiceSession | None) -> None: ...
    def call_ended(self, key: CallKey) -> None: ...

    def forget_call(self, key: CallKey, session_id: str = "") -> None:
        """Finalization has begun, or nothing is kept of the call."""

    def share_entry(self, session_id: str, entry: bytes) -> None:
        """Share an entry of a call's journal."""

    # A call of any node

    async def fetch(self, key: CallKey) -> tuple[CallRecord, VoiceSession | None] | None:
        """Take over a call whose carrier requests new media here; None if no node has it."""
        return None

    async def forward(self, kind: NodeCommandKind, key: CallKey, text: str = "") -> bool:
        """Forward a carrier's report to the call's owner. False if no node knows the call."""
        return False

    async def session_of(self, record: CallRecord) -> VoiceSession | None:
        """The call's session with every turn that was shared."""
        return None

    async def is_ours(self, key: CallKey) -> bool:
        """Whether no other node owns the call. Waits until the store answers."""
        return True

    async def is_ours_now(self, key: CallKey) -> bool:
        """The same, as far as it is known within a moment."""
        return True

    async def wait_until_ended(self, key: CallKey) -> None: ...

    async def reclaim(self, key: CallKey, writer: str) -> Reclaim:
        """Decide about a call in this machine's journal, which the node `writer` wrote."""
        return Reclaim.RESUME

    async def is_alive(self, node: str) -> bool:
        """Whether that other node runs. Raises SharedStoreUnavailable."""
        return False

    async def is_new_event(self, event_id: str) -> bool:
        """Whether no node has seen this webhook event."""
        return True

    async def sessions_elsewhere(self) -> list[VoiceSession]:
        """The active calls of other nodes with the turns they shared, oldest first; without anonymous callers."""
        return []

    async def command(self, kind: NodeCommandKind, session_id: str, text: str = "") -> bool:
        """Have another node do this to its call. False if no node has it."""
        return False

    # Bearer tokens of calls, for LLM requests that reach any node

    def share_bearer(self, digest: str, agent: str, caller: str, tier: int) -> None: ...
    def withdraw_bearer(self, digest: str) -> None: ...

    async def find_bearer(self, digest: str) -> tuple[str, str, int] | None:
        return None


class SingleNode(Cluster):
    """A process without others."""


class ClusterNode(Cluster):
    """One of several nodes. `shares_disk`: the others are workers with the same DATA_DIR."""

    takes_over_calls = True

    def __init__(
        self, directory: CallDirectory, timeouts: ClusterTimeouts, *, sync_seconds: float, shares_disk: bool
    ) -> None:
        self.directory = directory
        self.node = directory.node
        self._timeouts = timeouts
        self._sync_seconds = sync_seconds
        self._shares_disk = shares_disk
        self._calls: LocalCalls | None = None
        self._counts: Callable[[], Mapping[str, int]] = dict

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.directory.run())
            group.create_task(self._repeat(self._heartbeat, self._timeouts.heartbeat, self._timeouts.fast_retry))

    async def listen(self, calls: LocalCalls, counts: Callable[[], Mapping[str, int]]) -> None:
        self._counts, self._calls = counts, calls
        async with asyncio.TaskGroup() as group:
            retry = self._timeouts.retry
            group.create_task(self._repeat(lambda: self._take_over(calls), self._timeouts.heartbeat, retry))
            group.create_task(self._repeat(lambda: self._receive(calls, group), 0, retry))
            group.create_task(self._write_checkpoints())

    async def close(self) -> None:
        """Write what is queued, and leave the cluster."""
        try:
            async with asyncio.timeout(self._timeouts.request):
                await self.directory.flushed()
                await self.directory.leave()
        except (SharedStoreUnavailable, TimeoutError):
            _log.warning("other nodes could not be informed that this one stops")

    # A call of this node

    async def claim(self, key: CallKey, groups: Mapping[str, int]) -> str | None:
        # Without the store, each node has its own limit.
        return await self._within(self._timeouts.request / 4, self.directory.claim(key, groups), otherwise=None)

    async def claim_dial(self, order_id: str, groups: Mapping[str, int], seconds: float) -> str | None:
        claim = self.directory.claim_dial(order_id, groups, seconds)
        return await self._within(self._timeouts.request / 4, claim, otherwise=None)

    async def release_dial(self, order_id: str, groups: Iterable[str]) -> None:
        release = self.directory.release_dial(order_id, groups)
        await self._within(self._timeouts.request / 4, release, otherwise=None)

    async def announce(self, record: CallRecord) -> CallRecord | None:
        return await self._within(self._timeouts.request, self.directory.open(record), otherwise=None)

    async def publish_token(self, record: CallRecord) -> bool:
        return await self._within(self._timeouts.request, self.directory.publish_token(record), otherwise=False)

    async def redeem(self, key: CallKey, started: StreamStarted, *, is_local: bool) -> CallRecord | None:
        try:
            async with asyncio.timeout(self._timeouts.token_request if is_local else self._timeouts.request):
                return await self.directory.redeem(key, started.token, started.account_id)
        except TimeoutError:
            raise SharedStoreUnavailable("no answer in time") from None

    def media_attached(self, key: CallKey) -> None:
        self.directory.media_attached(key)

    def stream_lost(self, record: CallRecord, session: VoiceSession | None) -> None:
        """Another node may continue the call, so every turn is written once more."""
        self.directory.update(record)
        if session is not None:
            self.directory.checkpoint(
                record.key, session.id, [*rows_of_turns(session.turns), *rows_beside_turns(session)]
            )

    def call_ended(self, key: CallKey) -> None:
        self.directory.ended(key)

    def forget_call(self, key: CallKey, session_id: str = "") -> None:
        self.directory.forget(key, session_id)

    def share_entry(self, session_id: str, entry: bytes) -> None:
        self.directory.append(session_id, entry)

    # A call of any node

    async def fetch(self, key: CallKey) -> tuple[CallRecord, VoiceSession | None] | None:
        give_up = _now() + self._timeouts.request
        while True:
            try:
                record = await self.directory.find(key)
                if record is None or record.state is CallState.ENDED:
                    return None
                released = record.node == self.node or await self.directory.release(record)
                return await self._adopt(key, record.node, released=released)
            except SharedStoreUnavailable as error:
                if _now() > give_up:
                    _log.warning("other nodes can't be asked for a call", extra={"reason": str(error)})
                    return None
            await asyncio.sleep(self._timeouts.fast_retry)

    async def forward(self, kind: NodeCommandKind, key: CallKey, text: str = "") -> bool:
        """Waits for the store as long as it takes: the carrier reports once. If the owner is dead, takes over."""

        async def forward() -> bool:
            record = await self.directory.find(key)
            if record is None:
                return False
            if record.node == self.node or record.state is CallState.ENDED:
                return True
            if await self.directory.deliver(record.node, kind, key, text):
                return True
            adopted = await self._adopt(key, record.node)
            if adopted is not None and self._calls is not None:
                self._calls.take_over(*adopted)
                if kind is NodeCommandKind.ENDED:
                    self._calls.carrier_ended(key)
                elif kind is NodeCommandKind.ANSWERED_BY:
                    self._calls.answered_by(key, AnsweredBy(text))
            return True

        return await self._when_reachable(forward)

    async def session_of(self, record: CallRecord) -> VoiceSession | None:
        if record.session is None:
            return None
        session = VoiceSession.from_json({**record.session, "turns": []})
        restore(session, await self.directory.journal(session.id))
        return session

    async def is_ours(self, key: CallKey) -> bool:
        record = await self._when_reachable(lambda: self.directory.find(key))
        return record is None or record.node == self.node

    async def is_ours_now(self, key: CallKey) -> bool:
        return await self._within(self._timeouts.request / 4, self.is_ours(key), otherwise=True)

    async def wait_until_ended(self, key: CallKey) -> None:
        while True:
            with contextlib.suppress(SharedStoreUnavailable):
                record = await self.directory.find(key)
                if record is None or record.state is CallState.ENDED:
                    return
            await asyncio.sleep(self._timeouts.end_poll)

    async def reclaim(self, key: CallKey, writer: str) -> Reclaim:
        async def decide() -> Reclaim:
            if self._shares_disk and await self.directory.alive(writer):
                return Reclaim.LEAVE
            claim = CallRecord(key, self.node, CallState.RECONNECTING)
            record = await self.directory.open(claim)  # one of several workers claims a call that no node knows
            if record == claim or await self.directory.adopt(key, writer) is not None:
                return Reclaim.RESUME
            return Reclaim.LEAVE if self._shares_disk or record.node == self.node else Reclaim.CONTRIBUTE

        return await self._when_reachable(decide)

    async def is_alive(self, node: str) -> bool:
        return await self.directory.alive(node)

    async def is_new_event(self, event_id: str) -> bool:
        is_new = self.directory.is_new_event(event_id, self._timeouts.keep_ended)
        return await self._within(self._timeouts.request / 2, is_new, otherwise=True)

    async def sessions_elsewhere(self) -> list[VoiceSession]:
        async def sessions() -> list[VoiceSession | None]:
            return [await self.session_of(record) for record in await self.directory.active_elsewhere()]

        found = await self._within(self._timeouts.request, sessions(), otherwise=[])
        return sorted(filter(None, found), key=lambda session: session.started_at)

    async def command(self, kind: NodeCommandKind, session_id: str, text: str = "") -> bool:
        async def deliver() -> bool:
            for record in await self.directory.active_elsewhere():
                if record.session is not None and record.session["id"] == session_id:
                    return await self.directory.deliver(record.node, kind, record.key, text)
            return False

        return await self._within(self._timeouts.request, deliver(), otherwise=False)

    # Bearer tokens

    def share_bearer(self, digest: str, agent: str, caller: str, tier: int) -> None:
        self.directory.share_bearer(digest, agent, caller, tier)

    def withdraw_bearer(self, digest: str) -> None:
        self.directory.withdraw_bearer(digest)

    async def find_bearer(self, digest: str) -> tuple[str, str, int] | None:
        try:
            return await self.directory.find_bearer(digest)
        except SharedStoreUnavailable:
            return None

    # Heartbeats, commands and failover

    async def _heartbeat(self) -> None:
        try:
            if await self.directory.heartbeat(self._counts()):
                await self.directory.republish()
                self._checkpoint()
            self.nodes = await self.directory.nodes()
            self.is_away = False
        except SharedStoreUnavailable:
            self.nodes, self.is_away = [], True
            raise

    async def _receive(self, calls: LocalCalls, group: asyncio.TaskGroup) -> None:
        command = await self.directory.next_command()
        if command is not None:  # in a task: the sender of the next one gives up after a second
            group.create_task(self._carry_out(calls, command))

    async def _carry_out(self, calls: LocalCalls, command: NodeCommand) -> None:
        match command.kind:
            case NodeCommandKind.ENDED:
                calls.carrier_ended(command.key)
            case NodeCommandKind.STREAM_FAILED:
                calls.stream_failed(command.key, command.text)
            case NodeCommandKind.TRANSFERRED | NodeCommandKind.TRANSFER_FAILED:
                calls.transfer_finished(command.key, answered=command.kind is NodeCommandKind.TRANSFERRED)
            case NodeCommandKind.ANSWERED_BY:
                calls.answered_by(command.key, AnsweredBy(command.text))
            case NodeCommandKind.RELEASE:
                await calls.release(command.key)
            case NodeCommandKind.END:
                calls.operator_ends(command.key)
            case NodeCommandKind.SAY:
                calls.operator_says(command.key, command.text)
            case NodeCommandKind.TAKEN:
                if not await self.is_ours(command.key) and not await self._take_back(calls, command.key):
                    self.directory.disown(command.key)
                    calls.drop(command.key)

    async def _take_back(self, calls: LocalCalls, key: CallKey) -> bool:
        """Take back a call that another node took while this one was unreachable, if only this one has media."""
        record = await self.directory.find(key)
        if record is None or record.state is not CallState.RECONNECTING or record.awaits_media:
            return False
        return calls.has_media(key) and await self.directory.adopt(key, record.node, state=CallState.ACTIVE) is not None

    async def _take_over(self, calls: LocalCalls) -> None:
        """
        Take over the calls of silent nodes.

        A silent node may be dead, or cut off from us and still talking to the caller. The carrier reports lost media
        and ended calls, and is asked whether this call has ended.
        """
        for key, node in await self.directory.orphans():
            record = await self.directory.find(key)
            if record is None or record.node == self.node:  # a takeover was interrupted
                if adopted := await self._adopt(key, node):
                    calls.take_over(*adopted)
                else:
                    await self.directory.remove_from(node, key)
                continue
            if record.node != node and await self.directory.alive(record.node):
                continue
            if record.state is not CallState.ENDED:
                if not await self.directory.is_new_event(f"look {key}", self._timeouts.takeover_check):
                    continue
                if await calls.may_be_alive(record):
                    continue
            if adopted := await self._adopt(key, record.node):
                session = adopted[1]
                call = {"call": call_name(session.id)} if session is not None else {}
                _log.warning("call of an unresponsive node taken over", extra={**call, "carrier": key[0]})
                WATCHDOG.labels("node silent").inc()
                calls.take_over(*adopted)

    async def _adopt(
        self, key: CallKey, former: str, *, released: bool = False
    ) -> tuple[CallRecord, VoiceSession | None] | None:
        """Take ownership. Unless its former owner `released` it, that node may have turns that are not known here."""
        record = await self.directory.adopt(key, former)
        session = await self.session_of(record) if record else None
        if session is not None:
            session.taken_over |= not released
            if self._shares_disk and self._calls is not None:
                await self._calls.restore_turns(session)
        return (record, session) if record else None

    async def _write_checkpoints(self) -> None:
        while True:
            await asyncio.sleep(self._sync_seconds)
            self._checkpoint()

    def _checkpoint(self) -> None:
        for key, session_id, entries in self._calls.checkpoints() if self._calls is not None else ():
            self.directory.checkpoint(key, session_id, entries)

    # An unreachable store

    async def _within(self, seconds: float, work: Awaitable[T], *, otherwise: T) -> T:
        """The result of `work`; `otherwise` if the store can't be reached within this time."""
        try:
            async with asyncio.timeout(seconds):
                return await work
        except (SharedStoreUnavailable, TimeoutError):
            return otherwise

    async def _when_reachable(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of `work`, which is repeated until the store answers."""
        while True:
            try:
                return await work()
            except SharedStoreUnavailable:
                await asyncio.sleep(self._timeouts.retry)

    async def _repeat(self, work: Callable[[], Awaitable[None]], pause: float, retry: float) -> None:
        while True:
            try:
                await work()
            except SharedStoreUnavailable:
                await asyncio.sleep(retry)  # the directory has logged it
            else:
                await asyncio.sleep(pause)


def _now() -> float:
    return asyncio.get_running_loop().time()
