"""
CallManager accepts calls, attaches each media stream to its call, and submits every ended call to finalization.

Webhook handlers and media sockets call it; it contains neither HTTP nor any carrier's protocol. A call's states are in
`state.py`, its data in `call_table.py`, and the replacement of lost streams in `stream_recovery.py`.
"""

import asyncio
import contextlib
import enum
import functools
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from gateway import logs
from gateway.agents import Agent, AgentDirectory
from gateway.calls.call import Call
from gateway.calls.call_factory import CallFactory
from gateway.calls.call_table import CallTable, CallTimeouts, ManagedCall
from gateway.calls.monitoring import CallMonitor
from gateway.calls.operator import OperatorControl
from gateway.calls.outbound import OutboundCall, speaker
from gateway.calls.state import CallState
from gateway.calls.stream_recovery import RecoveryStep, StreamRecovery
from gateway.cluster.directory import ALL_CALLS, CallRecord, NodeCommandKind
from gateway.cluster.node import Cluster, Reclaim
from gateway.engines.interface import SET_UP_ENGINE
from gateway.errors import CarrierRefused, SharedStoreUnavailable
from gateway.finalization.worker import FinalizationWorker
from gateway.history.call_log import RecoveredCall
from gateway.history.live_events import CallEvents
from gateway.logs import BurstLogger, last_four
from gateway.memory.identity import identifier
from gateway.metrics import REFUSED, WATCHDOG
from gateway.session import CallKey, EndReason, VoiceSession
from gateway.telephony.codec import StreamStarted
from gateway.telephony.machine_detection import AnsweredBy
from gateway.telephony.media_stream import MediaStream
from gateway.telephony.phone_numbers import AllowList, Attestation, caller_id
from gateway.telephony.rest import CallControl
from gateway.tools.executor import run_end_function

TICK_GROUPS: Final = 10
LAG_WINDOW: Final = 60.0
AUDIBLE_LAG: Final = 0.25
"""A delay of the event loop, in seconds, that callers can hear; it is logged."""
MAX_UNCLAIMED_STREAMS: Final = 200
"""Media sockets of one carrier that proved who it is, and have not sent a valid `start`."""
MAX_STRANGERS: Final = 50
"""The same of all other peers together. Each may hold 128 KB."""
MAX_STRANGERS_PER_PEER: Final = 25
"""The same of one peer. For one more, its oldest is closed."""

_log = logging.getLogger(__name__)


class Refusal(enum.StrEnum):
    """Why a call was refused; the text says what the operator can do."""

    NOT_ALLOWED = "caller is not in ALLOWED_CALLERS"
    NOBODY_ALLOWED = "ALLOWED_CALLERS is empty; set it to your number, or to * for anyone"
    NO_ENGINE = f"no voice engine; {SET_UP_ENGINE}"
    CLOSING = "gateway is shutting down"
    OVER = "call is already over"
    FULL = "MAX_CALLS is reached"
    CALLER_BUSY = "CALLS_PER_CALLER is reached"

    @property
    def is_limit(self) -> bool:
        """Whether the same call may be admitted later."""
        return self in (Refusal.FULL, Refusal.CALLER_BUSY)


@dataclass(frozen=True)
class Admission:
    """Who may call, and how many calls are admitted at once: in all, and of one number. 0: any number."""

    allowed: AllowList
    max_calls: int = 0
    calls_per_caller: int = 0
    identify: Callable[..., str] = identifier
    """Returns the key of a caller's memory, with the parameters of `identifier`."""


class _Unclaimed(NamedTuple):
    """Media sockets that share one limit: those of a verified carrier, or of one peer."""

    is_verified: bool
    name: str

    @property
    def network(self) -> str:
        """The /24 or /48 of a peer: one attacker may have many addresses, but rarely many networks."""
        return ":".join(self.name.split(":")[:3]) if ":" in self.name else self.name.rpartition(".")[0]


class CallManager:
    """Owns every call of this node: its state, its task, and the clock that ticks it."""

    def __init__(
        self,
        agents: AgentDirectory,
        admission: Admission,
        controls: Mapping[str, CallControl],
        calls: CallFactory,
        finalizer: FinalizationWorker,
        cluster: Cluster,
        timeouts: CallTimeouts,
    ) -> None:
        self._agents = agents
        self._admission = admission
        self._allowed = admission.allowed
        self._controls = controls
        self._calls = calls
        self._finalizer = finalizer
        self._cluster = cluster
        self._timeouts = timeouts
        self._table = CallTable(timeouts.remember_ended)
        self._recovery = StreamRecovery(self._table, controls, calls, cluster, timeouts)
        self.operator = OperatorControl(self._table, cluster)
        self._unclaimed: dict[MediaStream, _Unclaimed] = {}
        self._dialling: dict[str, tuple[str, float]] = {}
        """Outbound calls that this node placed and that were not answered yet: number and expiry, by their ids."""
        self._stranger_log = BurstLogger(_log)
        self._running: set[asyncio.Task[None]] = set()
        self._background: set[asyncio.Task[object]] = set()
        self._delays: deque[float] = deque(maxlen=round(LAG_WINDOW * TICK_GROUPS / timeouts.tick))
        self._idle = asyncio.Event()
        self._draining = False

    @property
    def live_calls(self) -> int:
        return len(self._table)

    @property
    def monitors(self) -> list[tuple[str, CallMonitor]]:
        """The audio of every live call, by its session id."""
        return [(media.session.id, media.monitor) for media in self._table.with_media()]

    @property
    def loop_lag(self) -> float:
        """The longest that the event loop was blocked in the last minute, in seconds."""
        return max(self._delays, default=0.0)

    @property
    def takes_calls(self) -> bool:
        return not self._draining

    async def run(self) -> None:
        """Tick all calls until cancelled, a tenth of them at a time: all at once would delay audio frames."""
        pause = self._timeouts.tick / TICK_GROUPS
        groups: list[list[Call]] = []
        while True:
            before = time.monotonic()
            await asyncio.sleep(pause)
            self._delays.append(delay := max(time.monotonic() - before - pause, 0.0))
            if delay > AUDIBLE_LAG:
                WATCHDOG.labels("event loop held up").inc()
                _log.warning("event loop was held up", extra={"ms": round(delay * 1000)})
            now = self._now()
            for media in groups.pop() if groups else ():
                media.tick(now)
            if not groups:
                groups = self._table.tick_groups(TICK_GROUPS)
                for call in self._table.due_for_liveness_check(now, self._timeouts.liveness_check):
                    self._spawn(self._recover(call, self._recovery.check_alive(call)))
                for call in self._table.overdue(now):
                    if call.state is CallState.TRANSFERRING:  # to hang up would cut off the transfer target
                        self._end(call, EndReason.TRANSFERRED)
                    else:
                        self._spawn(self._recover(call, self._recovery.expire(call)))
                if self._table.is_empty:
                    self._idle.set()

    async def drain(self, seconds: float) -> None:
        """Refuse new calls, and wait until the present ones have ended by themselves."""
        self._draining = True
        self._idle.clear()  # the next tick sets it again if there is no call
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()

    async def close(self) -> None:
        """Refuse new calls, end the present ones, and wait until each is submitted to finalization."""
        self._draining = True
        for stream in list(self._unclaimed):
            stream.close()
        for media in self._table.with_media():
            media.end(EndReason.SHUTDOWN)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeouts.close):
                while self._running:
                    await asyncio.wait(self._running)
                for call in [] if self._cluster.takes_over_calls else self._table.without_media():
                    if call.state is CallState.TRANSFERRING:  # to hang up would cut off the transfer target
                        self._end(call, EndReason.TRANSFERRED)
                    else:
                        self._end(call, EndReason.SHUTDOWN)
                        self._spawn(self._hang_up(call.key))
                while self._background:
                    await asyncio.wait(self._background)

    # Calls of an earlier process

    async def recover(self, ended: frozenset[str]) -> None:
        """
        Continue, or finish, the calls that were live when an earlier process died.

        `ended` are the sessions whose finalization has begun: it has everything that the journal still holds.
        """
        for recovered in await self._calls.log.unfinished():
            if recovered.session.id in ended:
                self._calls.log.claim(recovered.session.id)
                self._calls.log.release(recovered.session.id)
            else:  # in the background: to ask whether another node has it may take a while
                self._spawn(self._reclaim(recovered))

    async def _reclaim(self, recovered: RecoveredCall) -> None:
        call = ManagedCall.from_journal(recovered, self._agents)
        match await self._cluster.reclaim(call.key, recovered.node):
            case Reclaim.RESUME:
                self._continue(call, recovered.session)
            case Reclaim.CONTRIBUTE:
                self._calls.log.claim(recovered.session.id)
                _mark_died(recovered.session)
                self._contribute(call.key, recovered.session)

    def _continue(self, call: ManagedCall, session: VoiceSession) -> None:
        """A call whose process died goes on, if the caller is still there."""
        _log.warning("a call was live when its gateway died", extra={"call": session.uuid[:8]})
        self._calls.log.claim(session.id)
        _mark_died(session)
        self._table.add(call)
        if call.state is CallState.TRANSFERRING:
            session.end_reason = EndReason.TRANSFERRED
            self._finish(call)
        elif call.key[0] not in self._controls:
            self._finish(call)
        else:
            self._stream_lost(call)
            if self._table.manages(call):
                self._spawn(self._recover(call, self._recovery.check_alive(call)))

    # Webhooks

    async def is_new_event(self, event_id: str) -> bool:
        """Whether no node has seen this event."""
        return self._table.is_new_event(event_id) and (not event_id or await self._cluster.is_new_event(event_id))

    async def accept(
        self,
        key: CallKey,
        *,
        caller: str,
        called: str,
        media_url: str,
        account_id: str = "",
        attestation: Attestation = Attestation.NONE,
        sip_headers: Mapping[str, str] = MappingProxyType({}),
        attributes: Mapping[str, str] = MappingProxyType({}),
        trunk: str = "",
        vouched: bool = False,
        order: OutboundCall | None = None,
        user_identity: str = "",
        user_name: str = "",
    ) -> ManagedCall | Refusal:
        """
        Accept or refuse an incoming call. A repeated webhook gets the same answer.

        `vouched`: the operator admits this caller, whatever the number. `order`: the call is an outbound one that was
        answered. `trunk`: the SIP domain or connection over which the call came. `user_identity`, `user_name`: the user
        of a website that vouches for them.

        Memory starts to load here, before the media socket opens, as far as the attestation allows.
        """
        if call := self._table.get(key):
            return Refusal.OVER if call.awaits_stream else call
        number = caller_id(caller)
        agent = speaker(self._agents, called, order, user_name)
        identity = self._admission.identify(
            agent.repeat_caller, number, sip_headers=sip_headers, attributes=attributes, user_identity=user_identity
        )
        party = identity if user_identity else number
        refusal = self._refusal(key, number, agent, vouched=vouched) or await self._claim(
            key, party, limited=order is None
        )
        if refusal is not None:
            _log.warning("call refused", extra={"caller": last_four(number), "carrier": key[0], "reason": str(refusal)})
            REFUSED.labels(key[0], refusal.name.lower().replace("_", " ")).inc()
            events = self._calls.publisher.call("", "", number, key[0], kept=self._calls.has_memory)
            events.publish("refused", called=called, reason=str(refusal))
            return refusal
        call = ManagedCall(key, account_id, identity, called, agent, media_url, number=number, order=order)
        call.user_name = user_name
        call.open_token(self._now() + self._timeouts.token)
        if order is not None:
            call.session_id = order.session_id
        logs.set_call(call.session_id)
        listed = self._allowed.lists(number)
        via = trunk if identity.startswith("sip_header:") else None
        call.access.level = agent.trust.level(attestation, withheld=not party, allow_listed=listed, trunk=via)
        call.access.proven = attestation is Attestation.FULL if via is None else via in agent.trust.trusted_trunks
        self._calls.prepare(call)
        call.session = self._calls.session(call)
        if (other := await self._announce(call)) is not None:
            call.cancel_loading()
            return other
        if call.session is not None:  # from here on the call survives a killed gateway
            self._calls.open_log(call.session, call)
        self._table.add(call)
        if order is None:
            _log.info("phone rings", extra={"caller": last_four(number), "carrier": key[0], "agent": agent.name})
            self._calls.call_events(call).publish("ringing", called=called)
        return call

    async def _announce(self, call: ManagedCall) -> ManagedCall | Refusal | None:
        """Publish the call to other nodes. Returns the answer if it rang, or ended, elsewhere."""
        own = call.record(self._cluster.node)
        record = await self._cluster.announce(own)
        call.token_is_shared = record is not None
        if record is not None and record != own:
            if not record.awaits_media:
                return Refusal.OVER
            return self._table.get(call.key) or ManagedCall.from_record(record, None, self._agents)
        if self._table.has_ended(call.key):  # the caller hung up during the announcement
            self._cluster.forget_call(call.key)
            return Refusal.OVER
        return None

    def _refusal(self, key: CallKey, caller: str, agent: Agent, *, vouched: bool) -> Refusal | None:
        if self._draining:
            return Refusal.CLOSING
        if self._table.has_ended(key):
            return Refusal.OVER
        if not vouched and not self._allowed.admits(caller):
            return Refusal.NOT_ALLOWED if self._allowed else Refusal.NOBODY_ALLOWED
        return None if self._calls.has_engine(agent) else Refusal.NO_ENGINE

    async def _claim(self, key: CallKey, party: str, *, limited: bool) -> Refusal | None:
        """
        Count one more call, over all nodes. Returns the limit that it would exceed.

        `party` is a number, or the identifier of a website's user. A withheld number has no limit.
        """
        if limited and (refusal := self._limit_reached(party)) is not None:
            return refusal
        groups = {name: limit * limited for name, limit in self._groups(party).items()}
        return _limit_of(await self._cluster.claim(key, groups))

    def _groups(self, party: str) -> dict[str, int]:
        """The groups of calls in which a call of this party counts, with their limits."""
        groups = {ALL_CALLS: self._admission.max_calls, party: self._admission.calls_per_caller}
        return {name: limit for name, limit in groups.items() if name}

    def _limit_reached(self, party: str) -> Refusal | None:
        """The limit of this node's own calls that one more would exceed."""
        now = self._now()
        self._dialling = {order: call for order, call in self._dialling.items() if call[1] > now}
        live = [call.number or call.caller for call in self._table]
        parties = [*live, *(dialled for dialled, _ in self._dialling.values())]
        if 0 < self._admission.max_calls <= len(parties):
            return Refusal.FULL
        if party and 0 < self._admission.calls_per_caller <= parties.count(party):
            return Refusal.CALLER_BUSY
        return None

    async def resume(self, key: CallKey) -> ManagedCall | None:
        """
        The carrier asks how to continue a call whose stream has ended: with a new one, or None to hang up.

        The carrier may notice the loss before we do.
        """
        await self.release(key)
        if self._table.get(key) is None and not self._table.has_ended(key):
            if fetched := await self._cluster.fetch(key):
                self.take_over(*fetched)
        call = self._table.get(key)
        return call if call is not None and await self._recovery.renew(call) else None

    def carrier_ended(self, key: CallKey) -> None:
        """The carrier reports the end of the call, possibly of one that is not known here yet."""
        call = self._table.get(key)
        if call is None:
            self._table.remember_ended(key, self._now())
            self._spawn(self._forward_end(key))
        elif call.media is not None:
            call.media.end(EndReason.CALLER_HUNG_UP, carrier_over=True)
        else:
            self._end(call, EndReason.CALLER_HUNG_UP)

    async def _forward_end(self, key: CallKey) -> None:
        if not await self._cluster.forward(NodeCommandKind.ENDED, key):
            self._cluster.forget_call(key)  # leaves a tombstone, should the call still arrive at some node

    def hand_over(self, key: CallKey, platform: str) -> None:
        """Another platform carries the call's audio from here on, and reports it when it is over."""
        if (call := self._table.get(key)) is not None:
            call.cancel_loading()
            self._calls.call_events(call).publish("hangup", reason=f"handed over to {platform}", seconds=0, turns=0)
            if call.session is not None:
                self._calls.log.release(call.session.id)
            self._table.end(call, self._now())
            self._cluster.call_ended(key)
            self._cluster.forget_call(key)

    def stream_failed(self, key: CallKey, token: str = "") -> None:
        """
        The carrier could not stream, or stopped; the caller may still be there.

        `token` is that of the stream: the call may have a newer one already.
        """
        call = self._table.get(key)
        if call is None:
            if not self._table.has_ended(key):
                self._spawn(self._forward_stream_failure(key, token))
        elif token and not call.has_token(token) or call.awaits_stream:
            return
        elif call.media is not None:
            call.media.end(EndReason.STREAM_STOPPED)
        else:
            self._stream_lost(call)

    async def _forward_stream_failure(self, key: CallKey, token: str) -> None:
        if not await self._cluster.forward(NodeCommandKind.STREAM_FAILED, key, token):
            # A process that died had answered it, and kept nothing of an anonymous caller.
            await self._hang_up(key)

    def transfer_finished(self, key: CallKey, *, answered: bool) -> None:
        """The transfer target has answered, or has not: the carrier leaves the caller in silence, back to the agent."""
        call = self._table.get(key)
        if call is not None and call.media is not None:  # our side of the call has not ended yet
            call.transfer_answered = answered
        elif call is None or call.state is not CallState.TRANSFERRING:
            kind = NodeCommandKind.TRANSFERRED if answered else NodeCommandKind.TRANSFER_FAILED
            self._spawn(self._cluster.forward(kind, key))
        elif answered:
            self._end(call, EndReason.TRANSFERRED)
        else:
            self._stream_lost(call)

    # Outbound calls

    @property
    def unready(self) -> Refusal | None:
        """Why no call at all can be accepted or placed now."""
        if self._draining:
            return Refusal.CLOSING
        return None if any(map(self._calls.has_engine, self._agents)) else Refusal.NO_ENGINE

    async def claim_dial(self, order: OutboundCall) -> Refusal | None:
        """
        Count an outbound call that is about to be dialled, over all nodes. Returns the limit that it would exceed.

        Once the called party has answered, the call is not refused. Until then the ringing phone counts as a call.
        """
        if (refusal := self._limit_reached(order.to)) is not None:
            return refusal
        seconds = self._timeouts.dialling
        self._dialling[order.id] = order.to, self._now() + seconds
        full = await self._cluster.claim_dial(order.id, self._groups(order.to), seconds)
        if full is not None:
            self._dialling.pop(order.id, None)
        return _limit_of(full)

    async def release_dial(self, order: OutboundCall) -> None:
        """The phone does not ring any more, or never did."""
        self._dialling.pop(order.id, None)
        await self._cluster.release_dial(order.id, self._groups(order.to))

    def dials(self, carrier: str, order: OutboundCall) -> None:
        """An outbound call is placed."""
        agent = self._agents.answering(order.called).name
        _log.info("outbound call placed", extra={"caller": last_four(order.to), "carrier": carrier, "agent": agent})
        self._outbound_events(carrier, order).publish("dialling")

    async def picked_up(
        self, key: CallKey, order: OutboundCall, *, media_url: str, account_id: str = ""
    ) -> ManagedCall | Refusal:
        """An outbound call was answered. The number is certain, since we dialled it."""
        self._dialling.pop(order.id, None)
        answer = await self.accept(
            key,
            caller=order.to,
            called=order.called,
            media_url=media_url,
            account_id=account_id,
            attestation=Attestation.FULL,
            attributes=order.attributes,
            vouched=True,
            order=order,
        )
        self._spawn(self.release_dial(order))  # not before the call counts; the called party does not wait for it
        return answer

    def answered_by(self, key: CallKey, report: AnsweredBy) -> None:
        """The carrier reports whether a person or a mailbox answered an outbound call; perhaps before anything else."""
        call = self._table.get(key)
        if call is None:
            if not self._table.has_ended(key):
                self._spawn(self._forward_answered_by(key, report))
        elif call.order is not None and call.order.voicemail is not None:
            call.answered_by.append(report)
            if call.media is not None:
                call.media.answered_by(report, call.order.voicemail)

    async def _forward_answered_by(self, key: CallKey, report: AnsweredBy) -> None:
        for pause in self._timeouts.early_report:
            if await self._cluster.forward(NodeCommandKind.ANSWERED_BY, key, report):
                return
            await asyncio.sleep(pause)
            if self._table.get(key) is not None:
                return self.answered_by(key, report)

    def outbound_key(self, carrier: str, order_id: str) -> CallKey | None:
        """The live call of this request. Telnyx omits the call's id in some events."""
        calls = (call for call in self._table if call.key[0] == carrier and call.order is not None)
        return next((call.key for call in calls if call.order is not None and call.order.id == order_id), None)

    def unanswered(self, carrier: str, order: OutboundCall, reason: str) -> None:
        """An outbound call was not answered. Nothing is kept of it."""
        self._dialling.pop(order.id, None)
        self._spawn(self.release_dial(order))
        fields = {"caller": last_four(order.to), "carrier": carrier, "reason": reason}
        _log.info("outbound call not answered", extra=fields)
        self._outbound_events(carrier, order).publish("unanswered", reason=reason)

    def _outbound_events(self, carrier: str, order: OutboundCall) -> CallEvents:
        agent = self._agents.answering(order.called)
        identity = self._admission.identify(agent.repeat_caller, order.to, attributes=order.attributes)
        kept = self._calls.has_memory and bool(identity)
        return self._calls.publisher.call(order.session_id, agent.name, order.to, carrier, kept=kept)

    # Media sockets

    @property
    def shares_calls(self) -> bool:
        """Whether the media of a call may come to another node than its webhook."""
        return self._cluster.takes_over_calls

    def awaits_media(self, carrier: str, token: str = "") -> bool:
        """Whether a call of this carrier and node, with a token that very call, waits for its media stream."""
        calls = [call for call in self._table if call.key[0] == carrier and call.has_open_token]
        return any(call.has_token(token) for call in calls) if token else bool(calls)

    def expect(self, stream: MediaStream, peer: str, *, is_verified: bool) -> None:
        """
        A media socket opened and has yet to send its `start`. Close the oldest if there are too many.

        A carrier that proved who it is with the upgrade has room of its own. Others compete with the same peer only,
        and all peers together take room from the network that has most, and there from the peer that has most.
        """
        group = self._unclaimed[stream] = _Unclaimed(is_verified, stream.carrier if is_verified else peer)
        sizes = Counter(self._unclaimed.values())
        if sizes[group] <= (MAX_UNCLAIMED_STREAMS if is_verified else MAX_STRANGERS_PER_PEER):
            strangers = Counter({one: size for one, size in sizes.items() if not one.is_verified})
            if strangers.total() <= MAX_STRANGERS:
                return
            networks: Counter[str] = Counter()
            for one, size in strangers.items():
                networks[one.network] += size
            group = max(strangers, key=lambda one: (networks[one.network], strangers[one]))
        oldest = next(one for one, of in self._unclaimed.items() if of == group)
        del self._unclaimed[oldest]
        self._stranger_log.warning("too many media sockets without a start", {"carrier": oldest.carrier, "peer": peer})
        oldest.close()

    def gone(self, stream: MediaStream) -> None:
        self._unclaimed.pop(stream, None)

    async def admit(self, started: StreamStarted, stream: MediaStream) -> Call | None:
        """Attach a media stream to its call. None, to close the socket, unless `started` has the call's open token."""
        self._unclaimed.pop(stream, None)
        key = (stream.carrier, started.call_id)
        call = await self._redeem(key, started)
        if call is None or not self._calls.has_engine(call.agent):
            self._stranger_log.warning("media socket refused", {"carrier": stream.carrier, "reason": "no valid token"})
            return None
        logs.set_call(call.session_id)
        if started.problem:  # another stream would have the same problem
            _log.warning("carrier protocol error", extra={"carrier": stream.carrier, "problem": started.problem})
            self._give_up(call)
            return None
        self._identify(call, started.parameters)
        attempt = call.attempt
        try:
            tools = await (call.tools or self._calls.load_tools(call))
        except asyncio.CancelledError:
            if self._table.manages(call):
                raise
            return None  # it ended, or went to another node, which cancels the loading
        if not self._table.manages(call) or call.state is not CallState.ACTIVE or call.attempt != attempt:
            return None
        media = call.media = self._calls.make(call, tools, stream, self._controls[stream.carrier], self._cluster)
        call.session, call.recorder = media.session, media.recorder
        call.task = asyncio.get_running_loop().create_task(self._run_call(call, media), name=media.session.id)
        self._running.add(call.task)
        call.task.add_done_callback(self._running.discard)
        if call.order is not None and call.order.voicemail is not None:
            was_reached = [AnsweredBy.GREETING_OVER] if media.session.voicemail else []  # on an earlier stream
            for report in call.answered_by or was_reached:  # once it runs
                asyncio.get_running_loop().call_soon(media.answered_by, report, call.order.voicemail)
        return media

    async def _redeem(self, key: CallKey, started: StreamStarted) -> ManagedCall | None:
        """The call whose open token this is. Of all nodes, one gets it."""
        known = self._table.get(key)
        if known is None or known.token_is_shared:
            with contextlib.suppress(SharedStoreUnavailable):  # then only tokens of this node are accepted
                record = await self._cluster.redeem(key, started, is_local=known is not None)
                if record is None:
                    return None
                is_ours = record.node == self._cluster.node
                if self._table.has_ended(key):  # the carrier reported the end while the media came here: it ends here
                    if is_ours:
                        self._cluster.forget_call(key)
                    else:
                        self.take_over(replace(record, state=CallState.ENDED), await self._cluster.session_of(record))
                    return None
                if not is_ours:  # it rang at another node
                    call = ManagedCall.from_record(record, await self._cluster.session_of(record), self._agents)
                    call.attach_media()
                    self._calls.prepare(call)
                    self._calls.take_over(call)
                    self._table.add(call)
                    return call
        own = self._table.get(key)
        if own is None or not own.spend_token(started.token, started.account_id, self._now()):
            return None
        self._cluster.media_attached(key)
        return own

    def _identify(self, call: ManagedCall, parameters: Mapping[str, str]) -> None:
        """The first stream of a call may carry the identity of the caller."""
        source = call.agent.repeat_caller.identifier_source
        if call.attempt or source is None or source.kind != "integration_attribute" or source.name not in parameters:
            return
        identity = self._admission.identify(call.agent.repeat_caller, call.number, attributes=parameters)
        if identity == call.caller:
            return
        call.cancel_loading()
        call.caller = call.access.caller = identity
        if call.session is not None:
            self._calls.log.release(call.session.id)
        call.session = self._calls.session(call)
        self._calls.prepare(call)

    # A live call

    async def _run_call(self, call: ManagedCall, media: Call) -> None:
        call.may_be_elsewhere = False
        stable_at = self._now() + self._timeouts.stable_stream
        call_events = self._calls.call_events(call)
        call_events.publish("answered", attempt=call.attempt, version=call.agent.version, **media.model._asdict())
        try:
            await media.run()
        except Exception as error:
            # The edge of a call: its failure ends no other call, and its turns are kept.
            _log.exception("call failed", extra={"call": media.session.uuid[:8]})
            call_events.publish("error", what="call failed", reason=type(error).__name__)
            self._spawn(self._hang_up(call.key))
        finally:
            call.media = call.task = None
            call.recorder, call.caller = media.recorder, media.session.caller
            media.on_over()
            if not self._table.manages(call):
                self._release(call)
            elif media.may_go_on and not call.transfer_answered:
                media.recorder.note("stream lost", {"reason": str(media.session.end_reason)})
                call_events.publish("media_lost", reason=str(media.session.end_reason))
                call.attempt = 0 if self._now() >= stable_at else call.attempt
                if media.session.end_reason is EndReason.TRANSFERRED and call.transfer_answered is None:
                    self._recovery.transfer_started(call)
                else:
                    self._stream_lost(call)
            else:
                self._finish(call, end_function_ran=media.ran_end_function)

    # Lost streams

    def _stream_lost(self, call: ManagedCall) -> None:
        self._apply(call, self._recovery.stream_lost(call))

    async def _restart(self, call: ManagedCall) -> None:
        token = call.token
        outcome = await self._recovery.restart(call)
        self._apply(call, outcome)
        if outcome is RecoveryStep.OWNED_ELSEWHERE:
            # The call went there with this very stream, and its node may have died since.
            self.stream_failed(call.key, token)

    async def _recover(self, call: ManagedCall, step: Awaitable[RecoveryStep]) -> None:
        self._apply(call, await step)

    def _apply(self, call: ManagedCall, outcome: RecoveryStep) -> None:
        match outcome:
            case RecoveryStep.RESTART:
                self._spawn(self._restart(call))
            case RecoveryStep.CALLER_GONE:
                self.carrier_ended(call.key)
            case RecoveryStep.OWNED_ELSEWHERE:
                self.drop(call.key)
            case RecoveryStep.GIVE_UP:
                self._give_up(call)

    def _give_up(self, call: ManagedCall) -> None:
        """No media can be had: the call is of no use to the caller any more."""
        WATCHDOG.labels("no media for a call").inc()
        fields = {"call": logs.call_name(call.session_id), "carrier": call.key[0]}
        _log.warning("no media stream for a call", extra=fields)
        self._end(call, EndReason.STREAM_LOST)
        self._spawn(self._hang_up(call.key))

    async def _hang_up(self, key: CallKey) -> None:
        if await self._cluster.is_ours_now(key):
            with contextlib.suppress(CarrierRefused):  # there is no caller left who could notice
                await self._controls[key[0]].hang_up(key[1])

    # The end of a call

    def _end(self, call: ManagedCall, reason: EndReason) -> None:
        """A call without media is over."""
        call.cancel_loading()
        if call.session is None:
            self._calls.call_events(call).publish("hangup", reason=str(reason), seconds=0, turns=0)
        elif call.session.end_reason is not EndReason.GATEWAY_DIED:
            call.session.end_reason = reason
        self._finish(call)

    def _finish(self, call: ManagedCall, *, end_function_ran: bool = False) -> None:
        self._table.end(call, self._now())
        self._finalize(call, end_function_ran=end_function_ran)

    def _finalize(self, call: ManagedCall, *, end_function_ran: bool = False) -> None:
        """
        Submit the session to finalization. Other nodes keep their copy until that has begun.

        The agent's end function runs first, unless it ran in the call: the media was lost, or a gateway died.
        """
        key, session = call.key, call.session
        self._cluster.call_ended(key)
        if session is None:
            self._cluster.forget_call(key)
            return
        seconds, turns = round(session.seconds, 1), len(session.turns)
        call_events = self._calls.publisher.of(session, kept=self._calls.has_memory)
        call_events.publish("hangup", reason=str(session.end_reason or EndReason.FAILED), seconds=seconds, turns=turns)
        end_function_due = call.agent.functions is not None and bool(session.turns) and not end_function_ran
        self._finalizer.submit(
            session,
            call.recorder,
            kept=self._calls.has_memory,
            on_started=lambda: self._cluster.forget_call(key, session.id),
            first=functools.partial(self._run_end_function, call, session) if end_function_due else None,
        )

    async def _run_end_function(self, call: ManagedCall, session: VoiceSession) -> None:
        await run_end_function(session, await self._calls.load_tools(call))

    def _release(self, call: ManagedCall) -> None:
        """Another node has the call, and gets the turns of this one when it has ended."""
        call.cancel_loading()
        if call.recorder is not None:
            call.recorder.close()
        if call.session is None:
            return
        kept = self._calls.has_memory and call.session.caller and call.session.turns
        if kept and self._finalizer.is_shared:
            self._contribute(call.key, call.session)
        else:
            self._calls.log.release(call.session.id)

    def _contribute(self, key: CallKey, session: VoiceSession) -> None:
        self._finalizer.contribute(session, functools.partial(self._cluster.wait_until_ended, key))

    # Other nodes (LocalCalls)

    def take_over(self, record: CallRecord, session: VoiceSession | None) -> None:
        call = ManagedCall.from_record(record, session, self._agents)
        self._calls.take_over(call)
        if call.state is CallState.ENDED:
            self._finalize(call)
        elif session is not None:
            self._continue(call, session)
        else:
            self._table.add(call)
            self._stream_lost(call)

    async def restore_turns(self, session: VoiceSession) -> None:
        await self._calls.restore_turns(session)

    async def may_be_alive(self, record: CallRecord) -> bool:
        carrier, call_id = record.key
        control = self._controls.get(carrier)
        if control is None or record.state is CallState.TRANSFERRING:
            return False
        if record.state is CallState.RECONNECTING and not record.awaits_media and not control.asks_to_resume:
            return False
        return await control.is_alive(call_id) is not False

    def has_media(self, key: CallKey) -> bool:
        return self._table.media(key) is not None

    async def release(self, key: CallKey) -> None:
        """End the call's media here, and wait until its session is complete."""
        call = self._table.get(key)
        if call is None or call.awaits_stream:
            return
        if call.media is not None and call.task is not None:
            call.media.end(EndReason.STREAM_LOST)
            await asyncio.wait({call.task})
        else:
            self._stream_lost(call)

    def drop(self, key: CallKey) -> None:
        call = self._table.remove(key)
        if call is None:
            return
        if call.media is not None:
            call.media.end(EndReason.STREAM_LOST)
        else:
            self._release(call)

    def operator_ends(self, key: CallKey) -> None:
        if media := self._table.media(key):
            media.end(EndReason.OPERATOR_HUNG_UP)

    def operator_says(self, key: CallKey, words: str) -> None:
        if media := self._table.media(key):
            media.operator_says(words)

    def checkpoints(self) -> Iterable[tuple[CallKey, str, list[Mapping[str, Any]]]]:
        for call in self._table:
            if call.media is not None and call.media.session.caller and self._calls.has_memory:
                yield call.key, call.media.session.id, call.media.log_rows

    def _spawn(self, work: Coroutine[Any, Any, object]) -> None:
        """Run `work` beside the calls; `close` waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _limit_of(group: str | None) -> Refusal | None:
    """The limit of a group of calls that admits no more."""
    return None if group is None else Refusal.FULL if group == ALL_CALLS else Refusal.CALLER_BUSY


def _mark_died(session: VoiceSession) -> None:
    """The last turn is the last that is known of the call."""
    session.end_reason = EndReason.GATEWAY_DIED
    session.ended_at = session.turns[-1].at if session.turns else session.started_at
