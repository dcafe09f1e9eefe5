"""
The front desk: lets calls in, hands each media socket to its call, and sees every call through to its ending.

Web handlers talk to the desk; the desk knows no HTTP and no carrier's dialect.
"""

import asyncio
import contextlib
import enum
import functools
import itertools
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final

from gateway import logs
from gateway.agents import AgentDirectory
from gateway.calls.background_tasks import BackgroundTasks
from gateway.calls.call import Call, CallAgent, LiveCallTimeouts
from gateway.calls.call_finisher import CallFinisher
from gateway.calls.call_leg import CallLegControl
from gateway.calls.call_resources import CallResources, MemoryServices
from gateway.calls.call_table import TOKEN_SECONDS, CallTable
from gateway.calls.engine_connection import EngineConfig
from gateway.calls.loop_lag import LoopLag
from gateway.calls.monitoring import LevelMeters
from gateway.calls.operator import OperatorControl
from gateway.calls.outbound import OutboundCall, speaker
from gateway.calls.pending_call import PendingCall, pending_call_from_journal, pending_call_from_record
from gateway.calls.recorder import CallRecorder, NoRecorder, RecordingDirectory
from gateway.calls.stream_recovery import StreamRecovery
from gateway.calls.transcript import CallRecords
from gateway.cluster.directory import CallDirectory, CallRecord, CallState, NodeCommandKind
from gateway.cluster.node import ClusterNode
from gateway.errors import SharedStoreUnavailable
from gateway.finalization.worker import FinalizationWorker
from gateway.history.call_log import RecoveredCall
from gateway.history.live_events import CallEvents, EventPublisher, keep_local
from gateway.llm.responder_factory import CallLlm, ResponderFactory
from gateway.logs import last_four
from gateway.memory.identity import identifier
from gateway.metrics import REFUSED
from gateway.session import CallKey, EndReason, VoiceSession
from gateway.speech import model_files
from gateway.telephony.attestation import Attestation
from gateway.telephony.events import StreamStarted
from gateway.telephony.media_stream import MediaStream
from gateway.telephony.phone_numbers import AllowList, caller_id
from gateway.telephony.rest import CallControl
from gateway.tools.loader import CallTools, ToolLoader

TICK_SECONDS: Final = 0.1
TICK_GROUPS: Final = 10
PENDING_SOCKETS: Final = 200
"""Media sockets that have not sent a valid `start`. One more, and the oldest of them is closed."""

CLOSE_SECONDS: Final = 15.0
"""How long calls may take to come to their ending when the gateway stops."""

STEADY_SECONDS: Final = 30.0
"""A stream that has held so long was a good one: what comes after its loss is the first try again."""

_log = logging.getLogger(__name__)


class Refusal(enum.StrEnum):
    """Why a call was not let in; the text says what the operator can do."""

    NOT_ALLOWED = "caller is not in ALLOWED_CALLERS"
    NOBODY_ALLOWED = "ALLOWED_CALLERS is empty; set it to your number, or to * for anyone"
    NO_ENGINE = f"no voice engine; set DEEPGRAM_API_KEY, or run: {model_files.INSTALL}"
    CLOSING = "gateway is shutting down"
    OVER = "call is already over"


class CallManager:
    """Owns every live call's task, the clock that ticks them, and the sockets that nobody has claimed yet."""

    def __init__(
        self,
        *,
        agents: AgentDirectory,
        allowed: AllowList,
        engine: EngineConfig | None,
        controls: Mapping[str, CallControl],
        memory: MemoryServices | None,
        finalizer: FinalizationWorker,
        recordings: RecordingDirectory,
        tool_loader: ToolLoader,
        agent_llms: ResponderFactory | None = None,
        cluster: ClusterNode | None = None,
        call_events: EventPublisher | None = None,
        levels: LevelMeters | None = None,
        live_timeouts: LiveCallTimeouts,
    ) -> None:
        self._agents = agents
        self._allowed = allowed
        self._engine = engine
        self._controls = controls
        self._live_timeouts = live_timeouts
        self._agent_llms = agent_llms
        self._cluster = cluster
        self._call_events = call_events or EventPublisher()
        self._levels = levels or LevelMeters()
        share = cluster.directory.said if cluster is not None else keep_local
        self._resources = CallResources(memory, tool_loader, recordings, self._call_events, share)
        self._call_finisher = CallFinisher(finalizer, self._resources, self._call_events, cluster)
        self._call_table = CallTable()
        self._background_tasks = BackgroundTasks()
        self._stream_recovery = StreamRecovery(
            self, self._call_table, controls, self._resources, self._call_finisher, self._background_tasks, cluster
        )
        self.switchboard = OperatorControl(self._call_table, cluster)
        self._pending: dict[MediaStream, None] = {}
        self._conducted: dict[Call, asyncio.Task[None]] = {}
        self._loop_watch = LoopLag()
        self._quiet = asyncio.Event()
        self._draining = False

    @property
    def live_calls(self) -> int:
        return len(self._call_table)

    @property
    def loop_lag(self) -> float:
        """The longest that the event loop was held up in the last minute, in seconds."""
        return self._loop_watch.worst

    @property
    def takes_calls(self) -> bool:
        return not self._draining

    async def run(self) -> None:
        """Tick all calls until cancelled, some at a time: all at once would hold up a frame."""
        for turn in itertools.cycle(range(TICK_GROUPS)):
            before = time.monotonic()
            await asyncio.sleep(TICK_SECONDS / TICK_GROUPS)
            self._loop_watch.held_up(time.monotonic() - before - TICK_SECONDS / TICK_GROUPS)
            now = self._now()
            for call in itertools.islice(self._call_table.live_calls(), turn, None, TICK_GROUPS):
                call.tick(now)
            if turn in (0, TICK_GROUPS // 2):
                self._levels.measure(((call.session.id, call.monitor) for call in self._call_table.live_calls()), now)
            if turn == 0:
                for pending in self._call_table.to_ask_about(now):
                    self._stream_recovery.ask_if_alive(pending)
                for pending in (*self._call_table.unclaimed(now), *self._call_table.overdue(now)):
                    self._stream_recovery.abandon(pending)
                if not self._call_table.has_calls:
                    self._quiet.set()

    async def drain(self, seconds: float) -> None:
        """Let no more calls in, and wait until those there are have ended by themselves."""
        self._draining = True
        self._quiet.clear()  # the next tick looks
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._quiet.wait()

    async def close(self) -> None:
        """Let no more calls in, end those there are, and wait until each has been handed to its ending."""
        self._draining = True
        for link in list(self._pending):
            link.close()
        for call in self._call_table.live_calls():
            call.end(EndReason.SHUTDOWN)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                while self._conducted:
                    await asyncio.wait(self._conducted.values())
                if self._cluster is None:  # else others see to those that wait for their media
                    self._stream_recovery.dismiss()
                while background_tasks := self._background_tasks.under_way:
                    await asyncio.wait(background_tasks)

    async def recover(self, ended: frozenset[str]) -> None:
        """
        Take up calls that were live when an earlier process died: they may go on, else they come to an end.

        `ended` are those whose ending has been begun; what their journal still holds is in it.
        """
        for left in await self._resources.unfinished():
            if left.session.id in ended:
                self._resources.claim(left.session.id)
                self._resources.discard(left.session.id)
            elif self._cluster is None:
                self._continue(pending_call_from_journal(left, self._agents), left.session)
            else:  # another node may have taken it over; to ask may take a while
                self._background_tasks.send(self._reclaim(left, self._cluster))

    async def _reclaim(self, left: RecoveredCall, cluster: ClusterNode) -> None:
        pending = pending_call_from_journal(left, self._agents)
        ours = await cluster.reclaim(pending.key, left.node)
        if ours:
            self._continue(pending, left.session)
        elif ours is False:
            self._resources.claim(left.session.id)
            _died(left.session)
            self._call_finisher.contribute(pending.key, left.session, cluster)

    def _continue(self, pending: PendingCall, session: VoiceSession) -> None:
        """A call whose process died: it may go on."""
        _log.warning("a call was live when its gateway died", extra={"call": session.uuid[:8]})
        self._resources.claim(session.id)
        _died(session)
        if pending.handed_over:
            session.end_reason = EndReason.TRANSFERRED
        if pending.key[0] in self._controls and not pending.handed_over:
            self._stream_recovery.park_orphan(pending, session)
        else:
            self._call_finisher.finish(pending, session)

    # The webhooks' side

    async def is_new_event(self, event_id: str) -> bool:
        """Whether no node has seen this event."""
        if not self._call_table.is_new_event(event_id):
            return False
        return self._cluster is None or not event_id or await self._cluster.is_new_event(event_id)

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
        vouched: bool = False,
        order: OutboundCall | None = None,
    ) -> PendingCall | Refusal:
        """
        A phone rings. The same call asked twice gets the same answer. `vouched`: whoever calls, the operator lets them.
        `order`: it is us who call, and somebody has picked up.

        Loading of memory starts here, before the media socket opens: as much as a caller of this attestation is told.
        """
        if pending := self._call_table.pending(key):
            return pending
        number = caller_id(caller)
        refusal = self._refusal(key, number, vouched=vouched)
        if refusal is not None:
            _log.warning("call refused", extra={"caller": last_four(number), "carrier": key[0], "reason": str(refusal)})
            REFUSED.labels(key[0], refusal.name.lower().replace("_", " ")).inc()
            stranger = self._call_events.call("", "", number, key[0], kept=self._resources.has_memory)
            stranger.publish("refused", called=called, reason=str(refusal))
            return refusal
        agent = speaker(self._agents, called, order)
        known_as = identifier(agent.repeat_caller, number, sip_headers=sip_headers, attributes=attributes)
        pending = PendingCall(
            key, account_id, known_as, called, agent, media_url, self._now() + TOKEN_SECONDS, number=number
        )
        if order is not None:
            pending.order, pending.session_id = order, order.session_id
        logs.concerns(pending.session_id)
        listed = self._allowed.lists(number)
        pending.access.level = agent.trust.level(attestation, withheld=not number, allow_listed=listed)
        self._resources.prepare(pending)
        pending.session = self._resources.session(pending)
        if self._cluster is not None:
            if there := await self._cluster.announce(pending):
                pending.cancel()
                known = self._call_table.pending(key)
                return Refusal.OVER if there.state is not CallState.RINGING else known or self._ring_of(there)
            if self._call_table.is_over(key):  # the caller hung up while others were told
                pending.cancel()
                self._cluster.directory.settled(key)
                return Refusal.OVER
        if pending.session is not None:  # from here on a killed gateway knows that somebody is on the line
            self._resources.open_log(pending.session, pending)
        self._call_table.add_ring(pending)
        if order is None:
            _log.info("phone rings", extra={"caller": last_four(number), "carrier": key[0], "agent": agent.name})
            self._resources.call_events(pending).publish("ringing", called=called)
        return pending

    async def resume(self, key: CallKey) -> PendingCall | None:
        """
        The carrier asks what to do with a call whose stream is over: go on with another one, or None for the end.

        The carrier may know of the loss before we do.
        """
        if call := self._call_table.live(key):
            call.end(EndReason.STREAM_LOST)
            await asyncio.wait({self._conducted[call]})
        elif (pending := self._call_table.pending(key)) and not pending.used:
            self._stream_recovery.park(pending, pending.session)
        elif self._cluster is not None and not self._call_table.is_parked(key) and not self._call_table.is_over(key):
            if fetched := await self._cluster.fetch(key):
                self.take_up(*fetched)
        return await self._stream_recovery.ring_again(key)

    def carrier_ended(self, key: CallKey) -> None:
        """The carrier says that the call is over; it may say so before we have heard of the call at all."""
        call = self._call_table.live(key)
        if call is not None:
            call.end(EndReason.CALLER_HUNG_UP, carrier_over=True)
        elif pending := self._call_table.ended(key, self._now()):
            self._call_finisher.settle(pending, EndReason.CALLER_HUNG_UP)
        elif self._cluster is not None:
            self._background_tasks.send(self._pass_on_end(key, self._cluster))

    def stream_failed(self, key: CallKey, token: str = "") -> None:
        """
        The carrier could not stream, or stopped; the caller may still be there.

        `token` is the stream's: the carrier may say it when the call has another one already.
        """
        call, pending = self._call_table.live(key), self._call_table.pending(key)
        if token and pending is not None and not pending.has_token(token):
            return
        if call is not None:
            call.end(EndReason.STREAM_STOPPED)
        elif pending is not None and not pending.used:
            self._stream_recovery.park(pending, pending.session)
        elif pending is None and not self._call_table.is_over(key) and not self._call_table.is_parked(key):
            self._background_tasks.send(self._stream_failed_elsewhere(key, token))

    def transferred(self, key: CallKey) -> None:
        """Somebody has picked up: the caller is theirs."""
        if pending := self._call_table.handed_over(key):
            self._call_table.ended(key, self._now())
            self._call_finisher.settle(pending, EndReason.TRANSFERRED)
        else:
            self._note_transfer(key, NodeCommandKind.TRANSFERRED)

    def transfer_failed(self, key: CallKey) -> None:
        """Nobody has picked up, and the carrier leaves the caller in silence: back to the agent."""
        if pending := self._call_table.handed_over(key):
            pending.handed_over = False
            self._stream_recovery.restart_stream(pending)
        else:
            self._note_transfer(key, NodeCommandKind.TRANSFER_FAILED)

    def _note_transfer(self, key: CallKey, word: NodeCommandKind) -> None:
        """The outcome of a transfer is known before the call here has ended, or where it is not."""
        pending = self._call_table.pending(key) if self._call_table.live(key) else None
        if pending is not None:
            pending.picked_up = word is NodeCommandKind.TRANSFERRED
        elif self._cluster is not None:
            self._background_tasks.send(self._pass_on(word, key, self._cluster))

    # Calls that we place

    @property
    def unready(self) -> Refusal | None:
        """Why no call at all can be let in, or placed, at this moment."""
        if self._draining:
            return Refusal.CLOSING
        return Refusal.NO_ENGINE if self._engine is None else None

    def dials(self, carrier: str, order: OutboundCall) -> None:
        """Somebody's phone will ring."""
        agent = self._agents.answering(order.called).name
        _log.info("call is placed", extra={"caller": last_four(order.to), "carrier": carrier, "agent": agent})
        self._feed_of(carrier, order).publish("dialling")

    async def picked_up(
        self, key: CallKey, order: OutboundCall, *, media_url: str, account_id: str = ""
    ) -> PendingCall | Refusal:
        """Somebody whom we have called is on the line. We know for sure who they are."""
        return await self.accept(
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

    def unanswered(self, carrier: str, order: OutboundCall, reason: str) -> None:
        """Nobody has picked up. Nothing was said, and nothing is kept."""
        _log.info(
            "call that was placed came to nothing",
            extra={"caller": last_four(order.to), "carrier": carrier, "reason": reason},
        )
        self._feed_of(carrier, order).publish("unanswered", reason=reason)

    def _feed_of(self, carrier: str, order: OutboundCall) -> CallEvents:
        agent = self._agents.answering(order.called)
        known_as = identifier(agent.repeat_caller, order.to, attributes=order.attributes)
        kept = self._resources.has_memory and bool(known_as)
        return self._call_events.call(order.session_id, agent.name, order.to, carrier, kept=kept)

    # The media sockets' side

    def expect(self, link: MediaStream) -> None:
        """A media socket opened; it has yet to show which call it is."""
        self._pending[link] = None
        if len(self._pending) > PENDING_SOCKETS:
            oldest = next(iter(self._pending))
            del self._pending[oldest]
            _log.warning("too many media sockets without a start", extra={"carrier": oldest.carrier})
            oldest.close()

    def gone(self, link: MediaStream) -> None:
        self._pending.pop(link, None)

    async def admit(self, started: StreamStarted, link: MediaStream) -> Call | None:
        """Judge a `start`: with the call's unspent token it becomes the call's media, else it is a stranger's."""
        self._pending.pop(link, None)
        key = (link.carrier, started.call_id)
        pending = await self._redeemed(key, started)
        if pending is None or self._engine is None:
            _log.warning("media socket refused", extra={"carrier": link.carrier, "reason": "no valid token"})
            return None
        logs.concerns(pending.session_id)
        if started.problem:  # another stream would be no better
            _log.warning("carrier protocol error", extra={"carrier": link.carrier, "problem": started.problem})
            self._call_table.ended(key, self._now())
            self._stream_recovery.give_up(pending)
            return None
        self._identify(pending, started.parameters)
        call_tools = await self._resources.call_tools(pending)
        call_llm = None
        if self._agent_llms is not None:
            call_llm = self._agent_llms.open(pending.agent, pending.caller, pending.media_url, pending.access)
        call = self._call(pending, link, self._engine, call_tools, call_llm)
        self._call_table.went_live(key, call)
        task = asyncio.get_running_loop().create_task(self._conduct(call, pending, call_llm), name=call.session.id)
        self._conducted[call] = task
        return call

    def _identify(self, pending: PendingCall, parameters: Mapping[str, str]) -> None:
        """The stream may tell who the caller is. One that goes on has told before."""
        source = pending.agent.repeat_caller.identifier_source
        if pending.attempt or source is None or source.kind != "integration_attribute" or source.name not in parameters:
            return
        known_as = identifier(pending.agent.repeat_caller, pending.number, attributes=parameters)
        if known_as == pending.caller:
            return
        pending.cancel()
        pending.caller = pending.access.caller = known_as
        if pending.session is not None:
            self._resources.discard(pending.session.id)
        pending.session = self._resources.session(pending)
        self._resources.prepare(pending)

    async def _redeemed(self, key: CallKey, started: StreamStarted) -> PendingCall | None:
        """The call that this token opens, and no other node opens with it."""
        known = self._call_table.pending(key)
        if self._cluster is not None and (known is None or known.shared):
            with contextlib.suppress(SharedStoreUnavailable):  # then only what this node itself has given counts
                record = await self._cluster.redeem(key, started, known=known is not None)
                if record is None:
                    return None
                if self._call_table.is_over(key):
                    await self._came_too_late(record, self._cluster)
                    return None
                if record.node != self._cluster.directory.node:
                    return await self._moved_here(record, self._cluster)
        pending = self._call_table.redeem(key, started.token, started.account_id, self._now())
        if pending is not None and self._cluster is not None:
            self._cluster.directory.answered(key)
        return pending

    async def _came_too_late(self, record: CallRecord, cluster: ClusterNode) -> None:
        """The carrier said that the call is over while its media came here: it ends here."""
        if record.node == cluster.directory.node:
            cluster.directory.settled(record.key)
        else:
            self.take_up(replace(record, state=CallState.OVER), await cluster.session_of(record))

    async def _moved_here(self, record: CallRecord, cluster: ClusterNode) -> PendingCall:
        """A call that rang at another node, and goes on here."""
        pending = self._ring_of(record, await cluster.session_of(record))
        self._resources.prepare(pending)
        pending.used = True
        self._resources.take_over(pending.session, pending)
        self._call_table.add_ring(pending)
        return pending

    # A call's life

    def _call(
        self,
        pending: PendingCall,
        link: MediaStream,
        engine: EngineConfig,
        call_tools: CallTools,
        call_llm: CallLlm | None,
    ) -> Call:
        carrier, call_id = pending.key
        session = pending.session or pending.new_session()
        if not session.turns:
            session.started_at = datetime.now(UTC)  # not when it rang
        recorder: CallRecorder = NoRecorder()
        if not session.off_record:
            recorder = pending.recorder or self._resources.recorder(session, pending, call_tools)
        call = Call(
            session,
            CallAgent(pending.agent, call_tools, call_llm.endpoint if call_llm is not None else None),
            link,
            CallLegControl(
                self._controls[carrier],
                call_id,
                pending.called,
                pending.media_url,
                functools.partial(self._stream_recovery.is_ours, pending.key),
            ),
            engine,
            pending.access,
            CallRecords(self._resources.call_events(pending), recorder),
            self._live_timeouts,
        )
        if call_llm is not None and self._agent_llms is not None:
            pending.access.subscribe(functools.partial(self._agent_llms.memory_changed, call_llm, pending.agent))
            call.on_over = functools.partial(self._agent_llms.close, call_llm)
            call_llm.responder.watched_by(call.latency)
            call_llm.responder.stood_in_by(call.reply_to)
        return call

    async def _conduct(self, call: Call, pending: PendingCall, call_llm: CallLlm | None) -> None:
        pending.recorder, pending.adopted = call.recorder, False
        steady_at = self._now() + STEADY_SECONDS
        call_events = self._resources.call_events(pending)
        call_events.publish("answered", attempt=pending.attempt)
        try:
            await call.run()
        except Exception as error:
            # The edge of a call: whatever went wrong in it stays in it, and what was said is kept.
            _log.exception("call failed", extra={"call": call.session.uuid[:8]})
            call_events.publish("error", what="call failed", reason=type(error).__name__)
            self._background_tasks.send(self._stream_recovery.hang_up(pending.key))
        finally:
            pending.recorder, pending.caller = call.recorder, call.session.caller
            if call_llm is not None and self._agent_llms is not None:
                self._agent_llms.close(call_llm)
            if pending.taken:
                self._call_finisher.let_go(pending)
            elif call.may_go_on and not pending.picked_up:
                pending.handed_over = call.session.end_reason is EndReason.TRANSFERRED and pending.picked_up is None
                call_events.publish("media_lost", reason=str(call.session.end_reason))
                pending.attempt = 0 if self._now() >= steady_at else pending.attempt
                self._stream_recovery.park(pending, call.session)
            else:
                self._call_table.ended(pending.key, self._now())
                self._call_finisher.finish(pending, call.session, call.recorder, wound_up=call.ran_end_function)
            del self._conducted[call]

    # Calls of other nodes

    def take_up(self, record: CallRecord, session: VoiceSession | None) -> None:
        """A call that was another node's is this one's, without its media. A nameless caller's has no past."""
        pending = self._ring_of(record, session)
        self._resources.take_over(session, pending)
        if record.state is CallState.OVER:
            self._call_finisher.finish(pending, session)
        elif session is None:
            self._stream_recovery.park(pending, None)
        else:
            self._continue(pending, session)

    async def recollect(self, session: VoiceSession) -> None:
        await self._resources.recollect(session)

    async def may_go_on_there(self, record: CallRecord) -> bool:
        """Whether a node that is silent may still have this call, or will get it back, as far as its carrier tells."""
        carrier, call_id = record.key
        control = self._controls.get(carrier)
        if control is None or record.handed_over:
            return False
        without_media = record.state is CallState.PARKED and not control.asks_to_resume
        return not without_media and await control.is_alive(call_id) is not False

    def has_media(self, key: CallKey) -> bool:
        return self._call_table.live(key) is not None

    async def release(self, key: CallKey) -> None:
        """Another node is asked for this call's new media."""
        if call := self._call_table.live(key):
            call.end(EndReason.STREAM_LOST)
            await asyncio.wait({self._conducted[call]})
        elif (pending := self._call_table.pending(key)) and not pending.used:
            self._stream_recovery.park(pending, pending.session)

    def drop(self, key: CallKey) -> None:
        """The call is another node's now."""
        call, pending = self._call_table.live(key), self._call_table.forget(key)
        if pending is not None:
            pending.taken = True
        if call is not None:
            call.end(EndReason.STREAM_LOST)
        elif pending is not None:
            self._call_finisher.let_go(pending)

    def operator_ends(self, key: CallKey) -> None:
        if call := self._call_table.live(key):
            call.end(EndReason.OPERATOR_HUNG_UP)

    def operator_says(self, key: CallKey, words: str) -> None:
        if call := self._call_table.live(key):
            call.say(words)

    def checkpoint(self, directory: CallDirectory) -> None:
        """Everything said so far in the live calls, for whoever may have to go on with them."""
        for key, call in self._call_table.live_items():
            if call.session.caller and self._resources.has_memory:
                directory.checkpoint(key, call.session.id, call.log_rows)

    async def _pass_on(self, word: NodeCommandKind, key: CallKey, cluster: ClusterNode) -> None:
        await cluster.pass_on(self, word, key)

    async def _pass_on_end(self, key: CallKey, cluster: ClusterNode) -> None:
        if not await cluster.pass_on(self, NodeCommandKind.ENDED, key):
            cluster.directory.settled(key)  # if it rings yet, at whatever node, it is over

    async def _stream_failed_elsewhere(self, key: CallKey, token: str) -> None:
        if self._cluster is None or not await self._cluster.pass_on(self, NodeCommandKind.STREAM_FAILED, key, token):
            # An earlier process answered it and died, and nothing of it was kept: a nameless caller's.
            await self._stream_recovery.hang_up(key)

    # Itself

    def _refusal(self, key: CallKey, caller: str, *, vouched: bool) -> Refusal | None:
        if self._draining:
            return Refusal.CLOSING
        if self._call_table.is_over(key) or self._call_table.is_parked(key):
            return Refusal.OVER
        if not vouched and not self._allowed.admits(caller):
            return Refusal.NOT_ALLOWED if self._allowed else Refusal.NOBODY_ALLOWED
        return Refusal.NO_ENGINE if self._engine is None else None

    def _ring_of(self, record: CallRecord, session: VoiceSession | None = None) -> PendingCall:
        return pending_call_from_record(record, session, self._agents, expires=self._now() + TOKEN_SECONDS)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _died(session: VoiceSession) -> None:
    """Nobody knows more of its end than when somebody spoke last."""
    session.end_reason = EndReason.GATEWAY_DIED
    session.ended_at = session.turns[-1].at if session.turns else session.started_at
