"""
One call: the carrier on one side, the voice engine on the other, and what happens between them.

Audio passes inside the socket's callback, from one side to the other: no queue, no task, no disk. Everything that
takes time (connecting, waiting, saying goodbye) is a task of the call's group and ends with it. The call ends once,
by whichever signal comes first.
"""

import asyncio
import contextlib
import functools
import logging
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from gateway.agents import Agent, FillerSettings
from gateway.calls.agent_context import AgentContext
from gateway.calls.caller_identity import CallerIdentity, LookUp
from gateway.calls.canned_replies import CannedReplies
from gateway.calls.engine_connection import STALLED_BYTES, EngineConfig, EngineConnection
from gateway.calls.filler import Filler
from gateway.calls.graceful_hangup import FAREWELL_SECONDS, GracefulHangup, wait_for_event
from gateway.calls.memory_commands import Forget, MemoryCommands
from gateway.calls.monitoring import CallMonitor
from gateway.calls.playout import MARK_BYTES, Playout
from gateway.calls.recorder import CallRecorder, NoRecorder
from gateway.calls.reply_override import ReplyOverride
from gateway.calls.transcript import Transcript
from gateway.calls.turn_latency import TurnLatency, TurnLatencyTracker, observe
from gateway.engines.interface import (
    AgentAudioDone,
    AgentSaid,
    EngineEvent,
    EngineFailed,
    EngineWarned,
    FunctionCall,
    FunctionsCancelled,
    FunctionsRequested,
    HistoryToolCall,
    InjectionRefused,
    LatencyReported,
    LlmEndpoint,
    SettingsApplied,
    TurnEnded,
    UserSaid,
    UserStartedSpeaking,
)
from gateway.errors import CarrierRefused, EngineError, EngineRefused
from gateway.history.call_log import Row, rows_beside_turns
from gateway.history.live_events import CallEvents, EventPublisher
from gateway.logs import CallLogger, call_name
from gateway.memory.loader import MemoryLoader
from gateway.memory.trust import MemoryAccess
from gateway.metrics import BARGE_INS, CALL_SECONDS, CALLS, WATCHDOG
from gateway.session import EndReason, Speaker, Turn, VoiceSession
from gateway.sounds import bundled_sound
from gateway.telephony.media_stream import MediaStream
from gateway.text.voice_commands import VoiceCommand
from gateway.tools.executor import NOT_TRANSFERRED, CallLeg, ToolExecutor
from gateway.tools.prepared import CallTools

MEDIA_SILENCE_SECONDS: Final = 30.0
"""A carrier that sends nothing at all for this long has gone. Mutes and holds are shorter, or send silence."""

ENGINE_SECONDS: Final = 2.0
"""After the call's end, an engine that is not there yet may still come to hear what was said."""
LAST_WORDS_SECONDS: Final = 0.4
"""After the call's end, the text of what was said just before may still come."""
OPEN_TURN_SECONDS: Final = 2.0
"""The same, when the engine has heard the caller begin to speak and has not told us what."""
REMAINDER_SECONDS: Final = 0.1
"""Sound too short to be sent alone waits this long for more."""

APOLOGY_TEXT: Final = "I'm sorry, I can't continue this call right now. Please call again a little later. Goodbye."

_MAY_GO_ON: Final = (EndReason.STREAM_LOST, EndReason.STREAM_STOPPED, EndReason.TRANSFERRED)
"""Only the stream has ended: the caller may still be there, or come back from somebody who did not pick up."""
_NO_ENGINE: Final = (EndReason.ENGINE_LOST, EndReason.ENGINE_REFUSED)


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
        carrier: MediaStream,
        engine: EngineConfig,
        *,
        line: CallLeg,
        apology: bytes,
        memory: MemoryLoader | None = None,
        access: MemoryAccess | None = None,
        call_tools: CallTools | None = None,
        endpoint: LlmEndpoint | None = None,
        recorder: CallRecorder | None = None,
        call_events: CallEvents | None = None,
        forget: Forget | None = None,
        look_up: LookUp | None = None,
    ) -> None:
        self.session = session
        self.name = call_name(session.id)
        self.recorder: CallRecorder = recorder or NoRecorder()
        self.wound_up = False
        """Whether `end_function` has had its turn: it was known that the call is over, and not only its media."""
        self._call_events = call_events or EventPublisher().of(session)
        self.on_other_memory: Callable[[], None] = lambda: None
        """Told when it is not the same person's memory any more, or there is none."""
        self.on_over: Callable[[], None] = lambda: None
        """Told at once when nobody is on the line any more; what is left to do then takes a while."""
        self.monitor = CallMonitor()
        self._carrier = carrier
        self._line = line
        self._apology = apology
        self._loop = asyncio.get_running_loop()
        self._log = CallLogger(logging.getLogger(__name__), {"call": self.name, "agent": agent.name})
        self._tasks = asyncio.TaskGroup()
        self._work: list[asyncio.Task[None]] = []
        self._over: asyncio.Future[EndReason] = self._loop.create_future()
        self._ended_at: datetime | None = None
        self._carrier_over = False
        self._playout = Playout()
        self._transcript = Transcript(
            self._playout,
            turns=session.turns,
            call_events=self._call_events,
            off_record=session.off_record,
        )
        call_tools = call_tools or CallTools()
        self._graceful_hangup = GracefulHangup(self._tasks, self._everything_played)
        self._tool_executor = ToolExecutor(
            self,
            self._tasks,
            agent,
            call_tools,
            line=line,
            graceful_hangup=self._graceful_hangup,
            call_events=self._call_events,
            log=self._log,
        )
        self._access = access or MemoryAccess()
        self._caller = CallerIdentity(
            self,
            session,
            agent,
            self._access,
            memory=memory,
            look_up=look_up,
            call_events=self._call_events,
            log=self._log,
        )
        self._agent_context = AgentContext(
            session,
            agent,
            self._transcript,
            memory,
            self._tool_executor.functions,
            endpoint=endpoint,
            personas=call_tools.personas,
            access=self._access,
        )
        self._memory_commands = MemoryCommands(
            self, session, agent, self._transcript, self._access, memory=memory, forget=forget
        )
        self._reply_override = ReplyOverride()
        self._replies = CannedReplies() if endpoint is not None else None
        sorry = NOT_TRANSFERRED if session.end_reason is EndReason.TRANSFERRED else agent.sorry
        self._filler = self._make_filler(agent.filler)
        self._clock = TurnLatencyTracker(functools.partial(observe, engine.engine.name), sounds=self._sounds)
        self._engine = EngineConnection(
            self,
            engine,
            self._agent_context,
            self._call_events,
            self._log,
            sorry=sorry,
            resumed=bool(session.turns),
        )
        self._gate_open = True  # closed while what the engine sends belongs to a cancelled answer
        self._caller_speaking = False
        self._caller_text = asyncio.Event()
        self._heard_at = self._spoke_at = self._loop.time()
        self._played: dict[str, asyncio.Event] = {}

    # The desk's side

    async def run(self) -> None:
        """Bridge the call until it ends, by whatever comes first, and leave the session complete."""
        reason = EndReason.FAILED
        self._log.info("call answered", extra={"carrier": self.session.carrier})
        try:
            async with self._tasks:
                if not self.session.turns:
                    self._agent_context.waits_for(self._tool_executor.start_up())
                self._work += [
                    self._tasks.create_task(self._hold_engine(), name="engine"),
                    self._tasks.create_task(self._remember_more(), name="memory"),
                ]
                reason = await self._over
                self.on_over()
                if reason not in _MAY_GO_ON:
                    self._tasks.create_task(self._hang_up_carrier(), name="hang-up")
                if reason not in _NO_ENGINE:
                    await self._hear_last_words()
                self._graceful_hangup.cancel()
                for task in self._work:
                    task.cancel()
                self.wound_up = self._ended_by(reason) not in _MAY_GO_ON
                await self._tool_executor.rest(call_is_over=self.wound_up)
        finally:
            self._complete_session(reason)
            self._carrier.close()

    @property
    def may_go_on(self) -> bool:
        """Whether only the stream has ended, as far as we know: the caller may still be there."""
        return self.session.end_reason in _MAY_GO_ON

    @property
    def log_rows(self) -> list[Row]:
        """The rows of the call log for everything so far."""
        return [*self._transcript.log_rows, *rows_beside_turns(self.session)]

    def end(self, reason: EndReason, *, carrier_over: bool = False) -> None:
        """The call is over; only the first reason counts. `carrier_over`: the carrier need not be told."""
        self._carrier_over |= carrier_over
        if not self._over.done():
            self._filler.call_over()
            self._ended_at = datetime.now(UTC)
            self._over.set_result(reason)

    def tick(self, now: float) -> None:
        """Called a few times a second: watch for the dead, and keep the engine supplied."""
        if now - self._heard_at > MEDIA_SILENCE_SECONDS:
            self._noticed(EndReason.MEDIA_SILENT)
        elif self._carrier.buffered_bytes > STALLED_BYTES:
            self._noticed(EndReason.CARRIER_STALLED)
        if now - self._spoke_at > REMAINDER_SECONDS:
            self._carrier.finish_audio()
        self._filler.tick(now)
        self._engine.tick(now)

    @property
    def is_over(self) -> bool:
        return self._over.done()

    def _noticed(self, what: EndReason) -> None:
        if not self._over.done():
            WATCHDOG.labels(what).inc()
            self.end(what)

    # The carrier's side

    def on_caller_audio(self, audio: bytes) -> None:
        self._heard_at = self._loop.time()
        self._engine.send_audio(audio)
        self.monitor.heard(audio)

    def on_mark(self, name: str) -> None:
        self._heard_at = self._loop.time()
        self._playout.mark_reached(name)
        if name in self._played:
            self._played[name].set()

    def on_digit(self, digit: str) -> None:
        """A key was pressed. It shows that the caller is there, and may be one of their PIN."""
        self._heard_at = self._loop.time()
        self._caller.pressed(digit, self._heard_at)

    def on_stream_stopped(self) -> None:
        if self._tool_executor.handing_over:
            self.end(EndReason.TRANSFERRED, carrier_over=True)
        elif self._line.stop_ends_call:
            self.end(EndReason.CALLER_HUNG_UP, carrier_over=True)
        else:
            self.end(EndReason.STREAM_STOPPED)

    def on_stream_lost(self) -> None:
        self.end(EndReason.TRANSFERRED if self._tool_executor.handing_over else EndReason.STREAM_LOST)

    # The language model's side, where it is the agent's own

    def on_request(self, at: float) -> None:
        self._clock.llm_request(at)

    def on_first_token(self, at: float) -> None:
        self._clock.first_token(at)

    async def reply_to(self, said: str) -> str:
        """What is answered to these words in the place of the language model; empty for nothing."""
        if self._replies is None:
            return ""
        if self._replies.expects(said) or self._memory_commands.may_be_one(said, self._loop.time()):
            return await self._replies.to(said)
        return ""

    # The engine's side

    def on_agent_audio(self, audio: bytes) -> None:
        """Pass it on as it came, with a mark after each stretch; what belongs to a cancelled answer is dropped."""
        if not self._gate_open or self._over.done():
            return
        if self._reply_override.holds:
            self._reply_override.hold_sound(audio)
            return
        self._spoke_at = self._loop.time()
        is_answer = not self._filler.saying
        if is_answer:
            self._answer_sounds()
        for start in range(0, len(audio), MARK_BYTES):
            stretch = audio[start : start + MARK_BYTES]
            if is_answer:
                self._transcript.agent_audio(len(stretch), self._spoke_at)
            self._carrier.send_audio(stretch)
            self._playout.audio_sent(len(stretch))
            if self._playout.mark_due():
                self._carrier.send_mark(self._playout.next_mark())
        if is_answer:
            self._clock.first_frame(self._loop.time())
        self.monitor.sent(audio, self._spoke_at)

    def _sounds(self, timing: TurnLatency | None) -> None:
        self._call_events.first_audio_sent(timing.as_json() if timing is not None else None)

    def _answer_sounds(self) -> None:
        self._filler.agent_speaks()
        self._graceful_hangup.sound_began()
        self._engine.answer_due_since = None
        self._clock.first_audio(self._spoke_at)

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
                self._clock.speech_ended(self._loop.time())
            case FunctionsRequested(calls):
                self._gate_open = True
                for call in calls if not self._over.done() else ():
                    self._tool_executor.use(call, self._engine.session, answered_already=self._reply_override.holds)
            case FunctionsCancelled(call_ids):
                self._tool_executor.cancel(call_ids)
                self._graceful_hangup.taken_back(call_ids)
            case SettingsApplied():
                self._gate_open, self._caller_speaking = True, False
                self._reply_override.end()
            case LatencyReported(seconds):
                ttt, tts = seconds.get("ttt_text_latency"), seconds.get("tts_latency")
                self._clock.reported(stt=seconds.get("stt_latency"), ttt=ttt, tts=tts)
            case InjectionRefused():
                self._filler.phrase_over()
            case EngineWarned(code):
                self._log.warning("engine warned", extra={"code": code})
                self._call_events.publish("error", what="engine warned", reason=code)
            case EngineFailed(code):
                self._log.warning("engine failed", extra={"code": code})
                self._call_events.publish("error", what="engine failed", reason=code)
            case _:
                pass  # acknowledgements; nothing in the conversation hangs on them

    def _interrupt(self) -> None:
        """The caller speaks: silence the agent at once. Cheap, and safe to repeat."""
        self._caller_speaking = True
        self._clock.caller_spoke()
        if self._over.done():
            return  # nobody is there to be interrupted
        self._filler.caller_speaks()
        if self._replies is not None:
            self._replies.caller_speaks()
        self._carrier.send_clear()
        if self._transcript.interrupted(self._loop.time()):
            BARGE_INS.labels(self.session.carrier).inc()
        self._playout.cleared()
        self.monitor.cleared()
        self._gate_open = False

    def _caller_said(self, text: str) -> None:
        self._caller_speaking = False
        self._gate_open = True
        now = self._loop.time()
        command = self._memory_commands.hear(
            self._caller.said(text, now, question=self._question), datetime.now(UTC), now
        )
        self._caller_text.set()
        self._engine.answer_due_since = now
        self._clock.transcript(now)
        self._tool_executor.caller_spoke()
        self._graceful_hangup.caller_went_on()
        if self._replies is not None:
            self._replies.turn_is_final(text, ours=command is not None)
        if command is None or self._over.done():
            self._reply_override.end()
            self._filler.caller_finished(now)
        else:
            self._reply_override.begin()
            self._tasks.create_task(self._meet(command, text), name="wish")

    async def _meet(self, command: VoiceCommand, said: str) -> None:
        """Do what the caller wants of their memory, and have them told; the agent's own answer is not heard."""
        reply = await self._memory_commands.carry_out(command)
        self._log.info("caller's wish met", extra={"wish": command.wish, "step": command.step.name.lower()})
        self._reply_override.says(reply)
        if self._replies is None or not await self._replies.give(said, reply):
            self._engine.say(reply, interrupt=self._reply_override.holds)

    @property
    def _question(self) -> str:
        """What the agent said last."""
        return next((turn.text for turn in reversed(self._transcript.so_far) if turn.speaker is Speaker.AGENT), "")

    def _agent_said(self, text: str) -> None:
        if not self._gate_open or self._over.done() or self._filler.takes(text):
            return
        if self._reply_override.holds:
            sound = self._reply_override.takes(text)
            if sound is None:
                return
            self.on_agent_audio(sound)
        if self._playout.unmarked:  # so that it is known exactly whether the sentence before was heard
            self._carrier.send_mark(self._playout.next_mark())
        self._transcript.agent_said(text, datetime.now(UTC))

    def _answer_complete(self) -> None:
        if not self._gate_open or self._reply_override.holds:
            return  # the cancelled answer's
        self._carrier.finish_audio()
        if not self._filler.saying:
            self._transcript.agent_audio_done()
            self._graceful_hangup.sound_done()
        self._carrier.send_mark(self._playout.next_mark())
        self._filler.phrase_over()

    def _make_filler(self, choice: FillerSettings | None) -> Filler:
        if choice is None:
            choice = FillerSettings(after=math.inf)
        return Filler(
            choice.after,
            bundled_sound(choice.sound) if choice.sound else None,
            choice.phrases,
            play=self._carrier.play_filler,
            say=lambda phrase: self._engine.say(phrase),
            stop=self._stop_filler,
        )

    def _stop_filler(self) -> None:
        self._carrier.stop_filler()
        self._playout.cleared()

    # What its functions do

    def say(self, text: str) -> None:
        """Now, or with the greeting while nothing has been said."""
        if not self._agent_context.opens_with(text):
            self._engine.say(text)

    def turns(self) -> list[Turn]:
        return self._transcript.so_far

    def state_changed(self) -> None:
        self._caller.state_changed()

    def function_answered(self, call: FunctionCall, content: str) -> None:
        self._transcript.function_used(HistoryToolCall(call, content))

    # Whose memory it is

    def memory_is(self, memory: MemoryLoader | None) -> None:
        self.on_other_memory()
        self._memory_commands.memory_is(memory)
        self._agent_context.knows(memory)
        self._engine.replace_settings()
        if not self._over.done():
            self._work.append(self._tasks.create_task(self._remember_more(), name="memory"))

    def caller_is_another(self) -> None:
        self._tool_executor.recall(of_another=True)

    def somebody_else_speaks(self) -> None:
        self._tool_executor.memory_is_gone()

    def more_may_be_told(self) -> None:
        self._tool_executor.recall()
        self._engine.send_late_memory()

    # What the caller wants kept

    def keep_nothing(self, nothing: bool) -> None:
        self.session.off_record = nothing
        self._transcript.go_off_record(nothing)
        self._tool_executor.off_record(nothing)
        if nothing:
            self._discard_recording()

    def taken_back(self) -> None:
        self._discard_recording()
        self._call_events.retract(self.session, self.log_rows)

    def _discard_recording(self) -> None:
        """It has the words and their sound by now, and with a hole in it, it could not be played."""
        self.recorder.discard()

    def memory_is_gone(self) -> None:
        self._access.locked = True
        self.on_other_memory()
        self._agent_context.forget()
        self._tool_executor.memory_is_gone()
        self._engine.replace_settings()

    # What takes time

    async def _hold_engine(self) -> None:
        try:
            await self._engine.run()
        except EngineError as error:
            refused = isinstance(error, EngineRefused)
            self._log.error("voice engine gone, apologising", extra={"reason": str(error)})
            self._call_events.publish("error", what="voice engine gone", reason=str(error))
            if not self._over.done():
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
        await self._agent_context.load_rest()
        self._engine.send_late_memory()

    async def _everything_played(self) -> None:
        self._carrier.finish_audio()
        name = self._playout.next_mark()
        played = self._played[name] = asyncio.Event()
        self._carrier.send_mark(name)
        await played.wait()

    async def _hang_up_carrier(self) -> None:
        if self._carrier_over:
            return
        try:
            await self._line.hang_up()
        except CarrierRefused as error:
            self._log.error("call could not be hung up", extra={"reason": str(error)})
            self._call_events.publish("error", what="call could not be hung up", reason=str(error))

    async def _hear_last_words(self) -> None:
        """The caller is gone, but the engine may still be writing down what they said last."""
        self._caller_text.clear()
        if not await self._engine.flush(ENGINE_SECONDS):
            return
        if not self._caller_speaking and await wait_for_event(self._caller_text, LAST_WORDS_SECONDS):
            return
        if self._caller_speaking and self._engine.session is not None:  # perhaps only just noticed
            self._engine.end_user_turn()
            await wait_for_event(self._caller_text, OPEN_TURN_SECONDS)

    def _ended_by(self, reason: EndReason) -> EndReason:
        """The stream's end is the first sign of a hangup; by now the carrier may have said so."""
        stream_ended = reason in (EndReason.STREAM_LOST, EndReason.STREAM_STOPPED)
        return EndReason.CALLER_HUNG_UP if stream_ended and self._carrier_over else reason

    def _complete_session(self, reason: EndReason) -> None:
        self._caller.call_over()
        self._clock.call_over()
        self.session.timings += [timing.as_json() for timing in self._clock.finished]
        self.session.receipt = self._agent_context.receipt
        self.session.turns = self._transcript.ended(self._loop.time())
        self.session.ended_at = self._ended_at or datetime.now(UTC)
        self.session.end_reason = self._ended_by(reason)
        seconds, turns = round(self.session.seconds, 1), len(self.session.turns)
        fields = {"seconds": seconds, "turns": turns, "reason": str(self.session.end_reason)}
        self._log.info("call ended", extra=fields)
        CALLS.labels(self.session.carrier, str(self.session.end_reason)).inc()
        CALL_SECONDS.labels(self.session.carrier, self._engine.name).observe(self.session.seconds)
