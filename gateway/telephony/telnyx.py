"""Telnyx: the media streaming protocol, Call Control webhooks and commands."""

from base64 import b64decode, b64encode
from binascii import a2b_base64
from dataclasses import dataclass
from typing import Any, ClassVar, Final
from urllib.parse import parse_qs

import orjson

from gateway.audio import FRAME_BYTES, SILENCE_BYTE, alaw_to_mulaw
from gateway.errors import RemoteProtocolError
from gateway.telephony.codec import (
    STREAMING,
    CarrierCodec,
    CarrierEvent,
    Message,
    StreamStarted,
    audio_events,
    plain_value,
    text_parameters,
)
from gateway.telephony.machine_detection import AnsweredBy
from gateway.telephony.phone_numbers import Attestation

REORDER_FRAMES: Final = 3
"""How many later frames to hold back for a missing one: 60 ms of audio. Then it counts as lost."""

# "between 20 ms and 30 s per message" (Telnyx docs, "Media streaming over WebSockets", rtp mode)
_MIN_BYTES: Final = FRAME_BYTES
_MAX_BYTES: Final = 240_000

_CHUNK_DIGITS: Final = 12
_TRANSFER: Final = "transfer:"
_ORDER: Final = "order:"
_NOT_PICKED_UP: Final = "call_rejected user_busy no_answer timeout not_found originator_cancel".split()


class TelnyxCodec(CarrierCodec):
    """
    Media streaming in `rtp` mode (Telnyx docs, "Media streaming over WebSockets").

    Media can arrive out of order ("the order of events is not guaranteed"); `chunk` gives the order. Messages to Telnyx
    carry no stream id.
    """

    __slots__ = ("_alaw", "_early", "_next_chunk", "_remainder")  # used for each frame

    name: ClassVar[str] = "telnyx"

    def __init__(self, token: str = "") -> None:
        super().__init__(token)
        self._alaw = False
        self._next_chunk = 1
        self._early: dict[int, bytes] = {}
        self._remainder = b""

    def receive_audio(self, frame: bytes | str) -> bytes | None:
        """None also for audio that is not mu-law or not in order."""
        try:
            message = orjson.loads(frame)
            if message["event"] == "media" and self.state is STREAMING and not self._alaw:
                media = message["media"]
                is_next = not self._early and _chunk_number(media.get("chunk")) == self._next_chunk
                if is_next and media.get("track", "inbound") == "inbound":
                    audio = a2b_base64(media["payload"], strict_mode=True)
                    self._next_chunk += bool(audio)
                    return audio or None
        except (AttributeError, KeyError, TypeError, ValueError):
            pass  # `receive` reports the problem
        return None

    def recorded(self, frame: bytes) -> bytes:
        if self._alaw:
            message = orjson.loads(frame)
            if message["event"] == "media" and message["media"].get("track", "inbound") == "inbound":
                audio = alaw_to_mulaw(self._payload(message["media"]))
                message["media"]["payload"] = b64encode(audio).decode()
                return orjson.dumps(message)
        return frame

    def send_audio(self, audio: bytes) -> list[bytes]:
        self._must_stream()
        if self._remainder:
            audio, self._remainder = self._remainder + audio, b""
        frames = []
        while len(audio) >= _MIN_BYTES:
            frames.append(_media(audio[:_MAX_BYTES]))
            audio = audio[_MAX_BYTES:]
        self._remainder = audio
        return frames

    def finish_audio(self) -> list[bytes]:
        rest, self._remainder = self._remainder, b""
        return [_media(rest.ljust(_MIN_BYTES, bytes([SILENCE_BYTE])))] if rest else []

    def send_mark(self, name: str) -> bytes:
        self._must_stream()
        return b'{"event":"mark","mark":{"name":%b}}' % orjson.dumps(name)

    def send_clear(self) -> bytes:
        self._must_stream()
        self._remainder = b""
        return b'{"event":"clear"}'

    def _started(self, message: Message, start: Message) -> StreamStarted:
        encoding = plain_value(self._part({"event": "start", **start}, "media_format").get("encoding"))
        self._alaw = encoding == "PCMA"
        return StreamStarted(
            call_id=self._text(start, "call_control_id"),
            stream_id=self._text(message, "stream_id"),
            token=self._url_token,
            parameters=text_parameters(start.get("custom_parameters") or start.get("customParameters")),
            problem="" if encoding in ("PCMU", "PCMA") else f"streams {encoding!r}, expected 'PCMU'",
        )

    def _audio(self, media: Message) -> list[CarrierEvent]:
        if media.get("track", "inbound") != "inbound":
            return []  # the agent's own audio
        audio = self._payload(media)
        if self._alaw:
            audio = alaw_to_mulaw(audio)
        chunk = _chunk_number(media.get("chunk"))
        if chunk is None:
            return audio_events(audio)
        if chunk < self._next_chunk:
            return []  # already counted as lost
        self._early[chunk] = audio
        if self._next_chunk not in self._early and len(self._early) > REORDER_FRAMES:
            self._next_chunk = min(self._early)
        events: list[CarrierEvent] = []
        while self._next_chunk in self._early:
            events += audio_events(self._early.pop(self._next_chunk))
            self._next_chunk += 1
        return events

    def _held_back(self) -> list[CarrierEvent]:
        held = [self._early[chunk] for chunk in sorted(self._early)]
        self._early.clear()
        return [event for audio in held for event in audio_events(audio)]


def _media(audio: bytes) -> bytes:
    return b'{"event":"media","media":{"payload":"' + b64encode(audio) + b'"}}'


def _chunk_number(value: object) -> int | None:
    """A chunk number; None if it is not a number or impossibly long."""
    if isinstance(value, str) and value.isdecimal() and len(value) <= _CHUNK_DIGITS:
        return int(value)
    return value if isinstance(value, int) else None


_DETECTED: Final = {
    "human": AnsweredBy.PERSON,
    "human_residence": AnsweredBy.PERSON,
    "human_business": AnsweredBy.PERSON,
    "machine": AnsweredBy.MACHINE,
    "fax_detected": AnsweredBy.NO_MAILBOX,
}
"""Telnyx docs, "Answering Machine Detection", result."""


@dataclass(frozen=True, slots=True)
class WebhookEvent:
    """One Call Control event. `payload` fields may be missing or null; `text` reads them safely."""

    id: str
    type: str
    payload: dict[str, Any]

    def text(self, name: str) -> str:
        value = self.payload.get(name)
        return value if isinstance(value, str) else ""

    @property
    def call_id(self) -> str:
        return self.text("call_control_id")

    @property
    def incoming(self) -> bool:
        return self.text("direction") == "incoming"

    @property
    def stream_token(self) -> str:
        """The token in the stream URL of a streaming event; empty if the event has no URL."""
        given = self.payload.get("stream_params")
        details = given if isinstance(given, dict) else {}
        url = self.text("stream_url") or str(details.get("stream_url") or "")
        return parse_qs(url.partition("?")[2]).get("token", [""])[0]

    @property
    def attributes(self) -> dict[str, str]:
        """Attributes that another program attached to the call: a JSON object in `client_state`."""
        try:
            return text_parameters(orjson.loads(self._client_state))
        except ValueError:
            return {}

    @property
    def transfer_of(self) -> str:
        """
        The caller's call id if the event concerns the leg to a transfer target; else empty.

        On that leg `call.answered` means success. `call.hangup` before it means failure: the caller's leg stays alive
        and silent. `call.bridged` proves nothing: Telnyx's docs list it before the answer.
        """
        return self._id_after(_TRANSFER)

    @property
    def order_id(self) -> str:
        """The id of the outbound call request; empty for an incoming call."""
        return self._id_after(_ORDER)

    @property
    def attestation(self) -> Attestation:
        """From `call.initiated`. A level that Telnyx did not validate counts as none."""
        level = Attestation.of_level(self.payload.get("shaken_stir_attestation"))
        validated = self.payload.get("shaken_stir_validated")
        if level is Attestation.NONE or validated is True:  # Telnyx reports unsigned calls as not validated, too
            return level
        return Attestation.FAILED if validated is False else Attestation.NONE

    @property
    def sip_headers(self) -> dict[str, str]:
        """The custom headers of a SIP call from `call.initiated`, names in lower case."""
        lists = (self.payload.get(field) for field in ("custom_headers", "sip_headers"))
        headers = [item for listed in lists if isinstance(listed, list) for item in listed if isinstance(item, dict)]
        pairs = ((header.get("name"), header.get("value")) for header in headers)
        return {name.lower(): value for name, value in pairs if isinstance(name, str) and isinstance(value, str)}

    @property
    def answered_by(self) -> AnsweredBy | None:
        """
        From the events of machine detection; None for other events, and if Telnyx is not sure.

        The end of the greeting may be reported without the detection itself.
        """
        if not self.type.startswith("call.machine."):
            return None
        if self.type.endswith("greeting.ended"):
            return AnsweredBy.GREETING_OVER
        return _DETECTED.get(self.text("result"))

    @property
    def not_picked_up(self) -> str:
        """Why a `call.hangup` came before an answer; empty if the call was answered."""
        cause = self.text("hangup_cause")
        return cause.replace("_", " ") if cause in _NOT_PICKED_UP else ""

    def _id_after(self, prefix: str) -> str:
        state = self._client_state
        return state.removeprefix(prefix) if state.startswith(prefix) else ""

    @property
    def _client_state(self) -> str:
        try:
            return b64decode(self.text("client_state"), validate=True).decode()
        except ValueError:
            return ""


def read_webhook(body: bytes) -> WebhookEvent:
    """The event in a webhook body (API version 2). RemoteProtocolError if the body has no event."""
    try:
        envelope = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise RemoteProtocolError("telnyx", "sent a webhook that is not JSON") from None
    data = envelope.get("data") if isinstance(envelope, dict) else None
    if not isinstance(data, dict) or not isinstance(data.get("event_type"), str):
        raise RemoteProtocolError("telnyx", "sent a webhook without an event")
    payload = data.get("payload")
    return WebhookEvent(str(data.get("id") or ""), data["event_type"], payload if isinstance(payload, dict) else {})


def stream_command(*, stream_url: str, command_id: str) -> dict[str, str]:
    """
    The parameters of `answer` and `streaming_start`: PCMU both ways, the caller's track only.

    Target leg is `self`: the default, `opposite`, has no effect in a call with a single leg.
    """
    return {
        "command_id": command_id,
        "stream_url": stream_url,
        "stream_track": "inbound_track",
        "stream_codec": "PCMU",  # the default is the codec of the phone leg, often A-law
        "stream_bidirectional_mode": "rtp",  # the default, mp3, ignores raw audio without an error
        "stream_bidirectional_codec": "PCMU",
        "stream_bidirectional_target_legs": "self",
    }


def transfer_state(call_id: str) -> str:
    """The `client_state` of the leg to a transfer target. Every event of that leg returns it: see `transfer_of`."""
    return b64encode(f"{_TRANSFER}{call_id}".encode()).decode()


def order_state(order_id: str) -> str:
    """The `client_state` of an outbound call. Every event of the call returns it: see `order_id`."""
    return b64encode(f"{_ORDER}{order_id}".encode()).decode()
