"""Twilio: its media stream dialect, the TwiML that tells it what to do, and what it tells of a transfer."""

from base64 import b64encode
from binascii import a2b_base64
from collections.abc import Mapping
from typing import ClassVar
from xml.sax.saxutils import escape, quoteattr

import orjson

from gateway.telephony.codec import CarrierCodec, Message, audio_events, text_parameters
from gateway.telephony.events import CarrierEvent, StreamStarted


class TwilioCodec(CarrierCodec):
    """Twilio Media Streams, bidirectional: camelCase, and our messages carry the stream's id."""

    name: ClassVar[str] = "twilio"

    def __init__(self, token: str = "") -> None:
        super().__init__(token)
        self._media_prefix = b""
        self._stream_id = b'""'

    def send_audio(self, audio: bytes) -> list[bytes]:
        self._must_stream()
        return [self._media_prefix + b64encode(audio) + b'"}}']

    def send_mark(self, name: str) -> bytes:
        self._must_stream()
        return b'{"event":"mark","streamSid":%b,"mark":{"name":%b}}' % (self._stream_id, orjson.dumps(name))

    def send_clear(self) -> bytes:
        self._must_stream()
        return b'{"event":"clear","streamSid":%b}' % self._stream_id

    def _started(self, message: Message, start: Message) -> StreamStarted:
        stream_id = self._text(message, "streamSid")
        encoding = self._part({"event": "start", **start}, "mediaFormat").get("encoding")
        parameters = text_parameters(start.get("customParameters"))
        started = StreamStarted(
            call_id=self._text(start, "callSid"),
            stream_id=stream_id,
            account_id=self._text(start, "accountSid"),
            token=parameters.pop("token", ""),
            parameters=parameters,
            problem="" if encoding == "audio/x-mulaw" else f"streams {encoding!r}, expected 'audio/x-mulaw'",
        )
        self._stream_id = orjson.dumps(stream_id)
        self._media_prefix = b'{"event":"media","streamSid":%b,"media":{"payload":"' % self._stream_id
        return started

    def _audio(self, media: Message) -> list[CarrierEvent]:
        if media.get("track", "inbound") != "inbound":
            return []  # our own sound, coming back
        return audio_events(self._payload(media))

    def _plain_sound(self, media: Message) -> bytes | None:
        if media.get("track", "inbound") != "inbound":
            return None
        return a2b_base64(media["payload"], strict_mode=True) or None


def connect_stream(*, stream_url: str, resume_url: str, status_url: str, token: str) -> str:
    """TwiML that answers the call and connects its media to us."""
    return _document(
        f"<Connect action={quoteattr(resume_url)}>"
        f'<Stream url={quoteattr(stream_url)} statusCallback={quoteattr(status_url)} statusCallbackMethod="POST">'
        f'<Parameter name="token" value={quoteattr(token)}/>'
        "</Stream></Connect>"
    )


def reject(*, busy: bool = False) -> str:
    """TwiML that refuses the call: not answered, not billed. Busy asks the caller to try again."""
    return _document('<Reject reason="busy"/>' if busy else "<Reject/>")


def hang_up() -> str:
    """TwiML that ends the call."""
    return _document("<Hangup/>")


def dial(target: str, *, caller_id: str, ring_seconds: int, resume_url: str, status_url: str) -> str:
    """
    TwiML that puts the caller through to an E.164 number or a SIP address.

    `status_url` hears that the other side has picked up, `resume_url` that they are done with the caller, or never
    came: it says what becomes of the caller then.
    """
    noun = "Sip" if target.startswith(("sip:", "sips:")) else "Number"
    shown = f"callerId={quoteattr(caller_id)} " if caller_id else ""
    return _document(
        f'<Dial {shown}answerOnBridge="true" timeout="{ring_seconds}" action={quoteattr(resume_url)}>'
        f'<{noun} statusCallback={quoteattr(status_url)} statusCallbackEvent="answered">{escape(target)}</{noun}>'
        "</Dial>"
    )


def picked_up(form: Mapping[str, str]) -> str:
    """The call that is put through, where a status callback says that the other side has picked up; else empty."""
    return form.get("ParentCallSid", "") if form.get("CallStatus") == "in-progress" else ""


def was_put_through(form: Mapping[str, str]) -> bool:
    """Whether the other side of a `<Dial>` that is over had picked up. False too where there was no `<Dial>`."""
    return form.get("DialCallStatus") in ("completed", "answered")


def _document(verbs: str) -> str:
    return f'<?xml version="1.0" encoding="UTF-8"?><Response>{verbs}</Response>'
