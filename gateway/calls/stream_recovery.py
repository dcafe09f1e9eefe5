"""Calls that have lost their media: they wait here for another stream, until they get one or nobody comes for them."""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import Final, Protocol

from gateway import logs
from gateway.calls.background_tasks import BackgroundTasks
from gateway.calls.call_finisher import CallFinisher
from gateway.calls.call_resources import CallResources
from gateway.calls.call_table import (
    ASK_SECONDS,
    RESUME_SECONDS,
    RESUME_TRIES,
    TOKEN_SECONDS,
    UNHEARD_SECONDS,
    CallTable,
)
from gateway.calls.pending_call import PendingCall
from gateway.cluster.node import ClusterNode
from gateway.errors import CarrierRefused, StreamInUse
from gateway.metrics import WATCHDOG
from gateway.session import CallKey, EndReason, VoiceSession
from gateway.telephony.rest import CallControl

HANGUP_GRACE: Final = 1.0
"""A stream that stopped is usually the first sign of a hangup; the carrier gets so long to say so."""
RESTART_PAUSE: Final = 1.0

_log = logging.getLogger(__name__)


class RecoveryEvents(Protocol):
    """What is done about a call of which the carrier, or another node, says more."""

    def carrier_ended(self, key: CallKey) -> None: ...
    def drop(self, key: CallKey) -> None: ...
    def stream_failed(self, key: CallKey, token: str = "") -> None: ...


class StreamRecovery:
    """One node's. Of a carrier that does not ask to resume, a new stream is asked."""

    def __init__(
        self,
        manager: RecoveryEvents,
        call_table: CallTable,
        controls: Mapping[str, CallControl],
        resources: CallResources,
        call_finisher: CallFinisher,
        background_tasks: BackgroundTasks,
        cluster: ClusterNode | None,
    ) -> None:
        self._manager = manager
        self._call_table = call_table
        self._controls = controls
        self._resources = resources
        self._call_finisher = call_finisher
        self._background_tasks = background_tasks
        self._cluster = cluster

    # In and out

    def park(self, pending: PendingCall, session: VoiceSession | None) -> None:
        pending.session = session
        self._call_table.park(pending, _now() + RESUME_SECONDS)
        if self._cluster is not None:
            self._cluster.parked(pending)
        if pending.handed_over:  # the carrier tells whether somebody picks up
            if session is not None:
                self._resources.open_log(session, pending)
            return
        if pending.attempt >= RESUME_TRIES:
            self._call_table.ended(pending.key, _now())
            self.give_up(pending)
        elif self._controls[pending.key[0]].asks_to_resume:
            pending.ask_at = _now() + ASK_SECONDS
        else:
            self.restart_stream(pending)

    def park_orphan(self, pending: PendingCall, session: VoiceSession) -> None:
        """The same for a call whose process died."""
        self.park(pending, session)
        self.ask_if_alive(pending)

    def ask_if_alive(self, pending: PendingCall) -> None:
        """Nobody may ever tell us that the caller has gone: after a restart, or where a hangup broke the stream."""
        self._background_tasks.send(self._ask_if_alive(pending))

    def restart_stream(self, pending: PendingCall) -> None:
        """Ask the carrier for a new stream, if the caller is still there."""
        self._background_tasks.send(self._restart_stream(pending))

    async def ring_again(self, key: CallKey) -> PendingCall | None:
        """The call goes on: it rings, with a new token. None where it is not parked here."""
        parked = self._call_table.unpark(key)
        if parked is None:
            return None
        logs.concerns(parked.session_id)
        again = parked.again(expires=_now() + TOKEN_SECONDS)
        self._resources.prepare(again)
        self._call_table.add_ring(again)
        if self._cluster is not None:
            await self._cluster.announce_again(again)
        _log.info("call goes on", extra={"carrier": key[0], "attempt": again.attempt})
        return again

    def abandon(self, pending: PendingCall) -> None:
        """Nobody came for a call: it is over, unless it has gone on at another node."""
        self._background_tasks.send(self._abandon(pending))

    def give_up(self, pending: PendingCall) -> None:
        """No media came for it: the call is of no use any more, to us or to the caller."""
        WATCHDOG.labels("no media for a call").inc()
        fields = {"call": logs.call_name(pending.session_id), "carrier": pending.key[0]}
        _log.warning("no media came for a call", extra=fields)
        self._call_finisher.settle(pending, EndReason.STREAM_LOST)
        self._background_tasks.send(self.hang_up(pending.key))

    def dismiss(self) -> None:
        """The gateway stops, and nobody will be here when their media comes: nobody is left in silence."""
        for pending in self._call_table.without_media():
            self._call_table.ended(pending.key, _now())
            self._call_finisher.settle(pending, EndReason.TRANSFERRED if pending.handed_over else EndReason.SHUTDOWN)
            if not pending.handed_over:  # that would cut off whoever they were put through to
                self._background_tasks.send(self.hang_up(pending.key))

    async def hang_up(self, key: CallKey) -> None:
        if not await self.is_ours(key):
            return
        with contextlib.suppress(CarrierRefused):  # nobody is on the line to miss it
            await self._controls[key[0]].hang_up(key[1])

    async def is_ours(self, key: CallKey) -> bool:
        """Whether no other node has the call, as far as can be told at once."""
        return self._cluster is None or await self._cluster.is_ours_now(key)

    # Errands

    async def _ask_if_alive(self, pending: PendingCall) -> None:
        carrier, call_id = pending.key
        alive = await self._controls[carrier].is_alive(call_id)
        if not self._call_table.is_parked(pending.key):  # it has gone on meanwhile
            return
        if alive is False:
            self._manager.carrier_ended(pending.key)
        elif alive is None and not pending.adopted:
            pending.expires = min(pending.expires, _now() + UNHEARD_SECONDS)

    async def _restart_stream(self, pending: PendingCall) -> None:
        logs.concerns(pending.session_id)
        carrier, call_id = pending.key
        control = self._controls[carrier]
        await asyncio.sleep(HANGUP_GRACE if pending.attempt == 0 else RESTART_PAUSE)
        if await control.is_alive(call_id) is False:
            self._manager.carrier_ended(pending.key)
        elif not await self.is_ours(pending.key):  # it went there with this stream, and we were not told in time
            self._manager.drop(pending.key)
            self._manager.stream_failed(pending.key, pending.token)
        elif again := await self.ring_again(pending.key):  # else it ended meanwhile
            try:
                await control.restart_stream(call_id, stream_url=again.stream_url, replaces=not again.adopted)
            except CarrierRefused as error:
                _log.warning("no new stream", extra={"carrier": carrier, "reason": str(error)})
                if again.adopted and isinstance(error, StreamInUse):  # perhaps another node's, which has the caller
                    again.attempt = 0
                    self._call_table.park(again, _now() + RESUME_SECONDS)
                else:
                    self._call_table.ended(pending.key, _now())
                    self.give_up(again)

    async def _abandon(self, pending: PendingCall) -> None:
        if pending.handed_over:  # to hang up would cut off whoever it was put through to
            self._call_finisher.settle(pending, EndReason.TRANSFERRED)
        elif (
            self._cluster is None or not (pending.shared or pending.attempt) or await self._cluster.is_ours(pending.key)
        ):
            await self._wait_on(pending) if pending.adopted else self.give_up(pending)
        else:
            self._call_finisher.let_go(pending)

    async def _wait_on(self, pending: PendingCall) -> None:
        """
        Nobody came here for a call that was another node's: that one may have it still, and can't be asked.

        So it is not hung up while the carrier has it. One that asks to resume will; of another a stream is asked again.
        """
        carrier, call_id = pending.key
        control = self._controls[carrier]
        if await control.is_alive(call_id) is False:
            self._call_table.ended(pending.key, _now())
            self._call_finisher.settle(pending, EndReason.CALLER_HUNG_UP)
        elif control.asks_to_resume:
            self._call_table.park(pending, _now() + RESUME_SECONDS)
        else:
            self.park(pending, pending.session)


def _now() -> float:
    return asyncio.get_running_loop().time()
