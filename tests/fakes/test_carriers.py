"""The simulated carriers against a small gateway that echoes, the official libraries and published test vectors."""

import asyncio
import base64
import contextlib
import inspect
import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Any, get_args, get_type_hints
from urllib.parse import parse_qsl, quote, urlsplit

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect
from twilio.request_validator import RequestValidator
from twilio.twiml import voice_response

from tests.fakes import telnyx, twilio
from tests.fakes.carrier import FakeCarrier, LoopbackServer, Playout, UpgradeRefused
from tests.fakes.telnyx import FakeTelnyx
from tests.fakes.twilio import FakeTwilio

PUBLIC = "https://voice.example.com"
HELLO = bytes(range(256)) * 5
FRAME = b"\x11" * 160
CARRIERS = [FakeTwilio, FakeTelnyx]
SOUND_ANSWER = {
    "stream_track": "inbound_track",
    "stream_codec": "PCMU",
    "stream_bidirectional_mode": "rtp",
    "stream_bidirectional_codec": "PCMU",
    "stream_bidirectional_target_legs": "self",
}


class EchoGateway:
    """Answers every call and sends the caller's voice back. Tests change what it says."""

    def __init__(self, carrier: FakeCarrier) -> None:
        self.carrier = carrier
        self.requests: list[tuple[Request, bytes]] = []
        self.events: list[dict[str, Any]] = []  # Telnyx, as received
        self.frames: list[Any] = []  # what came on the media sockets
        self.upgrades: list[WebSocket] = []
        self.statuses: list[int] = []  # answers to webhooks, in order; then 200
        self.twiml = (
            '<Response><Connect action="/twilio/resume"><Stream url="wss://voice.example.com/twilio/media">'
            '<Parameter name="token" value="t&amp;1"/></Stream></Connect></Response>'
        )
        self.resume = "<Response><Hangup/></Response>"
        self.on_initiated: list[tuple[str, dict[str, Any]]] = [
            ("answer", {"stream_url": "wss://voice.example.com/telnyx/media?token=t1", **SOUND_ANSWER})
        ]
        self.on_frame: Callable[[WebSocket, dict[str, Any]], Any] = self.echo
        self.accepts = True
        self.log: list[str] = []  # events received and commands answered, in order
        self._tasks: set[asyncio.Task[Any]] = set()
        self._listening: dict[WebSocket, asyncio.Event] = {}

    def routes(self) -> list[Any]:
        http = ["/twilio/incoming", "/twilio/resume", "/twilio/status", "/twilio/fallback", "/telnyx/webhook"]
        sockets = [WebSocketRoute(path, self.media) for path in ("/twilio/media", "/telnyx/media")]
        return [Route(path, self.webhook, methods=["GET", "POST"]) for path in http] + sockets

    async def webhook(self, request: Request) -> Response:
        body = await request.body()
        self.requests.append((request, body))
        status = self.statuses.pop(0) if self.statuses else 200
        if request.url.path == "/telnyx/webhook":
            if status == 200:
                self.take_event(json.loads(body))
            return Response(status_code=status)
        twiml = {"/twilio/incoming": self.twiml, "/twilio/resume": self.resume}.get(request.url.path, "<Response/>")
        return Response(twiml, status, {"location": "/twilio/fallback"}, media_type="text/xml")

    def take_event(self, envelope: dict[str, Any]) -> None:
        event = envelope["data"]
        self.events.append(event)
        self.log.append(event["event_type"])
        if event["event_type"] == "call.initiated" and event["payload"]["direction"] == "incoming":
            for action, body in self.on_initiated:
                self.spawn(self.command(event["payload"]["call_control_id"], action, body))

    def spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def command(self, call_id: str, action: str, body: dict[str, Any]) -> httpx.Response:
        url = f"{self.carrier.api_url}/calls/{quote(call_id, safe='')}/actions/{action}"
        answer = await rest(self.carrier, "POST", url, json=body)
        self.log.append(action)
        return answer

    async def media(self, socket: WebSocket) -> None:
        self.upgrades.append(socket)
        self._listening[socket] = asyncio.Event()
        try:
            await self.listen(socket)
        finally:
            self._listening[socket].set()

    async def listen(self, socket: WebSocket) -> None:
        if not self.accepts:
            await socket.close()
            return
        await socket.accept()
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            while True:
                message = await socket.receive_json()
                self.frames.append(message)
                await self.on_frame(socket, message)

    async def echo(self, socket: WebSocket, message: dict[str, Any]) -> None:
        if message["event"] == "media":
            await say(socket, message, base64.b64decode(message["media"]["payload"]))

    async def idle(self) -> None:
        """Until every command is answered."""
        await asyncio.gather(*self._tasks)

    async def read_all(self) -> None:
        """Until every media socket has been read to its end."""
        for done in self._listening.values():
            await done.wait()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def say(socket: WebSocket, message: dict[str, Any], audio: bytes) -> None:
    await send(socket, message, "media", payload=base64.b64encode(audio).decode())


async def send(socket: WebSocket, message: dict[str, Any], event: str, **body: str) -> None:
    own = {"streamSid": message["streamSid"]} if "streamSid" in message else {}
    await socket.send_json({"event": event, **own, **({event: body} if body else {})})


async def keep_quiet(socket: WebSocket, message: dict[str, Any]) -> None:
    """Only listen: a gateway that answers may be cut off by the caller's hang-up."""


async def rest(carrier: FakeCarrier, method: str, url: str, **options: Any) -> httpx.Response:
    """A REST command with the gateway's credentials."""
    async with httpx.AsyncClient(trust_env=False, verify=False) as http:
        if isinstance(carrier, FakeTwilio):
            return await http.request(method, url, auth=(carrier.account_sid, carrier.auth_token), **options)
        headers = {"Authorization": f"Bearer {carrier.api_key}"}
        return await http.request(method, url, headers=headers, **options)


async def hang_up_by_rest(carrier: Any, call: Any) -> httpx.Response:
    if isinstance(carrier, FakeTwilio):
        return await rest(carrier, "POST", twilio_url(carrier, call.id), data={"Status": "completed"})
    url = f"{carrier.api_url}/calls/{quote(call.id, safe='')}/actions/hangup"
    return await rest(carrier, "POST", url, json={})


async def transfer_by_rest(carrier: Any, call: Any, *, caller_id: str = "+12025550100") -> httpx.Response:
    """Put the caller through, and wait until the other phone has been tried."""
    if isinstance(carrier, FakeTwilio):
        noun = f'<Number statusCallback="{PUBLIC}/twilio/status" statusCallbackEvent="answered">+12025550177</Number>'
        twiml = f'<Response><Dial callerId="{caller_id}" action="{PUBLIC}/twilio/resume">{noun}</Dial></Response>'
        answer = await rest(carrier, "POST", twilio_url(carrier, call.id), data={"Twiml": twiml})
    else:
        url = f"{carrier.api_url}/calls/{quote(call.id, safe='')}/actions/transfer"
        body = {"to": "+12025550177", "from": caller_id, "target_leg_client_state": "bGVnIEI="}
        answer = await rest(carrier, "POST", url, json=body)
    await call.until(lambda: call.put_through or (call.leg_b and call.leg_b.finished), "outcome")
    return answer


def twilio_url(carrier: FakeTwilio, call_sid: str) -> str:
    return f"{carrier.api_url}/2010-04-01/Accounts/{carrier.account_sid}/Calls/{call_sid}.json"


@contextlib.asynccontextmanager
async def simulated(kind: Any, **options: Any) -> AsyncIterator[tuple[Any, EchoGateway]]:
    """A carrier and the echoing gateway that it calls."""
    options = {"public_url": PUBLIC, "speed": 0, **options}
    async with kind(**options) as carrier:
        gateway = EchoGateway(carrier)
        server = LoopbackServer(gateway.routes())
        await server.start()
        carrier.gateway_url = server.url
        try:
            yield carrier, gateway
        finally:
            await gateway.stop()
            await server.stop()


@pytest.fixture(params=CARRIERS, ids=lambda kind: kind.name)
async def both(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Any, EchoGateway]]:
    async with simulated(request.param) as pair:
        yield pair


# The phone


def playout(**options: Any) -> tuple[Playout, list[float]]:
    now = [0.0]
    return Playout(bytearray(), **{"speed": 1.0, "hold": False, "clock": lambda: now[0], **options}), now


def test_play_head_follows_the_clock():
    phone, now = playout()
    phone.add(FRAME * 2)
    phone.add("end")
    now[0] = 0.03
    phone.advance()
    assert (len(phone.heard), phone.queued, list(phone.reached)) == (240, 80, [])
    now[0] = 0.04
    phone.advance()
    assert (len(phone.heard), phone.queued, list(phone.reached)) == (320, 0, ["end"])


def test_clear_flushes_pending_marks():
    phone, now = playout()
    for item in (FRAME, "one", FRAME, "two"):
        phone.add(item)
    now[0] = 0.025
    assert len(phone.clear()) == 120
    assert (len(phone.heard), list(phone.reached)) == (200, ["one", "two"])


def test_mark_on_idle_phone_is_immediate():
    phone, _ = playout()
    phone.add("now")
    assert list(phone.reached) == ["now"]


def test_idle_time_is_not_played_later():
    phone, now = playout()
    now[0] = 5.0
    phone.add(FRAME)
    assert len(phone.heard) == 0


def test_held_audio_waits_for_release():
    phone, _ = playout(hold=True)
    phone.add(FRAME)
    phone.add("half")
    phone.add(FRAME)
    assert phone.queued == 320
    phone.release(200)
    assert (len(phone.heard), phone.queued, list(phone.reached)) == (200, 120, ["half"])
    phone.release()
    assert phone.queued == 0


# Both carriers


async def test_caller_hears_the_echo(both):
    carrier, gateway = both
    call = await carrier.dial(caller="+12025550143", called="+12025550100")
    assert (call.answered, call.rejected) == (True, False)
    await call.speak(HELLO)
    await call.wait_heard(len(HELLO))
    assert bytes(call.heard) == HELLO
    assert len(call.sent_frames) == 8


async def test_media_is_numbered_from_one(both):
    carrier, gateway = both
    gateway.on_frame = keep_quiet
    call = await carrier.dial()
    await call.speak(FRAME * 3)
    await call.press("5")
    await call.hang_up()
    await gateway.read_all()
    numbered = [frame.get("sequenceNumber") or frame.get("sequence_number") for frame in gateway.frames]
    assert [frame["event"] for frame in gateway.frames] == ["connected", "start", *["media"] * 3, "dtmf", "stop"]
    assert numbered == [None, "1", "2", "3", "4", "5", "6"]
    assert [frame["media"]["timestamp"] for frame in gateway.frames[2:5]] == ["0", "20", "40"]


async def test_hang_up_ends_the_call_once(both):
    carrier, gateway = both
    call = await carrier.dial()
    await call.hang_up()
    await call.hang_up()
    await call.over()
    await gateway.read_all()
    assert call.ended_by == "caller"
    assert [frame["event"] for frame in gateway.frames].count("stop") == 1
    assert len(carrier.sent("completed") + carrier.sent("call.hangup")) == 1


async def test_rest_hang_up_stops_the_stream(both):
    carrier, gateway = both
    call = await carrier.dial()
    answer = await hang_up_by_rest(carrier, call)
    await call.over()
    await gateway.read_all()
    assert (answer.status_code, call.ended_by, gateway.frames[-1]["event"]) == (200, "gateway-rest", "stop")
    assert (await hang_up_by_rest(carrier, call)).status_code == (404 if carrier.name == "twilio" else 422)


async def test_dropped_socket_sends_no_stop(both):
    carrier, gateway = both
    call = await carrier.dial()
    await call.drop()
    await call.hang_up()
    await gateway.read_all()
    assert [frame["event"] for frame in gateway.frames] == ["connected", "start"]


async def test_stalled_reader_still_sends(both):
    carrier, gateway = both
    gateway.on_frame = keep_quiet
    call = await carrier.dial()
    call.stall_reading()
    call.stay_silent(1000)
    await call.speak(FRAME[:80], frame_bytes=40)
    await call.hang_up()
    await gateway.read_all()
    media = [frame["media"] for frame in gateway.frames if frame["event"] == "media"]
    assert [body["timestamp"] for body in media] == ["1000", "1005"]


async def test_close_without_stop_says_nothing(both):
    carrier, gateway = both
    call = await carrier.dial()
    await call.close_without_stop()
    await gateway.read_all()
    assert [frame["event"] for frame in gateway.frames] == ["connected", "start"]
    assert call.stream is None


async def test_mark_follows_its_audio(both):
    carrier, gateway = both

    async def answer(socket, message):
        if message["event"] == "start":
            await say(socket, message, FRAME)
            await send(socket, message, "mark", name="said")

    gateway.on_frame = answer
    carrier.hold_playback = True
    call = await carrier.dial()
    await call.wait_queued(160)
    assert call.marks_echoed == []
    call.play()
    await call.until(lambda: call.marks_echoed == ["said"])
    assert bytes(call.heard) == FRAME


async def test_clear_drops_what_is_queued(both):
    carrier, gateway = both

    async def answer(socket, message):
        if message["event"] == "start":
            await say(socket, message, FRAME * 10)
            await send(socket, message, "mark", name="said")
        elif message["event"] == "media":
            await send(socket, message, "clear")

    gateway.on_frame = answer
    carrier.hold_playback = True
    call = await carrier.dial()
    await call.wait_queued(1600)
    call.play(320)
    await call.speak(FRAME)
    await call.until(lambda: call.marks_echoed == ["said"])
    assert (len(call.heard), len(call.dropped), call.clears, call.queued) == (320, 1280, 1, 0)


async def test_wrong_messages_are_violations(both):
    carrier, gateway = both
    carrier.strict = False

    async def blunder(socket, message):
        if message["event"] == "start":
            await socket.send_bytes(b"sound")
            await socket.send_text("no json")
            await send(socket, message, "hello")
            await send(socket, message, "media", payload="%%%%")
            await send(socket, message, "mark", name="after")

    gateway.on_frame = blunder
    call = await carrier.dial()
    await call.until(lambda: call.marks_echoed == ["after"])
    assert call.violations == ["binary frame", "not JSON", "unknown message 'hello'", "payload is not base64"]


@pytest.mark.parametrize("kind", CARRIERS, ids=lambda kind: kind.name)
async def test_violations_fail_the_test(kind):
    with pytest.raises(AssertionError, match="found fault with the gateway: .*not JSON"):
        async with simulated(kind) as (carrier, gateway):
            gateway.on_frame = lambda socket, _: socket.send_text("no json")
            call = await carrier.dial()
            await call.until(lambda: bool(call.violations))


async def test_ring_opens_no_socket(both):
    carrier, gateway = both
    call = await carrier.ring()
    raw = await carrier.connect(call)
    start = carrier.start_message(call, stream_id=raw.stream_id)
    await raw.send_json(carrier.connected_message(), start)
    await raw.send_json(carrier.media_message(FRAME, stream_id=raw.stream_id))
    echoed = await raw.receive()
    assert len(gateway.upgrades) == 1
    assert base64.b64decode(echoed["media"]["payload"]) == FRAME


async def test_refused_upgrade_is_reported(both):
    carrier, gateway = both
    gateway.accepts = False
    call = await carrier.dial()
    assert (call.answered, call.streams) == (True, [])
    with pytest.raises(UpgradeRefused) as refused:
        await carrier.connect(call)
    assert refused.value.status == 403


async def test_half_open_socket_reads_nothing(both):
    carrier, gateway = both
    call = await carrier.dial()
    await call.speak(FRAME)
    await call.wait_heard(160)
    call.go_silent()
    await call.speak(FRAME)
    await say(gateway.upgrades[0], gateway.frames[1], FRAME)
    await call.hang_up()
    await gateway.read_all()
    assert [frame["event"] for frame in gateway.frames] == ["connected", "start", "media"]
    assert len(call.sent_frames) == 1


@pytest.mark.parametrize("kind", CARRIERS, ids=lambda kind: kind.name)
async def test_tunnel_shows_in_headers(kind):
    async with simulated(kind, public_url=None, tunnel_url="https://voice.example.com") as (carrier, gateway):
        await carrier.dial()
        headers = gateway.requests[0][0].headers
    assert headers["host"] == headers["x-forwarded-host"] == "voice.example.com"
    assert headers["x-forwarded-proto"] == gateway.upgrades[0].headers["x-forwarded-proto"] == "https"
    assert gateway.upgrades[0].headers["host"] == "voice.example.com"


@pytest.mark.parametrize("fault", [{"status": 503}, {"status": 429}])
async def test_rest_fault_passes_after_once(both, fault):
    carrier, _ = both
    call = await carrier.dial()
    carrier.fail("*", **fault)
    assert (await hang_up_by_rest(carrier, call)).status_code == fault["status"]
    assert call.ended_by == ""
    assert (await hang_up_by_rest(carrier, call)).status_code == 200
    await call.over()


async def test_lost_answer_still_takes_effect(both):
    carrier, _ = both
    call = await carrier.dial()
    carrier.fail("*", hang=True, takes_effect=True)
    asking = asyncio.create_task(hang_up_by_rest(carrier, call))
    await call.over()
    assert (call.ended_by, asking.done()) == ("gateway-rest", False)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def test_wrong_credentials_are_refused(both):
    carrier, _ = both
    call = await carrier.dial()
    url = twilio_url(carrier, call.id) if carrier.name == "twilio" else f"{carrier.api_url}/calls/x/actions/hangup"
    async with httpx.AsyncClient(trust_env=False, verify=False) as http:
        answer = await http.post(url)
    assert answer.status_code == 401


async def test_speed_paces_the_caller(both):
    carrier, gateway = both
    carrier.speed = 10.0
    call = await carrier.dial()
    clock = asyncio.get_running_loop().time
    began = clock()
    await call.speak(FRAME * 6)
    assert clock() - began >= 0.0099  # five gaps of 2 ms


async def test_transfer_leads_to_the_other_phone(both):
    carrier, _ = both
    call = await carrier.dial()
    answer = await transfer_by_rest(carrier, call)
    leg = call.leg_b
    assert (answer.status_code, leg.caller, leg.called) == (200, "+12025550100", "+12025550177")
    assert (call.put_through, call.abandoned, leg.id == call.id) == (True, False, False)
    await leg.hang_up()
    await call.over()
    assert (leg.ended_by, call.put_through) == ("callee", False)


@pytest.mark.parametrize("outcome", ["busy", "no-answer"])
async def test_failed_transfer_keeps_the_caller(both, outcome):
    carrier, gateway = both
    gateway.resume = gateway.twiml
    call = await carrier.dial()
    carrier.callee = outcome
    await transfer_by_rest(carrier, call)
    if carrier.name == "twilio":
        await call.wait_stream(2)
    assert (call.leg_b.ended_by, call.leg_b.answered, call.ended_by) == (outcome, False, "")
    await call.speak(FRAME)
    await call.wait_heard(160)


@pytest.mark.parametrize("picks_up", [True, False])
async def test_caller_who_leaves_takes_both_legs_down(both, picks_up):
    carrier, _ = both
    call = await carrier.dial()
    carrier.callee = "rings"
    transferring = asyncio.create_task(transfer_by_rest(carrier, call))
    await call.until(lambda: call.leg_b is not None)
    if picks_up:
        await call.leg_b.pick_up()
    await call.hang_up()
    await transferring
    assert (call.ended_by, call.leg_b.answered, call.leg_b.finished) == ("caller", picks_up, True)


async def test_strange_caller_id_is_a_violation(both):
    carrier, _ = both
    carrier.strict = False
    call = await carrier.dial()
    await transfer_by_rest(carrier, call, caller_id="+12025550199")
    assert len(call.violations) == 1
    assert ("callerId" in call.violations[0]) or ("from" in call.violations[0])


# Twilio


KEY = "0123456789abcdef0123456789abcdef"
P = {
    "AccountSid": "AC00000000000000000000000000000001",
    "ApiVersion": "2010-04-01",
    "CallSid": "CA00000000000000000000000000000001",
    "CallStatus": "ringing",
    "Direction": "inbound",
    "From": "+14155550100",
    "To": "+14155550199",
}
PUBLISHED = {
    "CallSid": "CA1234567890ABCDE",
    "Caller": "+14158675309",
    "Digits": "1234",
    "From": "+14158675309",
    "To": "+18005551212",
}


@pytest.mark.parametrize(
    ("key", "url", "form", "signature"),
    [
        ("12345", "https://mycompany.com/myapp.php?foo=1&bar=2", PUBLISHED, "RSOYDt4T1cUTdK1PDd93/VVr8B8="),
        (KEY, "https://voice.example.com/twilio/voice", P, "D2VEII2D3TWeqxtAkJv8VGJ2kwo="),
        (
            KEY,
            "https://voice.example.com/twilio/voice",
            P | {"CallerName": "", "FromCity": "SAN FRANCISCO"},
            "aRVo1Wazp7fgRbHOTFb7pNuoMFs=",
        ),
        (KEY, "wss://voice.example.com/media/twilio", {}, "BbfE/txsZ8UjwSjwaliQOycxGvA="),
        (KEY, "wss://voice.example.com/media/twilio/", {}, "k+Ojz6Lw6HPAVVgbCJynLjQ4kNc="),
        (KEY, "https://voice.example.com/media/twilio", {}, "ezFnws/Ko789QZB+WZaYKRfbTn8="),
    ],
)
def test_twilio_signature_matches_vector(key, url, form, signature):
    assert twilio.sign(key, url, form.items()) == signature
    assert RequestValidator(key).compute_signature(url, form) == signature


@pytest.fixture
async def twilio_pair() -> AsyncIterator[tuple[FakeTwilio, EchoGateway]]:
    async with simulated(FakeTwilio) as pair:
        yield pair


async def test_every_twilio_request_is_signed(twilio_pair):
    carrier, gateway = twilio_pair
    call = await carrier.dial()
    await gateway.upgrades[0].close()
    await call.over()
    validator = RequestValidator(carrier.auth_token)
    for request, body in gateway.requests:
        form = dict(parse_qsl(body.decode(), keep_blank_values=True))
        assert validator.validate(PUBLIC + request.url.path, form, request.headers["x-twilio-signature"])
    upgrade = gateway.upgrades[0].headers
    assert validator.validate("wss://voice.example.com/twilio/media", {}, upgrade["x-twilio-signature"])
    paths = [request.url.path for request, _ in gateway.requests]
    assert paths == ["/twilio/incoming", "/twilio/resume", "/twilio/status"]


async def test_twilio_upgrade_looks_like_twilios(twilio_pair):
    carrier, gateway = twilio_pair
    await carrier.dial()
    headers = dict(gateway.upgrades[0].headers)
    assert headers["user-agent"] == "Twilio.TmeWs/1.0"
    assert not {"origin", "sec-websocket-extensions", "sec-websocket-protocol", "cookie"} & set(headers)


async def test_twilio_start_has_parameters(twilio_pair):
    carrier, gateway = twilio_pair
    call = await carrier.dial()
    await call.hang_up()
    await gateway.read_all()
    start = gateway.frames[1]["start"]
    assert start["customParameters"] == {"token": "t&1"}
    assert (start["callSid"], start["accountSid"]) == (call.id, carrier.account_sid)
    assert start["mediaFormat"] == {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1}
    assert call.token == "t&1"


@pytest.mark.parametrize(("reason", "status"), [("rejected", "no-answer"), ("busy", "busy")])
async def test_leading_reject_never_answers(twilio_pair, reason, status):
    carrier, gateway = twilio_pair
    gateway.twiml = f'<Response><Reject reason="{reason}"/></Response>'
    call = await carrier.dial()
    assert (call.answered, call.rejected, call.ended_by, call.status) == (False, True, "rejected", status)


async def test_closed_stream_asks_for_action(twilio_pair):
    carrier, gateway = twilio_pair
    call = await carrier.dial()
    await gateway.upgrades[0].close()
    await call.over()
    assert (carrier.debugger, call.ended_by) == ([31921], "twiml")
    assert carrier.sent("action")[0].body["CallStatus"] == "in-progress"
    completed = carrier.sent("completed")[0].body
    assert (completed["CallStatus"], completed["SequenceNumber"]) == ("completed", "0")


async def test_action_can_resume_the_stream(twilio_pair):
    carrier, gateway = twilio_pair
    gateway.resume = gateway.twiml.replace("t&amp;1", "t2")
    call = await carrier.dial()
    await call.drop()
    await call.wait_stream(2)
    await call.speak(FRAME)
    await call.wait_heard(160)
    assert call.streams[0].id != call.streams[1].id
    assert gateway.frames[-2]["start"]["customParameters"] == {"token": "t2"}
    assert (gateway.frames[-1]["sequenceNumber"], gateway.frames[-1]["media"]["chunk"]) == ("2", "1")
    assert carrier.debugger == [31903]


async def test_document_without_action_goes_on(twilio_pair):
    carrier, gateway = twilio_pair
    gateway.twiml = gateway.twiml.replace(' action="/twilio/resume"', "").replace(
        "</Connect>", "</Connect><Say>Goodbye.</Say>"
    )
    call = await carrier.dial()
    await gateway.upgrades[0].close()
    await call.over()
    assert (call.said, carrier.sent("action"), call.ended_by) == (["Goodbye."], [], "twiml")


@pytest.mark.parametrize(
    ("old", "new", "problem", "code"),
    [
        ("wss://", "ws://", "TwiML: the stream's url must be wss://", 31922),
        ("<Stream ", '<Stream track="both_tracks" ', "TwiML: under <Connect> only inbound_track is allowed", 31941),
    ],
)
async def test_wrong_stream_is_not_opened(twilio_pair, old, new, problem, code):
    carrier, gateway = twilio_pair
    carrier.strict = False
    gateway.twiml = gateway.twiml.replace(old, new)
    call = await carrier.dial()
    assert (call.violations, call.streams, carrier.debugger) == ([problem], [], [code])


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("<Stream ", '<Stream audioFormat="wav" ', "TwiML: <Stream> has unknown attribute audioFormat"),
        ("/twilio/media", "/twilio/media?token=x", "TwiML: the query of the stream's url is dropped"),
        ("t&amp;1", "t" * 500, "TwiML: <Parameter> is 500 characters or longer"),
        ("</Connect>", "</Connect><Stream/>", "TwiML: <Stream> is not allowed here"),
    ],
)
async def test_questionable_twiml_is_a_violation(twilio_pair, old, new, problem):
    carrier, gateway = twilio_pair
    carrier.strict = False
    gateway.twiml = gateway.twiml.replace(old, new)
    call = await carrier.dial()
    assert call.violations == [problem]
    assert gateway.upgrades[0].url.query == ""


async def test_unreachable_gateway_is_tried_twice(twilio_pair):
    carrier, _ = twilio_pair
    carrier.gateway_url = "http://127.0.0.1:1"
    call = await carrier.dial()
    assert [entry.error for entry in carrier.sent("incoming")] == ["ConnectError", "ConnectError"]
    assert (carrier.debugger, call.ended_by, call.answered) == ([11205], "webhook-failed", False)


async def test_failed_webhook_goes_to_fallback(twilio_pair):
    carrier, gateway = twilio_pair
    carrier.fallback_url = PUBLIC + "/twilio/fallback"
    gateway.statuses = [500]
    call = await carrier.dial()
    form = carrier.sent("fallback")[0].body
    assert (form["ErrorCode"], form["ErrorUrl"]) == ("11200", PUBLIC + "/twilio/incoming")
    assert (call.answered, call.ended_by, len(carrier.sent("incoming"))) == (True, "twiml", 1)


async def test_redirected_webhook_is_followed(twilio_pair):
    carrier, gateway = twilio_pair
    gateway.statuses = [307]
    call = await carrier.dial()
    request, body = gateway.requests[1]
    form = dict(parse_qsl(body.decode(), keep_blank_values=True))
    signature = request.headers["x-twilio-signature"]
    assert RequestValidator(carrier.auth_token).validate(PUBLIC + "/twilio/fallback", form, signature)
    assert (form["CallSid"], call.ended_by) == (call.id, "twiml")


async def test_slow_webhook_is_given_up(twilio_pair):
    carrier, gateway = twilio_pair
    carrier.webhook_seconds = 0.0
    answer = await carrier.webhook()
    assert (answer.status, answer.error) == (0, "TimeoutError")


async def test_unparsable_twiml_is_noted(twilio_pair):
    carrier, gateway = twilio_pair
    gateway.twiml = "<Response>"
    call = await carrier.dial()
    assert (carrier.debugger, call.ended_by) == ([12100], "webhook-failed")


async def test_twilio_webhook_can_be_wrong(twilio_pair):
    carrier, gateway = twilio_pair
    validator = RequestValidator(carrier.auth_token)
    call = carrier.new_call(caller="anonymous", FromCity=None)
    await carrier.webhook(call, signature="wrong")
    await carrier.webhook(call, signature="none")
    await carrier.webhook(call, method="GET")
    wrong, none, get = (request for request, _ in gateway.requests)
    assert not validator.validate(PUBLIC + "/twilio/incoming", call.form(), wrong.headers["x-twilio-signature"])
    assert "x-twilio-signature" not in none.headers
    assert validator.validate(f"{PUBLIC}{get.url.path}?{get.url.query}", {}, get.headers["x-twilio-signature"])
    assert get.query_params["From"] == "anonymous"
    assert "FromCity" not in get.query_params


async def test_twilio_update_runs_new_document(twilio_pair):
    carrier, gateway = twilio_pair
    call = await carrier.dial()
    twiml = "<Response><Say>One moment.</Say></Response>"
    answer = await rest(carrier, "POST", twilio_url(carrier, call.id), data={"Twiml": twiml})
    await call.over()
    await gateway.read_all()
    assert (answer.json()["status"], call.said, call.ended_by) == ("in-progress", ["One moment."], "twiml")
    assert (gateway.frames[-1]["event"], carrier.sent("action")) == ("stop", [])


@pytest.mark.parametrize(
    ("verb", "build"),
    [
        ("Connect", voice_response.VoiceResponse.connect),
        ("Stream", voice_response.Connect.stream),
        ("Dial", voice_response.VoiceResponse.dial),
        ("Number", voice_response.Dial.number),
        ("Sip", voice_response.Dial.sip),
    ],
)
def test_twilio_knows_official_attributes(verb, build):
    names = [re.sub(r"_(\w)", lambda letter: letter[1].upper(), name) for name in inspect.signature(build).parameters]
    assert twilio.ATTRIBUTES[verb] <= set(names)


async def test_dial_tells_of_both_legs(twilio_pair):
    carrier, gateway = twilio_pair
    call = await carrier.dial()
    await transfer_by_rest(carrier, call)
    await gateway.read_all()
    assert gateway.frames[-1]["event"] == "stop"
    answered = carrier.sent("answered")[0].body
    assert (answered["CallSid"], answered["ParentCallSid"]) == (call.leg_b.id, call.id)
    assert (answered["CallStatus"], answered["Direction"]) == ("in-progress", "outbound-dial")
    await call.leg_b.hang_up()
    await call.over()
    action = carrier.sent("action")[0].body
    assert (action["CallSid"], action["CallStatus"]) == (call.id, "in-progress")
    assert (action["DialCallSid"], action["DialCallStatus"]) == (call.leg_b.id, "completed")
    assert [entry.call_id for entry in carrier.sent("completed")] == [call.id]


async def test_action_may_follow_a_hang_up(twilio_pair):
    carrier, _ = twilio_pair
    carrier.action_after_hangup = True
    call = await carrier.dial()
    await transfer_by_rest(carrier, call)
    await call.hang_up()
    action = carrier.sent("action")[0].body
    assert (action["CallStatus"], action["DialCallStatus"]) == ("completed", "completed")


async def test_twilio_shows_a_call(twilio_pair):
    carrier, _ = twilio_pair
    call = await carrier.dial()
    shown = (await rest(carrier, "GET", twilio_url(carrier, call.id))).json()
    assert (shown["sid"], shown["status"], shown["direction"]) == (call.id, "in-progress", "inbound")
    missing = await rest(carrier, "GET", twilio_url(carrier, "CA" + "0" * 32))
    assert (missing.status_code, missing.json()["code"]) == (404, 20404)


async def test_twilio_places_a_call(twilio_pair):
    carrier, gateway = twilio_pair
    url = f"{carrier.api_url}/2010-04-01/Accounts/{carrier.account_sid}/Calls.json"
    form = {
        "To": "+12025550143",
        "From": "+12025550100",
        "Twiml": gateway.twiml.replace(' action="/twilio/resume"', ""),
    }
    events = {"StatusCallbackEvent": ["initiated", "ringing", "answered", "completed"]}
    answer = await rest(carrier, "POST", url, data={**form, **events, "StatusCallback": PUBLIC + "/twilio/status"})
    call = carrier.calls[0]
    await call.wait_stream(1)
    await call.hang_up()
    assert (answer.status_code, answer.json()["status"], answer.json()["sid"]) == (201, "queued", call.id)
    callbacks = [entry for entry in carrier.requests if entry.kind == "callback"]
    assert [entry.body["CallStatus"] for entry in callbacks] == ["queued", "ringing", "in-progress", "completed"]
    assert [entry.body["SequenceNumber"] for entry in callbacks] == ["0", "1", "2", "3"]


async def test_held_stream_callbacks_come_reversed(twilio_pair):
    carrier, gateway = twilio_pair
    gateway.twiml = gateway.twiml.replace("<Stream ", f'<Stream statusCallback="{PUBLIC}/twilio/status" ')
    carrier.hold_stream_callbacks = True
    call = await carrier.dial()
    await call.hang_up()
    callbacks = [entry.action for entry in carrier.requests if entry.kind == "callback"]
    assert callbacks == ["stream-stopped", "stream-started", "completed"]


# Telnyx


EVENTS_OF_AN_ANSWER = ["call.initiated", "call.answered", "streaming.started"]


@pytest.fixture
async def telnyx_pair() -> AsyncIterator[tuple[FakeTelnyx, EchoGateway]]:
    async with simulated(FakeTelnyx) as pair:
        yield pair


def test_telnyx_signature_matches_vector():
    key = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    body = b'{"data":{"event_type":"call.hangup"}}'
    assert telnyx.sign(key, "1700000000", body) == (
        "+HUd2Jh32zctPWKKinzLX5qTGhZLKdvSwr9beaswFfZA+yox8IRwA0CO0mOLR9FguZxL5vBwso0pSd8F7zIfBw=="
    )


# Telnyx's SDK takes seconds to import, so only the process that runs these tests does it.


@pytest.mark.one_process("telnyx-sdk")
def test_telnyx_knows_official_parameters_and_values():
    from telnyx.types import CallDialParams
    from telnyx.types import calls as commands

    parameters = {
        "answer": commands.ActionAnswerParams,
        "reject": commands.ActionRejectParams,
        "hangup": commands.ActionHangupParams,
        "streaming_start": commands.ActionStartStreamingParams,
        "streaming_stop": commands.ActionStopStreamingParams,
        "transfer": commands.ActionTransferParams,
        "speak": commands.ActionSpeakParams,
    }
    for action, official in parameters.items():
        names = {name.removesuffix("_") for name in official.__annotations__}  # from_ is "from" on the wire
        assert telnyx.FIELDS[action] <= names, action
    dial = get_type_hints(CallDialParams)
    assert telnyx.FIELDS["dial"] - {"from"} <= set(dial)
    assert telnyx.VALUES["answering_machine_detection"] <= set(get_args(dial["answering_machine_detection"]))
    hints = get_type_hints(commands.ActionStartStreamingParams)
    for name in set(hints) & set(telnyx.VALUES):
        assert set(get_args(hints[name])) == telnyx.VALUES[name]


async def test_every_telnyx_webhook_is_signed(telnyx_pair):
    carrier, gateway = telnyx_pair
    call = await carrier.dial()
    await call.press("5")
    await call.hang_up()
    key = Ed25519PublicKey.from_public_bytes(base64.b64decode(carrier.settings()["TELNYX_PUBLIC_KEY"]))
    for request, body in gateway.requests:
        signature = base64.b64decode(request.headers["telnyx-signature-ed25519"])
        key.verify(signature, request.headers["telnyx-timestamp"].encode() + b"|" + body)
    assert len(gateway.requests) == 6


@pytest.mark.one_process("telnyx-sdk")
async def test_telnyx_events_fit_official_types(telnyx_pair):
    from telnyx import types

    carrier, gateway = telnyx_pair
    call = await carrier.dial()
    await call.press("5", by=("webhook",))
    await transfer_by_rest(carrier, call)
    await call.hang_up()
    gateway.accepts = False
    call = await carrier.dial()
    await call.hang_up()
    models = {
        "call.initiated": types.CallInitiated,
        "call.answered": types.CallAnswered,
        "streaming.started": types.CallStreamingStarted,
        "call.dtmf.received": types.CallDtmfReceived,
        "streaming.stopped": types.CallStreamingStopped,
        "call.bridged": types.CallBridged,
        "call.hangup": types.CallHangup,
        "streaming.failed": types.CallStreamingFailed,
    }
    for event in gateway.events:
        models[event["event_type"]].model_validate(event)
    assert {event["event_type"] for event in gateway.events} == set(models)


async def test_telnyx_events_come_in_order(telnyx_pair):
    carrier, gateway = telnyx_pair
    call = await carrier.dial()
    await call.hang_up()
    assert [event["event_type"] for event in gateway.events] == [
        "call.initiated",
        "call.answered",
        "streaming.started",
        "streaming.stopped",
        "call.hangup",
    ]
    assert gateway.events[-1]["payload"]["hangup_source"] == "caller"


async def test_shuffled_ending_turns_round(telnyx_pair):
    carrier, gateway = telnyx_pair
    call = await carrier.dial()
    carrier.shuffle_ending = True
    await call.hang_up()
    assert [event["event_type"] for event in gateway.events][-2:] == ["call.hangup", "streaming.stopped"]


@pytest.mark.parametrize(
    ("cause", "hangup_cause", "sip"),
    [("CALL_REJECTED", "call_rejected", "603"), ("USER_BUSY", "user_busy", "486")],
)
async def test_telnyx_reject_ends_unanswered(telnyx_pair, cause, hangup_cause, sip):
    carrier, gateway = telnyx_pair
    gateway.on_initiated = [("reject", {"cause": cause})]
    call = await carrier.dial()
    assert (call.answered, call.rejected, call.ended_by) == (False, True, "rejected")
    payload = gateway.events[-1]["payload"]
    assert (payload["hangup_cause"], payload["sip_hangup_cause"]) == (hangup_cause, sip)


async def test_refused_webhook_leaves_it_ringing(telnyx_pair):
    carrier, gateway = telnyx_pair
    gateway.statuses = [403]
    call = await carrier.dial()
    assert (call.answered, call.finished, len(gateway.requests)) == (False, False, 1)


async def test_failed_webhook_is_sent_again(telnyx_pair):
    carrier, gateway = telnyx_pair
    carrier.failover_url = PUBLIC + "/telnyx/webhook"
    gateway.statuses = [500, 503]
    call = await carrier.dial()
    tries = [json.loads(body) for _, body in gateway.requests[:3]]
    assert [envelope["meta"]["attempt"] for envelope in tries] == [1, 2, 3]
    assert len({envelope["data"]["id"] for envelope in tries}) == 1
    assert call.answered


@pytest.mark.parametrize("repeats", ["after", "together"])
async def test_telnyx_webhooks_can_repeat(telnyx_pair, repeats):
    carrier, gateway = telnyx_pair
    gateway.on_initiated[0][1]["command_id"] = "answer-1"
    carrier.repeats = repeats
    await carrier.dial()
    assert [event["event_type"] for event in gateway.events[:2]] == ["call.initiated", "call.initiated"]
    assert gateway.events[0]["id"] == gateway.events[1]["id"]
    assert len(gateway.upgrades) == 1


async def test_webhook_can_overtake_the_answer(telnyx_pair):
    carrier, gateway = telnyx_pair
    carrier.webhook_first = True
    await carrier.dial()
    await gateway.idle()
    assert gateway.log[:2] == ["call.initiated", "call.answered"]
    assert gateway.log.index("call.answered") < gateway.log.index("answer")


async def test_same_command_id_acts_once(telnyx_pair):
    carrier, gateway = telnyx_pair
    call = await carrier.dial()
    body = {"command_id": "stop-1"}
    answers = [await gateway.command(call.id, "streaming_stop", body) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    other = await gateway.command(call.id, "streaming_stop", {"command_id": "stop-2"})
    assert (other.status_code, other.json()["errors"][0]["code"]) == (422, "90048")


async def test_second_answer_fails(telnyx_pair):
    carrier, gateway = telnyx_pair
    carrier.strict = False
    call = await carrier.dial()
    answer = await gateway.command(call.id, "answer", {})
    assert (answer.status_code, call.violations) == (422, ["answer: the call was answered before"])


@pytest.mark.parametrize(
    ("action", "body", "code"),
    [
        ("hangup", {"client_state": "no base64!"}, "90017"),
        ("streaming_start", {"stream_url": "wss://voice.example.com/telnyx/media"}, "90045"),
        ("streaming_start", {"stream_url": "wss://voice.example.com/" + "x" * 2000}, "10003"),
        ("reject", {}, "10015"),
    ],
)
async def test_telnyx_refuses_with_its_code(telnyx_pair, action, body, code):
    carrier, gateway = telnyx_pair
    call = await carrier.dial()
    answer = await gateway.command(call.id, action, body)
    assert (answer.status_code, answer.json()["errors"][0]["code"]) == (422, code)


async def test_unknown_parameter_is_a_violation(telnyx_pair):
    carrier, gateway = telnyx_pair
    carrier.strict = False
    gateway.on_initiated[0][1].update(stream_auth_token="x", stream_codec="pcmu")
    call = await carrier.dial()
    assert call.violations == ["answer: unknown parameter stream_auth_token", "answer: stream_codec is 'pcmu'"]


async def test_closed_socket_leaves_call_alive(telnyx_pair):
    carrier, gateway = telnyx_pair
    call = await carrier.dial()
    await gateway.upgrades[0].close()
    await call.until(lambda: call.stream is None)
    with pytest.raises(TimeoutError, match="left in billed silence"):
        await call.over(timeout=0)
    again = await gateway.command(call.id, "streaming_start", gateway.on_initiated[0][1])
    await call.wait_stream(2)
    assert again.status_code == 200
    assert call.streams[0].id != call.streams[1].id


@pytest.mark.parametrize(
    ("parameter", "problem"),
    [
        ("stream_bidirectional_mode", "raw audio in mp3 mode is ignored"),
        ("stream_bidirectional_target_legs", "audio for the opposite leg, which does not exist"),
    ],
)
async def test_telnyx_default_is_silence(telnyx_pair, parameter, problem):
    carrier, gateway = telnyx_pair
    carrier.strict = False
    del gateway.on_initiated[0][1][parameter]
    call = await carrier.dial()
    await call.speak(FRAME)
    await call.until(lambda: call.violations == [problem])
    assert call.heard == b""


async def test_short_payload_is_a_violation(telnyx_pair):
    carrier, _ = telnyx_pair
    carrier.strict = False
    call = await carrier.dial()
    await call.speak(FRAME[:80])
    await call.wait_heard(80)
    assert call.violations == ["payload of 80 bytes is outside 20 ms to 30 s"]


@pytest.mark.parametrize(
    ("wanted", "insist", "encoding"), [("PCMU", False, "PCMU"), ("default", False, "PCMA"), ("PCMU", True, "PCMA")]
)
async def test_leg_codec_shows_in_start(telnyx_pair, wanted, insist, encoding):
    carrier, gateway = telnyx_pair
    carrier.leg_codec = "PCMA"
    carrier.insist_on_leg_codec = insist
    gateway.on_initiated[0][1]["stream_codec"] = wanted
    call = await carrier.dial()
    await call.hang_up()
    await gateway.read_all()
    assert gateway.frames[1]["start"]["media_format"]["encoding"] == encoding


async def test_neighbours_can_be_swapped(telnyx_pair):
    carrier, gateway = telnyx_pair
    carrier.swap_neighbours = True
    carrier.lose_chunks = {6}
    gateway.on_frame = keep_quiet
    call = await carrier.dial()
    await call.speak(FRAME * 7)
    await call.hang_up()
    await gateway.read_all()
    chunks = [frame["media"]["chunk"] for frame in gateway.frames if frame["event"] == "media"]
    assert chunks == ["2", "1", "4", "3", "7", "5"]


async def test_both_tracks_return_the_agent(telnyx_pair):
    carrier, gateway = telnyx_pair
    carrier.both_tracks = True

    async def answer(socket, message):
        if message["event"] == "start":
            await say(socket, message, FRAME)

    gateway.on_frame = answer
    call = await carrier.dial()
    await call.wait_heard(160)
    await call.hang_up()
    await gateway.read_all()
    media = [frame["media"] for frame in gateway.frames if frame["event"] == "media"]
    assert [(body["track"], body["chunk"], base64.b64decode(body["payload"])) for body in media] == [
        ("outbound", "1", FRAME)
    ]


async def test_keys_come_by_both_ways(telnyx_pair):
    carrier, gateway = telnyx_pair
    call = await carrier.dial()
    await call.press("12", swapped=True)
    await call.hang_up()
    await gateway.read_all()
    keys = [frame for frame in gateway.frames if frame["event"] == "dtmf"]
    assert [key["dtmf"]["digit"] for key in keys] == ["2", "1"]
    assert keys[0]["occurred_at"] > keys[1]["occurred_at"]
    digits = [event["payload"]["digit"] for event in gateway.events if event["event_type"] == "call.dtmf.received"]
    assert digits == ["1", "2"]


async def test_telnyx_webhook_can_be_wrong(telnyx_pair):
    carrier, gateway = telnyx_pair
    gateway.on_initiated = []
    key = carrier.private_key.public_key()
    for options in ({"signature": "wrong"}, {"body": b"{}"}, {"signed_body": b"[]"}):
        gateway.statuses = [403]
        assert (await carrier.webhook(**options)).status == 403
    verified = []
    for request, body in gateway.requests:
        message = request.headers["telnyx-timestamp"].encode() + b"|" + body
        with contextlib.suppress(Exception):
            key.verify(base64.b64decode(request.headers["telnyx-signature-ed25519"]), message)
            verified.append(body)
    assert verified == [b"[]"]


async def test_unasked_upgrade_repeats_the_url(telnyx_pair):
    carrier, gateway = telnyx_pair
    call = await carrier.dial()
    await carrier.connect(call)
    await carrier.connect(call, token="wrong")
    urls = [socket.url.query for socket in gateway.upgrades]
    assert urls == ["token=t1", "token=t1", "token=wrong"]


def told_of(gateway: EchoGateway, leg: Any) -> list[dict[str, Any]]:
    return [event for event in gateway.events if event["payload"]["call_control_id"] == leg.id]


@pytest.mark.parametrize(("outcome", "cause"), [("busy", "user_busy"), ("no-answer", "timeout")])
async def test_failed_transfer_is_told_of_leg_b(telnyx_pair, outcome, cause):
    carrier, gateway = telnyx_pair
    call = await carrier.dial()
    carrier.callee = outcome
    await transfer_by_rest(carrier, call)
    initiated, hangup = told_of(gateway, call.leg_b)
    assert (initiated["payload"]["direction"], hangup["payload"]["hangup_cause"]) == ("outgoing", cause)
    assert hangup["payload"]["client_state"] == "bGVnIEI="
    assert hangup["payload"]["call_session_id"] == call.session_id
    assert [event["event_type"] for event in told_of(gateway, call)] == EVENTS_OF_AN_ANSWER


async def test_transfer_is_told_of_both_legs(telnyx_pair):
    carrier, gateway = telnyx_pair
    call = await carrier.dial()
    await transfer_by_rest(carrier, call)
    await call.until(lambda: gateway.log.count("call.bridged") == 2)
    assert call.stream is not None  # a transfer does not end it
    await call.leg_b.hang_up()
    await call.over()
    leg_b = ["call.initiated", "call.answered", "call.bridged", "call.hangup"]
    assert [event["event_type"] for event in told_of(gateway, call.leg_b)] == leg_b
    after = ["call.bridged", "streaming.stopped", "call.hangup"]
    assert [event["event_type"] for event in told_of(gateway, call)] == EVENTS_OF_AN_ANSWER + after


async def test_parked_leg_outlives_the_bridge(telnyx_pair):
    carrier, gateway = telnyx_pair
    call = await carrier.dial()
    await gateway.command(call.id, "transfer", {"to": "+12025550177", "park_after_unbridge": "self"})
    await call.until(lambda: call.put_through)
    await call.leg_b.hang_up()
    assert (call.leg_b.finished, call.ended_by) == (True, "")


async def test_telnyx_places_a_call(telnyx_pair):
    carrier, gateway = telnyx_pair
    body = {**gateway.on_initiated[0][1], "connection_id": "1", "to": "+12025550143", "from": "+12025550100"}
    answer = await rest(carrier, "POST", f"{carrier.api_url}/calls", json=body)
    call = carrier.calls[0]
    await call.wait_stream(1)
    shown = await rest(carrier, "GET", f"{carrier.api_url}/calls/{quote(call.id, safe='')}")
    assert answer.json()["data"]["is_alive"] is False
    assert shown.json()["data"]["is_alive"] is True
    assert urlsplit(call.media_url).query == "token=t1"


async def test_caller_may_give_up_early(telnyx_pair):
    carrier, gateway = telnyx_pair
    gateway.on_initiated = []
    call = await carrier.dial(patience=0)
    await call.hang_up()
    payload = gateway.events[-1]["payload"]
    assert (payload["hangup_cause"], payload["sip_hangup_cause"]) == ("originator_cancel", "487")
