import pytest

from gateway.bench.carriers import stream_of
from gateway.telephony import twilio


def test_stream_and_token_are_read():
    twiml = twilio.connect_stream(
        stream_url="ws://127.0.0.1/twilio/media", resume_url="http://r", status_url="http://s", token="one&call"
    )
    assert stream_of(twiml) == ("ws://127.0.0.1/twilio/media", "one&call")


def test_rejected_call_has_no_stream():
    with pytest.raises(ValueError, match="did not answer the call with a stream"):
        stream_of(twilio.reject())
