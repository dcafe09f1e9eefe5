import base64
import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.audio import alaw_to_mulaw
from gateway.errors import RemoteProtocolError
from gateway.telephony.codec import AudioReceived, CarrierCodec, CarrierErrorReported, StreamStarted, StreamStopped
from gateway.telephony.machine_detection import AnsweredBy
from gateway.telephony.telnyx import REORDER_FRAMES, WebhookEvent, read_webhook, stream_command, transfer_state
from tests.telephony.dialects import TELNYX


def heard(codec: CarrierCodec, *chunks: int) -> list[int]:
    """The first byte of each frame, in the order it comes out, for frames fed in the order given."""
    events = [event for chunk in chunks for event in codec.receive(TELNYX.media(bytes([chunk]) * 160, chunk))]
    return [event.audio[0] for event in events if isinstance(event, AudioReceived)]


def test_messages_have_no_stream_id() -> None:
    codec = TELNYX.streaming()
    assert json.loads(codec.send_mark("m1")) == {"event": "mark", "mark": {"name": "m1"}}
    assert json.loads(codec.send_clear()) == {"event": "clear"}


def test_swapped_frames_are_put_in_order() -> None:
    assert heard(TELNYX.streaming(), 1, 3, 2, 4) == [1, 2, 3, 4]


def test_missing_frame_is_not_waited_for_long() -> None:
    assert heard(TELNYX.streaming(), 1, 3, 4, 5) == [1]
    assert heard(TELNYX.streaming(), 1, 3, 4, 5, 6) == [1, 3, 4, 5, 6]


def test_frame_after_its_place_is_too_late() -> None:
    assert heard(TELNYX.streaming(), 1, 3, 4, 5, 6, 2, 7) == [1, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("chunk", [None, "", "one", "9" * 5000, 1.5, [1]])
def test_frame_without_a_number_is_heard_as_it_comes(chunk: object) -> None:
    assert TELNYX.streaming().receive(TELNYX.media(b"\x01" * 160, chunk=chunk)) == [AudioReceived(b"\x01" * 160)]


def test_held_frames_come_out_at_the_end() -> None:
    codec = TELNYX.streaming()
    assert heard(codec, 1, 3) == [1]
    assert codec.receive(TELNYX.frame("stop", stop={})) == [AudioReceived(b"\x03" * 160), StreamStopped()]


@given(st.permutations(range(REORDER_FRAMES + 1)))
def test_any_small_disorder_is_mended(order: list[int]) -> None:
    assert heard(TELNYX.streaming(), *(chunk + 1 for chunk in order)) == [1, 2, 3, 4]


def test_a_law_becomes_mu_law() -> None:
    start = copy.deepcopy(TELNYX.start)
    start["start"]["media_format"]["encoding"] = "PCMA"
    codec = TELNYX.codec()
    codec.receive(json.dumps(start))
    mulaw = alaw_to_mulaw(b"\xd5" * 160)
    assert codec.receive(TELNYX.media(b"\xd5" * 160)) == [AudioReceived(mulaw)]
    recorded = codec.recorded(TELNYX.media(b"\xd5" * 160).encode())
    assert json.loads(recorded) == json.loads(TELNYX.media(mulaw))


@pytest.mark.parametrize(
    ("encoding", "shown"), [("OPUS", "OPUS"), ("L16", "L16"), ("", ""), (None, ""), (["PCMU"], "")]
)
def test_other_encoding_is_a_problem(encoding: object, shown: str) -> None:
    start = copy.deepcopy(TELNYX.start)
    start["start"]["media_format"]["encoding"] = encoding
    [started] = TELNYX.codec().receive(json.dumps(start))
    assert isinstance(started, StreamStarted)
    assert started.problem == f"streams {shown!r}, expected 'PCMU'"


@given(st.lists(st.binary(min_size=1, max_size=900), max_size=12))
def test_pieces_of_any_size_leave_whole(pieces: list[bytes]) -> None:
    """No message is shorter than 20 ms, and nothing is lost but for silence at the end."""
    codec = TELNYX.streaming()
    frames = [frame for piece in pieces for frame in codec.send_audio(piece)] + codec.finish_audio()
    sent = [base64.b64decode(json.loads(frame)["media"]["payload"]) for frame in frames]
    whole = b"".join(pieces)
    assert all(len(audio) >= 160 for audio in sent)
    assert b"".join(sent)[: len(whole)] == whole
    assert set(b"".join(sent)[len(whole) :]) <= {0xFF}


def test_longer_than_thirty_seconds_is_split() -> None:
    frames = TELNYX.streaming().send_audio(b"\x01" * 240_170)
    assert [len(base64.b64decode(json.loads(frame)["media"]["payload"])) for frame in frames] == [240_000, 170]


def test_clear_drops_the_remainder() -> None:
    codec = TELNYX.streaming()
    assert codec.send_audio(b"\x01" * 100) == []
    codec.send_clear()
    assert codec.finish_audio() == []


def test_complaint_is_told_not_raised() -> None:
    frame = '{"event": "error", "payload": {"code": 100004, "title": "invalid_media", "detail": "…"}}'
    assert TELNYX.streaming().receive(frame) == [CarrierErrorReported("100004", "invalid_media")]


def test_answer_asks_for_mu_law_both_ways() -> None:
    command = stream_command(stream_url="wss://voice.example.com/telnyx/media?token=t", command_id="answer-1")
    assert command["stream_bidirectional_mode"] == "rtp"
    assert command["stream_codec"] == command["stream_bidirectional_codec"] == "PCMU"
    assert command["stream_bidirectional_target_legs"] == "self"


@pytest.mark.parametrize("body", [b"", b"no", b"[]", b"{}", b'{"data": 5}', b'{"data": {"payload": {}}}'])
def test_webhook_without_event_is_blamed(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        read_webhook(body)


def test_webhook_fields_may_be_null() -> None:
    event = read_webhook(b'{"data": {"event_type": "call.hangup", "id": "e1", "payload": {"call_control_id": null}}}')
    assert (event.id, event.type, event.call_id, event.incoming) == ("e1", "call.hangup", "", False)


@given(st.text(min_size=1, alphabet=st.characters(codec="utf-8")))
def test_new_leg_names_the_call_it_is_for(call_id: str) -> None:
    fields = {"call_control_id": "v3:b", "client_state": transfer_state(call_id)}
    leg = WebhookEvent("e1", "call.answered", fields)
    assert leg.transfer_of == call_id


@pytest.mark.parametrize("state", [None, "", "no base64!", "w6k", "/w==", "eyJzIjoiN2YzYSJ9"])
def test_other_legs_are_no_transfer(state: str | None) -> None:
    assert WebhookEvent("e1", "call.hangup", {"client_state": state}).transfer_of == ""


@pytest.mark.parametrize(
    "event, result, answered_by",
    [
        ("call.machine.detection.ended", "human", AnsweredBy.PERSON),
        ("call.machine.detection.ended", "machine", AnsweredBy.MACHINE),
        ("call.machine.detection.ended", "not_sure", None),
        ("call.machine.detection.ended", ["machine"], None),
        ("call.machine.greeting.ended", "beep_detected", AnsweredBy.GREETING_OVER),
        ("call.machine.greeting.ended", "ended", AnsweredBy.GREETING_OVER),
        ("call.machine.greeting.ended", "not_sure", AnsweredBy.GREETING_OVER),
        ("call.machine.premium.detection.ended", "human_business", AnsweredBy.PERSON),
        ("call.machine.premium.detection.ended", "fax_detected", AnsweredBy.NO_MAILBOX),
        ("call.hangup", "machine", None),
    ],
)
def test_answerer_is_read(event: str, result: object, answered_by: AnsweredBy | None) -> None:
    assert WebhookEvent("1", event, {"result": result}).answered_by is answered_by
