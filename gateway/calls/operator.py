"""What an operator sees of calls and does to them, at this node or any other."""

from dataclasses import replace

from gateway.calls.call import Call
from gateway.calls.call_table import CallTable
from gateway.cluster.directory import NodeCommandKind
from gateway.cluster.node import ClusterNode
from gateway.session import EndReason, VoiceSession


class OperatorControl:
    """All calls that have their media."""

    def __init__(self, call_table: CallTable, cluster: ClusterNode | None) -> None:
        self._call_table = call_table
        self._cluster = cluster

    async def all_calls(self) -> list[VoiceSession]:
        """Every call, oldest first, with what was said so far."""
        here = [replace(call.session, turns=call.turns()) for call in self._call_table.live_calls()]
        known = {session.id for session in here}
        others = await self._cluster.sessions_elsewhere() if self._cluster is not None else []
        elsewhere = [session for session in others if session.id not in known]
        return sorted([*here, *elsewhere], key=lambda session: session.started_at)

    def here(self, session_id: str) -> Call | None:
        """A call that goes on at this node."""
        calls = (call for call in self._call_table.live_calls() if call.session.id == session_id and not call.is_over)
        return next(calls, None)

    async def have_ended(self, session_id: str) -> bool:
        """End a call; false where nobody has it."""
        if call := self.here(session_id):
            call.end(EndReason.OPERATOR_HUNG_UP)
            return True
        return self._cluster is not None and await self._cluster.have(NodeCommandKind.END, session_id)

    async def have_said(self, session_id: str, words: str) -> bool:
        """Have the agent say this in a call; false where nobody has it."""
        if call := self.here(session_id):
            call.say(words)
            return True
        return self._cluster is not None and await self._cluster.have(NodeCommandKind.SAY, session_id, words)
