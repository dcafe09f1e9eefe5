"""
A simulated Telnyx: signed webhooks, Call Control commands, media stream.

What it does and in which order is the protocol page's "What a simulator must do". Parameters of commands are judged by
name and value; what Telnyx would silently ignore is a violation of the call here.
"""

import asyncio
import base64
import binascii
import datetime
import json
import secrets
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from tests.fakes.carrier import (
    FRAME_BYTES,
    Exchange,
    FakeCall,
    FakeCarrier,
    MediaStream,
    RawSocket,
    Reply,
    UpgradeRefused,
)

MAX_PAYLOAD_BYTES: Final = 240_000  # 30 s
MAX_URL: Final = 2000

_COMMON: Final = {"client_state", "command_id"}
_WEBHOOK: Final = {
    "webhook_url",
    "webhook_url_method",
    "webhook_urls",
    "webhook_urls_method",
    "webhook_retries_policies",
}
_STREAM: Final = {
    "stream_url",
    "stream_track",
    "stream_codec",
    "stream_bidirectional_mode",
    "stream_bidirectional_codec",
    "stream_bidirectional_target_legs",
}
FIELDS: Final = {
    "answer": _COMMON
    | _WEBHOOK
    | _STREAM
    | {"preferred_codecs", "send_silence_when_idle", "custom_headers", "sip_headers", "billing_group_id"},
    "reject": _COMMON | {"cause"},
    "hangup": _COMMON | {"custom_headers", "reason"},
    "streaming_start": _COMMON
    | _STREAM
    | {"stream_bidirectional_sampling_rate", "stream_auth_token", "custom_parameters"},
    "streaming_stop": _COMMON | {"stream_id"},
    "transfer": _COMMON
    | _WEBHOOK
    | {"to", "from", "from_display_name", "timeout_secs", "time_limit_secs", "audio_url", "target_leg_client_state"}
    | {"park_after_unbridge", "custom_headers", "sip_headers"},
    "speak": _COMMON | {"payload", "voice", "language", "payload_type"},
    "client_state_update": {"client_state"},
    "dial": _COMMON
    | _WEBHOOK
    | _STREAM
    | {"connection_id", "to", "from", "from_display_name", "timeout_secs", "time_limit_secs"}
    | {"stream_bidirectional_sampling_rate", "stream_auth_token", "custom_headers", "sip_headers"}
    | {"answering_machine_detection"},
}
VALUES: Final = {
    "stream_track": {"inbound_track", "outbound_track", "both_tracks"},
    "stream_codec": {"PCMU", "PCMA", "G722", "OPUS", "AMR-WB", "L16", "default"},
    "stream_bidirectional_mode": {"mp3", "rtp"},
    "stream_bidirectional_codec": {"PCMU", "PCMA", "G722", "OPUS", "AMR-WB", "L16"},
    "stream_bidirectional_target_legs": {"self", "opposite", "both"},
    "stream_bidirectional_sampling_rate": {8000, 16000, 22050, 24000, 48000},
    "cause": {"CALL_REJECTED", "USER_BUSY", "NOT_FOUND", "TEMPORARILY_UNAVAILABLE"},
    "timeout_secs": range(5, 601),
    "time_limit_secs": range(60, 14401),
    "park_after_unbridge": {"self"},
    "answering_machine_detection": {"premium", "detect", "detect_beep", "detect_words", "greeting_end", "disabled"},
}
ANSWERERS: Final = {
    "person": ("detection", "human"),
    "machine": ("detection", "machine"),
    "beep": ("greeting", "beep_detected"),
    "full": ("premium.detection", "fax_detected"),  # Telnyx has no word for a full mailbox
    "fax": ("premium.detection", "fax_detected"),
    "unknown": ("detection", "not_sure"),
}
_REJECTIONS: Final = {
    "CALL_REJECTED": ("call_rejected", "603"),
    "USER_BUSY": ("user_busy", "486"),
    "NOT_FOUND": ("not_found", "404"),
    "TEMPORARILY_UNAVAILABLE": ("no_answer", "480"),
}
_OUTCOMES: Final = {"busy": ("user_busy", "486"), "no-answer": ("timeout", "487")}


def sign(private_key: Ed25519PrivateKey, timestamp: str, body: bytes) -> str:
    """telnyx-signature-ed25519 over "timestamp|body"."""
    return base64.b64encode(private_key.sign(timestamp.encode() + b"|" + body)).decode()


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


# The media socket


class TelnyxStream(MediaStream):
    """A Telnyx media stream."""

    close_code = None  # seen as 1005

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.parameters: dict[str, Any] = self.call.stream_parameters
        self._played = len(self.call.heard_bytes)
        self._held: dict[str, Any] | None = None
        self._last_media = float("-inf")

    def connected_message(self) -> dict[str, Any]:
        return self.call.carrier.connected_message(self.parameters.get("stream_auth_token", ""))

    def start_message(self) -> dict[str, Any]:
        number = self.next_number()
        return self.call.carrier.start_message(self.call, stream_id=self.id, sequence=number)

    def message(self, event: str, body: dict[str, Any]) -> dict[str, Any]:
        return {"event": event, "sequence_number": self.next_number(), "stream_id": self.id, event: body}

    def stop_body(self) -> dict[str, Any]:
        return {"user_id": self.call.carrier.user_id, "call_control_id": self.call.id}

    def digit_message(self, digit: str) -> dict[str, Any]:
        return self.message("dtmf", {"digit": digit}) | {"occurred_at": _now()}

    async def send_digits_swapped(self, digits: str) -> None:
        """Send the later key first; `occurred_at` gives the order."""
        for message in reversed([self.digit_message(digit) for digit in digits]):
            await self.write(message)

    def refuse(self, kind: str, problem: str) -> None:
        """Send an `error` message; the stream continues."""
        self.call.violations.append(problem)
        if kind == "base64":
            self._complain(100004, "invalid_media", "Media was not base64 encoded")
        else:
            self._complain(100003, "malformed_frame", problem)

    def audible(self, audio: bytes) -> bool:
        """Raw audio is played in `rtp` mode only, and on the target legs only."""
        if self.parameters.get("stream_bidirectional_mode", "mp3") != "rtp":
            self._swallow()
            return False
        if not FRAME_BYTES <= len(audio) <= MAX_PAYLOAD_BYTES:
            self.call.violations.append(f"payload of {len(audio)} bytes is outside 20 ms to 30 s")
        if self.parameters.get("stream_bidirectional_target_legs", "opposite") == "opposite":
            self.call.violations.append("audio for the opposite leg, which does not exist")
            return False
        return True

    async def send_audio(self, audio: bytes) -> None:
        """In order, with neighbours swapped, or with losses, as configured."""
        carrier = self.call.carrier
        async with self._sending:
            message = self.media_message(audio)
            if int(message["media"]["chunk"]) in carrier.lose_chunks:
                return
            if not carrier.swap_neighbours:
                await self.write(message)
            elif self._held is None:
                self._held = message
            else:
                await self.write(message)
                await self._let_go()

    async def flush_audio(self) -> None:
        async with self._sending:
            await self._let_go()

    async def tell_played(self) -> None:
        """With both tracks, return the agent's own audio as `outbound`."""
        new = bytes(self.call.heard_bytes[self._played :])
        self._played += len(new)
        if not self.call.carrier.both_tracks and self.parameters.get("stream_track") != "both_tracks":
            return
        for at in range(0, len(new), FRAME_BYTES):
            async with self._sending:
                await self.write(self.media_message(new[at : at + FRAME_BYTES], "outbound"))

    async def _let_go(self) -> None:
        held, self._held = self._held, None
        if held:
            await self.write(held)

    def _swallow(self) -> None:
        self.call.violations.append("raw audio in mp3 mode is ignored")
        now = asyncio.get_running_loop().time()
        if now - self._last_media < 1:
            self._complain(100005, "rate_limit_reached", "more than one media message a second")
        self._last_media = now

    def _complain(self, code: int, title: str, detail: str) -> None:
        payload = {"code": code, "title": title, "detail": detail}
        message = {"event": "error", "stream_id": self.id, "payload": payload}
        self.call.carrier.spawn(self.send(lambda: message))


# The call


class TelnyxCall(FakeCall):
    """One leg, controlled by commands and by the caller."""

    carrier: "FakeTelnyx"

    def __init__(self, carrier: "FakeTelnyx", caller: str, called: str, payload: Mapping[str, Any]) -> None:
        super().__init__(carrier, "v3:" + secrets.token_urlsafe(42), caller, called)
        self.leg_id = str(uuid.uuid4())
        self.session_id = str(uuid.uuid4())
        self.direction = "incoming"
        self.client_state: str | None = None
        self.start_time = _now()
        self.settled = False
        self.opens_media = True
        self.answering = False
        self.stream_parameters: dict[str, Any] = {}
        self.command_ids: set[str] = set()
        self.said: list[str] = []  # by the speak command
        self.parks = False  # after the end of the leg it was bridged to
        self.originated_with: dict[str, Any] = {}
        self.delivered = 0
        self._extra = payload
        self._delivery = asyncio.Lock()

    @property
    def encoding(self) -> str:
        """The codec of the caller's audio."""
        wanted = self.stream_parameters.get("stream_codec", "default")
        convertible = {"PCMU", "PCMA"}
        if self.carrier.insist_on_leg_codec or not {wanted, self.carrier.leg_codec} <= convertible:
            return self.carrier.leg_codec
        return str(wanted)

    async def press(self, digits: str, *, by: tuple[str, ...] = ("socket", "webhook"), swapped: bool = False) -> None:
        """Send keys on the socket and by webhook."""
        if "socket" in by and swapped and self.stream:
            await self.stream.send_digits_swapped(digits)
        elif "socket" in by:
            await super().press(digits)
        for digit in digits if "webhook" in by else "":
            await self.send_webhook("call.dtmf.received", digit=digit)

    async def hang_up(self) -> None:
        side = "callee" if self.leg_a else "caller"
        if self.answered:
            await self.hang(side, "normal_clearing", side, "200")
        else:
            await self.hang(side, "originator_cancel", side, "487")

    async def hang(self, by: str, cause: str, source: str, sip: str) -> None:
        """End the leg: socket first, then webhooks, or the reverse."""
        if not self.end(by):
            return
        stream = self.stream
        details = {"state": "hangup", "start_time": self.start_time, "end_time": _now(), "hangup_cause": cause}
        details |= {"hangup_source": source, "sip_hangup_cause": sip, "call_quality_stats": None}
        if self.carrier.shuffle_ending:
            await self.send_webhook("call.hangup", **details)
            await self.stop_stream(stream)
        else:
            await self.stop_stream(stream)
            await self.send_webhook("call.hangup", **details)
        self.settle()
        self.finish()
        await self._hang_other_leg()

    async def _hang_other_leg(self) -> None:
        """Hang up the other leg: the transfer target always, the caller only if the legs were bridged."""
        if self.leg_b:
            answered = self.leg_b.answered
            cause, sip = ("normal_clearing", "200") if answered else ("originator_cancel", "487")
            await self.leg_b.hang("caller", cause, "caller", sip)
        if self.leg_a and self.answered and not self.leg_a.parks:
            await self.leg_a.hang("callee", "normal_clearing", "callee", "200")

    async def originate(self, parameters: dict[str, Any]) -> None:
        """Ring an outgoing leg and answer it or not."""
        self.originated_with = parameters
        await self.send_webhook("call.initiated")
        if self.carrier.callee == "answers":
            await self.pick_up()
        elif self.carrier.callee != "rings":
            await self.decline(self.carrier.callee)

    async def pick_up(self) -> None:
        await self.answer(self.originated_with)
        if self.leg_a:
            await self.send_webhook("call.bridged")
            await self.leg_a.send_webhook("call.bridged")

    async def decline(self, outcome: str = "busy") -> None:
        cause, sip = _OUTCOMES[outcome]
        await self.hang(outcome, cause, "callee", sip)

    async def detects(self, answerer: str, **payload: Any) -> None:
        """Report one of ANSWERERS. It may be late, come twice, or without `call_control_id`."""
        assert self.originated_with.get("answering_machine_detection", "disabled") != "disabled"
        event, result = ANSWERERS[answerer]
        await self.send_webhook(f"call.machine.{event}.ended", result=result, **payload)

    async def stop_stream(self, stream: TelnyxStream | None) -> None:
        if stream is None:
            return
        if self.carrier.shuffle_ending:
            await self._tell_stream("streaming.stopped")
            await stream.stop()
        else:
            await stream.stop()
            await self._tell_stream("streaming.stopped")

    def send_webhook(self, event: str, **payload: Any) -> asyncio.Task[Any]:
        """Send a webhook after the earlier ones."""
        return self.carrier.spawn(self._deliver(event, self.payload(event) | payload))

    def payload(self, event: str) -> dict[str, Any]:
        """The payload of every event of the leg, and the additions of call.initiated."""
        payload: dict[str, Any] = {
            "call_control_id": self.id,
            "call_leg_id": self.leg_id,
            "call_session_id": self.session_id,
            "connection_id": self.carrier.connection_id,
            "client_state": self.client_state,
        }
        if not event.startswith("streaming."):
            payload |= {"from": self.caller, "to": self.called}
        return payload | self._initiated() if event == "call.initiated" else payload

    def settle(self) -> None:
        self.settled = True
        self.pulse()

    async def answer(self, parameters: dict[str, Any]) -> None:
        """Answer the leg: by command, or for an outgoing leg by the callee."""
        self.answered = True
        self.pulse()
        details = {"state": "answered", "start_time": self.start_time, "tags": []}
        details |= {"codec": self.carrier.leg_codec, "sampling_rate": 8000}
        details |= {name: parameters[name] for name in ("stream_url", "stream_track") if name in parameters}
        self.send_webhook("call.answered", **details)
        if parameters.get("stream_url"):
            await self.open_stream(parameters)

    async def open_stream(self, parameters: dict[str, Any]) -> None:
        self.stream_parameters = parameters
        self.media_url = parameters["stream_url"]
        self.token = dict(parse_qsl(urlsplit(self.media_url).query)).get("token", "") or self.media_url.split("/")[-1]
        if not self.opens_media:
            self.settle()
            return
        self._tell_stream("streaming.started")
        token = parameters.get("stream_auth_token", "")
        try:
            connection = await self.carrier.open_socket(self.media_url, self.carrier.upgrade_headers(token))
        except UpgradeRefused:
            self._tell_failure(str(uuid.uuid4()))
        else:
            stream = TelnyxStream(self, connection, str(uuid.uuid4()))
            await stream.open()
            self.streams.append(stream)
            self.carrier.spawn(self._watch(stream))
        self.settle()

    async def _watch(self, stream: TelnyxStream) -> None:
        """The end of the socket does not end the call."""
        await stream.ended.wait()
        if stream.stopped:
            return
        if stream.how_it_ended == "gateway-close":
            await self._tell_stream("streaming.stopped")
        else:
            await self._tell_failure(stream.id)

    def _tell_stream(self, event: str) -> asyncio.Task[Any]:
        return self.send_webhook(event, stream_url=self.media_url)

    def _tell_failure(self, stream_id: str) -> asyncio.Task[Any]:
        track = self.stream_parameters.get("stream_track", "inbound_track")
        parameters = {"stream_url": self.media_url, "track": track}
        details = {"failure_reason": "connection_failed", "stream_id": stream_id, "stream_type": "websocket"}
        return self.send_webhook("streaming.failed", stream_params=parameters, **details)

    async def _deliver(self, event: str, payload: dict[str, Any]) -> None:
        async with self._delivery:
            await self.carrier.deliver(self, event, payload)
        self.delivered += 1
        self.pulse()

    def _initiated(self) -> dict[str, Any]:
        incoming = self.direction == "incoming"
        payload = {
            "direction": self.direction,
            "state": "parked" if incoming else "bridging",
            "caller_id_name": self.caller,
            "calling_party_type": "pstn",
            "from_sip_uri": f"{self.caller}@192.0.2.10",
            "to_sip_uri": f"{self.called}@192.0.2.20",
            "connection_codecs": "PCMU,PCMA,OPUS,G722",
            "offered_codecs": f"{self.carrier.leg_codec},G729",
            "start_time": self.start_time,
            "custom_headers": [{"name": "X-Ticket", "value": "8812"}],
            "sip_headers": [],
            "call_screening_result": None,
            "tags": [],
        }
        if incoming:
            payload |= {"shaken_stir_attestation": "A", "shaken_stir_validated": True}
        payload |= self._extra
        return {name: value for name, value in payload.items() if value is not _LEFT_OUT}


_LEFT_OUT: Final = object()


# The carrier


class FakeTelnyx(FakeCarrier):
    """
    Telnyx with one Call Control application. `dial` is what a test wants nine times out of ten; `webhook`, `ring` and
    `connect` are for the hostile tenth.
    """

    name = "telnyx"
    left_out = _LEFT_OUT  # as the value of a payload field: omit the field

    def __init__(
        self, *args: Any, webhook_path: str = "/telnyx/webhook", failover_url: str = "", **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self.webhook_path = webhook_path
        self.failover_url = failover_url
        self.private_key = Ed25519PrivateKey.generate()
        self.api_key = "KEY" + secrets.token_hex(16).upper()
        self.connection_id = "2000000000000000001"
        self.user_id = str(uuid.uuid4())
        self.webhook_seconds = 2.0
        self.retry_delay = 0.01
        self.repeats = ""  # or "after", "together": sends every webhook twice
        self.webhook_first = False  # send the webhook of an effect before its command is answered
        self.leg_codec = "PCMU"
        self.insist_on_leg_codec = False
        self.swap_neighbours = False
        self.lose_chunks: set[int] = set()
        self.both_tracks = False
        self.shuffle_ending = False

    @property
    def api_url(self) -> str:
        return self._api.url + "/v2"

    @property
    def public_key(self) -> str:
        return base64.b64encode(self.private_key.public_key().public_bytes_raw()).decode()

    def settings(self) -> dict[str, str]:
        return {
            "TELNYX_API_KEY": self.api_key,
            "TELNYX_PUBLIC_KEY": self.public_key,
            "TELNYX_API_URL": self.api_url,
        }

    # A call

    def new_call(self, caller: str = "+12025550143", called: str = "+12025550100", **payload: Any) -> TelnyxCall:
        """A call before its webhook; `payload` changes call.initiated."""
        call = TelnyxCall(self, caller, called, payload)
        self.calls.append(call)
        return call

    async def dial(
        self, caller: str = "+12025550143", called: str = "+12025550100", *, patience: float = 5, **payload: Any
    ) -> TelnyxCall:
        """
        Ring the gateway; returns when the stream is up or the call is over.

        A gateway that refuses the webhook, or does nothing for `patience` seconds, leaves the call ringing.
        """
        return await self._pending_call(self.new_call(caller, called, **payload), patience)

    async def ring(
        self, caller: str = "+12025550143", called: str = "+12025550100", *, patience: float = 5, **payload: Any
    ) -> TelnyxCall:
        """Send call.initiated and wait for the answer without opening a media socket."""
        call = self.new_call(caller, called, **payload)
        call.opens_media = False
        return await self._pending_call(call, patience)

    async def _pending_call(self, call: TelnyxCall, patience: float) -> TelnyxCall:
        entry = await self.deliver(call, "call.initiated", call.payload("call.initiated"))
        if not 200 <= entry.status < 300:
            return call
        try:
            await call.until(lambda: call.settled, "command", patience)
        except TimeoutError:
            pass
        return call

    async def webhook(
        self,
        call: TelnyxCall | None = None,
        event: str = "call.initiated",
        *,
        payload: Mapping[str, Any] | None = None,
        event_id: str = "",
        attempt: int = 1,
        age: float = 0,
        signature: str = "right",
        body: bytes | None = None,
        signed_body: bytes | None = None,
        method: str = "POST",
        path: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> Exchange:
        """
        One webhook and the gateway's answer, with no retry.

        `age` seconds old, negative for the future; the signature is "right", "wrong", "none" or a text of its own.
        `signed_body` is sent instead of the event and signed; `body` replaces what is sent after signing.
        """
        call = call or self.new_call()
        url = self.public_origin + (path or self.webhook_path)
        content = signed_body
        if content is None:
            envelope = self._envelope(event, call.payload(event) | dict(payload or {}), event_id or str(uuid.uuid4()))
            content = self._body(envelope, attempt, url)
        sent = {**self._headers(content, signature, age), **(headers or {})}
        return await self._post(call, event, method, url, content if body is None else body, sent)

    # Webhooks

    async def deliver(self, call: TelnyxCall, event: str, payload: dict[str, Any]) -> Exchange:
        """Try the webhook URL twice, then the failover URL twice; send it again if `repeats` is set."""
        envelope = self._envelope(event, payload, str(uuid.uuid4()))
        if self.repeats == "together":
            entry, _ = await asyncio.gather(self._attempt(call, envelope), self._attempt(call, envelope))
            return entry
        entry = await self._attempt(call, envelope)
        if self.repeats == "after":
            await self._attempt(call, envelope, first=2)
        return entry

    async def _attempt(self, call: TelnyxCall, envelope: dict[str, Any], *, first: int = 1) -> Exchange:
        urls = [self.public_origin + self.webhook_path] * 2 + [self.failover_url] * 2 * bool(self.failover_url)
        for attempt, url in enumerate(urls, start=first):
            content = self._body(envelope, attempt, url)
            entry = await self._post(call, envelope["event_type"], "POST", url, content, self._headers(content))
            if 200 <= entry.status < 500 and entry.status not in (408, 429):
                return entry
            await asyncio.sleep(self.retry_delay)
        return entry

    async def _post(
        self, call: TelnyxCall, event: str, method: str, url: str, content: bytes, headers: dict[str, str]
    ) -> Exchange:
        entry = Exchange("webhook", method, url, content.decode(errors="replace"), call_id=call.id, action=event)
        return await self.request(entry, headers=headers, content=content, timeout=self.webhook_seconds)

    def _envelope(self, event: str, payload: dict[str, Any], event_id: str) -> dict[str, Any]:
        head = {"record_type": "event", "event_type": event, "id": event_id, "occurred_at": _now()}
        return {**head, "payload": payload}

    def _body(self, envelope: dict[str, Any], attempt: int, url: str) -> bytes:
        return json.dumps({"data": envelope, "meta": {"attempt": attempt, "delivered_to": url}}).encode()

    def _headers(self, content: bytes, signature: str = "right", age: float = 0) -> dict[str, str]:
        timestamp = str(int(time.time() - age))
        headers = {"User-Agent": "telnyx-webhooks", "Content-Type": "application/json", "telnyx-timestamp": timestamp}
        if signature == "none":
            return headers
        key = Ed25519PrivateKey.generate() if signature == "wrong" else self.private_key
        text = sign(key, timestamp, content) if signature in ("right", "wrong") else signature
        return headers | {"telnyx-signature-ed25519": text}

    # The media socket

    def upgrade_headers(self, token: str = "") -> dict[str, str]:
        return {"x-telnyx-streaming-auth-token": token} if token else {}

    async def connect(self, target: TelnyxCall | str, *, token: str | None = None) -> RawSocket:
        """A media socket under the test's control: for a call (optionally with another token), a path or a URL."""
        url = target if isinstance(target, str) else target.media_url
        if not isinstance(target, str) and token is not None:
            url = url.replace(target.token, token)
        if url.startswith("/"):
            url = self.public_origin.replace("http", "ws", 1) + url
        return RawSocket(await self.open_socket(url, self.upgrade_headers()), str(uuid.uuid4()))

    def connected_message(self, token: str = "") -> dict[str, Any]:
        message: dict[str, Any] = {"event": "connected", "version": "1.0.0"}
        return message | ({"connected": {"x-telnyx-streaming-auth-token": token}} if token else {})

    def start_message(
        self,
        call: TelnyxCall,
        *,
        stream_id: str,
        token: str | None = None,
        call_id: str = "",
        account_id: str = "",
        sequence: str = "1",
    ) -> dict[str, Any]:
        """`start` for a call. `token` is ignored: Telnyx has it in the URL."""
        body = {
            "user_id": account_id or self.user_id,
            "call_control_id": call_id or call.id,
            "call_session_id": call.session_id,
            "from": call.caller,
            "to": call.called,
            "tags": [],
            "client_state": call.client_state,
            "media_format": {"encoding": call.encoding, "sample_rate": 8000, "channels": 1},
        }
        if parameters := call.stream_parameters.get("custom_parameters"):
            body["custom_parameters"] = {item["name"]: item["value"] for item in parameters}
        return {"event": "start", "sequence_number": sequence, "stream_id": stream_id, "start": body}

    def media_message(self, audio: bytes, *, stream_id: str, number: int = 1) -> dict[str, Any]:
        """Media message number `number` of a raw socket, counted from 1."""
        payload = base64.b64encode(audio).decode()
        place = {"track": "inbound", "chunk": str(number), "timestamp": str(20 * (number - 1))}
        head = {"event": "media", "sequence_number": str(number + 1), "stream_id": stream_id}
        return {**head, "media": {**place, "payload": payload}}

    def stop_message(self, call: TelnyxCall, *, stream_id: str, sequence: str = "2") -> dict[str, Any]:
        body = {"user_id": self.user_id, "call_control_id": call.id}
        return {"event": "stop", "sequence_number": sequence, "stream_id": stream_id, "stop": body}

    # REST

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/v2/calls", self._dial, methods=["POST"]),
            Route("/v2/phone_numbers", self._numbers, methods=["GET"]),
            Route("/v2/calls/{call_id}", self._show, methods=["GET"]),
            Route("/v2/calls/{call_id}/actions/{action}", self._act, methods=["POST"]),
        ]

    def error_body(self, status: int, code: str) -> dict[str, Any]:
        number = code or {401: "10009", 429: "10011"}.get(status, "10007")
        return {"errors": [{"code": number, "title": "refused by the simulator", "detail": f"status {status}"}]}

    async def _act(self, request: Request) -> Response:
        return await self._command(request, request.path_params["action"])

    async def _dial(self, request: Request) -> Response:
        return await self._command(request, "dial")

    async def _numbers(self, request: Request) -> Response:
        """Every number belongs to the account's only application."""
        entry = Exchange("command", "GET", str(request.url), action="phone_numbers")
        number = request.query_params.get("filter[phone_number]", "")
        found = [{"id": "1", "phone_number": number, "connection_id": self.connection_id}]

        async def command() -> Reply:
            return Reply(200, {"data": found})

        return await self.answer_command(entry, command)

    async def _show(self, request: Request) -> Response:
        return await self._command(request, "read")

    async def _command(self, request: Request, action: str) -> Response:
        content = await request.body()
        call_id = request.path_params.get("call_id", "")
        entry = Exchange("command", request.method, str(request.url), action=action, call_id=call_id)
        if request.headers.get("authorization") != f"Bearer {self.api_key}":
            self.log(entry).status = 401
            return JSONResponse(self.error_body(401, ""), 401)
        try:
            entry.body = json.loads(content or b"{}")
        except ValueError:
            self.log(entry).status = 400
            return JSONResponse(self.error_body(400, "10015"), 400)

        async def command() -> Reply:
            reply = self._judge(call_id, action, entry.body)
            return await self._tell_first(call_id, action, reply) if self.webhook_first and reply.effect else reply

        return await self.answer_command(entry, command)

    async def _tell_first(self, call_id: str, action: str, reply: Reply) -> Reply:
        """Send the webhook of the effect before the command's answer."""
        call = self._call(call_id)
        if call is None or reply.effect is None:
            return reply
        call = call.leg_b if action == "transfer" else call
        before = call.delivered
        self.spawn(reply.effect())
        await call.until(lambda: call.delivered > before, "webhook")
        return Reply(reply.status, reply.body)

    def _judge(self, call_id: str, action: str, body: dict[str, Any]) -> Reply:
        """Accept or reject a command."""
        call = self._call(call_id)
        if action == "dial":
            return self._accept_dial(body)
        if call is None:
            return self._refusal(422, "90015")
        if action == "read":
            return Reply(200, {"data": self.resource(call)})
        if action not in FIELDS:
            return self._refusal(404, "10005")
        call.violations += _parameter_problems(action, body)
        if body.get("command_id") in call.command_ids:
            return _OK
        if refusal := self._refused(call, action, body):
            return refusal
        if body.get("command_id"):
            call.command_ids.add(body["command_id"])
        call.client_state = body.get("client_state", call.client_state)
        return self._accepts()[action](call, body)

    def _refused(self, call: TelnyxCall, action: str, body: dict[str, Any]) -> Reply | None:
        if call.ended_by:
            return self._refusal(422, "90018")
        if not _is_base64(body.get("client_state", "")):
            return self._refusal(422, "90017")
        if len(body.get("stream_url", "")) > MAX_URL:
            return self._refusal(422, "10003")
        if body.get("stream_url") and urlsplit(body["stream_url"]).scheme != ("ws" if self.plain else "wss"):
            call.violations.append(f"{action}: stream_url must be wss://")
            return self._refusal(422, "10003")
        if action in ("streaming_start", "streaming_stop", "transfer", "speak") and not call.answered:
            return self._refusal(422, "90034")
        return None

    def _accepts(self) -> dict[str, Callable[[TelnyxCall, dict[str, Any]], Reply]]:
        return {
            "answer": self._accept_answer,
            "reject": self._accept_reject,
            "hangup": self._accept_hangup,
            "streaming_start": self._accept_streaming_start,
            "streaming_stop": self._accept_streaming_stop,
            "transfer": self._accept_transfer,
            "speak": self._accept_speak,
            "client_state_update": lambda call, body: _OK,
        }

    def _accept_answer(self, call: TelnyxCall, body: dict[str, Any]) -> Reply:
        if call.direction == "outgoing":
            return self._refusal(422, "90102")
        if call.answering:
            call.violations.append("answer: the call was answered before")
            return self._refusal(422, "10015")
        call.answering = True
        return _ok(lambda: call.answer(body))

    def _accept_reject(self, call: TelnyxCall, body: dict[str, Any]) -> Reply:
        if body.get("cause") not in VALUES["cause"] or call.answering:
            return self._refusal(422, "10015")
        cause, sip = _REJECTIONS[body["cause"]]
        call.rejected = True
        return _ok(lambda: call.hang("rejected", cause, "callee", sip))

    def _accept_hangup(self, call: TelnyxCall, body: dict[str, Any]) -> Reply:
        return _ok(lambda: call.hang("gateway-rest", "normal_clearing", "callee", "200"))

    def _accept_streaming_start(self, call: TelnyxCall, body: dict[str, Any]) -> Reply:
        if call.stream:
            return self._refusal(422, "90045")
        return _ok(lambda: call.open_stream(body))

    def _accept_streaming_stop(self, call: TelnyxCall, body: dict[str, Any]) -> Reply:
        stream = call.stream
        if stream is None:
            return self._refusal(422, "90048")
        return _ok(lambda: call.stop_stream(stream))

    def _accept_speak(self, call: TelnyxCall, body: dict[str, Any]) -> Reply:
        call.said.append(body.get("payload", ""))

        async def effect() -> None:
            await call.send_webhook("call.speak.started")
            await call.send_webhook("call.speak.ended", status="completed")

        return _ok(effect)

    def _accept_transfer(self, call: TelnyxCall, body: dict[str, Any]) -> Reply:
        if not body.get("to"):
            return self._refusal(422, "10015")
        if not _is_base64(body.get("target_leg_client_state", "")):
            return self._refusal(422, "90017")
        if body.get("from", call.called) != call.called:
            call.violations.append("transfer: from is not the number that was called")
        leg = call.leg_b = self._outgoing(body.get("from", call.called), body["to"])
        leg.leg_a, leg.session_id = call, call.session_id
        leg.client_state = body.get("target_leg_client_state")
        call.parks = "park_after_unbridge" in body
        return _ok(lambda: leg.originate({}))

    def _accept_dial(self, body: dict[str, Any]) -> Reply:
        if not all(body.get(name) for name in ("connection_id", "to", "from")):
            return self._refusal(422, "10015")
        if known := next((call for call in self.calls if body.get("command_id", "") in call.command_ids), None):
            return Reply(200, {"data": self.resource(known)})
        call = self._outgoing(body["from"], body["to"])
        call.violations += _parameter_problems("dial", body)
        call.client_state = body.get("client_state")
        if body.get("command_id"):
            call.command_ids.add(body["command_id"])
        return Reply(200, {"data": self.resource(call) | {"is_alive": False}}, lambda: call.originate(body))

    def _outgoing(self, caller: str, called: str) -> TelnyxCall:
        call = self.new_call(caller, called)
        call.direction = "outgoing"
        return call

    def _call(self, call_id: str) -> TelnyxCall | None:
        return next((call for call in self.calls if call.id == call_id), None)

    def _refusal(self, status: int, code: str) -> Reply:
        return Reply(status, self.error_body(status, code))

    def resource(self, call: TelnyxCall) -> dict[str, Any]:
        """The call as a REST resource."""
        return {
            "record_type": "call",
            "call_control_id": call.id,
            "call_leg_id": call.leg_id,
            "call_session_id": call.session_id,
            "is_alive": not call.ended_by,
            "call_duration": 0,
            "client_state": call.client_state,
            "start_time": call.start_time,
            "end_time": _now() if call.ended_by else None,
        }


_OK: Final = Reply(200, {"data": {"result": "ok"}})


def _ok(effect: Callable[[], Any]) -> Reply:
    return Reply(200, _OK.body, effect)


def _parameter_problems(action: str, body: dict[str, Any]) -> list[str]:
    unknown = [f"{action}: unknown parameter {name}" for name in sorted(set(body) - FIELDS[action])]
    wrong = [
        f"{action}: {name} is {body[name]!r}"
        for name, values in sorted(VALUES.items())
        if name in body and body[name] not in values
    ]
    return unknown + wrong


def _is_base64(text: Any) -> bool:
    try:
        base64.b64decode(text or "", validate=True)
    except (binascii.Error, TypeError, ValueError):
        return False
    return True
