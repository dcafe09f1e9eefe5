"""
The carrier's dialect, without I/O: feed it frames, it returns events; ask it to send, it returns frames.

Twilio and Telnyx speak the same words (`connected`, `start`, `media`, `mark`, `dtmf`, `stop`) in different grammars:
the order of things lives here, the grammar in one subclass per carrier. Malformed text becomes RemoteProtocolError.
"""

import binascii
import enum
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import orjson

from gateway.errors import LocalProtocolError, RemoteProtocolError
from gateway.telephony.events import (
    AudioReceived,
    CarrierErrorReported,
    CarrierEvent,
    DigitPressed,
    MarkReached,
    StreamStarted,
    StreamStopped,
)

Message = Mapping[str, Any]


class StreamState(enum.Enum):
    """A stream's life. It only ever moves down this list."""

    CONNECTING = enum.auto()
    STREAMING = enum.auto()
    STOPPED = enum.auto()


_STREAMING: Final = StreamState.STREAMING
"""Looked up for every frame: to find it in its class takes as long as three comparisons."""


class CarrierCodec(ABC):
    """One media stream of one call, in the carrier's dialect."""

    name: ClassVar[str]

    def __init__(self, token: str = "") -> None:
        """`token` is the one the stream's address carried, for carriers that keep it there."""
        self.state = StreamState.CONNECTING
        self._url_token = token

    # What the carrier sends

    def hear(self, frame: bytes | str) -> bytes | None:
        """
        The sound in one text frame. None for any other frame, and nothing has happened then: it is for `receive`.

        Nearly every frame is sound, fifty a second of each call. This is their short way; `receive` hears the same.
        """
        try:
            message = orjson.loads(frame)
            if message["event"] == "media" and self.state is _STREAMING:
                return self._plain_sound(message["media"])
        except (AttributeError, KeyError, TypeError, ValueError):
            pass  # `receive` tells what is wrong with it
        return None

    def receive(self, frame: bytes | str) -> list[CarrierEvent]:
        """The events in one text frame. RemoteProtocolError if the carrier would not send it, or not now."""
        message = self._parse(frame)
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
                return [self._complaint(message)]
            case ("start" | "media" | "mark" | "dtmf" | "stop") as event, state:
                raise RemoteProtocolError(self.name, f"sent {event!r} while {state.name.lower()}")
            case _:
                return []  # "connected", and what carriers add: one we don't know must not end a call

    def end(self, *, stopped: bool = False) -> list[CarrierEvent]:
        """The stream is over, in good order or not. Returns what was held back; safe to repeat."""
        if self.state is StreamState.STOPPED:
            return []
        self.state = StreamState.STOPPED
        held = self._held_back()
        return [*held, StreamStopped()] if stopped else held

    # What we send

    @abstractmethod
    def send_audio(self, audio: bytes) -> list[bytes]:
        """Frames that play this after what is queued. May keep a remainder too short to send alone."""

    def finish_audio(self) -> list[bytes]:
        """Frames for what send_audio kept; an answer is complete."""
        return []

    @abstractmethod
    def send_mark(self, name: str) -> bytes:
        """Ask to be told when everything sent so far has been played."""

    @abstractmethod
    def send_clear(self) -> bytes:
        """Drop what the carrier has queued but not yet played (the caller started to speak)."""

    # The grammar of one carrier

    @abstractmethod
    def _started(self, message: Message, start: Message) -> StreamStarted: ...

    @abstractmethod
    def _audio(self, media: Message) -> list[CarrierEvent]: ...

    @abstractmethod
    def _plain_sound(self, media: Message) -> bytes | None:
        """What `_audio` would return, if it is one event and needs no thought. May raise what a wrong type raises."""

    def _held_back(self) -> list[CarrierEvent]:
        return []

    def _complaint(self, message: Message) -> CarrierErrorReported:
        payload = message.get("payload")
        details = payload if isinstance(payload, dict) else {}
        return CarrierErrorReported(code=str(details.get("code", "")), title=str(details.get("title", "")))

    # Reading, with blame

    def _parse(self, frame: bytes | str) -> Message:
        try:
            message = orjson.loads(frame)
        except orjson.JSONDecodeError:
            raise RemoteProtocolError(self.name, "sent a frame that is not JSON") from None
        if not isinstance(message, dict) or not isinstance(message.get("event"), str):
            raise RemoteProtocolError(self.name, "sent a frame without an event")
        return message

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
            return binascii.a2b_base64(media["payload"], strict_mode=True)
        except (KeyError, TypeError, ValueError):
            raise RemoteProtocolError(self.name, "sent audio that is not base64") from None

    def _must_stream(self) -> None:
        if self.state is not _STREAMING:
            raise LocalProtocolError(f"nothing can be sent to {self.name} while {self.state.name.lower()}")


def audio_events(audio: bytes) -> list[CarrierEvent]:
    """An audio event, or none for an empty frame."""
    return [AudioReceived(audio)] if audio else []


def text_parameters(given: object) -> dict[str, str]:
    """Custom parameters as text, from an object or from a list of name/value pairs."""
    if isinstance(given, dict):
        return {str(name): str(value) for name, value in given.items()}
    if isinstance(given, list):
        pairs = [pair for pair in given if isinstance(pair, dict) and "name" in pair]
        return {str(pair["name"]): str(pair.get("value", "")) for pair in pairs}
    return {}
