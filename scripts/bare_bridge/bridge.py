"""
The least that a bridge between Twilio and Deepgram can do: pass frames on, picows on both sides.

It takes calls from `gateway.bench` like the gateway does: a webhook answered with TwiML, a media stream, and a line of
JSON on stdout with its address. It checks no signature and no token, sends no marks, and keeps nothing.
"""

import asyncio
import gc
import os
import socket
from base64 import b64encode
from binascii import a2b_base64
from collections.abc import Sequence

import orjson
import uvicorn
import uvloop
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect, ws_create_server
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.telephony.twilio import connect_stream

_TEXT = WSMsgType.TEXT  # constants: member lookup per frame costs more than the comparison
_BINARY = WSMsgType.BINARY
_CLOSE = WSMsgType.CLOSE


class CarrierSide(WSListener):
    """The media stream of one call."""

    def __init__(self, engine_url: str) -> None:
        self.transport: WSTransport | None = None
        self.engine: WSTransport | None = None
        self.media_prefix = b""
        self._engine_url = engine_url
        self._early: list[bytes] = []
        self._connecting: asyncio.Task[None] | None = None

    def on_ws_connected(self, transport: WSTransport) -> None:
        self.transport = transport

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == _TEXT:
            message = orjson.loads(frame.get_payload_as_bytes())
            if message["event"] == "media":
                audio = a2b_base64(message["media"]["payload"])
                if self.engine is not None:
                    self.engine.send(_BINARY, audio)
                else:
                    self._early.append(audio)
            elif message["event"] == "start":
                stream_id = orjson.dumps(message["streamSid"])
                self.media_prefix = b'{"event":"media","streamSid":%b,"media":{"payload":"' % stream_id
                self._connecting = asyncio.get_running_loop().create_task(self._connect())
        elif frame.msg_type == _CLOSE:
            transport.disconnect()

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self.transport = None
        if self.engine is not None:
            self.engine.disconnect()

    async def _connect(self) -> None:
        await ws_connect(lambda: EngineSide(self), self._engine_url)

    def engine_ready(self, transport: WSTransport) -> None:
        self.engine = transport
        for audio in self._early:
            transport.send(_BINARY, audio)
        self._early.clear()


class EngineSide(WSListener):
    """The engine's connection of one call. Everything but audio is ignored."""

    def __init__(self, carrier: CarrierSide) -> None:
        self._carrier = carrier

    def on_ws_connected(self, transport: WSTransport) -> None:
        transport.send(_TEXT, b'{"type":"Settings"}')
        self._carrier.engine_ready(transport)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == _BINARY:
            carrier = self._carrier
            if carrier.transport is not None:
                carrier.transport.send(_TEXT, carrier.media_prefix + b64encode(frame.get_payload_as_bytes()) + b'"}}')
        elif frame.msg_type == _CLOSE:
            transport.disconnect()

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._carrier.engine = None


async def _serve(engine_url: str) -> None:
    media = await ws_create_server(lambda request: CarrierSide(engine_url), "127.0.0.1", 0, backlog=1024)
    stream_url = f"wss://127.0.0.1:{media.sockets[0].getsockname()[1]}/"  # Twilio only opens wss: addresses
    twiml = connect_stream(stream_url=stream_url, resume_url="", status_url="", token="")

    async def answer(request: Request) -> Response:
        return Response(twiml, media_type="text/xml")

    routes = [Route("/twilio/incoming", answer, methods=["POST"]), Route("/ready", answer)]
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(Starlette(routes=routes), ws="none", log_config=None, access_log=False)
    starts = {"event": "gateway starts", "url": f"http://127.0.0.1:{listener.getsockname()[1]}"}
    print(orjson.dumps(starts).decode(), flush=True)
    gc.collect()
    gc.freeze()
    gc.disable()  # as the gateway
    async with media:
        await uvicorn.Server(config).serve(sockets=[listener])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until killed. The arguments are those of `gateway serve`, and ignored."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(os.environ["DEEPGRAM_AGENT_URL"]))
    return 0
