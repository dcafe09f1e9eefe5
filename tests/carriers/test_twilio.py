import copy
import json
from xml.etree import ElementTree

import pytest

from gateway.carriers import twilio
from gateway.errors import RemoteProtocolError
from tests.carriers.dialects import STREAM_ID, TWILIO


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


def test_other_encoding_is_refused() -> None:
    start = copy.deepcopy(TWILIO.start)
    start["start"]["mediaFormat"]["encoding"] = "audio/x-l16"
    with pytest.raises(RemoteProtocolError) as raised:
        TWILIO.codec().receive(json.dumps(start))
    assert str(raised.value) == "twilio streams 'audio/x-l16', expected 'audio/x-mulaw'"


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
