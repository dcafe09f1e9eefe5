"""
Runs the functions that the agent of one call asks for, and answers each in words that the agent can use.

Functions of the user's file run in threads of their own; the gateway's own run on its loop. Whatever a function does,
the agent gets an answer in time, and the call's sound goes on. Arguments, results and the texts of errors may hold
what the caller said: the log names the function and the kind of error.
"""

import asyncio
import inspect
import itertools
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson
from pydantic_core import to_jsonable_python

from gateway.engines.interface import AgentFunction, FunctionCall
from gateway.tools.conversation import Conversation
from gateway.tools.module import DEFAULT_TIMEOUT, Tool, ToolModule
from gateway.tools.schema import ArgumentsRefused, FunctionSchema
from gateway.tools.threads import ToolThread, ToolThreadFailed, ToolThreads, ToolThreadsBusy

START_SECONDS: Final = 2.0
"""The caller waits for the greeting meanwhile."""
END_SECONDS: Final = 10.0

MOST_AT_ONCE: Final = 4
"""Functions of one call that run at the same time; others wait for their turn, within their own time."""
MOST_REPEATS: Final = 3
"""The same function with the same arguments, one after the other: the fourth time it would not help either."""
MOST_BETWEEN_TURNS: Final = 20
"""Functions that an agent may call before the caller says something again."""
REFUSAL_PAUSES: Final = (0.0, 0.5, 1.0, 2.0, 5.0)
"""Before an agent in a loop gets its next refusal; the last one repeats. It may be a model that does not listen."""
MOST_RESULT_CHARACTERS: Final = 8000
MOST_REMEMBERED: Final = 100
"""Answers kept for an engine that asks again."""

_ERROR: Final = '{"error":'
_CUT: Final = " … (cut off here)"


@dataclass(frozen=True)
class Builtin:
    """A function of the gateway's own. Its handler runs on the gateway's loop and is trusted not to block it."""

    schema: FunctionSchema
    handler: Callable[[FunctionCall, dict[str, Any]], Awaitable[object]]
    timeout: float = DEFAULT_TIMEOUT


class FunctionRunner:
    """
    The functions of one call. Used on the gateway's loop; tasks belong to the call's group.

    `answer` is called once for each function that was asked for and not cancelled, and again when the engine repeats
    a question.
    """

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        conv: Conversation,
        *,
        tool_module: ToolModule,
        workers: ToolThreads,
        answer: Callable[[FunctionCall, str], None],
        builtins: Iterable[Builtin] = (),
    ) -> None:
        self._tasks = tasks
        self._conv = conv
        self._tool_module = tool_module
        self._workers = workers
        self._answer = answer
        own = {builtin.schema.definition.name: builtin for builtin in builtins}
        self._functions: dict[str, Tool | Builtin] = {**tool_module.tools, **own}
        self._slots = asyncio.Semaphore(MOST_AT_ONCE)
        self._running: dict[FunctionCall, asyncio.Task[None]] = {}
        self._answers: dict[FunctionCall, str] = {}
        self._breaker = LoopBreaker()
        self._refusals = 0
        self._closed = False

    @property
    def functions(self) -> tuple[AgentFunction, ...]:
        """What the agent may call."""
        return tuple(function.schema.definition for function in self._functions.values())

    # What happens in the call

    def start(self, call: FunctionCall) -> None:
        """Run it and answer. One that was asked for before, by the same id, is not run again."""
        if self._closed or call in self._running:
            return
        if call in self._answers:
            self._answer(call, self._answers[call])
        elif refusal := self._breaker.refuses(call):
            self._running[call] = self._tasks.create_task(self._refuse(call, refusal), name="function refused")
        else:
            self._running[call] = self._tasks.create_task(self._run(call), name="function")

    def cancel(self, call_ids: Iterable[str]) -> None:
        """The agent does not want these any more; they get no answer."""
        unwanted = frozenset(call_ids)
        for call in [call for call in self._running if call.id in unwanted]:
            self._running.pop(call).cancel()
            self._breaker.taken_back(call)

    def caller_spoke(self) -> None:
        """The caller said something: whatever the agent does now, it is not talking to itself."""
        self._breaker.reset()
        self._refusals = 0

    def close(self) -> None:
        """The call is over: nothing is started or answered any more. `run_end` still works."""
        self._closed = True
        self.cancel([call.id for call in self._running])

    # What is run around the call

    async def run_start(self, *, timeout: float = START_SECONDS) -> None:
        """Run the file's `start_function`, if it has one. What it said and set is there on return."""
        await self._run_hook(self._tool_module.start, timeout)

    async def run_end(self, *, timeout: float = END_SECONDS) -> None:
        """Run the file's `end_function`, if it has one. What it set is there on return."""
        await self._run_hook(self._tool_module.end, timeout)

    async def _run_hook(self, hook: Tool | None, timeout: float) -> None:
        if hook is not None:
            try:
                async with asyncio.timeout(timeout):
                    await self._in_thread(hook, "")
            except Exception as error:  # the edge to foreign code
                self._explain(hook, error)

    # One function

    async def _run(self, call: FunctionCall) -> None:
        content = await self._outcome(call)
        del self._running[call]
        self._settle(call, content)

    async def _refuse(self, call: FunctionCall, refusal: str) -> None:
        if self._refusals == 0:
            self._conv.log.warning("agent calls functions in a loop")
        pause = REFUSAL_PAUSES[min(self._refusals, len(REFUSAL_PAUSES) - 1)]
        self._refusals += 1
        await asyncio.sleep(pause)
        del self._running[call]
        self._settle(call, _error(refusal))

    def _settle(self, call: FunctionCall, content: str) -> None:
        self._answers[call] = content
        if len(self._answers) > MOST_REMEMBERED:
            del self._answers[next(iter(self._answers))]
        self._answer(call, content)

    async def _outcome(self, call: FunctionCall) -> str:
        function = self._functions.get(call.name)
        if function is None:
            self._conv.log.warning("agent called an unknown function")
            return _error("there is no function of this name")
        try:
            async with asyncio.timeout(function.timeout), self._slots:
                if isinstance(function, Tool):
                    return await self._in_thread(function, call.arguments)
                return as_content(await function.handler(call, function.schema.parse(call.arguments)))
        except Exception as error:  # the edge to foreign code
            return _error(self._explain(function, error))

    async def _in_thread(self, tool: Tool, arguments: str) -> str:
        conv = self._conv.handle()

        def work(worker: ToolThread[str]) -> str:
            result = tool.call(conv, arguments)
            return as_content(worker.complete(result) if inspect.iscoroutine(result) else result)

        try:
            return await self._workers.run(tool, work, name=f"function {tool.name}")
        except asyncio.CancelledError:
            conv.close()
            raise

    def _explain(self, function: Tool | Builtin, error: Exception) -> str:
        """What the agent is told; the log gets what may be written down."""
        name = function.schema.definition.name
        cause = error.error if isinstance(error, ToolThreadFailed) else error
        fields: dict[str, object] = {"function": name, "error": type(cause).__name__}
        match cause:
            case ArgumentsRefused():
                self._conv.log.info("agent passed wrong arguments", extra={"function": name})
                return f"wrong arguments for {name}: {cause}"
            case TimeoutError():
                self._conv.log.warning("function took too long", extra={"function": name})
                return f"{name} took too long; it may or may not have worked; tell the caller"
            case ToolThreadsBusy():
                self._conv.log.error("function hangs in too many calls", extra={"function": name})
                return f"{name} does not work at the moment; tell the caller"
        if isinstance(function, Tool):
            fields["line"] = function.line_of(cause)
        self._conv.log.warning("function failed", extra=fields)
        return f"{name} failed; tell the caller that it did not work"


class LoopBreaker:
    """Notices an agent that calls functions over and over, with nobody there to stop it."""

    def __init__(self) -> None:
        self._calls: list[tuple[str, str]] = []

    def refuses(self, call: FunctionCall) -> str:
        """Why this call must not be run, as words for the agent; empty if it may. Counts it either way."""
        key = _key(call)
        latest = self._calls[-MOST_REPEATS:]
        self._calls.append(key)
        if len(self._calls) > MOST_BETWEEN_TURNS:
            return "too many functions without a word from the caller; stop, and ask the caller what to do"
        if latest == [key] * MOST_REPEATS:
            return "the same function was called with the same arguments again and again; stop, and ask the caller"
        return ""

    def taken_back(self, call: FunctionCall) -> None:
        """It was called on a wrong guess that the caller had finished, and does not count."""
        if (key := _key(call)) in self._calls:
            self._calls.remove(key)

    def reset(self) -> None:
        self._calls.clear()


def _key(call: FunctionCall) -> tuple[str, str]:
    """The same for arguments that differ only in how they are written."""
    try:
        return call.name, orjson.dumps(orjson.loads(call.arguments), option=orjson.OPT_SORT_KEYS).decode()
    except orjson.JSONDecodeError:
        return call.name, call.arguments


def as_content(result: object) -> str:
    """A result as the agent gets it: text as it is, anything else as JSON, cut off where it is too long."""
    if result is None:
        return "done"
    text = result if isinstance(result, str) else _json(result)
    cut = text[:MOST_RESULT_CHARACTERS] + (_CUT if len(text) > MOST_RESULT_CHARACTERS else "")
    return cut.encode(errors="replace").decode()  # half a surrogate pair can't be sent


def _json(value: object) -> str:
    """JSON up to the first piece that is too much, piece by piece, so that other threads get their turn."""
    pieces, size = [], 0
    for piece in _Encoder(ensure_ascii=False).iterencode(value):
        pieces.append(piece)
        size += len(piece)
        if size > MOST_RESULT_CHARACTERS:
            break
    return "".join(pieces)


class _Encoder(json.JSONEncoder):
    def default(self, o: object) -> object:
        if isinstance(o, Iterator):  # it may never end
            return list(itertools.islice(o, MOST_RESULT_CHARACTERS))
        return dict(o) if isinstance(o, Mapping) else to_jsonable_python(o)


def is_error(content: str) -> bool:
    """Whether an answer says that the function did not work."""
    return content.startswith(_ERROR)


def _error(words: str) -> str:
    return f"{_ERROR}{orjson.dumps(words).decode()}}}"
