"""
The local engine: a voice engine in this process, reached like one across the network.

`connect` stands where a WebSocket would be opened. What is on the other end listens and speaks through the speech
process, and thinks with whoever the bearer in its settings belongs to.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

from gateway.audio import seconds_of
from gateway.engines import local_codec
from gateway.engines.agent_settings import AgentFunction
from gateway.engines.events import FunctionCall
from gateway.engines.local_codec import Configured, FunctionAnswered, PromptAdded, SayWanted, ThinkReplaced, TurnForced
from gateway.engines.mind import Mind
from gateway.engines.sentences import SentenceSplitter
from gateway.engines.speech_worker import SpeechWorkerClient
from gateway.engines.tts_queue import TtsQueue
from gateway.websocket.interface import NORMAL, Socket, SocketOwner

URL: Final = "local:"
BUSY: Final = "I'm sorry, all lines are busy right now. Please call again in a few minutes. Goodbye."
END_CALL: Final = "end_call"
HEARING: Final = (
    "You hear the caller through a recogniser that is weak at numbers: say every number that the caller gives back to "
    "them, digit by digit, and ask whether it is right."
)
INTERRUPTED: Final = "The caller went on speaking before there was a result."

_log = logging.getLogger(__name__)

FindMind = Callable[[str], Awaitable[Mind | None]]
"""Who thinks for the call with this bearer."""


class LocalEngine:
    """Conversations with callers, as many at a time as the machine can bear."""

    def __init__(self, host: SpeechWorkerClient, find_mind: FindMind, *, most_calls: int) -> None:
        self._host = host
        self._find_mind = find_mind
        self._most_calls = most_calls

    async def connect(
        self, url: str, headers: Mapping[str, str], owner: SocketOwner, *, max_bytes: int, timeout: float
    ) -> Socket:
        """A `Connector`. Raises EngineUnavailable or EngineRefused while nothing can be heard or said."""
        await self._host.ready(timeout)
        is_full = self._host.taken_seats >= self._most_calls
        if is_full:
            _log.warning("local engine is full", extra={"calls": self._most_calls})
        conversation = LocalSession(self._host, self._find_mind, owner, is_full=is_full)
        owner.on_open(conversation)
        return conversation


class LocalSession:
    """
    The engine's end of one call. To its owner it is a socket.

    What it has to say to its owner it says from the loop, never from inside a call of the owner's.
    """

    def __init__(self, host: SpeechWorkerClient, find_mind: FindMind, owner: SocketOwner, *, is_full: bool) -> None:
        self._owner: SocketOwner | None = owner
        self._find_mind = find_mind
        self._is_full = is_full
        self._loop = asyncio.get_running_loop()
        self._speech_channel = host.speech_channel(self)
        self._tts_queue = TtsQueue(
            self._speech_channel,
            lambda: seconds_of(self._heard_bytes),
            tell=lambda text: self._tell(local_codec.agent_said(text)),
            play=self._play,
            done=lambda: self._tell(local_codec.AGENT_AUDIO_DONE),
        )
        self._heard_bytes = 0
        """Sound from the caller's side. It comes as fast as theirs is played, and so tells how far that is."""
        self._mind: Mind | None = None
        self._functions: Sequence[AgentFunction] = ()
        self._messages: list[dict[str, Any]] = []
        self._said: dict[str, Any] | None = None
        """The message that what the agent says now is added to."""
        self._results: dict[str, asyncio.Future[None]] = {}
        self._caller_quiet = asyncio.Event()
        self._caller_quiet.set()
        self._answering: asyncio.Task[None] | None = None
        self._loop.call_soon(self._tell, local_codec.GREETED)

    # The gateway's side: a socket

    def send_binary(self, data: bytes) -> None:
        self._heard_bytes += len(data)
        if not self._is_full:
            self._speech_channel.hear(data)

    def send_text(self, data: bytes) -> None:
        match local_codec.read(data):
            case Configured() as settings:
                self._start(self._begin(settings))
            case PromptAdded(text):
                self._messages[0]["content"] += f"\n{text}"
                self._loop.call_soon(self._tell, local_codec.PROMPT_UPDATED)
            case ThinkReplaced(prompt, functions):
                self._messages[0]["content"] = _instructions(prompt)
                self._functions = functions
                self._loop.call_soon(self._tell, local_codec.THINK_UPDATED)
            case SayWanted(text, instead):
                self._loop.call_soon(self._say_wanted, text, instead)
            case TurnForced():
                self._speech_channel.end_turn()
            case FunctionAnswered(call_id, content):
                if result := self._results.pop(call_id, None):
                    self._note_result(call_id, content)
                    result.set_result(None)
            case None:
                pass

    def close(self, code: int = NORMAL) -> None:
        if self._owner is None:
            return
        owner, self._owner = self._owner, None
        self._speech_channel.leave()
        if self._answering is not None:
            self._answering.cancel()
        self._loop.call_soon(owner.on_closed, code)

    @property
    def buffered_bytes(self) -> int:
        return self._speech_channel.buffered_bytes

    # The speech process's side

    def on_began(self) -> None:
        self._caller_quiet.clear()
        self._tts_queue.hold()
        self._tell(local_codec.USER_STARTED_SPEAKING)

    def on_ended(self, text: str) -> None:
        self._caller_quiet.set()
        self._tell(local_codec.TURN_ENDED)
        if not text:
            self._tts_queue.go_on()  # a cough, a door: the agent need not start again
            return
        self._drop_answer()
        self._tell(local_codec.user_said(text))
        if self._messages[-1]["role"] == "user":  # went on before an answer was heard
            self._messages[-1]["content"] += f" {text}"
        else:
            self._messages.append({"role": "user", "content": text})
        self._start(self._answer())

    def on_sound(self, number: int, audio: bytes) -> None:
        self._tts_queue.sound(number, audio)

    def on_spoken(self, number: int) -> None:
        self._tts_queue.spoken(number)

    def on_speech_broke(self, what: str) -> None:
        """Its owner begins anew, with the conversation so far: the caller hears that, or else an apology."""
        self._tell(local_codec.failed(what))

    def on_speech_lost(self) -> None:
        self.close()

    # The agent

    async def _begin(self, settings: Configured) -> None:
        self._functions = settings.functions
        self._mind = await self._find_mind(settings.bearer)
        if self._mind is None:
            self._tell(local_codec.failed("INVALID_SETTINGS"))
            return
        self._messages = [{"role": "system", "content": _instructions(settings.prompt)}]
        self._messages += [{"role": turn.role, "content": turn.text} for turn in settings.history]
        self._tell(local_codec.SETTINGS_APPLIED)
        if self._is_full:
            self._turn_away()
        elif settings.greeting and self._mind.opens:
            await self._answer(draft=settings.greeting)
        elif settings.greeting:
            for sentence in (*(cut := SentenceSplitter()).feed(settings.greeting), *cut.finish()):
                self._say(sentence)
            self._tts_queue.finish()

    def _turn_away(self) -> None:
        """Say why, and hang up. Nothing is listened to."""
        self._tell(local_codec.functions_requested([FunctionCall("busy", END_CALL, "{}")]))
        self._say(BUSY)
        self._tts_queue.finish()

    async def _answer(self, draft: str = "") -> None:
        """Say what the mind says and do what it wants done, until it is content. A draft is for it to improve."""
        while calls := await self._one_answer(draft):
            await self._caller_quiet.wait()  # who speaks now may be about to say something else
            self._note_calls(calls)
            results = {call.id: self._loop.create_future() for call in calls}
            self._results |= results
            self._tell(local_codec.functions_requested(calls))
            await asyncio.wait(results.values())
        self._tts_queue.finish()

    async def _one_answer(self, draft: str) -> list[FunctionCall]:
        assert self._mind is not None
        sentences, calls = SentenceSplitter(), []
        messages = [dict(message) for message in self._messages]
        messages += [{"role": "assistant", "content": draft}] if draft else []
        answer = self._mind.answer(messages, self._functions)
        try:
            async for piece in answer:
                if isinstance(piece, FunctionCall):
                    calls.append(piece)
                else:
                    for sentence in sentences.feed(piece):
                        self._say(sentence)
        finally:
            await answer.aclose()
        for sentence in sentences.finish():
            self._say(sentence)
        return calls

    def _say(self, sentence: str) -> None:
        if self._said is None:
            self._said = {"role": "assistant", "content": ""}
            self._messages.append(self._said)
        self._said["content"] = f"{self._said['content'] or ''} {sentence}".strip()
        self._tts_queue.say(sentence)

    def _say_wanted(self, text: str, instead: bool) -> None:
        if not self._caller_quiet.is_set():
            self._tell(local_codec.INJECTION_REFUSED)
            return
        if instead:
            self._tts_queue.hold()
            self._drop_answer()
        self._messages.append({"role": "assistant", "content": text})
        self._tts_queue.say(text, is_last=True)

    def _drop_answer(self) -> None:
        """Something else counts now: what the caller did not hear was not said."""
        if self._answering is not None:
            self._answering.cancel()
        unheard = self._tts_queue.drop()
        said, self._said = self._said, None
        if said is not None and unheard:
            for sentence in reversed(unheard):
                said["content"] = said["content"].removesuffix(sentence).rstrip()
            if not said["content"]:
                self._messages.remove(said)
        for call_id in list(self._results):
            self._results.pop(call_id).cancel()
            self._note_result(call_id, INTERRUPTED)

    def _note_calls(self, calls: list[FunctionCall]) -> None:
        if self._said is None:
            self._said = {"role": "assistant", "content": None}
            self._messages.append(self._said)
        self._said["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments or "{}"}}
            for call in calls
        ]
        self._said = None

    def _note_result(self, call_id: str, content: str) -> None:
        self._messages.append({"role": "tool", "tool_call_id": call_id, "content": content})

    # Itself

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._answering = self._loop.create_task(work, name="local agent")
        self._answering.add_done_callback(self._look_at_end)

    def _look_at_end(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()):
            _log.error("local engine failed", exc_info=error)
            self._tell(local_codec.failed("LOCAL_ENGINE_FAILED"))

    def _tell(self, frame: bytes) -> None:
        if self._owner is not None:
            self._owner.on_text(frame)

    def _play(self, audio: bytes) -> None:
        if self._owner is not None:
            self._owner.on_binary(audio)


def _instructions(prompt: str) -> str:
    return f"{prompt}\n\n{HEARING}"
