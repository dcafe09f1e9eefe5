"""
The carrier's media stream protocol without I/O: receive a frame, get events; ask to send, get frames.

Twilio and Telnyx send the same messages (`connected`, `start`, `media`, `mark`, `dtmf`, `stop`) with different fields.
The order of messages is checked here; each carrier's subclass reads its fields. Malformed text raises
RemoteProtocolError.
"""

import enum
from abc import ABC, abstractmethod
from binascii import a2b_base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import orjson

from gateway.errors import LocalProtocolError, RemoteProtocolError

Message = Mapping[str, Any]

# Events, the same for all carriers


@dataclass(frozen=True, slots=True)
class StreamStarted:
    """The media stream began. The call id is a claim until the token is verified."""

    call_id: str
    stream_id: str
    account_id: str = ""
    token: str = ""
    parameters: dict[str, str] = field(default_factory=dict)
    problem: str = ""
    """Why its audio can't be used; empty if it can."""


@dataclass(frozen=True, slots=True)
class AudioReceived:
    """Audio from the caller: mu-law, 8000 Hz."""

    audio: bytes


@dataclass(frozen=True, slots=True)
class MarkReached:
    """A mark was played, or dropped by a clear. Neither carrier says which (Twilio docs, "Mark message")."""

    name: str


@dataclass(frozen=True, slots=True)
class DigitPressed:
    """The caller pressed a key (DTMF)."""

    digit: str


@dataclass(frozen=True, slots=True)
class StreamStopped:
    """The carrier ended the stream with `stop`."""


@dataclass(frozen=True, slots=True)
class CarrierErrorReported:
    """The carrier rejected a message; the stream continues. Only Telnyx reports this."""

    code: str
    title: str


CarrierEvent = StreamStarted | AudioReceived | MarkReached | DigitPressed | StreamStopped | CarrierErrorReported

# The stream


class StreamState(enum.Enum):
    """States of a stream. Transitions only go down this list."""

    CONNECTING = enum.auto()
    STREAMING = enum.auto()
    STOPPED = enum.auto()


STREAMING: Final = StreamState.STREAMING
"""A module constant, because enum member lookup for every frame costs as much as three comparisons."""


class CarrierCodec(ABC):
    """One media stream of one call."""

    __slots__ = ("_url_token", "state")  # used for each frame

    name: ClassVar[str]

    def __init__(self, token: str = "") -> None:
        """`token` is the stream token from the URL, for carriers that transport it there."""
        self.state = StreamState.CONNECTING
        self._url_token = token

    # Frames from the carrier

    def receive_audio(self, frame: bytes | str) -> bytes | None:
        """
        The audio in one text frame; None for any other frame, which must then go to `receive`.

        A fast path: nearly every frame is audio, fifty a second per call. `receive` returns the same audio as an event.
        """
        try:
            message = orjson.loads(frame)
            if message["event"] == "media" and self.state is STREAMING:
                media = message["media"]
                if media.get("track", "inbound") == "inbound":
                    return a2b_base64(media["payload"], strict_mode=True) or None
        except (AttributeError, KeyError, TypeError, ValueError):
            pass  # `receive` reports the problem
        return None

    def receive(self, frame: bytes | str) -> list[CarrierEvent]:
        """The events in one text frame. RemoteProtocolError if it is malformed or out of order."""
        try:
            message = orjson.loads(frame)
        except orjson.JSONDecodeError:
            raise RemoteProtocolError(self.name, "sent a frame that is not JSON") from None
        if not isinstance(message, dict) or not isinstance(message.get("event"), str):
            raise RemoteProtocolError(self.name, "sent a frame without an event")
        match message["event"], self.state:
            case "media", StreamState.STREAMING:
                return self._audio(self._part(message, "media"))
            case "mark", StreamState.STREAMING:
                return [MarkReached(self._text(self._part(message, "mark"), "name"))]
            case "dtmf", StreamState.STREAMING:
                return [DigitPressed(self._text(self._part(message, "dtmf"), "digit"))]
            case "start", StreamState.CONNECTING:
                started = self._started(message, self._part(message, "start"))
                self.state = StreamState.STREAMING
                return [started]
            case "stop", StreamState.STREAMING:
                return self.end(stopped=True)
            case "error", _:
                details = payload if isinstance(payload := message.get("payload"), dict) else {}
                return [CarrierErrorReported(plain_value(details.get("code")), plain_value(details.get("title")))]
            case ("start" | "media" | "mark" | "dtmf" | "stop") as event, state:
                raise RemoteProtocolError(self.name, f"sent {event!r} while {state.name.lower()}")
            case _:
                return []  # "connected", and messages that carriers add later: an unknown one must not end a call

    def recorded(self, frame: bytes) -> bytes:
        """A frame that was received, as a recording has it: with mu-law audio."""
        return frame

    def end(self, *, stopped: bool = False) -> list[CarrierEvent]:
        """End the stream, after a `stop` or a lost socket. Returns events held back for reordering; safe to repeat."""
        if self.state is StreamState.STOPPED:
            return []
        self.state = StreamState.STOPPED
        held = self._held_back()
        return [*held, StreamStopped()] if stopped else held

    # Frames to the carrier

    @abstractmethod
    def send_audio(self, audio: bytes) -> list[bytes]:
        """Frames that append this audio to the carrier's play-out buffer. May keep a remainder too short to send."""

    def finish_audio(self) -> list[bytes]:
        """Frames for the remainder that `send_audio` kept; called at the end of an answer."""
        return []

    @abstractmethod
    def send_mark(self, name: str) -> bytes:
        """A mark: the carrier returns it when everything sent before it has been played."""

    @abstractmethod
    def send_clear(self) -> bytes:
        """Empty the carrier's play-out buffer (barge-in)."""

    # The fields of one carrier

    @abstractmethod
    def _started(self, message: Message, start: Message) -> StreamStarted: ...

    def _audio(self, media: Message) -> list[CarrierEvent]:
        if media.get("track", "inbound") != "inbound":
            return []  # the agent's own audio
        return audio_events(self._payload(media))

    def _held_back(self) -> list[CarrierEvent]:
        return []

    # Parsing

    def _part(self, message: Message, name: str) -> Message:
        part = message.get(name)
        if not isinstance(part, dict):
            raise RemoteProtocolError(self.name, f"sent {message['event']!r} without {name!r}")
        return part

    def _text(self, part: Message, name: str) -> str:
        value = part.get(name)
        if not isinstance(value, str) or not value:
            raise RemoteProtocolError(self.name, f"sent no {name!r}")
        return value

    def _payload(self, media: Message) -> bytes:
        try:
            return a2b_base64(media["payload"], strict_mode=True)
        except (KeyError, TypeError, ValueError):
            raise RemoteProtocolError(self.name, "sent audio that is not base64") from None

    def _must_stream(self) -> None:
        if self.state is not STREAMING:
            raise LocalProtocolError(f"cannot send to {self.name} while {self.state.name.lower()}")


def audio_events(audio: bytes) -> list[CarrierEvent]:
    """An audio event, or none for an empty frame."""
    return [AudioReceived(audio)] if audio else []


def text_parameters(given: object) -> dict[str, str]:
    """Custom parameters as text, from an object or from a list of name/value pairs."""
    if isinstance(given, dict):
        return {name: plain_value(value) for name, value in given.items()}
    if isinstance(given, list):
        pairs = [pair for pair in given if isinstance(pair, dict) and "name" in pair]
        return {plain_value(pair["name"]): plain_value(pair.get("value")) for pair in pairs}
    return {}


def plain_value(value: object) -> str:
    """A text or number of a message as text; else empty. `str` of a deeply nested list raises RecursionError."""
    return str(value) if isinstance(value, str | int | float) else ""
