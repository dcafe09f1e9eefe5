"""
Fuzz targets: the carriers' codecs.

An input is up to MAX_FRAMES lines. A line is a frame, or, if it begins with a byte above 0x7f, a list of changes to a
valid frame.
"""

from base64 import b64encode
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import Any

import orjson

from gateway.errors import RemoteProtocolError
from gateway.telephony.codec import (
    AudioReceived,
    CarrierCodec,
    CarrierErrorReported,
    CarrierEvent,
    DigitPressed,
    MarkReached,
    StreamStarted,
    StreamState,
    StreamStopped,
)
from gateway.telephony.telnyx import REORDER_FRAMES
from tests.fuzz.data import Choices
from tests.telephony.dialects import STREAM_ID, TELNYX, TWILIO, Dialect

EVENTS = ("media", "start", "mark", "dtmf", "stop", "error", "connected", "clear", "")
VALUES = (
    *(
        "1",
        "2",
        "3",
        "4",
        "5",
        "9",
        "",
        "inbound",
        "outbound",
        "PCMU",
        "PCMA",
        "audio/x-mulaw",
        "//8=",
        "AAAA",
        "A",
        "=",
        "é",
    ),
    *(None, True, False, 0, 1, 2, 3, 7, -1, 2**53, 2**64 - 1, 1.5, 1e300, "１", "999999999999", "1" * 13),
    *([], {}, [{"name": "token", "value": "secret"}], [{"name": 1}, 2], {"token": "t", "a": None}, ["x"]),
)
KEYS = (
    *(
        "event",
        "media",
        "payload",
        "chunk",
        "track",
        "mark",
        "name",
        "dtmf",
        "digit",
        "start",
        "streamSid",
        "stream_id",
    ),
    *("callSid", "accountSid", "customParameters", "custom_parameters", "call_control_id", "mediaFormat"),
    *("media_format", "encoding", "code", "title"),
)
HIGHEST_TEXT = 0x80
MAX_FRAMES = 8


def fuzz_twilio(data: bytes) -> None:
    _fuzz(TWILIO, data)


def fuzz_telnyx(data: bytes) -> None:
    _fuzz(TELNYX, data)


def _fuzz(dialect: Dialect, data: bytes) -> None:
    fast, slow = dialect.codec("secret"), dialect.codec("secret")
    events: list[CarrierEvent] = []
    for frame in _frames(dialect, Choices(data)):
        state = slow.state
        expected = _received(slow, frame)
        assert slow.state.value >= state.value, "the state went back"
        audio = fast.receive_audio(frame)
        actual = [AudioReceived(audio)] if audio is not None else _received(fast, frame)
        assert actual == expected, "the fast path differs"
        assert fast.state is slow.state
        for event in expected or ():
            _check_event(dialect, event)
        events += expected or ()
    held = slow.end()
    assert held == fast.end()
    assert len(held) <= REORDER_FRAMES
    assert slow.end() == []
    _check_order([event for event in [*events, *held] if not isinstance(event, CarrierErrorReported)])


def _received(codec: CarrierCodec, frame: bytes) -> list[CarrierEvent] | None:
    try:
        return codec.receive(frame)
    except RemoteProtocolError:
        return None


def _check_order(events: list[CarrierEvent]) -> None:
    starts = [place for place, event in enumerate(events) if isinstance(event, StreamStarted)]
    assert starts in ([], [0]), "not one start, first"
    stops = [place for place, event in enumerate(events) if isinstance(event, StreamStopped)]
    assert stops in ([], [len(events) - 1]), "not one stop, last"


def _check_event(dialect: Dialect, event: CarrierEvent) -> None:
    """What was received means the same when it is sent and received again."""
    codec, peer = _pair(dialect.name)
    match event:
        case AudioReceived(audio):
            assert audio
            frames = [*codec.send_audio(audio), *codec.finish_audio()]
            played = b"".join(part.audio for frame in frames for part in peer.receive(frame))
            assert played.startswith(audio)
            assert set(played[len(audio) :]) <= {0xFF}, "padded with something else than silence"
        case MarkReached(name):
            assert peer.receive(codec.send_mark(name)) == [MarkReached(name)]
        case DigitPressed(digit):
            assert peer.receive(dialect.frame("dtmf", dtmf={"digit": digit})) == [event]
        case StreamStarted():
            fresh = dialect.codec(event.token)
            [again] = fresh.receive(orjson.dumps(_start(dialect, event)))
            assert again == replace(event, problem=again.problem)
            assert bool(again.problem) == bool(event.problem)
            assert fresh.state is StreamState.STREAMING
            fresh.send_audio(b"\x7f" * 160)
        case CarrierErrorReported(code, title):
            assert isinstance(code, str)
            assert isinstance(title, str)
        case StreamStopped():
            pass


@cache
def _pair(name: str) -> tuple[CarrierCodec, CarrierCodec]:
    """Two open streams. Frames without a chunk number do not change their state."""
    dialect = {"twilio": TWILIO, "telnyx": TELNYX}[name]
    return dialect.streaming(), dialect.streaming()


def _start(dialect: Dialect, event: StreamStarted) -> dict[str, Any]:
    start: dict[str, Any]
    encoding = "?" if event.problem else {"twilio": "audio/x-mulaw", "telnyx": "PCMU"}[dialect.name]
    if dialect.name == "twilio":
        parameters = {**event.parameters, "token": event.token}
        start = {"callSid": event.call_id, "accountSid": event.account_id, "customParameters": parameters}
        message = {"streamSid": event.stream_id, "start": {**start, "mediaFormat": {"encoding": encoding}}}
    else:
        start = {"call_control_id": event.call_id, "custom_parameters": event.parameters}
        message = {"stream_id": event.stream_id, "start": {**start, "media_format": {"encoding": encoding}}}
    return {"event": "start", **message}


# Frames


def _frames(dialect: Dialect, choices: Choices) -> Iterator[bytes]:
    for _ in range(MAX_FRAMES):
        if not choices:
            break
        yield choices.line() if choices.peek() < HIGHEST_TEXT else orjson.dumps(_message(dialect, choices))


def _message(dialect: Dialect, choices: Choices) -> dict[str, Any]:
    """A valid message with up to three changes."""
    kind = choices.byte() - HIGHEST_TEXT
    event = EVENTS[kind % len(EVENTS)]
    message: dict[str, Any] = {"event": event, dialect.id_name: STREAM_ID, **_content(dialect, event, choices)}
    for _ in range(kind // len(EVENTS) % 4):
        key, part = choices.one_of(KEYS), message
        for name in ("start", "media", "mark", "dtmf", "payload", "mediaFormat", "media_format"):
            inner = part.get(name)
            if isinstance(inner, dict) and (key in inner or choices.byte() & 1):
                part = inner
        if choices.byte() & 1:
            part[key] = deepcopy(choices.one_of(VALUES))
        else:
            part.pop(key, None)
    return message


def _content(dialect: Dialect, event: str, choices: Choices) -> dict[str, Any]:
    match event:
        case "start":
            return {"start": orjson.loads(orjson.dumps(dialect.start["start"]))}
        case "media":
            audio = b64encode(choices.take(choices.byte() % 8)).decode()
            return {"media": {"track": "inbound", "chunk": str(choices.byte() % 8), "payload": audio}}
        case "mark":
            return {"mark": {"name": choices.take(3).decode("latin-1")}}
        case "dtmf":
            return {"dtmf": {"digit": choices.take(1).decode("latin-1")}}
        case "error":
            return {"payload": {"code": deepcopy(choices.one_of(VALUES)), "title": "x"}}
        case _:
            return {}
