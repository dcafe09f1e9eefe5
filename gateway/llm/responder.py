"""
Answers of an agent's language models in one call, as its voice engine requests them.

Engines send requests ahead of time, send the same request twice at once, and drop answers that they no longer need. The
caller always hears an answer: if a model is slow or fails, the next one is asked, and errors are never spoken.
"""

import asyncio
import hashlib
import hmac
import itertools
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext, suppress
from dataclasses import replace
from math import inf
from typing import Any, Final, Literal, Protocol

from gateway.errors import LlmError, LlmRefused, StoreError
from gateway.llm.agent_llm import RECALL_SECONDS, AgentLlm
from gateway.llm.chat import (
    LONGEST_SILENCE,
    ChatEvent,
    ChatRequest,
    Finished,
    Message,
    ModelAttempt,
    ModelName,
    TextDelta,
    ToolCallDelta,
    Upstream,
    Usage,
)
from gateway.logs import current_call, set_call
from gateway.memory.recall import render_known
from gateway.settings import Secret
from gateway.text.plain_text import SpokenLine
from gateway.text.redaction import redact_lines
from gateway.text.spoken_text import SpokenText, load_rules

KEPT_SECONDS: Final = 1.0
"""How long a complete answer is used for equal requests."""
SEARCH_SECONDS: Final = 5.0
BUDGET_TOKENS: Final = 250
MOST_ROUNDS: Final = 6
"""Requests to the model for one answer; after each but the last, tools of ours may run."""

_SPEAKERS: Final[Mapping[str, Literal["caller", "agent"]]] = {"user": "caller", "assistant": "agent"}

_log = logging.getLogger(__name__)

Put = Callable[[ChatEvent], None]
Report = Callable[[ModelAttempt], None]


class LatencyObserver(Protocol):
    """
    Notified of requests to a model and of the first text of each answer, in time.monotonic seconds, and of the words
    that are said before an answer because the model is slow.
    """

    def llm_request(self, at: float) -> None: ...

    def first_token(self, at: float) -> None: ...

    def one_moment(self, text: str) -> None: ...


ReplyTo = Callable[[str], Awaitable[str]]
"""Returns the call's own reply to these words of the caller; empty to let the language model answer."""


class _NoObserver:
    def llm_request(self, at: float) -> None: ...
    def first_token(self, at: float) -> None: ...
    def one_moment(self, text: str) -> None: ...


async def _no_reply(said: str) -> str:
    return ""


Search = Callable[[str], Awaitable[list[str]]]
"""Returns memory that fits these words, the best first. May raise StoreError."""


class NoRecall:
    """For a call that uses no memory."""

    async def about(self, said: str) -> str:
        return ""

    def forget(self) -> None: ...
    def close(self) -> None: ...


NO_RECALL: Final = NoRecall()


class AnswerTools(Protocol):
    """Our own tools in one answer, which the engine does not see."""

    @property
    def definitions(self) -> tuple[Mapping[str, Any], ...]:
        """In OpenAI's format."""

    @property
    def last_call(self) -> ToolCallDelta | None:
        """The engine's tool that has to be called after the answer, since a tool of ours wants it."""

    async def run(self, calls: Sequence[ToolCallDelta]) -> list[str]:
        """The result of each call. `calls` are complete."""
        ...


class OwnTools(Protocol):
    """Tools that run within answers."""

    def open(self, request: ChatRequest, say: Callable[[str], None]) -> AbstractAsyncContextManager[AnswerTools]:
        """For the answer to `request`. Leaving it stops what still runs."""
        ...


class NoOwnTools:
    """Where the engine has all tools run."""

    definitions: tuple[Mapping[str, Any], ...] = ()
    last_call = None

    def open(self, request: ChatRequest, say: Callable[[str], None]) -> AbstractAsyncContextManager[AnswerTools]:
        return nullcontext(self)

    async def run(self, calls: Sequence[ToolCallDelta]) -> list[str]:
        return []


NO_OWN_TOOLS: Final = NoOwnTools()


def hashed_caller(agent: str, caller: str, secret: Secret) -> str:
    """An opaque identifier of agent and caller, for providers that store conversations; "" for an unknown caller."""
    if not caller:
        return ""
    return hmac.new(secret.reveal().encode(), f"{agent} {caller}".encode(), hashlib.sha256).hexdigest()[:32]


class Responder:
    """Answers the requests of one call. `caller_key`: see `hashed_caller`."""

    def __init__(
        self,
        agent: str,
        caller_key: str,
        llm: AgentLlm,
        *,
        memory: "TurnRecall | NoRecall" = NO_RECALL,
        tools: OwnTools = NO_OWN_TOOLS,
        longest_silence: float = LONGEST_SILENCE,
        kept_seconds: float = KEPT_SECONDS,
    ) -> None:
        self.agent = agent
        self.caller_key = caller_key
        self._llm = llm
        self._memory = memory
        self._tools = tools
        self._observer: LatencyObserver = _NoObserver()
        self._report: Report = lambda attempt: None
        self._longest_silence = longest_silence
        self._kept_seconds = kept_seconds
        self._answers: list[_SharedAnswer] = []
        self._call = current_call()
        self._reply_to: ReplyTo = _no_reply
        self._usage: dict[str, int] = {}

    @property
    def name(self) -> ModelName:
        return _name(self._llm.upstreams[0])

    @property
    def opens(self) -> bool:
        """Whether the greeting is its own."""
        return self._llm.opens

    def answer(self, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        """
        Speakable text and complete tool calls, possibly Usage, and always Finished as the last event.

        Close it to drop it. Equal requests share one answer; it is cancelled when the last of them is dropped.
        """
        oldest = time.monotonic() - self._kept_seconds
        self._answers = [answer for answer in self._answers if answer.ended_at > oldest]
        equal = [answer for answer in self._answers if answer.request == request and not answer.is_dropped]
        if not equal:
            equal = [_SharedAnswer(request, lambda put: self._respond(request, put))]
            self._answers += equal
        return equal[0].read()

    def observe_latency(self, observer: LatencyObserver) -> None:
        self._observer = observer

    def report_attempts(self, report: Report) -> None:
        """Call this for each model that was asked, when its request is over."""
        self._report = report

    def count_usage(self, usage: dict[str, int]) -> None:
        """Add the tokens of every answer to `usage`."""
        self._usage = usage

    def override_replies(self, reply_to: ReplyTo) -> None:
        self._reply_to = reply_to

    def forget(self) -> None:
        """Drop the memory found so far: it is another person's, or was erased."""
        self._memory.forget()

    def close(self) -> None:
        """The call has ended: cancel its answers."""
        for answer in self._answers:
            answer.cancel()
        self._memory.close()

    async def _respond(self, request: ChatRequest, put: Put) -> None:
        if self._call:  # the engine's request arrives on a connection of its own
            set_call(self._call)
        users = [message["content"] for message in request.messages if message["role"] == "user"]
        last_words = (users[-1] if users else "") or ""
        if request.messages[-1]["role"] == "user" and (reply := await self._reply_to(last_words)):
            put(TextDelta(reply))
            return
        self._observer.llm_request(time.monotonic())

        def put_counted(event: ChatEvent) -> None:
            if isinstance(event, Usage):
                for name, tokens in (("input", event.prompt_tokens), ("output", event.completion_tokens)):
                    self._usage[f"{name}_tokens"] = self._usage.get(f"{name}_tokens", 0) + tokens
            put(event)

        races: list[_FallbackRace] = []
        try:
            # Off the event loop: a long conversation takes some milliseconds.
            sent = await asyncio.to_thread(_redacted, request) if self._llm.redacts else request
            sent = replace(sent, memory=await self._memory.about(last_words))
            async with self._tools.open(request, lambda said: put(TextDelta(f"{said} "))) as tools:
                await self._ask(sent, tools, put_counted, races)
        except Exception:
            # The edge of a request: the caller gets an apology instead.
            _log.exception("answer failed", extra={"agent": self.agent})
        if not races or not races[-1].has_answered:
            put(TextDelta(self._llm.sorry))
        elif races[-1].broke_off:
            put(TextDelta(f"{races[-1].stop} {self._llm.sorry}"))

    async def _ask(self, request: ChatRequest, tools: AnswerTools, put: Put, races: "list[_FallbackRace]") -> None:
        """Ask the models, run the tools of ours that they call, and ask again with the results."""
        llm, offered = self._llm, (*request.tools, *tools.definitions)
        answer = _Answer(request, tools, put)
        for left in reversed(range(MOST_ROUNDS)):
            if not left:
                request = replace(request, tool_choice="none")
            race = _FallbackRace(
                llm, self.caller_key, answer.put, self._observer, self._report, longest_silence=self._longest_silence
            )
            races.append(race)
            await race.run(replace(request, tools=offered))
            text, calls = answer.take_round()
            if not calls:
                return
            one_moment = "" if answer.has_text else llm.one_moment
            loop = asyncio.get_running_loop()
            filler = loop.call_later(llm.first_token_seconds, answer.say, f"{one_moment} " if one_moment else "")
            try:
                results = await tools.run(calls)
            finally:
                filler.cancel()
            if answer.other_calls:
                answer.put(Finished("tool_calls"))
                return
            messages = (*request.messages, *_tool_messages(text, calls, results))
            request = replace(request, messages=messages, tool_choice=None)
            llm = replace(llm, one_moment="" if answer.has_text else llm.one_moment)  # once is enough


def _tool_messages(text: str, calls: Sequence[ToolCallDelta], results: Sequence[str]) -> list[Message]:
    functions = [{"name": call.name, "arguments": call.arguments or "{}"} for call in calls]
    asked = [
        {"id": call.id, "type": "function", "function": function}
        for call, function in zip(calls, functions, strict=True)
    ]
    answers = zip(calls, results, strict=True)
    return [
        {"role": "assistant", "content": text or None, "tool_calls": asked},
        *({"role": "tool", "tool_call_id": call.id, "content": result} for call, result in answers),
    ]


class _Answer:
    """
    The events of one answer, over all requests to the model: holds back calls of our own tools, adds up the usage.

    The engine's own tools are passed on, as many at a time as it accepts.
    """

    def __init__(self, request: ChatRequest, tools: AnswerTools, put: Put) -> None:
        self.has_text = False
        self.other_calls: dict[int, int] = {}  # their index in this request: their index in the answer
        self._tools = tools
        self._own = frozenset(definition["function"]["name"] for definition in tools.definitions)
        self._parallel = request.parallel_tool_calls
        self._put = put
        self._calls: dict[int, ToolCallDelta] = {}
        self._text = ""
        self._usage = Usage(0, 0, 0)

    def put(self, event: ChatEvent) -> None:
        match event:
            case ToolCallDelta(index) if index in self._calls or event.name in self._own:
                before = self._calls.get(index)
                arguments = before.arguments + event.arguments if before else event.arguments
                self._calls[index] = replace(before or event, arguments=arguments)
            case ToolCallDelta(index):
                if index not in self.other_calls and (self._parallel or not self.other_calls):
                    self.other_calls[index] = len(self.other_calls)
                if index in self.other_calls:
                    self._put(replace(event, index=self.other_calls[index]))
            case Usage():
                spent = (event.prompt_tokens, event.completion_tokens, event.cached_tokens)
                before_it = (self._usage.prompt_tokens, self._usage.completion_tokens, self._usage.cached_tokens)
                self._usage = Usage(*map(sum, zip(spent, before_it, strict=True)))
            case Finished():
                self._finish(event)
            case TextDelta(text):
                self.say(text)

    def say(self, text: str) -> None:
        if text:
            self.has_text = True
            self._text += text
            self._put(TextDelta(text))

    def take_round(self) -> tuple[str, list[ToolCallDelta]]:
        """What the model said in this request, and the tools of ours that it calls."""
        text, calls = self._text, list(self._calls.values())
        if calls and text and not text[-1].isspace():
            self._put(TextDelta(" "))  # more will follow
        self._text, self._calls = "", {}
        return text, calls

    def _finish(self, event: Finished) -> None:
        if self._calls:
            return
        if self._usage != Usage(0, 0, 0):
            self._put(self._usage)
        if (last := self._tools.last_call) is not None and not self.other_calls:
            self._put(last)
            event = Finished("tool_calls")
        self._put(event)


class _SharedAnswer:
    """One answer with several readers: each gets all of it, and it is cancelled when the last one leaves."""

    def __init__(self, request: ChatRequest, make: Callable[[Put], Coroutine[Any, Any, None]]) -> None:
        self.request = request
        self.is_dropped = False
        self.ended_at = inf
        self._make = make
        self._making: asyncio.Task[None] | None = None
        self._events: list[ChatEvent] = []
        self._more = asyncio.Event()
        self._readers = 0

    async def read(self) -> AsyncGenerator[ChatEvent, None]:
        if self._making is None:
            self._making = asyncio.get_running_loop().create_task(self._make(self._put), name="answer")
            self._making.add_done_callback(lambda _: self._end())
        self._readers += 1
        try:
            for position in itertools.count():
                if position == len(self._events):
                    self._more.clear()
                    await self._more.wait()
                yield self._events[position]
                if isinstance(self._events[position], Finished):
                    return
        finally:
            self._readers -= 1
            if not self._readers and self.ended_at == inf:
                self.cancel()  # a complete one may go on reading its response, to keep the connection

    def cancel(self) -> None:
        self.is_dropped = True
        if self._making is not None:
            self._making.cancel()

    def _put(self, event: ChatEvent) -> None:
        self._events.append(event)
        self._more.set()
        if isinstance(event, Finished):
            self.ended_at = time.monotonic()

    def _end(self) -> None:
        if self.ended_at == inf:
            self._put(Finished("stop"))


class _FallbackRace:
    """One request to upstream after upstream, until one of them begins to answer."""

    def __init__(
        self,
        llm: AgentLlm,
        caller_key: str,
        put: Put,
        observer: LatencyObserver,
        report: Report,
        *,
        longest_silence: float,
    ) -> None:
        self.has_answered = False
        self.broke_off = False
        """Whether the answer ended early."""
        self.stop = ""
        """The punctuation that the last sentence lacks."""
        self._llm = llm
        self._caller_key = caller_key
        self._put = put
        self._observer = observer
        self._report = report
        self._has_text = False
        self._slow: set[Upstream] = set()
        self._rules = load_rules(llm.language)
        self._attempts: list[asyncio.Task[None]] = []
        self._winner: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._longest_silence = longest_silence
        self._patience = asyncio.timeout(longest_silence)

    async def run(self, request: ChatRequest) -> None:
        """Ask the next upstream when one fails or is slow; a slow one may still be the first to answer."""
        patience = min(len(self._llm.upstreams), 2) * self._llm.first_token_seconds  # the first two have had their time
        one_moment = asyncio.get_running_loop().call_later(patience, self._say_one_moment)
        try:
            with suppress(TimeoutError):
                async with self._patience, asyncio.TaskGroup() as tasks:
                    for upstream in self._llm.upstreams:
                        self._attempts.append(tasks.create_task(self._ask(upstream, request)))
                        await self._wait_for_news(upstream)
                        if self._winner is not None:
                            await asyncio.wait({self._winner})
                        if self._winner is not None:
                            break
        finally:
            one_moment.cancel()

    async def _wait_for_news(self, upstream: Upstream) -> None:
        self._news.clear()
        try:
            async with asyncio.timeout(self._llm.first_token_seconds):
                await self._news.wait()
        except TimeoutError:
            self._slow.add(upstream)
            _log.warning("language model is slow", extra={"upstream": upstream.name})

    async def _ask(self, upstream: Upstream, request: ChatRequest) -> None:
        callable_now = request.tools if request.tool_choice != "none" else ()
        known = frozenset(tool["function"]["name"] for tool in callable_now)
        answer = _SpokenAnswer(SpokenText(self._rules) if self._llm.filters_text else _UnfilteredText(), known)
        attempt = _TimedAttempt(upstream, self._report)
        try:
            async with aclosing(upstream.answer(request, self._caller_key)) as events:
                async for event in events:
                    attempt.received(event)
                    spoken = answer.receive(event)
                    if answer.has_begun:
                        self._win()
                        self._pass_on(spoken)
                    elif isinstance(event, Finished):
                        raise LlmRefused(f"{upstream.name} said nothing")
                    if isinstance(event, Finished):
                        attempt.end("answered")
        except asyncio.CancelledError:
            if not answer.has_begun and (upstream in self._slow or self._patience.expired()):
                attempt.end("failed", "timeout")
            attempt.end("cancelled")
            raise
        except LlmError as error:
            attempt.end("failed", str(error.status or type(error).__name__))
            _log.warning("language model failed", extra={"upstream": upstream.name, "reason": str(error)})
            self._pass_on(answer.cut())
            self._lose()
        except Exception as error:
            attempt.end("failed", type(error).__name__)
            raise

    def _win(self) -> None:
        """The first to produce output wins; the others are cancelled."""
        if self._winner is not None or self._patience.expired():
            return
        self._winner = asyncio.current_task()
        self._patience.reschedule(None)
        self._news.set()
        for attempt in self._attempts:
            if attempt is not self._winner:
                attempt.cancel()

    def _lose(self) -> None:
        """This attempt has failed. If it had only begun a tool call, nothing was spoken and the next may answer."""
        if self._winner is asyncio.current_task() and not self.has_answered:
            self._winner = None
            self._patience.reschedule(asyncio.get_running_loop().time() + self._longest_silence)
        self.broke_off = self._winner is asyncio.current_task()
        self._news.set()

    def _pass_on(self, events: list[ChatEvent]) -> None:
        self.has_answered = self.has_answered or bool(events)
        for event in events:
            if isinstance(event, TextDelta) and event.text.strip():
                if not self._has_text:
                    self._has_text = True
                    self._observer.first_token(time.monotonic())
                self.stop = "" if event.text.rstrip()[-1] in ".!?…" else "."
            self._put(event)

    def _say_one_moment(self) -> None:
        if self._winner is None and self._llm.one_moment:
            self._observer.one_moment(self._llm.one_moment)
            self._put(TextDelta(f"{self._llm.one_moment} "))


class _TimedAttempt:
    """Times one request to an upstream, and reports it once."""

    def __init__(self, upstream: Upstream, report: Report) -> None:
        self._model = _name(upstream)
        self._report = report
        self._began_at = time.monotonic()
        self._first_token: float | None = None
        self._usage: Usage | None = None
        self._is_over = False

    def received(self, event: ChatEvent) -> None:
        if self._first_token is None:
            self._first_token = round(time.monotonic() - self._began_at, 4)
        if isinstance(event, Usage):
            self._usage = event

    def end(self, outcome: Literal["answered", "failed", "cancelled"], error: str = "") -> None:
        """Only the first end counts: a complete answer is read on for a moment, to keep the connection."""
        if not self._is_over:
            self._is_over = True
            seconds = round(time.monotonic() - self._began_at, 4)
            self._report(ModelAttempt(self._model, outcome, error, seconds, self._first_token, self._usage))


def _name(upstream: Upstream) -> ModelName:
    return ModelName(upstream.name, upstream.model)


class _SpokenAnswer:
    """
    One upstream's answer: its text as speakable text, its tool calls once all of them are complete.

    An engine must not get part of a tool call if the upstream fails. A call of an unknown tool would end its session,
    so such a call is dropped.
    """

    def __init__(self, text: "SpokenText | _UnfilteredText", known: frozenset[str]) -> None:
        self.has_begun = False
        """Whether there is text to speak or a tool to call; Markdown and reasoning are neither."""
        self._text = text
        self._known = known
        self._calls: dict[int, int | None] = {}  # their index: our index, or None for a dropped one
        self._held: list[ChatEvent] = []

    def receive(self, event: ChatEvent) -> list[ChatEvent]:
        match event:
            case TextDelta(text):
                return self._say(self._text.feed(text))
            case Finished(reason):
                nothing_to_do = reason == "tool_calls" and not any(index is not None for index in self._calls.values())
                return [*self._say(self._text.finish()), *self._held, Finished("stop") if nothing_to_do else event]
            case ToolCallDelta():
                self._hold(event)
                return []
            case _:
                self._held.append(event)
                return []

    def _hold(self, call: ToolCallDelta) -> None:
        if call.index not in self._calls:
            wanted = call.name in self._known
            ours = sum(index is not None for index in self._calls.values())
            self._calls[call.index] = ours if wanted else None
        if (index := self._calls[call.index]) is not None:
            self.has_begun = True
            self._held.append(replace(call, index=index))

    def cut(self) -> list[ChatEvent]:
        """The answer ends here: the text that was held back."""
        return self._say(self._text.finish()) if self.has_begun else []

    def _say(self, text: str) -> list[ChatEvent]:
        self.has_begun = self.has_begun or bool(text.strip())
        return [TextDelta(text)] if text and self.has_begun else []


class _UnfilteredText:
    """Stands in for SpokenText."""

    def feed(self, chunk: str) -> str:
        return chunk

    def finish(self) -> str:
        return ""


def _redacted(request: ChatRequest) -> ChatRequest:
    """The request without secrets that caller or agent spoke. The prompt and tool results stay as they are."""
    spoken = [
        place
        for place, message in enumerate(request.messages)
        if message["role"] in _SPEAKERS and isinstance(message.get("content"), str)
    ]
    messages = list(request.messages)
    lines = redact_lines([SpokenLine(_SPEAKERS[messages[at]["role"]], messages[at]["content"]) for at in spoken])
    for at, line in zip(spoken, lines, strict=True):
        messages[at] = {**messages[at], "content": line.text}
    return replace(request, messages=tuple(messages))


# Memory


class TurnRecall:
    """
    Searches memory once per turn of one call. A result that is too late for one request serves the turn's next one.

    Owns one task; `close` cancels it.
    """

    def __init__(self, search: Search, *, budget_tokens: int = BUDGET_TOKENS, seconds: float = RECALL_SECONDS) -> None:
        self._search = search
        self._budget_tokens = budget_tokens
        self._seconds = seconds
        self._said = ""
        self._search_task: asyncio.Task[str] | None = None

    async def about(self, said: str) -> str:
        """Quoted text for a prompt; empty if nothing was found, or not yet."""
        if not said.strip():
            return ""
        if self._search_task is None or said != self._said:
            self.close()
            self._said = said
            self._search_task = asyncio.get_running_loop().create_task(self._run_search(said), name="turn memory")
        task = self._search_task
        if not task.done():
            await asyncio.wait({task}, timeout=self._seconds)
        return task.result() if task.done() and not task.cancelled() else ""

    def forget(self) -> None:
        """Drop what was found: it must not be used any more, not even for the same question."""
        self.close()
        self._search_task = None

    def close(self) -> None:
        if self._search_task is not None:
            self._search_task.cancel()

    async def _run_search(self, said: str) -> str:
        try:
            async with asyncio.timeout(SEARCH_SECONDS):
                return render_known(await self._search(said), budget_tokens=self._budget_tokens)
        except Exception as error:  # the edge of a search: answer without memory
            is_known = isinstance(error, StoreError | TimeoutError)
            _log.warning("memory could not be searched", extra={"error": type(error).__name__}, exc_info=not is_known)
            return ""
