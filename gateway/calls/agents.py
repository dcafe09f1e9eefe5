"""The agents: which number reaches whom, and how each of them listens, thinks and speaks."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import gateway
from gateway.carriers.numbers import e164
from gateway.errors import SettingsError

DEFAULT_AGENT: Final = "maya"
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_KEYS: Final = frozenset({"numbers", "prompt", "greeting", "voice", "listen", "think", "timezone", "sorry"})


@dataclass(frozen=True)
class Agent:
    """One agent, as configured. `listen`, `think` and `speak` are the engine's own provider blocks."""

    name: str
    prompt: str
    """The prompt file's text, placeholders and all."""
    greeting: str = ""
    """Said first; empty: the agent waits for the caller."""
    sorry: str = "Sorry, I lost you for a second."
    """Said when the conversation goes on after a lost connection."""
    numbers: frozenset[str] = frozenset()
    timezone: ZoneInfo | None = None
    """Its wall clock; None for the machine's own."""
    listen: Mapping[str, Any] = field(
        default_factory=lambda: {"type": "deepgram", "version": "v2", "model": "flux-general-en"}
    )
    think: Mapping[str, Any] = field(default_factory=lambda: {"type": "open_ai", "model": "gpt-5.4-mini"})
    speak: Mapping[str, Any] = field(default_factory=lambda: {"type": "deepgram", "model": "aura-2-thalia-en"})


class AgentBook:
    """All agents, looked up by the number that was dialled. Files are read once, when it is made."""

    def __init__(self, tables: Mapping[str, Mapping[str, Any]], folder: Path) -> None:
        agents = [_agent(name, table, folder) for name, table in (tables or {DEFAULT_AGENT: {}}).items()]
        self._agents = {agent.name: agent for agent in agents}
        self._by_number = _by_number(agents)
        self._default = next((agent for agent in agents if not agent.numbers), agents[0])

    def __iter__(self) -> Any:
        return iter(self._agents.values())

    def answering(self, called: str) -> Agent:
        """Who answers this number: the agent that lists it, else the first that lists none, else the first."""
        return self._by_number.get(e164(called) or called, self._default)


def _agent(name: str, table: Mapping[str, Any], folder: Path) -> Agent:
    where = f"gateway.toml, [agents.{name}]"
    if not _NAME.fullmatch(name):
        raise SettingsError(f"{where}: an agent's name is lower-case letters, digits, - and _")
    if unknown := sorted(set(table) - _KEYS):
        raise SettingsError(f"{where}: unknown key {unknown[0]}; known are {', '.join(sorted(_KEYS))}")
    given: dict[str, Any] = {"greeting": f"Hello, this is {name.capitalize()}. How can I help you?"}
    given["prompt"] = _prompt(table.get("prompt", f"prompts/{name}.md"), where, folder)
    for key in ("greeting", "sorry"):
        if key in table:
            given[key] = _text(table[key], f"{where}: {key}")
    if "numbers" in table:
        given["numbers"] = _numbers(table["numbers"], where)
    if "timezone" in table:
        given["timezone"] = _timezone(table["timezone"], where)
    if "listen" in table:
        given["listen"] = _listen(table["listen"], where)
    if "think" in table:
        given["think"] = _think(table["think"], where)
    if "voice" in table:
        given["speak"] = _speak(table["voice"], where)
    return Agent(name=name, **given)


def _prompt(value: Any, where: str, folder: Path) -> str:
    name = _text(value, f"{where}: prompt")
    missing = f"{where}: there is no prompt file {name}; create it, or name another with prompt = …"
    return find_text(name, folder, missing=missing)


def find_text(name: str, folder: Path, *, missing: str) -> str:
    """A text file, looked for beside gateway.toml and then among those that come with the program."""
    for root in (folder, Path(gateway.__file__).parent.parent):
        path = root / name
        if path.is_file():
            return _read(path)
    raise SettingsError(missing)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        raise SettingsError(f"{path.name} is not UTF-8 text; save it as such") from None
    except OSError as error:
        raise SettingsError(f"{path.name} can't be read: {error.strerror}") from None


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise SettingsError(f"{where} must be text in quotes")
    return value.strip()


def _numbers(value: Any, where: str) -> frozenset[str]:
    given = value if isinstance(value, list) else [value]
    numbers = {str(number): e164(str(number)) for number in given}
    for text, number in numbers.items():
        if number is None:
            raise SettingsError(f"{where}: {text!r} is not an E.164 number; write it like +12025550100")
    return frozenset(number for number in numbers.values() if number is not None)


def _timezone(value: Any, where: str) -> ZoneInfo:
    try:
        return ZoneInfo(_text(value, f"{where}: timezone"))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise SettingsError(f"{where}: {value!r} is not a time zone; write it like America/New_York") from None


def _listen(value: Any, where: str) -> dict[str, Any]:
    block = _model(value, f"{where}: listen")
    flux = str(block.get("model", "")).startswith("flux")
    return {"type": "deepgram", "version": "v2" if flux else "v1", **block}


def _think(value: Any, where: str) -> dict[str, Any]:
    if isinstance(value, str):
        provider, slash, model = value.partition("/")
        if not (provider.strip() and slash and model.strip()):
            raise SettingsError(f"{where}: think is {value!r}; write provider/model, like open_ai/gpt-5.4-mini")
        return {"type": provider.strip(), "model": model.strip()}
    block = _table(value, f"{where}: think")
    if not (block.get("type") and block.get("model")):
        raise SettingsError(f"{where}: think needs type and model, like type = 'open_ai', model = 'gpt-5.4-mini'")
    return block


def _speak(value: Any, where: str) -> dict[str, Any]:
    block = _model(value, f"{where}: voice")
    version = {"version": "v2"} if str(block.get("model", "")).startswith("flux") else {}
    return {"type": "deepgram", **version, **block}


def _model(value: Any, where: str) -> dict[str, Any]:
    block = {"model": value.strip()} if isinstance(value, str) else _table(value, where)
    if not block or block.get("model") == "":
        raise SettingsError(f"{where} is empty; name a model, or leave the line out")
    return block


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SettingsError(f"{where} must be text in quotes or a table")
    return dict(value)


def _by_number(agents: list[Agent]) -> dict[str, Agent]:
    found: dict[str, Agent] = {}
    for agent in agents:
        for number in agent.numbers:
            if number in found:
                raise SettingsError(f"gateway.toml: {number} belongs to {found[number].name} and to {agent.name}")
            found[number] = agent
    return found
