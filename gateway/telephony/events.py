"""What a carrier can tell us, in one vocabulary for all of them. Frozen, named by what happened."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StreamStarted:
    """The media stream is up. Which call it claims to be; the token still has to prove it."""

    call_id: str
    stream_id: str
    account_id: str = ""
    token: str = ""
    parameters: dict[str, str] = field(default_factory=dict)
    problem: str = ""
    """Why its sound can't be used; empty where it can."""


@dataclass(frozen=True, slots=True)
class AudioReceived:
    """Sound from the caller: mu-law, 8000 Hz."""

    audio: bytes


@dataclass(frozen=True, slots=True)
class MarkReached:
    """A mark of ours was played, or flushed by a clear: the carrier does not say which."""

    name: str


@dataclass(frozen=True, slots=True)
class DigitPressed:
    """A key on the caller's phone."""

    digit: str


@dataclass(frozen=True, slots=True)
class StreamStopped:
    """The carrier ended the stream in good order."""


@dataclass(frozen=True, slots=True)
class CarrierErrorReported:
    """The carrier did not like something we sent; the stream goes on."""

    code: str
    title: str


CarrierEvent = StreamStarted | AudioReceived | MarkReached | DigitPressed | StreamStopped | CarrierErrorReported
