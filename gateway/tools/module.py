"""
The user's Python file of tools: its public functions, and the hooks that run when a call starts and ends.

Name, type hints and docstring of a function become its definition for the agent. A mistake is reported in one line
that names file, line and function.
"""

import asyncio
import contextlib
import inspect
import logging
import math
import sys
import traceback
import types
import typing
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import docstring_parser

from gateway.errors import SettingsError
from gateway.file_stamp import FileStamp
from gateway.session import TrustLevel
from gateway.tools.conversation import Conversation
from gateway.tools.schema import DEFAULT_TIMEOUT, FunctionSchema, described
from gateway.tools.threads import ToolThread

START_HOOK: Final = "start_function"
END_HOOK: Final = "end_function"

RELOAD_SECONDS: Final = 1.0
"""How long a new call waits for a changed file. If loading takes longer, the call uses the previous version."""

_log = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., Any])


# Decorators for the user's functions


def speculative(function: Function) -> Function:
    """
    Mark a function that has no effect and only looks something up.

    The agent may call it before the caller has surely finished, which makes the answer faster. Every other function
    waits for the end of the caller's turn, since an effect can't be undone.
    """
    function.__dict__["speculative"] = True
    return function


def timeout(seconds: float) -> Callable[[Function], Function]:
    """Set how long the agent waits for the function; the default is 10 seconds."""

    def mark(function: Function) -> Function:
        function.__dict__["timeout"] = seconds
        return function

    return mark


def requires(level: str) -> Callable[[Function], Function]:
    """
    Run the function only in calls of at least this trust level: "name", "summaries" or "everything".

    The agent of another call learns that the caller is not verified.
    """

    def mark(function: Function) -> Function:
        function.__dict__["requires"] = level
        return function

    return mark


# The loaded file


@dataclass(frozen=True, eq=False)
class Tool:
    """One function of a user's file."""

    function: Callable[..., object]
    schema: FunctionSchema
    timeout: float
    conversation: str | None
    """Name of the parameter that takes the Conversation, if it has one."""
    requires: TrustLevel = TrustLevel.NONE

    @property
    def name(self) -> str:
        return self.schema.definition.name

    def call(self, conv: Conversation, arguments: str) -> object:
        """The function's result, or a coroutine. Runs user code. Raises ArgumentsRefused for wrong arguments."""
        given = self.schema.parse(arguments)
        if self.conversation is not None:
            given[self.conversation] = conv
        return self.function(**given)

    def line_of(self, error: BaseException) -> int:
        """The line of the user's file that raised it; 0 if raised elsewhere."""
        return _line(inspect.unwrap(self.function).__code__.co_filename, error)


@dataclass(frozen=True)
class ToolModule:
    """The tools and hooks of one file. Empty for an agent without a file."""

    tools: Mapping[str, Tool] = field(default_factory=dict)
    start: Tool | None = None
    end: Tool | None = None


class ReloadingToolModule:
    """The tool module of one file. New calls get the file as it is now."""

    def __init__(self, path: Path, *, reserved: frozenset[str] = frozenset(), patience: float = RELOAD_SECONDS) -> None:
        """Raises SettingsError for a mistake in the file, or for a function with a name in `reserved`."""
        self._path = path
        self._reserved = reserved
        self._patience = patience
        self._stamp = FileStamp.of(path)
        self._tool_module = load_tool_module(path, reserved=reserved)
        self._loading: asyncio.Future[None] | None = None
        self._late_at = 0.0

    async def current(self) -> ToolModule:
        """The current version; the previous one while the file is broken or slow to load."""
        clock = asyncio.get_running_loop().time
        until = clock() + self._patience
        while loading := self._start_loading(clock):
            await asyncio.wait({loading}, timeout=max(min(until, self._late_at) - clock(), 0))
            if not loading.done() or clock() >= until:
                break
        return self._tool_module

    def _start_loading(self, clock: Callable[[], float]) -> "asyncio.Future[None] | None":
        """Load the file if it has changed. Returns the load in progress, or None if the file is loaded."""
        if self._loading is not None and not self._loading.done():
            return self._loading
        stamp = FileStamp.of(self._path)
        if stamp == self._stamp:
            return None
        self._stamp = stamp  # a broken version is loaded and logged once
        self._late_at = clock() + self._patience  # later calls do not wait beyond this
        self._loading = ToolThread(lambda _: self._load(), name="tool module").result
        return self._loading

    def _load(self) -> None:
        """Runs in a thread: loading executes user code."""
        try:
            self._tool_module = load_tool_module(self._path, reserved=self._reserved)
        except SettingsError as error:
            _log.error("functions can't be loaded, keeping the previous version", extra={"reason": str(error)})
        else:
            _log.info("functions reloaded", extra={"file": self._path.name})


def load_tool_module(path: Path, *, reserved: frozenset[str] = frozenset()) -> ToolModule:
    """Run the file as a module and collect its functions. Raises SettingsError for a mistake in it."""
    module = _run(path)
    found = {
        name: _tool(name, value, path)
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    }
    start, end = found.pop(START_HOOK, None), found.pop(END_HOOK, None)
    for hook in filter(None, (start, end)):
        if len(hook.schema.defaults) < len(hook.schema.definition.parameters["properties"]):
            raise SettingsError(f"{_where(path, hook.function)}, {hook.name}: takes the conversation and nothing else")
    for name in sorted(reserved & found.keys()):
        raise SettingsError(f"{_where(path, found[name].function)}, {name}: the gateway has a function of this name")
    return ToolModule(found, start, end)


# The file


def _run(path: Path) -> types.ModuleType:
    try:
        code = compile(path.read_bytes(), path, "exec", dont_inherit=True)
    except OSError as error:
        raise SettingsError(f"{path.name} can't be read: {error.strerror}") from None
    except (SyntaxError, ValueError) as error:
        raise SettingsError(f"{path.name}, line {getattr(error, 'lineno', 0) or 1}: {_first_line(error)}") from None
    module = types.ModuleType(f"{path.stem}@{uuid.uuid4().hex}")  # can't clash with an importable module
    module.__file__ = str(path)
    vars(module)["Conversation"] = Conversation  # a type hint needs no import
    sys.modules[module.__name__] = module  # dataclasses and pydantic look up a class's module there
    try:
        exec(code, vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        # The texts of these come from Python; any other may quote a secret.
        text = f": {_first_line(error)}" if isinstance(error, ImportError | NameError) else ""
        raise SettingsError(f"{path.name}, line {_line(str(path), error)}: {type(error).__name__}{text}") from None
    return module


def _first_line(error: BaseException) -> str:
    return str(getattr(error, "msg", None) or error).partition("\n")[0]


def _line(file: str, error: BaseException) -> int:
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == file]
    return lines[-1] if lines else 0


# One function


def _tool(name: str, function: Callable[..., Any], path: Path) -> Tool:
    try:
        return _described_tool(name, function)
    except SettingsError as error:
        problem = str(error)
    except Exception as error:  # the edge to user code: type hints, decorators
        problem = f"its type hints can't be understood ({type(error).__name__})"
    raise SettingsError(f"{_where(path, function)}, {name}: {problem}")


def _where(path: Path, function: Callable[..., Any]) -> str:
    return f"{path.name}, line {inspect.unwrap(function).__code__.co_firstlineno}"


def _described_tool(name: str, function: Callable[..., Any]) -> Tool:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise SettingsError("it yields; return one value instead")
    seconds = vars(function).get("timeout", DEFAULT_TIMEOUT)
    if not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise SettingsError("its timeout is not a number of seconds")
    required = vars(function).get("requires", str(TrustLevel.NONE))
    if required not in map(str, TrustLevel):
        raise SettingsError(f"it requires an unknown level; use one of: {', '.join(map(str, TrustLevel))}")
    hints = _hints(function)
    parameters = inspect.signature(function).parameters
    conversation = next((key for key in parameters if hints.get(key) is Conversation), None)
    if conversation is None and "conv" in parameters and "conv" not in hints:
        conversation = "conv"
    for key, parameter in parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise SettingsError(f"an agent can't pass {parameter}; give each argument a name")
        if key != conversation and key not in hints:
            raise SettingsError(f"{key} has no type hint; write it like {key}: str")
    description, texts = inspect.getdoc(function) or "", {}
    with contextlib.suppress(docstring_parser.ParseError):
        parsed = docstring_parser.parse(description)
        description, texts = parsed.description or "", {item.arg_name: item.description for item in parsed.params}
    arguments = {key: parameter for key, parameter in parameters.items() if key != conversation}
    schema = FunctionSchema.of(
        name,
        description or name.replace("_", " "),
        {key: described(hints[key], texts.get(key) or "") for key in arguments},
        defaults={key: given.default for key, given in arguments.items() if given.default is not given.empty},
        speculative=bool(vars(function).get("speculative", False)),
    )
    return Tool(function, schema, float(seconds), conversation, TrustLevel.of(required))


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, inspect.unwrap(function).__globals__, include_extras=True)
    except NameError as error:
        raise SettingsError(f"a type hint names {error.name}, which is not defined") from None
    except (SyntaxError, TypeError, AttributeError):
        raise SettingsError("a type hint can't be understood") from None
