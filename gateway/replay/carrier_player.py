"""
The carrier of a recorded call: rings, opens the media socket, and obeys the gateway's hang-up.

The call is the recorded one with other secrets: the carrier signs with its own keys, and puts the token that the
gateway gives into `start`.
"""

import asyncio
import base64
import contextlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

import httpx
import orjson
from starlette.routing import Route
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from gateway.errors import SettingsError
from gateway.replay.recording import CallHeader, Content, RawText, RecordedMessage, RecordedSound, Recording
from gateway.replay.sink import Inbox

ANSWER_SECONDS: Final = 10.0


@dataclass(frozen=True)
class GatewayAddress:
    """Where the gateway is reached, and the address it knows itself by."""

    url: str
    public_url: str = ""

    def public(self, path: str) -> str:
        return f"{(self.public_url or self.url).rstrip('/')}{path}"

    def local(self, path: str) -> str:
        return f"{self.url.rstrip('/')}{path}"

    def media(self, stream_url: str) -> str:
        """A media socket's public address, as we reach it."""
        parts, ours = urlsplit(stream_url), urlsplit(self.url.rstrip("/"))
        path = parts.path.removeprefix(urlsplit(self.public("")).path)
        scheme = "wss" if ours.scheme == "https" else "ws"
        return parts._replace(scheme=scheme, netloc=ours.netloc, path=ours.path + path).geturl()


class CarrierCall:
    """One call of the carrier: its media socket, and whether the gateway has ended it."""

    def __init__(self, call_id: str, socket: ClientConnection) -> None:
        self.id = call_id
        self.inbox = Inbox()
        self.ended = asyncio.Event()
        """The gateway asked for the hang-up, or closed the media socket."""
        self._socket = socket
        self._reading = asyncio.get_running_loop().create_task(self._read(), name="carrier socket")

    async def send(self, content: Content) -> None:
        """Send a recorded frame; one that finds the socket closed is lost, as it would be in life."""
        frame = content.text if isinstance(content, RawText) else orjson.dumps(_fields(content)).decode()
        with contextlib.suppress(ConnectionClosed):
            await self._socket.send(frame)

    async def settled(self) -> None:
        """Until the gateway has dealt with all that was sent: a pong comes after what was sent before the ping."""
        with contextlib.suppress(ConnectionClosed, TimeoutError):
            await asyncio.wait_for(await self._socket.ping(), ANSWER_SECONDS)

    async def close(self) -> None:
        await self._socket.close()
        await self._reading

    async def _read(self) -> None:
        with contextlib.suppress(ConnectionClosed):
            async for frame in self._socket:
                self.inbox.put(_received(frame))
        self.ended.set()


class Carrier(ABC):
    """A carrier with one account. Places recorded calls, one after the other."""

    name: ClassVar[str]

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._call: CarrierCall | None = None

    async def place(self, recording: Recording, gateway: GatewayAddress) -> CarrierCall:
        """Ring, and open the media socket. SettingsError when there is no gateway, or it does not take the call."""
        call_id, stream_id = self._new_call_id(), _stream_id(recording)
        try:
            stream_url = await self._pending_call(call_id, recording.header, gateway)
            socket = await connect(
                gateway.media(stream_url), compression=None, ping_interval=None, max_size=None, proxy=None
            )
        except (httpx.HTTPError, httpx.InvalidURL, OSError, InvalidHandshake) as error:
            raise SettingsError(f"no gateway answers at {gateway.url}: {type(error).__name__}") from None
        self._call = CarrierCall(call_id, socket)
        for message in self._opening(call_id, stream_id, recording.header):
            await self._call.send(RecordedMessage(message))
        return self._call

    async def hang_up(self, call: CarrierCall, header: CallHeader, gateway: GatewayAddress) -> None:
        """Tell the gateway outside the media socket that the call is over, if it still listens."""
        with contextlib.suppress(httpx.HTTPError):
            await self._tell_hangup(call, header, gateway)

    # The dialect

    @abstractmethod
    def settings(self, api_url: str) -> dict[str, Any]:
        """The settings with which a gateway works for this carrier."""

    @abstractmethod
    def routes(self) -> list[Route]:
        """The REST interface that the gateway commands calls with."""

    @abstractmethod
    async def _tell_hangup(self, call: CarrierCall, header: CallHeader, gateway: GatewayAddress) -> None: ...

    @abstractmethod
    def _new_call_id(self) -> str: ...

    @abstractmethod
    async def _pending_call(self, call_id: str, header: CallHeader, gateway: GatewayAddress) -> str:
        """Ring the gateway; the address that it wants the media at."""

    @abstractmethod
    def _opening(self, call_id: str, stream_id: str, header: CallHeader) -> list[dict[str, Any]]:
        """The messages that open a media stream."""

    def _hung_up(self, call_id: str) -> None:
        if self._call is not None and self._call.id == call_id:
            self._call.ended.set()


def refused(gateway: GatewayAddress, problem: str) -> SettingsError:
    return SettingsError(f"the gateway at {gateway.url} did not take the call: {problem}")


def _fields(content: Content) -> Any:
    assert isinstance(content, RecordedMessage)  # a carrier's sound is JSON too
    return content.fields


def _received(frame: str | bytes) -> RecordedMessage | RecordedSound | RawText:
    try:
        fields = orjson.loads(frame)
        if fields["event"] == "media":
            return RecordedSound(base64.b64decode(fields["media"]["payload"]))
        return RecordedMessage(fields)
    except (ValueError, KeyError, TypeError):
        return RawText(str(frame))


def _stream_id(recording: Recording) -> str:
    """The recorded stream's id, which later frames repeat."""
    frames = (step.content.fields for step in recording.steps if isinstance(step.content, RecordedMessage))
    ids = (frame.get("streamSid") or frame.get("stream_id") for frame in frames)
    return next((str(found) for found in ids if found), "stream")
