"""Twilio: the Media Streams protocol, TwiML, and the fields of its webhooks."""

import re
from binascii import b2a_base64
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Final
from xml.sax.saxutils import escape, quoteattr

import orjson

from gateway.telephony.codec import STREAMING, CarrierCodec, Message, StreamStarted, plain_value, text_parameters
from gateway.telephony.machine_detection import AnsweredBy
from gateway.telephony.phone_numbers import Attestation

SOFTPHONE_ACCOUNT: Final = "softphone"
"""The account id in a softphone's `start`."""

_VERSTAT: Final = re.compile(r"TN-Validation-(?P<verdict>Passed|Failed)(?:-(?P<level>[ABC]))?(?P<suffix>-.*)?", re.I)
_SIP_HEADER: Final = "SipHeader_"  # the prefix of X- headers in webhooks of a SIP domain


class TwilioCodec(CarrierCodec):
    """
    Bidirectional Media Streams (Twilio docs, "Media Streams - WebSocket Messages").

    Every message to Twilio carries the streamSid; Twilio drops one with a stale streamSid and only logs a warning.
    """

    __slots__ = ("_media_prefix", "_stream_id")  # used for each frame

    name: ClassVar[str] = "twilio"

    def __init__(self, token: str = "") -> None:
        super().__init__(token)
        self._media_prefix = b""
        self._stream_id = b'""'

    def send_audio(self, audio: bytes) -> list[bytes]:
        if self.state is not STREAMING:  # without a call for each frame
            self._must_stream()
        return [self._media_prefix + b2a_base64(audio, newline=False) + b'"}}']

    def send_mark(self, name: str) -> bytes:
        self._must_stream()
        return b'{"event":"mark","streamSid":%b,"mark":{"name":%b}}' % (self._stream_id, orjson.dumps(name))

    def send_clear(self) -> bytes:
        self._must_stream()
        return b'{"event":"clear","streamSid":%b}' % self._stream_id

    def _started(self, message: Message, start: Message) -> StreamStarted:
        stream_id = self._text(message, "streamSid")
        encoding = plain_value(self._part({"event": "start", **start}, "mediaFormat").get("encoding"))
        parameters = text_parameters(start.get("customParameters"))
        started = StreamStarted(
            call_id=self._text(start, "callSid"),
            stream_id=stream_id,
            account_id=self._text(start, "accountSid"),
            token=parameters.pop("token", ""),
            parameters=parameters,
            problem="" if encoding == "audio/x-mulaw" else f"streams {encoding!r}, expected 'audio/x-mulaw'",
        )
        self._stream_id = b"%b" % orjson.dumps(stream_id)  # a copy: orjson's own result occupies 4 KB
        self._media_prefix = b'{"event":"media","streamSid":%b,"media":{"payload":"' % self._stream_id
        return started


class SoftphoneCodec(TwilioCodec):
    """The gateway's own softphone, in a browser or a terminal. It uses Twilio's media protocol without an account."""

    name: ClassVar[str] = "softphone"

    def _started(self, message: Message, start: Message) -> StreamStarted:
        """Without parameters: the page of a guest could name another caller in them."""
        return replace(super()._started(message, start), parameters={})


# TwiML


def connect_stream(*, stream_url: str, resume_url: str, status_url: str, token: str) -> str:
    """
    TwiML that answers the call and opens its media stream.

    The token is a `<Parameter>`: Twilio drops the query string of a stream URL. Twilio requests `resume_url` when the
    stream has ended and the caller is still there (Twilio docs, "TwiML Voice: <Stream>").
    """
    return _document(
        f"<Connect action={quoteattr(resume_url)}>"
        f'<Stream url={quoteattr(stream_url)} statusCallback={quoteattr(status_url)} statusCallbackMethod="POST">'
        f'<Parameter name="token" value={quoteattr(token)}/>'
        "</Stream></Connect>"
    )


def reject(*, busy: bool = False) -> str:
    """TwiML that rejects the call, which is then not billed. `busy` plays a busy tone."""
    return _document('<Reject reason="busy"/>' if busy else "<Reject/>")


def hang_up() -> str:
    """TwiML that ends the call."""
    return _document("<Hangup/>")


def say_and_hang_up(text: str) -> str:
    """TwiML that answers the call with a sentence. Unlike a rejected call, it is billed."""
    return _document(f"<Say>{escape(text)}</Say><Hangup/>")


def dial(target: str, *, caller_id: str, ring_seconds: int, time_limit: int, resume_url: str, status_url: str) -> str:
    """
    TwiML that connects the caller to an E.164 number or a SIP address.

    Twilio requests `status_url` when the other side answers, and `resume_url` when the other side has hung up or did
    not answer; its response decides what happens to the caller.
    """
    noun = "Sip" if target.startswith(("sip:", "sips:")) else "Number"
    shown = f"callerId={quoteattr(caller_id)} " if caller_id else ""
    return _document(
        f'<Dial {shown}answerOnBridge="true" timeout="{ring_seconds}" timeLimit="{time_limit}" '
        f"action={quoteattr(resume_url)}>"
        f'<{noun} statusCallback={quoteattr(status_url)} statusCallbackEvent="answered">{escape(target)}</{noun}>'
        "</Dial>"
    )


def _document(verbs: str) -> str:
    return f'<?xml version="1.0" encoding="UTF-8"?><Response>{verbs}</Response>'


# Webhooks


def picked_up(form: Mapping[str, str]) -> str:
    """The caller's call id if this status callback says that the transfer target answered; else empty."""
    return form.get("ParentCallSid", "") if form.get("CallStatus") == "in-progress" else ""


_ANSWERED_BY: Final = {
    "human": AnsweredBy.PERSON,
    "machine_start": AnsweredBy.MACHINE,
    "machine_end_beep": AnsweredBy.GREETING_OVER,
    "machine_end_silence": AnsweredBy.GREETING_OVER,
    "machine_end_other": AnsweredBy.NO_MAILBOX,  # often a mailbox that is full
    "fax": AnsweredBy.NO_MAILBOX,
}
"""Twilio docs, "Answering Machine Detection", AnsweredBy."""


def answered_by(form: Mapping[str, str]) -> AnsweredBy | None:
    """From the callback of asynchronous machine detection; None if Twilio is not sure."""
    return _ANSWERED_BY.get(form.get("AnsweredBy", ""))


def was_put_through(form: Mapping[str, str]) -> bool:
    """Whether the transfer target of a finished `<Dial>` had answered. False without a `<Dial>`."""
    return form.get("DialCallStatus") in ("completed", "answered")


def attestation(form: Mapping[str, str]) -> Attestation:
    """From `StirVerstat` in Twilio's voice webhook (Twilio docs, "Trusted Calling with SHAKEN/STIR")."""
    match = _VERSTAT.fullmatch(form.get("StirVerstat", "").strip())
    if match is None:
        return Attestation.NONE
    if match["verdict"].lower() == "failed":
        return Attestation.FAILED
    level = Attestation.of_level(match["level"])
    # The suffixes "-Diverted" and "-Passthrough" mark a forwarded call and a verdict that Twilio did not verify itself.
    return Attestation.PARTIAL if level is Attestation.FULL and match["suffix"] else level


def sip_headers(form: Mapping[str, str]) -> dict[str, str]:
    """The custom headers of a SIP call, names in lower case."""
    return {
        name.removeprefix(_SIP_HEADER).lower(): value for name, value in form.items() if name.startswith(_SIP_HEADER)
    }
