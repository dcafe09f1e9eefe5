"""What an operator sees of live calls and does to them, at this node or another one."""

from dataclasses import dataclass, replace

from gateway.calls.call import Call
from gateway.calls.call_table import CallTable
from gateway.cluster.directory import NodeCommandKind
from gateway.cluster.node import Cluster
from gateway.session import EndReason, VoiceSession


@dataclass(frozen=True)
class OperatorControl:
    """Controls every call that has media."""

    table: CallTable
    cluster: Cluster

    async def all_calls(self) -> list[VoiceSession]:
        """Every call with its turns so far, oldest first."""
        here = [replace(call.session, turns=call.turns()) for call in self.table.with_media()]
        known = {session.id for session in here}
        elsewhere = [session for session in await self.cluster.sessions_elsewhere() if session.id not in known]
        return sorted([*here, *elsewhere], key=lambda session: session.started_at)

    def here(self, session_id: str) -> Call | None:
        """The call, if it is live at this node."""
        calls = (call for call in self.table.with_media() if call.session.id == session_id and not call.is_over)
        return next(calls, None)

    async def end_call(self, session_id: str) -> bool:
        """False if no node has the call."""
        if call := self.here(session_id):
            call.end(EndReason.OPERATOR_HUNG_UP)
            return True
        return await self.cluster.command(NodeCommandKind.END, session_id)

    async def say(self, session_id: str, text: str) -> bool:
        """Have the agent say this. False if no node has the call."""
        if call := self.here(session_id):
            call.operator_says(text)
            return True
        return await self.cluster.command(NodeCommandKind.SAY, session_id, text)
