"""Calls that are over here: watchers and other nodes are told, and what was said goes to its ending."""

import functools

from gateway.calls.call_resources import CallResources
from gateway.calls.pending_call import PendingCall
from gateway.calls.recorder import CallRecorder
from gateway.cluster.node import ClusterNode
from gateway.finalization.worker import FinalizationWorker
from gateway.history.live_events import EventPublisher
from gateway.session import CallKey, EndReason, VoiceSession
from gateway.tools.executor import run_end_function


class CallFinisher:
    """Sees each call off, once the registry knows that it is over."""

    def __init__(
        self,
        finalizer: FinalizationWorker,
        resources: CallResources,
        call_events: EventPublisher,
        cluster: ClusterNode | None,
    ) -> None:
        self._finalizer = finalizer
        self._resources = resources
        self._call_events = call_events
        self._cluster = cluster

    def settle(self, pending: PendingCall, reason: EndReason) -> None:
        """A call that rang or was parked is over: what was said in it is kept."""
        pending.cancel()
        if pending.session is not None and pending.session.end_reason is not EndReason.GATEWAY_DIED:
            pending.session.end_reason = reason
        if pending.session is None:
            self._resources.call_events(pending).publish("hangup", reason=str(reason), seconds=0, turns=0)
        self.finish(pending, pending.session, pending.recorder)

    def finish(
        self,
        pending: PendingCall,
        session: VoiceSession | None,
        recorder: CallRecorder | None = None,
        *,
        wound_up: bool = False,
    ) -> None:
        """
        The call is over, and comes to its ending. Other nodes keep what they know of it until that has begun.

        `wound_up`: the agent's last function was run in the call. Else, where its media was lost or its gateway has
        died, it is run now.
        """
        key = pending.key
        if self._cluster is not None:
            self._cluster.directory.over(key)
        if session is not None:
            self._tell_end(session)
            owes_last_function = pending.agent.functions is not None and bool(session.turns) and not wound_up
            first = functools.partial(self._wind_up, pending, session) if owes_last_function else None
            self._finalizer.submit(session, recorder, on_started=lambda: self._settled(key, session.id), first=first)
        else:
            self._settled(key)

    def let_go(self, pending: PendingCall) -> None:
        """The call is another node's, which is told what was said here when it has ended there."""
        pending.cancel()
        if pending.recorder is not None:
            pending.recorder.close()
        if pending.session is None:
            return
        if self._cluster is not None and self._finalizer.is_shared and pending.session.turns:
            self.contribute(pending.key, pending.session, self._cluster)
        else:
            self._resources.discard(pending.session.id)

    def contribute(self, key: CallKey, session: VoiceSession, cluster: ClusterNode) -> None:
        """What this node knows of a call that goes on at another one."""
        self._finalizer.contribute(session, functools.partial(cluster.until_over, key))

    async def _wind_up(self, pending: PendingCall, session: VoiceSession) -> None:
        await run_end_function(session, await self._resources.load_tools(pending))

    def _tell_end(self, session: VoiceSession) -> None:
        seconds, turns = round(session.seconds, 1), len(session.turns)
        call_events = self._call_events.of(session, kept=self._resources.has_memory)
        call_events.publish("hangup", reason=str(session.end_reason or EndReason.FAILED), seconds=seconds, turns=turns)

    def _settled(self, key: CallKey, session_id: str = "") -> None:
        if self._cluster is not None:
            self._cluster.directory.settled(key, session_id)
