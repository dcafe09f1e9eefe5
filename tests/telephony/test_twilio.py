import copy
import json
from xml.etree import ElementTree

import pytest
from twilio.twiml.voice_response import VoiceResponse

from gateway.telephony import twilio
from gateway.telephony.codec import StreamStarted
from gateway.telephony.machine_detection import AnsweredBy
from tests.telephony.dialects import STREAM_ID, TWILIO


def test_messages_carry_the_stream_id() -> None:
    codec = TWILIO.streaming()
    [media] = codec.send_audio(b"\xff" * 160)
    assert json.loads(media) == {
        "event": "media",
        "streamSid": STREAM_ID,
        "media": {"payload": json.loads(media)["media"]["payload"]},
    }
    assert json.loads(codec.send_mark("m1")) == {"event": "mark", "streamSid": STREAM_ID, "mark": {"name": "m1"}}
    assert json.loads(codec.send_clear()) == {"event": "clear", "streamSid": STREAM_ID}


def test_other_encoding_is_a_problem() -> None:
    start = copy.deepcopy(TWILIO.start)
    start["start"]["mediaFormat"]["encoding"] = "audio/x-l16"
    [started] = TWILIO.codec().receive(json.dumps(start))
    assert isinstance(started, StreamStarted)
    assert started.problem == "streams 'audio/x-l16', expected 'audio/x-mulaw'"


def test_twiml_connects_with_a_token() -> None:
    response = ElementTree.fromstring(
        twilio.connect_stream(
            stream_url="wss://voice.example.com/twilio/media",
            resume_url="https://voice.example.com/twilio/resume?a=1&b=2",
            status_url="https://voice.example.com/twilio/status",
            token='a"<b>&',
        )
    )
    connect = response.find("Connect")
    assert connect is not None and connect.get("action") == "https://voice.example.com/twilio/resume?a=1&b=2"
    stream = connect.find("Stream")
    assert stream is not None and stream.get("url") == "wss://voice.example.com/twilio/media"
    parameter = stream.find("Parameter")
    assert parameter is not None and parameter.attrib == {"name": "token", "value": 'a"<b>&'}


def test_refusal_is_the_first_verb() -> None:
    assert [verb.tag for verb in ElementTree.fromstring(twilio.reject())] == ["Reject"]


URLS = {
    "resume_url": "https://voice.example.com/twilio/resume",
    "status_url": "https://voice.example.com/twilio/status",
}


@pytest.mark.parametrize(
    ("target", "noun"),
    [("+12025550177", "number"), ("sip:desk@pbx.example.net?x-ticket=8812&x-from=agent", "sip")],
)
def test_twiml_puts_through_as_the_library_would(target: str, noun: str) -> None:
    ours = twilio.dial(target, caller_id="+12025550100", ring_seconds=30, time_limit=3600, **URLS)
    theirs = VoiceResponse()
    dial = theirs.dial(
        caller_id="+12025550100", answer_on_bridge=True, timeout=30, time_limit=3600, action=URLS["resume_url"]
    )
    getattr(dial, noun)(target, status_callback=URLS["status_url"], status_callback_event="answered")
    assert ElementTree.canonicalize(ours) == ElementTree.canonicalize(str(theirs))


def test_twiml_says_a_sentence_and_hangs_up() -> None:
    theirs = VoiceResponse()
    theirs.say("Lines 1 & 2 are busy.")
    theirs.hangup()
    ours = twilio.say_and_hang_up("Lines 1 & 2 are busy.")
    assert ElementTree.canonicalize(ours) == ElementTree.canonicalize(str(theirs))


def test_no_caller_id_leaves_it_to_twilio() -> None:
    [dial] = ElementTree.fromstring(twilio.dial("+12025550177", caller_id="", ring_seconds=30, time_limit=60, **URLS))
    assert "callerId" not in dial.attrib


@pytest.mark.parametrize(
    ("form", "call_id"),
    [
        ({"CallSid": "CA2", "ParentCallSid": "CA1", "CallStatus": "in-progress"}, "CA1"),
        ({"CallSid": "CA2", "ParentCallSid": "CA1", "CallStatus": "ringing"}, ""),
        ({"CallSid": "CA2", "ParentCallSid": "CA1", "CallStatus": "completed"}, ""),
        ({"CallSid": "CA1", "CallStatus": "in-progress"}, ""),
    ],
)
def test_callback_of_the_other_leg_names_the_call(form: dict[str, str], call_id: str) -> None:
    assert twilio.picked_up(form) == call_id


@pytest.mark.parametrize(
    ("status", "spoke"),
    [("completed", True), ("answered", True), ("busy", False), ("no-answer", False), ("failed", False), (None, False)],
)
def test_only_an_answered_dial_was_put_through(status: str | None, spoke: bool) -> None:
    form = {"CallStatus": "in-progress"} | ({"DialCallStatus": status} if status else {})
    assert twilio.was_put_through(form) is spoke


@pytest.mark.parametrize(
    "value, answered_by",
    [
        ("human", AnsweredBy.PERSON),
        ("machine_start", AnsweredBy.MACHINE),
        ("machine_end_beep", AnsweredBy.GREETING_OVER),
        ("machine_end_silence", AnsweredBy.GREETING_OVER),
        ("machine_end_other", AnsweredBy.NO_MAILBOX),
        ("fax", AnsweredBy.NO_MAILBOX),
        ("unknown", None),
        ("a new value", None),
    ],
)
def test_answerer_is_read(value: str, answered_by: AnsweredBy | None) -> None:
    assert twilio.answered_by({"AnsweredBy": value}) is answered_by
