"""What a call uses: the caller's memory, tools, the call log, a recorder, and live events."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from gateway.agents import Agent
from gateway.calls.call_table import ManagedCall
from gateway.calls.recorder import CallRecorder, RecordingDirectory
from gateway.history.call_log import CallLog, RecoveredCall, restore, turns_from_rows
from gateway.history.live_events import CallEvents, EventPublisher, ShareRow
from gateway.memory.access import MemoryAccess
from gateway.memory.loader import MemoryLoader
from gateway.memory.recall import Recall, render_known
from gateway.memory.trust import TrustLevel
from gateway.session import VoiceSession
from gateway.tools.loader import CallTools, ToolLoader

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
    forget: Forget | None = None
    """For callers who ask for it aloud."""

    async def search(self, agent: str, caller: str, text: str, *, person: str = "") -> str:
        """What is known of this caller that fits these words, as text for the agent."""
        known = await self.recall.search(agent, caller, text, person=person)
        return render_known(known, budget_tokens=SEARCH_TOKENS)


class AgentMemory:
    """The MemorySource of one call."""

    def __init__(self, services: MemoryServices, agent: Agent, access: MemoryAccess) -> None:
        self._services = services
        self._agent = agent
        self._access = access

    @property
    def can_erase(self) -> bool:
        return self._services.forget is not None

    def load(self, caller: str) -> MemoryLoader | None:
        may_rise = self._agent.trust.pin is not None
        if not caller or not (may_rise or self._access.allows(TrustLevel.NAME)):
            return None
        return MemoryLoader(self._services.recall, agent=self._agent.name, caller=caller, limit=self._services.limit)

    async def erase(self, caller: str) -> None:
        if self._services.forget is not None:
            await self._services.forget(self._agent.name, caller)


class CallResources:
    """Provides it for each call. Without `memory` nothing is stored or read. `share` sends turns to other nodes."""

    def __init__(
        self,
        memory: MemoryServices | None,
        tool_loader: ToolLoader,
        recordings: RecordingDirectory,
        call_events: EventPublisher,
        share: ShareRow,
    ) -> None:
        self._memory = memory
        self._tool_loader = tool_loader
        self._recordings = recordings
        self._call_events = call_events
        self._share = share

    @property
    def has_memory(self) -> bool:
        return self._memory is not None

    # While the phone rings

    def prepare(self, call: ManagedCall) -> None:
        """Begin to load what the call will need: memory, and the agent's functions."""
        call.tools = self._tool_loader.load(call.agent, call.access)
        if self._memory is not None:
            call.access.open(AgentMemory(self._memory, call.agent, call.access))

    def session(self, call: ManagedCall) -> VoiceSession | None:
        """For a caller who will be remembered; another's call gets one when it is answered."""
        return call.new_session() if self._memory is not None and call.caller else None

    # With its media

    async def call_tools(self, call: ManagedCall) -> CallTools:
        return await (call.tools or self.load_tools(call))

    async def load_tools(self, call: ManagedCall) -> CallTools:
        return await self._tool_loader.load(call.agent, call.access)

    def recorder(self, session: VoiceSession, call: ManagedCall, call_tools: CallTools) -> CallRecorder:
        recorder = self._recordings.record(session.uuid)
        known = {"remembers": self.has_memory, "functions": call_tools.function_names}
        recorder.note("call", call.recording_header(session) | known)
        return recorder

    def call_events(self, call: ManagedCall) -> CallEvents:
        """The live events of a call. Neither words nor number are kept of a call that leaves nothing behind."""
        kept = self._memory is not None and bool(call.caller)
        return self._call_events.call(
            call.session_id,
            call.agent.name,
            call.number or call.caller,
            call.key[0],
            kept=kept,
            share=self._share,
        )

    # The call log

    def open_log(self, session: VoiceSession, call: ManagedCall) -> None:
        """Make the call recoverable, if anything is kept of its caller."""
        if self._memory is not None and session.caller:
            self._memory.log.open_call(session, call.journal_header)

    def take_over(self, session: VoiceSession | None, call: ManagedCall) -> None:
        """The call was another node's: from here on this log has it."""
        if self._memory is not None and session is not None:
            self._memory.log.take_over(session, call.journal_header)

    async def restore_turns(self, session: VoiceSession) -> None:
        """Add turns that a dead worker on this disk logged but could not share."""
        rows = await self._memory.log.rows(session.id) if self._memory is not None else []
        if rows and len(turns_from_rows(rows)) >= len(session.turns):
            restore(session, rows)

    async def unfinished(self) -> list[RecoveredCall]:
        """Calls that were live when their process died."""
        return await self._memory.log.unfinished() if self._memory is not None else []

    def claim(self, session_id: str) -> None:
        """A dead process's call is this one's to see to."""
        if self._memory is not None:
            self._memory.log.claim(session_id)

    def discard(self, session_id: str) -> None:
        """Recovery of the call is not needed any more."""
        if self._memory is not None:
            self._memory.log.release(session_id)
