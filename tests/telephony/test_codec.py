"""What holds for every carrier's codec."""

import base64
import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import LocalProtocolError, RemoteProtocolError
from gateway.telephony.codec import (
    AudioReceived,
    CarrierCodec,
    CarrierErrorReported,
    DigitPressed,
    MarkReached,
    StreamStarted,
    StreamState,
    StreamStopped,
)
from tests.telephony.dialects import CALL_ID, STREAM_ID, TELNYX, TWILIO, Dialect

CARRIERS = pytest.mark.parametrize("carrier", [TWILIO, TELNYX], ids=lambda carrier: carrier.name)
SOUND = bytes(range(160))


@CARRIERS
def test_start_names_call_and_stream(carrier: Dialect) -> None:
    [started] = carrier.codec("secret").receive(json.dumps(carrier.start))
    assert isinstance(started, StreamStarted)
    assert (started.call_id, started.stream_id, started.token) == (CALL_ID, STREAM_ID, "secret")
    assert started.parameters == {"agent": "maya"}


@CARRIERS
def test_connected_says_nothing(carrier: Dialect) -> None:
    frame = '{"event": "connected", "protocol": "Call", "version": "1.0.0"}'
    assert carrier.codec().receive(frame) == []


@CARRIERS
def test_audio_comes_out_unchanged(carrier: Dialect) -> None:
    assert carrier.streaming().receive(carrier.media(SOUND)) == [AudioReceived(SOUND)]


@CARRIERS
@pytest.mark.parametrize("event", ["media", "mark", "dtmf", "stop"])
def test_nothing_is_heard_before_start(carrier: Dialect, event: str) -> None:
    with pytest.raises(RemoteProtocolError) as raised:
        carrier.codec().receive(carrier.frame(event, **{event: {}}))
    assert str(raised.value) == f"{carrier.name} sent {event!r} while connecting"


@CARRIERS
def test_second_start_is_refused(carrier: Dialect) -> None:
    codec = carrier.streaming()
    with pytest.raises(RemoteProtocolError) as raised:
        codec.receive(json.dumps(carrier.start))
    assert str(raised.value) == f"{carrier.name} sent 'start' while streaming"


@CARRIERS
def test_own_sound_is_dropped(carrier: Dialect) -> None:
    assert carrier.streaming().receive(carrier.media(SOUND, track="outbound")) == []


@CARRIERS
def test_mark_and_digit_are_told(carrier: Dialect) -> None:
    codec = carrier.streaming()
    assert codec.receive(carrier.frame("mark", mark={"name": "m4"})) == [MarkReached("m4")]
    assert codec.receive(carrier.frame("dtmf", dtmf={"digit": "5"})) == [DigitPressed("5")]


@CARRIERS
def test_stop_ends_the_stream_once(carrier: Dialect) -> None:
    codec = carrier.streaming()
    assert codec.receive(carrier.frame("stop", stop={})) == [StreamStopped()]
    assert codec.state is StreamState.STOPPED
    assert codec.end() == []


@CARRIERS
@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        ("hello", "sent a frame that is not JSON"),
        (b"\xff\xfe", "sent a frame that is not JSON"),
        ("[]", "sent a frame without an event"),
        ('{"event": 7}', "sent a frame without an event"),
        ('{"event": "media"}', "sent 'media' without 'media'"),
        ('{"event": "media", "media": {"payload": "***"}}', "sent audio that is not base64"),
        ('{"event": "media", "media": {"payload": 5}}', "sent audio that is not base64"),
        ('{"event": "media", "media": {}}', "sent audio that is not base64"),
        ('{"event": "mark", "mark": {}}', "sent no 'name'"),
        ('{"event": "dtmf", "dtmf": {"digit": 5}}', "sent no 'digit'"),
    ],
)
def test_malformed_frame_is_blamed_on_the_carrier(carrier: Dialect, frame: str, problem: str) -> None:
    with pytest.raises(RemoteProtocolError) as raised:
        carrier.streaming().receive(frame)
    assert str(raised.value) == f"{carrier.name} {problem}"


@CARRIERS
def test_unknown_event_is_ignored(carrier: Dialect) -> None:
    assert carrier.streaming().receive('{"event": "weather", "weather": {}}') == []


@CARRIERS
def test_nothing_can_be_sent_before_start(carrier: Dialect) -> None:
    codec = carrier.codec()
    for send in (lambda: codec.send_audio(SOUND), lambda: codec.send_mark("m1"), codec.send_clear):
        with pytest.raises(LocalProtocolError, match="while connecting"):
            send()


@CARRIERS
def test_sound_leaves_as_it_came(carrier: Dialect) -> None:
    [frame] = carrier.streaming().send_audio(SOUND)
    assert base64.b64decode(json.loads(frame)["media"]["payload"]) == SOUND


@CARRIERS
@given(st.binary(max_size=400))
def test_any_bytes_give_events_or_blame(carrier: Dialect, frame: bytes) -> None:
    codec = carrier.streaming()
    try:
        codec.receive(frame)
    except RemoteProtocolError:
        assert codec.state is StreamState.STREAMING


@CARRIERS
@given(st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3)))
def test_start_with_odd_fields_is_blamed(carrier: Dialect, odd: object) -> None:
    start = copy.deepcopy(carrier.start)
    start["start"] = odd
    with pytest.raises(RemoteProtocolError):
        carrier.codec().receive(json.dumps(start))


@CARRIERS
def test_deeply_nested_value_is_no_text(carrier: Dialect) -> None:
    """`str` of it would raise RecursionError."""
    nested = "[" * 1000 + "]" * 1000
    frame = json.dumps(carrier.start)
    for value in ("audio/x-mulaw", "PCMU", "maya"):
        frame = frame.replace(f'"{value}"', nested)
    [started] = carrier.codec().receive(frame)
    assert isinstance(started, StreamStarted)
    assert started.parameters == {"agent": ""}
    assert started.problem.startswith("streams ''")
    error = f'{{"event": "error", "payload": {{"code": {nested}, "title": {nested}}}}}'
    assert carrier.codec().receive(error) == [CarrierErrorReported("", "")]


# The short way that sound takes

MEDIA = st.builds(
    lambda audio, number, odd: (audio, number, odd),
    st.binary(max_size=3),
    st.integers(-1, 8),
    st.sampled_from([{}, {"track": "outbound"}, {"chunk": None}, {"chunk": [1]}, {"payload": "?"}, {"payload": 7}]),
)
OTHERS = st.sampled_from(['{"event": "media", "media": []}', '{"event": "media"}', '{"event": "stop"', "[1]"])


def heard(codec: CarrierCodec, frame: str, *, short: bool) -> bytes:
    """All sound of a frame, with or without the short way."""
    if short and (sound := codec.receive_audio(frame)) is not None:
        return sound
    try:
        return b"".join(event.audio for event in codec.receive(frame) if isinstance(event, AudioReceived))
    except RemoteProtocolError:
        return b"blamed"


@CARRIERS
@given(st.lists(MEDIA | OTHERS, max_size=20))
def test_sound_is_the_same_by_the_short_way(carrier: Dialect, frames: list[tuple[bytes, int, Any] | str]) -> None:
    one, other = carrier.streaming(), carrier.streaming()
    for frame in frames:
        text = frame if isinstance(frame, str) else carrier.media(frame[0], frame[1], **frame[2])
        assert heard(one, text, short=True) == heard(other, text, short=False)
    assert one.end() == other.end()


@CARRIERS
def test_plain_sound_takes_the_short_way(carrier: Dialect) -> None:
    codec = carrier.streaming()
    assert [codec.receive_audio(carrier.media(SOUND, number)) for number in (1, 2, 3)] == [SOUND] * 3


@CARRIERS
def test_nothing_is_heard_by_the_short_way_before_start(carrier: Dialect) -> None:
    assert carrier.codec().receive_audio(carrier.media(SOUND)) is None
