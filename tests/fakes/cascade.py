"""A recogniser, a voice and a language model that together look like one engine to a test."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Self

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from gateway.engines.streaming import StreamTimeouts
from gateway.simulate.gateway_under_test import serve_on_loopback
from tests.fakes import deepgram_speech
from tests.fakes.speech_services import KEY, FakeRecogniser, FakeSpeech, FakeVoice

RECONNECTS = len(StreamTimeouts().reconnect_pauses)
"""Handshakes after which the gateway gives up a socket."""


class FakeCascade:
    """
    Deepgram's Flux and Aura, and a model that answers when the test says so.

    The agents of a gateway in `folder` use them: gateway.toml is written there.
    """

    def __init__(self, folder: Path, agents: Mapping[str, str]) -> None:
        """`agents`: lines of gateway.toml for each of them."""
        self.requests: list[dict[str, Any]] = []
        self.answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.sounds: dict[str, bytes] = {}
        """Sounds of texts that do not have their usual one."""
        self.speech = FakeSpeech(sound=self._sound)
        self.origins: dict[str, str] = {}
        """Not used: the model is not reached through the gateway's address."""
        self._folder = folder
        self._agents = agents
        self._sessions = 0
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self.speech)
        app = Starlette(routes=[Route("/v1/chat/completions", self._complete, methods=["POST"])])
        url = await self._stack.enter_async_context(serve_on_loopback(app))
        engine = (
            'engine.listen = "deepgram/flux-general-en"\n'
            f'engine.think = {{ url = "{url}/v1", model = "test" }}\n'
            'engine.speak = "deepgram/aura-2-thalia-en"\n'
        )
        tables = (f"[agents.{name}]\n{engine}{lines}\n" for name, lines in self._agents.items())
        self._folder.joinpath("gateway.toml").write_text("".join(tables))
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._stack.aclose()

    def settings(self) -> dict[str, str]:
        """The gateway's settings for these services."""
        # The model would be asked for the summary, too.
        return {"SUMMARY_PROVIDER": "extractive", "DEEPGRAM_API_KEY": KEY, "DEEPGRAM_API_URL": self.speech.url}

    async def next_conversation(self) -> "CascadeConversation":
        """Wait for the sockets of the next session."""
        number, self._sessions = self._sessions, self._sessions + 1
        recogniser, voice = await self.speech.recogniser(number), await self.speech.voice(number)
        return CascadeConversation(self, recogniser, voice)

    def _sound(self, text: str) -> bytes:
        return self.sounds.get(text.strip()) or deepgram_speech.speech(text.strip())

    async def _complete(self, request: Request) -> StreamingResponse:
        self.requests.append(await request.json())

        async def records() -> AsyncIterator[str]:
            delta = await self.answers.get()
            common = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "test"}
            for part, reason in ((delta, None), ({}, "tool_calls" if "tool_calls" in delta else "stop")):
                choice = {"index": 0, "delta": part, "finish_reason": reason}
                yield f"data: {json.dumps({**common, 'choices': [choice]})}\n\n"
            yield "data: [DONE]\n\n"

        return StreamingResponse(records(), media_type="text/event-stream")


class CascadeConversation:
    """One session, with the names of the fake engines' conversations."""

    def __init__(self, engine: FakeCascade, recogniser: FakeRecogniser, voice: FakeVoice) -> None:
        self._engine = engine
        self._recogniser = recogniser
        self._voice = voice

    @property
    def prompt(self) -> str:
        """Known from the first request to the model on."""
        text: str = self._engine.requests[-1]["messages"][0]["content"]
        return text

    @property
    def heard(self) -> bytes:
        return self._recogniser.heard

    @property
    def problems(self) -> list[str]:
        return self._engine.speech.problems

    async def configured(self) -> None:
        """Wait until the session has begun, which is known by its first words."""
        await self._engine.speech.until(lambda: self._voice.texts)

    async def hears(self, audio_bytes: int) -> bytes:
        return await self._recogniser.hears(audio_bytes)

    async def user_says(self, text: str) -> None:
        requests = len(self._engine.requests)
        await self._recogniser.says(text)
        await self._engine.speech.until(lambda: len(self._engine.requests) > requests)

    async def barge_in(self, late_audio: bytes = b"", late_text: str | None = None) -> None:
        """The caller interrupts. `late_audio`: what the voice still sends of its text."""
        await self._recogniser.begins()
        await self._voice.send_audio(late_audio)

    async def end_turn(self, text: str) -> None:
        await self._recogniser.ends(text)

    async def agent_says(self, text: str, audio: bytes = b"", sizes: tuple[int, ...] = ()) -> None:
        """The model's answer, a sentence if it has a sound of its own."""
        self._engine.sounds[text] = audio
        self._engine.answers.put_nowait({"role": "assistant", "content": text})

    async def call_functions(self, functions: list[dict[str, str]]) -> list[str]:
        """The model calls functions that it was offered. Returns their results, which are in its next request."""
        requests = len(self._engine.requests)
        calls = [
            {"index": index, "id": f"f{index}", "type": "function", "function": function}
            for index, function in enumerate(functions)
        ]
        self._engine.answers.put_nowait({"role": "assistant", "tool_calls": calls})
        await self._engine.speech.until(lambda: len(self._engine.requests) > requests)
        return [one["content"] for one in self._engine.requests[-1]["messages"] if one["role"] == "tool"]

    def abort(self) -> None:
        """The recogniser is lost, and can't be reached for as long as the gateway tries to replace its socket."""
        self._engine.speech.refuse_next(503, times=RECONNECTS)
        self._recogniser.abort()
