"""
Loads and executes the tools of one call: the functions of the user's file, remote tools, and the gateway's own.

User code runs in threads of its own, all others run on the event loop. Every tool call gets an answer in time, and
the call's audio is never held up. Arguments, results and error texts may quote the caller: the log gets the
function's name and the type of the error.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

import orjson

from gateway.agents import Agent, wanted_personas
from gateway.engines.interface import AgentFunction, FunctionCall
from gateway.errors import StoreError
from gateway.memory.access import AccessChange, MemoryAccess
from gateway.memory.personas import PersonaStore
from gateway.memory.state import StateRefused, Value
from gateway.metrics import FUNCTIONS
from gateway.session import TrustLevel, Turn, VoiceSession
from gateway.tools.builtin import END_CALL, NAMES, Builtin, BuiltinSource, transfer_schema
from gateway.tools.conversation import Conversation
from gateway.tools.module import ReloadingToolModule, Tool, ToolModule
from gateway.tools.remote import RemoteTool, RemoteToolFailed, RemoteTools, http_tool_names
from gateway.tools.schema import ArgumentsRefused, as_content
from gateway.tools.threads import ToolThread, ToolThreadFailed, ToolThreads, ToolThreadsBusy

MOST_AT_ONCE: Final = 4
"""Tools of one call that run at the same time; others wait, within their own timeout."""
MOST_REPEATS: Final = 3
"""Identical tool calls in a row; the fourth is refused."""
MOST_BETWEEN_TURNS: Final = 20
"""Tool calls before the caller speaks again; further ones are refused."""
REFUSAL_PAUSES: Final = (0.0, 0.5, 1.0, 2.0, 5.0)
"""Delay before each refusal of a looping agent; the last one repeats. The model may ignore refusals."""
MOST_RESULTS_KEPT: Final = 100
"""Results kept for an engine that repeats a request."""

GOODBYE_DUE: Final = {"status": "ok", "next": "say a short goodbye; the call ends after it"}

_ERROR: Final = '{"error":'

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ToolTimeouts:
    """Seconds."""

    load: float = 0.3
    """For personas and the caller's state; the call starts without those that take longer."""
    start_function: float = 2.0
    """The caller waits for the greeting."""
    end_function: float = 10.0


LoadMemory = Callable[[], Awaitable[Mapping[str, Value] | None]]
"""Reads the state again, of the caller as known now. None as its result: the store does not answer."""


@dataclass(frozen=True)
class CallTools:
    """The tools of an agent in one call, and the state that earlier calls have kept for them."""

    tool_module: ToolModule = ToolModule()
    threads: ToolThreads = field(default_factory=ToolThreads)
    memory: Mapping[str, Value] = field(default_factory=dict)
    builtins: tuple[Builtin, ...] = ()
    personas: Mapping[str, str] = field(default_factory=dict)
    """Rendered personas that the agent's prompt refers to, by name."""
    load_memory: LoadMemory | None = None
    timeouts: ToolTimeouts = ToolTimeouts()
    remote: tuple[RemoteTool, ...] = ()
    disabled: frozenset[str] = frozenset()
    """Names of tools that the agent does not get."""


class ToolHost(Protocol):
    """The call whose tools are executed. All methods are called on the event loop and return at once."""

    def say(self, text: str) -> None: ...
    def hang_up(self, request: str = "") -> None:
        """Hang up after the agent's goodbye. `request` is the id of the tool call, which the agent may cancel."""

    def transfer(self, target: str, request: str | None = None) -> None:
        """Transfer the caller: at once or, with the id of a tool call, after the agent's goodbye."""

    def set_pin(self, pin: str) -> None:
        """Store the caller's PIN."""

    def turns(self) -> Sequence[Turn]: ...
    def tool_started(self, call: FunctionCall) -> None: ...
    def tool_finished(self, call: FunctionCall, content: str, *, ok: bool, seconds: float) -> None: ...
    def state_changed(self) -> None:
        """The session's state has new values."""


class ToolExecutor:
    """
    The tools of one call. Used on the event loop; tasks belong to the call's group.

    Each tool call is answered once, unless it is cancelled; a repeated request is answered again from memory.
    """

    def __init__(
        self,
        host: ToolHost,
        tasks: asyncio.TaskGroup,
        session: VoiceSession,
        tools: CallTools,
        transfer_to: Mapping[str, str],
    ) -> None:
        self._host = host
        self._tasks = tasks
        self._session = session
        self._tools = tools
        self._transfer_to = transfer_to
        self._loop = asyncio.get_running_loop()
        self._load_memory = tools.load_memory
        self._conv = Conversation(session, self, memory=tools.memory)
        own = [Builtin(END_CALL, self._end_call)]
        if transfer_to:
            own.append(Builtin(transfer_schema(tuple(transfer_to)), self._transfer_call))
        others: list[RemoteTool | Builtin] = [*tools.remote, *own, *tools.builtins]
        functions: dict[str, Tool | RemoteTool | Builtin] = {
            **tools.tool_module.tools,
            **{tool.schema.definition.name: tool for tool in others},
        }
        self._functions = {name: tool for name, tool in functions.items() if name not in tools.disabled}
        self._slots = asyncio.Semaphore(MOST_AT_ONCE)
        self._requests: dict[FunctionCall, tuple[Callable[[str], None], float]] = {}
        self._running: dict[FunctionCall, asyncio.Task[None]] = {}
        self._results: dict[FunctionCall, str] = {}
        self._breaker = LoopBreaker()
        self._closed = self._call_over = False

    @property
    def functions(self) -> tuple[AgentFunction, ...]:
        """The definitions that the agent gets."""
        return tuple(function.schema.definition for function in self._functions.values())

    @property
    def is_busy(self) -> bool:
        """Whether a tool runs."""
        return bool(self._running)

    # Called by the call

    def start_up(self) -> "asyncio.Task[None]":
        """Run the file's `start_function`. What it says in time becomes part of the greeting."""
        hook, seconds = self._tools.tool_module.start, self._tools.timeouts.start_function
        starting = self._tasks.create_task(self._run_hook(hook, seconds), name="start function")
        starting.add_done_callback(lambda _: self._keep_state())
        return starting

    def start(self, call: FunctionCall, answer: Callable[[str], None]) -> None:
        """Run a tool and pass its result to `answer`, of the connection that asked last. One id runs only once."""
        if self._closed:
            return
        if call not in self._requests:
            self._host.tool_started(call)
        _, started_at = self._requests.get(call, (answer, self._loop.time()))
        self._requests[call] = answer, started_at
        if call in self._running:
            return
        if call in self._results:
            self._answer(call, self._results[call])
        else:
            running = self._run(call, self._breaker.refuses(call), self._breaker.refusals)
            self._running[call] = self._tasks.create_task(running, name="function")

    def cancel(self, call_ids: Iterable[str]) -> None:
        """Stop these tool calls; they get no answer."""
        unwanted = frozenset(call_ids)
        for call in [call for call in self._running if call.id in unwanted]:
            self._running.pop(call).cancel()
            self._breaker.retract(call)

    def caller_spoke(self) -> None:
        """A new turn of the caller ends a loop of tool calls. Other calls may have stored state since the last one."""
        self._breaker.reset()
        self._refresh_memory()

    def memory_changed(self, change: AccessChange) -> None:
        """Give tools the state that the caller's earlier calls have kept, or take it away."""
        match change:
            case AccessChange.LEVEL_RAISED:
                self._refresh_memory()
            case AccessChange.CALLER_CHANGED:
                self._conv.memory.clear()
                self._refresh_memory()
            case AccessChange.SPEAKER_CHANGED | AccessChange.REVOKED:
                self._load_memory = None
                self._conv.memory.clear()

    async def close(self, *, call_is_over: bool) -> None:
        """Stop all tools. When the call is over, and not only its media stream, run `end_function`."""
        self._load_memory = None
        self._closed = True
        self.cancel([call.id for call in self._running])
        if call_is_over:
            self._call_over = True
            await self._run_hook(self._tools.tool_module.end, self._tools.timeouts.end_function)
        self._keep_state()

    # Called by tools, through Conversation. In `end_function` there is no call left to act on.

    def say(self, text: str) -> None:
        if not self._call_over:
            self._host.say(text)

    def hang_up(self) -> None:
        if not self._call_over:
            self._host.hang_up()

    def transfer(self, target: str) -> None:
        if not self._call_over:
            self._host.transfer(target)

    def set_pin(self, pin: str) -> None:
        if not self._call_over:
            self._host.set_pin(pin)

    def turns(self) -> Sequence[Turn]:
        return self._host.turns()

    # The caller's state

    def _refresh_memory(self) -> None:
        async def reload(load: LoadMemory) -> None:
            values = await load()
            if values is not None and load is self._load_memory:
                self._conv.memory.replace(values)

        if self._load_memory is not None:
            self._tasks.create_task(reload(self._load_memory), name="state")

    def _keep_state(self) -> None:
        """Copy to the session what tools have set, without what they set off the record."""
        if self._session.off_record:
            return
        state = self._conv.state.kept_fields(self._session.state)
        if state != self._session.state:
            self._session.state = state
            self._host.state_changed()

    # One tool call

    async def _run(self, call: FunctionCall, refusal: str, refusals: int) -> None:
        if refusal:
            if refusals == 1:
                self._conv.log.warning("agent calls functions in a loop")
            await asyncio.sleep(REFUSAL_PAUSES[min(refusals, len(REFUSAL_PAUSES)) - 1])
        content = _error(refusal) if refusal else await self._outcome(call)
        del self._running[call]
        self._results[call] = content
        if len(self._results) > MOST_RESULTS_KEPT:
            del self._results[next(iter(self._results))]
        self._answer(call, content)

    def _answer(self, call: FunctionCall, content: str) -> None:
        self._keep_state()
        if request := self._requests.pop(call, None):
            answer, started_at = request
            answer(content)
            ok = not content.startswith(_ERROR)
            self._host.tool_finished(call, content, ok=ok, seconds=round(self._loop.time() - started_at, 3))
            FUNCTIONS.labels("ok" if ok else "failed").inc()

    async def _outcome(self, call: FunctionCall) -> str:
        function = self._functions.get(call.name)
        if function is None:
            self._conv.log.warning("agent called an unknown function")
            return _error("there is no function of this name")
        if not isinstance(function, Builtin) and self._session.trust < function.requires:
            return _error("it is not certain who the caller is, so this is not available in this call")
        try:
            async with asyncio.timeout(function.timeout), self._slots:
                if isinstance(function, Tool):
                    return await self._run_in_thread(function, call.arguments)
                arguments = function.schema.parse(call.arguments)
                if isinstance(function, RemoteTool):
                    return as_content(await function.handler(self._session, arguments))
                return as_content(await function.handler(call, arguments))
        except Exception as error:  # the edge to user code and to other programs
            return _error(self._explain(function, error))

    async def _run_hook(self, hook: Tool | None, seconds: float) -> None:
        if hook is not None:
            try:
                async with asyncio.timeout(seconds):
                    await self._run_in_thread(hook, "")
            except Exception as error:  # the edge to user code
                self._explain(hook, error)

    async def _run_in_thread(self, tool: Tool, arguments: str) -> str:
        conv = self._conv.handle()

        def work(thread: ToolThread[str]) -> str:
            result = tool.call(conv, arguments)
            return as_content(thread.complete(result) if inspect.iscoroutine(result) else result)

        try:
            return await self._tools.threads.run(tool, work, name=f"function {tool.name}")
        except asyncio.CancelledError:
            conv.close()
            raise

    def _explain(self, function: Tool | RemoteTool | Builtin, error: Exception) -> str:
        """Log a failure without its text. Returns the explanation for the agent."""
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
            case RemoteToolFailed():
                self._conv.log.warning("function failed", extra={"function": name, "error": cause.kind})
                return f"{name} failed: {cause}"
        if isinstance(function, Tool):
            fields["line"] = function.line_of(cause)
        if isinstance(cause, StateRefused):  # its text quotes neither key nor value
            del fields["error"]
            fields["reason"] = str(cause)
            self._conv.log.warning("function set a state value that cannot be kept", extra=fields)
        else:
            self._conv.log.warning("function failed", extra=fields)
        return f"{name} failed; tell the caller that it did not work"

    # Builtins that act on the call itself

    async def _end_call(self, call: FunctionCall, arguments: dict[str, Any]) -> object:
        self._host.hang_up(call.id)
        return GOODBYE_DUE

    async def _transfer_call(self, call: FunctionCall, arguments: dict[str, Any]) -> object:
        self._host.transfer(self._transfer_to[arguments["to"]], call.id)
        return GOODBYE_DUE


async def run_end_function(session: VoiceSession, tools: CallTools) -> None:
    """Run `end_function` for a call that ended without media. The session gets the state it sets."""
    await ToolExecutor(_EndedCall(session), asyncio.TaskGroup(), session, tools, {}).close(call_is_over=True)


class _EndedCall:
    """ToolHost of a call that is over: only its transcript is left."""

    def __init__(self, session: VoiceSession) -> None:
        self._session = session

    def turns(self) -> Sequence[Turn]:
        return self._session.turns

    def say(self, text: str) -> None: ...
    def hang_up(self, request: str = "") -> None: ...
    def transfer(self, target: str, request: str | None = None) -> None: ...
    def set_pin(self, pin: str) -> None: ...
    def tool_started(self, call: FunctionCall) -> None: ...
    def tool_finished(self, call: FunctionCall, content: str, *, ok: bool, seconds: float) -> None: ...
    def state_changed(self) -> None: ...


class LoopBreaker:
    """Detects an agent that calls tools over and over without talking to the caller."""

    def __init__(self) -> None:
        self.refusals = 0
        """Refused tool calls since the caller's last turn."""
        self._calls: list[tuple[str, str]] = []

    def refuses(self, call: FunctionCall) -> str:
        """Count the call. Returns why it must not run, as text for the agent; empty if it may."""
        key = _key(call)
        latest = self._calls[-MOST_REPEATS:]
        self._calls.append(key)
        refusal = ""
        if len(self._calls) > MOST_BETWEEN_TURNS:
            refusal = "too many functions without a word from the caller; stop, and ask the caller what to do"
        elif latest == [key] * MOST_REPEATS:
            refusal = "the same function was called with the same arguments again and again; stop, and ask the caller"
        self.refusals += bool(refusal)
        return refusal

    def retract(self, call: FunctionCall) -> None:
        """Do not count a cancelled call: it was made on a wrong guess that the caller had finished."""
        if (key := _key(call)) in self._calls:
            self._calls.remove(key)

    def reset(self) -> None:
        self._calls.clear()
        self.refusals = 0


def _key(call: FunctionCall) -> tuple[str, str]:
    """Name and canonical arguments."""
    try:
        return call.name, orjson.dumps(orjson.loads(call.arguments), option=orjson.OPT_SORT_KEYS).decode()
    except orjson.JSONDecodeError:
        return call.name, call.arguments


def _error(text: str) -> str:
    return f"{_ERROR}{orjson.dumps(text).decode()}}}"


# Loading, while the phone rings


def load_modules(agents: Iterable[Agent]) -> dict[str, ReloadingToolModule]:
    """The tool module of each agent that has one. Raises SettingsError for a mistake in a file."""
    return {
        agent.name: ReloadingToolModule(agent.functions, reserved=NAMES | http_tool_names(agent))
        for agent in agents
        if agent.functions is not None
    }


class StateStore(Protocol):
    async def load(self, agent: str, caller: str) -> dict[str, Value]:
        """What an agent's tools have kept about a caller. Raises StoreError."""


class NoState:
    """The StateStore of a gateway without memory."""

    async def load(self, agent: str, caller: str) -> dict[str, Value]:
        return {}


@dataclass(eq=False)
class ToolLoader:
    """Prepares the tools of all calls."""

    modules: Mapping[str, ReloadingToolModule]
    personas: PersonaStore
    state: StateStore
    builtins: Sequence[BuiltinSource]
    remote: RemoteTools
    timeouts: ToolTimeouts
    _threads: ToolThreads = field(default_factory=ToolThreads, init=False)

    def load(self, agent: Agent, access: MemoryAccess) -> "asyncio.Task[CallTools]":
        """Start loading; the call needs the result when its media arrives."""
        return asyncio.get_running_loop().create_task(self._load(agent, access), name="tools")

    async def _load(self, agent: Agent, access: MemoryAccess) -> CallTools:
        module = self.modules.get(agent.name)
        tool_module = await module.current() if module is not None else ToolModule()
        personas: dict[str, str] = {}
        try:
            if names := wanted_personas(agent.prompt):
                async with asyncio.timeout(self.timeouts.load):
                    personas = await self.personas.render(names)
        except (StoreError, TimeoutError) as error:
            _log.warning("personas could not be loaded", extra={"error": type(error).__name__})
        load_memory = None
        if agent.repeat_caller.state_keys:
            load_memory = partial(self._load_state, agent.name, access)
        return CallTools(
            tool_module,
            self._threads,
            (await load_memory() or {}) if load_memory is not None else {},
            tuple(tool for source in self.builtins for tool in source(agent, access)),
            personas,
            load_memory,
            self.timeouts,
            self.remote.tools(agent, tool_module.tools.keys()),
            agent.disabled_tools,
        )

    async def _load_state(self, agent: str, access: MemoryAccess) -> dict[str, Value] | None:
        if not access.caller or not access.allows(TrustLevel.EVERYTHING):
            return {}
        try:
            async with asyncio.timeout(self.timeouts.load):
                return await self.state.load(agent, access.caller)
        except (StoreError, TimeoutError) as error:
            _log.warning("caller's state could not be loaded", extra={"error": type(error).__name__})
            return None
