"""
The front desk: lets calls in, hands each media socket to its call, and sees every call through to its ending.

Web handlers talk to the desk; the desk knows no HTTP and no carrier's dialect.
"""

import asyncio
import contextlib
import enum
import itertools
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

from gateway.calls.agents import AgentBook
from gateway.calls.engine_keeper import EngineAccess
from gateway.calls.finalize import Finalizer
from gateway.calls.pipeline import Call
from gateway.calls.registry import TOKEN_SECONDS, CallKey, Registry, Ring
from gateway.calls.remembering import Remembering
from gateway.calls.session import EndReason, VoiceSession
from gateway.carriers.events import StreamStarted
from gateway.carriers.numbers import AllowList, caller_id
from gateway.errors import CarrierRefused
from gateway.links.carrier import CarrierLink
from gateway.links.carrier_rest import CallControl
from gateway.links.recorder import FORMAT, RecordingRoom
from gateway.logs import last_four
from gateway.memory.recall import Recall

TICK_SECONDS: Final = 0.1
TICK_GROUPS: Final = 10
PENDING_SOCKETS: Final = 200
"""Media sockets that have not sent a valid `start`. One more, and the oldest of them is closed."""

_log = logging.getLogger(__name__)


class Refusal(enum.StrEnum):
    """Why a call was not let in; the text says what the operator can do."""

    NOT_ALLOWED = "caller is not in ALLOWED_CALLERS"
    NOBODY_ALLOWED = "ALLOWED_CALLERS is empty; set it to your number, or to * for anyone"
    NO_ENGINE = "no voice engine; set DEEPGRAM_API_KEY"
    CLOSING = "gateway is shutting down"
    OVER = "call is already over"


@dataclass(frozen=True)
class Memory:
    """Where past calls are looked up, and how many go into the prompt. None of it for a nameless caller."""

    recall: Recall
    limit: int


class CallDesk:
    """Owns every live call's task, the clock that ticks them, and the sockets that nobody has claimed yet."""

    def __init__(
        self,
        *,
        agents: AgentBook,
        allowed: AllowList,
        engine: EngineAccess | None,
        controls: Mapping[str, CallControl],
        memory: Memory | None,
        finalizer: Finalizer,
        recordings: RecordingRoom,
        apology: bytes,
    ) -> None:
        self._agents = agents
        self._allowed = allowed
        self._engine = engine
        self._controls = controls
        self._memory = memory
        self._finalizer = finalizer
        self._recordings = recordings
        self._apology = apology
        self._registry = Registry()
        self._pending: dict[CarrierLink, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    @property
    def live_calls(self) -> int:
        return len(self._registry)

    @property
    def takes_calls(self) -> bool:
        return not self._closing

    async def run(self) -> None:
        """Tick all calls until cancelled, some at a time: all at once would hold up a frame."""
        loop = asyncio.get_running_loop()
        for turn in itertools.cycle(range(TICK_GROUPS)):
            await asyncio.sleep(TICK_SECONDS / TICK_GROUPS)
            now = loop.time()
            for call in itertools.islice(self._registry.live_calls(), turn, None, TICK_GROUPS):
                call.tick(now)
            if turn == 0:
                for ring in self._registry.unclaimed(now):
                    self._give_up_ring(ring)

    async def close(self) -> None:
        """Let no more calls in, end the live ones, and wait until each has been handed to its ending."""
        self._closing = True
        for link in list(self._pending):
            link.close()
        for call in self._registry.live_calls():
            call.end(EndReason.SHUTDOWN)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=15)

    # The webhooks' side

    def is_new_event(self, event_id: str) -> bool:
        return self._registry.is_new_event(event_id)

    def ring(self, key: CallKey, *, caller: str, called: str, account_id: str = "") -> Ring | Refusal:
        """
        A phone rings. The same call asked twice gets the same answer.

        Loading of memory starts here, before the media socket opens.
        """
        if ring := self._registry.ring(key):
            return ring
        number = caller_id(caller)
        refusal = self._refusal(key, number)
        if refusal is not None:
            _log.warning("call refused", extra={"caller": last_four(number), "carrier": key[0], "reason": str(refusal)})
            return refusal
        agent = self._agents.answering(called)
        memory = self._remembering(agent.name, number)
        expires = asyncio.get_running_loop().time() + TOKEN_SECONDS
        ring = Ring(key, account_id, number, called, agent, expires, memory)
        self._registry.add_ring(ring)
        _log.info("phone rings", extra={"caller": last_four(number), "carrier": key[0], "agent": agent.name})
        return ring

    def carrier_ended(self, key: CallKey) -> None:
        """The carrier says that the call is over; it may say so before we have heard of the call at all."""
        call = self._registry.live(key)
        if call is not None:
            call.end(EndReason.CALLER_HUNG_UP, carrier_over=True)
        elif ring := self._registry.ended(key, asyncio.get_running_loop().time()):
            self._forget_ring(ring)

    def stream_failed(self, key: CallKey) -> None:
        """The carrier could not stream, or stopped: the call is of no use any more."""
        call = self._registry.live(key)
        if call is not None:
            call.end(EndReason.STREAM_LOST)
        elif ring := self._registry.ended(key, asyncio.get_running_loop().time()):
            self._give_up_ring(ring)

    # The media sockets' side

    def expect(self, link: CarrierLink) -> None:
        """A media socket opened; it has yet to show which call it is."""
        self._pending[link] = None
        if len(self._pending) > PENDING_SOCKETS:
            oldest = next(iter(self._pending))
            del self._pending[oldest]
            _log.warning("too many media sockets without a start", extra={"carrier": oldest.carrier})
            oldest.close()

    def gone(self, link: CarrierLink) -> None:
        self._pending.pop(link, None)

    def admit(self, started: StreamStarted, link: CarrierLink) -> Call | None:
        """Judge a `start`: with the call's unspent token it becomes the call's media, else it is a stranger's."""
        self._pending.pop(link, None)
        key = (link.carrier, started.call_id)
        now = asyncio.get_running_loop().time()
        ring = self._registry.redeem(key, started.token, started.account_id, now)
        if ring is None or self._engine is None or self._closing:
            _log.warning("media socket refused", extra={"carrier": link.carrier, "reason": "no valid token"})
            return None
        call = self._call(ring, link, self._engine)
        self._registry.went_live(key, call)
        self._keep(asyncio.get_running_loop().create_task(self._conduct(call, ring), name=call.session.id))
        return call

    # Itself

    def _refusal(self, key: CallKey, caller: str) -> Refusal | None:
        if self._closing:
            return Refusal.CLOSING
        if self._registry.is_over(key):
            return Refusal.OVER
        if not self._allowed:
            return Refusal.NOBODY_ALLOWED
        if not self._allowed.admits(caller):
            return Refusal.NOT_ALLOWED
        return Refusal.NO_ENGINE if self._engine is None else None

    def _remembering(self, agent: str, caller: str) -> Remembering | None:
        if self._memory is None or not caller:
            return None
        return Remembering(self._memory.recall, agent=agent, caller=caller, limit=self._memory.limit)

    def _call(self, ring: Ring, link: CarrierLink, engine: EngineAccess) -> Call:
        carrier, call_id = ring.key
        control = self._controls[carrier]
        session = VoiceSession(agent=ring.agent.name, caller=ring.caller, carrier=carrier)
        recorder = self._recordings.record(session.uuid)
        if recorder is not None:
            recorder.note("call", _header(session, ring))
        return Call(
            session,
            ring.agent,
            link,
            engine,
            memory=ring.memory,
            hang_up=lambda: control.hang_up(call_id),
            stop_ends_call=control.stop_ends_call,
            apology=self._apology,
            recorder=recorder,
        )

    async def _conduct(self, call: Call, ring: Ring) -> None:
        try:
            await call.run()
        except Exception:
            # The edge of a call: whatever went wrong in it stays in it, and what was said is kept.
            _log.exception("call failed", extra={"call": call.session.uuid[:8]})
        finally:
            self._registry.ended(ring.key, asyncio.get_running_loop().time())
            self._finalizer.submit(call.session, call.recorder)

    def _give_up_ring(self, ring: Ring) -> None:
        _log.warning("no media came for a call", extra={"carrier": ring.key[0]})
        self._forget_ring(ring)
        self._keep(asyncio.get_running_loop().create_task(self._hang_up(ring.key), name="hang-up"))

    def _forget_ring(self, ring: Ring) -> None:
        if ring.memory is not None:
            ring.memory.cancel()

    async def _hang_up(self, key: CallKey) -> None:
        with contextlib.suppress(CarrierRefused):  # nobody is on the line to miss it
            await self._controls[key[0]].hang_up(key[1])

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _header(session: VoiceSession, ring: Ring) -> dict[str, object]:
    """How a recording begins: what a replay must know to place the call again."""
    return {
        "format": FORMAT,
        "carrier": session.carrier,
        "caller": ring.caller,
        "called": ring.called,
        "account_id": ring.account_id,
        "call_id": ring.key[1],
        "session": session.id,
        "started_at": session.started_at.isoformat(),
        "agent": asdict(ring.agent) | {"timezone": str(ring.agent.timezone or "")},
    }
