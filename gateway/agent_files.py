"""
Changes an agent's files: its prompt, and the other live settings in gateway.toml.

The files stay the source of truth. Each is replaced in one step and keeps its mode; comments and format of gateway.toml
stay as they are.
"""

import contextlib
import errno
import os
import re
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from gateway.agents import Agent, AgentDirectory, LiveSettings, engine_name
from gateway.errors import FileChanged, SettingsError
from gateway.settings import TOML_FILE

MAX_PROMPT_BYTES: Final = 25_000
"""In UTF-8. Deepgram takes prompts of 25,000 characters."""
MAX_GREETING: Final = 1000
MAX_VOICE: Final = 200
_NEW_FILE_MODE: Final = 0o644
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\N{REPLACEMENT CHARACTER}]")
"""Tabs, line ends and what directs text, such as marks for right-to-left scripts, are none of these."""


class AgentFiles:
    """The files of the agents of one directory. Its methods block; they raise SettingsError and FileChanged."""

    def __init__(self, agents: AgentDirectory) -> None:
        self._agents = agents
        self._folder = agents.folder

    @staticmethod
    def why_read_only(path: Path) -> str:
        """Why a file can't be changed; empty if it can."""
        real = path.resolve()
        existing = real if real.exists() else next(parent for parent in real.parents if parent.exists())
        folder = existing.parent if existing.is_file() else existing
        if not os.access(folder, os.W_OK | os.X_OK):
            return f"{folder} is read-only for this program"
        if existing.is_file() and not os.access(existing, os.W_OK):
            return f"{path.name} is read-only"
        return ""

    def check(self, agent: Agent, live: LiveSettings) -> LiveSettings:
        """The settings as they would be read from the files. Raises SettingsError, as `gateway serve` would."""
        return self._changed(agent, live)[0]

    def write(self, agent: Agent, live: LiveSettings) -> None:
        """
        Replace the files whose settings differ from `agent`, which is the agent as it was when they were read.

        Raises FileChanged if they are not as they were then.
        """
        changes = self._changed(agent, live)[1]
        with contextlib.ExitStack() as stack:
            ready = [(stack.enter_context(_prepared(path, text)), path) for path, text in changes.items()]
            if self._agents.read(agent.name).version != agent.version:
                raise FileChanged("the agent's files were changed elsewhere")
            for temporary, path in ready:
                _replace(temporary, path)
            for folder in {path.resolve().parent for path in changes}:
                _sync(folder)

    def _changed(self, agent: Agent, live: LiveSettings) -> tuple[LiveSettings, dict[Path, str]]:
        """The settings as they would be read, and the new texts of the files."""
        _check_texts(live, agent.live)
        changes: dict[Path, str] = {}
        if live.prompt != agent.prompt:
            changes[self._agents.prompt_path(agent.name)] = f"{live.prompt}\n"
        before, table = agent.live, self._agents.table(agent.name)
        if live.engine != before.engine and (why := why_engine_fixed(table)):
            raise SettingsError(why)
        values: dict[str, Any] = {
            "greeting": live.greeting,
            "voice": live.voice,
            "engine": _engine_value(live.engine, table),
            "disabled_tools": sorted(live.disabled_tools) or None,
            "transfer_to": dict(live.transfer_to) or None,
        }
        if values := {key: value for key, value in values.items() if getattr(live, key) != getattr(before, key)}:
            path = self._folder / TOML_FILE
            changes[path] = with_values(_text(path), agent.name, values)
            table = tomllib.loads(changes[path])["agents"][agent.name]
        return replace(self._agents.check(agent.name, table).live, prompt=live.prompt), changes


def _check_texts(live: LiveSettings, before: LiveSettings) -> None:
    """Raises SettingsError for changed texts that can't be used."""
    if live.prompt != before.prompt:
        _check_text("prompt", live.prompt)
        if not live.prompt:
            raise SettingsError("the prompt is empty")
        size = len(live.prompt.encode())
        if size > MAX_PROMPT_BYTES:
            raise SettingsError(f"the prompt has {size:,} bytes; it can have {MAX_PROMPT_BYTES:,}")
    if live.greeting != before.greeting:
        _check_text("greeting", live.greeting)
        if len(live.greeting) > MAX_GREETING:
            raise SettingsError(f"the greeting has {len(live.greeting):,} characters; it can have {MAX_GREETING:,}")
    if live.voice != before.voice:
        if not live.voice:
            raise SettingsError("the voice is empty")
        if len(live.voice) > MAX_VOICE or not live.voice.isprintable():
            raise SettingsError(f"the voice must be one line of at most {MAX_VOICE:,} characters")


def _check_text(name: str, text: str) -> None:
    """Raises SettingsError for a control character, or what a browser sends in place of one."""
    if found := _CONTROL.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise SettingsError(
            f"line {line} of the {name} has a control character, shown as \N{REPLACEMENT CHARACTER}; delete it"
        )


def why_engine_fixed(table: Mapping[str, Any]) -> str:
    """Why the agent's engine can't be changed here; empty if it can."""
    has_model = any(isinstance(entry, Mapping) and "think" in entry for entry in _engine_entries(table))
    return "engine has think, the agent's language model, in gateway.toml; change it there" if has_model else ""


def _engine_value(names: Sequence[str], table: Mapping[str, Any]) -> Any:
    """The value of `engine` for these names: tables stay as they are in `table`. None: the key is left out."""
    known = {engine_name(entry): entry for entry in _engine_entries(table)}
    entries = [known.get(name, name) for name in names]
    return None if not entries else entries[0] if len(entries) == 1 else entries


def _engine_entries(table: Mapping[str, Any]) -> list[Any]:
    given = table.get("engine", [])
    return given if isinstance(given, list) else [given]


def with_values(toml: str, agent: str, values: Mapping[str, Any]) -> str:
    """
    gateway.toml with these values in the agent's table; None deletes the key.

    Raises SettingsError if it can't be changed safely.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        wanted = tomllib.loads(toml)
        document = tomlkit.parse(toml)
        if "agents" not in document:
            document["agents"] = tomlkit.table(is_super_table=True)
        agents: Any = document["agents"]
        if agent not in agents:
            agents[agent] = tomlkit.table()
        table = wanted.setdefault("agents", {}).setdefault(agent, {})
        for key, value in values.items():
            _set_value(agents[agent], key, value, tomlkit.inline_table)
            _set_value(table, key, value, dict)
        changed = tomlkit.dumps(document)
        if tomllib.loads(changed) == wanted:
            return changed
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"gateway.toml can't be read: {error}") from None
    except (TOMLKitError, KeyError, TypeError, AttributeError):
        pass  # the same as a result that differs
    raise SettingsError(f"gateway.toml can't be changed here; set {' and '.join(values)} in [agents.{agent}] yourself")


def _set_value(
    table: MutableMapping[str, Any], key: str, value: Any, new_table: Callable[[], MutableMapping[str, Any]]
) -> None:
    """Entries of a table that stay the same keep their format and comments."""
    match table.get(key), value:
        case _, None:
            table.pop(key, None)
        case known, Mapping():
            if not isinstance(known, MutableMapping):
                known = table[key] = new_table()
            for name in [name for name in known if name not in value]:
                del known[name]
            known.update({name: item for name, item in value.items() if known.get(name) != item})
        case _:
            table[key] = value


# Files


def _text(path: Path) -> str:
    """Empty for a file that does not exist. Line ends stay as they are."""
    try:
        return path.read_bytes().decode() if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path.name} can't be read ({type(error).__name__})") from None


@contextlib.contextmanager
def _prepared(path: Path, text: str) -> Iterator[str]:
    """A temporary file beside the real one, with its mode and line ends, and this text on the disk."""
    real, temporary = path.resolve(), ""
    try:
        real.parent.mkdir(parents=True, exist_ok=True)
        before = real.read_bytes() if real.exists() else b""
        mode = real.stat().st_mode & 0o7777 if real.exists() else _NEW_FILE_MODE
        content = text.replace("\r\n", "\n")
        content = content.replace("\n", "\r\n") if b"\r\n" in before else content
        descriptor, temporary = tempfile.mkstemp(prefix=f".{real.name}.", dir=real.parent)
        with open(descriptor, "wb") as file:
            file.write(content.encode())
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        yield temporary
    except OSError as error:
        raise SettingsError(f"{path} can't be written: {error.strerror or type(error).__name__}") from None
    finally:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def _sync(folder: Path) -> None:
    """After all files: another process that reads them in between would see parts of two versions."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _replace(temporary: str, path: Path) -> None:
    try:
        os.replace(temporary, path.resolve())
    except OSError as error:
        # A file that is mounted into a container by itself has another file system than its folder.
        todo = "; mount its folder, not the file alone" if error.errno in (errno.EBUSY, errno.EXDEV) else ""
        raise SettingsError(f"{path} can't be replaced: {error.strerror}{todo}") from None
