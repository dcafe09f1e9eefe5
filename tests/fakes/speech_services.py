"""
The speech sockets of Deepgram, OpenAI, ElevenLabs and Cartesia, as far as the gateway uses them.

One server with the paths of all four. A test says what recognisers recognise; voices speak each word for 200 ms. The
official SDKs' types check every message in both directions; what is wrong with the gateway's is in `problems`.
"""

import ast
import asyncio
import base64
import contextlib
import functools
import importlib.util
import json
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

import pydantic
from cartesia.types import WebsocketClientEvent, WebsocketResponse
from deepgram.listen.v1 import types as nova
from deepgram.listen.v2 import types as flux
from deepgram.speak.v1 import types as aura
from deepgram.speak.v2 import types as flux_voice
from elevenlabs import types as eleven
from openai.types.realtime import RealtimeClientEvent, RealtimeServerEvent
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

KEY = "key-of-the-speech-services"
WORD_BYTES = 1600
"""Sound of a word: 200 ms."""
MAX_FLUSHES = 20
MAX_CONTEXTS = 5


def speech(text: str) -> bytes:
    """What every voice makes of a text: the words differ."""
    return b"".join(bytes([1 + number % 200]) * WORD_BYTES for number, _ in enumerate(text.split()))


class FakeSpeech:
    """The server. Sockets are in the order in which they were opened."""

    def __init__(self, sound: Callable[[str], bytes] = speech) -> None:
        self.sound = sound
        """What voices without the times of words make of a text."""
        self.recognisers: list[FakeRecogniser] = []
        self.voices: list[FakeVoice] = []
        self.problems: list[str] = []
        self.refuses: int = 0
        """A status for further handshakes."""
        self.refuses_at = "/"
        """The paths of those: what they begin with."""
        self._refusals: deque[int] = deque()
        self.speaks = asyncio.Event()
        """Whether voices make sound; a test may clear it."""
        self.speaks.set()
        self._server: Server

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await serve(self._serve, "127.0.0.1", 0, process_request=self._check, compression=None)
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def until(self, condition: Callable[[], Any], timeout: float = 60.0) -> Any:
        async with asyncio.timeout(timeout):
            while not (value := condition()):
                await asyncio.sleep(0.005)
        return value

    def refuse_next(self, status: int, times: int = 1) -> None:
        """Refuse the next handshakes with this status."""
        self._refusals.extend([status] * times)

    async def recogniser(self, number: int = 0) -> "FakeRecogniser":
        """Wait for this recogniser socket."""
        await self.until(lambda: len(self.recognisers) > number)
        return self.recognisers[number]

    async def voice(self, number: int = 0) -> "FakeVoice":
        await self.until(lambda: len(self.voices) > number)
        return self.voices[number]

    def _check(self, connection: ServerConnection, request: Request) -> Response | None:
        if self._refusals:
            return connection.respond(HTTPStatus(self._refusals.popleft()), "refused\n")
        if self.refuses and request.path.startswith(self.refuses_at):
            return connection.respond(HTTPStatus(self.refuses), "refused\n")
        credentials = {
            "/v1/listen": ("Authorization", f"Token {KEY}"),
            "/v2/listen": ("Authorization", f"Token {KEY}"),
            "/v1/speak": ("Authorization", f"Token {KEY}"),
            "/v2/speak": ("Authorization", f"Token {KEY}"),
            "/v1/realtime": ("Authorization", f"Bearer {KEY}"),
            "/tts/websocket": ("Authorization", f"Bearer {KEY}"),
        }
        header, value = credentials.get(urlsplit(request.path).path, ("xi-api-key", KEY))
        return None if request.headers.get(header) == value else connection.respond(HTTPStatus.UNAUTHORIZED, "key\n")

    async def _serve(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        target = urlsplit(connection.request.path)
        query = dict(parse_qsl(target.query))
        make = {
            "/v1/listen": FakeNova,
            "/v2/listen": FakeFlux,
            "/v1/speak": FakeAura,
            "/v2/speak": FakeFluxVoice,
            "/v1/realtime": FakeTranscription,
            "/tts/websocket": FakeCartesia,
        }.get(target.path, FakeElevenLabsVoice)
        socket = make(self, connection, query, target.path)
        if isinstance(socket, FakeRecogniser):
            self.recognisers.append(socket)
        else:
            self.voices.append(socket)
        try:
            await socket.serve()
        except ConnectionClosed:
            pass
        except Exception as error:  # shown by the test that asserts that there are no problems
            self.problems.append(f"{type(socket).__name__}: {type(error).__name__}: {error}")
            await connection.close(1008)
        finally:
            socket.is_over = True


class FakeSocket:
    """One connection."""

    def __init__(self, server: FakeSpeech, connection: ServerConnection, query: dict[str, str], path: str) -> None:
        self.server = server
        self.query = query
        self.path = path
        self.messages: list[dict[str, Any]] = []
        self.heard = b""
        self.is_over = False
        self._connection = connection

    async def serve(self) -> None:
        await self.opened()
        async for frame in self._connection:
            if isinstance(frame, bytes):
                self.heard += frame
                continue
            message = json.loads(frame)
            self.messages.append(message)
            await self.receive(message)

    async def opened(self) -> None: ...

    async def receive(self, message: dict[str, Any]) -> None:
        raise NotImplementedError

    async def send(self, message: dict[str, Any]) -> None:
        await self._connection.send(json.dumps(message))

    async def send_audio(self, audio: bytes) -> None:
        await self._connection.send(audio)

    async def close(self, code: int = 1011) -> None:
        await self._connection.close(code)

    def abort(self) -> None:
        """Drop the TCP connection."""
        self._connection.transport.abort()

    async def hears(self, size: int) -> bytes:
        await self.server.until(lambda: len(self.heard) >= size or self.is_over)
        assert len(self.heard) >= size
        return self.heard

    async def gets(self, kind: str) -> dict[str, Any]:
        """Wait for a message of this type."""
        found: dict[str, Any] = await self.server.until(
            lambda: next((message for message in self.messages if message.get("type") == kind), None)
        )
        return found


_adapter = functools.cache(pydantic.TypeAdapter)


def checked(model: Any, message: dict[str, Any]) -> dict[str, Any]:
    """The message, if the SDK's type allows it with exactly these fields."""
    found = _adapter(model).validate_python(message)
    known = found.__class__.model_fields
    names = {field.alias or name for name, field in known.items()} | set(known)
    assert set(message) <= names, f"{set(message) - names} are not fields of {found.__class__.__name__}"
    return message


def check_query(api: str, query: dict[str, str]) -> None:
    """Compare with the parameters of the SDK's client. It is read, not imported: that needs an old `websockets`."""
    spec = importlib.util.find_spec(f"deepgram.{api}.client")
    assert spec is not None and spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "connect"]
    parameters = {argument.arg for argument in functions[0].args.kwonlyargs}
    assert set(query) <= parameters, f"{set(query) - parameters} are no parameters"
    assert (query["encoding"], query["sample_rate"]) == ("mulaw", "8000")


# Recognisers


class FakeRecogniser(FakeSocket):
    """A test says what it recognises."""

    async def begins(self) -> None:
        """The caller starts to speak."""
        raise NotImplementedError

    async def ends(self, text: str) -> None:
        """The caller's turn is over."""
        raise NotImplementedError

    async def says(self, text: str) -> None:
        await self.begins()
        await self.ends(text)


class FakeNova(FakeRecogniser):
    async def opened(self) -> None:
        check_query("listen.v1", self.query)
        self._at = 0.0

    async def receive(self, message: dict[str, Any]) -> None:
        types = {
            "KeepAlive": nova.ListenV1KeepAlive,
            "Finalize": nova.ListenV1Finalize,
            "Configure": nova.ListenV1Configure,
        }
        checked(types[message["type"]], message)
        if message["type"] == "Finalize":
            await self.results("as far as it was said", is_final=True, from_finalize=True)

    async def begins(self) -> None:
        self._at += 1.0
        started = {"type": "SpeechStarted", "channel": [0], "timestamp": self._at}
        await self.send(checked(nova.ListenV1SpeechStarted, started))

    async def ends(self, text: str) -> None:
        first, _, rest = text.rpartition(" ")
        if first:
            await self.results(first, is_final=True)
        await self.results(rest, is_final=True, speech_final=True)

    async def results(self, text: str, *, seconds: float = 0.5, **flags: bool) -> None:
        words = [{"word": word, "start": self._at, "end": self._at, "confidence": 0.9} for word in text.split()]
        message = {
            "type": "Results",
            "channel_index": [0, 1],
            "start": self._at,
            "duration": seconds,
            "is_final": False,
            "speech_final": False,
            "channel": {"alternatives": [{"transcript": text, "confidence": 0.9, "words": words}]},
            "metadata": {
                "request_id": "r",
                "model_info": {"name": "nova", "version": "1", "arch": "nova-3"},
                "model_uuid": "u",
            },
            **flags,
        }
        self._at += seconds
        await self.send(checked(nova.ListenV1Results, message))

    async def utterance_ends(self) -> None:
        message = {"type": "UtteranceEnd", "channel": [0, 1], "last_word_end": self._at}
        await self.send(checked(nova.ListenV1UtteranceEnd, message))


class FakeFlux(FakeRecogniser):
    async def opened(self) -> None:
        check_query("listen.v2", self.query)
        self._sequence = self._turn = 0
        await self._emit(flux.ListenV2Connected, {"type": "Connected", "request_id": "r"})

    async def receive(self, message: dict[str, Any]) -> None:
        types = {"ForceEndTurn": flux.ListenV2ForceEndTurn, "Configure": flux.ListenV2Configure}
        checked(types[message["type"]], message)
        if message["type"] == "ForceEndTurn":
            await self.ends("as far as it was said", trigger="manual")

    async def begins(self) -> None:
        await self._turn_info("StartOfTurn", "")

    async def ends(self, text: str, *, trigger: str = "model") -> None:
        await self._turn_info("Update", text)
        await self._turn_info("EndOfTurn", text, trigger=trigger)
        self._turn += 1

    async def updates(self) -> None:
        """What Flux sends several times a second while it hears nothing."""
        await self._turn_info("Update", "")

    async def fails(self, code: str) -> None:
        await self._emit(flux.ListenV2FatalError, {"type": "Error", "code": code, "description": ""})

    async def _turn_info(self, event: str, text: str, **more: str) -> None:
        message = {
            "type": "TurnInfo",
            "request_id": "r",
            "event": event,
            "turn_index": self._turn,
            "audio_window_start": 0.0,
            "audio_window_end": 1.0,
            "transcript": text,
            "words": [{"word": word, "confidence": 0.9} for word in text.split()],
            "end_of_turn_confidence": 0.5,
            **more,
        }
        await self._emit(flux.ListenV2TurnInfo, message)

    async def _emit(self, model: Any, message: dict[str, Any]) -> None:
        await self.send(checked(model, {**message, "sequence_id": self._sequence}))
        self._sequence += 1


class FakeTranscription(FakeRecogniser):
    """OpenAI's session of type transcription."""

    async def opened(self) -> None:
        assert self.query == {"intent": "transcription"}
        self.format: str | None = None
        """What the server sets instead of the requested format."""
        self._item = 0
        self._events = 0
        await self._emit("session.created", session={"type": "transcription"})

    async def receive(self, message: dict[str, Any]) -> None:
        checked(RealtimeClientEvent, message)
        match message["type"]:
            case "session.update":
                session = message["session"]
                if self.format:
                    session["audio"]["input"]["format"] = {"type": self.format}
                await self._emit("session.updated", session=session)
            case "input_audio_buffer.append":
                self.heard += base64.b64decode(message["audio"], validate=True)
            case "input_audio_buffer.commit":
                await self.commits()
                await self.completes("as far as it was said")

    async def begins(self) -> None:
        self._item += 1
        await self._emit("input_audio_buffer.speech_started", item_id=f"item{self._item}", audio_start_ms=0)

    async def stops(self) -> None:
        await self._emit("input_audio_buffer.speech_stopped", item_id=f"item{self._item}", audio_end_ms=1)
        await self.commits()

    async def commits(self) -> None:
        await self._emit("input_audio_buffer.committed", item_id=f"item{self._item}")

    async def completes(self, text: str, *, item: int | None = None) -> None:
        usage = {"type": "tokens", "input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        await self._transcribed("completed", item, transcript=text, usage=usage)

    async def fails(self, item: int | None = None) -> None:
        await self._transcribed("failed", item, error={"type": "server_error", "message": "no text"})

    async def ends(self, text: str) -> None:
        await self.stops()
        await self.completes(text)

    async def _transcribed(self, outcome: str, item: int | None, **fields: Any) -> None:
        kind = f"conversation.item.input_audio_transcription.{outcome}"
        await self._emit(kind, item_id=f"item{item or self._item}", content_index=0, **fields)

    async def _emit(self, kind: str, **fields: Any) -> None:
        self._events += 1
        await self.send(checked(RealtimeServerEvent, {"type": kind, "event_id": f"event{self._events}", **fields}))


# Voices


class FakeVoice(FakeSocket):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.texts: list[str] = []
        self._work: asyncio.Queue[Callable[[], Any]] = asyncio.Queue()

    async def serve(self) -> None:
        async def work() -> None:
            with contextlib.suppress(ConnectionClosed):
                while True:
                    job = await self._work.get()
                    await self.server.speaks.wait()
                    try:
                        await job()
                    except (AssertionError, ValueError) as error:
                        self.server.problems.append(str(error))

        working = asyncio.create_task(work())
        try:
            await super().serve()
        finally:
            working.cancel()


class FakeAura(FakeVoice):
    async def opened(self) -> None:
        check_query("speak.v1", self.query)
        self.flushes = 0
        self._text = ""
        self._sequence = 0
        ids = {"request_id": "r", "model_uuid": "u"}
        metadata = {"type": "Metadata", "model_name": self.query["model"], "model_version": "1", **ids}
        await self.send(checked(aura.SpeakV1Metadata, metadata))

    async def receive(self, message: dict[str, Any]) -> None:
        types = {"Speak": aura.SpeakV1Text, "Flush": aura.SpeakV1Flush, "Clear": aura.SpeakV1Clear}
        checked(types[message["type"]], message)
        match message["type"]:
            case "Speak":
                self._text += message["text"]
            case "Flush":
                self.flushes += 1
                text, self._text = self._text, ""
                if self.flushes > MAX_FLUSHES:  # the window of a minute is longer than any test
                    warning = {"type": "Warning", "code": "FLUSH_LIMIT", "description": "too many"}
                    await self.send(checked(aura.SpeakV1Warning, warning))
                    return
                self.texts.append(text)
                self._work.put_nowait(lambda: self._speak(text))
            case "Clear":
                self._text = ""
                while not self._work.empty():
                    self._work.get_nowait()
                await self._done("Cleared", aura.SpeakV1Cleared)

    async def _speak(self, text: str) -> None:
        sound = self.server.sound(text)
        half = len(sound) // 2
        await self.send_audio(sound[:half])
        await self.send_audio(sound[half:])
        await self._done("Flushed", aura.SpeakV1Flushed)

    async def _done(self, kind: str, model: Any) -> None:
        await self.send(checked(model, {"type": kind, "sequence_id": self._sequence}))
        self._sequence += 1


class FakeFluxVoice(FakeVoice):
    """/v2/speak: turns, each with an identifier of the server."""

    async def opened(self) -> None:
        check_query("speak.v2", self.query)
        self._text = ""
        ids = {"request_id": "r", "model_uuids": ["u"]}
        connected = {"type": "Connected", "model_name": self.query["model"], "model_version": "1", **ids}
        await self.send(checked(flux_voice.SpeakV2Connected, connected))

    async def receive(self, message: dict[str, Any]) -> None:
        types = {"Speak": flux_voice.SpeakV2Speak, "Flush": flux_voice.SpeakV2Flush}
        checked(types[message["type"]], message)
        if message["type"] == "Speak":
            self._text += message["text"]
        else:
            text, self._text = self._text, ""
            self.texts.append(text)
            self._work.put_nowait(lambda: self._speak(text))

    async def _speak(self, text: str) -> None:
        turn = {"speech_id": f"dg_sp_{len(self.texts):012x}"}
        await self.send(checked(flux_voice.SpeakV2SpeechStarted, {"type": "SpeechStarted", **turn}))
        await self.send(checked(flux_voice.SpeakV2Flushed, {"type": "Flushed", **turn}))
        await self.send_audio(self.server.sound(text))
        controls = {"breaks_applied": 0, "pronunciations_applied": 0, "pronunciation_warnings": 0}
        counts = {"audio_duration_ms": 1, "input_character_count": 1, "billable_character_count": 1}
        metadata = {"type": "SpeechMetadata", **turn, **counts, "controls_applied": controls}
        await self.send(checked(flux_voice.SpeakV2SpeechMetadata, metadata))


class FakeElevenLabsVoice(FakeVoice):
    """multi-stream-input. Sends the times of characters with every chunk, each chunk's from its beginning."""

    async def opened(self) -> None:
        assert self.path.startswith("/v1/text-to-speech/") and self.path.endswith("/multi-stream-input")
        assert self.query["output_format"] == "ulaw_8000"
        self.contexts: dict[str, str] = {}
        self.closed: set[str] = set()

    async def receive(self, message: dict[str, Any]) -> None:
        context = message["context_id"]
        if message.get("close_context"):
            checked(eleven.CloseContext, message)
            self.closed.add(context)
            self._work.put_nowait(lambda: self._finish(context))
        elif context not in self.contexts:
            checked(eleven.InitializeConnectionMulti, message)
            if len(self.contexts) >= MAX_CONTEXTS:
                await self.send({"message": "too many contexts", "error": "max_active_conversations", "code": 1008})
                await self.close(1008)
                return
            self.contexts[context] = ""
        else:
            checked(eleven.SendTextMulti, message)
            text = message["text"]
            assert context not in self.closed and text.endswith(" ") and message["flush"]
            self.texts.append(text)
            self._work.put_nowait(lambda: self._speak(context, text))

    async def _speak(self, context: str, text: str) -> None:
        words = text.split()
        half = (len(words) + 1) // 2
        sound = speech(text)
        await self._chunk(context, words[:half], sound[: half * WORD_BYTES])
        if words[half:]:
            await self._chunk(context, words[half:], sound[half * WORD_BYTES :])

    async def _chunk(self, context: str, words: list[str], sound: bytes) -> None:
        characters: list[tuple[str, int, int]] = []
        for number, word in enumerate(words):
            share = 200 // len(word)
            for at, character in enumerate(word):
                last = 200 - share * (len(word) - 1)
                characters.append((character, 200 * number + share * at, last if at == len(word) - 1 else share))
            characters.append((" ", 200 * (number + 1), 0))
        chars, starts, durations = map(list, zip(*characters, strict=True))
        alignment = {"chars": chars, "charStartTimesMs": starts, "charDurationsMs": durations}
        audio = base64.b64encode(sound).decode()
        message = {"audio": audio, "alignment": alignment, "normalizedAlignment": alignment, "contextId": context}
        await self.send(checked(eleven.AudioOutputMulti, message))

    async def _finish(self, context: str) -> None:
        self.contexts.pop(context, None)
        await self.send(checked(eleven.FinalOutputMulti, {"isFinal": True, "contextId": context}))


class FakeCartesia(FakeVoice):
    async def opened(self) -> None:
        assert set(self.query) == {"cartesia_version"}
        self.cancelled: list[str] = []

    async def receive(self, message: dict[str, Any]) -> None:
        checked(WebsocketClientEvent, message)
        context = message["context_id"]
        if message.get("cancel"):
            self.cancelled.append(context)
            return
        assert message["output_format"] == {"container": "raw", "encoding": "pcm_mulaw", "sample_rate": 8000}
        self.texts.append(message["transcript"])
        self._work.put_nowait(lambda: self._speak(context, message["transcript"]))

    async def fails(self, status: int, code: str) -> None:
        error = {"type": "error", "done": True, "status_code": status, "error_code": code, "title": "", "message": ""}
        await self.send(checked(WebsocketResponse, error))

    async def _speak(self, context: str, text: str) -> None:
        common = {"context_id": context, "status_code": 206}
        words = [word.strip(".,!?") for word in text.split()]
        times = [number * 0.2 for number in range(len(words) + 1)]
        timestamps = {"words": words, "start": times[:-1], "end": times[1:]}
        stamps = {"type": "timestamps", "done": False, "word_timestamps": timestamps, **common}
        await self.send(checked(WebsocketResponse, stamps))
        sound, size = speech(text), 2000  # chunks do not end with words
        for at in range(0, len(sound), size):
            data = base64.b64encode(sound[at : at + size]).decode()
            chunk = {"type": "chunk", "data": data, "done": False, "step_time": 1.0, **common}
            await self.send(checked(WebsocketResponse, chunk))
        await self.send(checked(WebsocketResponse, {"type": "done", "done": True, **common}))
