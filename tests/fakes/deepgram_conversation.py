"""One conversation with the fake Voice Agent: the server's reactions to the client's messages."""

import asyncio
import copy
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from tests.fakes.deepgram_dialogue import Behaviour, Dialogue, State
from tests.fakes.deepgram_exchange import Exchange
from tests.fakes.deepgram_settings import (
    MANAGED_PROMPT_CHARACTERS,
    ClientMistake,
    check_listen,
    check_message,
    parse,
)
from tests.fakes.deepgram_speech import SttStream
from tests.fakes.deepgram_think import Thinker


class Conversation(Dialogue):
    """One connection, from Welcome to close."""

    def __init__(
        self, socket: ServerConnection, *, request_id: str, behaviour: Behaviour, llm: Callable[[], httpx.AsyncClient]
    ) -> None:
        super().__init__(socket, behaviour)
        self.request_id = request_id
        self._responder = Thinker(self, llm)
        self._stt_stream = SttStream()
        self._patience: asyncio.Timeout | None = None

    @property
    def think_requests(self) -> list[Exchange]:
        """Every request to the agent's LLM endpoint with its answer."""
        return self._responder.requests

    async def configured(self, *, timeout: float = 60.0) -> dict[str, Any]:
        """The Settings, after SettingsApplied was sent."""
        await self.until(lambda: self.state is State.READY, timeout=timeout)
        return await self.settings_received()

    async def settings_received(self, *, timeout: float = 60.0) -> dict[str, Any]:
        """The Settings as received, applied or not."""
        await self.until(lambda: self.settings is not None, timeout=timeout)
        assert self.settings is not None
        return self.settings

    async def apply_settings(self) -> None:
        """Send SettingsApplied and the greeting. Automatic unless settings are held."""
        self.state = State.READY
        await self.send({"type": "SettingsApplied"})
        self._changed()
        if greeting := self.agent.get("greeting"):
            await self.agent_says(greeting)

    # The socket

    async def run(self) -> None:
        """Serve the connection until it is closed. Called by the server."""
        try:
            async with asyncio.TaskGroup() as self._group:
                with suppress(ConnectionClosed):
                    await self._serve()
                for task in self._tasks:
                    task.cancel()
        finally:
            await self._socket.close(1011)  # only after an error in the fake
            self._finish()

    async def _serve(self) -> None:
        if self.behaviour.welcome:
            await self.send({"type": "Welcome", "request_id": self.request_id})
        try:
            async with asyncio.timeout(self.behaviour.idle_timeout) as self._patience:
                await self._read()
        except TimeoutError:
            self._patience = None
            await self._give_up()
        await self._read()  # until it is closed; later frames are recorded, not answered

    async def _read(self) -> None:
        while True:
            frame = await self._socket.recv()
            self._remember("in", frame)
            self._wait_anew()
            if not self.hung and self.state is not State.FAILED:
                await (self._take_audio(frame) if isinstance(frame, bytes) else self._take_text(frame))
            self._changed()

    def _wait_anew(self) -> None:
        """Text and audio reset the idle timer; pings do not."""
        if self._patience is not None and not self._patience.expired():
            self._patience.reschedule(asyncio.get_running_loop().time() + self.behaviour.idle_timeout)

    async def _give_up(self) -> None:
        if self.hung or self.state is State.FAILED:
            return
        wanted = "a Settings message" if self.state is State.CONNECTED else "a binary message containing user speech"
        self.problems.append("CLIENT_MESSAGE_TIMEOUT")
        await self.fail("CLIENT_MESSAGE_TIMEOUT", f"We did not receive {wanted} within our timeout.")

    def _finish(self) -> None:
        if self._socket.protocol.close_rcvd_then_sent:
            self.problems += [f"function call {call_id} was never answered" for call_id in self.functions.pending()]
        self._over.set()
        self._changed()

    # Audio

    async def _take_audio(self, audio: bytes) -> None:
        if self.state is not State.READY:
            self.problems.append("audio before SettingsApplied")
            return
        if not audio:
            self.problems.append("an audio frame with nothing in it")
        self.frames.append((self.log[-1].at, audio))
        self.heard += audio
        if self.behaviour.listen_by_energy and self._stt_stream.feed(audio):
            await self._turn_changed()

    async def _turn_changed(self) -> None:
        if not self._stt_stream.speaking:
            self._end_scripted_turn("eot_threshold")
        elif self.agent_speaking:
            await self.barge_in()
        else:
            await self.user_starts_speaking()

    def _end_scripted_turn(self, trigger: str) -> None:
        text = self.turns.popleft() if self.turns else None
        if text is not None:
            self.spawn(self.end_turn(text, trigger))

    # Messages

    async def _take_text(self, frame: str) -> None:
        try:
            message = parse(frame)
            self.messages.append(message)
            self._check_order(message["type"])
            if message["type"] == "Settings":
                self.settings = message
            for warning in check_message(message):
                await self.warn(warning)
            await self._react(message)
        except ClientMistake as mistake:
            self.problems.append(str(mistake))
            await self.fail(mistake.code, mistake.description, close=1008)

    def _check_order(self, kind: str) -> None:
        if self.state is State.CONNECTED and kind != "Settings":
            raise ClientMistake("NON_SETTINGS_MESSAGE_BEFORE_SETTINGS", f"{kind} came before Settings")
        if self.state is not State.CONNECTED and kind == "Settings":
            raise ClientMistake("SETTINGS_ALREADY_APPLIED", "Settings came twice")

    async def _react(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "Settings":
                await self._configure(message["agent"])
            case "UpdatePrompt" | "UpdateThink" | "UpdateSpeak" | "UpdateListen":
                await self._update(message)
            case "InjectUserMessage":
                self.spawn(self.end_turn(message["content"], "manual"))
            case "InjectAgentMessage":
                await self._inject(message["message"], message.get("behavior", "default"))
            case "FunctionCallResponse":
                await self._take_function_response(message)
            case "ForceEndTurn":
                await self._force_end_turn()

    async def _configure(self, agent: dict[str, Any]) -> None:
        self.state = State.CONFIGURING
        self.agent = copy.deepcopy(agent)
        self.history = list(self.agent.get("context", {}).get("messages", []))
        await self._cut_prompts()
        if not self.behaviour.hold_settings:
            self.spawn(self._apply_later())

    async def _apply_later(self) -> None:
        await asyncio.sleep(self.behaviour.settings_delay)
        await self.apply_settings()

    async def _update(self, message: dict[str, Any]) -> None:
        part = message["type"].removeprefix("Update")
        match part:
            case "Prompt":
                for think in self.thinks:
                    think["prompt"] = "\n".join(filter(None, [think.get("prompt"), message["prompt"]]))
            case "Listen":
                self.agent["listen"] = self._merged_listen(message["listen"]["provider"])
            case _:
                self.agent[part.lower()] = copy.deepcopy(message[part.lower()])
        await self._cut_prompts()
        await self.send({"type": f"{part}Updated"})

    def _merged_listen(self, changes: dict[str, Any]) -> dict[str, Any]:
        """UpdateListen changes the fields it names and clears hints it does not name."""
        now = dict(self.agent.get("listen", {}).get("provider", {}))
        now.pop("language_hints", None)
        listen = {"provider": {**now, **changes}}
        check_listen(listen)
        return listen

    async def _cut_prompts(self) -> None:
        for think in self.thinks:
            if "endpoint" not in think and len(think.get("prompt", "")) > MANAGED_PROMPT_CHARACTERS:
                think["prompt"] = think["prompt"][:MANAGED_PROMPT_CHARACTERS]
                await self.warn("PROMPT_TOO_LONG", "The prompt was cut.")

    async def _inject(self, text: str, behavior: str) -> None:
        if behavior != "interrupt" and self.user_speaking:
            await self._refuse_injection("USER")
        elif behavior == "default" and (self.agent_speaking or self.answering):
            await self._refuse_injection("AGENT")
        else:
            if behavior == "interrupt":
                self.interrupt()
            self.agent_speaking = True
            self.spawn(self.agent_says(text))

    async def _refuse_injection(self, speaker: str) -> None:
        match self.behaviour.refusal:
            case "warning":
                await self.warn(f"INJECT_AGENT_MESSAGE_DURING_{speaker}_SPEECH", "The message was ignored.")
            case "bare":
                await self.send({"type": "InjectionRefused"})
            case _:
                await self.send({"type": "InjectionRefused", "message": f"the {speaker.lower()} is speaking"})

    async def _take_function_response(self, message: dict[str, Any]) -> None:
        if problem := self.functions.answer(message):
            self.problems.append(problem)
        if self.behaviour.echo_functions:
            await self.send(message)

    async def _force_end_turn(self) -> None:
        if self.agent.get("listen", {}).get("provider", {}).get("version") != "v2":
            await self.warn("FORCE_END_TURN_UNSUPPORTED", "Only Flux can end a turn.")
        elif self.user_speaking:
            self._end_scripted_turn("manual")

    async def _think(self) -> None:
        await self._responder.answer()
