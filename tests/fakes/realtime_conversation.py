"""
One conversation with the simulated Realtime server: its reactions, and what a test lets caller and model do.

Like the real server it keeps the conversation, so that a test sees what the model believes was said. It has the methods
of the simulated Voice Agent (`deepgram_dialogue.py`), so that the same test runs with both.
"""

import asyncio
import base64
import copy
import inspect
import json
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from tests.fakes.deepgram_speech import SIZES, SttStream, frames, sentences, speech, with_sound
from tests.fakes.deepgram_wire import Wire
from tests.fakes.realtime_checks import ClientMistake, check_openai, check_xai

LATE_AUDIO = speech("too late for this answer")
VERBATIM = "Say exactly the following"
_PCM = {"type": "audio/pcm", "rate": 24000}
_DEFAULTS: dict[str, Any] = {
    "instructions": "Your knowledge cutoff is 2023-10.",
    "audio": {"input": {"format": _PCM, "turn_detection": {"type": "server_vad"}}, "output": {"format": _PCM}},
    "tools": [],
}

Answer = str | Callable[["RealtimeConversation"], Any]
Transcription = Literal["before", "after", "never", "failed", "empty"]


@dataclass(frozen=True, kw_only=True)
class RealtimeBehaviour:
    """Behaviour in which real servers differ, and scripted answers."""

    is_xai: bool = False
    hold_settings: bool = False
    keeps_pcm: bool = False
    """Accepts the settings, and goes on with PCM."""
    transcription: Transcription = "before"
    """When the text of a turn comes: before or after the answer to it."""
    script: Mapping[str, Answer] = field(default_factory=dict)
    managed_answer: str | None = None
    """The answer to anything not in the script; None if the test answers."""
    beta_names: bool = False
    announces: bool = True
    """Sends `response.created`."""
    drops_responses: bool = False
    """A response that the caller interrupts before its output vanishes, as at xAI."""
    speech_rate: float | None = None
    """Seconds of speech sent per second; None for all at once."""
    listen_by_energy: bool = False
    turns: Sequence[str | None] = ()
    """Transcripts of the caller's loud audio, in order."""


@dataclass
class Response:
    """A response in progress. `empty` is set until it has output."""

    id: str
    metadata: Any = None
    items: list[dict[str, Any]] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    status: str = "in_progress"


class RealtimeConversation(Wire):
    """One connection, from `session.created` to close."""

    def __init__(self, socket: ServerConnection, behaviour: RealtimeBehaviour) -> None:
        super().__init__(socket)
        self.behaviour = behaviour
        self.session: dict[str, Any] = copy.deepcopy(_DEFAULTS)
        self.settings: dict[str, Any] | None = None
        """The first session.update that was accepted."""
        self.is_ready = False
        self.items: list[dict[str, Any]] = []
        """The conversation, as the model believes that it was."""
        self.outputs: dict[str, str] = {}
        self.responses: list[Response] = []
        self.active: Response | None = None
        self.user_speaking = False
        self.turns = deque(behaviour.turns)
        self._numbers = {"event": 0, "item": 0, "resp": 0, "call": 0}
        self._user_item = ""
        self._late_texts: list[dict[str, Any]] = []
        self._stt_stream = SttStream()
        self._tasks: set[asyncio.Task[None]] = set()
        self._group: asyncio.TaskGroup

    # What a test sees

    @property
    def prompt(self) -> str:
        notes = [item["content"][0]["text"] for item in self.items if item.get("role") == "system"]
        return "\n".join([self.session["instructions"], *notes])

    @property
    def believed(self) -> list[tuple[str, str]]:
        """Role and text of each message. A text of the agent that was cut is the milliseconds that remain of it."""
        return [
            (item["role"], item["text"] if item.get("cut_ms") is None else f"{item['cut_ms']} ms")
            for item in self.items
            if item["type"] in ("message", "force_message") and item["role"] != "system"
        ]

    def behave(self, **behaviour: Any) -> None:
        self.behaviour = replace(self.behaviour, **behaviour)

    async def configured(self, *, timeout: float = 60.0) -> dict[str, Any]:
        """The session's settings, after they were applied."""
        await self.until(lambda: self.is_ready, timeout=timeout)
        return await self.settings_received()

    async def settings_received(self, *, timeout: float = 60.0) -> dict[str, Any]:
        await self.until(lambda: self.settings is not None, timeout=timeout)
        assert self.settings is not None
        return self.settings

    async def apply_settings(self) -> None:
        """Send session.updated. Automatic unless settings are held."""
        self.is_ready = True
        session = self._described_session()
        if self.behaviour.keeps_pcm:
            session["audio"]["input"]["format"] = session["audio"]["output"]["format"] = _PCM
        await self.emit("session.updated", session=session)
        self._changed()

    # The caller

    async def user_says(self, text: str) -> None:
        """One complete turn of the caller, and the answer to it."""
        await self.until(lambda: self.active is None or not self.active.items or self.active.status != "in_progress")
        if not self.user_speaking:
            await self.user_starts_speaking()
        await self.end_turn(text)

    async def user_starts_speaking(self, *, late_audio: bytes = b"") -> None:
        """The server cancels its answer. Parts of it still arrive."""
        self.user_speaking = True
        self._user_item = self._id("item")
        heard_ms = len(self.heard) // 8
        await self.emit("input_audio_buffer.speech_started", item_id=self._user_item, audio_start_ms=heard_ms)
        if self.active is not None and self._detection.get("interrupt_response", True):
            await self._interrupt(late_audio)

    async def barge_in(self, *, late_audio: bytes = LATE_AUDIO, late_text: str | None = None) -> None:
        await self.user_starts_speaking(late_audio=late_audio)

    async def end_turn(self, text: str, trigger: str = "") -> None:
        """End the caller's turn with this text, and answer it."""
        self.user_speaking = False
        item_id = self._user_item
        previous = self.items[-1]["id"] if self.items else None
        await self.emit("input_audio_buffer.speech_stopped", item_id=item_id, audio_end_ms=len(self.heard) // 8)
        await self.emit("input_audio_buffer.committed", item_id=item_id, previous_item_id=previous)
        item = {"id": item_id, "object": "realtime.item", "type": "message", "role": "user", "status": "completed"}
        await self._add({**item, "content": [{"type": "input_audio", "transcript": None}]}, text=text)
        if self.behaviour.is_xai:
            for part in (text[: len(text) // 2], text):
                await self._transcribed(item_id, part)
        elif self.behaviour.transcription == "before":
            await self._transcribed(item_id, text)
        elif self.behaviour.transcription == "after":
            self._late_texts.append({"item_id": item_id, "text": text})
        elif self.behaviour.transcription in ("failed", "empty"):
            await self._transcribed(item_id, "")
        if self._detection.get("create_response", True):
            await self._create_response()
            await self._answer(text)

    async def late_text(self, number: int = 0) -> None:
        """Send a text that was held back, the first one or another."""
        late = self._late_texts.pop(number)
        await self._transcribed(late["item_id"], late["text"])

    async def _transcribed(self, item_id: str, text: str) -> None:
        kind = "conversation.item.input_audio_transcription"
        if self.behaviour.transcription == "failed":
            error = {"type": "transcription_error", "code": "audio_unintelligible", "message": "It was not understood."}
            await self.emit(f"{kind}.failed", item_id=item_id, content_index=0, error=error)
            return
        usage = {"type": "duration", "seconds": 1.5}
        await self.emit(f"{kind}.completed", item_id=item_id, content_index=0, transcript=text, usage=usage)

    async def _answer(self, text: str) -> None:
        answer: Any = self.behaviour.script.get(text, self.behaviour.managed_answer)
        if callable(answer):
            answer = answer(self)
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            await self.agent_says(answer)

    # The agent

    async def agent_says(
        self, text: str, *, audio: bytes | None = None, sizes: Sequence[int] = SIZES, done: bool = True, items: int = 1
    ) -> None:
        """Speak in the response that is due, or in a new one. `done` false leaves it open; `items`: messages of it."""
        response = self.active or await self._create_response()
        parts = list(with_sound(sentences(text.strip()), audio))
        for number in range(items):
            share = parts[number * len(parts) // items : (number + 1) * len(parts) // items]
            if response.status == "in_progress" and share:
                await self._message(response, share, sizes, done=done)
        if done and response.status == "in_progress":
            await self._finish(response, "completed")

    async def _message(
        self, response: Response, parts: Sequence[tuple[str, bytes]], sizes: Sequence[int], *, done: bool
    ) -> None:
        item: dict[str, Any] = {"id": self._id("item"), "object": "realtime.item", "type": "message"}
        item |= {"role": "assistant", "status": "in_progress", "content": []}
        ids = {"response_id": response.id, "item_id": item["id"], "output_index": len(response.items)}
        ids["content_index"] = 0
        await self.emit(
            "response.output_item.added", response_id=response.id, output_index=len(response.items), item=dict(item)
        )
        await self._add(item, text="", size=0)
        believed = self.items[-1]
        response.items.append(believed)
        await self.emit("response.content_part.added", **ids, part={"type": "audio", "transcript": ""})
        for sentence, audio in parts:
            for word in sentence.split(" "):
                if response.status != "in_progress":
                    return
                believed["text"] = f"{believed['text']} {word}".strip()
                await self.emit(self._named("response.output_audio_transcript.delta"), **ids, delta=f"{word} ")
            for chunk in frames(audio, sizes):
                if response.status != "in_progress":
                    return
                believed["size"] += len(chunk)
                await self._send_audio(ids, chunk)
                rate = self.behaviour.speech_rate
                await asyncio.sleep(len(chunk) / 8000 / rate if rate else 0)
        if done:
            await self._end_message(response, believed)

    async def _end_message(self, response: Response, item: dict[str, Any]) -> None:
        ids = {"response_id": response.id, "item_id": item["id"], "output_index": response.items.index(item)}
        ids["content_index"] = 0
        text = item["text"]
        await self.emit(self._named("response.output_audio.done"), **ids)
        await self.emit(self._named("response.output_audio_transcript.done"), **ids, transcript=text)
        await self.emit("response.content_part.done", **ids, part={"type": "audio", "transcript": text})
        status = "completed" if response.status == "in_progress" else "incomplete"
        whole = {key: item[key] for key in ("id", "object", "type", "role")} | {"status": status}
        whole["content"] = [{"type": "output_audio", "transcript": text}]
        await self.emit(
            "response.output_item.done", response_id=response.id, output_index=ids["output_index"], item=whole
        )

    async def _send_audio(self, ids: dict[str, Any], chunk: bytes) -> None:
        await self.emit(self._named("response.output_audio.delta"), **ids, delta=base64.b64encode(chunk).decode())

    async def agent_audio_done(self) -> None:
        """End an open utterance."""
        if self.active is not None:
            for item in self.active.items:
                await self._end_message(self.active, item)
            await self._finish(self.active, "completed")

    async def _create_response(self, metadata: Any = None) -> Response:
        if self.active is not None and self.behaviour.is_xai:
            self.active.status = "dropped"
        response = self.active = Response(self._id("resp"), metadata)
        self.responses.append(response)
        if self.behaviour.announces:
            await self.emit("response.created", response=self._described(response))
        return response

    async def _finish(self, response: Response, status: str, **details: Any) -> None:
        if response.status == "in_progress":
            response.status = status
            self.active = None
            described = self._described(response)
            if details:
                described["status_details"] = {"type": status, **details}
            described["usage"] = self._usage(response)
            await self.emit("response.done", response=described)
            response.over.set()
            self._changed()

    async def fail_response(self, code: str) -> None:
        """The response that is due fails."""
        response = self.active or await self._create_response()
        await self._finish(response, "failed", error={"type": "server_error", "code": code})

    async def _interrupt(self, late_audio: bytes, reason: str = "turn_detected") -> None:
        response = self.active
        assert response is not None
        if self.behaviour.drops_responses and not response.items:
            response.status, self.active = "dropped", None
            return
        status, response.status = response.status, "cancelled"
        if response.items and late_audio:
            ids = {"response_id": response.id, "item_id": response.items[-1]["id"]}
            for chunk in frames(late_audio, (160,)):
                await self._send_audio({**ids, "output_index": len(response.items) - 1, "content_index": 0}, chunk)
        for item in response.items:
            if item["type"] == "message":
                await self._end_message(response, item)
        response.status = status
        await self._finish(response, "cancelled", reason=reason)

    def _described_session(self) -> dict[str, Any]:
        common = {} if self.behaviour.is_xai else {"type": "realtime", "output_modalities": ["audio"]}
        return {"id": "sess_1", "object": "realtime.session", **common, **copy.deepcopy(self.session)}

    def _described(self, response: Response) -> dict[str, Any]:
        return {
            "id": response.id,
            "object": "realtime.response",
            "status": response.status,
            "metadata": response.metadata,
            "output": [],
        }

    def _usage(self, response: Response) -> dict[str, Any]:
        """Every response pays for the whole conversation; what an earlier one paid for is cached."""
        text = len(self.session["instructions"]) // 4 + sum(len(item.get("text", "")) // 4 for item in self.items)
        audio = len(self.heard) // 800
        cached = 64 if len(self.responses) > 1 else 0
        spoken = sum(item.get("size", 0) for item in response.items) // 400
        return {
            "total_tokens": text + audio + spoken + 10,
            "input_tokens": text + audio,
            "output_tokens": spoken + 10,
            "input_token_details": {
                "text_tokens": text,
                "audio_tokens": audio,
                "cached_tokens": cached,
                "cached_tokens_details": {"text_tokens": cached, "audio_tokens": 0},
            },
            "output_token_details": {"text_tokens": 10, "audio_tokens": spoken},
        }

    # Functions

    async def call_functions(self, calls: Sequence[str | dict[str, Any]], *, timeout: float = 60.0) -> list[str]:
        """Let the client run functions. Returns the results, after the client asked for the answer."""
        ids = await self.request_functions(calls)
        await self.until(lambda: all(call_id in self.outputs for call_id in ids) and self.active, timeout=timeout)
        return [self.outputs[call_id] for call_id in ids]

    async def request_functions(
        self, calls: Sequence[str | dict[str, Any]], *, status: str = "completed", done: bool = True
    ) -> list[str]:
        """Call functions in the response that is due. Returns the call ids."""
        response = self.active or await self._create_response()
        ids = []
        for call in calls:
            given = {"name": call} if isinstance(call, str) else dict(call)
            arguments = given.get("arguments", "{}")
            arguments = arguments if isinstance(arguments, str) else json.dumps(arguments)
            item: dict[str, Any] = {"id": self._id("item"), "object": "realtime.item", "type": "function_call"}
            item |= {"call_id": self._id("call"), "name": given["name"], "arguments": "", "status": "in_progress"}
            place = {"response_id": response.id, "output_index": len(response.items)}
            await self.emit("response.output_item.added", **place, item=dict(item))
            await self._add(item)
            response.items.append(self.items[-1])
            about = {**place, "item_id": item["id"], "call_id": item["call_id"]}
            await self.emit("response.function_call_arguments.delta", **about, delta=arguments)
            await self.emit("response.function_call_arguments.done", **about, arguments=arguments, name=given["name"])
            self.items[-1]["arguments"] = arguments
            item |= {"status": status, "arguments": arguments}
            await self.emit("response.output_item.done", **place, item=item)
            ids.append(item["call_id"])
        if done:
            await self._finish(response, "completed")
        return ids

    # Faults

    async def fail(self, code: str, message: str = "Something went wrong.", *, close: int | None = 1001) -> None:
        """Send an error and close."""
        await self.error(code, message)
        if close is not None and not self.hung:
            await self.close(close)

    async def error(self, code: str | None, message: str, *, event_id: str | None = None, **fields: Any) -> None:
        error = {"type": "invalid_request_error", "code": code, "message": message, "param": None} | fields
        await self.emit("error", error={**error, "event_id": event_id})

    # The socket

    async def run(self) -> None:
        """Serve the connection until it is closed. Called by the server."""
        try:
            async with asyncio.TaskGroup() as self._group:
                with suppress(ConnectionClosed):
                    await self.emit("session.created", session=self._described_session())
                    while True:
                        frame = await self._socket.recv()
                        self._remember("in", frame)
                        if not self.hung:
                            await self._take(frame)
                        self._changed()
                for task in self._tasks:
                    task.cancel()
        finally:
            await self._socket.close(1011)  # only after an error in the fake
            self._over.set()
            self._changed()

    async def _take(self, frame: str | bytes) -> None:
        if isinstance(frame, bytes):
            self.problems.append("a binary frame")
            return
        event = json.loads(frame)
        if event["type"] == "input_audio_buffer.append":
            await self._take_audio(base64.b64decode(event["audio"], validate=True))
            return
        self.messages.append(event)
        try:
            (check_xai if self.behaviour.is_xai else check_openai)(event)
            await self._react(event)
        except ClientMistake as mistake:
            self.problems.append(str(mistake))
            given = {"param": mistake.param or None, "event_id": event.get("event_id")}
            await self.error(mistake.code, mistake.message, **given)

    async def _take_audio(self, audio: bytes) -> None:
        if not self.is_ready:
            self.problems.append("audio before session.updated")
        self.frames.append((self.log[-1].at, audio))
        self.heard += audio
        if self.behaviour.listen_by_energy and self._stt_stream.feed(audio):
            if self._stt_stream.speaking:
                await self.user_starts_speaking()
            elif (text := self.turns.popleft() if self.turns else None) is not None:
                self.spawn(self.end_turn(text))

    async def _react(self, event: dict[str, Any]) -> None:
        match event["type"]:
            case "session.update":
                _merge(self.session, event["session"])
                first, self.settings = self.settings is None, self.settings or event["session"]
                if not (first and self.behaviour.hold_settings):
                    await self.apply_settings()
            case "conversation.item.create":
                await self._create_item(event["item"])
            case "conversation.item.delete":
                self._found(event["item_id"])
                self.items = [item for item in self.items if item["id"] != event["item_id"]]
                await self.emit("conversation.item.deleted", item_id=event["item_id"])
            case "conversation.item.truncate":
                await self._truncate(event)
            case "response.create":
                if self.active is not None:
                    code = "conversation_already_has_active_response"
                    await self.error(code, "Conversation already has an active response.", event_id=event["event_id"])
                    return
                given = event.get("response", {})
                await self._create_response(given.get("metadata"))
                if VERBATIM in given.get("instructions", ""):
                    self.spawn(self.agent_says(given["instructions"].partition("\n\n")[2]))
            case "response.cancel":
                if self.active is None:
                    message = "Cancellation failed: no active response found"
                    await self.error("response_cancel_not_active", message, event_id=event["event_id"])
                else:
                    await self._interrupt(b"", "client_cancelled")
            case "input_audio_buffer.commit":
                if self.user_speaking and self.turns:
                    self.spawn(self.end_turn(self.turns.popleft() or ""))

    async def _create_item(self, item: dict[str, Any]) -> None:
        if item["type"] == "function_call_output":
            if not any(one.get("call_id") == item["call_id"] for one in self.items):
                raise ClientMistake("invalid_value", "Tool call ID not found in conversation.", "item.call_id")
            if item["call_id"] in self.outputs:
                self.problems.append(f"second result of {item['call_id']}")
            self.outputs[item["call_id"]] = item["output"]
        text = " ".join(part["text"] for part in item.get("content", []))
        await self._add({"id": self._id("item"), "object": "realtime.item", **item}, text=text)
        if item["type"] == "force_message":
            self.items.pop()
            await self._create_response()
            self.spawn(self.agent_says(text))

    async def _truncate(self, event: dict[str, Any]) -> None:
        item = self._found(event["item_id"])
        if item.get("role") != "assistant" or not item.get("size"):
            message = "Only model output audio messages can be truncated"
            raise ClientMistake("unsupported_content_type", message, "item_id")
        length_ms = item["size"] // 8
        if event["audio_end_ms"] > length_ms:
            message = f"Audio content of {length_ms}ms is already shorter than {event['audio_end_ms']}ms"
            raise ClientMistake("", message, "audio_end_ms")
        item["cut_ms"] = event["audio_end_ms"]
        ids = {"item_id": item["id"], "content_index": 0, "audio_end_ms": event["audio_end_ms"]}
        await self.emit("conversation.item.truncated", **ids)

    def _found(self, item_id: str) -> dict[str, Any]:
        for item in self.items:
            if item["id"] == item_id:
                return item
        raise ClientMistake("item_not_found", f"Item {item_id} does not exist.", "item_id")

    async def _add(self, item: dict[str, Any], **believed: Any) -> None:
        previous = self.items[-1]["id"] if self.items else None
        self.items.append({**item, **believed})
        if item["type"] != "force_message":
            await self.emit(self._named("conversation.item.added"), item=item, previous_item_id=previous)

    @property
    def _detection(self) -> dict[str, Any]:
        audio_input: dict[str, Any] = self.session["audio"]["input"]
        found: dict[str, Any] = self.session.get("turn_detection") or audio_input.get("turn_detection") or {}
        return found

    def _named(self, kind: str) -> str:
        if not self.behaviour.beta_names:
            return kind
        return kind.replace("response.output_audio", "response.audio").replace("item.added", "item.created")

    async def emit(self, kind: str, **fields: Any) -> None:
        """Send an event."""
        await self.send({"type": kind, "event_id": self._id("event"), **fields})

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run a task that ends with the conversation at the latest."""

        async def until_closed() -> None:
            with suppress(ConnectionClosed):
                await work

        task = self._group.create_task(until_closed())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: work.close())  # it may have been cancelled before it began
        return task

    def _id(self, kind: str) -> str:
        self._numbers[kind] += 1
        return f"{kind}_{self._numbers[kind]}"


def _merge(table: dict[str, Any], changes: dict[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(table.get(key), dict) and key not in ("turn_detection", "format"):
            _merge(table[key], value)
        else:
            table[key] = copy.deepcopy(value)
