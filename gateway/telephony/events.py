"""Events of a media stream, the same for all carriers."""

from dataclasses import dataclass, field


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
