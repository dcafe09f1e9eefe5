"""Twilio: its media stream dialect, and the TwiML that answers its webhooks."""

from base64 import b64encode
from typing import ClassVar
from xml.sax.saxutils import quoteattr

import orjson

from gateway.carriers.codec import CarrierCodec, Message, audio_events, text_parameters
from gateway.carriers.events import CarrierEvent, StreamStarted
from gateway.errors import RemoteProtocolError


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
        if encoding != "audio/x-mulaw":
            raise RemoteProtocolError(self.name, f"streams {encoding!r}, expected 'audio/x-mulaw'")
        parameters = text_parameters(start.get("customParameters"))
        started = StreamStarted(
            call_id=self._text(start, "callSid"),
            stream_id=stream_id,
            account_id=self._text(start, "accountSid"),
            token=parameters.pop("token", ""),
            parameters=parameters,
        )
        self._stream_id = orjson.dumps(stream_id)
        self._media_prefix = b'{"event":"media","streamSid":%b,"media":{"payload":"' % self._stream_id
        return started

    def _audio(self, media: Message) -> list[CarrierEvent]:
        if media.get("track", "inbound") != "inbound":
            return []  # our own sound, coming back
        return audio_events(self._payload(media))


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


def _document(verbs: str) -> str:
    return f'<?xml version="1.0" encoding="UTF-8"?><Response>{verbs}</Response>'
