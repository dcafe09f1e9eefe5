"""The agents: which number reaches whom, and how each of them listens, thinks and speaks."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import gateway
from gateway.errors import SettingsError
from gateway.memory.identity import RepeatCallerSettings, read_repeat_caller
from gateway.memory.trust import TrustPolicy, read_trust
from gateway.settings import is_url
from gateway.telephony.phone_numbers import e164, transfer_target

DEFAULT_AGENT: Final = "maya"
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


@dataclass(frozen=True)
class FillerSettings:
    """What is heard while the agent thinks: a sound that comes with us, or one of a few phrases."""

    after: float
    sound: str = ""
    phrases: tuple[str, ...] = ()


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
    engine_thinks: bool = True
    """Whether `think` may answer: without a brain always, beside one where both are written down."""
    brain: tuple[str | Mapping[str, Any], ...] = ()
    """Its own language models, asked by the gateway: the first, and who stands in for it. None: the engine's."""
    first_token_seconds: float = 4.0
    """After so long without a word the next language model is asked as well."""
    one_moment: str = "One moment, please."
    """Said when none of them has begun to answer."""
    no_answer: str = "I'm sorry, I can't answer that right now. Could you say it again?"
    """Said when all of them have failed."""
    language: str = "en"
    """How written text is turned into spoken words."""
    functions: Path | None = None
    """A Python file whose functions the agent can call."""
    knowledge: Path | None = None
    """A folder of texts that the agent can search."""
    transfer_to: Mapping[str, str] = field(default_factory=dict)
    """Where the agent may transfer a caller: names, and numbers or SIP addresses."""
    text_agent: str = ""
    """Who does what the agent hands over in a call: openclaw/AGENT, or a webhook's address."""
    filler: FillerSettings | None = None
    repeat_caller: RepeatCallerSettings = RepeatCallerSettings()
    """Who counts as the same caller, and what functions may keep of one from call to call."""
    trust: TrustPolicy = TrustPolicy()
    """How much of a caller's memory is told to whom."""
    retention_days: int | None = None
    """How long facts are told, 0 for ever; None for what all agents have."""


class AgentDirectory:
    """All agents, looked up by the number that was dialled. Files are read once, when it is made."""

    def __init__(self, tables: Mapping[str, Mapping[str, Any]], folder: Path) -> None:
        agents = [_agent(name, table, folder) for name, table in (tables or {DEFAULT_AGENT: {}}).items()]
        self._agents = {agent.name: agent for agent in agents}
        self._by_number = _by_number(agents)
        self._default = next((agent for agent in agents if not agent.numbers), agents[0])

    def __iter__(self) -> Any:
        return iter(self._agents.values())

    def answering(self, called: str) -> Agent:
        """Who answers this number or name: its agent, else the first that lists no number, else the first."""
        return self._by_number.get(e164(called) or called) or self._agents.get(called, self._default)


def _agent(name: str, table: Mapping[str, Any], folder: Path) -> Agent:
    where = f"gateway.toml, [agents.{name}]"
    if not _NAME.fullmatch(name):
        raise SettingsError(f"{where}: an agent's name is lower-case letters, digits, - and _")
    if unknown := sorted(set(table) - set(_READERS)):
        raise SettingsError(f"{where}: unknown key {unknown[0]}; known are {', '.join(sorted(_READERS))}")
    defaults = {
        "prompt": f"prompts/{name}.md",
        "greeting": f"Hello, this is {name.capitalize()}. How can I help you?",
    }
    given: dict[str, Any] = {"engine_thinks": "think" in table or "brain" not in table}
    for key, value in {**defaults, **table}.items():
        field_name, read = _READERS[key]
        given[field_name] = read(value, f"{where}: {key}", folder)
    return Agent(name=name, **given.pop("memory", {}), **given)


def _prompt(value: Any, where: str, folder: Path) -> str:
    name = _text(value, where, folder)
    missing = f"{where}: there is no file {name}; create it, or name another"
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


def _text(value: Any, where: str, folder: Path) -> str:
    if not isinstance(value, str):
        raise SettingsError(f"{where} must be text in quotes")
    return value.strip()


def _numbers(value: Any, where: str, folder: Path) -> frozenset[str]:
    given = value if isinstance(value, list) else [value]
    numbers = {str(number): e164(str(number)) for number in given}
    for text, number in numbers.items():
        if number is None:
            raise SettingsError(f"{where} has {text!r}, which is no E.164 number; write it like +12025550100")
    return frozenset(number for number in numbers.values() if number is not None)


def _timezone(value: Any, where: str, folder: Path) -> ZoneInfo:
    try:
        return ZoneInfo(_text(value, where, folder))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise SettingsError(f"{where} is {value!r}, which is no time zone; write it like America/New_York") from None


def _listen(value: Any, where: str, folder: Path) -> dict[str, Any]:
    block = _model(value, where)
    flux = str(block.get("model", "")).startswith("flux")
    return {"type": "deepgram", "version": "v2" if flux else "v1", **block}


def _think(value: Any, where: str, folder: Path) -> dict[str, Any]:
    if isinstance(value, str):
        provider, slash, model = value.partition("/")
        if not (provider.strip() and slash and model.strip()):
            raise SettingsError(f"{where} is {value!r}; write provider/model, like open_ai/gpt-5.4-mini")
        return {"type": provider.strip(), "model": model.strip()}
    block = _table(value, where)
    if not (block.get("type") and block.get("model")):
        raise SettingsError(f"{where} needs type and model, like type = 'open_ai', model = 'gpt-5.4-mini'")
    return block


def _speak(value: Any, where: str, folder: Path) -> dict[str, Any]:
    block = _model(value, where)
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


def _brain(value: Any, where: str, folder: Path) -> tuple[str | Mapping[str, Any], ...]:
    entries = value if isinstance(value, list) else [value]
    if not entries or not all(isinstance(entry, str | dict) for entry in entries):
        raise SettingsError(f"{where} must be like anthropic/claude-haiku-5-5, a table with url and model, or a list")
    return tuple(entries)


def _seconds(value: Any, where: str, folder: Path) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 60:
        raise SettingsError(f"{where} must be a number of seconds, up to 60")
    return float(value)


def _file(value: Any, where: str, folder: Path) -> Path:
    path = folder / _text(value, where, folder)
    if not path.is_file():
        raise SettingsError(f"{where}: there is no file {value}; it is looked for beside gateway.toml")
    return path


def _folder(value: Any, where: str, folder: Path) -> Path:
    path = folder / _text(value, where, folder)
    if not path.is_dir():
        raise SettingsError(f"{where}: there is no folder {value}; it is looked for beside gateway.toml")
    return path


def _transfer_to(value: Any, where: str, folder: Path) -> dict[str, str]:
    table = _table(value, where)
    targets = {name: transfer_target(str(target)) for name, target in table.items()}
    for name, target in targets.items():
        if target is None:
            raise SettingsError(f"{where}: {name} must be a number like +12025550100 or sip:desk@example.com")
    return {name: target for name, target in targets.items() if target is not None}


def _text_agent(value: Any, where: str, folder: Path) -> str:
    text = _text(value, where, folder)
    if not (text.partition("/")[0] == "openclaw" or is_url(text, ("http", "https"))):
        raise SettingsError(f"{where} must be openclaw/AGENT or the https address of a webhook")
    return text


def _filler(value: Any, where: str, folder: Path) -> FillerSettings:
    table = {"sound": value} if isinstance(value, str) else _table(value, where)
    if unknown := sorted(set(table) - {"after", "sound", "say"}):
        raise SettingsError(f"{where}: unknown key {unknown[0]}; known are after, say, sound")
    say: Any = table.get("say", [])
    phrases = tuple(_text(phrase, where, folder) for phrase in (say if isinstance(say, list) else [say]))
    sound = _text(table.get("sound", ""), where, folder)
    if sound not in ("", "typing") or bool(sound) == bool(phrases):
        raise SettingsError(f'{where} must be sound = "typing", or say = ["Let me see.", "One second."]')
    return FillerSettings(_seconds(table.get("after", 2.0), f"{where}.after", folder), sound, phrases)


def _memory(value: Any, where: str, folder: Path) -> dict[str, Any]:
    """The fields of an agent that its table of memory becomes."""
    table = _table(value, where)
    readers = {"repeat_caller": read_repeat_caller, "retention_days": _days, "trust": read_trust}
    if unknown := sorted(set(table) - set(readers)):
        raise SettingsError(f"{where}: unknown key {unknown[0]}; known are {', '.join(readers)}")
    return {key: readers[key](given, f"{where}.{key}") for key, given in table.items()}


def _days(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise SettingsError(f"{where} must be a whole number of days, 0 for ever")
    return value


_READERS: Final[Mapping[str, tuple[str, Callable[[Any, str, Path], Any]]]] = {
    "numbers": ("numbers", _numbers),
    "prompt": ("prompt", _prompt),
    "greeting": ("greeting", _text),
    "sorry": ("sorry", _text),
    "timezone": ("timezone", _timezone),
    "language": ("language", _text),
    "listen": ("listen", _listen),
    "think": ("think", _think),
    "voice": ("speak", _speak),
    "brain": ("brain", _brain),
    "first_token_seconds": ("first_token_seconds", _seconds),
    "one_moment": ("one_moment", _text),
    "no_answer": ("no_answer", _text),
    "functions": ("functions", _file),
    "knowledge": ("knowledge", _folder),
    "transfer_to": ("transfer_to", _transfer_to),
    "text_agent": ("text_agent", _text_agent),
    "filler": ("filler", _filler),
    "memory": ("memory", _memory),
}
"""Each key of an agent's table: the field it becomes, and how it is read."""


def _by_number(agents: list[Agent]) -> dict[str, Agent]:
    found: dict[str, Agent] = {}
    for agent in agents:
        for number in agent.numbers:
            if number in found:
                raise SettingsError(f"gateway.toml: {number} belongs to {found[number].name} and to {agent.name}")
            found[number] = agent
    return found
