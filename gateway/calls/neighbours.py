"""
One node among several: its calls made known, word passed on about the others', and a dead node's calls taken over.

The desk stays the only one that acts on calls; this is how it hears of other nodes and how they hear of it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from gateway.calls.commons import BEAT_SECONDS, CallRecord, CallState, Commons, Message, Word
from gateway.calls.journal import turns_of
from gateway.calls.registry import Ring
from gateway.calls.session import CallKey, VoiceSession
from gateway.carriers.events import StreamStarted
from gateway.errors import BoardUnavailable

KNOWN_PATIENCE: Final = 0.1
"""How long the board is asked about a call that this node knows itself: its settings leave within 150 ms."""
PATIENCE: Final = 2.0
RETRY_SECONDS: Final = 1.0

_log = logging.getLogger(__name__)


class Desk(Protocol):
    """What is done at this node about calls that others tell of."""

    def carrier_ended(self, key: CallKey) -> None: ...
    def stream_failed(self, key: CallKey) -> None: ...
    async def release(self, key: CallKey) -> None: ...
    def drop(self, key: CallKey) -> None: ...
    def take_up(self, record: CallRecord, session: VoiceSession | None) -> None: ...
    def checkpoint(self, commons: Commons) -> None: ...


class Neighbours:
    """The other nodes, as one of them sees them."""

    def __init__(self, commons: Commons, *, sync_seconds: float, shares_disk: bool = False) -> None:
        self.commons = commons
        self._sync_seconds = sync_seconds
        self._shares_disk = shares_disk

    async def run(self) -> None:
        """Until cancelled: be alive, and tell what there is to tell."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.commons.run())
            group.create_task(_again_and_again(self.commons.beat, BEAT_SECONDS))

    async def listen(self, desk: Desk) -> None:
        """Until cancelled: hear what others say, take over what the dead leave, write checkpoints."""
        async with asyncio.TaskGroup() as group:
            group.create_task(_again_and_again(lambda: self._take_over(desk), BEAT_SECONDS))
            group.create_task(_again_and_again(lambda: self._hear(desk), 0))
            group.create_task(self._write_checkpoints(desk))

    async def close(self) -> None:
        """Write what is queued, and go."""
        try:
            async with asyncio.timeout(PATIENCE):
                await self.commons.written()
                await self.commons.leave()
        except (BoardUnavailable, TimeoutError):
            _log.warning("other nodes could not be told that this one stops")

    # The desk's questions

    async def announce(self, ring: Ring) -> CallRecord | None:
        """Make a ringing call known. Returns what another node, or an earlier request here, has made of it."""
        session = _header_of(ring.session)
        record = CallRecord(
            ring.key,
            self.commons.node,
            CallState.RINGING,
            ring.account_id,
            ring.caller,
            ring.called,
            ring.media_url,
            ring.attempt,
            ring.token,
            session,
        )
        try:
            async with asyncio.timeout(PATIENCE):
                there = await self.commons.open(record)
        except (BoardUnavailable, TimeoutError):
            return None  # then it can only be answered here
        ring.shared = True
        return None if there == record else there

    async def announce_again(self, ring: Ring) -> None:
        """The call has a new token."""
        try:
            async with asyncio.timeout(PATIENCE):
                await self.commons.ring_again(ring.key, ring.token, ring.attempt)
                ring.shared = True
        except (BoardUnavailable, TimeoutError):
            pass  # then it can only go on here

    def parked(self, ring: Ring) -> None:
        """The call has lost its media."""
        self.commons.parked(ring.key, _header_of(ring.session))

    async def redeem(self, key: CallKey, started: StreamStarted, *, known: bool) -> CallRecord | None:
        """Spend a token, whichever node gave it. BoardUnavailable when that can't be asked in time."""
        try:
            async with asyncio.timeout(KNOWN_PATIENCE if known else PATIENCE):
                return await self.commons.redeem(key, started.token, started.account_id)
        except TimeoutError:
            raise BoardUnavailable("no answer in time") from None

    async def session_of(self, record: CallRecord) -> VoiceSession | None:
        """A call's session, with every turn that its node could share."""
        if record.session is None:
            return None
        session = VoiceSession.from_json({**record.session, "turns": []})
        session.turns = turns_of(await self.commons.turns(session.id))
        return session

    async def fetch(self, key: CallKey) -> tuple[CallRecord, VoiceSession | None] | None:
        """A call of another node's, whose carrier asks here for new media: it is this node's now."""
        try:
            record = await self.commons.find(key)
            if record is None or record.state is CallState.OVER:
                return None
            if record.node != self.commons.node:
                await self.commons.release(record)
            return await self._adopted(key, record.node)
        except BoardUnavailable as error:
            _log.warning("other nodes can't be asked for a call", extra={"reason": str(error)})
            return None

    async def pass_on(self, desk: Desk, word: Word, key: CallKey) -> bool:
        """Tell a call's node what its carrier says. If it is dead the call becomes ours. False: nobody knows it."""
        try:
            record = await self.commons.find(key)
            if record is None:
                return False
            if record.node == self.commons.node or record.state is CallState.OVER:
                return True
            if await self.commons.reached(record.node, word, key):
                return True
            if adopted := await self._adopted(key, record.node):
                desk.take_up(*adopted)
                if word is Word.ENDED:
                    desk.carrier_ended(key)
            return True
        except BoardUnavailable:
            return True  # its node will notice by itself

    async def is_ours(self, key: CallKey) -> bool:
        """Whether the call is still this node's; waits for an answer as long as it takes."""
        while True:
            try:
                record = await self.commons.find(key)
                return record is None or record.node == self.commons.node
            except BoardUnavailable:
                await asyncio.sleep(RETRY_SECONDS)

    async def reclaim(self, key: CallKey, writer: str) -> bool | None:
        """
        Whether a call in this machine's journal is to be taken up here; if not, whether it is to be forgotten.

        `writer` is the process that wrote it: a dead one, unless it is a worker that shares the journal. None: somebody
        sees to it who needs that journal.
        """
        while True:
            try:
                if self._shares_disk and await self.commons.alive(writer):
                    return None
                record = await self.commons.find(key)
                if record is None or await self.commons.adopt(key, writer) is not None:
                    return True
                return None if self._shares_disk or record.node == self.commons.node else False
            except BoardUnavailable:
                await asyncio.sleep(RETRY_SECONDS)

    async def is_new_event(self, event_id: str) -> bool:
        try:
            async with asyncio.timeout(PATIENCE / 2):
                return await self.commons.is_new_event(event_id)
        except (BoardUnavailable, TimeoutError):
            return True

    # At work

    async def _hear(self, desk: Desk) -> None:
        message = await self.commons.next_message()
        if message is not None:
            await self._act(desk, message)

    async def _act(self, desk: Desk, message: Message) -> None:
        match message.word:
            case Word.ENDED:
                desk.carrier_ended(message.key)
            case Word.STREAM_FAILED:
                desk.stream_failed(message.key)
            case Word.RELEASE:
                await desk.release(message.key)
            case Word.TAKEN:
                if not await self.is_ours(message.key):
                    desk.drop(message.key)

    async def _take_over(self, desk: Desk) -> None:
        for key, node in await self.commons.orphans():
            if adopted := await self._adopted(key, node):
                _log.warning("a call's node died", extra={"carrier": key[0]})
                desk.take_up(*adopted)

    async def _adopted(self, key: CallKey, former: str) -> tuple[CallRecord, VoiceSession | None] | None:
        record = await self.commons.adopt(key, former)
        return (record, await self.session_of(record)) if record else None

    async def _write_checkpoints(self, desk: Desk) -> None:
        while True:
            await asyncio.sleep(self._sync_seconds)
            desk.checkpoint(self.commons)


def _header_of(session: VoiceSession | None) -> dict[str, object] | None:
    return {**session.as_json(), "turns": []} if session is not None else None


async def _again_and_again(work: Callable[[], Awaitable[None]], pause: float) -> None:
    while True:
        try:
            await work()
        except BoardUnavailable:
            await asyncio.sleep(RETRY_SECONDS)  # the writer of the queue has said so
        await asyncio.sleep(pause)
