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
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

from gateway import logs
from gateway.calls.agents import AgentBook
from gateway.calls.brain_room import BrainRoom, Thought
from gateway.calls.engine_keeper import EngineAccess
from gateway.calls.feed import CallFeed, Feed
from gateway.calls.finalize import Finalizer
from gateway.calls.functions.kit import Kit, KitRoom
from gateway.calls.hands import wind_up
from gateway.calls.journal import Journal, JournaledCall, TurnLog, restore, turns_of
from gateway.calls.levels import SHOW_SECONDS, Levels
from gateway.calls.loop_watch import LoopWatch
from gateway.calls.nodes.commons import CallRecord, CallState, Commons, Word
from gateway.calls.nodes.neighbours import Neighbours
from gateway.calls.pipeline import Call
from gateway.calls.registry import RESUME_SECONDS, RESUME_TRIES, TOKEN_SECONDS, Registry, Ring
from gateway.calls.remembering import Remembering
from gateway.calls.session import CallKey, EndReason, VoiceSession, new_session_id
from gateway.calls.wishes import Forget
from gateway.carriers.attestation import Attestation
from gateway.carriers.events import StreamStarted
from gateway.carriers.numbers import AllowList, caller_id, e164
from gateway.errors import BoardUnavailable, CarrierRefused, StreamInUse
from gateway.links.carrier import CarrierLink
from gateway.links.carrier_rest import CallControl
from gateway.links.recorder import FORMAT, CallRecorder, RecordingRoom
from gateway.logs import last_four
from gateway.memory.identity import identifier
from gateway.memory.recall import Recall, render_known
from gateway.memory.trust import Clearance, Tier
from gateway.metrics import REFUSED, WATCHDOG

TICK_SECONDS: Final = 0.1
TICK_GROUPS: Final = 10
PENDING_SOCKETS: Final = 200
"""Media sockets that have not sent a valid `start`. One more, and the oldest of them is closed."""

SEARCH_TOKENS: Final = 600
"""How much an agent that searches its memory gets to read."""

STEADY_SECONDS: Final = 30.0
"""A stream that has held so long was a good one: what comes after its loss is the first try again."""
HANGUP_GRACE: Final = 1.0
"""A stream that stopped is usually the first sign of a hangup; the carrier gets so long to say so."""
RESTART_PAUSE: Final = 1.0

_RECORDED: Final = ("name", "prompt", "greeting", "sorry", "numbers", "listen", "think", "speak")
"""What a replay must know of an agent."""

_log = logging.getLogger(__name__)


class Refusal(enum.StrEnum):
    """Why a call was not let in; the text says what the operator can do."""

    NOT_ALLOWED = "caller is not in ALLOWED_CALLERS"
    NOBODY_ALLOWED = "ALLOWED_CALLERS is empty; set it to your number, or to * for anyone"
    NO_ENGINE = "no voice engine; set DEEPGRAM_API_KEY, or run: pip install 'voice-gateway[local]'"
    CLOSING = "gateway is shutting down"
    OVER = "call is already over"


@dataclass(frozen=True)
class Memory:
    """What is kept of calls and where past ones are looked up. None of it for a nameless caller."""

    recall: Recall
    limit: int
    """How many past calls go into the prompt."""
    journal: Journal
    forget: Forget | None = None
    """For callers who ask for it aloud."""

    async def search(self, agent: str, caller: str, text: str, *, person: str = "") -> str:
        """What is known of this caller that fits these words, as text for the agent."""
        known = await self.recall.search(agent, caller, text, person=person)
        return render_known(known, budget_tokens=SEARCH_TOKENS)


@dataclass(frozen=True)
class CarrierLine:
    """One call at its carrier."""

    control: CallControl
    call_id: str
    called: str
    media_url: str
    is_ours: Callable[[], Awaitable[bool]]

    @property
    def stop_ends_call(self) -> bool:
        return self.control.stop_ends_call

    async def hang_up(self) -> None:
        if await self.is_ours():
            await self.control.hang_up(self.call_id)

    async def transfer(self, target: str) -> None:
        """From the number that was dialled: a carrier takes no other of ours, and the caller's is not ours to show."""
        caller_id = e164(self.called) or ""
        await self.control.transfer(self.call_id, target, caller_id=caller_id, media_url=self.media_url)


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
        kits: KitRoom | None = None,
        brains: BrainRoom | None = None,
        neighbours: Neighbours | None = None,
        feed: Feed | None = None,
        levels: Levels | None = None,
    ) -> None:
        self._agents = agents
        self._allowed = allowed
        self._engine = engine
        self._controls = controls
        self._memory = memory
        self._finalizer = finalizer
        self._recordings = recordings
        self._apology = apology
        self._kits = kits or KitRoom()
        self._brains = brains
        self._neighbours = neighbours
        self._feed = feed or Feed()
        self._levels = levels or Levels()
        self._measures = False
        self._shown_at = 0.0
        self._registry = Registry()
        self._pending: dict[CarrierLink, None] = {}
        self._conducted: dict[Call, asyncio.Task[None]] = {}
        self._errands: set[asyncio.Task[None]] = set()
        self._loop_watch = LoopWatch()
        self._empty = asyncio.Event()
        self._closing = False
        self._closed = False

    @property
    def live_calls(self) -> int:
        return len(self._registry)

    def on_the_line(self) -> list[Call]:
        """The calls that have their media here, oldest first."""
        return list(self._registry.live_calls())

    # What an operator wants, of calls here or at any node

    async def all_on_the_line(self) -> list[VoiceSession]:
        """Every call that has its media, oldest first, with what was said so far."""
        here = [replace(call.session, turns=call.turns()) for call in self.on_the_line()]
        known = {session.id for session in here}
        others = await self._neighbours.sessions_elsewhere() if self._neighbours is not None else []
        elsewhere = [session for session in others if session.id not in known]
        return sorted([*here, *elsewhere], key=lambda session: session.started_at)

    async def have_ended(self, session_id: str) -> bool:
        """End a call; false where nobody has it."""
        if call := self._here(session_id):
            call.end(EndReason.OPERATOR_HUNG_UP)
            return True
        return self._neighbours is not None and await self._neighbours.have(Word.END, session_id)

    async def have_said(self, session_id: str, words: str) -> bool:
        """Have the agent say this in a call; false where nobody has it."""
        if call := self._here(session_id):
            call.say(words)
            return True
        return self._neighbours is not None and await self._neighbours.have(Word.SAY, session_id, words)

    def operator_ends(self, key: CallKey) -> None:
        if call := self._registry.live(key):
            call.end(EndReason.OPERATOR_HUNG_UP)

    def operator_says(self, key: CallKey, words: str) -> None:
        if call := self._registry.live(key):
            call.say(words)

    def _here(self, session_id: str) -> Call | None:
        calls = (call for call in self.on_the_line() if call.session.id == session_id and not call.is_over)
        return next(calls, None)

    @property
    def loop_lag(self) -> float:
        """The longest that the event loop was held up in the last minute, in seconds."""
        return self._loop_watch.worst

    @property
    def takes_calls(self) -> bool:
        return not self._closing

    async def run(self) -> None:
        """Tick all calls until cancelled, some at a time: all at once would hold up a frame."""
        for turn in itertools.cycle(range(TICK_GROUPS)):
            before = time.monotonic()
            await asyncio.sleep(TICK_SECONDS / TICK_GROUPS)
            self._loop_watch.held_up(time.monotonic() - before - TICK_SECONDS / TICK_GROUPS)
            now = self._now()
            for call in itertools.islice(self._registry.live_calls(), turn, None, TICK_GROUPS):
                call.tick(now)
            if turn in (0, TICK_GROUPS // 2):
                self._measure(now)
            if turn == 0:
                if self._registry.is_empty(now):
                    self._empty.set()
                for ring in (*self._registry.unclaimed(now), *self._registry.overdue(now)):
                    self._errand(self._abandon(ring))

    def _measure(self, now: float) -> None:
        """Levels of all calls, while somebody watches."""
        if self._levels.wanted and now >= self._shown_at + SHOW_SECONDS:
            self._shown_at, self._measures = now, True
            levels = [(call.session.id, *call.levels(now)) for call in self._registry.live_calls()]
            self._levels.show([{"session": id_, "caller": caller, "agent": agent} for id_, caller, agent in levels])
        elif self._measures and not self._levels.wanted:
            self._measures = False
            self._levels.show([])
            for call in self._registry.live_calls():
                call.stop_measuring()

    async def drain(self, seconds: float) -> None:
        """
        Let no more calls in, and wait until those that are here have ended by themselves.

        One that waits for its media, the first or another, is among them.
        """
        self._closing = True
        self._empty.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._empty.wait()

    async def close(self) -> None:
        """Let no more calls in, end the live ones, and wait until each has been handed to its ending."""
        self._closing = self._closed = True
        for link in list(self._pending):
            link.close()
        for call in self._registry.live_calls():
            call.end(EndReason.SHUTDOWN)
        if tasks := {*self._conducted.values(), *self._errands}:
            await asyncio.wait(tasks, timeout=15)

    async def recover(self, ended: frozenset[str]) -> None:
        """
        Take up calls that were live when an earlier process died: they may go on, else they come to an end.

        `ended` are those whose ending has been begun; what their journal still holds is in it.
        """
        if self._memory is None:
            return
        for left in await self._memory.journal.unfinished():
            if left.session.id in ended:
                self._memory.journal.claim(left.session.id)
                self._memory.journal.forget(left.session.id)
            elif self._neighbours is None:
                self._continue(_ring_of_journal(left, self._agents), left.session)
            else:  # another node may have taken it over; to ask may take a while
                self._errand(self._reclaim(left, self._neighbours))

    async def _reclaim(self, left: JournaledCall, neighbours: Neighbours) -> None:
        ring = _ring_of_journal(left, self._agents)
        ours = await neighbours.reclaim(ring.key, left.node)
        if ours:
            self._continue(ring, left.session)
        elif ours is False and self._memory is not None:
            self._memory.journal.claim(left.session.id)
            _died(left.session)
            self._finalizer.contribute(left.session, functools.partial(neighbours.until_over, ring.key))

    def _continue(self, ring: Ring, session: VoiceSession) -> None:
        """A call whose process died: it may go on."""
        _log.warning("a call was live when its gateway died", extra={"call": session.uuid[:8]})
        if self._memory is not None:
            self._memory.journal.claim(session.id)
        _died(session)
        if ring.handed_over:
            session.end_reason = EndReason.TRANSFERRED
        if ring.key[0] in self._controls and not ring.handed_over:
            self._park(ring, session)
            self._errand(self._ask_if_alive(ring))
        else:
            self._finish(ring, session)

    # The webhooks' side

    async def is_new_event(self, event_id: str) -> bool:
        """Whether no node has seen this event."""
        if not self._registry.is_new_event(event_id):
            return False
        return self._neighbours is None or not event_id or await self._neighbours.is_new_event(event_id)

    async def ring(
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
    ) -> Ring | Refusal:
        """
        A phone rings. The same call asked twice gets the same answer. `vouched`: whoever calls, the operator lets them.

        Loading of memory starts here, before the media socket opens: as much as a caller of this attestation is told.
        """
        if ring := self._registry.ring(key):
            return ring
        number = caller_id(caller)
        refusal = self._refusal(key, number, vouched=vouched)
        if refusal is not None:
            _log.warning("call refused", extra={"caller": last_four(number), "carrier": key[0], "reason": str(refusal)})
            REFUSED.count(key[0], refusal.name.lower().replace("_", " "))
            stranger = self._feed.call("", "", number, key[0], kept=self._memory is not None)
            stranger.tell("refused", called=called, reason=str(refusal))
            return refusal
        agent = self._agents.answering(called)
        known_as = identifier(agent.repeat_caller, number, sip_headers=sip_headers, attributes=attributes)
        ring = Ring(key, account_id, known_as, called, agent, media_url, self._now() + TOKEN_SECONDS, number=number)
        logs.concerns(ring.session_id)
        listed = self._allowed.lists(number)
        ring.clearance.tier = agent.trust.tier(attestation, withheld=not number, allow_listed=listed)
        self._prepare(ring)
        if self._memory is not None and known_as:
            ring.session = self._session_of(ring)
        if self._neighbours is not None:
            if there := await self._neighbours.announce(ring):
                ring.cancel()
                known = self._registry.ring(key)
                return Refusal.OVER if there.state is not CallState.RINGING else known or self._ring_of(there)
            if self._registry.is_over(key):  # the caller hung up while others were told
                ring.cancel()
                self._neighbours.commons.settled(key)
                return Refusal.OVER
        if ring.session is not None:  # from here on a killed gateway knows that somebody is on the line
            self._journaled(ring.session, ring)
        self._registry.add_ring(ring)
        _log.info("phone rings", extra={"caller": last_four(number), "carrier": key[0], "agent": agent.name})
        self._feed_of(ring).tell("ringing", called=called)
        return ring

    async def resume(self, key: CallKey) -> Ring | None:
        """
        The carrier asks what to do with a call whose stream is over: go on with another one, or None for the end.

        The carrier may know of the loss before we do.
        """
        if call := self._registry.live(key):
            call.end(EndReason.STREAM_LOST)
            await asyncio.wait({self._conducted[call]})
        elif (ring := self._registry.ring(key)) and not ring.used:
            self._park(ring, ring.session)
        elif self._neighbours is not None and not self._registry.is_parked(key) and not self._registry.is_over(key):
            if fetched := await self._neighbours.fetch(key):
                self.take_up(*fetched)
        return await self._ring_again(key)

    def carrier_ended(self, key: CallKey) -> None:
        """The carrier says that the call is over; it may say so before we have heard of the call at all."""
        call = self._registry.live(key)
        if call is not None:
            call.end(EndReason.CALLER_HUNG_UP, carrier_over=True)
        elif ring := self._registry.ended(key, self._now()):
            self._settle(ring, EndReason.CALLER_HUNG_UP)
        elif self._neighbours is not None:
            self._errand(self._pass_on_end(key, self._neighbours))

    def stream_failed(self, key: CallKey, token: str = "") -> None:
        """
        The carrier could not stream, or stopped; the caller may still be there.

        `token` is the stream's, where the carrier names it: word of an earlier one may come late.
        """
        call, ring = self._registry.live(key), self._registry.ring(key)
        if token and ring is not None and token != ring.token:
            return
        if call is not None:
            call.end(EndReason.STREAM_STOPPED)
        elif ring is not None and not ring.used:
            self._park(ring, ring.session)
        elif ring is None and not self._registry.is_over(key) and not self._registry.is_parked(key):
            self._errand(self._stream_failed_elsewhere(key, token))

    def transferred(self, key: CallKey) -> None:
        """Somebody has picked up: the caller is theirs."""
        if ring := self._registry.handed_over(key):
            self._registry.ended(key, self._now())
            self._settle(ring, EndReason.TRANSFERRED)
        else:
            self._note_transfer(key, Word.TRANSFERRED)

    def transfer_failed(self, key: CallKey) -> None:
        """Nobody has picked up, and the carrier leaves the caller in silence: back to the agent."""
        if ring := self._registry.handed_over(key):
            ring.handed_over = False
            self._errand(self._restart_stream(ring))
        else:
            self._note_transfer(key, Word.TRANSFER_FAILED)

    def _note_transfer(self, key: CallKey, word: Word) -> None:
        """The outcome of a transfer is known before the call here has ended, or where it is not."""
        ring = self._registry.ring(key) if self._registry.live(key) else None
        if ring is not None:
            ring.picked_up = word is Word.TRANSFERRED
        elif self._neighbours is not None:
            self._errand(self._pass_on(word, key, self._neighbours))

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

    async def admit(self, started: StreamStarted, link: CarrierLink) -> Call | None:
        """Judge a `start`: with the call's unspent token it becomes the call's media, else it is a stranger's."""
        self._pending.pop(link, None)
        key = (link.carrier, started.call_id)
        ring = await self._redeemed(key, started)
        if ring is None or self._engine is None:
            _log.warning("media socket refused", extra={"carrier": link.carrier, "reason": "no valid token"})
            return None
        logs.concerns(ring.session_id)
        self._identify(ring, started.parameters)
        kit = await (ring.kit or self._kits.pack(ring.agent, ring.caller, ring.clearance))
        thought = None
        if self._brains is not None:
            thought = self._brains.open(ring.agent, ring.caller, ring.media_url, ring.clearance)
        call = self._call(ring, link, self._engine, kit, thought)
        self._registry.went_live(key, call)
        task = asyncio.get_running_loop().create_task(self._conduct(call, ring, thought), name=call.session.id)
        self._conducted[call] = task
        return call

    def _identify(self, ring: Ring, parameters: Mapping[str, str]) -> None:
        """The stream may tell who the caller is. One that goes on has told before."""
        source = ring.agent.repeat_caller.identifier_source
        if ring.attempt or source is None or source.kind != "integration_attribute" or source.name not in parameters:
            return
        known_as = identifier(ring.agent.repeat_caller, ring.number, attributes=parameters)
        if known_as == ring.caller:
            return
        ring.cancel()
        ring.caller, ring.memory = known_as, None
        if ring.session is not None and self._memory is not None:
            self._memory.journal.forget(ring.session.id)
        ring.session = self._session_of(ring) if self._memory is not None and known_as else None
        self._prepare(ring)

    async def _redeemed(self, key: CallKey, started: StreamStarted) -> Ring | None:
        """The call that this token opens, and no other node opens with it."""
        known = self._registry.ring(key)
        if self._neighbours is not None and (known is None or known.shared):
            with contextlib.suppress(BoardUnavailable):  # then only what this node itself has given counts
                record = await self._neighbours.redeem(key, started, known=known is not None)
                if record is None:
                    return None
                if self._registry.is_over(key):
                    await self._came_too_late(record, self._neighbours)
                    return None
                if record.node != self._neighbours.commons.node:
                    return await self._moved_here(record, self._neighbours)
        return self._registry.redeem(key, started.token, started.account_id, self._now())

    async def _came_too_late(self, record: CallRecord, neighbours: Neighbours) -> None:
        """The carrier said that the call is over while its media came here: it ends here."""
        if record.node == neighbours.commons.node:
            neighbours.commons.settled(record.key)
        else:
            self.take_up(replace(record, state=CallState.OVER), await neighbours.session_of(record))

    async def _moved_here(self, record: CallRecord, neighbours: Neighbours) -> Ring:
        """A call that rang at another node, and goes on here."""
        ring = self._ring_of(record, await neighbours.session_of(record))
        self._prepare(ring)
        ring.used = True
        if ring.session is not None and self._memory is not None:
            self._memory.journal.take_over(ring.session, _journal_header(ring))
        self._registry.add_ring(ring)
        return ring

    # A call's life

    def _call(self, ring: Ring, link: CarrierLink, engine: EngineAccess, kit: Kit, thought: Thought | None) -> Call:
        carrier, call_id = ring.key
        session = ring.session or self._session_of(ring)
        if not session.turns:
            session.started_at = datetime.now(UTC)  # not when it rang
        call = Call(
            session,
            ring.agent,
            link,
            engine,
            line=CarrierLine(
                self._controls[carrier],
                call_id,
                ring.called,
                ring.media_url,
                functools.partial(self._is_ours, ring.key),
            ),
            apology=self._apology,
            memory=ring.memory,
            clearance=ring.clearance,
            kit=kit,
            endpoint=thought.endpoint if thought is not None else None,
            journal=self._journaled(session, ring),
            recorder=None if session.off_record else ring.recorder or self._recorder(session, ring),
            forget=self._memory.forget if self._memory is not None else None,
            look_up=lambda caller: self._remembering(ring, caller),
            feed=self._feed_of(ring),
        )
        if thought is not None and self._brains is not None:
            call.on_other_memory = functools.partial(self._brains.keep_to_itself, thought, ring.agent)
            thought.thinker.watched_by(call)
            thought.thinker.stood_in_by(call.reply_to)
        return call

    async def _conduct(self, call: Call, ring: Ring, thought: Thought | None) -> None:
        ring.recorder, ring.adopted = call.recorder, False
        steady_at = self._now() + STEADY_SECONDS
        feed = self._feed_of(ring)
        feed.tell("answered", attempt=ring.attempt)
        try:
            await call.run()
        except Exception as error:
            # The edge of a call: whatever went wrong in it stays in it, and what was said is kept.
            _log.exception("call failed", extra={"call": call.session.uuid[:8]})
            feed.tell("error", what="call failed", reason=type(error).__name__)
        finally:
            ring.recorder, ring.caller = call.recorder, call.session.caller
            if thought is not None and self._brains is not None:
                self._brains.close(thought)
            if ring.taken:
                self._let_go(ring)
            elif call.may_go_on and not ring.picked_up and not self._closed:
                ring.handed_over = call.session.end_reason is EndReason.TRANSFERRED and ring.picked_up is None
                feed.tell("media_lost", reason=str(call.session.end_reason))
                ring.attempt = 0 if self._now() >= steady_at else ring.attempt
                self._park(ring, call.session)
            else:
                self._registry.ended(ring.key, self._now())
                self._finish(ring, call.session, call.recorder, wound_up=call.wound_up)
            del self._conducted[call]

    # A call that has lost its stream

    def _park(self, ring: Ring, session: VoiceSession | None) -> None:
        ring.session = session
        self._registry.park(ring, self._now() + RESUME_SECONDS)
        if self._neighbours is not None:
            self._neighbours.parked(ring)
        if ring.handed_over:  # the carrier tells whether somebody picks up
            if session is not None:
                self._journaled(session, ring)
            return
        if ring.attempt >= RESUME_TRIES:
            self._registry.ended(ring.key, self._now())
            self._give_up(ring)
        elif not self._controls[ring.key[0]].asks_to_resume:
            self._errand(self._restart_stream(ring))

    async def _ask_if_alive(self, ring: Ring) -> None:
        """After a restart nobody may ever tell us that the caller has gone."""
        carrier, call_id = ring.key
        if not await self._controls[carrier].is_alive(call_id):
            self.carrier_ended(ring.key)

    async def _restart_stream(self, ring: Ring) -> None:
        """Ask the carrier for a new stream, if the caller is still there."""
        logs.concerns(ring.session_id)
        carrier, call_id = ring.key
        control = self._controls[carrier]
        await asyncio.sleep(HANGUP_GRACE if ring.attempt == 0 else RESTART_PAUSE)
        if not await control.is_alive(call_id):
            self.carrier_ended(ring.key)
        elif not await self._is_ours(ring.key):
            self.drop(ring.key)
        elif again := await self._ring_again(ring.key):  # else it ended meanwhile
            try:
                await control.restart_stream(call_id, stream_url=again.stream_url, replaces=not again.adopted)
            except CarrierRefused as error:
                _log.warning("no new stream", extra={"carrier": carrier, "reason": str(error)})
                if again.adopted and isinstance(error, StreamInUse):  # perhaps another node's, which has the caller
                    again.attempt = 0
                    self._registry.park(again, self._now() + RESUME_SECONDS)
                else:
                    self._registry.ended(ring.key, self._now())
                    self._give_up(again)

    async def _ring_again(self, key: CallKey) -> Ring | None:
        parked = self._registry.unpark(key)
        if parked is None:
            return None
        logs.concerns(parked.session_id)
        again = parked.again(expires=self._now() + TOKEN_SECONDS)
        self._prepare(again)
        self._registry.add_ring(again)
        if self._neighbours is not None:
            await self._neighbours.announce_again(again)
        _log.info("call goes on", extra={"carrier": key[0], "attempt": again.attempt})
        return again

    async def _abandon(self, ring: Ring) -> None:
        """Nobody came for a call: it is over, unless it has gone on at another node."""
        if ring.handed_over:  # to hang up would cut off whoever it was put through to
            self._settle(ring, EndReason.TRANSFERRED)
        elif self._neighbours is None or not (ring.shared or ring.attempt) or await self._neighbours.is_ours(ring.key):
            await self._wait_on(ring) if ring.adopted else self._give_up(ring)
        else:
            self._let_go(ring)

    async def _wait_on(self, ring: Ring) -> None:
        """
        Nobody came here for a call that was another node's: that one may have it still, and can't be asked.

        So it is not hung up while the carrier has it. One that asks to resume will; of another a stream is asked again.
        """
        carrier, call_id = ring.key
        control = self._controls[carrier]
        if not await control.is_alive(call_id):
            self._registry.ended(ring.key, self._now())
            self._settle(ring, EndReason.CALLER_HUNG_UP)
        elif control.asks_to_resume:
            self._registry.park(ring, self._now() + RESUME_SECONDS)
        else:
            self._park(ring, ring.session)

    def _give_up(self, ring: Ring) -> None:
        """No media came for it: the call is of no use any more, to us or to the caller."""
        WATCHDOG.count("no media for a call")
        fields = {"call": logs.call_name(ring.session_id), "carrier": ring.key[0]}
        _log.warning("no media came for a call", extra=fields)
        self._settle(ring, EndReason.STREAM_LOST)
        self._errand(self._hang_up(ring.key))

    def _settle(self, ring: Ring, reason: EndReason) -> None:
        """A call that rang or was parked is over: what was said in it is kept."""
        ring.cancel()
        if ring.session is not None and ring.session.end_reason is not EndReason.GATEWAY_DIED:
            ring.session.end_reason = reason
        if ring.session is None:
            self._feed_of(ring).tell("hangup", reason=str(reason), seconds=0, turns=0)
        self._finish(ring, ring.session, ring.recorder)

    def _finish(
        self, ring: Ring, session: VoiceSession | None, recorder: CallRecorder | None = None, *, wound_up: bool = False
    ) -> None:
        """The call is over, and comes to its ending. Other nodes keep what they know of it until that has begun."""
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

    async def _wind_up(self, ring: Ring, session: VoiceSession) -> None:
        """The agent's last function, which the call had no time for: its media was lost, or its gateway died."""
        await wind_up(session, await self._kits.pack(ring.agent, session.caller, ring.clearance))

    def _tell_end(self, session: VoiceSession) -> None:
        seconds, turns = round(session.seconds, 1), len(session.turns)
        feed = self._feed.of(session, kept=self._memory is not None)
        feed.tell("hangup", reason=str(session.end_reason or EndReason.FAILED), seconds=seconds, turns=turns)
        self._feed.call_over(session.id)

    def _settled(self, key: CallKey, session_id: str = "") -> None:
        if self._neighbours is not None:
            self._neighbours.commons.settled(key, session_id)

    async def _hang_up(self, key: CallKey) -> None:
        if not await self._is_ours(key):
            return
        with contextlib.suppress(CarrierRefused):  # nobody is on the line to miss it
            await self._controls[key[0]].hang_up(key[1])

    async def _is_ours(self, key: CallKey) -> bool:
        """Whether no other node has the call, as far as can be told at once."""
        return self._neighbours is None or await self._neighbours.is_ours_now(key)

    # Calls of other nodes

    def take_up(self, record: CallRecord, session: VoiceSession | None) -> None:
        """A call that was another node's is this one's, without its media. A nameless caller's has no past."""
        ring = self._ring_of(record, session)
        if session is not None and self._memory is not None:
            self._memory.journal.take_over(session, _journal_header(ring))
        if record.state is CallState.OVER:
            self._finish(ring, session)
        elif session is None:
            self._park(ring, None)
        else:
            self._continue(ring, session)

    async def recollect(self, session: VoiceSession) -> None:
        """Add what a worker that shares our disk had written down, and could not tell before it died."""
        entries = await self._memory.journal.entries(session.id) if self._memory is not None else []
        if entries and len(turns_of(entries)) >= len(session.turns):
            restore(session, entries)

    async def may_go_on_there(self, record: CallRecord) -> bool:
        """Whether a node that is silent may still have this call, or will get it back, as far as its carrier tells."""
        carrier, call_id = record.key
        control = self._controls.get(carrier)
        if control is None or record.handed_over:
            return False
        without_media = record.state is CallState.PARKED and not control.asks_to_resume
        return not without_media and await control.is_alive(call_id)

    def has_media(self, key: CallKey) -> bool:
        return self._registry.live(key) is not None

    async def release(self, key: CallKey) -> None:
        """Another node is asked for this call's new media."""
        if call := self._registry.live(key):
            call.end(EndReason.STREAM_LOST)
            await asyncio.wait({self._conducted[call]})
        elif (ring := self._registry.ring(key)) and not ring.used:
            self._park(ring, ring.session)

    def drop(self, key: CallKey) -> None:
        """The call is another node's now."""
        call, ring = self._registry.live(key), self._registry.forget(key)
        if ring is not None:
            ring.taken = True
        if call is not None:
            call.end(EndReason.STREAM_LOST)
        elif ring is not None:
            self._let_go(ring)

    def _let_go(self, ring: Ring) -> None:
        ring.cancel()
        if ring.recorder is not None:
            ring.recorder.close()
        if ring.session is None:
            return
        if self._neighbours is not None and self._finalizer.is_shared and ring.session.turns:
            self._finalizer.contribute(ring.session, functools.partial(self._neighbours.until_over, ring.key))
        elif self._memory is not None:
            self._memory.journal.forget(ring.session.id)

    def checkpoint(self, commons: Commons) -> None:
        """Everything said so far in the live calls, for whoever may have to go on with them."""
        for key, call in self._registry.live_items():
            if call.session.caller and self._memory is not None:
                commons.checkpoint(key, call.session.id, call.journal_entries)

    async def _pass_on(self, word: Word, key: CallKey, neighbours: Neighbours) -> None:
        await neighbours.pass_on(self, word, key)

    async def _pass_on_end(self, key: CallKey, neighbours: Neighbours) -> None:
        if not await neighbours.pass_on(self, Word.ENDED, key):
            neighbours.commons.settled(key)  # if it rings yet, at whatever node, it is over

    async def _stream_failed_elsewhere(self, key: CallKey, token: str) -> None:
        if self._neighbours is None or not await self._neighbours.pass_on(self, Word.STREAM_FAILED, key, token):
            # An earlier process answered it and died, and nothing of it was kept: a nameless caller's.
            await self._hang_up(key)

    # Itself

    def _refusal(self, key: CallKey, caller: str, *, vouched: bool) -> Refusal | None:
        if self._closing:
            return Refusal.CLOSING
        if self._registry.is_over(key) or self._registry.is_parked(key):
            return Refusal.OVER
        if not vouched and not self._allowed.admits(caller):
            return Refusal.NOT_ALLOWED if self._allowed else Refusal.NOBODY_ALLOWED
        return Refusal.NO_ENGINE if self._engine is None else None

    def _prepare(self, ring: Ring) -> None:
        """Begin to load what the call will need: memory, and the agent's functions."""
        ring.kit = self._kits.pack(ring.agent, ring.caller, ring.clearance)
        ring.memory = self._remembering(ring, ring.caller)

    def _remembering(self, ring: Ring, caller: str) -> Remembering | None:
        may_rise = ring.agent.trust.pin is not None
        if self._memory is None or not caller or not (may_rise or ring.clearance.allows(Tier.NAME)):
            return None
        return Remembering(self._memory.recall, agent=ring.agent.name, caller=caller, limit=self._memory.limit)

    def _journaled(self, session: VoiceSession, ring: Ring) -> TurnLog | None:
        if self._memory is None or not session.caller:
            return None
        share = self._neighbours.commons.said if self._neighbours is not None else None
        return self._memory.journal.open_session(session, _journal_header(ring), share)

    def _ring_of(self, record: CallRecord, session: VoiceSession | None = None) -> Ring:
        """A call as another node knows it."""
        return Ring(
            record.key,
            record.account_id,
            session.caller if session is not None else record.caller,
            record.called,
            self._agents.answering(record.called),
            record.media_url,
            self._now() + TOKEN_SECONDS,
            session=session,
            session_id=session.id if session is not None else new_session_id(),
            attempt=record.attempt,
            token=record.token,
            number=record.number,
            clearance=Clearance(Tier(record.tier)),
            shared=True,
            handed_over=record.handed_over,
            adopted=session is None or session.taken_over,
        )

    def _session_of(self, ring: Ring) -> VoiceSession:
        number = ring.number if ring.number != ring.caller else ""
        return VoiceSession(
            agent=ring.agent.name, caller=ring.caller, carrier=ring.key[0], number=number, id=ring.session_id
        )

    def _feed_of(self, ring: Ring) -> CallFeed:
        """What is told of a call. Of one that leaves nothing behind neither words nor number are kept."""
        kept = self._memory is not None and bool(ring.caller)
        return self._feed.call(ring.session_id, ring.agent.name, ring.number or ring.caller, ring.key[0], kept=kept)

    def _recorder(self, session: VoiceSession, ring: Ring) -> CallRecorder | None:
        recorder = self._recordings.record(session.uuid)
        if recorder is not None:
            recorder.note("call", _header(session, ring))
        return recorder

    def _errand(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name="errand")
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _died(session: VoiceSession) -> None:
    """Nobody knows more of its end than when somebody spoke last."""
    session.end_reason = EndReason.GATEWAY_DIED
    session.ended_at = session.turns[-1].at if session.turns else session.started_at


def _journal_header(ring: Ring) -> dict[str, Any]:
    """What the journal knows of a call beside its session."""
    return {
        "key": ring.key,
        "account_id": ring.account_id,
        "called": ring.called,
        "media_url": ring.media_url,
        "handed_over": ring.handed_over,
        "number": ring.number,
        "tier": ring.clearance.tier,
    }


def _ring_of_journal(left: JournaledCall, agents: AgentBook) -> Ring:
    header = left.header
    carrier, call_id = header["key"]
    called = header["called"]
    agent = agents.answering(called)
    ring = Ring((carrier, call_id), header["account_id"], left.session.caller, called, agent, header["media_url"], 0.0)
    ring.session_id = left.session.id
    ring.handed_over, ring.number = header["handed_over"], header["number"]
    ring.clearance.tier = Tier(header["tier"])
    return ring


def _header(session: VoiceSession, ring: Ring) -> dict[str, object]:
    """How a recording begins: what a replay must know to place the call again."""
    return {
        "format": FORMAT,
        "carrier": session.carrier,
        "caller": ring.number,
        "called": ring.called,
        "account_id": ring.account_id,
        "call_id": ring.key[1],
        "session": session.id,
        "started_at": session.started_at.isoformat(),
        "agent": {name: getattr(ring.agent, name) for name in _RECORDED} | {"timezone": str(ring.agent.timezone or "")},
    }
