"""
One live call: the bridge between the carrier's media stream and the voice engine.

Audio passes inside the socket's callback, from one side to the other: no queue, no task, no disk. Everything that
takes time (connecting, loading memory, running tools) is a task of the call's group and ends with it.
"""

import asyncio
import functools
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from gateway.agents import Agent
from gateway.calls.agent_context import AgentContext
from gateway.calls.call_end import MAY_GO_ON, NOT_TRANSFERRED, CallEnd, CallLeg
from gateway.calls.caller_audio import CallerVoice, IncomingAudio
from gateway.calls.caller_identity import PIN_ARGUMENT, CallerIdentity
from gateway.calls.consent import ConsentTimeouts, RecordingConsent
from gateway.calls.engine_connection import STALLED_BYTES, EngineConfig, EngineConnection
from gateway.calls.filler import NO_FILLER
from gateway.calls.interruption import TurnEffect
from gateway.calls.memory_commands import MemoryCommands
from gateway.calls.monitoring import CallMonitor, is_loud
from gateway.calls.playout import Playout
from gateway.calls.recorder import CallRecorder
from gateway.calls.speech_output import Say, SpeechOutput, SpeechTimeouts, wait_for_event
from gateway.calls.transcript import PIN_REMOVED, CallRecords, Transcript, loop_clock
from gateway.calls.turn_latency import TurnLatencyTracker, observe
from gateway.calls.turn_taking import TurnTaking
from gateway.calls.voicemail import MailboxHandler, VoicemailTimeouts
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
    SettingsApplied,
    TurnEnded,
    UsageReported,
    UserSaid,
    UserStartedSpeaking,
    WordsTimed,
)
from gateway.errors import EngineError, EngineRefused
from gateway.history.call_log import Row
from gateway.history.live_events import CallEvents
from gateway.llm.chat import LlmEndpoint, ModelName
from gateway.logs import CallLogger, call_name
from gateway.memory.access import AccessChange, MemoryAccess
from gateway.metrics import BARGE_INS, CALL_SECONDS, CALLS, FIRST_AUDIO_SECONDS, WATCHDOG
from gateway.response_time import ResponseTime
from gateway.session import EndReason, Turn, VoiceSession
from gateway.telephony.machine_detection import AnsweredBy
from gateway.telephony.media_stream import MediaStream
from gateway.text.voice_commands import VoiceCommand
from gateway.tools.executor import CallTools, ToolExecutor

ANSWERED_ALREADY: Final = "Not done: the caller has been answered already. Say nothing more."

_NO_ENGINE: Final = (EndReason.ENGINE_LOST, EndReason.ENGINE_REFUSED)


@dataclass(frozen=True)
class LiveCallTimeouts:
    """Durations of a call with media, in seconds."""

    check: float = 0.5
    """Between two runs of the watchdogs."""
    media_silence: float = 30.0
    """A carrier that sends nothing for this long is gone. Mutes and holds are shorter, or send silence."""
    engine_flush: float = 2.0
    """After the end: for an engine that still connects, to get the caller's first words."""
    last_words: float = 0.4
    """After the end: for the text of what was said just before."""
    open_turn: float = 2.0
    """After the end: the same, if the engine has reported speech and no text yet."""
    memory_command: float = 8.0
    """How long a caller waits for a memory command."""
    longest_call: float = math.inf
    """Then the agent says so, and hangs up."""
    slowest_answer: float = 30.0
    """For this long after the caller's turn, silence counts as the agent's."""
    speech: SpeechTimeouts = SpeechTimeouts()
    consent: ConsentTimeouts = ConsentTimeouts()
    voicemail: VoicemailTimeouts = VoicemailTimeouts()


@dataclass(frozen=True)
class CallAgent:
    """The agent that answers one call: its configuration, its tools, and its language model if it has its own."""

    config: Agent
    tools: CallTools
    llm: LlmEndpoint | None


class Call:
    """
    One call while it has media. `run` owns it from the stream's start until the session is complete.

    A session that has turns already is a call that is resumed with a new stream. The `on_…` methods are called by
    the media stream and the engine connection, on the event loop, and return at once.
    """

    def __init__(
        self,
        session: VoiceSession,
        agent: CallAgent,
        carrier: MediaStream,
        leg: CallLeg,
        engine: EngineConfig,
        memory: MemoryAccess,
        records: CallRecords,
        timeouts: LiveCallTimeouts,
    ) -> None:
        self.session = session
        self.name = call_name(session.id)
        self.recorder = records.recorder
        self.monitor = CallMonitor()
        self.caller_audio = IncomingAudio(self.monitor)
        self.on_caller_audio = self.caller_audio.pass_on
        self._voice = CallerVoice(self.caller_audio)
        self.latency = TurnLatencyTracker(self._turn_measured, on_answer=self._first_audio_sent)
        self._answered_by = ""
        """The engine of the last answer, which may be lost since."""
        self.on_over: Callable[[], None] = lambda: None
        """Called at once when the call is over; completing the session then takes a while."""
        self.ran_end_function = False
        """False when only the media stream is known to have ended."""
        self._carrier = carrier
        self._timeouts = timeouts
        self._events = records.events
        self._agent = agent
        self._memory = memory
        self._loop = asyncio.get_running_loop()
        config, tools = agent.config, agent.tools
        self._log = CallLogger(logging.getLogger(__name__), {"call": self.name, "agent": config.name})
        self._tasks = asyncio.TaskGroup()
        self._work: list[asyncio.Task[None]] = []
        self.transcript = Transcript(session, Playout(), records, now=loop_clock())
        self._speech = SpeechOutput(
            carrier, self.transcript, self.monitor, self.latency, config.filler or NO_FILLER, self.say, timeouts.speech
        )
        self._speech.replies.enabled = agent.llm is not None
        self.on_agent_audio = self._speech.play
        self._end = CallEnd(self._tasks, leg, self._speech, self.say, self._events, self._log)
        self._identity = CallerIdentity(session, config, memory, self._events, self._log, self._tasks, self.recorder)
        self.actions = ToolActions(
            session, self.transcript, self._identity, self._end, self.say, self._events, self.recorder
        )
        self._consent = RecordingConsent(session, config, records, self._log, timeouts.consent)
        self._tools = ToolExecutor(self.actions, self._tasks, session, tools, config.transfer_to)
        self._memory_commands = MemoryCommands(
            session, config, self.transcript, memory, timeout=timeouts.memory_command
        )
        self._context = AgentContext(
            session, config, self.transcript, memory, self._tools.functions, tools.personas, agent.llm
        )
        sorry = NOT_TRANSFERRED if session.end_reason is EndReason.TRANSFERRED else config.sorry
        self._engine = EngineConnection(
            self, engine, self._context, self._events, self._log, sorry=sorry, resumed=bool(session.turns)
        )
        self._mailbox = MailboxHandler(
            self.transcript, self._speech, self._engine, self._end, self._tasks, timeouts.voicemail
        )
        self._caller_speaking = False
        self._caller_text = asyncio.Event()
        self._media_at = self._loop.time()
        self._turn_taking = TurnTaking(config, self._engine, self._tools, self._end, self.transcript, self._log)
        elapsed = (datetime.now(UTC) - session.started_at).total_seconds()  # with an earlier stream, or at another node
        self._time_is_up_at = self._media_at + timeouts.longest_call - elapsed
        self._check_at = 0.0

    # From the call manager

    async def run(self) -> None:
        """Bridge the call until it ends for whatever reason, and complete the session."""
        self._log.info("call answered", extra={"carrier": self.session.carrier})
        for observer in (self._tools.memory_changed, self._context.memory_changed, self._memory_changed):
            self._memory.subscribe(observer)
        try:
            async with self._tasks:
                if not self.session.turns:
                    self._context.wait_for(self._tools.start_up())
                self._work += [
                    self._tasks.create_task(self._run_engine(), name="engine"),
                    self._tasks.create_task(self._send_late_memory(), name="memory"),
                    self._tasks.create_task(self._identity.load_pin_length(), name="PIN length"),
                ]
                await self._end.wait()
                self.on_over()
                self._tasks.create_task(self._end.release_leg(), name="hang-up")
                if self._end.reason not in _NO_ENGINE and not self._mailbox.is_reached:
                    await self._hear_last_words()
                self._end.cancel_goodbye()
                self._mailbox.call_over()
                for task in self._work:
                    task.cancel()
                self.ran_end_function = self._end.reason not in MAY_GO_ON
                await self._tools.close(call_is_over=self.ran_end_function)
        finally:
            self._memory.close()
            self._complete_session()
            self._carrier.close()

    def end(self, reason: EndReason, *, carrier_over: bool = False) -> None:
        """End the call; only the first reason counts. `carrier_over`: the carrier has ended it already."""
        if reason in (EndReason.OPERATOR_HUNG_UP, EndReason.SHUTDOWN):  # no frame in a recording shows these
            self.recorder.note("action", {"do": "end", "reason": str(reason)})
        self._end.end(reason, carrier_over=carrier_over)

    def say(self, text: str, *, interrupt: bool = False) -> None:
        """Have the agent say this: now or, before anything was said, as part of the greeting."""
        if not self._context.add_to_greeting(text):
            self._speech.expect_own_words()
            self._engine.say(text, interrupt=interrupt)

    def operator_says(self, text: str) -> None:
        """Say an operator's words. The transcript marks them."""
        self.recorder.note("action", {"do": "operator says", "text": text})
        self.transcript.operator_says(text)
        self.say(text)

    def answered_by(self, report: AnsweredBy, message: str) -> None:
        """The carrier reports what answered an outbound call. `message` is for a mailbox; if empty, hang up."""
        self.recorder.note("action", {"do": "answered by", "report": str(report), "message": message})
        self._mailbox.answered_by(report, message)
        if self._mailbox.is_reached:
            self._consent.call_over()  # a machine can't agree to anything

    def tick(self, now: float) -> None:
        """Called ten times a second: audio that is due, and less often the watchdogs."""
        if self._caller_speaking and not self._end.is_over and not self._consent.is_open:
            if is_loud(self.caller_audio.last_frame):  # engines do not report that speech goes on
                if self._turn_taking.caller_goes_on(now):
                    self._silence_agent()
        self._voice.tick()
        if now >= self._check_at:
            self._check_at = now + self._timeouts.check
            self._check(now)
        self._speech.tick(now)
        self._engine.tick(now)

    def _check(self, now: float) -> None:
        if not self._end.is_over:
            failure = None
            if now - max(self._media_at, self.caller_audio.heard_at) > self._timeouts.media_silence:
                failure = EndReason.MEDIA_SILENT
            elif self._carrier.buffered_bytes > STALLED_BYTES:
                failure = EndReason.CARRIER_STALLED
            if failure is not None:
                WATCHDOG.labels(failure).inc()
                self.end(failure)
            elif now >= self._time_is_up_at:
                self._time_is_up_at = math.inf
                self._end.time_is_up()
            elif self._consent.is_open:
                self._turn_taking.not_silent(now)
                if words := self._consent.tick(now, self.transcript.played_until, self._context.greeting):
                    self.say(words)
            elif self._mailbox.is_reached:
                self._turn_taking.not_silent(now)
            elif words := self._turn_taking.tick(now, slowest_answer=self._timeouts.slowest_answer):
                self.say(words)
        self._engine.check(now, tool_runs=self._tools.is_busy)

    @property
    def is_over(self) -> bool:
        return self._end.is_over

    @property
    def model(self) -> ModelName:
        """The language model that answers, or is asked first."""
        own = self._agent.llm.model.name if self._agent.llm is not None else ModelName(self._engine.name, "")
        return self._engine.engine.own_model(self._agent.config) or own

    @property
    def may_go_on(self) -> bool:
        """Whether only the media stream has ended, as far as known: the caller may still be there."""
        return self.session.end_reason in MAY_GO_ON

    def turns(self) -> list[Turn]:
        """The conversation so far."""
        return self.transcript.so_far

    @property
    def log_rows(self) -> list[Row]:
        """The rows of the call log for everything so far."""
        return self.transcript.log_rows

    # From the media stream

    def on_mark(self, name: str) -> None:
        self._media_at = self._loop.time()
        self._speech.mark_played(name)

    def on_digit(self, digit: str) -> None:
        self._media_at = self._loop.time()
        self._turn_taking.not_silent(self._media_at)
        self._voice.key_pressed(self._media_at)
        self._identity.digit_pressed(digit, self._media_at)

    def on_stream_stopped(self) -> None:
        self._end.stream_stopped()

    def on_stream_lost(self) -> None:
        self._end.stream_lost()

    # From the engine

    def on_engine_event(self, event: EngineEvent) -> None:
        match event:
            case UserStartedSpeaking() | TurnEnded() | UserSaid() if self._mailbox.is_reached:
                pass  # the rest of its greeting
            case UserStartedSpeaking(answer_goes_on):
                self._caller_speaking = True
                self._consent.caller_speaks(self._loop.time())
                self.latency.caller_starts(self._loop.time())
                if self._turn_taking.caller_starts(self._loop.time(), answer_goes_on=answer_goes_on):
                    self._silence_agent()
            case UserSaid(text, turn):
                self._caller_said(text, turn)
            case AgentSaid(text):
                self._consent.agent_spoke(self._loop.time())
                self._turn_taking.agent_said(text, self._loop.time())
                self._speech.text(text)
            case WordsTimed(ends):
                self._speech.words_timed(ends)
            case AgentAudioDone():
                self._turn_taking.agent_done()
                self._speech.audio_done()
            case TurnEnded(turn):
                self._speech.open_gate()
                self.latency.speech_ended(self._loop.time(), self._voice.last_voiced(), turn)
                if turn:
                    self._caller_speaking = False
                    self._engine.answer_due_since = self._loop.time()
                    self.transcript.caller_finished(turn, self.transcript.now())
            case FunctionsRequested(calls):
                self._speech.open_gate()
                if (session := self._engine.session) is not None and not self._end.is_over:
                    for call in calls:
                        answer = functools.partial(session.answer_tool, call.id)
                        if self._speech.overridden:
                            answer(ANSWERED_ALREADY)
                        else:
                            self._tools.start(call, answer)
            case FunctionsCancelled(call_ids):
                self._tools.cancel(call_ids)
                self._end.withdraw(call_ids)
            case SettingsApplied():
                self.session.engine = self._engine.name
                self._caller_speaking = False
                self._turn_taking.new_session()
                self._speech.new_session()
                self._mailbox.new_session()
            case LatencyReported(stt, llm, tts):
                self.latency.reported(stt=stt, ttt=llm, tts=tts)
            case UsageReported(usage):
                for kind, count in usage.items():
                    self.session.usage[kind] = self.session.usage.get(kind, 0) + count
            case InjectionRefused():
                self._speech.injection_refused()
                self._mailbox.injection_refused()
            case EngineWarned(code):
                self._log.warning("engine warned", extra={"code": code})
                self._events.publish("error", what="engine warned", reason=code)
            case EngineFailed(code):
                self._log.warning("engine failed", extra={"code": code})
                self._events.publish("error", what="engine failed", reason=code)
            case _:
                pass  # acknowledgements, which change nothing in the conversation

    def _turn_measured(self, timing: ResponseTime) -> None:
        observe(self._engine.name if timing.first_frame is None else self._answered_by, timing)

    def _first_audio_sent(self, measured: ResponseTime | None) -> None:
        """The first audio of an answer, or of the greeting, was sent."""
        self._answered_by = self._engine.name
        self._events.first_audio_sent(measured, self._engine.engine.own_model(self._agent.config))
        if self.session.first_audio is None and not self.session.turns:
            seconds = self.session.first_audio = round(self._loop.time() - self._carrier.started_at, 4)
            FIRST_AUDIO_SECONDS.labels(self.session.carrier, self._engine.name).observe(seconds)

    def _silence_agent(self) -> None:
        if (unheard_ms := self._speech.interrupt()) is not None:
            BARGE_INS.labels(self.session.carrier).inc()
            self._engine.truncate(unheard_ms)

    def _caller_said(self, text: str, turn_name: str) -> None:
        """The text of a turn, in some engines after the answer to it has begun. Empty: it had no words."""
        now = self._loop.time()
        if not turn_name:
            self._caller_speaking = False
        elif not text:
            self.transcript.had_no_words(turn_name)
            self.latency.needs_no_answer(turn_name)
            self._caller_text.set()
            return
        is_answered = self.transcript.is_answered(turn_name)
        effect = self._turn_taking.caller_said(text, turn_name, now)
        if (
            effect is TurnEffect.NONE
            and not self._consent.is_open
            and not self._memory_commands.may_be_command(text, now)
        ):
            if self.transcript.answer_is_complete:
                self._speech.drop_answer()
            self.transcript.caller_said(text, self.transcript.now(), turn_name, aside=True)
            self._caller_text.set()
            self.latency.needs_no_answer(turn_name)
            self._engine.answer_due_since = None
            return
        if effect is not TurnEffect.ANSWER:
            self._silence_agent()
        if sets_pin := self._memory_commands.sets_pin(text):
            self.recorder.discard()  # it has the digits
            without_pin = PIN_REMOVED
        else:
            without_pin = self._identity.caller_said(text, now, question=self.transcript.answer_before(turn_name))
        command = self._memory_commands.recognize(text if sets_pin else without_pin, now)
        if without_pin == PIN_REMOVED:
            self.transcript.hide(text)
        reply = self._consent.caller_said(without_pin, self._context.greeting) if command is None else ""
        overridden = command is not None or bool(reply)
        if is_answered and overridden:
            self._silence_agent()
        turn = self.transcript.caller_said(without_pin, self.transcript.now(), turn_name)
        self._caller_text.set()
        self.latency.transcript(now, self._voice.last_voiced(), turn_name)
        if not is_answered:
            self._engine.answer_due_since = now
            self._tools.caller_spoke()
            self._end.caller_spoke()
        if overridden or not is_answered:
            self._speech.turn_is_final(text, overridden=overridden, reply=reply)
        if self._end.is_over:
            return
        if command is not None:
            self._tasks.create_task(self._run_command(command, turn, text), name="memory command")
        elif reply:
            self._tasks.create_task(self._speech.reply(text, reply), name="consent")

    async def _run_command(self, command: VoiceCommand, turn: Turn, said: str) -> None:
        """Carry out a memory command. The gateway answers it; the engine's own answer is not heard."""
        reply = await self._memory_commands.run(command, turn)
        fields = {"command": command.kind, "step": command.step.name.lower()}
        self._log.info("memory command handled", extra=fields)
        await self._speech.reply(said, reply)

    async def reply_to(self, said: str) -> str:
        """The gateway's own reply to a language model request for these words; empty if the model is to answer."""
        replies = self._speech.replies
        if (
            replies.expects(said)
            or self._consent.is_open
            or self._memory_commands.may_be_command(said, self._loop.time())
        ):
            reply = await replies.fetch(said)
            if reply:
                self.recorder.note("reply", {"said": said, "text": reply})
            return reply
        return ""

    async def _run_engine(self) -> None:
        try:
            await self._engine.run()
        except EngineError as error:
            self._log.error("voice engine gone, apologising", extra={"reason": str(error)})
            self._events.publish("error", what="voice engine gone", reason=str(error))
            if not self._end.is_over:
                await self._speech.apologise()
            self.end(EndReason.ENGINE_REFUSED if isinstance(error, EngineRefused) else EndReason.ENGINE_LOST)

    # Memory

    def _memory_changed(self, change: AccessChange) -> None:
        match change:
            case AccessChange.LEVEL_RAISED:
                self._engine.send_late_memory()
            case AccessChange.REVOKED | AccessChange.CALLER_CHANGED | AccessChange.CONTENT_CHANGED:
                self._engine.replace_settings()
        if self._end.is_over or change in (AccessChange.REVOKED, AccessChange.SPEAKER_CHANGED):
            return
        self._work.append(self._tasks.create_task(self._send_late_memory(), name="memory"))
        if change is AccessChange.CALLER_CHANGED:
            self._work.append(self._tasks.create_task(self._identity.load_pin_length(), name="PIN length"))

    async def _send_late_memory(self) -> None:
        """Memory that is too late for the settings is sent to the engine when it is there."""
        await self._context.load_rest()
        self._engine.send_late_memory()

    # The end

    async def _hear_last_words(self) -> None:
        """The caller is gone, but the engine may still transcribe what they said last."""
        self._caller_text.clear()
        if not await self._engine.flush(self._timeouts.engine_flush):
            return
        is_open = self._caller_speaking or self.transcript.awaits_text
        if not is_open and await wait_for_event(self._caller_text, self._timeouts.last_words):
            return
        if self._caller_speaking or self.transcript.awaits_text:  # perhaps reported only just now
            self._engine.end_user_turn()
            await wait_for_event(self._caller_text, self._timeouts.open_turn)

    def _complete_session(self) -> None:
        self._consent.call_over()
        self.latency.finish_turn()
        self.session.timings += [answer.as_json() for answer in self.latency.finished]
        self.session.receipt = self._context.receipt
        self.session.turns = self.transcript.finish(self._loop.time())
        self.session.ended_at = self._end.at or datetime.now(UTC)
        self.session.end_reason = self._end.reason
        seconds, turns = round(self.session.seconds, 1), len(self.session.turns)
        fields = {"seconds": seconds, "turns": turns, "reason": str(self.session.end_reason)}
        self._log.info("call ended", extra=fields)
        CALLS.labels(self.session.carrier, str(self.session.end_reason)).inc()
        CALL_SECONDS.labels(self.session.carrier, self._engine.name).observe(self.session.seconds)


@dataclass(frozen=True)
class ToolActions:
    """
    What tools can do in a live call, and what the call records about them (ToolHost).

    Recordings note what user code did, so that a replay can repeat it without that code.
    """

    session: VoiceSession
    transcript: Transcript
    identity: CallerIdentity
    end: CallEnd
    say_now: Say
    events: CallEvents
    recorder: CallRecorder

    def say(self, text: str) -> None:
        self.recorder.note("action", {"do": "say", "text": text})
        self.say_now(text)

    def hang_up(self, request: str = "") -> None:
        if not request:
            self.recorder.note("action", {"do": "hang up"})
        self.end.hang_up(request)

    def transfer(self, target: str, request: str | None = None) -> None:
        if request is None:
            self.recorder.note("action", {"do": "transfer", "target": target})
        self.end.transfer(target, request)

    def set_pin(self, pin: str) -> None:
        self.transcript.hide(pin)
        self.identity.set_pin(pin)

    def turns(self) -> Sequence[Turn]:
        return self.transcript.so_far

    def tool_started(self, call: FunctionCall) -> None:
        if PIN_ARGUMENT.search(call.arguments):
            self.recorder.discard()  # it has the digits
        self.events.publish("function_called", function=call.name, tool_call=call.id)

    def tool_finished(self, call: FunctionCall, content: str, *, ok: bool, seconds: float) -> None:
        self.transcript.tool_called(HistoryToolCall(call, content))
        # A PIN among the arguments must not be stored.
        words = {} if PIN_ARGUMENT.search(call.arguments) else {"arguments": call.arguments, "result": content}
        shown = {name: self.transcript.excerpt(text) for name, text in words.items()}
        named = {"function": call.name, "tool_call": call.id}
        self.events.publish("function_finished", **named, ok=ok, seconds=seconds, **shown)

    def state_changed(self) -> None:
        self.events.set_state(self.session.state)
        self.identity.state_changed()
