"""
What a test lets the simulated Voice Agent do: turns of the caller, speech of the agent, functions, failures.

Frames follow the documented order; `Behaviour` switches between the variants that live servers show.
"""

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any, Literal

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from tests.fakes.deepgram_functions import Functions
from tests.fakes.deepgram_speech import SIZES, frames, sentences, speech, with_sound
from tests.fakes.deepgram_wire import Wire

LATE_AUDIO = speech("too late for this answer")
LATE_TEXT = "One more sentence, too late."

Answer = str | Callable[["Dialogue"], Any]
"""The agent's answer, or a function of the conversation that returns it, perhaps async or after function calls."""


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """Behaviour in which real servers differ, and scripted answers."""

    welcome: bool = True
    settings_delay: float = 0.0
    hold_settings: bool = False
    idle_timeout: float = 10.0
    text_first: bool = True
    end_of_turn: bool = True
    latency_reports: bool = True
    refusal: Literal["message", "bare", "warning"] = "message"
    echo_functions: bool = False
    speech_rate: float | None = None
    """Seconds of speech sent per second; None for all at once."""
    listen_by_energy: bool = False
    turns: Sequence[str | None] = ()
    """Transcripts of the caller's loud audio, in order; None for no transcription."""
    script: Mapping[str, Answer] = field(default_factory=dict)
    managed_answer: str | None = None
    """The managed LLM's answer to anything not in the script; None if the test answers."""
    think: Literal["plain", "duplicate", "speculative"] = "plain"
    think_pause: float = 0.0
    slow_think_after: float = 5.0


class State(Enum):
    CONNECTED = auto()
    CONFIGURING = auto()
    READY = auto()
    FAILED = auto()


class Dialogue(Wire):
    """The state of a conversation, and methods to speak as caller or agent."""

    def __init__(self, socket: ServerConnection, behaviour: Behaviour) -> None:
        super().__init__(socket)
        self.behaviour = behaviour
        self.state = State.CONNECTED
        self.settings: dict[str, Any] | None = None
        self.agent: dict[str, Any] = {}
        """The current agent block: Settings with later updates."""
        self.history: list[dict[str, Any]] = []
        self.functions = Functions()
        self.turns = deque(behaviour.turns)
        self.user_speaking = False
        self.agent_speaking = False
        self.voice = asyncio.Lock()
        self.interruptions = 0
        self._answering: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._group: asyncio.TaskGroup

    @property
    def thinks(self) -> list[dict[str, Any]]:
        """The current think block as a list."""
        think = self.agent.get("think", [])
        return think if isinstance(think, list) else [think]

    @property
    def prompt(self) -> str:
        """The current prompt: UpdatePrompt appends to it, UpdateThink replaces it."""
        return next((str(think.get("prompt", "")) for think in self.thinks), "")

    @property
    def answering(self) -> bool:
        """Whether an answer is being generated or spoken."""
        return self._answering is not None and not self._answering.done()

    def behave(self, **behaviour: Any) -> None:
        """Change the behaviour during the conversation."""
        self.behaviour = replace(self.behaviour, **behaviour)

    # The caller

    async def user_says(self, text: str) -> None:
        """One complete turn of the caller, and the answer to it."""
        async with self.voice:  # the turn begins after the agent's current audio was sent
            if not self.user_speaking:
                await self.user_starts_speaking()
        await self.end_turn(text)

    async def user_starts_speaking(self) -> None:
        """The caller starts to speak: the agent's answer is cancelled."""
        if speculative := self._speculative_calls():
            await self.cancel_functions(speculative)
        self.user_speaking = True
        self.interrupt()
        await self.send({"type": "UserStartedSpeaking"})
        await self.report(stt_latency=0.02)

    async def barge_in(
        self, *, late_audio: bytes = LATE_AUDIO, late_text: str | None = LATE_TEXT, audio_done: bool = False
    ) -> None:
        """Barge-in: parts of the cancelled answer still arrive."""
        await self.user_starts_speaking()
        for frame in frames(late_audio, (160,)):
            await self.send_audio(frame)
        if late_text is not None:
            await self.send_conversation_text("assistant", late_text)
        if audio_done:
            await self.send({"type": "AgentAudioDone"})

    async def end_turn(self, text: str, trigger: str = "eot_threshold") -> None:
        """End the caller's turn with this text, and answer it."""
        self.user_speaking = False
        if self.behaviour.end_of_turn:
            await self.send({"type": "EndOfTurn", "trigger": trigger})
        await self.send_conversation_text("user", text)
        await self.add_history({"type": "History", "role": "user", "content": text})
        if self.closed is None:
            self._answering = self.spawn(self._answer(text))
            await asyncio.wait({self._answering})

    def interrupt(self) -> None:
        """Cancel the agent's answer."""
        self.interruptions += 1
        self.agent_speaking = False
        if self._answering is not None and self._answering is not asyncio.current_task():
            self._answering.cancel()

    # The agent

    async def agent_says(
        self,
        text: str,
        *,
        audio: bytes | None = None,
        sizes: Sequence[int] = SIZES,
        done: bool = True,
        text_first: bool | None = None,
    ) -> None:
        """Speak sentence by sentence. `done` false leaves the utterance open."""
        async with self.voice:
            utterance = Utterance(self, sizes=sizes, text_first=text_first)
            for sentence, sound in with_sound(sentences(text.strip()), audio):
                await utterance.say(sentence, sound)
            await utterance.end(done=done)

    async def agent_audio_done(self) -> None:
        """End an open utterance."""
        self.agent_speaking = False
        await self.send({"type": "AgentAudioDone"})

    async def _answer(self, text: str) -> None:
        answer: Any = self.behaviour.script.get(text)
        if answer is None:
            await self._think()
            return
        if callable(answer):
            answer = answer(self)
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            await self.agent_says(answer)

    async def _think(self) -> None:
        """Answer what is not in the script. Implemented by the conversation."""
        raise NotImplementedError

    # Functions

    async def call_functions(self, calls: Sequence[str | dict[str, Any]], *, timeout: float = 60.0) -> list[str]:
        """
        Ask the client to run functions; the contents of the responses, in the order asked, cancelled ones left out.

        A call is a name, or an object with any of name, arguments (text or value), id, client_side, response (what
        the server's own call gave) and thought_signature.
        """
        ids = await self.request_functions(calls)
        try:
            await self.until(lambda: not set(ids) & set(self.functions.pending()), timeout=timeout)
        except TimeoutError:
            self.problems += [f"function call {call_id} was not answered" for call_id in self.functions.pending()]
            raise
        answered = self.functions.answered(ids)
        if answered:
            await self.add_history({"type": "History", "function_calls": answered})
        return [call["response"] for call in answered]

    async def request_functions(self, calls: Sequence[str | dict[str, Any]]) -> list[str]:
        """Send the request without waiting. Returns the call ids. Results of server-side calls follow it."""
        functions = [self.functions.ask(call) for call in calls]
        await self.send({"type": "FunctionCallRequest", "functions": functions})
        for call in self.functions.answered([function["id"] for function in functions]):
            response = {"id": call["id"], "name": call["name"], "content": call["response"]}
            await self.send({"type": "FunctionCallResponse", **response})
        return [function["id"] for function in functions]

    async def cancel_functions(self, call_ids: Sequence[str]) -> None:
        """Cancel calls of a wrong speculation."""
        functions = [{"id": call_id, "name": self.functions.calls[call_id]["name"]} for call_id in call_ids]
        self.functions.cancelled.update(call_ids)
        await self.send({"type": "FunctionCallCancelled", "functions": functions})
        self._changed()

    def _speculative_calls(self) -> list[str]:
        """Calls of the current answer that do not wait for the end of the turn."""
        functions = [function for think in self.thinks for function in think.get("functions", [])]
        deferred = {function["name"] for function in functions if function.get("defer_until_eot")}
        pending = self.functions.pending() if self.answering else []
        return [call_id for call_id in pending if self.functions.calls[call_id]["name"] not in deferred]

    # Shared messages

    async def fail(self, code: str, description: str = "Something went wrong.", *, close: int | None = 1011) -> None:
        """Send an Error and close, as real servers do."""
        self.state = State.FAILED
        self.interrupt()
        await self.send({"type": "Error", "code": code, "description": description})
        if close is not None and not self.hung:
            await self.close(close)

    async def warn(self, code: str, description: str = "Going on.") -> None:
        """Send a Warning; the conversation continues."""
        await self.send({"type": "Warning", "code": code, "description": description})

    async def send_conversation_text(self, role: str, text: str) -> None:
        """Send a ConversationText without an entry in the history."""
        message = {"type": "ConversationText", "role": role, "content": text, "conversational_behavior": "default"}
        await self.send(message)

    async def add_history(self, item: dict[str, Any]) -> None:
        """Add to the history, and send it to the client unless disabled."""
        self.history.append(item)
        if self.settings is not None and self.settings.get("flags", {}).get("history", True):
            await self.send(item)

    async def report(self, **latencies: float) -> None:
        """Real servers send one figure per report."""
        for name, seconds in latencies.items() if self.behaviour.latency_reports else ():
            await self.send({"type": "LatencyReport", name: seconds})

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task that ends with the conversation at the latest."""
        task = self._group.create_task(_until_closed(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: work.close())  # it may have been cancelled before it began
        return task


class Utterance:
    """One utterance of the agent. After a barge-in no more of it is sent."""

    def __init__(self, dialogue: Dialogue, *, sizes: Sequence[int] = SIZES, text_first: bool | None = None) -> None:
        self.text = ""
        self._dialogue = dialogue
        self._sizes = sizes
        self._text_first = dialogue.behaviour.text_first if text_first is None else text_first
        self._interruptions = dialogue.interruptions

    @property
    def cut(self) -> bool:
        return self._dialogue.interruptions != self._interruptions

    async def say(self, sentence: str, audio: bytes) -> None:
        """One sentence: its complete text, then its audio."""
        if self.cut:
            return
        self._dialogue.agent_speaking = True
        self.text = f"{self.text} {sentence}".strip()
        if self._text_first:
            await self._dialogue.send_conversation_text("assistant", sentence)
        await self._sound(audio)
        if not self._text_first and not self.cut:
            await self._dialogue.send_conversation_text("assistant", sentence)

    async def _sound(self, audio: bytes) -> None:
        rate = self._dialogue.behaviour.speech_rate
        for frame in frames(audio, self._sizes):
            if self.cut:
                return
            await self._dialogue.send_audio(frame)
            await asyncio.sleep(len(frame) / 8000 / rate if rate else 0)

    async def end(self, *, done: bool = True) -> None:
        """Add the spoken sentences to the history; AgentAudioDone follows only without a barge-in."""
        if self.text:
            await self._dialogue.add_history({"type": "History", "role": "assistant", "content": self.text})
        if not self.cut:
            await self._dialogue.report(tts_latency=0.1, total_latency=0.6)
            if done:
                await self._dialogue.agent_audio_done()


async def _until_closed(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that a closed socket may end."""
    with suppress(ConnectionClosed):
        await work
