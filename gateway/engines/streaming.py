"""
Recognisers and voices of streaming services: one WebSocket per call and part.

A lost socket is opened again within the call. The recogniser gets the audio of the unfinished turn once more, the voice
the texts that it has not finished, so that neither a turn nor a sentence is lost. The messages of a service are in its
codec.
"""

import asyncio
import base64
import binascii
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import orjson

from gateway.audio import SILENCE_FRAME
from gateway.engines.interface import Patience, WordEnd
from gateway.engines.speech_parts import SpeechListener
from gateway.errors import EngineRefused, EngineUnavailable, RemoteProtocolError
from gateway.settings import Secret
from gateway.websocket.interface import NORMAL, Connector, IdleOwner, Socket, SocketOwner

MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
LONGEST_TEXT: Final = 3600.0
"""Seconds. A word that ends later in its text's audio is an error of the service."""
LEAD_FRAMES: Final = 50
"""Audio without reported speech that may belong to the next turn: a second."""
TURN_FRAMES: Final = 1500
"""The newest audio whose text is not known, half a minute, which a new recogniser socket gets."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StreamTimeouts:
    """Durations in seconds."""

    connect: float = 5.0
    reconnect_pauses: tuple[float, ...] = (0.0, 0.2, 0.5, 1.0)
    """Before each attempt to replace a lost socket."""
    steady: float = 10.0
    """A socket that lasted this long resets the attempts."""
    tick: float = 1.0
    idle: float = 4.0
    """A recogniser that gets no audio for this long gets silence. Deepgram closes sockets after 10 s."""
    answer: float = 5.0
    """A text of the recogniser, or a sound of the voice, that is due for this long never comes."""


@dataclass(frozen=True)
class ServiceEndpoint:
    """Where a streaming service is, and how to open a socket to it."""

    name: str
    """As an agent's `engine` names it, such as deepgram/nova-3."""
    url: str
    header: str
    credentials: Secret
    """The value of the header."""
    key_name: str
    """The setting with the key, for messages."""
    connect: Connector
    timeouts: StreamTimeouts = field(default_factory=StreamTimeouts)

    async def open(self, owner: SocketOwner) -> Socket:
        headers = {self.header: self.credentials.reveal()}
        timeout = self.timeouts.connect
        return await self.connect(self.url, headers, owner, max_bytes=MAX_MESSAGE_BYTES, timeout=timeout)

    async def probe(self) -> str:
        host = urlsplit(self.url).netloc
        try:
            (await self.open(IdleOwner())).close()
        except EngineRefused:
            raise EngineRefused(f"{host} rejects the key for {self.name}; correct {self.key_name}") from None
        except EngineUnavailable as error:
            raise EngineUnavailable(f"{self.name} at {host}: {error}; check the network") from None
        return f"{self.name}: {host} answers and accepts the key"


# Codecs: the messages of one service, without I/O


@dataclass(frozen=True, slots=True)
class TurnBegan:
    """The caller speaks."""


@dataclass(frozen=True, slots=True)
class TurnRecognised:
    """The caller's turn is complete. `text` is empty if it had no words."""

    text: str


@dataclass(frozen=True, slots=True)
class VoiceAudio:
    number: int
    audio: bytes


@dataclass(frozen=True, slots=True)
class VoiceWords:
    """Where the next words of this text end in its audio."""

    number: int
    ends: tuple[WordEnd, ...]


@dataclass(frozen=True, slots=True)
class VoiceDone:
    """The audio of this text is complete."""

    number: int


@dataclass(frozen=True, slots=True)
class ServiceFailed:
    """The service can't go on with this socket. `retryable`: a new one may work."""

    code: str
    retryable: bool = True


RecogniserEvent = TurnBegan | TurnRecognised | ServiceFailed
VoiceEvent = VoiceAudio | VoiceWords | VoiceDone | ServiceFailed


class RecogniserCodec(Protocol):
    """The messages of one socket to a recogniser."""

    audio_is_binary: bool

    @property
    def is_text_due(self) -> bool:
        """Whether speech has ended whose text has not come yet."""

    def opening(self, keyterms: Sequence[str]) -> list[bytes]:
        """The first messages. `keyterms`: names that the caller may say."""

    def keyterms(self, terms: Sequence[str]) -> list[bytes]: ...
    def patience(self, patience: Patience) -> list[bytes]: ...
    def audio(self, audio: bytes) -> bytes: ...
    def end_turn(self) -> bytes: ...
    def receive(self, frame: bytes) -> list[RecogniserEvent]:
        """Raises RemoteProtocolError."""


class VoiceCodec(Protocol):
    """The messages of one socket to a voice."""

    def say(self, number: int, text: str) -> list[bytes]: ...
    def cancel(self, numbers: Sequence[int]) -> list[bytes]:
        """Cancel these texts, which are all that are not done."""

    def tick(self) -> list[bytes]:
        """What is due by now. Called about once a second."""

    def receive(self, frame: bytes) -> list[VoiceEvent]:
        """Raises RemoteProtocolError."""

    def receive_binary(self, audio: bytes) -> list[VoiceEvent]: ...


def parse_message(peer: str, frame: bytes) -> dict[str, Any]:
    """A JSON object. Raises RemoteProtocolError."""
    try:
        message = orjson.loads(frame)
    except orjson.JSONDecodeError:
        raise RemoteProtocolError(peer, "sent text that is not JSON") from None
    if not isinstance(message, dict):
        raise RemoteProtocolError(peer, "sent JSON that is not an object")
    return message


def decode_audio(peer: str, data: Any) -> bytes:
    """Decode base64; what is not text is no audio. Raises RemoteProtocolError."""
    try:
        return base64.b64decode(data, validate=True) if isinstance(data, str) else b""
    except binascii.Error:
        raise RemoteProtocolError(peer, "sent audio that is not base64") from None


class TextWindow:
    """The texts that a voice works on: a few at a time, since services limit how many."""

    def __init__(self, wanted: int, limit: int) -> None:
        """`wanted`: those not cancelled; `limit`: with cancelled ones, which the service may not have given up."""
        self._wanted = wanted
        self._limit = limit
        self._waiting: deque[tuple[int, str]] = deque()
        self._open: dict[int, str] = {}
        self._cancelled: set[int] = set()

    def add(self, number: int, text: str) -> None:
        self._waiting.append((number, text))

    def next(self) -> list[tuple[int, str]]:
        """Those that may be sent now."""
        texts = []
        while self._waiting and len(self._open) < self._wanted + len(self._cancelled) and len(self._open) < self._limit:
            number, text = self._waiting.popleft()
            self._open[number] = text
            texts.append((number, text))
        return texts

    def text(self, number: int) -> str:
        """The text with this number; empty if it is not in work."""
        return self._open.get(number, "")

    def done(self, number: int) -> None:
        self._open.pop(number, None)
        self._cancelled.discard(number)

    def cancel(self) -> list[int]:
        """Drop what waits. Returns what is in work and was not cancelled before."""
        self._waiting.clear()
        cancelled = [number for number in self._open if number not in self._cancelled]
        self._cancelled.update(cancelled)
        return cancelled


# Streams: one part of one call


class ServiceStream:
    """A socket that is opened again when it is lost. The subclasses say what is sent on a new one."""

    def __init__(self, endpoint: ServiceEndpoint, listener: SpeechListener) -> None:
        self._endpoint = endpoint
        self._timeouts = endpoint.timeouts
        self._listener: SpeechListener | None = listener
        self._loop = asyncio.get_running_loop()
        self._socket: Socket | None = None
        self._opened_at = 0.0
        self._pauses = list(self._timeouts.reconnect_pauses)
        self._reconnecting: asyncio.Task[None] | None = None
        self._ticking: asyncio.TimerHandle | None = None
        self._warned = False

    async def open(self) -> None:
        """Raises EngineUnavailable or EngineRefused."""
        try:
            await self._endpoint.open(self)
        except BaseException:
            self.close()
            raise
        self._tick()

    def close(self) -> None:
        self._listener = None
        if self._reconnecting is not None:
            self._reconnecting.cancel()
        if self._ticking is not None:
            self._ticking.cancel()
        if self._socket is not None:
            self._socket.close(NORMAL)

    @property
    def buffered_bytes(self) -> int:
        return self._socket.buffered_bytes if self._socket is not None else 0

    # SocketOwner

    def on_open(self, socket: Socket) -> None:
        self._socket = socket
        self._opened_at = self._loop.time()
        if self._listener is None:
            socket.close(NORMAL)
        else:
            self._begin(socket)

    def on_text(self, data: bytes) -> None:
        try:
            events = self._decode(data)
        except RemoteProtocolError as error:
            if not self._warned:
                self._warned = True
                _log.warning("engine broke its protocol", extra={"engine": error.peer, "problem": error.problem})
            return
        self._handle_all(events)

    def on_binary(self, data: bytes) -> None:
        """Only some voices send binary messages."""

    def on_closed(self, code: int) -> None:
        self._socket = None
        if self._listener is None or self._reconnecting is not None:
            return
        if self._loop.time() - self._opened_at > self._timeouts.steady:
            self._pauses = list(self._timeouts.reconnect_pauses)
        self._reconnecting = self._loop.create_task(self._reconnect(code), name=f"reconnect {self._endpoint.name}")

    async def _reconnect(self, code: int) -> None:
        _log.info("speech service lost, connecting again", extra={"service": self._endpoint.name, "code": code})
        try:
            while self._socket is None and self._pauses:
                await asyncio.sleep(self._pauses.pop(0))
                try:
                    await self._endpoint.open(self)
                except EngineUnavailable:
                    continue
        except EngineRefused as error:
            self._fail(str(error), retryable=False)
        finally:
            self._reconnecting = None
        if self._socket is None:
            self._fail("the connection was lost")

    def _fail(self, problem: str, *, retryable: bool = True) -> None:
        listener = self._listener
        self.close()
        if listener is not None:
            listener.on_speech_failed(f"{self._endpoint.name}: {problem}", retryable=retryable)

    def _handle_all(self, events: Sequence[RecogniserEvent | VoiceEvent]) -> None:
        for event in events:
            if (listener := self._listener) is None:
                return
            if not isinstance(event, ServiceFailed):
                self._handle(event, listener)
            elif event.retryable and self._socket is not None:
                _log.warning("speech service failed", extra={"service": self._endpoint.name, "code": event.code})
                self._socket.close(NORMAL)
            else:
                self._fail(event.code, retryable=event.retryable)

    def _send_all(self, frames: Sequence[bytes]) -> None:
        for frame in frames:
            if self._socket is not None:
                self._socket.send_text(frame)

    def _tick(self) -> None:
        self._ticking = self._loop.call_later(self._timeouts.tick, self._tick)
        if self._socket is not None:
            self._check(self._loop.time(), self._socket)

    # Of the subclasses

    def _begin(self, socket: Socket) -> None:
        raise NotImplementedError

    def _decode(self, data: bytes) -> Sequence[RecogniserEvent | VoiceEvent]:
        raise NotImplementedError

    def _handle(self, event: Any, listener: SpeechListener) -> None:
        raise NotImplementedError

    def _check(self, now: float, socket: Socket) -> None:
        raise NotImplementedError


class StreamingRecogniser(ServiceStream):
    """A `RecogniserStream`."""

    def __init__(
        self, endpoint: ServiceEndpoint, make_codec: Callable[[], RecogniserCodec], listener: SpeechListener
    ) -> None:
        super().__init__(endpoint, listener)
        self._make_codec = make_codec
        self._codec = make_codec()
        self._keyterms: Sequence[str] = ()
        self._patience: Patience = "normal"
        self._kept: deque[bytes] = deque(maxlen=TURN_FRAMES)
        """Audio whose text is not known yet."""
        self._speaking = False
        self._sent_at = 0.0
        self._text_due_since: float | None = None

    def send_audio(self, audio: bytes) -> None:
        self._kept.append(audio)
        self._send_audio(audio)

    def set_keyterms(self, terms: Sequence[str]) -> None:
        self._keyterms = terms
        if terms:
            self._send_all(self._codec.keyterms(terms))

    def set_patience(self, patience: Patience) -> None:
        self._patience = patience
        self._send_all(self._codec.patience(patience))

    def end_turn(self) -> None:
        if self._speaking:
            self._send_all([self._codec.end_turn()])
            self._text_due_since = self._loop.time()

    def _send_audio(self, audio: bytes) -> None:
        if self._socket is None:
            return
        self._sent_at = self._loop.time()
        if self._codec.audio_is_binary:
            self._socket.send_binary(audio)
        else:
            self._socket.send_text(self._codec.audio(audio))

    def _begin(self, socket: Socket) -> None:
        self._codec = self._make_codec()
        self._sent_at = self._loop.time()
        self._send_all(self._codec.opening(self._keyterms))
        if self._patience != "normal":
            self._send_all(self._codec.patience(self._patience))
        for audio in self._kept:
            self._send_audio(audio)
        self._text_due_since = self._loop.time() if self._speaking else None

    def _decode(self, data: bytes) -> Sequence[RecogniserEvent]:
        events = self._codec.receive(data)
        while not (self._speaking or events) and len(self._kept) > LEAD_FRAMES:
            self._kept.popleft()  # the service works, and has heard no speech in it
        return events

    def _handle(self, event: TurnBegan | TurnRecognised, listener: SpeechListener) -> None:
        self._text_due_since = None
        if isinstance(event, TurnRecognised) and not (self._speaking or event.text):
            return
        if not self._speaking:
            self._speaking = True
            listener.on_speech_started()
        if isinstance(event, TurnRecognised):
            self._speaking = False
            self._kept.clear()
            listener.on_speech_ended(event.text)

    def _check(self, now: float, socket: Socket) -> None:
        if now - self._sent_at >= self._timeouts.idle:
            self._send_audio(SILENCE_FRAME)
        if self._codec.is_text_due and self._text_due_since is None:
            self._text_due_since = now
        if self._text_due_since is not None and now - self._text_due_since >= self._timeouts.answer:
            self._handle_all([TurnRecognised("")])  # else the agent would wait for the caller for ever


@dataclass
class _Text:
    """A text that is not complete."""

    text: str
    received: int = 0
    """Bytes of its audio."""
    skipped: int = 0
    """Bytes to skip: they came on an earlier socket."""
    timed: int = 0
    """Where its last reported word ends, in bytes."""


class StreamingVoice(ServiceStream):
    """A `VoiceStream`."""

    def __init__(self, endpoint: ServiceEndpoint, make_codec: Callable[[], VoiceCodec], listener: SpeechListener):
        super().__init__(endpoint, listener)
        self._make_codec = make_codec
        self._codec = make_codec()
        self._texts: dict[int, _Text] = {}
        self._number = 0
        self._received_at = 0.0

    def say(self, text: str) -> int:
        if not self._texts:
            self._received_at = self._loop.time()
        self._number += 1
        self._texts[self._number] = _Text(text)
        if self._socket is not None:
            self._send_all(self._codec.say(self._number, text))
        return self._number

    def cancel_speech(self) -> None:
        numbers = list(self._texts)
        self._texts.clear()
        if numbers and self._socket is not None:
            self._send_all(self._codec.cancel(numbers))

    def on_binary(self, data: bytes) -> None:
        self._received_at = self._loop.time()
        self._handle_all(self._codec.receive_binary(data))

    def _begin(self, socket: Socket) -> None:
        self._codec = self._make_codec()
        self._received_at = self._loop.time()
        for number, item in self._texts.items():
            item.skipped = item.received
            self._send_all(self._codec.say(number, item.text))

    def _decode(self, data: bytes) -> Sequence[VoiceEvent]:
        self._received_at = self._loop.time()
        return self._codec.receive(data)

    def _handle(self, event: VoiceAudio | VoiceWords | VoiceDone, listener: SpeechListener) -> None:
        item = self._texts.get(event.number)
        if item is None:
            return  # cancelled
        if isinstance(event, VoiceAudio):
            audio = event.audio[item.skipped :]
            item.skipped = max(item.skipped - len(event.audio), 0)
            item.received += len(audio)
            if audio:
                listener.on_audio(event.number, audio)
        elif isinstance(event, VoiceWords):
            if ends := [end for end in event.ends if end.audio_bytes > item.timed]:
                item.timed = ends[-1].audio_bytes
                listener.on_word_ends(event.number, ends)
        else:
            del self._texts[event.number]
            listener.on_spoken(event.number)
            self._send_all(self._codec.tick())

    def _check(self, now: float, socket: Socket) -> None:
        self._send_all(self._codec.tick())
        if self._texts and now - self._received_at >= self._timeouts.answer:
            _log.warning("speech service stopped answering", extra={"service": self._endpoint.name})
            self._received_at = now
            socket.close(NORMAL)


# Services: a recogniser or a voice, as configured


@dataclass(frozen=True)
class _StreamingService:
    endpoint: ServiceEndpoint
    is_ready = True
    is_full = False

    @property
    def name(self) -> str:
        return self.endpoint.name

    async def probe(self) -> str:
        return await self.endpoint.probe()

    def health(self) -> dict[str, str]:
        return {}

    async def run(self) -> None:
        """There is no background work."""


@dataclass(frozen=True)
class StreamingRecogniserService(_StreamingService):
    make_codec: Callable[[], RecogniserCodec]
    hearing = ""

    async def open_recogniser(self, listener: SpeechListener) -> StreamingRecogniser:
        stream = StreamingRecogniser(self.endpoint, self.make_codec, listener)
        await stream.open()
        return stream


@dataclass(frozen=True)
class StreamingVoiceService(_StreamingService):
    make_codec: Callable[[], VoiceCodec]

    async def open_voice(self, listener: SpeechListener) -> StreamingVoice:
        stream = StreamingVoice(self.endpoint, self.make_codec, listener)
        await stream.open()
        return stream
