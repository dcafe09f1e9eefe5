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
        provisions: CallResources,
        feed: EventPublisher,
        neighbours: ClusterNode | None,
    ) -> None:
        self._finalizer = finalizer
        self._provisions = provisions
        self._feed = feed
        self._neighbours = neighbours

    def settle(self, ring: PendingCall, reason: EndReason) -> None:
        """A call that rang or was parked is over: what was said in it is kept."""
        ring.cancel()
        if ring.session is not None and ring.session.end_reason is not EndReason.GATEWAY_DIED:
            ring.session.end_reason = reason
        if ring.session is None:
            self._provisions.feed(ring).tell("hangup", reason=str(reason), seconds=0, turns=0)
        self.finish(ring, ring.session, ring.recorder)

    def finish(
        self,
        ring: PendingCall,
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
        key = ring.key
        if self._neighbours is not None:
            self._neighbours.commons.over(key)
        if session is not None:
            self._tell_end(session)
            owes_last_function = ring.agent.functions is not None and bool(session.turns) and not wound_up
            first = functools.partial(self._wind_up, ring, session) if owes_last_function else None
            self._finalizer.submit(session, recorder, begun=lambda: self._settled(key, session.id), first=first)
        else:
            self._settled(key)

    def let_go(self, ring: PendingCall) -> None:
        """The call is another node's, which is told what was said here when it has ended there."""
        ring.cancel()
        if ring.recorder is not None:
            ring.recorder.close()
        if ring.session is None:
            return
        if self._neighbours is not None and self._finalizer.is_shared and ring.session.turns:
            self.contribute(ring.key, ring.session, self._neighbours)
        else:
            self._provisions.discard(ring.session.id)

    def contribute(self, key: CallKey, session: VoiceSession, neighbours: ClusterNode) -> None:
        """What this node knows of a call that goes on at another one."""
        self._finalizer.contribute(session, functools.partial(neighbours.until_over, key))

    async def _wind_up(self, ring: PendingCall, session: VoiceSession) -> None:
        await run_end_function(session, await self._provisions.kit_for(ring, session.caller))

    def _tell_end(self, session: VoiceSession) -> None:
        seconds, turns = round(session.seconds, 1), len(session.turns)
        feed = self._feed.of(session, kept=self._provisions.has_memory)
        feed.tell("hangup", reason=str(session.end_reason or EndReason.FAILED), seconds=seconds, turns=turns)
        self._feed.call_over(session.id)

    def _settled(self, key: CallKey, session_id: str = "") -> None:
        if self._neighbours is not None:
            self._neighbours.commons.settled(key, session_id)
