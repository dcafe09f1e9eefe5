"""Twilio of the bench: signs webhooks, opens media sockets, sends a frame every 20 ms, echoes marks."""

import asyncio
import time
from base64 import b64encode
from binascii import a2b_base64
from typing import Final
from uuid import uuid4
from xml.etree import ElementTree

import httpx
import orjson
from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport, ws_connect
from twilio.request_validator import RequestValidator

from gateway.audio import FRAME_MS
from gateway.bench.engine import CYCLE_FRAMES, SimulatedEngineConnection
from gateway.bench.frame_stamps import Delays, Ledger

ACCOUNT_SID: Final = "AC" + "0" * 32
AUTH_TOKEN: Final = "0123456789abcdef0123456789abcdef"
"""Made up, and good for the bench's own gateway only."""
CALLED: Final = "+12025550100"
CALLERS: Final = 100
"""Numbers that are nobody's: +1 202 555 0100 to 0199. More calls than that share them."""


class SimulatedCall(WSListener):
    """One phone call, with a ledger for each direction."""

    def __init__(self, number: int, *, phase: float, up: Delays, down: Delays) -> None:
        """`phase`, from 0 to 1, is when in each cycle of the conversation its turns are taken, whenever it began."""
        self.up = Ledger(number, up)
        self.down = Ledger(number, down)
        self.caller = f"+120255501{number % CALLERS:02}"
        self.engine: SimulatedEngineConnection | None = None
        self.started_ns = 0
        self.talking = asyncio.Event()
        """Set when sound has reached the engine."""
        self._phase = phase
        self._call_sid = f"CA{uuid4().hex}"
        self._stream_sid = f"MZ{uuid4().hex}"
        self._transport: WSTransport | None = None
        self._sequence = 1

    @property
    def connected(self) -> bool:
        return self._transport is not None and self.engine is not None

    # The load's side

    async def place(self, http: httpx.AsyncClient) -> None:
        """Ring, and stream as the gateway says. httpx.HTTPError, ValueError or picows.WSError where it does not."""
        form = {"CallSid": self._call_sid, "AccountSid": ACCOUNT_SID, "From": self.caller, "To": CALLED}
        form |= {"CallStatus": "ringing", "Direction": "inbound", "ApiVersion": "2010-04-01"}
        webhook = http.build_request("POST", "/twilio/incoming", data=form)
        webhook.headers["X-Twilio-Signature"] = RequestValidator(AUTH_TOKEN).compute_signature(str(webhook.url), form)
        answer = await http.send(webhook)
        stream_url, token = stream_of(answer.raise_for_status().text)
        # It names the public, secure address; on loopback there is no proxy to make it so.
        await ws_connect(lambda: self, stream_url.replace("wss:", "ws:", 1))
        self._send(b'{"event":"connected","protocol":"Call","version":"1.0.0"}')
        self.started_ns = time.monotonic_ns()
        self._send(self._start(token))

    def beat(self) -> None:
        """Twenty milliseconds have passed: send a frame."""
        if self._transport is None:
            return
        chunk = self.up.sent + 1
        payload = b64encode(self.up.send(time.monotonic_ns()))
        self._sequence += 1
        self._transport.send(
            WSMsgType.TEXT,
            b'{"event":"media","sequenceNumber":"%d","streamSid":"%b","media":{"track":"inbound","chunk":"%d",'
            b'"timestamp":"%d","payload":"%b"}}'
            % (self._sequence, self._stream_sid.encode(), chunk, chunk * 20, payload),
        )

    def hang_up(self) -> None:
        """The caller is gone: the last thing the gateway hears of this stream."""
        stop = {"accountSid": ACCOUNT_SID, "callSid": self._call_sid}
        self._send(orjson.dumps({"event": "stop", **self._envelope(), "stop": stop}))
        self.leave()

    def leave(self) -> None:
        """Close the socket."""
        if self._transport is not None:
            self._transport.send_close(WSCloseCode.OK)
            self._transport.disconnect()
            self._transport = None

    # The engine's side

    def engine_came(self, engine: SimulatedEngineConnection) -> None:
        self.engine = engine
        passed = time.monotonic_ns() // (FRAME_MS * 1_000_000)
        engine.begin((passed + int(self._phase * CYCLE_FRAMES)) % CYCLE_FRAMES)
        self.talking.set()

    # picows' side

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._transport = None

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        now_ns = time.monotonic_ns()
        if frame.msg_type == WSMsgType.TEXT:
            self._receive(orjson.loads(frame.get_payload_as_memoryview()), now_ns)
        elif frame.msg_type == WSMsgType.CLOSE:
            transport.disconnect()

    def _receive(self, message: dict[str, dict[str, str]], now_ns: int) -> None:
        if (media := message.get("media")) is not None:
            self.down.arrive(a2b_base64(media["payload"]), now_ns)
        elif (mark := message.get("mark")) is not None:
            self._send(orjson.dumps({"event": "mark", **self._envelope(), "mark": mark}))

    def _start(self, token: str) -> bytes:
        start = {
            "accountSid": ACCOUNT_SID,
            "callSid": self._call_sid,
            "streamSid": self._stream_sid,
            "tracks": ["inbound"],
            "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
            "customParameters": {"token": token},
        }
        return orjson.dumps({"event": "start", "sequenceNumber": "1", "streamSid": self._stream_sid, "start": start})

    def _envelope(self) -> dict[str, str]:
        self._sequence += 1
        return {"sequenceNumber": str(self._sequence), "streamSid": self._stream_sid}

    def _send(self, message: bytes) -> None:
        if self._transport is not None:
            self._transport.send(WSMsgType.TEXT, message)


def stream_of(twiml: str) -> tuple[str, str]:
    """Where TwiML wants the call's stream, and the token it gives. ValueError for a call that is not answered."""
    root = ElementTree.fromstring(twiml)
    stream, token = root.find("Connect/Stream"), root.find("Connect/Stream/Parameter[@name='token']")
    if stream is None or token is None:
        raise ValueError("the gateway did not answer the call with a stream")
    return stream.attrib["url"], token.attrib["value"]
