"""Twilio's messages as simulated callers send and read them. Whole calls are in tests/replay."""

import pytest

from gateway.simulate.carriers import twilio_form, twilio_signature, twilio_stream
from gateway.telephony import signatures, twilio


def test_stream_and_token_are_read():
    twiml = twilio.connect_stream(
        stream_url="ws://127.0.0.1/twilio/media", resume_url="http://r", status_url="http://s", token="one&call"
    )
    assert twilio_stream(twiml) == ("ws://127.0.0.1/twilio/media", "one&call")


@pytest.mark.parametrize(
    ("twiml", "problem"),
    [(twilio.reject(), "did not answer the call with a stream"), ("<Resp", "did not answer with TwiML")],
)
def test_call_that_is_not_answered_has_no_stream(twiml, problem):
    with pytest.raises(ValueError, match=problem):
        twilio_stream(twiml)


def test_gateway_accepts_the_signature():
    form, url = twilio_form("AC1", "CA1", "ringing", caller="", called="+12025550100"), "https://voice.example.com/x"
    headers = {name.lower(): value for name, value in twilio_signature("token", url, form).items()}
    signatures.check_twilio("token", url, form.items(), headers)


def test_anonymous_caller_has_twilios_word():
    assert twilio_form("AC1", "CA1", "ringing", caller="", called="+12025550100")["From"] == "anonymous"
