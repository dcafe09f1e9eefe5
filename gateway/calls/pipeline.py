"""
One call: the carrier on one side, the voice engine on the other, and what happens between them.

Audio passes inside the socket's callback, from one side to the other: no queue, no task, no disk. Everything that
takes time (connecting, waiting, saying goodbye) is a task of the call's group and ends with it. The call ends once,
by whichever signal comes first.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final

from gateway.calls.agents import Agent
from gateway.calls.briefing import Briefing
from gateway.calls.engine_keeper import STALLED_BYTES, EngineAccess, EngineKeeper
from gateway.calls.farewell import FAREWELL_SECONDS, Farewell, happens
from gateway.calls.journal import TurnLog
from gateway.calls.playback import MARK_BYTES, Playback
from gateway.calls.remembering import Remembering
from gateway.calls.session import EndReason, VoiceSession
from gateway.calls.transcript import Transcript
from gateway.engines.brief import AgentFunction
from gateway.engines.events import (
    AgentAudioDone,
    AgentSaid,
    EngineEvent,
    EngineFailed,
    EngineWarned,
    FunctionCall,
    FunctionsCancelled,
    FunctionsRequested,
    SettingsApplied,
    TurnEnded,
    UserSaid,
    UserStartedSpeaking,
)
from gateway.errors import CarrierRefused, EngineError, EngineRefused
from gateway.links.carrier import CarrierLink
from gateway.links.recorder import CallRecorder
from gateway.logs import CallLog
from gateway.metrics import CALLS, WATCHDOG

MEDIA_SILENCE_SECONDS: Final = 30.0
"""A carrier that sends nothing at all for this long has gone. Mutes and holds are shorter, or send silence."""

LAST_WORDS_SECONDS: Final = 0.4
"""After the call's end, the text of what was said just before may still come."""
OPEN_TURN_SECONDS: Final = 2.0
"""The same, when the engine has heard the caller begin to speak and has not told us what."""
REMAINDER_SECONDS: Final = 0.1
"""Sound too short to be sent alone waits this long for more."""

APOLOGY_TEXT: Final = "I'm sorry, I can't continue this call right now. Please call again a little later. Goodbye."
END_CALL: Final = AgentFunction(
    "end_call", "Hang up. Use it when the caller says goodbye or wants to end the call; then say a short goodbye."
)


class Call:
    """
    The bridge of one call. `run` owns it from `start` until it is over and the session is complete.

    A session that has turns already is a call that goes on after its stream was lost.

    The `on_…` methods are called by the two links, on the loop, and return at once.
    """

    def __init__(
        self,
        session: VoiceSession,
        agent: Agent,
        carrier: CarrierLink,
        engine: EngineAccess,
        *,
        memory: Remembering | None,
        hang_up: Callable[[], Awaitable[None]],
        stop_ends_call: bool,
        apology: bytes,
        journal: TurnLog | None = None,
        recorder: CallRecorder | None = None,
    ) -> None:
        self.session = session
        self.recorder = recorder
        self._carrier = carrier
        self._memory = memory
        self._hang_up = hang_up
        self._stop_ends_call = stop_ends_call
        self._apology = apology
        self._loop = asyncio.get_running_loop()
        self._log = CallLog(logging.getLogger(__name__), {"call": session.uuid[:8], "agent": agent.name})
        self._tasks = asyncio.TaskGroup()
        self._over: asyncio.Future[EndReason] = self._loop.create_future()
        self._carrier_over = False
        self._playback = Playback()
        self._transcript = Transcript(self._playback, turns=session.turns, journal=journal)
        self._briefing = Briefing(session, agent, self._transcript, memory, (END_CALL,))
        self._engine = EngineKeeper(
            self, engine, self._briefing, sorry=agent.sorry, resumed=bool(session.turns), log=self._log
        )
        self._gate_open = True  # closed while what the engine sends belongs to a cancelled answer
        self._caller_speaking = False
        self._caller_text = asyncio.Event()
        self._heard_at = self._spoke_at = self._loop.time()
        self._farewell = Farewell(self._tasks, self._everything_played)
        self._played: dict[str, asyncio.Event] = {}

    # The desk's side

    async def run(self) -> None:
        """Bridge the call until it ends, by whatever comes first, and leave the session complete."""
        reason = EndReason.FAILED
        self._log.info("call answered", extra={"carrier": self.session.carrier})
        try:
            async with self._tasks:
                work = [
                    self._tasks.create_task(self._hold_engine(), name="engine"),
                    self._tasks.create_task(self._remember_more(), name="memory"),
                ]
                reason = await self._over
                if reason not in (EndReason.STREAM_LOST, EndReason.STREAM_STOPPED):
                    self._tasks.create_task(self._hang_up_carrier(), name="hang-up")
                await self._hear_last_words()
                self._farewell.cancel()
                for task in work:
                    task.cancel()
        finally:
            self._complete_session(reason)
            self._carrier.close()

    @property
    def may_go_on(self) -> bool:
        """Whether only the stream has ended, as far as we know: the caller may still be there."""
        return self.session.end_reason in (EndReason.STREAM_LOST, EndReason.STREAM_STOPPED)

    @property
    def journal_entries(self) -> list[dict[str, Any]]:
        """All that a journal holds of the call so far."""
        return self._transcript.entries

    def end(self, reason: EndReason, *, carrier_over: bool = False) -> None:
        """The call is over; only the first reason counts. `carrier_over`: the carrier need not be told."""
        self._carrier_over |= carrier_over
        if not self._over.done():
            self._over.set_result(reason)

    def tick(self, now: float) -> None:
        """Called a few times a second: watch for the dead, and keep the engine supplied."""
        if now - self._heard_at > MEDIA_SILENCE_SECONDS:
            self._noticed(EndReason.MEDIA_SILENT)
        elif self._carrier.buffered_bytes > STALLED_BYTES:
            self._noticed(EndReason.CARRIER_STALLED)
        if now - self._spoke_at > REMAINDER_SECONDS:
            self._carrier.finish_audio()
        self._engine.tick(now)

    def _noticed(self, what: EndReason) -> None:
        if not self._over.done():
            WATCHDOG.count(what)
            self.end(what)

    # The carrier's side

    def on_caller_audio(self, audio: bytes) -> None:
        self._heard_at = self._loop.time()
        self._engine.hear(audio)

    def on_mark(self, name: str) -> None:
        self._heard_at = self._loop.time()
        self._playback.mark_reached(name)
        if name in self._played:
            self._played[name].set()

    def on_digit(self, digit: str) -> None:
        """A key was pressed. It shows that the caller is there; no agent asks for keys yet."""
        self._heard_at = self._loop.time()

    def on_stream_stopped(self) -> None:
        if self._stop_ends_call:
            self.end(EndReason.CALLER_HUNG_UP, carrier_over=True)
        else:
            self.end(EndReason.STREAM_STOPPED)

    def on_stream_lost(self) -> None:
        self.end(EndReason.STREAM_LOST)

    # The engine's side

    def on_agent_audio(self, audio: bytes) -> None:
        """Pass it on as it came, with a mark after each stretch; what belongs to a cancelled answer is dropped."""
        if not self._gate_open or self._over.done():
            return
        self._farewell.sound_began()
        self._engine.answer_due_since = None
        self._spoke_at = self._loop.time()
        for start in range(0, len(audio), MARK_BYTES):
            stretch = audio[start : start + MARK_BYTES]
            self._transcript.agent_audio(len(stretch), self._spoke_at)
            self._carrier.send_audio(stretch)
            self._playback.audio_sent(len(stretch))
            if self._playback.mark_due():
                self._carrier.send_mark(self._playback.next_mark())

    def on_engine_event(self, event: EngineEvent) -> None:
        match event:
            case UserStartedSpeaking():
                self._interrupt()
            case UserSaid(text):
                self._caller_said(text)
            case AgentSaid(text):
                self._agent_said(text)
            case AgentAudioDone():
                self._answer_complete()
            case TurnEnded():
                self._gate_open = True
            case FunctionsRequested(calls):
                self._gate_open = True
                for call in calls:
                    self._run_function(call)
            case FunctionsCancelled(call_ids):
                self._farewell.taken_back(call_ids)
            case SettingsApplied():
                self._gate_open, self._caller_speaking = True, False
                self._engine.applied()
            case EngineWarned(code):
                self._log.warning("engine warned", extra={"code": code})
            case EngineFailed(code):
                self._log.warning("engine failed", extra={"code": code})
            case _:
                pass  # acknowledgements and measures; nothing in the conversation hangs on them

    def _interrupt(self) -> None:
        """The caller speaks: silence the agent at once. Cheap, and safe to repeat."""
        self._caller_speaking = True
        if self._over.done():
            return  # nobody is there to be interrupted
        self._carrier.send_clear()
        self._transcript.interrupted(self._loop.time())
        self._playback.cleared()
        self._gate_open = False

    def _caller_said(self, text: str) -> None:
        self._caller_speaking = False
        self._gate_open = True
        self._transcript.caller_said(text, datetime.now(UTC))
        self._caller_text.set()
        self._engine.answer_due_since = self._loop.time()
        self._farewell.caller_went_on()

    def _agent_said(self, text: str) -> None:
        if not self._gate_open or self._over.done():
            return
        if self._playback.unmarked:  # so that it is known exactly whether the sentence before was heard
            self._carrier.send_mark(self._playback.next_mark())
        self._transcript.agent_said(text, datetime.now(UTC))

    def _answer_complete(self) -> None:
        if not self._gate_open:
            return  # the cancelled answer's
        self._carrier.finish_audio()
        self._transcript.agent_audio_done()
        self._carrier.send_mark(self._playback.next_mark())
        self._farewell.sound_done()

    # What takes time

    async def _hold_engine(self) -> None:
        try:
            await self._engine.run()
        except EngineError as error:
            refused = isinstance(error, EngineRefused)
            self._log.error("voice engine gone, apologising", extra={"reason": str(error)})
            await self._apologise()
            self.end(EndReason.ENGINE_REFUSED if refused else EndReason.ENGINE_LOST)

    async def _apologise(self) -> None:
        """Without an engine the caller hears a recorded apology. What was said is kept."""
        self._gate_open = True
        self._transcript.agent_said(APOLOGY_TEXT, datetime.now(UTC))
        self.on_agent_audio(self._apology)
        self._transcript.agent_audio_done()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_SECONDS):
                await self._everything_played()

    async def _remember_more(self) -> None:
        """Memory that is too late for Settings is told in mid-call."""
        await self._briefing.load_rest()
        self._engine.tell_untold()
        if self.recorder is not None:
            self.recorder.note("memory", self._briefing.notes)

    def _run_function(self, call: FunctionCall) -> None:
        link = self._engine.link
        if link is None or self._over.done():
            return
        if call.name != END_CALL.name:
            self._log.warning("agent called an unknown function")
            link.function_result(call, '{"error": "there is no such function"}')
            return
        link.function_result(call, '{"status": "ok", "next": "say a short goodbye; the call ends after it"}')
        self._farewell.wished(call.id, lambda: self.end(EndReason.AGENT_HUNG_UP))

    async def _everything_played(self) -> None:
        self._carrier.finish_audio()
        name = self._playback.next_mark()
        played = self._played[name] = asyncio.Event()
        self._carrier.send_mark(name)
        await played.wait()

    async def _hang_up_carrier(self) -> None:
        if self._carrier_over:
            return
        try:
            await self._hang_up()
        except CarrierRefused as error:
            self._log.error("call could not be hung up", extra={"reason": str(error)})

    async def _hear_last_words(self) -> None:
        """The caller is gone, but the engine may still be writing down what they said last."""
        self._caller_text.clear()
        if not self._engine.ready:
            return
        if not self._caller_speaking and await happens(self._caller_text, LAST_WORDS_SECONDS):
            return
        if self._caller_speaking and self._engine.link is not None:  # perhaps only just noticed
            self._engine.link.force_end_turn()
            await happens(self._caller_text, OPEN_TURN_SECONDS)

    def _complete_session(self, reason: EndReason) -> None:
        if self._memory is not None:
            self._memory.cancel()
        self.session.turns = self._transcript.ended(self._loop.time())
        self.session.ended_at = datetime.now(UTC)
        stream_ended = reason in (EndReason.STREAM_LOST, EndReason.STREAM_STOPPED)
        self.session.end_reason = EndReason.CALLER_HUNG_UP if stream_ended and self._carrier_over else reason
        seconds, turns = round(self.session.seconds, 1), len(self.session.turns)
        fields = {"seconds": seconds, "turns": turns, "reason": str(self.session.end_reason)}
        self._log.info("call ended", extra=fields)
        CALLS.count(self.session.carrier, str(self.session.end_reason))
