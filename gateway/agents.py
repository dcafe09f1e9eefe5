"""The agents: which number reaches which agent, how each of them listens, thinks and speaks, and their prompts."""

import asyncio
import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, field, fields, replace
from datetime import datetime
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BeforeValidator, ConfigDict, TypeAdapter, ValidationError, ValidationInfo
from pydantic.dataclasses import dataclass

import gateway
from gateway.errors import SettingsError
from gateway.file_stamp import FileStamp
from gateway.memory.access import TrustPolicy, read_trust
from gateway.memory.identity import RepeatCallerSettings
from gateway.settings import TOML_FILE, exists, first_problem, is_url, meant_word, read_agent_tables, read_table
from gateway.telephony.phone_numbers import e164, transfer_target
from gateway.text.turn_taking import lost_connection_text
from gateway.tools.remote_settings import RemoteToolSettings, read_tools

DEFAULT_AGENT: Final = "maya"
BUNDLED_PROMPTS: Final = {PurePath("prompts/maya.md"), PurePath("prompts/summary.md")}
"""Prompts that come with the program."""
_PACKAGE: Final = Path(gateway.__file__).parent
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_PLACEHOLDER: Final = re.compile(r"\{\{\s*(\w+|persona:[\w-]+)\s*\}\}")
_PERSONA: Final = "persona:"
_FIELD_NAME: Final = re.compile(r"[A-Za-z_]\w{0,63}")
WEBHOOK_EVENTS: Final = ("call.ended", "call.started", "call.transferred", "finalization.failed", "voicemail.left")
_REALTIME_KEYS: Final = {"voice", "turn_detection", "transcription", "noise_reduction", "session"}
_CONFIG: Final = ConfigDict(arbitrary_types_allowed=True, str_strip_whitespace=True, extra="forbid")

_log = logging.getLogger(__name__)


# Kinds of values. Each takes a value of gateway.toml, or its own result; a message follows the key's name.


def _numbers(value: Any) -> frozenset[str]:
    given = [value] if isinstance(value, str | int) else value
    numbers = {str(number): e164(str(number)) for number in given}
    for text, number in numbers.items():
        if number is None:
            raise ValueError(f"has {text!r}, which is not an E.164 number; write it like +12025550100")
    return frozenset(number for number in numbers.values() if number is not None)


def _timezone(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return ZoneInfo(value.strip())
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"is {value!r}, which is not a time zone; write it like America/New_York") from None


def _block(value: Any) -> dict[str, Any]:
    """A provider's block, or the name of its model alone."""
    if not isinstance(value, str | dict):
        raise ValueError("must be text in quotes or a table")
    block = {"model": value.strip()} if isinstance(value, str) else value
    if not block or block.get("model") == "":
        raise ValueError("is empty; name a model, or leave the line out")
    return block


def _listen(value: Any) -> dict[str, Any]:
    block = _block(value)
    return {"type": "deepgram", "version": "v2" if _is_flux(block) else "v1", **block}


def _speak(value: Any) -> dict[str, Any]:
    block = _block(value)
    return {"type": "deepgram", **({"version": "v2"} if _is_flux(block) else {}), **block}


def _is_flux(block: Mapping[str, Any]) -> bool:
    """Deepgram's Flux models are reached by version 2 of its interfaces."""
    return str(block.get("model", "")).startswith("flux")


def _think(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        provider, slash, model = (part.strip() for part in value.partition("/"))
        if not (provider and slash and model):
            raise ValueError(f"is {value!r}; write provider/model, like open_ai/gpt-5.4-mini")
        return {"type": provider, "model": model}
    block = _block(value)
    if not (block.get("type") and block.get("model")):
        raise ValueError("needs type and model, like type = 'open_ai', model = 'gpt-5.4-mini'")
    return block


def _brain(value: Any) -> tuple[str | Mapping[str, Any], ...]:
    entries = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(entry, str | dict) for entry in entries) or value == []:
        raise ValueError("must be like anthropic/claude-haiku-5-5, a table with url and model, or a list")
    return tuple(entries)


def _realtime(value: Any) -> dict[str, Any]:
    """Options of an agent for one of the engines that have OpenAI's Realtime protocol."""
    if not isinstance(value, dict):
        raise ValueError('must be a table like { voice = "marin", turn_detection = "semantic" }')
    if unknown := sorted(set(value) - _REALTIME_KEYS):
        raise ValueError(f": unknown key {unknown[0]}; known are {', '.join(sorted(_REALTIME_KEYS))}")
    if isinstance(value.get("turn_detection", {}), str) and value["turn_detection"] not in ("semantic", "server"):
        raise ValueError('.turn_detection must be "semantic", "server" or a table')
    if not isinstance(value.get("session", {}), dict):
        raise ValueError(".session must be a table: fields of the session, as the service documents them")
    return value


def _engine(value: Any) -> tuple[str, ...]:
    """The engine's name, or several in order of preference. `gateway.engines.registry` knows which there are."""
    entries = value if isinstance(value, list | tuple) else [value]
    engines = tuple(dict.fromkeys(map(engine_name, entries)))
    if "elevenlabs" in engines[1:]:
        raise ValueError(": elevenlabs must be the first of the list; it takes whole calls")
    return engines


def engine_name(entry: Any) -> str:
    """A table with a recogniser and a voice is named by both, like deepgram/flux-general-en+elevenlabs/VOICE."""
    if isinstance(entry, Mapping):
        parts = [entry.get("listen", ""), entry.get("speak", "")]
        known = {"listen", "think", "speak"}
        if set(entry) - known or not all(isinstance(part, str) and part.strip() and "+" not in part for part in parts):
            raise ValueError('needs listen and speak, like listen = "deepgram/flux-general-en", speak = "local"')
        return "+".join(part.strip() for part in parts)
    if not isinstance(entry, str) or not entry.strip():
        raise ValueError('must be an engine\'s name, a table, or a list like ["deepgram", "local"]')
    return entry.strip() if "+" in entry else entry.strip().lower()


def _with_brain(table: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """The table with `think` of its engine as its brain."""
    engine = table.get("engine", ())
    entries = engine if isinstance(engine, list) else [engine]
    thinks = [entry["think"] for entry in entries if isinstance(entry, Mapping) and "think" in entry]
    if not thinks:
        return table
    if "brain" in table or any(think != thinks[0] for think in thinks):
        raise SettingsError(f"{where}: engine.think is the agent's brain; write it once, or as brain")
    return {**table, "brain": thinks[0]}


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 60:
        raise ValueError("must be a number of seconds, up to 60")
    return float(value)


def _days(value: Any) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise ValueError("must be a whole number of days; 0 keeps facts forever")
    return value


def _prompt(value: Any, info: ValidationInfo) -> Any:
    """The text of the file, where the value comes from gateway.toml."""
    if not isinstance(value, str) or not info.context:
        return value
    missing = f"{info.context['where']}: prompt: there is no file {value}; create it, or name another"
    return find_text(value.strip(), info.context["folder"], info.context["data_dir"], missing=missing)


def _beside_toml(kind: str, is_kind: Callable[[Path], bool]) -> BeforeValidator:
    def find(value: Any, info: ValidationInfo) -> Any:
        if value is None or not info.context:
            return value
        if not isinstance(value, str):
            raise ValueError("must be text in quotes")
        path: Path = info.context["folder"] / value.strip()
        if not (exists(path) and is_kind(path)):
            raise ValueError(f": there is no {kind} {value}; it is looked for beside gateway.toml")
        return path

    return BeforeValidator(find)


def _tool_names(value: Any) -> frozenset[str]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple | frozenset) or not all(isinstance(name, str) and name for name in names):
        raise ValueError('must be a list of names, like ["search_memory"]')
    return frozenset(names)


def _transfer_to(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError("must be text in quotes or a table")
    if not all(map(str.strip, value)):
        raise ValueError(': a target has no name; write it like sales = "+12025550177"')
    targets = {name: transfer_target(str(target)) for name, target in value.items()}
    for name, target in targets.items():
        if target is None:
            raise ValueError(f": {name} must be a number like +12025550100 or sip:desk@example.com")
    return {name: target for name, target in targets.items() if target is not None}


def _text_agent(value: str) -> str:
    if value and not (value.partition("/")[0] == "openclaw" or is_url(value, ("http", "https"))):
        raise ValueError("must be openclaw/AGENT or the https address of a webhook")
    return value


def _webhook(value: str) -> str:
    if value and not is_url(value, ("https", "http")):
        raise ValueError("is not an https address; write it like https://host/path")
    return value


def _webhook_events(value: Any) -> frozenset[str]:
    events = [value] if isinstance(value, str) else value
    if unknown := sorted(set(events) - set(WEBHOOK_EVENTS)):
        raise ValueError(f"has {unknown[0]!r}; use some of: {', '.join(WEBHOOK_EVENTS)}")
    return frozenset(events)


def _fields(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("must be a table: a field's name, and what it is")
    found: dict[str, Any] = {}
    for name, given in value.items():
        if not _FIELD_NAME.fullmatch(name):
            raise ValueError(f".{name} is not a field's name; use letters, digits and _")
        table = {"description": given} if isinstance(given, str) else given
        if isinstance(table, dict):
            table = {**table, "type": str(table.get("type", "text")).replace("_", " ")}
            if unknown := sorted(set(table) - {"description", "type", "options"}):
                raise ValueError(f".{name}: unknown key {unknown[0]}; known are description, options, type")
            if (table["type"] == "one of") != bool(table.get("options")):
                raise ValueError(f'.{name} needs options = ["…", "…"] and type = "one of" together')
            table = {"description": "", **table}
        found[name] = table
    return found


def _filler(value: Any) -> Any:
    if value is None or isinstance(value, FillerSettings):
        return value
    table = {"sound": value} if isinstance(value, str) else value
    if not isinstance(table, dict):
        raise ValueError("must be text in quotes or a table")
    if unknown := sorted(set(table) - {"after", "sound", "say"}):
        raise ValueError(f": unknown key {unknown[0]}; known are after, say, sound")
    say, sound = table.get("say", []), table.get("sound", "")
    phrases = tuple(say) if isinstance(say, list) else (say,)
    if sound not in ("", "typing") or bool(sound) == bool(phrases):
        raise ValueError('must be sound = "typing", or say = ["Let me see.", "One second."]')
    try:
        return {"after": _seconds(table.get("after", 2.0)), "sound": sound, "phrases": phrases}
    except ValueError as error:
        raise ValueError(f".after {error}") from None


def _consent(value: Any) -> Any:
    if isinstance(value, ConsentSettings):
        return value
    if not isinstance(value, dict):
        raise ValueError('must be a table like { announce = "This call is recorded.", require = true }')
    if unknown := sorted(set(value) - {"always", "announce", "require"}):
        raise ValueError(f": unknown key {unknown[0]}; known are always, announce, require")
    announce, require = value.get("announce", ""), value.get("require", False)
    if not isinstance(value.get("always", False), bool):
        raise ValueError(".always must be true or false")
    if not isinstance(announce, str):
        raise ValueError(".announce must be text in quotes")
    if not isinstance(require, bool):
        raise ValueError(".require must be true or false")
    if not announce.strip() and not require:
        raise ValueError('.announce is missing; write announce = "This call is recorded."')
    return value


def _silence(value: Any) -> Any:
    if isinstance(value, SilenceSettings):
        return value
    if value is False:
        return SilenceSettings(ask_after=0.0, hang_up_after=0.0)
    if not isinstance(value, dict):
        raise ValueError("must be false, or a table like { ask_after = 20, hang_up_after = 60 }")
    if unknown := sorted(set(value) - {"ask", "ask_after", "hang_up_after"}):
        raise ValueError(f": unknown key {unknown[0]}; known are ask, ask_after, hang_up_after")
    for key in ("ask_after", "hang_up_after"):
        seconds = value.get(key, 0)
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= 3600:
            raise ValueError(f".{key} must be a number of seconds, up to 3600; 0 for never")
    ask_after, hang_up_after = value.get("ask_after"), value.get("hang_up_after")
    if ask_after is None:
        ask_after = min(20.0, hang_up_after / 3) if hang_up_after else 20.0
    elif hang_up_after is None:
        hang_up_after = max(60.0, ask_after * 3)
    elif 0 < hang_up_after <= ask_after:
        raise ValueError(".hang_up_after must be more than ask_after")
    return {**value, "ask_after": ask_after, "hang_up_after": 60.0 if hang_up_after is None else hang_up_after}


@dataclass(frozen=True, config=_CONFIG)
class SilenceSettings:
    """What happens when neither the caller nor the agent speaks. Seconds; 0 for never."""

    ask_after: float = 20.0
    ask: str = ""
    """The question whether the caller is there; empty for one in the agent's language."""
    hang_up_after: float = 60.0
    """Counted from the same moment as `ask_after`."""


@dataclass(frozen=True, config=_CONFIG)
class ConsentSettings:
    """What is said about the recording before the greeting, and whether the caller has to agree to it."""

    announce: str = ""
    require: bool = False
    always: bool = False
    """Also in calls that the gateway does not record: the carrier or the engine may."""

    def __bool__(self) -> bool:
        return bool(self.announce) or self.require


@dataclass(frozen=True, config=_CONFIG)
class FillerSettings:
    """What is played while the agent thinks: a bundled sound, or one of a few phrases."""

    after: float
    sound: str = ""
    phrases: tuple[str, ...] = ()


@dataclass(frozen=True, config=_CONFIG)
class RequestedField:
    """A value that the webhook of a finished call reports, read from the conversation."""

    description: str
    type: Literal["text", "number", "bool", "date", "one of"] = "text"
    options: tuple[str, ...] = ()
    """Of the type "one of"."""


@dataclass(frozen=True)
class LiveSettings:
    """What may be changed while the gateway runs: the next call gets it from the files."""

    prompt: str
    greeting: str
    voice: str
    engine: tuple[str, ...] = ()
    disabled_tools: frozenset[str] = frozenset()
    transfer_to: Mapping[str, str] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """A short hash. Equal settings have the same version."""
        values = {**asdict(self), "disabled_tools": sorted(self.disabled_tools)}
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True, config=_CONFIG)
class Agent:
    """One agent, as configured. `listen`, `think` and `speak` are the engine's own provider blocks."""

    name: str
    prompt: Annotated[str, BeforeValidator(_prompt)]
    """The prompt file's text, with its placeholders."""
    prompt_file: Path = Path()
    """Where it was read from: beside gateway.toml, or one that comes with the program."""
    version: str = ""
    """Of its live settings. An outbound call adds to the prompt; the version stays that of the files."""
    greeting: str = ""
    """The agent's first words; empty: it waits for the caller."""
    sorry: str = "Sorry, I lost you for a second."
    """Said when the conversation goes on after a lost connection."""
    numbers: Annotated[frozenset[str], BeforeValidator(_numbers)] = frozenset()
    timezone: Annotated[ZoneInfo | None, BeforeValidator(_timezone)] = None
    """Its wall clock; None for the machine's own."""
    listen: Annotated[Mapping[str, Any], BeforeValidator(_listen)] = field(
        default_factory=lambda: {"type": "deepgram", "version": "v2", "model": "flux-general-en"}
    )
    think: Annotated[Mapping[str, Any], BeforeValidator(_think)] = field(
        default_factory=lambda: {"type": "open_ai", "model": "gpt-5.4-mini"}
    )
    speak: Annotated[Mapping[str, Any], BeforeValidator(_speak)] = field(
        default_factory=lambda: {"type": "deepgram", "model": "aura-2-thalia-en"}
    )
    openai: Annotated[Mapping[str, Any], BeforeValidator(_realtime)] = field(default_factory=dict)
    xai: Annotated[Mapping[str, Any], BeforeValidator(_realtime)] = field(default_factory=dict)
    engine_thinks: bool = True
    """Whether `think` may answer: always without a brain, and beside one if both are configured."""
    engine: Annotated[tuple[str, ...], BeforeValidator(_engine)] = ()
    """Its voice engines in order of preference; empty: VOICE_ENGINE. elevenlabs, as the first: see `is_handed_over`."""
    elevenlabs_agent: str = ""
    """Its id at ElevenLabs, where it is hosted or has a twin."""
    vapi_assistant: str = ""
    retell_agent: str = ""
    brain: Annotated[tuple[str | Mapping[str, Any], ...], BeforeValidator(_brain)] = ()
    """Its own language models, called by the gateway: the first, and its fallbacks. Empty: the engine's."""
    redact_brain: bool = True
    """Whether secrets are removed from what its own language models receive."""
    first_token_seconds: Annotated[float, BeforeValidator(_seconds)] = 4.0
    """Without a first token after this time, the next language model is asked as well."""
    one_moment: str = "One moment, please."
    """Said when no language model has begun to answer."""
    no_answer: str = "I'm sorry, I can't answer that right now. Could you say it again?"
    """Said when all language models have failed."""
    language: str = "en"
    """How written text is turned into spoken words."""
    functions: Annotated[Path | None, _beside_toml("file", Path.is_file)] = None
    """A Python file whose functions the agent can call."""
    tools: Annotated[tuple[RemoteToolSettings, ...], BeforeValidator(read_tools)] = ()
    """MCP servers and HTTP requests that the agent can use as tools."""
    knowledge: Annotated[Path | None, _beside_toml("folder", Path.is_dir)] = None
    """A folder of texts that the agent can search."""
    disabled_tools: Annotated[frozenset[str], BeforeValidator(_tool_names)] = frozenset()
    """Names of built-in tools, functions and remote tools that the agent does not get."""
    transfer_to: Annotated[Mapping[str, str], BeforeValidator(_transfer_to)] = field(default_factory=dict)
    """Where the agent may transfer a caller: names, and numbers or SIP addresses."""
    text_agent: Annotated[str, AfterValidator(_text_agent)] = ""
    """What carries out tasks that the agent delegates: openclaw/AGENT, or a webhook's address."""
    filler: Annotated[FillerSettings | None, BeforeValidator(_filler)] = None
    consent: Annotated[ConsentSettings, BeforeValidator(_consent)] = ConsentSettings()
    """To the recording of its calls."""
    interrupt: Literal["at_once", "words", "never"] = "at_once"
    """What stops the agent: a sound of the caller, words, or nothing."""
    patience: Literal["short", "normal", "long"] = "normal"
    """How long a pause of the caller may be before it ends their turn."""
    silence: Annotated[SilenceSettings, BeforeValidator(_silence)] = SilenceSettings()
    """What a silent caller is asked, and when the agent hangs up."""
    repeat_caller: RepeatCallerSettings = RepeatCallerSettings()
    """What identifies a caller, and what tools may store about one from call to call."""
    trust: TrustPolicy = TrustPolicy()
    """How much of a caller's memory may be used, by how far the caller is trusted."""
    webhook: Annotated[str, AfterValidator(_webhook)] = ""
    """Where its finished calls are posted; empty for WEBHOOK_URL."""
    webhook_events: Annotated[frozenset[str], BeforeValidator(_webhook_events)] = frozenset({"call.ended"})
    fields: Annotated[Mapping[str, RequestedField], BeforeValidator(_fields)] = field(default_factory=dict)
    """What the webhook reports of a call, by name."""
    retention_days: Annotated[int | None, BeforeValidator(_days)] = None
    """How long facts are used, 0 for ever; None for MEMORY_RETENTION_DAYS."""

    @property
    def live(self) -> LiveSettings:
        voice = str(self.speak.get("model", ""))
        return LiveSettings(self.prompt, self.greeting, voice, self.engine, self.disabled_tools, self.transfer_to)

    @property
    def keyterms(self) -> tuple[str, ...]:
        """Words that recognisers should expect."""
        terms = self.listen.get("keyterms", ())
        return tuple(map(str, terms)) if isinstance(terms, list | tuple) else ()

    @property
    def realtime(self) -> Mapping[str, Mapping[str, Any]]:
        """Its options for engines with OpenAI's Realtime protocol, by the engine's name."""
        return {"openai": self.openai, "xai": self.xai}

    @property
    def is_handed_over(self) -> bool:
        """Whether its Twilio calls are handed to `elevenlabs_agent`; its other calls have the rest of `engine`."""
        return self.engine[:1] == ("elevenlabs",)

    @property
    def engines(self) -> tuple[str, ...]:
        """The voice engines that it names for calls of the gateway itself."""
        return self.engine[1:] if self.is_handed_over else self.engine

    @property
    def hosted_ids(self) -> Mapping[str, str]:
        """Its id at each platform that hosts it, by the platform's name."""
        ids = {"elevenlabs": self.elevenlabs_agent, "vapi": self.vapi_assistant, "retell": self.retell_agent}
        return {platform: hosted_id for platform, hosted_id in ids.items() if hosted_id}


class AgentUser(Protocol):
    """What calls need of an agent, made from its settings: engines, language models, dialling rules."""

    def check(self, agent: Agent) -> None:
        """Raise SettingsError, as `gateway serve` would, if calls can't use it. Changes nothing; may block."""

    def prepare(self, agent: Agent) -> None:
        """Make what is new, before the first call of this version."""


class NoAgentUser:
    """The user of agents that no call has."""

    def check(self, agent: Agent) -> None: ...
    def prepare(self, agent: Agent) -> None: ...


class AgentDirectory:
    """
    All agents, looked up by the dialled number.

    `refresh` takes over `LiveSettings` from changed files; everything else is read once, when it is made.
    """

    def __init__(self, tables: Mapping[str, Mapping[str, Any]], folder: Path, *, data_dir: Path | None = None) -> None:
        """Without `data_dir`, the agents are only read: changed copies of prompts that come with the program aren't."""
        self.folder = folder
        self._data_dir = data_dir
        self._tables = dict(tables or {DEFAULT_AGENT: {}})
        self._stamps = self._stamp_files()
        agents = [_read_agent(name, table, folder, data_dir) for name, table in self._tables.items()]
        self._agents = {agent.name: agent for agent in agents}
        self._in_files = self._agents
        self.files_lock = asyncio.Lock()
        """Held while the files are read again, or written: a version may be in two of them."""
        self._user: AgentUser = NoAgentUser()
        self.problem = ""
        """Why changed files can't be used; empty if they can."""
        self._by_number: dict[str, str] = {}
        for agent in agents:
            for number in agent.numbers:
                other = self._by_number.setdefault(number, agent.name)
                if other != agent.name:
                    raise SettingsError(f"gateway.toml: {number} belongs to {other} and to {agent.name}")
        for key in ("elevenlabs_agent", "vapi_assistant", "retell_agent"):
            hosted = [getattr(agent, key) for agent in agents if getattr(agent, key)]
            if len(hosted) != len(set(hosted)):
                raise SettingsError(f"gateway.toml: two agents have the same {key}")
        self._default = next((agent for agent in agents if not agent.numbers), agents[0]).name

    def __iter__(self) -> Iterator[Agent]:
        return iter(self._agents.values())

    def get(self, name: str) -> Agent | None:
        return self._agents.get(name)

    @property
    def transfer_targets(self) -> list[str]:
        """The targets of all agents."""
        return [target for agent in self for target in agent.transfer_to.values()]

    def answering(self, called: str) -> Agent:
        """The agent that answers this number or name; else the first without numbers, else the first."""
        name = self._by_number.get(e164(called) or called, called)
        return self._agents.get(name) or self._agents[self._default]

    def attach(self, user: AgentUser) -> None:
        """Ask `user` before an agent is changed."""
        self._user = user

    def keys_read_at_start(self, name: str) -> list[str]:
        """The keys of gateway.toml that differ from what this process uses, because it read them when it started."""
        used, in_files = self._agents[name], self._in_files[name]
        names = (item.name for item in fields(Agent) if item.name not in ("engine_thinks", "prompt_file"))
        return sorted(_SHOWN_KEYS.get(key, key) for key in names if getattr(used, key) != getattr(in_files, key))

    @property
    def added(self) -> list[str]:
        """The agents that gateway.toml has since this process started."""
        return sorted(self._tables.keys() - self._agents.keys())

    async def refresh(self) -> None:
        """Read changed files again. If one is broken, `problem` says why and the version in use stays."""
        async with self.files_lock:
            stamps = await asyncio.to_thread(self._stamp_files)
            if stamps == self._stamps and not self.problem:  # a problem may be solved by a file that has no stamp here
                return
            self._stamps = stamps
            try:
                self._tables, self._in_files = await asyncio.to_thread(self._read_and_check)
            except SettingsError as error:
                if self.problem != str(error):
                    self.problem = str(error)
                    _log.error("agents can't be read again, keeping the previous version", extra={"reason": str(error)})
                return
            self.problem = ""
            for name, agent in self._agents.items():
                if self._in_files[name].version != agent.version:
                    changed = _with_live(agent, self._in_files[name])
                    self._user.prepare(changed)
                    self._agents[name] = changed
                    _log.info("agent changed", extra={"agent": name, "version": self._in_files[name].version})

    def read(self, name: str) -> Agent:
        """The agent as it is in the files now. Blocks; raises SettingsError."""
        return self._read_again()[1][name]

    def check(self, name: str, table: Mapping[str, Any]) -> Agent:
        """The agent with another table in gateway.toml. Blocks; raises SettingsError if calls can't use it."""
        agent = _with_live(self._agents[name], _read_agent(name, table, self.folder, self._data_dir))
        self._user.check(agent)
        return agent

    def table(self, name: str) -> Mapping[str, Any]:
        """Its table in gateway.toml, as last read."""
        return self._tables[name]

    def prompt_path(self, name: str) -> Path:
        """Where its prompt is, or is saved: beside gateway.toml, or the copy of one that comes with the program."""
        prompt = _prompt_name(name, self._tables[name])
        return _saved_copy(prompt, self.folder, self._data_dir) or self.folder / prompt

    def _read_and_check(self) -> tuple[dict[str, Mapping[str, Any]], dict[str, Agent]]:
        tables, in_files = self._read_again()
        for name, agent in self._agents.items():
            if in_files[name].version != agent.version:
                self._user.check(_with_live(agent, in_files[name]))
        return tables, in_files

    def _read_again(self) -> tuple[dict[str, Mapping[str, Any]], dict[str, Agent]]:
        """The tables and agents as they are in the files. An agent that was deleted there stays until a restart."""
        tables = {**self._tables, **read_agent_tables(self.folder)}
        return tables, {name: _read_agent(name, tables[name], self.folder, self._data_dir) for name in self._agents}

    def _stamp_files(self) -> dict[Path, FileStamp | None]:
        """What shows whether a file has changed. Prompts in the program's wheel stay as they are."""
        places = [folder for folder in (self.folder, self._data_dir) if folder is not None]
        names = [_prompt_name(name, table) for name, table in self._tables.items()]
        paths = [self.folder / TOML_FILE, *(folder / name for folder in places for name in names)]
        return {path: FileStamp.of(path) for path in paths}


def _prompt_name(agent: str, table: Mapping[str, Any]) -> str:
    return str(table.get("prompt", f"prompts/{agent}.md")).strip()


def _with_live(agent: Agent, other: Agent) -> Agent:
    """With what `LiveSettings` has of the other one."""
    names = ("prompt", "prompt_file", "version", "greeting", "speak", "engine", "disabled_tools", "transfer_to")
    return replace(agent, **{name: getattr(other, name) for name in names})


def find_text(name: str, folder: Path, data_dir: Path | None = None, *, missing: str) -> str:
    """The text of a file beside gateway.toml, or of one that comes with the program. Raises SettingsError."""
    path = find_file(name, folder, data_dir)
    if path is None:
        raise SettingsError(missing)
    try:
        return path.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        raise SettingsError(f"{path.name} is not UTF-8 text; save it as such") from None
    except OSError as error:
        raise SettingsError(f"{path.name} can't be read: {error.strerror}") from None


def find_file(name: str, folder: Path, data_dir: Path | None = None) -> Path | None:
    """Beside gateway.toml, in the program's wheel or repository, or the changed copy of one from there."""
    copy = _saved_copy(name, folder, data_dir)
    if copy is not None and os.path.isfile(copy):  # without an error: a DATA_DIR that can't be used is named elsewhere
        return copy
    places = [folder / name, _PACKAGE / name, _PACKAGE.parent / name]
    return next((path for path in places if exists(path) and path.is_file()), None)


def _saved_copy(name: str, folder: Path, data_dir: Path | None) -> Path | None:
    """
    Where changes of a prompt that comes with the program are saved. None for another prompt.

    Not in the repository: the next version could not be pulled over a file that was changed.
    """
    is_own = exists(folder / name) and folder.resolve() != _PACKAGE.parent.resolve()
    return None if data_dir is None or is_own or PurePath(name) not in BUNDLED_PROMPTS else data_dir / name


# Reading a table

_OTHERWISE: Final = {
    *("name", "prompt_file", "version", "engine_thinks", "speak", "repeat_caller", "trust", "retention_days"),
}
_SHOWN_KEYS: Final = {
    "speak": "voice",
    "repeat_caller": "memory.repeat_caller",
    "retention_days": "memory.retention_days",
    "trust": "memory.trust",
}
"""Fields that have another name in gateway.toml."""
_KEYS: Final = sorted({item.name for item in fields(Agent)} - _OTHERWISE | {"memory", "voice"})
_ADAPTER: Final = TypeAdapter(Agent)


def _read_agent(name: str, table: Mapping[str, Any], folder: Path, data_dir: Path | None) -> Agent:
    where = f"gateway.toml, [agents.{name}]"
    if not _NAME.fullmatch(name):
        raise SettingsError(f"{where}: an agent's name is lower-case letters, digits, - and _")
    if unknown := sorted(set(table) - set(_KEYS)):
        meant = meant_word(unknown[0], _KEYS) or f"; known are {', '.join(_KEYS)}"
        raise SettingsError(f"{where}: unknown key {unknown[0]}{meant}")
    table = _with_brain(table, where)
    given: dict[str, Any] = {
        "name": name,
        "prompt": _prompt_name(name, {}),
        "greeting": f"Hello, this is {name.capitalize()}. How can I help you?",
        "engine_thinks": "think" in table or "brain" not in table,
        "sorry": lost_connection_text(str(table.get("language", "en"))),
        **table,
    }
    if "voice" in given:
        given["speak"] = given.pop("voice")
    beside = [(folder / str(given[key])).parent / "memory.json" for key in ("prompt", "functions") if given.get(key)]
    for path in (folder / "gateway.json", *beside):
        given |= _read_memory(_json_memory(path), f"{path.name}: memory")
    given |= _read_memory(given.pop("memory", {}), f"{where}: memory")
    try:
        agent = _ADAPTER.validate_python(given, context={"folder": folder, "data_dir": data_dir, "where": where})
    except ValidationError as error:
        key, problem = first_problem(error)
        raise SettingsError(f"{where}: {_SHOWN_KEYS.get(key, key)}{problem}") from None
    if agent.is_handed_over and not agent.elevenlabs_agent:
        raise SettingsError(f"{where}: engine elevenlabs needs elevenlabs_agent, the agent's id there")
    path = find_file(_prompt_name(name, table), folder, data_dir) or Path()
    return replace(agent, prompt_file=path, version=agent.live.version)


def _json_memory(path: Path) -> Any:
    """The `memory` object of a JSON file, which takes the place of the table in gateway.toml."""
    if not exists(path):
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path.name} can't be read: {error.strerror}") from None
    except ValueError as error:
        raise SettingsError(f"{path.name} can't be read: {error}") from None
    if not isinstance(content, dict) or [*content] != ["memory"]:
        raise SettingsError(f"{path.name} must be an object with the key memory")
    return content["memory"]


def _read_memory(table: Any, where: str) -> dict[str, Any]:
    """The fields of an agent that its `memory` table stands for."""
    if not isinstance(table, dict):
        raise SettingsError(f"{where} must be text in quotes or a table")
    known = ("repeat_caller", "retention_days", "trust")
    if unknown := sorted(set(table) - set(known)):
        raise SettingsError(f"{where}: unknown key {unknown[0]}; known are {', '.join(known)}")
    given = dict(table)
    if "repeat_caller" in given:
        given["repeat_caller"] = read_table(RepeatCallerSettings, given["repeat_caller"], f"{where}.repeat_caller")
    if "trust" in given:
        given["trust"] = read_trust(given["trust"], f"{where}.trust")
    return given


# Prompts: a file has places for `{{memory}}`, `{{now}}`, `{{caller}}`, `{{context}}` and `{{persona:NAME}}`


def wants_memory(template: str) -> bool:
    """Whether the prompt has a place for memory; without one, none is loaded."""
    return any(name == "memory" for name in _PLACEHOLDER.findall(template))


def wanted_personas(template: str) -> tuple[str, ...]:
    """The names of the personas in this prompt, without duplicates."""
    names = (name.removeprefix(_PERSONA) for name in _PLACEHOLDER.findall(template) if name.startswith(_PERSONA))
    return tuple(dict.fromkeys(names))


def with_context(template: str, context: str) -> str:
    """The prompt of an outbound call: its context replaces {{context}}, or is added at the end."""
    if any(name == "context" for name in _PLACEHOLDER.findall(template)):
        return _PLACEHOLDER.sub(lambda match: context if match[1] == "context" else match[0], template)
    return f"{template.rstrip()}\n\n# Why you are calling\n{context}" if context else template


def render_prompt(
    template: str, *, memory: str, now: datetime, caller: str, personas: Mapping[str, str] = MappingProxyType({})
) -> str:
    """
    The prompt for one call. `personas`: the text of each persona it names; a missing one is left empty.

    One pass over the template: placeholders inside memory, which a caller may have spoken, are not replaced. Unknown
    placeholders stay as they are.
    """
    values = {
        "memory": memory,
        "now": spoken_time(now),
        "caller": caller or "an unknown caller",
        "context": "",  # only outbound calls have one
        **{f"{_PERSONA}{name}": personas.get(name, "") for name in wanted_personas(template)},
    }
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), template).strip()


def spoken_time(now: datetime) -> str:
    """A date and time in words."""
    return f"{now:%A}, {now.day} {now:%B %Y}, {now:%I:%M %p}".replace(", 0", ", ")
