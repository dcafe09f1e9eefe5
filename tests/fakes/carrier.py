"""
The common base of the strict fake carriers: webhooks, REST API, media streams, and a phone with a play-out buffer.

They use real HTTP and WebSockets on loopback and validate every message of the gateway. Leaving the carrier's context
raises if a call has violations, unless `strict` is off. Signatures and messages are written by hand here, independent
of `gateway.simulate`, so that a mistake there cannot hide.
"""

import asyncio
import base64
import binascii
import contextlib
import ipaddress
import json
import os
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, Self
from urllib.parse import urljoin, urlsplit

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute
from websockets.asyncio.client import ClientConnection, connect
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

BYTES_PER_SECOND: Final = 8000
FRAME_BYTES: Final = 160
FRAME_SECONDS: Final = 0.02
SILENCE: Final = b"\xff"


@dataclass
class Exchange:
    """One entry of the carrier's log: a request to the gateway, a command from it, or a debugger entry."""

    kind: str  # "webhook", "action", "callback", "upgrade", "command" or "debugger"
    method: str = ""
    url: str = ""
    body: Any = None
    status: int = 0  # 0: no answer
    answer: str = ""
    content_type: str = ""
    error: str = ""  # the exception's name if there was no answer
    code: int = 0  # the debugger's error code
    call_id: str = ""
    action: str = ""  # the REST command's name, or the webhook's event


@dataclass
class Fault:
    """
    How the REST API fails on the next commands of one kind.

    `hang` never answers; `takes_effect` executes the command nevertheless. The kind "*" matches any.
    """

    status: int = 500
    code: str = ""
    hang: bool = False
    takes_effect: bool = False
    times: int = 1
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    """The answer to a REST command, and its effect, which starts after the answer was sent."""

    status: int
    body: dict[str, Any]
    effect: Callable[[], Coroutine[Any, Any, Any]] | None = None
    headers: dict[str, str] = field(default_factory=dict)


class UpgradeRefused(Exception):
    """The gateway did not answer 101. `status` is 0 without an answer; `error` is the reason."""

    def __init__(self, status: int, error: str) -> None:
        super().__init__(f"upgrade refused: {status or error}")
        self.status = status
        self.error = error


class Playout:
    """
    The play-out buffer: a queue of audio and marks, and a play head that moves through it.

    With speed 0 everything is played at once; with `hold` nothing is played until `release`. Marks that were played or
    cleared wait in `reached`.
    """

    def __init__(self, heard: bytearray, *, speed: float, hold: bool, clock: Callable[[], float]) -> None:
        self.heard = heard
        self.reached: deque[str] = deque()
        self._queue: deque[bytes | str] = deque()
        self._speed = speed
        self._hold = hold
        self._released = 0
        self._clock = clock
        self._head = clock()

    @property
    def queued(self) -> int:
        return sum(len(item) for item in self._queue if isinstance(item, bytes))

    @property
    def tick(self) -> float | None:
        """Seconds until the play head has moved; None if it does not move by itself."""
        moving = self._queue and not self._hold and self._speed
        return FRAME_SECONDS / self._speed if moving else None

    def add(self, item: bytes | str) -> None:
        """Append audio or the name of a mark."""
        self.advance()
        if not self._queue:
            self._head = self._clock()
        self._queue.append(item)
        self.advance()

    def advance(self) -> None:
        """Move the play head to its current position."""
        allowed = self._allowed()
        while self._queue:
            item = self._queue[0]
            if isinstance(item, str):
                self.reached.append(item)
            elif len(item) > allowed:
                self._play(item[:allowed])
                self._queue[0] = item[allowed:]
                return
            else:
                self._play(item)
                allowed -= len(item)
            self._queue.popleft()

    def release(self, count: int | None = None) -> None:
        """Play this many held bytes, or all."""
        self._released = self.queued if count is None else min(count, self.queued)
        self.advance()

    def clear(self) -> bytes:
        """Stop at once. Returns the audio that was not played; pending marks count as reached."""
        self.advance()
        self.reached.extend(item for item in self._queue if isinstance(item, str))
        dropped = b"".join(item for item in self._queue if isinstance(item, bytes))
        self._queue.clear()
        return dropped

    def _allowed(self) -> int:
        if self._hold:
            return self._released
        if self._speed == 0:
            return self.queued
        return int((self._clock() - self._head) * BYTES_PER_SECOND * self._speed)

    def _play(self, audio: bytes) -> None:
        self.heard += audio
        if self._hold:
            self._released -= len(audio)
        elif self._speed:
            self._head += len(audio) / (BYTES_PER_SECOND * self._speed)


class MediaStream:
    """The carrier's side of one media stream. Subclasses define the messages."""

    own_fields: frozenset[str] = frozenset()  # fields that every message must have besides its event
    close_code: int | None = 1000

    def __init__(self, call: "FakeCall", connection: ClientConnection, stream_id: str) -> None:
        self.call = call
        self.id = stream_id
        self.connection = connection
        self.ended = asyncio.Event()
        self.how_it_ended = ""  # "carrier", "gateway-close", "broken" or "garbled"
        carrier = call.carrier
        clock = asyncio.get_running_loop().time
        self.playout = Playout(call.heard_bytes, speed=carrier.speed, hold=carrier.hold_playback, clock=clock)
        self._sequence = 0
        self._chunks: dict[str, int] = {}
        self._position_ms = 0
        self._sending = asyncio.Lock()
        self._wake = asyncio.Event()
        self.stopped = False  # `stop` was sent
        self._closing = False
        self._aborted = False
        self._half_open = False

    # The carrier's protocol

    def connected_message(self) -> dict[str, Any]:
        raise NotImplementedError

    def start_message(self) -> dict[str, Any]:
        raise NotImplementedError

    def message(self, event: str, body: dict[str, Any]) -> dict[str, Any]:
        """A numbered message of the stream."""
        raise NotImplementedError

    def stop_body(self) -> dict[str, Any]:
        raise NotImplementedError

    def digit_message(self, digit: str) -> dict[str, Any]:
        raise NotImplementedError

    def refuse(self, kind: str, problem: str) -> None:
        """React to an invalid message; kind is "binary", "shape" or "base64"."""
        raise NotImplementedError

    def audible(self, audio: bytes) -> bool:
        """Whether the phone plays this message."""
        raise NotImplementedError

    async def tell_played(self) -> None:
        """Called when the play head has moved."""

    # The call

    async def open(self) -> None:
        """Send `connected` and `start`, and begin to read."""
        self.call.carrier.spawn(self._read())
        self.call.carrier.spawn(self._drive())
        await self.send(self.connected_message)
        await self.send(self.start_message)

    @property
    def is_open(self) -> bool:
        return not self.ended.is_set() and not self._closing

    async def send_audio(self, audio: bytes) -> None:
        await self.send(lambda: self.media_message(audio))

    async def flush_audio(self) -> None:
        """Send what was held back for reordering."""

    async def send_digit(self, digit: str) -> None:
        await self.send(lambda: self.digit_message(digit))

    def skip(self, milliseconds: int) -> None:
        """Skip this much media: the next timestamp jumps."""
        self._position_ms += milliseconds

    async def stop(self) -> None:
        """Send `stop` and close."""
        self.stopped = True
        await self.send(lambda: self.message("stop", self.stop_body()))
        await self.close()

    async def close(self) -> None:
        """Close without `stop`."""
        self._closing = True
        self.connection.transport.resume_reading()
        await self.connection.close(self.close_code)  # None: a close frame without a code
        await self.ended.wait()

    async def abort(self) -> None:
        """Reset the TCP connection."""
        self._closing = self._aborted = True
        descriptor = os.dup(self.connection.transport.get_extra_info("socket").fileno())
        with socket.socket(fileno=descriptor) as twin:
            twin.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.transport.abort()
        await self.ended.wait()

    def stall_reading(self) -> None:
        self.connection.transport.pause_reading()

    def go_half_open(self) -> None:
        """Keep the connection open without messages or pongs."""
        self.stall_reading()
        self._half_open = True

    def wake(self) -> None:
        self._wake.set()

    async def send(self, build: Callable[[], dict[str, Any]]) -> None:
        """Send one message; its sequence number is assigned here. It is lost if the socket is closed."""
        async with self._sending:
            await self.write(build())

    async def write(self, message: dict[str, Any]) -> None:
        if self._half_open or self._closing:
            return
        with contextlib.suppress(ConnectionClosed):
            await self.connection.send(json.dumps(message))

    def media_message(self, audio: bytes, track: str = "inbound") -> dict[str, Any]:
        chunk = self._chunks[track] = self._chunks.get(track, 0) + 1
        position = self._position_ms
        if track == "inbound":
            self._position_ms += len(audio) * 1000 // BYTES_PER_SECOND
        payload = base64.b64encode(audio).decode()
        body = {"track": track, "chunk": str(chunk), "timestamp": str(position), "payload": payload}
        return self.message("media", body)

    def next_number(self) -> str:
        self._sequence += 1
        return str(self._sequence)

    # The network

    async def _read(self) -> None:
        try:
            async for frame in self.connection:
                if not self._closing:  # otherwise it was in transit at the hang-up
                    self._receive(frame)
                    self.wake()
                    self.call.pulse()
        except ConnectionClosed:
            pass
        self.how_it_ended = self._job()
        self.playout.clear()
        self.ended.set()
        self.wake()
        self.call.pulse()

    def _job(self) -> str:
        if self._closing:
            return "broken" if self._aborted else "carrier"
        if self.connection.protocol.close_rcvd is not None:
            return "gateway-close"
        return "broken" if self.connection.protocol.close_sent is None else "garbled"

    def _receive(self, frame: str | bytes) -> None:
        if isinstance(frame, bytes):
            self.refuse("binary", "binary frame")
            return
        try:
            message = json.loads(frame)
        except ValueError:
            self.refuse("shape", "not JSON")
            return
        self.call.sent_frames.append(message)
        if problem := self.problem_with(message):
            self.refuse(*problem)
        else:
            self._obey(message)

    def problem_with(self, message: Any) -> tuple[str, str] | None:
        """The problems of a message from the gateway, as kind and text."""
        event = message.get("event") if isinstance(message, dict) else None
        if event not in _BODIES:
            return "shape", f"unknown message {event!r}"
        expected = {"event", *self.own_fields, *([event] if _BODIES[event] else [])}
        if set(message) != expected:
            return "shape", f"{event} has fields {sorted(message)}, expected {sorted(expected)}"
        name = _BODIES[event]
        if not name:
            return None
        body = message[event]
        if not isinstance(body, dict) or set(body) != {name} or not isinstance(body[name], str) or not body[name]:
            return "shape", f"{event} must hold a {name} and nothing else"
        return self._problem_with_payload(body[name]) if event == "media" else None

    def _problem_with_payload(self, payload: str) -> tuple[str, str] | None:
        try:
            base64.b64decode(payload, validate=True)
        except binascii.Error:
            return "base64", "payload is not base64"
        return None

    def _obey(self, message: dict[str, Any]) -> None:
        match message["event"]:
            case "media":
                audio = base64.b64decode(message["media"]["payload"])
                if self.audible(audio):
                    self.playout.add(audio)
            case "mark":
                self.playout.add(message["mark"]["name"])
            case "clear":
                self.call.clears += 1
                self.call.dropped += self.playout.clear()

    # Internal

    async def _drive(self) -> None:
        """Move the play head and echo marks in the order in which they were reached."""
        while self.is_open:
            self._wake.clear()
            self.playout.advance()
            await self.tell_played()
            while self.playout.reached and self.is_open:
                await self._echo(self.playout.reached.popleft())
            self.call.pulse()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.playout.tick):
                    await self._wake.wait()

    async def _echo(self, name: str) -> None:
        await self.send(lambda: self.message("mark", {"name": name}))
        self.call.marks_echoed.append(name)


_BODIES: Final = {"media": "payload", "mark": "name", "clear": ""}


class FakeCall:
    """One phone call: the caller's actions, the audio the caller heard, and the gateway's violations."""

    def __init__(self, carrier: "FakeCarrier", call_id: str, caller: str, called: str) -> None:
        self.carrier = carrier
        self.id = call_id
        self.caller = caller
        self.called = called
        self.answered = False
        self.rejected = False
        self.ended_by = ""
        self.media_url = ""  # the stream URL from the gateway
        self.token = ""  # the stream token from the gateway
        self.streams: list[Any] = []
        self.leg_b: Any = None  # the latest call to a transfer target
        self.leg_a: Any = None  # the caller's leg, if this is a call to a transfer target
        self.heard_bytes = bytearray()
        self.dropped = bytearray()  # audio dropped by a clear
        self.sent_frames: list[Any] = []
        self.clears = 0
        self.marks_echoed: list[str] = []
        self.violations: list[str] = []
        self.finished = False
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        state = self.ended_by or ("rejected" if self.rejected else "answered" if self.answered else "ringing")
        return f"<{type(self).__name__} {state}, {len(self.streams)} streams, {len(self.heard_bytes)} bytes heard>"

    # The result

    @property
    def stream(self) -> Any:
        """The media stream in use, or None."""
        return self.streams[-1] if self.streams and self.streams[-1].is_open else None

    @property
    def heard(self) -> bytearray:
        """The audio played so far."""
        if self.stream:
            self.stream.playout.advance()
        return self.heard_bytes

    @property
    def queued(self) -> int:
        """Bytes in the play-out buffer."""
        return self.stream.playout.queued if self.stream else 0

    @property
    def abandoned(self) -> bool:
        """Answered and live, but without a stream and without a way to get one: billed silence."""
        expected = self.leg_b is not None and not self.leg_b.finished
        return self.answered and not self.finished and self.stream is None and not expected

    @property
    def put_through(self) -> bool:
        """Whether the caller was transferred."""
        return bool(self.leg_b and self.leg_b.answered and not self.leg_b.finished and not self.finished)

    # The caller's actions

    async def speak(self, audio: bytes, *, frame_bytes: int = FRAME_BYTES, burst: int = 1) -> None:
        """Send this audio in frames at the carrier's speed, `burst` frames at a time."""
        if not self.streams:
            raise RuntimeError("the call has no media stream")
        clock = asyncio.get_running_loop().time
        began = clock()
        for number, at in enumerate(range(0, len(audio), frame_bytes)):
            if number % burst == 0:
                await self._pace(began, at / BYTES_PER_SECOND, clock)
            if self.stream:
                await self.stream.send_audio(audio[at : at + frame_bytes])
        if self.stream:
            await self.stream.flush_audio()

    async def press(self, digits: str) -> None:
        for digit in digits:
            if self.stream:
                await self.stream.send_digit(digit)

    async def hang_up(self) -> None:
        """The caller hangs up. Returns after all webhooks were sent."""
        raise NotImplementedError

    async def pick_up(self) -> None:
        """The called party answers; for a `callee` that rings."""
        raise NotImplementedError

    async def decline(self, outcome: str = "busy") -> None:
        """The called party does not answer: "busy" or "no-answer"."""
        raise NotImplementedError

    def stay_silent(self, milliseconds: int) -> None:
        """A gap in the media: takes no time, the timestamps jump."""
        if self.stream:
            self.stream.skip(milliseconds)

    # Faults

    async def drop(self) -> None:
        """Reset the media connection without close frame or `stop`."""
        await self.streams[-1].abort()

    async def close_without_stop(self) -> None:
        await self.streams[-1].close()

    def go_silent(self) -> None:
        """The connection stays open, but sends nothing, not even pongs."""
        self.streams[-1].go_half_open()

    def stall_reading(self) -> None:
        """The carrier stops reading but still sends."""
        self.streams[-1].stall_reading()

    # Test control

    def play(self, count: int | None = None) -> None:
        """With `hold_playback`: play this many bytes, or all that is queued."""
        if self.stream:
            self.stream.playout.release(count)
            self.stream.wake()

    async def wait_heard(self, count: int, timeout: float = 60.0) -> None:
        await self.until(lambda: len(self.heard) >= count, f"{count} bytes heard", timeout)

    async def wait_queued(self, count: int, timeout: float = 60.0) -> None:
        await self.until(lambda: self.queued >= count, f"{count} bytes queued", timeout)

    async def wait_stream(self, number: int, timeout: float = 60.0) -> None:
        """Wait for media stream number `count`, counted from 1."""
        await self.until(lambda: len(self.streams) >= number, f"{number} streams", timeout)

    async def over(self, timeout: float = 60.0) -> None:
        """Wait until the call has ended and its webhooks were sent."""
        await self.until(lambda: self.finished, "call over", timeout)

    async def until(self, condition: Callable[[], bool], what: str = "condition", timeout: float = 60.0) -> None:
        """Wait for a condition that a message, the play head or the end of the call can change."""
        try:
            async with asyncio.timeout(timeout):
                while not condition():
                    await self._changed.wait()
        except TimeoutError:
            silence = ", left in billed silence" if self.abandoned else ""
            raise TimeoutError(f"no {what} within {timeout} s: {self!r}{silence}") from None

    def pulse(self) -> None:
        """Wake the waiters to check their conditions."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        if self.leg_a:
            self.leg_a.pulse()

    def end(self, by: str) -> bool:
        """Note who ended the call. Returns False if it had ended before."""
        if self.ended_by:
            return False
        self.ended_by = by
        self.pulse()
        return True

    def finish(self) -> None:
        self.finished = True
        self.pulse()

    async def _pace(self, began: float, position: float, clock: Callable[[], float]) -> None:
        speed = self.carrier.speed
        wait = began + position / speed - clock() if speed else 0.0
        await asyncio.sleep(max(wait, 0.0))


class RawSocket:
    """A media socket under the test's control: sends anything and records the answers."""

    def __init__(self, connection: ClientConnection, stream_id: str) -> None:
        self.connection = connection
        self.stream_id = stream_id
        self.received: list[Any] = []

    async def send(self, data: str | bytes) -> bool:
        """Returns False if the gateway has closed the socket."""
        try:
            await self.connection.send(data)
        except ConnectionClosed:
            return False
        return True

    async def send_json(self, *messages: dict[str, Any]) -> bool:
        return all([await self.send(json.dumps(message)) for message in messages])

    async def receive(self, timeout: float = 60.0) -> Any:
        """The next message, as JSON; raises ConnectionClosed at the end."""
        async with asyncio.timeout(timeout):
            message = json.loads(await self.connection.recv())
        self.received.append(message)
        return message

    async def wait_closed(self, timeout: float = 60.0) -> int:
        """Wait until the gateway has closed. Returns its close code."""
        with contextlib.suppress(ConnectionClosed):
            while True:
                await self.receive(timeout)
        async with asyncio.timeout(timeout):
            await self.connection.wait_closed()
        return self.connection.close_code or 1006

    async def close(self) -> None:
        await self.connection.close()

    def abort(self) -> None:
        self.connection.transport.abort()


class CarrierConnection(ClientConnection):
    """Sends header names in lower case and a given Host, like the carriers' clients."""

    async def handshake(self, *args: Any, **kwargs: Any) -> None:
        send_request = self.protocol.send_request

        def send_in_lower_case(request: Any) -> None:
            request.headers = Headers({name.lower(): value for name, value in request.headers.raw_items()})
            send_request(request)

        self.protocol.send_request = send_in_lower_case
        await super().handshake(*args, **kwargs)


class LoopbackServer:
    """An HTTP and WebSocket server on a free port, in this event loop."""

    def __init__(self, routes: list[BaseRoute]) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        app = Starlette(routes=routes)
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", ws="websockets-sansio")
        config.load()
        self._server = uvicorn.Server(config)
        self._server.lifespan = config.lifespan_class(config)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    async def start(self) -> None:
        await self._server.startup(sockets=[self._socket])

    async def stop(self) -> None:
        """Faster than uvicorn's own shutdown, which sleeps."""
        for server in self._server.servers:
            server.close()
        self._socket.close()
        for connection in list(self._server.server_state.connections):
            connection.shutdown()
        await asyncio.gather(*self._server.server_state.tasks, return_exceptions=True)


class FakeCarrier:
    """
    A carrier with one account and one number, configured for a gateway.

    It connects to `gateway_url` and signs `public_url`. With `tunnel_url` instead, the gateway has to learn its public
    address from forwarding headers; with neither, `gateway_url` is also the public address. Speed 1 is real time, 0 as
    fast as possible.
    """

    name = ""
    webhook_seconds = 15.0

    def __init__(
        self,
        gateway_url: str = "",
        public_url: str | None = None,
        speed: float = 1.0,
        *,
        tunnel_url: str | None = None,
        tunnel_keeps_host: bool = True,
        hold_playback: bool = False,
        strict: bool = True,
    ) -> None:
        self.gateway_url = gateway_url
        self.media_gateway_url = ""
        """The gateway for media sockets, if a load balancer would send them to another one."""
        self.public_url = public_url
        self.tunnel_url = tunnel_url
        self.tunnel_keeps_host = tunnel_keeps_host
        self.speed = speed
        self.hold_playback = hold_playback
        self.strict = strict
        self.upgrade_seconds = 5.0
        self.callee = "answers"  # how outbound calls are answered; or "busy", "no-answer", "rings"
        self.requests: list[Exchange] = []
        self.calls: list[Any] = []
        self.closing = asyncio.Event()
        self._faults: dict[str, list[Fault]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failures: list[BaseException] = []
        self._connections: list[ClientConnection] = []

    # The carrier's protocol

    def routes(self) -> list[BaseRoute]:
        raise NotImplementedError

    def settings(self) -> dict[str, str]:
        """The gateway's environment variables for this carrier."""
        raise NotImplementedError

    def error_body(self, status: int, code: str) -> dict[str, Any]:
        raise NotImplementedError

    # Called by the test

    async def __aenter__(self) -> Self:
        self._api = LoopbackServer(self.routes())
        await self._api.start()
        # Loading certificates takes time and is unnecessary on loopback.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._http = httpx.AsyncClient(trust_env=False, verify=False, timeout=None, limits=limits)
        return self

    async def __aexit__(self, kind: Any, *_: object) -> None:
        self.closing.set()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in self._connections:
            connection.transport.abort()
            await connection.wait_closed()
        await self._http.aclose()
        await self._api.stop()
        if kind is None:
            self._complain()

    @property
    def api_url(self) -> str:
        return self._api.url

    @property
    def public_origin(self) -> str:
        return (self.public_url or self.tunnel_url or self.gateway_url).rstrip("/")

    @property
    def plain(self) -> bool:
        """Whether the public address is plain HTTP, so that ws:// is correct."""
        return self.public_origin.startswith("http://")

    @property
    def commands(self) -> list[Exchange]:
        """The REST commands of the gateway."""
        return [exchange for exchange in self.requests if exchange.kind == "command"]

    @property
    def debugger(self) -> list[int]:
        """The error codes in the debugger."""
        return [exchange.code for exchange in self.requests if exchange.kind == "debugger"]

    def sent(self, action: str) -> list[Exchange]:
        """Requests to the gateway with this name: an event, a status, or "action"."""
        return [exchange for exchange in self.requests if exchange.kind != "command" and exchange.action == action]

    def fail(self, action: str, **fault: Any) -> None:
        """Make the next REST commands of this kind fail; the arguments are those of `Fault`."""
        self._faults.setdefault(action, []).append(Fault(**fault))

    async def open_socket(self, url: str, headers: dict[str, str]) -> ClientConnection:
        """Open a WebSocket or raise UpgradeRefused. Public addresses are mapped to the gateway."""
        entry = self.log(Exchange("upgrade", "GET", url))
        try:
            connection = await connect(
                self.resolve(url),
                additional_headers={**self._forwarded(), **headers},
                user_agent_header=None,
                create_connection=CarrierConnection,
                compression=None,
                proxy=None,
                open_timeout=self.upgrade_seconds,
                ping_interval=None,
                close_timeout=2,
                max_size=None,
                max_queue=None,
            )
        except InvalidStatus as error:
            entry.status = error.response.status_code
            raise UpgradeRefused(entry.status, "InvalidStatus") from None
        except (OSError, InvalidHandshake) as error:  # TimeoutError is an OSError
            entry.error = type(error).__name__
            raise UpgradeRefused(0, entry.error) from None
        entry.status = 101
        self._connections.append(connection)
        return connection

    # Called by subclasses

    def log(self, exchange: Exchange) -> Exchange:
        self.requests.append(exchange)
        return exchange

    def debug(self, code: int, call_id: str = "") -> None:
        self.log(Exchange("debugger", code=code, call_id=call_id))

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a task; leaving the carrier's context raises its exception."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def request(
        self, entry: Exchange, *, headers: dict[str, str], content: bytes = b"", timeout: float
    ) -> Exchange:
        """Send an HTTP request to the gateway and log the result. Does not raise for failures of the gateway."""
        self.log(entry)
        try:
            async with asyncio.timeout(timeout):
                response = await self._http.request(
                    entry.method, self.resolve(entry.url), headers={**headers, **self._forwarded()}, content=content
                )
        except (httpx.TransportError, OSError) as error:
            entry.error = type(error).__name__
            return entry
        entry.status = response.status_code
        entry.answer = response.text
        entry.content_type = response.headers.get("content-type", "")
        if response.has_redirect_location:
            entry.answer = urljoin(entry.url, response.headers["location"])
        return entry

    def resolve(self, url: str) -> str:
        """The address on loopback. Other hosts cannot be reached."""
        parts = urlsplit(url)._replace(fragment="")
        if _origin(url) == _origin(self.public_origin):
            media = parts.scheme in ("ws", "wss")
            gateway = urlsplit(self.media_gateway_url or self.gateway_url if media else self.gateway_url)
            parts = parts._replace(scheme="ws" if media else "http", netloc=gateway.netloc)
        if not _is_loopback(parts.hostname or ""):
            raise ConnectionError(f"no route to {parts.hostname}")
        return parts.geturl()

    async def answer_command(self, entry: Exchange, command: Callable[[], Awaitable[Reply]]) -> Response:
        """Answer a REST command and execute it, with the faults that were requested."""
        self.log(entry)
        fault = self._next_fault(entry.action)
        reply = await command() if fault is None or fault.takes_effect else Reply(fault.status, {})
        if fault and fault.hang:
            entry.error = "no answer"
            await self._carry_out(reply)
            await self.closing.wait()
            return Response(status_code=504)
        if fault:
            reply = Reply(fault.status, self.error_body(fault.status, fault.code), reply.effect, fault.headers)
        entry.status = reply.status
        entry.answer = json.dumps(reply.body)
        carry_out = BackgroundTask(self._carry_out, reply)
        return JSONResponse(reply.body, reply.status, headers=reply.headers, background=carry_out)

    async def _carry_out(self, reply: Reply) -> None:
        if reply.effect:
            self.spawn(reply.effect())

    def _next_fault(self, action: str) -> Fault | None:
        for name in (action, "*"):
            for fault in self._faults.get(name, []):
                if fault.times > 0:
                    fault.times -= 1
                    return fault
        return None

    def _forwarded(self) -> dict[str, str]:
        """The headers that a tunnel adds."""
        if not self.tunnel_url:
            return {}
        tunnel = urlsplit(self.tunnel_url)
        inner = urlsplit(self.gateway_url).netloc
        host = tunnel.netloc if self.tunnel_keeps_host else inner
        return {"Host": host, "X-Forwarded-Proto": tunnel.scheme, "X-Forwarded-Host": tunnel.netloc}

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._failures.append(error)

    def _complain(self) -> None:
        if self._failures:
            raise BaseExceptionGroup(f"{self.name} failed", self._failures)
        violations = [problem for call in self.calls for problem in call.violations]
        if self.strict and violations:
            raise AssertionError(f"{self.name} found fault with the gateway: {violations}")


def _origin(url: str) -> tuple[bool, str, int]:
    parts = urlsplit(url)
    secure = parts.scheme in ("https", "wss")
    return secure, parts.hostname or "", parts.port or (443 if secure else 80)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
