"""
A call whose media stream was lost gets another one, or is given up.

Twilio requests /twilio/resume by itself when a stream ends (`asks_to_resume`); Telnyx is asked to start a new stream.
"""

import asyncio
import enum
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gateway import logs
from gateway.calls.call_factory import CallFactory
from gateway.calls.call_table import CallTable, CallTimeouts, ManagedCall
from gateway.calls.state import CallState
from gateway.cluster.node import Cluster
from gateway.errors import CarrierRefused, StreamInUse
from gateway.telephony.rest import CallControl

MAX_ATTEMPTS: Final = 3
"""New streams for one call in a row. A socket that fails at once must not keep a caller in silence."""

_log = logging.getLogger(__name__)


class RecoveryStep(enum.Enum):
    """What the owner of the call has to do next."""

    WAIT = enum.auto()
    """Nothing: the carrier acts next, or the call went on in another way."""
    RESTART = enum.auto()
    """Ask the carrier for a new stream."""
    CALLER_GONE = enum.auto()
    OWNED_ELSEWHERE = enum.auto()
    """Another node has the call."""
    GIVE_UP = enum.auto()
    """No stream can be had: end the call."""


@dataclass(frozen=True)
class StreamRecovery:
    """Decides about the calls of one node; their owner carries out each RecoveryStep."""

    table: CallTable
    controls: Mapping[str, CallControl]
    calls: CallFactory
    cluster: Cluster
    timeouts: CallTimeouts

    def stream_lost(self, call: ManagedCall) -> RecoveryStep:
        """The call has no media from now on."""
        self._wait_for_stream(call, CallState.RECONNECTING)
        if call.attempt >= MAX_ATTEMPTS:
            return RecoveryStep.GIVE_UP
        if not self.controls[call.key[0]].asks_to_resume:
            return RecoveryStep.RESTART
        call.liveness_check_at = _now() + self.timeouts.liveness_check
        return RecoveryStep.WAIT

    def transfer_started(self, call: ManagedCall) -> None:
        """The carrier calls the transfer target, and will report whether it answers."""
        self._wait_for_stream(call, CallState.TRANSFERRING)
        if call.session is not None:  # a restarted gateway must know that this call is not to be hung up
            self.calls.open_log(call.session, call)

    async def renew(self, call: ManagedCall) -> bool:
        """Open a token for the next stream. False if the call has ended, or has one already."""
        if not self.table.manages(call) or not call.awaits_stream:
            return False
        logs.set_call(call.session_id)
        call.renew_token(_now() + self.timeouts.token)
        self.calls.prepare(call)
        call.token_is_shared = await self.cluster.publish_token(call.record(self.cluster.node))
        _log.info("call goes on", extra={"carrier": call.key[0], "attempt": call.attempt})
        return True

    async def restart(self, call: ManagedCall) -> RecoveryStep:
        """Ask the carrier for a new stream, if the caller is still there."""
        logs.set_call(call.session_id)
        carrier, call_id = call.key
        control = self.controls[carrier]
        await asyncio.sleep(self.timeouts.hangup_grace)
        if await control.is_alive(call_id) is False:
            return RecoveryStep.CALLER_GONE
        if not await self.cluster.is_ours_now(call.key):
            return RecoveryStep.OWNED_ELSEWHERE
        if not await self.renew(call):
            return RecoveryStep.WAIT
        try:
            await control.restart_stream(call_id, stream_url=call.stream_url, replaces=not call.may_be_elsewhere)
        except CarrierRefused as error:
            _log.warning("no new stream", extra={"carrier": carrier, "reason": str(error)})
            if not self.table.manages(call) or call.state is not CallState.RECONNECTING:
                return RecoveryStep.WAIT
            if not (call.may_be_elsewhere and isinstance(error, StreamInUse)):
                return RecoveryStep.GIVE_UP
            # The stream may belong to another node, which still talks to the caller.
            call.attempt = 0
            call.close_token()
            call.deadline = _now() + self.timeouts.reconnect
        return RecoveryStep.WAIT

    async def check_alive(self, call: ManagedCall) -> RecoveryStep:
        """
        Ask the carrier whether the caller is still there.

        No webhook may ever report that they left: it came while the gateway was down, or the hangup broke the stream.
        """
        alive = await self.controls[call.key[0]].is_alive(call.key[1])
        if not self.table.manages(call) or not call.awaits_stream:
            return RecoveryStep.WAIT
        if alive is False:
            return RecoveryStep.CALLER_GONE
        if alive is None and not call.may_be_elsewhere:
            call.deadline = min(call.deadline, _now() + self.timeouts.liveness_unknown)
        return RecoveryStep.WAIT

    async def expire(self, call: ManagedCall) -> RecoveryStep:
        """
        No stream came before the deadline.

        A call that was taken over is not hung up while its carrier has it: its former node, which can't be asked, may
        still talk to the caller.
        """
        call.deadline = math.inf
        if (call.token_is_shared or call.attempt) and not await self.cluster.is_ours(call.key):
            return RecoveryStep.OWNED_ELSEWHERE
        control = self.controls[call.key[0]]
        gone = call.may_be_elsewhere and await control.is_alive(call.key[1]) is False
        if not self.table.manages(call) or call.deadline != math.inf or call.state is CallState.ACTIVE:
            return RecoveryStep.WAIT  # it went on while we asked
        if gone:
            return RecoveryStep.CALLER_GONE
        if not call.may_be_elsewhere:
            return RecoveryStep.GIVE_UP
        if not control.asks_to_resume:
            return self.stream_lost(call)
        call.close_token()
        call.deadline = _now() + self.timeouts.reconnect
        return RecoveryStep.WAIT

    def _wait_for_stream(self, call: ManagedCall, state: CallState) -> None:
        call.change_state(state)
        call.close_token()
        call.deadline = _now() + self.timeouts.reconnect
        self.cluster.stream_lost(call.record(self.cluster.node), call.session)


def _now() -> float:
    return asyncio.get_running_loop().time()
