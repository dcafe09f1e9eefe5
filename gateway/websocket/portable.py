"""
Sockets on `websockets` and on uvicorn's `websockets-sansio`: pure Python, the alternative to picows.

These libraries speak in coroutines, so each connection has two tasks of its own: one reads and calls the owner, one
empties the outbox that `send` fills. `gateway bench --compare` tells what that costs.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, Final, Protocol

from starlette.responses import Response
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketDisconnected
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as open_connection
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from gateway.errors import EngineUnavailable
from gateway.websocket.interface import (
    ABNORMAL,
    NORMAL,
    PING_SECONDS,
    Door,
    SocketOwner,
    handshake_refused,
    tls_context,
)

_GOODBYE_SECONDS: Final = 2.0
"""A peer that has not taken what was queued, and our goodbye, by then is left."""

Message = str | bytes


class _Gone(Exception):
    """The connection is over. `code` is the peer's reason, or what we closed it for."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class _Wire(Protocol):
    """A connection in coroutines. Every method raises _Gone when it is over."""

    async def receive(self) -> Message: ...
    async def send(self, message: Message) -> None: ...
    async def close(self, code: int) -> None: ...


class QueuedSocket:
    """One connection. `run` carries it from open to closed."""

    def __init__(self, wire: _Wire, owner: SocketOwner) -> None:
        self._wire = wire
        self._owner = owner
        # Unbounded, like picows' buffer: the call's own watch on `buffered_bytes` decides about a slow peer.
        self._outbox: asyncio.Queue[Message | int] = asyncio.Queue()
        self._unsent = 0
        self._closing: int | None = None
        self._writer: asyncio.Task[None] | None = None
        self._life: asyncio.Task[None] | None = None

    # The link's side

    def send_text(self, data: bytes) -> None:
        self._put(data.decode())

    def send_binary(self, data: bytes) -> None:
        self._put(data)

    def close(self, code: int = NORMAL) -> None:
        if self._closing is None:
            self._closing = code
            self._outbox.put_nowait(code)
            asyncio.get_running_loop().call_later(_GOODBYE_SECONDS, self._give_up)

    @property
    def buffered_bytes(self) -> int:
        """What waits in the outbox; the transport below holds some 64 KiB more at most."""
        return self._unsent

    def _put(self, message: Message) -> None:
        if self._closing is None:
            self._unsent += len(message)
            self._outbox.put_nowait(message)

    # Itself

    def start(self, life: Coroutine[Any, Any, None]) -> None:
        """Run `life` as this socket's own task: a client's connection has nobody else to await it."""
        self._life = asyncio.get_running_loop().create_task(life, name="socket")

    async def run(self) -> None:
        """Carry messages both ways until the connection is gone, then tell the owner."""
        code = ABNORMAL
        reader = asyncio.create_task(self._read(), name="socket reader")
        writer = self._writer = asyncio.create_task(self._write(), name="socket writer")
        try:
            await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
            code = self._closing if self._closing is not None else await reader
        finally:
            reader.cancel()
            writer.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)
            self._owner.on_closed(code)

    async def _read(self) -> int:
        """Give the owner what comes, up to the end. Returns the code of the end."""
        try:
            while True:
                message = await self._wire.receive()
                if self._closing is not None:
                    continue
                if isinstance(message, str):
                    self._owner.on_text(message.encode())
                else:
                    self._owner.on_binary(message)
        except _Gone as gone:
            return gone.code

    async def _write(self) -> None:
        """Send what is queued, up to a goodbye."""
        with contextlib.suppress(_Gone):
            while not isinstance(message := await self._outbox.get(), int):
                await self._wire.send(message)
                self._unsent -= len(message)
            await self._wire.close(message)

    def _give_up(self) -> None:
        if self._writer is not None:
            self._writer.cancel()


# The client


class _Handshake(open_connection):
    """A key is meant for one host: a redirect is a refusal."""

    def process_redirect(self, exc: Exception) -> Exception:
        return exc


class _ClientWire:
    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    async def receive(self) -> Message:
        try:
            return await self._connection.recv()
        except ConnectionClosed as closed:
            raise _Gone(_code(closed)) from None

    async def send(self, message: Message) -> None:
        try:
            await self._connection.send(message)
        except ConnectionClosed as closed:
            raise _Gone(_code(closed)) from None

    async def close(self, code: int) -> None:
        await self._connection.close(code)


async def connect(
    url: str, headers: Mapping[str, str], owner: SocketOwner, *, max_bytes: int, timeout: float
) -> QueuedSocket:
    """Open a client socket (a `Connector`)."""
    try:
        connection = await _Handshake(
            url,
            additional_headers=dict(headers),
            compression=None,  # sound gains nothing from it
            ssl=tls_context() if url.startswith("wss:") else None,
            max_size=max_bytes,
            open_timeout=timeout,
            close_timeout=_GOODBYE_SECONDS,
            ping_interval=PING_SECONDS,  # a peer that vanished without a word is noticed within 20 s
            ping_timeout=PING_SECONDS,
            proxy=None,
        )
    except InvalidStatus as refused:
        raise handshake_refused(refused.response.status_code) from None
    except (OSError, TimeoutError, WebSocketException, ssl.SSLError) as error:
        raise EngineUnavailable(f"the engine can't be reached: {type(error).__name__}") from None
    socket = QueuedSocket(_ClientWire(connection), owner)
    owner.on_open(socket)
    socket.start(_live(connection, socket))
    return socket


async def _live(connection: ClientConnection, socket: QueuedSocket) -> None:
    try:
        await socket.run()
    finally:
        await connection.close()


def _code(closed: ConnectionClosed) -> int:
    return closed.rcvd.code if closed.rcvd is not None else ABNORMAL


# The server


class _ServerWire:
    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket

    async def receive(self) -> Message:
        try:
            message = await self._websocket.receive()
        except WebSocketDisconnected:
            raise _Gone(ABNORMAL) from None
        if message["type"] == "websocket.disconnect":
            # uvicorn says 1005 for a broken connection too; only a close frame comes with a reason.
            raise _Gone(message["code"] if "reason" in message else ABNORMAL)
        text: str | None = message.get("text")
        data: bytes | None = message.get("bytes")
        return text if text is not None else data or b""

    async def send(self, message: Message) -> None:
        kind = "text" if isinstance(message, str) else "bytes"
        await self._tell({"type": "websocket.send", kind: message})

    async def close(self, code: int) -> None:
        await self._tell({"type": "websocket.close", "code": code})

    async def _tell(self, message: dict[str, Any]) -> None:
        try:
            await self._websocket.send(message)
        except (WebSocketDisconnect, RuntimeError):
            # uvicorn calls it a misuse to send on a connection that it has closed for the peer's fault.
            raise _Gone(ABNORMAL) from None


def routes(door: Door, paths: Iterable[str]) -> list[WebSocketRoute]:
    """Media sockets for a server that speaks WebSocket through ASGI. It sets the limit on a message's size."""

    async def serve(websocket: WebSocket) -> None:
        owner = door(_target(websocket), dict(websocket.headers))
        if isinstance(owner, int):
            await websocket.send_denial_response(Response(status_code=owner))
            return
        try:
            await websocket.accept()
        except OSError:  # gone already; the owner has been waiting since the door
            owner.on_closed(ABNORMAL)
            return
        socket = QueuedSocket(_ServerWire(websocket), owner)
        owner.on_open(socket)
        await socket.run()

    return [WebSocketRoute(path, serve) for path in paths]


def _target(websocket: WebSocket) -> str:
    query = websocket.scope["query_string"].decode("latin-1")
    return websocket.url.path + (f"?{query}" if query else "")
