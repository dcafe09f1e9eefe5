"""Makes the live call of a media stream, from what calls use: memory, tools, the engine, recorders and the call log."""

import functools
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from gateway.agents import Agent, ConsentSettings
from gateway.calls.call import Call, CallAgent, LiveCallTimeouts
from gateway.calls.call_end import CallLeg
from gateway.calls.call_table import ManagedCall
from gateway.calls.engine_connection import CallEngines, EngineConfig
from gateway.calls.recorder import CallRecorder, NoRecorder, RecordingDirectory
from gateway.calls.transcript import CallRecords
from gateway.cluster.node import Cluster
from gateway.cluster.store import NoSharedStore
from gateway.engines.early_connection import NoEarlyConnection
from gateway.history.audit_log import AuditAction, AuditLog, AuditNote
from gateway.history.call_log import CallLog, restore, turns_from_rows
from gateway.history.live_events import CallEvents, EventPublisher, NoCallLog, ShareRow, keep_local
from gateway.llm.responder_factory import ResponderFactory
from gateway.memory.access import MemoryAccess, MemorySource, NoMemory, PinResult
from gateway.memory.loader import MemoryLoader
from gateway.memory.pin_codes import Counters, PinCodeStore, check_counted
from gateway.memory.recall import Recall, render_known
from gateway.session import Consent, TrustLevel, VoiceSession
from gateway.telephony.media_stream import MediaStream
from gateway.telephony.rest import CallControl
from gateway.tools.executor import CallTools, ToolLoader

UNCOUNTED: Final = NoSharedStore()
HANDED_OVER_FROM: Final = "twilio"
"""The carrier whose calls can be handed over to an agent at ElevenLabs."""
SEARCH_TOKENS: Final = 600
"""How much an agent that searches its memory gets to read."""


Forget = Callable[[str, str], Awaitable[object]]
"""Deletes everything that an agent remembers about a caller. Raises StoreError."""


@dataclass(frozen=True)
class MemoryServices:
    """Where calls are logged and past ones looked up. Not used for anonymous callers."""

    recall: Recall
    limit: int
    """How many past calls go into the prompt."""
    log: CallLog
    forget: Forget
    """For callers who ask for it aloud."""
    pin_codes: PinCodeStore
    audit: AuditLog

    remembers = True

    async def search(self, agent: str, caller: str, text: str, *, person: str = "") -> str:
        """What is known of this caller that fits these words, as text for the agent."""
        known = await self.recall.search(agent, caller, text, person=person)
        return render_known(known, budget_tokens=SEARCH_TOKENS)

    def source(self, agent: Agent, access: MemoryAccess) -> MemorySource:
        return AgentMemory(self, agent, access)


class NoMemoryServices:
    """Nothing is stored or read. `counters` count attempts at the PIN of all callers, by a hash of the number."""

    log = NoCallLog()
    remembers = False

    def __init__(self, counters: Counters = UNCOUNTED) -> None:
        self._counters = counters

    def source(self, agent: Agent, access: MemoryAccess) -> MemorySource:
        return PinWithoutMemory(agent.trust.pin, agent.name, self._counters)


@dataclass(frozen=True)
class PinWithoutMemory(NoMemory):
    agent: str = ""
    counters: Counters = UNCOUNTED

    async def check_pin(self, caller: str, tried: str) -> PinResult | None:
        return await check_counted(self.counters, self.agent, caller, tried, self.pin)


@dataclass(frozen=True)
class AgentMemory:
    """The MemorySource of one call."""

    services: MemoryServices
    agent: Agent
    access: MemoryAccess

    can_erase = True

    def load(self, caller: str) -> MemoryLoader | None:
        may_rise = self.agent.trust.pin is not None
        if not caller or not (may_rise or self.access.allows(TrustLevel.NAME)):
            return None
        return MemoryLoader(self.services.recall, agent=self.agent.name, caller=caller, limit=self.services.limit)

    async def erase(self, caller: str) -> None:
        async with self.services.audit.noted(self._note(AuditAction.CALLER_ERASE, caller)):
            await self.services.forget(self.agent.name, caller)

    async def pin_length(self, caller: str) -> int:
        return await self.services.pin_codes.length(self.agent.name, caller) if caller else 0

    async def check_pin(self, caller: str, tried: str) -> PinResult | None:
        # Attempts with withheld numbers count together: each call would be a new caller otherwise.
        pin_codes, common = self.services.pin_codes, self.agent.trust.pin
        return await pin_codes.check(self.agent.name, caller, tried, common=common)

    async def set_pin(self, caller: str, pin: str) -> None:
        if caller:
            async with self.services.audit.noted(self._note(AuditAction.PIN_SET, caller)):
                await self.services.pin_codes.set(self.agent.name, caller, pin)

    def _note(self, action: AuditAction, caller: str) -> AuditNote:
        return AuditNote(action, "caller", agent=self.agent.name, caller=caller)


@dataclass(frozen=True)
class CallFactory:
    """Prepares calls while the phone rings, makes them when their media arrives, and logs them."""

    engines: CallEngines
    agent_llms: ResponderFactory
    tool_loader: ToolLoader
    memory: MemoryServices | NoMemoryServices
    recordings: RecordingDirectory
    publisher: EventPublisher
    timeouts: LiveCallTimeouts

    @property
    def log(self) -> CallLog | NoCallLog:
        return self.memory.log

    def has_engine(self, agent: Agent) -> bool:
        return self.engines.is_set_up(agent)

    @property
    def has_memory(self) -> bool:
        return self.memory.remembers

    # While the phone rings

    def prepare(self, call: ManagedCall) -> None:
        """Begin to load what the call will need: memory, and the agent's functions. Connect to the engine."""
        if not (call.agent.is_handed_over and call.key[0] == HANDED_OVER_FROM):
            call.engine = self.engines.connect_early(call.agent)
        call.tools = self.tool_loader.load(call.agent, call.access)
        call.access.open(self.memory.source(call.agent, call.access))

    def session(self, call: ManagedCall) -> VoiceSession | None:
        """For a caller who will be remembered; another's call gets one when it is answered."""
        return call.new_session() if self.has_memory and call.caller else None

    # With its media

    async def load_tools(self, call: ManagedCall) -> CallTools:
        return await self.tool_loader.load(call.agent, call.access)

    def make(
        self, call: ManagedCall, tools: CallTools, stream: MediaStream, control: CallControl, cluster: Cluster
    ) -> Call:
        """The live call of this stream. Its `on_over` closes what was opened for it here."""
        session = call.session or call.new_session()
        if not session.turns:
            session.started_at = datetime.now(UTC)  # not when it rang
        engine, call.engine = self.engines.config(call.agent, call.engine), NoEarlyConnection()
        session.engine = engine.engines[0].name
        self.open_log(session, call)
        asks = call.agent.consent.require and session.consent is Consent.NONE
        if asks and session.turns:  # asked on an earlier stream, which ended before an answer
            session.consent = Consent.NO_ANSWER
        recorder: CallRecorder = NoRecorder()
        if self.has_memory and session.caller and not session.off_record and session.consent.allows_recording:
            recorder = call.recorder or self.recordings.record(session.uuid, held=asks)
        if recorder is not call.recorder:
            recorder.note("call", call.recording_header(session) | self._recorded(engine, tools))
        else:
            recorder.note("stream", {})  # another media stream of the same call
        agent = call.agent
        if agent.consent and not agent.consent.always and isinstance(recorder, NoRecorder):
            agent = replace(agent, consent=ConsentSettings())  # there is nothing to agree to
        is_ours = functools.partial(cluster.is_ours_now, call.key)
        llm = self.agent_llms.open(call.agent, call.caller, call.media_url, call.access)
        records = CallRecords(self.call_events(call, cluster.share_entry), recorder)
        media = Call(
            session,
            CallAgent(agent, tools, llm.endpoint if llm is not None else None),
            stream,
            CallLeg(control, call.key[1], call.called, call.media_url, is_ours),
            engine,
            call.access,
            records,
            self.timeouts,
        )
        if llm is not None:
            call.access.subscribe(functools.partial(self.agent_llms.memory_changed, llm, call.agent, call.access))
            media.on_over = functools.partial(self.agent_llms.close, llm)
            llm.responder.observe_latency(media.latency)
            llm.responder.report_attempts(records.events.model_finished)
            llm.responder.override_replies(media.reply_to)
            llm.responder.count_usage(session.usage)
        return media

    def _recorded(self, engine: EngineConfig, tools: CallTools) -> dict[str, object]:
        """What the first line of a recording has besides the agent: engines, personas and the time limit."""
        engines = sorted(engine.engines, key=lambda one: one.is_failing())  # those that are avoided come last
        return {
            "engines": [{"name": one.name, "has_llm": one.engine.has_llm} for one in engines],
            "personas": dict(tools.personas),
            "longest_call": self.timeouts.longest_call if math.isfinite(self.timeouts.longest_call) else 0,
        }

    def call_events(self, call: ManagedCall, share: ShareRow = keep_local) -> CallEvents:
        """
        The live events of a call. `share` sends its turns to other nodes.

        Neither words nor number are kept of a call that leaves nothing behind.
        """
        kept = self.has_memory and bool(call.caller)
        number = call.number or call.caller
        return self.publisher.call(call.session_id, call.agent.name, number, call.key[0], kept=kept, share=share)

    # The call log

    def open_log(self, session: VoiceSession, call: ManagedCall) -> None:
        """Make the call recoverable, if anything is kept of its caller."""
        if session.caller:
            self.log.open_call(session, call.journal_header)

    def take_over(self, call: ManagedCall) -> None:
        """The call was another node's: from here on this log has it."""
        if call.session is not None:
            self.log.take_over(call.session, call.journal_header)

    async def restore_turns(self, session: VoiceSession) -> None:
        """Add turns that a dead worker on this disk logged but could not share."""
        rows = await self.log.rows(session.id)
        if rows and len(turns_from_rows(rows)) >= len(session.turns):
            restore(session, rows)
