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
        desk: RecoveryEvents,
        registry: CallTable,
        controls: Mapping[str, CallControl],
        provisions: CallResources,
        departures: CallFinisher,
        errands: BackgroundTasks,
        neighbours: ClusterNode | None,
    ) -> None:
        self._desk = desk
        self._registry = registry
        self._controls = controls
        self._provisions = provisions
        self._departures = departures
        self._errands = errands
        self._neighbours = neighbours

    # In and out

    def park(self, ring: PendingCall, session: VoiceSession | None) -> None:
        ring.session = session
        self._registry.park(ring, _now() + RESUME_SECONDS)
        if self._neighbours is not None:
            self._neighbours.parked(ring)
        if ring.handed_over:  # the carrier tells whether somebody picks up
            if session is not None:
                self._provisions.journal(session, ring)
            return
        if ring.attempt >= RESUME_TRIES:
            self._registry.ended(ring.key, _now())
            self.give_up(ring)
        elif self._controls[ring.key[0]].asks_to_resume:
            ring.ask_at = _now() + ASK_SECONDS
        else:
            self.restart_stream(ring)

    def park_orphan(self, ring: PendingCall, session: VoiceSession) -> None:
        """The same for a call whose process died."""
        self.park(ring, session)
        self.ask_if_alive(ring)

    def ask_if_alive(self, ring: PendingCall) -> None:
        """Nobody may ever tell us that the caller has gone: after a restart, or where a hangup broke the stream."""
        self._errands.send(self._ask_if_alive(ring))

    def restart_stream(self, ring: PendingCall) -> None:
        """Ask the carrier for a new stream, if the caller is still there."""
        self._errands.send(self._restart_stream(ring))

    async def ring_again(self, key: CallKey) -> PendingCall | None:
        """The call goes on: it rings, with a new token. None where it is not parked here."""
        parked = self._registry.unpark(key)
        if parked is None:
            return None
        logs.concerns(parked.session_id)
        again = parked.again(expires=_now() + TOKEN_SECONDS)
        self._provisions.prepare(again)
        self._registry.add_ring(again)
        if self._neighbours is not None:
            await self._neighbours.announce_again(again)
        _log.info("call goes on", extra={"carrier": key[0], "attempt": again.attempt})
        return again

    def abandon(self, ring: PendingCall) -> None:
        """Nobody came for a call: it is over, unless it has gone on at another node."""
        self._errands.send(self._abandon(ring))

    def give_up(self, ring: PendingCall) -> None:
        """No media came for it: the call is of no use any more, to us or to the caller."""
        WATCHDOG.count("no media for a call")
        fields = {"call": logs.call_name(ring.session_id), "carrier": ring.key[0]}
        _log.warning("no media came for a call", extra=fields)
        self._departures.settle(ring, EndReason.STREAM_LOST)
        self._errands.send(self.hang_up(ring.key))

    def dismiss(self) -> None:
        """The gateway stops, and nobody will be here when their media comes: nobody is left in silence."""
        for ring in self._registry.without_media():
            self._registry.ended(ring.key, _now())
            self._departures.settle(ring, EndReason.TRANSFERRED if ring.handed_over else EndReason.SHUTDOWN)
            if not ring.handed_over:  # that would cut off whoever they were put through to
                self._errands.send(self.hang_up(ring.key))

    async def hang_up(self, key: CallKey) -> None:
        if not await self.is_ours(key):
            return
        with contextlib.suppress(CarrierRefused):  # nobody is on the line to miss it
            await self._controls[key[0]].hang_up(key[1])

    async def is_ours(self, key: CallKey) -> bool:
        """Whether no other node has the call, as far as can be told at once."""
        return self._neighbours is None or await self._neighbours.is_ours_now(key)

    # Errands

    async def _ask_if_alive(self, ring: PendingCall) -> None:
        carrier, call_id = ring.key
        alive = await self._controls[carrier].is_alive(call_id)
        if not self._registry.is_parked(ring.key):  # it has gone on meanwhile
            return
        if alive is False:
            self._desk.carrier_ended(ring.key)
        elif alive is None and not ring.adopted:
            ring.expires = min(ring.expires, _now() + UNHEARD_SECONDS)

    async def _restart_stream(self, ring: PendingCall) -> None:
        logs.concerns(ring.session_id)
        carrier, call_id = ring.key
        control = self._controls[carrier]
        await asyncio.sleep(HANGUP_GRACE if ring.attempt == 0 else RESTART_PAUSE)
        if await control.is_alive(call_id) is False:
            self._desk.carrier_ended(ring.key)
        elif not await self.is_ours(ring.key):  # it went there with this stream, and we were not told in time
            self._desk.drop(ring.key)
            self._desk.stream_failed(ring.key, ring.token)
        elif again := await self.ring_again(ring.key):  # else it ended meanwhile
            try:
                await control.restart_stream(call_id, stream_url=again.stream_url, replaces=not again.adopted)
            except CarrierRefused as error:
                _log.warning("no new stream", extra={"carrier": carrier, "reason": str(error)})
                if again.adopted and isinstance(error, StreamInUse):  # perhaps another node's, which has the caller
                    again.attempt = 0
                    self._registry.park(again, _now() + RESUME_SECONDS)
                else:
                    self._registry.ended(ring.key, _now())
                    self.give_up(again)

    async def _abandon(self, ring: PendingCall) -> None:
        if ring.handed_over:  # to hang up would cut off whoever it was put through to
            self._departures.settle(ring, EndReason.TRANSFERRED)
        elif self._neighbours is None or not (ring.shared or ring.attempt) or await self._neighbours.is_ours(ring.key):
            await self._wait_on(ring) if ring.adopted else self.give_up(ring)
        else:
            self._departures.let_go(ring)

    async def _wait_on(self, ring: PendingCall) -> None:
        """
        Nobody came here for a call that was another node's: that one may have it still, and can't be asked.

        So it is not hung up while the carrier has it. One that asks to resume will; of another a stream is asked again.
        """
        carrier, call_id = ring.key
        control = self._controls[carrier]
        if await control.is_alive(call_id) is False:
            self._registry.ended(ring.key, _now())
            self._departures.settle(ring, EndReason.CALLER_HUNG_UP)
        elif control.asks_to_resume:
            self._registry.park(ring, _now() + RESUME_SECONDS)
        else:
            self.park(ring, ring.session)


def _now() -> float:
    return asyncio.get_running_loop().time()
