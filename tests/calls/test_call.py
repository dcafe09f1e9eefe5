"""One call between a fake media stream and a fake engine, on virtual time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gateway.agents import Agent, SilenceSettings
from gateway.calls.call import ANSWERED_ALREADY, Call, CallAgent, LiveCallTimeouts
from gateway.calls.call_end import TIME_IS_UP
from gateway.calls.engine_connection import STALLED_BYTES, EngineConfig, EngineTimeouts
from gateway.calls.speech_output import APOLOGY_TEXT
from gateway.engines.failover import GuardedEngine
from gateway.engines.interface import (
    AgentAudioDone,
    AgentSaid,
    FunctionCall,
    FunctionsRequested,
    SettingsApplied,
    TurnEnded,
    UsageReported,
    UserSaid,
    UserStartedSpeaking,
)
from gateway.errors import EngineRefused
from gateway.memory.access import MemoryAccess
from gateway.session import EndReason, Speaker, VoiceSession
from gateway.tools.builtin import Builtin
from gateway.tools.executor import CallTools
from gateway.tools.schema import FunctionSchema
from tests.fakes.call_parts import (
    CALLER,
    FakeLeg,
    FakeMemory,
    FakeMemorySource,
    FakeStream,
    FakeVoiceEngine,
    make_records,
)

pytestmark = pytest.mark.virtual_time

TIMEOUTS = LiveCallTimeouts()
AUDIO = b"\x01" * 160
NO_TOOLS = CallTools()
NEVER = SilenceSettings(ask_after=0, hang_up_after=0)


class Line:
    """A running call."""

    def __init__(
        self,
        *,
        engine: FakeVoiceEngine | None = None,
        leg: FakeLeg | None = None,
        timeouts=TIMEOUTS,
        started_at=None,
        tools=NO_TOOLS,
        pauses=(),
        **of_agent,
    ) -> None:
        self.stream = FakeStream()
        self.leg = leg or FakeLeg()
        self.engine = engine or FakeVoiceEngine()
        self.records = make_records()
        self.session = VoiceSession("maya", CALLER, "twilio", started_at=started_at or datetime.now(UTC))
        self.source = FakeMemorySource(**{CALLER: FakeMemory()})
        self.access = MemoryAccess(caller=CALLER)
        self.access.proven = True
        self.access.open(self.source)
        agent = Agent("maya", "You are Maya.\n{{memory}}", greeting="Hi, Maya here.", **of_agent)
        self.call = Call(
            self.session,
            CallAgent(agent, tools, None),
            self.stream,
            self.leg,
            EngineConfig([GuardedEngine(self.engine)], EngineTimeouts(retry_pauses=pauses)),
            self.access,
            self.records,
            timeouts,
        )
        self.running = asyncio.create_task(self.call.run())

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def connected(self) -> None:
        await asyncio.sleep(0.1)

    def caller_says(self, text: str) -> None:
        self.engine.session.emit(UserStartedSpeaking(), TurnEnded(), UserSaid(text))

    def agent_says(self, text: str) -> None:
        self.engine.session.emit(AgentSaid(text))
        self.engine.session.speak(AUDIO)
        self.engine.session.emit(AgentAudioDone())
        self.carrier_plays_all()

    def carrier_plays_all(self) -> None:
        for mark in self.stream.marks:
            self.call.on_mark(mark)

    async def ends(self) -> EndReason | None:
        await self.running
        return self.session.end_reason


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    line = Line()
    await line.connected()
    yield line
    line.running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await line.running


# The conversation


async def test_audio_passes_both_ways(line):
    line.call.on_caller_audio(AUDIO)
    line.engine.session.speak(AUDIO)
    assert (line.engine.session.audio, line.stream.audio) == (AUDIO, AUDIO)


async def test_time_from_the_answer_to_the_first_audio_is_measured(line):
    assert line.session.first_audio is None
    await asyncio.sleep(0.3)
    line.agent_says("Hi, Maya here.")
    await asyncio.sleep(1)
    line.agent_says("How can I help you?")
    assert line.session.first_audio == pytest.approx(0.4)  # with the 0.1 s of `connected`


async def test_turns_are_written_in_order(line):
    line.agent_says("Hi, Maya here.")
    line.caller_says("Is my bike ready?")
    line.agent_says("It is.")
    line.call.on_stream_stopped()
    await line.ends()
    assert [(turn.speaker, turn.text) for turn in line.session.turns] == [
        (Speaker.AGENT, "Hi, Maya here."),
        (Speaker.CALLER, "Is my bike ready?"),
        (Speaker.AGENT, "It is."),
    ]


async def test_barge_in_clears_queued_audio(line):
    line.engine.session.speak(AUDIO)
    line.engine.session.emit(UserStartedSpeaking())
    assert line.stream.sent[-1] == "clear"


async def test_engine_learns_how_much_was_not_heard(line):
    line.engine.session.emit(AgentSaid("It is ready, and it has a new chain."))
    line.engine.session.speak(b"\x01" * 16_000)
    line.call.on_mark(line.stream.marks[0])
    line.engine.session.emit(UserStartedSpeaking())
    assert line.engine.session.truncated == [1600]


async def test_agent_can_hang_up(line):
    line.engine.session.emit(FunctionsRequested((FunctionCall("f1", "end_call", "{}"),)))
    await asyncio.sleep(0.01)
    assert [call_id for call_id, _ in line.engine.session.answers] == ["f1"]
    line.agent_says("Goodbye.")
    await asyncio.sleep(0.01)
    line.carrier_plays_all()
    assert await line.ends() is EndReason.AGENT_HUNG_UP
    assert line.leg.hangups == 1


async def test_operator_can_speak_through_the_agent(line):
    line.call.say("One moment.")
    assert line.engine.session.said == ["One moment."]


async def test_text_before_the_engine_is_there_becomes_part_of_the_greeting():
    line = Line()
    line.call.say("Calls are recorded.")
    await line.connected()
    assert line.engine.session.settings.greeting == "Hi, Maya here. Calls are recorded."
    line.call.on_stream_stopped()
    await line.ends()


# Memory commands


async def test_memory_command_is_answered_by_the_gateway(line):
    line.caller_says("What do you know about me?")
    line.engine.session.emit(AgentSaid("I am only a language model."))
    await asyncio.sleep(1)
    [reply] = line.engine.session.said
    line.agent_says(reply)
    line.call.on_stream_stopped()
    await line.ends()
    assert [turn.text for turn in line.session.turns] == ["What do you know about me?", reply]


async def test_tools_of_a_replaced_answer_do_not_run(line):
    line.caller_says("Forget that.")
    line.engine.session.emit(FunctionsRequested((FunctionCall("f1", "end_call", "{}"),)))
    assert line.engine.session.answers == [("f1", ANSWERED_ALREADY)]


async def test_erased_memory_leaves_the_prompt(line):
    line.caller_says("Forget everything about me.")
    await asyncio.sleep(1)
    line.agent_says(line.engine.session.said[-1])
    before = line.engine.session.settings
    line.caller_says("Yes.")
    await asyncio.sleep(1)
    assert line.source.erased == [CALLER]
    assert line.engine.session.settings is not before
    line.call.on_stream_stopped()
    await line.ends()
    assert line.session.turns == [] and line.session.off_record


# The end


async def test_silent_carrier_ends_the_call(line):
    line.call.tick(line.now + TIMEOUTS.media_silence - 1)
    assert not line.call.is_over
    line.call.tick(line.now + TIMEOUTS.media_silence + 1)
    assert await line.ends() is EndReason.MEDIA_SILENT
    assert line.leg.hangups == 1


@pytest.mark.parametrize("sign", ["digit", "mark", "audio"])
async def test_any_sign_of_the_caller_counts(line, sign):
    await asyncio.sleep(TIMEOUTS.media_silence)
    match sign:
        case "digit":
            line.call.on_digit("5")
        case "mark":
            line.call.on_mark("unknown")
        case "audio":
            line.call.on_caller_audio(AUDIO)
    line.call.tick(line.now + 1)
    assert not line.call.is_over


async def test_carrier_that_stops_reading_ends_the_call(line):
    line.stream.buffered_bytes = STALLED_BYTES + 1
    line.call.tick(line.now)
    assert await line.ends() is EndReason.CARRIER_STALLED


async def test_first_reason_counts(line):
    line.call.on_stream_stopped()
    line.call.on_stream_lost()
    line.call.end(EndReason.SHUTDOWN)
    assert await line.ends() is EndReason.CALLER_HUNG_UP
    assert (line.leg.hangups, line.stream.closed) == (0, 1)


async def test_call_is_as_long_as_the_caller_was_there(line):
    """Completing the session takes a while after the hangup, and is not part of the call."""
    line.call.on_stream_stopped()
    hung_up_at = datetime.now(UTC)
    await line.ends()
    assert line.session.ended_at is not None
    assert line.session.ended_at <= hung_up_at


async def test_lost_stream_may_be_resumed(line):
    line.call.on_stream_lost()
    assert await line.ends() is EndReason.STREAM_LOST
    assert line.call.may_go_on and not line.call.ran_end_function
    assert line.leg.hangups == 0


async def test_hangup_explains_a_lost_stream(line):
    line.call.on_stream_lost()
    line.call.end(EndReason.CALLER_HUNG_UP, carrier_over=True)
    assert await line.ends() is EndReason.CALLER_HUNG_UP
    assert not line.call.may_go_on and line.call.ran_end_function


async def test_last_words_are_waited_for(line):
    line.engine.session.emit(UserStartedSpeaking())
    line.call.on_stream_stopped()
    await asyncio.sleep(TIMEOUTS.last_words + 0.1)
    assert line.engine.session.ended_turns == 1
    line.engine.session.emit(UserSaid("Thank you, bye."))
    await line.ends()
    assert [turn.text for turn in line.session.turns] == ["Thank you, bye."]


async def test_caller_who_said_nothing_is_not_waited_for_long(line):
    started = line.now
    line.call.on_stream_stopped()
    await line.ends()
    assert line.now - started == pytest.approx(TIMEOUTS.last_words)


async def test_refused_hangup_is_logged_and_over(caplog):
    line = Line(leg=FakeLeg(refuses=True))
    line.call.end(EndReason.AGENT_HUNG_UP)
    assert await line.ends() is EndReason.AGENT_HUNG_UP
    assert "call could not be hung up" in caplog.messages


async def test_caller_hears_an_apology_without_an_engine():
    line = Line(engine=FakeVoiceEngine(error=EngineRefused("wrong key")))
    await asyncio.sleep(0.01)
    line.carrier_plays_all()
    assert await line.ends() is EndReason.ENGINE_REFUSED
    assert [turn.text for turn in line.session.turns] == [APOLOGY_TEXT]


async def test_call_over_is_reported_before_the_session_is_complete(line):
    seen = []
    line.call.on_over = lambda: seen.append(line.session.end_reason)
    line.call.on_stream_stopped()
    await line.ends()
    assert seen == [None]


async def test_access_outlives_the_stream_without_observers(line):
    line.call.on_stream_lost()
    await line.ends()
    line.access.revoke()
    assert line.access.memory is None


# The longest call


@pytest.fixture
async def short_line() -> AsyncIterator[Line]:
    line = Line(timeouts=replace(TIMEOUTS, longest_call=600.0, media_silence=10_000.0), silence=NEVER)
    await line.connected()
    yield line


async def ticked(line: Line, seconds: float) -> None:
    for _ in range(round(seconds)):
        await asyncio.sleep(1)
        line.call.tick(line.now)


async def test_call_that_lasts_too_long_ends_with_a_sentence(short_line):
    line = short_line
    line.agent_says("Hi, Maya here.")
    await ticked(line, 598)
    assert (line.engine.session.said, line.call.is_over) == ([], False)
    await ticked(line, 2)
    assert line.engine.session.said == [TIME_IS_UP]
    line.caller_says("Wait, one more thing.")
    line.agent_says(TIME_IS_UP)
    assert await line.ends() is EndReason.TIME_LIMIT
    assert [turn.text for turn in line.session.turns][-1] == TIME_IS_UP
    assert line.leg.hangups == 1


async def test_engine_that_says_nothing_does_not_prolong_the_call(short_line):
    await ticked(short_line, 620)
    assert await short_line.ends() is EndReason.TIME_LIMIT


async def test_time_counts_from_the_start_of_the_call():
    """Not of its latest stream."""
    line = Line(timeouts=replace(TIMEOUTS, longest_call=600.0), started_at=datetime.now(UTC) - timedelta(seconds=601))
    await line.connected()
    line.call.tick(line.now)
    assert line.engine.session.said == [TIME_IS_UP]
    line.agent_says(TIME_IS_UP)
    assert await line.ends() is EndReason.TIME_LIMIT


# A silent caller


@pytest.fixture
async def quiet_line() -> AsyncIterator[Line]:
    line = Line(timeouts=replace(TIMEOUTS, media_silence=10_000.0), language="de")
    await line.connected()
    line.agent_says("Hi, Maya here.")
    yield line
    line.call.end(EndReason.SHUTDOWN)
    await line.ends()


STILL_THERE = "Sind Sie noch da?"
GOODBYE = "Ich höre leider nichts mehr und lege jetzt auf. Auf Wiederhören."


async def test_silent_caller_is_asked_then_hung_up_on(quiet_line):
    line = quiet_line
    await ticked(line, 19)
    assert line.engine.session.said == []
    await ticked(line, 2)
    assert line.engine.session.said == [STILL_THERE]
    line.agent_says(STILL_THERE)
    await ticked(line, 41)
    assert line.engine.session.said == [STILL_THERE, GOODBYE]
    assert not line.call.is_over
    await asyncio.sleep(0)
    line.agent_says(GOODBYE)
    assert await line.ends() is EndReason.CALLER_SILENT
    assert line.leg.hangups == 1
    assert [turn.text for turn in line.session.turns] == [f"Hi, Maya here. {STILL_THERE} {GOODBYE}"]


async def test_caller_who_answers_stays(quiet_line):
    line = quiet_line
    await ticked(line, 21)
    line.agent_says(STILL_THERE)
    await ticked(line, 38)
    line.caller_says("Ja, ich suche nur die Nummer.")
    line.agent_says("Kein Problem.")
    await ticked(line, 19)
    assert line.engine.session.said == [STILL_THERE]


async def test_caller_who_speaks_during_the_goodbye_stays(quiet_line):
    line = quiet_line
    for _ in range(2):  # every time
        await ticked(line, 62)
        assert line.engine.session.said[-1] == GOODBYE
        line.caller_says("Halt, ich bin noch da!")
        line.agent_says("Schön.")
    await ticked(line, 15)
    assert not line.call.is_over


async def test_digits_are_no_silence(quiet_line):
    for _ in range(5):
        await ticked(quiet_line, 15)
        quiet_line.call.on_digit("4")
    assert quiet_line.engine.session.said == []


async def test_agent_that_speaks_is_no_silence(quiet_line):
    line = quiet_line
    line.engine.session.emit(AgentSaid("A long story."))
    line.engine.session.speak(b"\x01" * 8000 * 60)
    line.engine.session.emit(AgentAudioDone())
    await ticked(line, 79)
    assert line.engine.session.said == []
    await ticked(line, 2)
    assert line.engine.session.said == [STILL_THERE]


async def test_caller_in_a_long_turn_is_not_silent(quiet_line):
    """Engines report the start of a turn and then nothing until its end."""
    line = quiet_line
    line.engine.session.emit(UserStartedSpeaking())
    for _ in range(50):
        line.call.on_caller_audio(b"\x10\x90" * 80)
        await ticked(line, 1)
    assert line.engine.session.said == []
    line.call.on_caller_audio(b"\xff" * 160)  # the engine has missed the end of it
    await ticked(line, 21)
    assert line.engine.session.said == [STILL_THERE]


async def test_agent_that_thinks_is_no_silence(quiet_line):
    line = quiet_line
    line.caller_says("Wie ist das Wetter?")
    await ticked(line, 29)
    assert line.engine.session.said == []


async def test_tool_that_runs_is_no_silence():
    async def search(call, arguments):
        await asyncio.sleep(100)

    tools = CallTools(builtins=(Builtin(FunctionSchema.of("search", "Search."), search, timeout=200.0),))
    line = Line(timeouts=replace(TIMEOUTS, media_silence=10_000.0), tools=tools)
    await line.connected()
    line.engine.session.emit(FunctionsRequested((FunctionCall("f1", "search", "{}"),)))
    await ticked(line, 118)
    assert line.engine.session.said == []
    await ticked(line, 3)
    assert line.engine.session.said == ["Are you still there?"]
    line.call.end(EndReason.SHUTDOWN)
    await line.ends()


async def test_events_name_the_tool_call(line):
    line.engine.session.emit(FunctionsRequested((FunctionCall("f1", "unknown", "{}"),)))
    await asyncio.sleep(0.1)
    written = [(event, fields) for event, *[fields] in line.records.events.written if event.startswith("function")]
    assert [(event, fields["tool_call"]) for event, fields in written] == [
        ("function_called", "f1"),
        ("function_finished", "f1"),
    ]


async def test_answer_names_the_model_of_the_engine(line):
    line.caller_says("Is it ready?")
    line.agent_says("It is.")
    assert line.records.events.model == line.call.model == ("fake", "fake-1")


async def test_silence_can_be_left_alone():
    line = Line(timeouts=replace(TIMEOUTS, media_silence=10_000.0), silence=NEVER)
    await line.connected()
    await ticked(line, 500)
    assert line.engine.session.said == []
    line.call.end(EndReason.SHUTDOWN)
    await line.ends()


async def test_text_that_comes_after_the_answer_goes_before_it(line):
    """It does not make another answer due, and cancels no goodbye."""
    session = line.engine.session
    session.emit(UserSaid("Hello."), UserStartedSpeaking(), TurnEnded("u1"), AgentSaid("It is ready."))
    session.speak(AUDIO)
    session.emit(UserSaid("Is it ready?", "u1"), AgentAudioDone())
    assert [turn.text for turn in line.call.turns()] == ["Hello.", "Is it ready?", "It is ready."]
    session.emit(UserStartedSpeaking(), TurnEnded("u2"), UserSaid("", "u2"))
    assert [turn.text for turn in line.call.turns()] == ["Hello.", "Is it ready?", "It is ready."]


async def test_usage_of_the_engine_is_added_up(line):
    for _ in range(2):
        line.engine.session.emit(UsageReported({"input_tokens": 10, "output_tokens": 3}))
    assert line.call.session.usage == {"input_tokens": 20, "output_tokens": 6}


# What the caller's speech does to the agent's


@contextlib.asynccontextmanager
async def talking(interrupt: str, answer: str = "It is ready, and it has a new chain.") -> AsyncIterator[Line]:
    """A call in which the carrier has played 400 ms of the agent's complete answer of 2 s."""
    line = Line(interrupt=interrupt)
    await line.connected()
    line.engine.session.emit(AgentSaid(answer))
    line.engine.session.speak(b"\x01" * 16_000)
    line.engine.session.emit(AgentAudioDone())
    line.call.on_mark(line.stream.marks[0])
    yield line
    line.call.end(EndReason.SHUTDOWN)
    await line.ends()


def turns(line: Line) -> list[tuple[str, str, str]]:
    return [(str(turn.speaker), turn.text, turn.unheard) for turn in line.session.turns or line.call.turns()]


async def test_noise_does_not_stop_an_agent_that_waits_for_words():
    async with talking("words") as line:
        line.engine.session.emit(UserStartedSpeaking(), TurnEnded())
        assert "clear" not in line.stream.sent


async def test_backchannel_leaves_the_agent_speaking():
    async with talking("words") as line:
        line.caller_says("Uh-huh, alright.")
        line.agent_says("Anything else?")  # the engine's answer to it is not wanted
        assert "clear" not in line.stream.sent
        assert len(line.stream.audio) == 16_000
        line.carrier_plays_all()
        assert turns(line) == [
            ("agent", "It is ready, and it has a new chain.", ""),
            ("caller", "Uh-huh, alright.", ""),
        ]
        line.caller_says("Thank you.")
        line.agent_says("You are welcome.")
    assert turns(line)[2:] == [("caller", "Thank you.", ""), ("agent", "You are welcome.", "")]


async def test_agent_that_was_not_finished_answers_the_backchannel():
    """The engine may have dropped the rest of its answer."""
    line = Line(interrupt="words")
    await line.connected()
    line.engine.session.emit(AgentSaid("It is ready, and it has a new chain."))
    line.engine.session.speak(b"\x01" * 8_000)
    line.engine.session.emit(UserStartedSpeaking(), AgentAudioDone(), TurnEnded(), UserSaid("Mm-hm."))
    line.agent_says("It has a new chain.")
    assert len(line.stream.audio) == 8_160
    line.call.end(EndReason.SHUTDOWN)
    await line.ends()
    assert turns(line) == [
        ("agent", "It is ready,", "and it has a new chain."),  # a second of it was sent
        ("caller", "Mm-hm.", ""),
        ("agent", "It has a new chain.", ""),
    ]


async def test_engine_that_goes_on_completes_its_answer():
    line = Line(interrupt="words")
    await line.connected()
    line.engine.session.emit(AgentSaid("It is ready."))
    line.engine.session.speak(b"\x01" * 8_000)
    line.engine.session.emit(UserStartedSpeaking(answer_goes_on=True), TurnEnded(), UserSaid("Mm-hm."))
    line.agent_says("It has a new chain.")
    line.call.end(EndReason.SHUTDOWN)
    await line.ends()
    assert turns(line) == [("agent", "It is ready. It has a new chain.", ""), ("caller", "Mm-hm.", "")]


async def test_own_words_are_heard_after_a_backchannel():
    async with talking("never") as line:
        line.caller_says("Okay.")
        line.call.say("Your taxi is here.")
        line.agent_says("Your taxi is here.")
        assert len(line.stream.audio) == 16_160


async def test_function_is_answered_after_a_backchannel():
    async with talking("words") as line:
        line.caller_says("Okay.")
        line.engine.session.emit(FunctionsRequested((FunctionCall("f1", "unknown", "{}"),)))
        line.agent_says("It is booked.")
        assert len(line.stream.audio) == 16_160


async def test_words_cut_off_an_agent_that_waits_for_them():
    async with talking("words") as line:
        line.engine.session.emit(UserStartedSpeaking())
        assert "clear" not in line.stream.sent
        line.engine.session.emit(TurnEnded(), UserSaid("What colour is it?"))
        assert line.stream.sent[-1] == "clear"
        assert line.engine.session.truncated == [1600]
        line.agent_says("Red.")
    assert turns(line) == [
        ("agent", "It is", "ready, and it has a new chain."),
        ("caller", "What colour is it?", ""),
        ("agent", "Red.", ""),
    ]


async def test_long_speech_cuts_off_before_its_text():
    async with talking("words") as line:
        line.engine.session.emit(UserStartedSpeaking())
        for _ in range(12):
            line.call.on_caller_audio(b"\x10\x90" * 80)
            await asyncio.sleep(0.1)
            line.call.tick(line.now)
        assert line.stream.sent.count("clear") == 1
        line.engine.session.emit(TurnEnded(), UserSaid("I wanted to ask something else."))
        assert line.stream.sent.count("clear") == 1


async def test_agent_that_is_never_cut_off_answers_afterwards():
    async with talking("never") as line:
        line.caller_says("What colour is it?")
        line.agent_says("Red.")
        assert "clear" not in line.stream.sent
        assert len(line.stream.audio) == 16_160
    assert turns(line) == [
        ("agent", "It is ready, and it has a new chain.", ""),
        ("caller", "What colour is it?", ""),
        ("agent", "Red.", ""),
    ]


async def test_hangup_shows_what_was_heard_of_each_answer():
    """The caller has spoken, the next answer is queued, and the carrier still plays the first one."""
    async with talking("never") as line:
        line.caller_says("What colour is it?")
        line.engine.session.emit(AgentSaid("Red."))
        line.engine.session.speak(AUDIO)
        line.engine.session.emit(AgentAudioDone())
    assert turns(line) == [
        ("agent", "It is", "ready, and it has a new chain."),
        ("caller", "What colour is it?", ""),
        ("agent", "", "Red."),
    ]
    assert ("cut off", "It is", "ready, and it has a new chain.") in line.records.events.written


async def test_yes_to_a_question_is_answered():
    async with talking("words", "Shall I book it? I have a table by the window.") as line:
        line.caller_says("Yes.")
        line.agent_says("Done.")
    assert turns(line)[1:] == [("caller", "Yes.", ""), ("agent", "Done.", "")]


async def test_yes_before_the_question_is_a_backchannel():
    async with talking("words", "I have a table for two by the window at eight. Shall I book it?") as line:
        line.caller_says("Yes, great.")
        assert "clear" not in line.stream.sent


async def test_command_is_no_backchannel():
    async with talking("words") as line:
        line.caller_says("Forget that.")
        await asyncio.sleep(1)
        line.engine.session.emit(AgentSaid(line.engine.session.said[-1]))
        line.engine.session.speak(b"\x01" * 16_000)
        line.caller_says("Yes.")
        await asyncio.sleep(1)
        assert line.engine.session.said[-1] != line.engine.session.said[0]


# Dictation


async def test_engine_waits_longer_while_a_number_is_dictated(line):
    line.agent_says("What is your customer number?")
    line.agent_says("Take your time.")  # part of the same answer
    assert line.engine.session.dictations == [True]
    line.caller_says("Four seven one one.")
    line.agent_says("Thank you.")
    assert line.engine.session.dictations == [True, False]


async def test_new_engine_session_is_asked_again(line):
    line.agent_says("What is your customer number?")
    line.engine.session.emit(SettingsApplied())
    line.caller_says("Pardon?")
    line.agent_says("Your customer number, please.")
    assert line.engine.session.dictations == [True, True]
