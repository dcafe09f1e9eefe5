"""
The cascade engine: a recogniser, the agent's language model and a voice. With local parts it is the local engine.

A session turns recognised speech into chat requests and the streamed answer into sentences to speak. It keeps the
conversation itself, and removes from it what the caller did not hear.
"""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from contextlib import aclosing
from typing import Any, Final

from gateway.agents import Agent
from gateway.audio import BYTES_PER_SECOND, seconds_of
from gateway.engines import interface as engine
from gateway.engines.deepgram_codec import DeepgramCodec
from gateway.engines.interface import AgentAudioOutput, AgentSettings, EngineEvent, EngineEvents, FunctionCall
from gateway.engines.speech_parts import RecogniserService, RecogniserStream, SpeechListener, VoiceService, VoiceStream
from gateway.engines.tts_queue import SentenceSplitter, TtsQueue
from gateway.errors import EngineError, EngineRefused, EngineUnavailable, GatewayError
from gateway.llm.chat import ChatRequest, LanguageModel, ModelName, TextDelta, ToolCallDelta
from gateway.text.turn_taking import is_backchannel

BUSY: Final = "I'm sorry, all lines are busy right now. Please call again in a few minutes. Goodbye."
END_CALL: Final = "end_call"
INTERRUPTED: Final = "The caller went on speaking before there was a result."

_log = logging.getLogger(__name__)


class CascadeEngine:
    """Sessions with these parts. If a part has no room, the caller is told that all lines are busy."""

    has_llm = False

    def __init__(self, name: str, recogniser: RecogniserService, voice: VoiceService) -> None:
        self.name = name
        self.recogniser = recogniser
        self.voice = voice
        self._services = tuple(dict.fromkeys((recogniser, voice)))

    def own_model(self, agent: Agent) -> ModelName | None:
        return None

    async def connect(self, load_settings: engine.LoadSettings, events: EngineEvents) -> engine.EngineSession:
        is_full = any(service.is_full for service in self._services)
        session = CascadeSession(self.name, self.recogniser.hearing, events)
        try:
            recogniser, voice = await self._open_parts(session)
            session.attach(recogniser, voice)
            session.start(await load_settings(), is_full=is_full)
        except BaseException:
            session.close()
            raise
        return session

    async def _open_parts(self, session: SpeechListener) -> tuple[RecogniserStream, VoiceStream]:
        """Both at the same time. Where one fails, the other is closed."""
        listening = asyncio.ensure_future(self.recogniser.open_recogniser(session))
        speaking = asyncio.ensure_future(self.voice.open_voice(session))
        try:
            return await asyncio.gather(listening, speaking)
        except BaseException:
            for opening in (listening, speaking):
                opening.cancel()
                opening.add_done_callback(_close_opened)
            raise

    @property
    def is_ready(self) -> bool:
        return all(service.is_ready for service in self._services)

    async def probe(self) -> str:
        found, problems = [], []
        for service in self._services:
            try:
                found.append(await service.probe())
            except GatewayError as error:
                problems.append(str(error))
        if problems:
            raise EngineUnavailable("; ".join(problems))
        return "; ".join(found)

    def health(self) -> dict[str, str]:
        fields = {"engine": self.name}
        for service in self._services:
            fields |= service.health()
        return fields

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for service in self._services:
                tasks.create_task(service.run(), name=service.name)


def _close_opened(opening: "asyncio.Future[RecogniserStream] | asyncio.Future[VoiceStream]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


class CascadeSession:
    """
    One call: the dialogue between recogniser, language model and voice.

    Commands of the call never emit an event before they return: what they cause is emitted from the event loop.
    """

    def __init__(self, name: str, hearing: str, events: EngineEvents) -> None:
        self._name = name
        self._hearing = hearing
        self._events: EngineEvents | None = events
        self._recorder = events.recorder
        self._recording = DeepgramCodec()
        """Recordings hold Deepgram messages, whichever engine took the call."""
        self._output = AgentAudioOutput(events, name)
        self._loop = asyncio.get_running_loop()
        self._recogniser: RecogniserStream | None = None
        self._voice: VoiceStream | None = None
        self._tts_queue: TtsQueue
        self._heard_bytes = 0
        """Audio received from the caller. It arrives at playout speed, so it serves as the playout clock."""
        self._is_full = False
        self._llm: LanguageModel
        self._functions: Sequence[engine.AgentFunction] = ()
        self._messages: list[dict[str, Any]] = []
        self._answer_message: dict[str, Any] | None = None
        """The message to which the current answer is added."""
        self._results: dict[str, asyncio.Future[None]] = {}
        self._caller_silent = asyncio.Event()
        self._caller_silent.set()
        self._answering: asyncio.Task[None] | None = None
        self._agent: Agent
        self._over_agent = False
        """Whether the caller is speaking while the agent goes on."""
        self._unanswered = ""
        """What the caller said during an answer that nothing interrupts."""

    def attach(self, recogniser: RecogniserStream, voice: VoiceStream) -> None:
        """The streams of this call, which `close` closes."""
        self._recogniser = recogniser
        self._voice = voice
        self._tts_queue = TtsQueue(
            voice,
            lambda: seconds_of(self._heard_bytes),
            on_text=lambda text: self._emit(engine.AgentSaid(text)),
            on_word_ends=lambda ends: self._emit(engine.WordsTimed(ends)),
            on_audio=self._output.send,
            on_done=self._answer_sent,
        )

    def start(self, settings: AgentSettings, *, is_full: bool) -> None:
        """Begin the conversation. `is_full`: say that all lines are busy, and hang up."""
        if settings.llm is None:
            raise EngineRefused(f"the engine {self._name} needs a language model")
        self._agent = settings.agent
        if self._events is not None:
            self._recorder = self._events.recorder
            self._output.bind(self._events)
        self._llm = settings.llm.model
        self._functions = settings.functions
        self._is_full = is_full
        self._messages = [{"role": "system", "content": self._instructions(settings.prompt)}]
        for item in settings.history:
            if isinstance(item, engine.HistoryMessage):
                self._messages.append({"role": item.role, "content": item.text})
        self._emit(engine.EngineGreeted(self._name))
        self._recorder.to_engine(self._recording.settings(settings))
        if self._recogniser is not None and settings.keyterms:
            self._recogniser.set_keyterms(settings.keyterms)
        if self._recogniser is not None and settings.agent.patience != "normal":
            self._recogniser.set_patience(settings.agent.patience)
        self._run(self._open(settings))

    # EngineSession

    @property
    def buffered_bytes(self) -> int:
        return self._recogniser.buffered_bytes if self._recogniser is not None else 0

    def send_audio(self, audio: bytes) -> None:
        self.send_silence(audio)
        self._recorder.audio_to_engine(audio)

    def send_silence(self, audio: bytes) -> None:
        self._heard_bytes += len(audio)
        if self._recogniser is not None and not self._is_full:
            self._recogniser.send_audio(audio)

    def say(self, text: str, *, interrupt: bool = False) -> None:
        self._recorder.to_engine(self._recording.say(text, interrupt=interrupt))
        self._loop.call_soon(self._say_injected, text, interrupt)

    def update_instructions(self, text: str) -> None:
        self._recorder.to_engine(self._recording.update_instructions(text))
        self._messages[0]["content"] += f"\n{text}"
        self._loop.call_soon(self._emit, engine.PromptUpdated())

    def replace_settings(self, settings: AgentSettings) -> None:
        self._recorder.to_engine(self._recording.replace_settings(settings))
        self._messages[0]["content"] = self._instructions(settings.prompt)
        self._functions = settings.functions

    def truncate(self, unheard_ms: int) -> None:
        if self._over_agent:  # the call has cut the agent off by now
            self._over_agent = False
            self._tts_queue.hold()
        self._tts_queue.truncate(unheard_ms * BYTES_PER_SECOND // 1000)

    def end_user_turn(self) -> None:
        self._recorder.to_engine(self._recording.end_user_turn())
        if self._recogniser is not None:
            self._recogniser.end_turn()

    def expect_dictation(self, expected: bool) -> None:
        if (frame := self._recording.expect_dictation(expected)) is not None:
            self._recorder.to_engine(frame)
        if self._recogniser is not None:
            self._recogniser.set_patience("dictation" if expected else self._agent.patience)

    def answer_tool(self, call_id: str, result: str) -> None:
        if answered := self._results.pop(call_id, None):
            if (frame := self._recording.answer_tool(call_id, result)) is not None:
                self._recorder.to_engine(frame)
            self._add_result(call_id, result)
            answered.set_result(None)

    def close(self) -> None:
        self._events = None
        self._output.close()
        for part in (self._recogniser, self._voice):
            if part is not None:
                part.close()
        if self._answering is not None:
            self._answering.cancel()

    # SpeechListener

    def on_speech_started(self) -> None:
        if not self._messages:
            return  # the call has not begun
        self._caller_silent.clear()
        self._over_agent = self._agent.interrupt != "at_once" and self._tts_queue.is_speaking
        if not self._over_agent:
            self._tts_queue.hold()
        self._emit(engine.UserStartedSpeaking(self._over_agent))

    def on_speech_ended(self, text: str) -> None:
        if not self._messages:
            return
        self._caller_silent.set()
        queue, setting = self._tts_queue, self._agent.interrupt
        over_agent, self._over_agent = self._over_agent and queue.is_speaking, False
        goes_on = not text or (
            is_backchannel(text, self._agent.language) and queue.is_unfinished and not queue.is_asking
        )
        self._emit(engine.TurnEnded())
        if goes_on:  # a cough, a door or "mm-hm": also an answer that was interrupted goes on
            if text:
                self._emit(engine.UserSaid(text))
            queue.resume()
        elif over_agent and setting == "never":
            self._unanswered = f"{self._unanswered} {text}".strip()
            self._answer_unanswered()
        else:
            if over_agent:
                queue.hold()
            self._answer_caller(text)

    def _answer_sent(self) -> None:
        self._emit(engine.AgentAudioDone())
        self._loop.call_soon(self._answer_unanswered)

    def _answer_unanswered(self) -> None:
        """Answer what the caller said during an answer that nothing interrupts, once all of that was sent."""
        if self._unanswered and self._tts_queue.is_sent and self._events is not None:
            self._answer_caller("")

    def _answer_caller(self, text: str) -> None:
        text, self._unanswered = f"{self._unanswered} {text}".strip(), ""
        self._emit(engine.UserSaid(text))
        self._drop_answer()
        if self._messages[-1]["role"] == "user":  # the caller went on before any answer was heard
            self._messages[-1]["content"] += f" {text}"
        else:
            self._messages.append({"role": "user", "content": text})
        self._run(self._answer())

    def on_audio(self, number: int, audio: bytes) -> None:
        self._tts_queue.receive_audio(number, audio)

    def on_word_ends(self, number: int, ends: Sequence[engine.WordEnd]) -> None:
        self._tts_queue.receive_word_ends(number, ends)

    def on_spoken(self, number: int) -> None:
        self._tts_queue.receive_end(number)

    def on_speech_failed(self, problem: str, *, retryable: bool = True) -> None:
        """End the session. The call opens another one with the conversation so far."""
        self._emit(engine.EngineFailed(problem, retryable=retryable))
        kind = EngineUnavailable if retryable else EngineRefused
        self._end(kind(f"the engine gave up: {problem}"))

    # The agent

    async def _open(self, settings: AgentSettings) -> None:
        greeting = settings.greeting
        self._emit(engine.SettingsApplied())
        if self._is_full:
            # Requested before the text, so that the call hangs up after it was played.
            self._emit(engine.FunctionsRequested((FunctionCall("busy", END_CALL, "{}"),)))
            self._say(BUSY)
            self._tts_queue.finish()
        elif greeting and self._llm.opens and not settings.agent.consent.require:  # it would add to the question
            await self._answer(draft=greeting)
        elif greeting:
            splitter = SentenceSplitter()
            for sentence in (*splitter.feed(greeting), *splitter.finish()):
                self._say(sentence)
            self._tts_queue.finish()

    async def _answer(self, draft: str = "") -> None:
        """Speak the model's answer and have its function calls run, until it calls no more functions."""
        while calls := await self._stream_answer(draft):
            await self._caller_silent.wait()  # who is speaking may be about to ask for something else
            message, self._answer_message = self._answer_message, None
            if message is None:
                message = {"role": "assistant", "content": None}
                self._messages.append(message)
            message["tool_calls"] = [
                {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.arguments or "{}"}}
                for one in calls
            ]
            results = {call.id: self._loop.create_future() for call in calls}
            self._results |= results
            self._emit(engine.FunctionsRequested(tuple(calls)))
            await asyncio.wait(results.values())
        self._tts_queue.finish()

    async def _stream_answer(self, draft: str) -> list[FunctionCall]:
        """Ask the model once, and speak each sentence as soon as it is complete. Returns the functions it calls."""
        splitter = SentenceSplitter()
        calls: dict[int, FunctionCall] = {}
        messages = [dict(message) for message in self._messages]
        messages += [{"role": "assistant", "content": draft}] if draft else []
        request = ChatRequest(tuple(messages), tools=tuple(map(_tool, self._functions)))
        async with aclosing(self._llm.answer(request)) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    for sentence in splitter.feed(event.text):
                        self._say(sentence)
                elif isinstance(event, ToolCallDelta):
                    call = calls.get(event.index) or FunctionCall(event.id, event.name, "")
                    calls[event.index] = FunctionCall(call.id, call.name, call.arguments + event.arguments)
        for sentence in splitter.finish():
            self._say(sentence)
        return list(calls.values())

    def _say(self, sentence: str) -> None:
        if self._answer_message is None:
            self._answer_message = {"role": "assistant", "content": ""}
            self._messages.append(self._answer_message)
        self._answer_message["content"] = f"{self._answer_message['content'] or ''} {sentence}".strip()
        self._tts_queue.say(sentence)

    def _say_injected(self, text: str, interrupt: bool) -> None:
        if not self._caller_silent.is_set():
            self._emit(engine.InjectionRefused())
            return
        if interrupt:
            self._tts_queue.hold()
            self._drop_answer()
        self._messages.append({"role": "assistant", "content": text})
        self._tts_queue.say(text, is_last=True)

    def _drop_answer(self) -> None:
        """Cancel the current answer, and remove the unheard part of it from the conversation."""
        if self._answering is not None:
            self._answering.cancel()
        unheard = self._tts_queue.drop()
        message, self._answer_message = self._answer_message, None
        if message is not None and unheard:
            for sentence in reversed(unheard):
                message["content"] = message["content"].removesuffix(sentence).rstrip()
            if not message["content"]:
                self._messages.remove(message)
        for call_id in list(self._results):
            self._results.pop(call_id).cancel()
            self._add_result(call_id, INTERRUPTED)

    def _instructions(self, prompt: str) -> str:
        return f"{prompt}\n\n{self._hearing}" if self._hearing else prompt

    def _add_result(self, call_id: str, result: str) -> None:
        self._messages.append({"role": "tool", "tool_call_id": call_id, "content": result})

    # Tasks and events

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        def check_result(task: "asyncio.Task[None]") -> None:
            if not task.cancelled() and (error := task.exception()):
                _log.error("dialogue failed", exc_info=error)
                self.on_speech_failed("DIALOGUE_FAILED")

        self._answering = self._loop.create_task(work, name="dialogue")
        self._answering.add_done_callback(check_result)

    def _emit(self, event: EngineEvent) -> None:
        if self._events is not None:
            self._recorder.from_engine(self._recording.encode(event))
            self._events.on_engine_event(event)

    def _end(self, error: EngineError) -> None:
        events = self._events
        self.close()
        if events is not None:
            events.on_engine_closed(error)


def _tool(function: engine.AgentFunction) -> dict[str, object]:
    description = {"name": function.name, "description": function.description, "parameters": function.parameters}
    return {"type": "function", "function": description}
