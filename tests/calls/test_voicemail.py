"""A mailbox answers an outbound call: one call between a fake media stream and a fake engine, on virtual time."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.calls.voicemail import VoicemailTimeouts
from gateway.engines.interface import AgentAudioDone, AgentSaid, InjectionRefused, UserSaid, UserStartedSpeaking
from gateway.errors import EngineUnavailable
from gateway.session import EndReason, Speaker, Voicemail
from gateway.telephony.machine_detection import AnsweredBy, MachineDetection
from tests.calls.test_call import AUDIO, Line

pytestmark = pytest.mark.virtual_time

MESSAGE = "This is Maya of Harbour Street Bicycles. Your bike is ready. Goodbye."
TIMEOUTS = VoicemailTimeouts()


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    line = Line()
    await line.connected()
    line.agent_says("Hi, Maya here.")
    yield line
    line.call.end(EndReason.SHUTDOWN)
    await line.running


def spoken(line: Line) -> list[str]:
    return [turn.text for turn in line.session.turns]


async def message_played(line: Line) -> EndReason | None:
    line.agent_says(MESSAGE)
    await asyncio.sleep(0)  # the handler sends the mark of the end
    await asyncio.sleep(0)
    line.carrier_plays_all()
    return await line.ends()


async def test_message_is_left_word_for_word(line):
    line.caller_says("You have reached the mailbox of Ana Lopez.")
    line.call.answered_by(AnsweredBy.GREETING_OVER, MESSAGE)
    assert line.engine.session.said == [MESSAGE]
    assert await message_played(line) is EndReason.VOICEMAIL_LEFT
    assert spoken(line) == ["Hi, Maya here.", MESSAGE]
    assert line.session.voicemail is Voicemail.LEFT and line.leg.hangups == 1


async def test_machine_ends_the_call_if_no_message_is_to_be_left(line):
    line.caller_says("Please leave a message.")
    line.call.answered_by(AnsweredBy.MACHINE, "")
    assert await line.ends() is EndReason.VOICEMAIL_REACHED
    assert line.session.voicemail is Voicemail.REACHED and not line.session.leaves_document
    assert line.leg.hangups == 1 and Speaker.CALLER not in {turn.speaker for turn in line.session.turns}


@pytest.mark.parametrize("message", ["", MESSAGE])
async def test_fax_gets_no_message(line, message):
    line.call.answered_by(AnsweredBy.NO_MAILBOX, message)
    assert await line.ends() is EndReason.VOICEMAIL_REACHED
    assert line.engine.session.said == []


async def test_agent_is_silent_while_the_greeting_plays(line):
    """Neither the engine's answer to the greeting nor its tools reach the mailbox, and it hears no more of it."""
    sent, heard = line.stream.audio, line.engine.session.audio
    line.call.answered_by(AnsweredBy.MACHINE, MESSAGE)
    line.call.on_caller_audio(AUDIO)
    line.engine.session.emit(UserStartedSpeaking(), UserSaid("After the tone."))
    line.agent_says("Hello, who is there?")
    assert (line.stream.audio, line.engine.session.audio) == (sent, heard)
    assert "clear" in line.stream.sent and not line.call.is_over
    line.call.answered_by(AnsweredBy.GREETING_OVER, MESSAGE)
    assert await message_played(line) is EndReason.VOICEMAIL_LEFT
    assert spoken(line)[-1] == MESSAGE


async def test_message_follows_without_the_end_of_the_greeting(line):
    line.call.answered_by(AnsweredBy.MACHINE, MESSAGE)
    await asyncio.sleep(TIMEOUTS.greeting - 1)
    assert line.engine.session.said == []
    await asyncio.sleep(1.1)
    assert line.engine.session.said == [MESSAGE]


async def test_reports_in_any_order_leave_one_message(line):
    reports = [AnsweredBy.GREETING_OVER, AnsweredBy.MACHINE, AnsweredBy.GREETING_OVER, AnsweredBy.PERSON]
    for report in reports:
        line.call.answered_by(report, MESSAGE)
    assert line.engine.session.said == [MESSAGE]
    assert await message_played(line) is EndReason.VOICEMAIL_LEFT


async def test_person_is_never_taken_for_a_machine_later(line):
    line.call.answered_by(AnsweredBy.PERSON, "")
    line.call.answered_by(AnsweredBy.MACHINE, "")
    assert not line.call.is_over


async def test_late_report_is_ignored(line):
    for _ in range(int(TIMEOUTS.report) + 1):
        line.call.on_caller_audio(AUDIO)
        await asyncio.sleep(1)
    line.call.answered_by(AnsweredBy.MACHINE, "")
    assert not line.call.is_over and line.session.voicemail is Voicemail.NONE


async def test_beep_does_not_interrupt_the_message(line):
    line.call.answered_by(AnsweredBy.GREETING_OVER, MESSAGE)
    line.engine.session.emit(AgentSaid(MESSAGE))
    sent = len(line.stream.sent)
    line.engine.session.emit(UserStartedSpeaking())
    line.engine.session.speak(AUDIO)
    assert "clear" not in line.stream.sent[sent:] and AUDIO in line.stream.sent[sent:]


async def test_mailbox_that_hangs_up_has_no_message(line):
    """Only a message that was played to its end counts."""
    line.call.answered_by(AnsweredBy.GREETING_OVER, MESSAGE)
    line.engine.session.emit(AgentSaid(MESSAGE))
    line.engine.session.speak(AUDIO)
    line.call.on_stream_stopped()
    assert await line.ends() is EndReason.CALLER_HUNG_UP
    assert line.session.voicemail is Voicemail.REACHED


@pytest.mark.parametrize("report", [AnsweredBy.MACHINE, AnsweredBy.GREETING_OVER])
async def test_lost_stream_waits_for_no_mailbox(line, report):
    """While the greeting or the message plays: the call must be able to go on with another stream."""
    line.call.answered_by(report, MESSAGE)
    lost_at = asyncio.get_running_loop().time()
    line.call.on_stream_lost()
    assert await line.ends() is EndReason.STREAM_LOST
    assert asyncio.get_running_loop().time() - lost_at < 1


async def test_engine_that_says_nothing_leaves_no_message(line):
    line.call.answered_by(AnsweredBy.GREETING_OVER, MESSAGE)
    await asyncio.sleep(TIMEOUTS.start + 0.1)
    assert await line.ends() is EndReason.VOICEMAIL_REACHED


async def test_refused_message_is_sent_again(line):
    line.call.answered_by(AnsweredBy.GREETING_OVER, MESSAGE)
    line.engine.session.emit(InjectionRefused())
    await asyncio.sleep(TIMEOUTS.repeat)
    assert line.engine.session.said == [MESSAGE, MESSAGE]


async def test_lost_engine_session_begins_the_message_again():
    line = Line(pauses=(0.1,))
    await line.connected()
    line.call.answered_by(AnsweredBy.GREETING_OVER, MESSAGE)
    line.engine.session.fail(EngineUnavailable("gone"))
    await asyncio.sleep(0.2)
    assert len(line.engine.sessions) == 2 and line.engine.session.said[-1] == MESSAGE
    sent = line.stream.audio
    line.engine.session.emit(AgentSaid("I'm sorry, where were we?"))
    line.engine.session.speak(AUDIO)
    line.engine.session.emit(AgentAudioDone())
    assert line.stream.audio == sent
    assert await message_played(line) is EndReason.VOICEMAIL_LEFT


async def test_message_left_on_an_earlier_stream_is_not_left_again(line):
    line.session.voicemail = Voicemail.LEFT
    line.call.answered_by(AnsweredBy.GREETING_OVER, MESSAGE)
    assert await line.ends() is EndReason.VOICEMAIL_LEFT
    assert line.engine.session.said == []


async def test_report_may_come_before_the_media():
    """The call manager passes it on as soon as the call runs; the engine is not connected then."""
    line = Line()
    for report in (AnsweredBy.MACHINE, AnsweredBy.GREETING_OVER):
        asyncio.get_running_loop().call_soon(line.call.answered_by, report, MESSAGE)
    await line.connected()
    assert line.engine.session.said == [MESSAGE]
    sent = line.stream.audio
    line.agent_says("Hi, Maya here.")  # the greeting, which the engine says by itself
    assert line.stream.audio == sent
    assert await message_played(line) is EndReason.VOICEMAIL_LEFT
    assert spoken(line) == [MESSAGE]


@pytest.mark.parametrize(
    "message, detection",
    [(None, MachineDetection.OFF), ("", MachineDetection.MACHINE), (MESSAGE, MachineDetection.GREETING_END)],
)
def test_detection_fits_what_is_to_be_done(message, detection):
    assert MachineDetection.for_message(message) is detection
