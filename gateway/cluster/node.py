"""
One node among several: its calls made known, word passed on about the others', and a dead node's calls taken over.

The desk stays the only one that acts on calls; this is how it hears of other nodes and how they hear of it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

from gateway.calls.pending_call import PendingCall
from gateway.cluster.directory import BEAT_SECONDS, CallDirectory, CallRecord, CallState, NodeCommand, NodeCommandKind
from gateway.errors import SharedStoreUnavailable
from gateway.history.call_log import restore, rows_beside_turns, rows_of_turns
from gateway.logs import call_name
from gateway.metrics import WATCHDOG
from gateway.session import CallKey, VoiceSession
from gateway.telephony.events import StreamStarted

KNOWN_PATIENCE: Final = 0.1
"""How long the board is asked about a call that this node knows itself: its settings leave within 150 ms."""
PATIENCE: Final = 2.0
RETRY_SECONDS: Final = 1.0
ASK_AGAIN_SECONDS: Final = 0.2
"""The same, while a caller waits, and for a sign of life."""
LOOK_SECONDS: Final = 3.0
"""How often some node asks the carrier about a call whose node is silent."""
OVER_LOOK_SECONDS: Final = 5.0

_log = logging.getLogger(__name__)


class LocalCalls(Protocol):
    """What is done at this node about calls that others tell of."""

    def carrier_ended(self, key: CallKey) -> None: ...
    def stream_failed(self, key: CallKey, token: str = "") -> None: ...
    def transferred(self, key: CallKey) -> None: ...
    def transfer_failed(self, key: CallKey) -> None: ...
    async def release(self, key: CallKey) -> None: ...
    def drop(self, key: CallKey) -> None: ...
    def operator_ends(self, key: CallKey) -> None: ...
    def operator_says(self, key: CallKey, words: str) -> None: ...
    def take_up(self, record: CallRecord, session: VoiceSession | None) -> None: ...
    async def recollect(self, session: VoiceSession) -> None: ...
    async def may_go_on_there(self, record: CallRecord) -> bool: ...
    def has_media(self, key: CallKey) -> bool: ...
    def checkpoint(self, directory: CallDirectory) -> None: ...


class ClusterNode:
    """
    The other nodes, as one of them sees them.

    `nodes` are those alive at the last beat, this one among them, each with its figures; none while nobody can tell.
    """

    def __init__(self, directory: CallDirectory, *, sync_seconds: float, shares_disk: bool = False) -> None:
        self.directory = directory
        self.nodes: list[dict[str, Any]] = []
        self._figures: Callable[[], Mapping[str, int]] = dict
        self._sync_seconds = sync_seconds
        self._shares_disk = shares_disk
        self._manager: LocalCalls | None = None

    async def run(self) -> None:
        """Until cancelled: be alive, and tell what there is to tell."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.directory.run())
            group.create_task(_again_and_again(self._beat, BEAT_SECONDS, retry=ASK_AGAIN_SECONDS))

    async def listen(self, manager: LocalCalls, figures: Callable[[], Mapping[str, int]]) -> None:
        """
        Until cancelled: hear what others say, take over what the dead leave, write checkpoints.

        `figures` is what the others are told about this node's work.
        """
        self._figures, self._manager = figures, manager
        async with asyncio.TaskGroup() as group:
            group.create_task(_again_and_again(lambda: self._take_over(manager), BEAT_SECONDS))
            group.create_task(_again_and_again(lambda: self._hear(manager, group), 0))
            group.create_task(self._write_checkpoints(manager))

    async def close(self) -> None:
        """Write what is queued, and go."""
        try:
            async with asyncio.timeout(PATIENCE):
                await self.directory.written()
                await self.directory.leave()
        except (SharedStoreUnavailable, TimeoutError):
            _log.warning("other nodes could not be told that this one stops")

    # The desk's questions

    async def announce(self, pending: PendingCall) -> CallRecord | None:
        """Make a ringing call known. Returns what another node, or an earlier request here, has made of it."""
        record = self._record_of(pending, CallState.RINGING)
        try:
            async with asyncio.timeout(PATIENCE):
                there = await self.directory.open(record)
        except (SharedStoreUnavailable, TimeoutError):
            return None  # then it can only be answered here
        pending.shared = True
        return None if there == record else there

    async def announce_again(self, pending: PendingCall) -> None:
        """The call has a new token."""
        try:
            async with asyncio.timeout(PATIENCE):
                await self.directory.ring_again(self._record_of(pending, CallState.RINGING))
                pending.shared = True
        except (SharedStoreUnavailable, TimeoutError):
            pass  # then it can only go on here

    def parked(self, pending: PendingCall) -> None:
        """The call has lost its media. Another node may go on with it, so every turn is told again."""
        self.directory.parked(self._record_of(pending, CallState.PARKED))
        if pending.session is not None:
            entries = [*rows_of_turns(pending.session.turns), *rows_beside_turns(pending.session)]
            self.directory.checkpoint(pending.key, pending.session.id, entries)

    async def redeem(self, key: CallKey, started: StreamStarted, *, known: bool) -> CallRecord | None:
        """Spend a token, whichever node gave it. SharedStoreUnavailable when that can't be asked in time."""
        try:
            async with asyncio.timeout(KNOWN_PATIENCE if known else PATIENCE):
                return await self.directory.redeem(key, started.token, started.account_id)
        except TimeoutError:
            raise SharedStoreUnavailable("no answer in time") from None

    async def session_of(self, record: CallRecord) -> VoiceSession | None:
        """A call's session, with every turn that its node could share."""
        if record.session is None:
            return None
        session = VoiceSession.from_json({**record.session, "turns": []})
        entries = await self.directory.turns(session.id)
        restore(session, entries)
        return session

    async def fetch(self, key: CallKey) -> tuple[CallRecord, VoiceSession | None] | None:
        """A call of another node's, whose carrier asks here for new media: it is this node's now."""
        give_up = asyncio.get_running_loop().time() + PATIENCE
        while True:
            try:
                return await self._fetched(key)
            except SharedStoreUnavailable as error:
                if asyncio.get_running_loop().time() > give_up:
                    _log.warning("other nodes can't be asked for a call", extra={"reason": str(error)})
                    return None
            await asyncio.sleep(ASK_AGAIN_SECONDS)

    async def _fetched(self, key: CallKey) -> tuple[CallRecord, VoiceSession | None] | None:
        record = await self.directory.find(key)
        if record is None or record.state is CallState.OVER:
            return None
        heard = record.node == self.directory.node or await self.directory.release(record)
        return await self._adopted(key, record.node, heard=heard)

    async def pass_on(self, manager: LocalCalls, word: NodeCommandKind, key: CallKey, text: str = "") -> bool:
        """
        Tell a call's node what its carrier says. If it is dead the call becomes ours. False: nobody knows it.

        Waits for the board as long as it takes: the carrier says it once, and the call's node may be dead.
        """
        while True:
            try:
                return await self._passed_on(manager, word, key, text)
            except SharedStoreUnavailable:
                await asyncio.sleep(RETRY_SECONDS)

    async def _passed_on(self, manager: LocalCalls, word: NodeCommandKind, key: CallKey, text: str) -> bool:
        record = await self.directory.find(key)
        if record is None:
            return False
        if record.node == self.directory.node or record.state is CallState.OVER:
            return True
        if await self.directory.reached(record.node, word, key, text):
            return True
        if adopted := await self._adopted(key, record.node):
            manager.take_up(*adopted)
            if word is NodeCommandKind.ENDED:
                manager.carrier_ended(key)
        return True

    async def is_ours(self, key: CallKey) -> bool:
        """Whether the call is still this node's; waits for an answer as long as it takes."""
        while True:
            try:
                record = await self.directory.find(key)
                return record is None or record.node == self.directory.node
            except SharedStoreUnavailable:
                await asyncio.sleep(RETRY_SECONDS)

    async def is_ours_now(self, key: CallKey) -> bool:
        """The same, as far as can be told at once."""
        try:
            async with asyncio.timeout(PATIENCE / 4):
                return await self.is_ours(key)
        except TimeoutError:
            return True

    async def until_over(self, key: CallKey) -> None:
        """Wait until the call has ended, whoever had it last."""
        while True:
            with contextlib.suppress(SharedStoreUnavailable):
                record = await self.directory.find(key)
                if record is None or record.state is CallState.OVER:
                    return
            await asyncio.sleep(OVER_LOOK_SECONDS)

    async def reclaim(self, key: CallKey, writer: str) -> bool | None:
        """
        Whether a call in this machine's journal is to be taken up here; if not, whether it is to be forgotten.

        `writer` is the process that wrote it: a dead one, unless it is a worker that shares the journal. None: somebody
        sees to it who needs that journal.
        """
        while True:
            try:
                if self._shares_disk and await self.directory.alive(writer):
                    return None
                claim = CallRecord(key, self.directory.node, CallState.PARKED)
                record = await self.directory.open(claim)  # of several workers one takes up what nobody knows of
                if record == claim or await self.directory.adopt(key, writer) is not None:
                    return True
                return None if self._shares_disk or record.node == self.directory.node else False
            except SharedStoreUnavailable:
                await asyncio.sleep(RETRY_SECONDS)

    async def is_new_event(self, event_id: str) -> bool:
        try:
            async with asyncio.timeout(PATIENCE / 2):
                return await self.directory.is_new_event(event_id)
        except (SharedStoreUnavailable, TimeoutError):
            return True

    # An operator's wishes

    async def sessions_elsewhere(self) -> list[VoiceSession]:
        """The calls of other nodes, with what was said as far as it is shared. Nameless callers' are not among them."""
        try:
            async with asyncio.timeout(PATIENCE):
                found = [await self.session_of(record) for record in await self.directory.live_elsewhere()]
        except (SharedStoreUnavailable, TimeoutError):
            return []  # it is a picture of what goes on here, then
        return sorted(filter(None, found), key=lambda session: session.started_at)

    async def have(self, word: NodeCommandKind, session_id: str, text: str = "") -> bool:
        """Have another node do this to a call of its; whether there is one, and it was told."""
        try:
            async with asyncio.timeout(PATIENCE):
                for record in await self.directory.live_elsewhere():
                    if record.session is not None and record.session["id"] == session_id:
                        return await self.directory.reached(record.node, word, record.key, text)
        except (SharedStoreUnavailable, TimeoutError):
            pass
        return False

    # At work

    async def _beat(self) -> None:
        try:
            if await self.directory.beat(self._figures()):
                await self.directory.mend()
                if self._manager is not None:
                    self._manager.checkpoint(self.directory)
            self.nodes = await self.directory.nodes()
        except SharedStoreUnavailable:
            self.nodes = []
            raise

    async def _hear(self, manager: LocalCalls, group: asyncio.TaskGroup) -> None:
        message = await self.directory.next_message()
        if message is not None:  # to act may take seconds, and who sent the next one takes us for dead after one
            group.create_task(self._act(manager, message))

    async def _act(self, manager: LocalCalls, message: NodeCommand) -> None:
        match message.word:
            case NodeCommandKind.ENDED:
                manager.carrier_ended(message.key)
            case NodeCommandKind.STREAM_FAILED:
                manager.stream_failed(message.key, message.text)
            case NodeCommandKind.TRANSFERRED:
                manager.transferred(message.key)
            case NodeCommandKind.TRANSFER_FAILED:
                manager.transfer_failed(message.key)
            case NodeCommandKind.RELEASE:
                await manager.release(message.key)
            case NodeCommandKind.END:
                manager.operator_ends(message.key)
            case NodeCommandKind.SAY:
                manager.operator_says(message.key, message.text)
            case NodeCommandKind.TAKEN:
                if not await self.is_ours(message.key) and not await self._taken_back(manager, message.key):
                    self.directory.lost(message.key)
                    manager.drop(message.key)

    async def _taken_back(self, manager: LocalCalls, key: CallKey) -> bool:
        """A call that was taken from us while we were out of reach, but has its media here and nowhere else."""
        record = await self.directory.find(key)
        if record is None or record.state is not CallState.PARKED or not manager.has_media(key):
            return False
        return await self.directory.adopt(key, record.node, state=CallState.LIVE) is not None

    async def _take_over(self, manager: LocalCalls) -> None:
        for key, node in await self.directory.orphans():
            record = await self.directory.find(key)
            if record is None or record.node == self.directory.node:
                await self._finish_adoption(manager, key, node)
            elif record.node == node or not await self.directory.alive(record.node):
                await self._take_over_one(manager, record)

    async def _finish_adoption(self, manager: LocalCalls, key: CallKey, node: str) -> None:
        """It is no longer that node's; we may have been interrupted while we took it."""
        if adopted := await self._adopted(key, node):
            manager.take_up(*adopted)
        else:
            await self.directory.disown(key, node)

    async def _take_over_one(self, manager: LocalCalls, record: CallRecord) -> None:
        """
        A call whose node is silent. It may be dead, or only out of our reach and talking to the caller.

        The carrier knows: it tells when the media is lost, or the call has ended, and is asked whether it has.
        """
        over = record.state is CallState.OVER
        if not over:
            if not await self.directory.is_new_event(f"look {record.key}", LOOK_SECONDS):
                return
            if await manager.may_go_on_there(record):
                return
        if adopted := await self._adopted(record.key, record.node):
            session = adopted[1]
            call = {"call": call_name(session.id)} if session is not None else {}
            _log.warning("a call's node is silent, and its call taken over", extra={**call, "carrier": record.key[0]})
            WATCHDOG.labels("node silent").inc()
            manager.take_up(*adopted)

    async def _adopted(
        self, key: CallKey, former: str, *, heard: bool = False
    ) -> tuple[CallRecord, VoiceSession | None] | None:
        """A call that is ours now. Whoever had it was `heard`, or may know more of what was said."""
        record = await self.directory.adopt(key, former)
        session = await self.session_of(record) if record else None
        if session is not None:
            session.taken_over |= not heard
            if self._shares_disk and self._manager is not None:
                await self._manager.recollect(session)
        return (record, session) if record else None

    def _record_of(self, pending: PendingCall, state: CallState) -> CallRecord:
        return CallRecord(
            pending.key,
            self.directory.node,
            state,
            pending.account_id,
            pending.caller,
            pending.called,
            pending.media_url,
            pending.attempt,
            pending.token,
            {**pending.session.as_json(), "turns": []} if pending.session is not None else None,
            pending.number,
            pending.access.level,
            pending.handed_over,
            pending.order.as_json() if pending.order is not None else None,
        )

    async def _write_checkpoints(self, manager: LocalCalls) -> None:
        while True:
            await asyncio.sleep(self._sync_seconds)
            manager.checkpoint(self.directory)


async def _again_and_again(work: Callable[[], Awaitable[None]], pause: float, *, retry: float = RETRY_SECONDS) -> None:
    while True:
        try:
            await work()
        except SharedStoreUnavailable:
            await asyncio.sleep(retry)  # the writer of the queue has said so
        else:
            await asyncio.sleep(pause)
