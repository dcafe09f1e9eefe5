"""What each call is given on its way: its caller's memory, functions, a journal, a recorder, its side of the feed."""

from dataclasses import dataclass
from typing import Final

from gateway.calls.memory_commands import Forget
from gateway.calls.pending_call import PendingCall
from gateway.calls.recorder import CallRecorder, RecordingDirectory
from gateway.history.call_log import CallLog, RecoveredCall, restore, turns_from_rows
from gateway.history.live_events import CallEvents, EventPublisher, ShareRow
from gateway.memory.loader import MemoryLoader
from gateway.memory.recall import Recall, render_known
from gateway.memory.trust import TrustLevel
from gateway.session import VoiceSession
from gateway.tools.prepared import CallTools, ToolLoader

SEARCH_TOKENS: Final = 600
"""How much an agent that searches its memory gets to read."""


@dataclass(frozen=True)
class MemoryServices:
    """What is kept of calls and where past ones are looked up. None of it for a nameless caller."""

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


class CallResources:
    """Hands it out. Without `memory` nothing is kept or read of anybody. `share` tells other nodes every turn."""

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

    @property
    def forget(self) -> Forget | None:
        return self._memory.forget if self._memory is not None else None

    # While the phone rings

    def prepare(self, pending: PendingCall) -> None:
        """Begin to load what the call will need: memory, and the agent's functions."""
        pending.call_tools = self._tool_loader.pack(pending.agent, pending.caller, pending.access)
        pending.memory = self.remembering(pending, pending.caller)

    def remembering(self, pending: PendingCall, caller: str) -> MemoryLoader | None:
        """Begin to load what is known of this caller, as far as this call may ever be told."""
        may_rise = pending.agent.trust.pin is not None
        if self._memory is None or not caller or not (may_rise or pending.access.allows(TrustLevel.NAME)):
            return None
        return MemoryLoader(self._memory.recall, agent=pending.agent.name, caller=caller, limit=self._memory.limit)

    def session(self, pending: PendingCall) -> VoiceSession | None:
        """For a caller who will be remembered; another's call gets one when it is answered."""
        return pending.new_session() if self._memory is not None and pending.caller else None

    # With its media

    async def call_tools(self, pending: PendingCall) -> CallTools:
        return await (pending.call_tools or self._tool_loader.pack(pending.agent, pending.caller, pending.access))

    async def kit_for(self, pending: PendingCall, caller: str) -> CallTools:
        """Another one, for this caller."""
        return await self._tool_loader.pack(pending.agent, caller, pending.access)

    def recorder(self, session: VoiceSession, pending: PendingCall, call_tools: CallTools) -> CallRecorder:
        recorder = self._recordings.record(session.uuid)
        known = {"remembers": self.has_memory, "functions": call_tools.function_names}
        recorder.note("call", pending.recording_header(session) | known)
        return recorder

    def call_events(self, pending: PendingCall) -> CallEvents:
        """What is told of a call. Of one that leaves nothing behind neither words nor number are kept."""
        kept = self._memory is not None and bool(pending.caller)
        return self._call_events.call(
            pending.session_id,
            pending.agent.name,
            pending.number or pending.caller,
            pending.key[0],
            kept=kept,
            share=self._share,
        )

    # The call log

    def open_log(self, session: VoiceSession, pending: PendingCall) -> None:
        """Make the call recoverable, if anything is kept of its caller."""
        if self._memory is not None and session.caller:
            self._memory.log.open_call(session, pending.journal_header)

    def take_over(self, session: VoiceSession | None, pending: PendingCall) -> None:
        """The call was another node's: from here on this log has it."""
        if self._memory is not None and session is not None:
            self._memory.log.take_over(session, pending.journal_header)

    async def recollect(self, session: VoiceSession) -> None:
        """Add what a worker that shares our disk had written down, and could not tell before it died."""
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
