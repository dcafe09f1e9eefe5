"""
All configuration, read once.

`load(environ, folder)` builds one frozen `Settings` from the environment, `.env` and `gateway.toml`, in that order of
precedence. Nothing else reads the environment; a package is given the values it needs, not the whole.
"""

import base64
import binascii
import dataclasses
import difflib
import errno
import io
import ipaddress
import os
import re
import secrets
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar, cast
from urllib.parse import urlsplit

import dotenv
import dotenv.parser
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from gateway.errors import InvalidSettings, SettingsError
from gateway.invocation import command

ADMIN_TOKEN_FILE: Final = "admin-token"
TOML_FILE: Final = "gateway.toml"
_HOST: Final = r"(?:\[[^\]@/]*\]|[\w.%-]*)(?::\d{1,5})?"
_POSTGRES_URL: Final = re.compile(rf"postgres(?:ql)?://(?:[^@/]*@)?{_HOST}(?:,{_HOST})*(?:/[^@/?]*)?(?:\?.*)?")
"""As libpq reads it. Anything else would make a part of the password the name of a host, a port or a database."""
ENGINE_KEYS: Final = {"deepgram": "DEEPGRAM_API_KEY", "openai": "OPENAI_API_KEY", "xai": "XAI_API_KEY"}
"""The keys of voice engines that need one, in the order in which an engine is chosen if VOICE_ENGINE is not set."""
MIN_ADMIN_TOKEN: Final = 16
"""Characters. 16 random ones can't be guessed over the network; a shorter one is probably a word."""

DEEPCLAW_SETTINGS: Final[Mapping[str, str]] = {
    "VOICE_PROVIDER": "every carrier with keys is active",
    "OPENCLAW_VOICE_MODEL": "choose the model in OpenClaw, or set brain in gateway.toml",
    "PROXY_SECRET": "each call has a token of its own",
}
"""Variables that only DeepClaw reads, and what replaces them."""

Table = TypeVar("Table")


class Secret:
    """A value that is masked wherever it is printed; `reveal` is for the line that sends it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret(…)"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)


def is_url(text: str, schemes: tuple[str, ...]) -> bool:
    """Whether this is an address with a host and one of these schemes."""
    try:
        parts = urlsplit(text)
        return parts.scheme in schemes and bool(parts.hostname) and (parts.port or 0) >= 0  # `port` checks itself
    except ValueError:
        return False


def local_url(host: str, port: int) -> str:
    """Where this machine reaches a gateway that listens on `host`."""
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{name}]' if ':' in name else name}:{port}"


# Kinds of values. Each takes the text of the environment; a message follows the setting's name.


def _path(value: Any) -> Any:
    try:
        return Path(value).expanduser() if isinstance(value, str) else value
    except RuntimeError:
        raise ValueError(f"is {value!r}; there is no such user") from None


def _key(value: Any) -> Any:
    if isinstance(value, str):
        if not (value.isascii() and value.isprintable()):
            raise ValueError("has a character that is not allowed in a header; copy it again")
        return Secret(value)
    return value


def _fernet_keys(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    keys = [key.strip() for key in value.split(",")]
    try:
        sizes = {len(base64.urlsafe_b64decode(key)) for key in keys}
    except (binascii.Error, ValueError):
        sizes = {0}
    if sizes != {32}:
        how = f"make one with: {command('recordings key')}"
        raise ValueError(f"is not a key, or several with commas between them; {how}")
    return Secret(",".join(keys))


def _proxies(text: str) -> str:
    for entry in text.split(","):
        try:
            if (entry := entry.strip()) not in ("", "*"):
                ipaddress.ip_network(entry)
        except ValueError:
            raise ValueError(f"has {entry!r}; use addresses and networks, such as 10.0.0.5 or 172.28.77.0/24") from None
    return text


def _address(*schemes: str) -> AfterValidator:
    def check(text: str) -> str:
        # The message does not quote the address: it may hold a password.
        if text and not is_url(text, schemes):
            known = " or ".join(f"{scheme}://" for scheme in schemes)
            raise ValueError(f"is not an address with {known}; write it like {schemes[0]}://host/path")
        return text

    return AfterValidator(check)


WholeNumber = Annotated[int, Field(ge=0, lt=10**9)]
Folder = Annotated[Path, BeforeValidator(_path)]
Key = Annotated[Secret | None, BeforeValidator(_key)]
SecretText = Annotated[Secret | None, BeforeValidator(lambda value: Secret(value) if isinstance(value, str) else value)]
HttpUrl = Annotated[str, _address("https", "http")]
SocketUrl = Annotated[str, _address("wss", "ws")]
Names = Annotated[
    frozenset[str],
    BeforeValidator(
        lambda value: {name.strip() for name in value.split(",")} - {""} if isinstance(value, str) else value
    ),
]
KEYED_PROVIDERS: Final = ("anthropic", "xai", "openai")
"""Language models that need a key, in order of preference."""
SUMMARY_PROVIDERS: Final = (*KEYED_PROVIDERS, "openclaw", "brain", "extractive")


def _summary_provider(value: str) -> str:
    """One of the names, in any case, or a URL."""
    if value.lower() in ("", *SUMMARY_PROVIDERS):
        return value.lower()
    if not is_url(value, ("https", "http")):
        known = ", ".join(SUMMARY_PROVIDERS)
        raise ValueError(f"is {value!r}; use one of: {known}, or the URL of a server with chat completions")
    return value


_lower: Final = BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value)


class Settings(BaseModel):
    """The configuration of the gateway. Field names are the environment's, in lower case."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    host: str = Field("127.0.0.1", description="where it listens")
    port: WholeNumber = Field(8000, description="where it listens; 0 takes a free one")
    public_url: HttpUrl = Field("", description="the https address carriers reach; empty: the request's forwarded host")
    data_dir: Folder = Field(Path("data"), description="call log, embedded store and admin token; mode 0700")
    allowed_callers: Names = Field(frozenset(), description="E.164 numbers, comma separated; * for anyone")
    max_calls: WholeNumber = Field(0, description="calls at once, on all nodes; 0: no limit")
    max_call_seconds: WholeNumber = Field(3600, description="longest call; 0: no limit")
    calls_per_caller: WholeNumber = Field(3, description="calls at once of one number; 0: no limit")
    outbound_allowed: Names = Field(
        frozenset(), description="prefixes that may be dialled; * for all; empty: the country of the agent's own number"
    )
    outbound_per_hour: WholeNumber = Field(60, description="calls that may be placed in an hour; 0: no limit")

    twilio_account_sid: str = Field("", description="unset: Twilio paths answer 503")
    twilio_auth_token: Key = Field(None, description="checks webhooks, and hangs up calls")
    twilio_api_url: HttpUrl = Field("https://api.twilio.com", description="Twilio's REST API")
    telnyx_api_key: Key = Field(None, description="unset: Telnyx paths answer 503")
    telnyx_public_key: str = Field("", description="checks webhooks; base64, from the Telnyx portal")
    telnyx_api_url: HttpUrl = Field("https://api.telnyx.com/v2", description="Telnyx's REST API")

    voice_engine: Annotated[str, _lower] = Field(
        "", description="one engine, or several with commas; unset: the first that has a key, else local"
    )
    local_engine_calls: WholeNumber = Field(0, description="concurrent calls of the local engine; 0: four per core")
    local_recogniser: str = Field("moonshine", description="moonshine, whisper/MODEL, or https://host/v1#MODEL")
    local_voice: str = Field("hibari", description="hibari, or https://host/v1#MODEL/VOICE")
    local_speech_api_key: Key = Field(None, description="key for a recogniser or a voice at an address")
    deepgram_api_key: Key = Field(None, description="unset: no Deepgram")
    deepgram_agent_url: SocketUrl = Field(
        "wss://agent.deepgram.com/v1/agent/converse", description="Deepgram's Voice Agent socket"
    )
    openai_realtime_url: SocketUrl = Field(
        "wss://api.openai.com/v1/realtime", description="OpenAI's Realtime socket, or a compatible one; ?model= is kept"
    )
    xai_realtime_url: SocketUrl = Field("wss://api.x.ai/v1/realtime", description="xAI's Realtime socket")
    deepgram_api_url: SocketUrl = Field(
        "wss://api.deepgram.com", description="Deepgram's recognisers and voices, for engine = { listen, speak }"
    )
    cartesia_api_key: Key = Field(None, description="voices of Cartesia, for engine = { speak = cartesia/VOICE }")
    cartesia_api_url: SocketUrl = Field("wss://api.cartesia.ai", description="Cartesia's voices")

    elevenlabs_api_key: Key = Field(None, description="unset: the ElevenLabs paths answer 503")
    elevenlabs_api_url: HttpUrl = Field("https://api.elevenlabs.io", description="ElevenLabs' REST API")
    elevenlabs_webhook_secret: Key = Field(None, description="checks the signature of /elevenlabs/post-call")
    elevenlabs_initiation_secret: Key = Field(
        None, description="what the header X-Gateway-Secret of /elevenlabs/initiation must hold"
    )
    vapi_server_secret: Key = Field(
        None, description="what X-Vapi-Secret or the bearer token of /vapi/server must be; unset: it answers 503"
    )
    retell_api_key: Key = Field(None, description="checks Retell's signatures; unset: the /retell/ paths answer 503")

    remem_api_url: HttpUrl = Field("", description="a store that gets call documents too; unset: the embedded one only")
    remem_api_key: Key = Field(None, description="key for that store; without a URL: a key for the embedded store")
    summary_provider: Annotated[str, AfterValidator(_summary_provider)] = Field(
        "",
        description="what writes summaries: anthropic, xai, openai, openclaw, brain (the agent's own), extractive, or "
        "the URL of a server with chat completions; unset: the first that has a key, else brain",
    )
    summary_model: str = Field("", description="unset: claude-haiku-5-5, grok-4.3 or gpt-5.4-mini")
    summary_api_key: Key = Field(None, description="key for the server that SUMMARY_PROVIDER names by its URL")
    anthropic_api_key: Key = Field(None, description="summaries by Claude")
    anthropic_base_url: HttpUrl = Field("https://api.anthropic.com", description="without /v1")
    xai_api_key: Key = Field(None, description="summaries by Grok, and the engine xai")
    xai_api_url: HttpUrl = Field("https://api.x.ai/v1", description="with /v1")
    openai_api_key: Key = Field(None, description="summaries by GPT, openai/MODEL as a brain, and the engine openai")
    openai_base_url: HttpUrl = Field("https://api.openai.com/v1", description="with /v1")
    openclaw_gateway_url: HttpUrl = Field("", description="an OpenClaw gateway, for an agent's brain or text_agent")
    openclaw_gateway_token: Key = Field(None, description="its token; it gives full access there, so keep it private")

    webhook_url: HttpUrl = Field("", description="where finished calls are posted; an agent may have its own webhook")
    webhook_secret: Key = Field(
        None,
        description="signs webhooks; made by gateway webhook secret; two with a comma while one replaces the other",
    )

    redis_url: SecretText = Field(None, description="unset: one node, everything embedded; else shared by nodes")
    redis_password: SecretText = Field(None, description="its password, unless REDIS_URL has one")
    database_url: SecretText = Field(None, description="unset: memory in a file under DATA_DIR; else this PostgreSQL")
    voice_session_enabled: bool = Field(True, description="false: calls work, nothing is stored or remembered")
    voice_session_sync_interval: WholeNumber = Field(
        30, description="seconds between checkpoints of a live call to Redis"
    )
    voice_session_context_limit: WholeNumber = Field(3, description="past calls in the prompt")
    voice_session_archive_dir: Folder = Field(Path("/tmp/voice-sessions"), description="raw transcripts; mode 0700")
    voice_session_archive_days: WholeNumber = Field(
        365, description="days until calls leave prompt, search and lists, and are kept compressed; 0: never"
    )
    voice_session_retention_days: WholeNumber = Field(7, description="days until raw transcripts are deleted; 0: never")

    memory_vectors: bool = Field(True, description="false: memory is searched by words alone, which saves 250 MB")
    memory_half_life_days: WholeNumber = Field(
        30, description="days after which a memory counts half as much as a new one; 0: age does not count"
    )
    audit_retention_days: WholeNumber = Field(365, description="days until audit entries are deleted; 0: never")
    memory_retention_days: WholeNumber = Field(90, description="days until facts expire and are deleted; 0: never")

    gateway_admin_token: Key = Field(None, description="unset: made at first start, kept under DATA_DIR")
    record_dir: Annotated[Path | None, BeforeValidator(_path)] = Field(
        None, description="unset: nothing is recorded; else recorded calls, for gateway replay"
    )
    record_retention_days: WholeNumber = Field(7, description="days until recordings are deleted; 0: never")
    record_key: Annotated[Secret | None, BeforeValidator(_fernet_keys)] = Field(
        None, description="encrypts recordings; several with commas: the first encrypts, all decrypt; unset: plain"
    )
    listen_in: bool = Field(False, description="true: dashboard users may listen to live calls")
    max_connections: WholeNumber = Field(
        500, description="HTTP connections at once, without media sockets; 0: no limit"
    )
    max_connections_per_peer: WholeNumber = Field(
        100, description="HTTP connections at once of one address; not for FORWARDED_ALLOW_IPS; 0: no limit"
    )
    forwarded_allow_ips: Annotated[str, AfterValidator(_proxies)] = Field(
        "127.0.0.1", description="proxies whose forwarded headers count: addresses and networks, separated by commas"
    )
    drain_seconds: WholeNumber = Field(600, description="how long live calls may go on after SIGTERM")
    otel_exporter_otlp_endpoint: HttpUrl = Field("", description="a collector for traces, over HTTP; unset: none")
    log_format: Annotated[Literal["", "text", "json"], _lower] = Field("", description="text on a terminal, else json")
    log_level: Annotated[Literal["debug", "info", "warning", "error"], _lower] = Field(
        "info", description="debug shows frames, never their content"
    )

    agents: Mapping[str, Mapping[str, Any]] = {}
    """The `[agents.NAME]` tables of gateway.toml, as read; `gateway.agents` gives them meaning."""
    folder: Path = Path(".")
    """Where gateway.toml and prompts are looked for."""
    agent_keys: Mapping[str, Secret] = {}
    """The variables that agents' tables name, with `api_key_env` or as `env:NAME`, as far as they are set."""
    from_deepclaw: tuple[str, ...] = ()
    """Those of DEEPCLAW_SETTINGS that are set."""
    misspelt: Mapping[str, str] = {}
    """Names in `.env` that are no settings but look like one, which is the value."""
    otel: Mapping[str, str] = Field({}, repr=False)
    """The variables OTEL_*, which OpenTelemetry's SDK reads itself. Their headers may hold a key."""

    @property
    def engines(self) -> tuple[str, ...]:
        """The voice engines of agents that name none: the first one, and those that replace it when it fails."""
        named = tuple(dict.fromkeys(name for part in self.voice_engine.split(",") if (name := part.strip())))
        return named or (next((engine for engine in ENGINE_KEYS if self.has_engine_key(engine)), "local"),)

    def has_engine_key(self, engine: str) -> bool:
        """Whether the key of this engine is set, or it needs none."""
        return engine not in ENGINE_KEYS or bool(getattr(self, ENGINE_KEYS[engine].lower()))

    @property
    def webhook_secrets(self) -> tuple[Secret, ...]:
        """Each signs every webhook, so that a receiver may use any of them."""
        texts = self.webhook_secret.reveal().split(",") if self.webhook_secret else ()
        return tuple(Secret(text.strip()) for text in texts if text.strip())

    @property
    def ignored(self) -> str:
        """Variables of DeepClaw that are set and have no effect, and what replaces them; empty if there are none."""
        return "; ".join(f"{name}: {DEEPCLAW_SETTINGS[name]}" for name in self.from_deepclaw)

    @property
    def carriers(self) -> frozenset[str]:
        """The carriers whose credentials are set."""
        keys = {"twilio": self.twilio_auth_token, "telnyx": self.telnyx_api_key}
        return frozenset(name for name, key in keys.items() if key is not None)


NAMES: Final = tuple(name.upper() for name, field in Settings.model_fields.items() if field.description)


def load(environ: Mapping[str, str], folder: Path) -> Settings:
    """Read settings from the environment, `folder/.env` and `folder/gateway.toml`; SettingsError on a mistake."""
    table = _read_toml(folder / TOML_FILE)
    agents = _pop_agents(table)
    from_file = {name.upper(): _as_text(name, value) for name, value in table.items()}
    if unknown := sorted(name.lower() for name in set(from_file) - set(NAMES)):
        known = [*(name.lower() for name in NAMES), "agents"]
        meant = (f"{name}{meant_word(name, known) or '; docs/settings.md lists them all'}" for name in unknown)
        raise InvalidSettings([f"gateway.toml: unknown setting {one}" for one in meant])
    from_dotenv = _read_dotenv(folder / ".env")
    texts = {**from_file, **from_dotenv, **environ}
    given = {name.lower(): texts[name].strip() for name in NAMES if texts.get(name, "").strip()}
    keys = {name: Secret(texts[name]) for name in _named_keys(agents.values()) if texts.get(name)}
    try:
        otel = {name: value for name, value in texts.items() if name.startswith("OTEL_") and value}
        deepclaw = tuple(name for name in DEEPCLAW_SETTINGS if texts.get(name, "").strip())
        misspelt = _misspelt(from_dotenv.keys() - keys.keys())
        more = {"agent_keys": keys, "from_deepclaw": deepclaw, "misspelt": misspelt, "otel": otel}
        settings = Settings(**given, agents=agents, folder=folder, **more)
    except ValidationError as error:
        found = ((name.upper(), problem) for name, problem in map(_problem, error.errors(include_url=False)))
        raise InvalidSettings([f"{name}{problem}" for name, problem in found]) from None
    if mistakes := list(_mistakes_together(settings)):
        raise InvalidSettings(mistakes)
    return settings


def _misspelt(names: Iterable[str]) -> dict[str, str]:
    """Others are none of our business: `.env` may hold variables of functions and other programs."""
    known = {*NAMES, *DEEPCLAW_SETTINGS}
    unknown = sorted(name for name in names if name not in known and not name.startswith("OTEL_"))
    similar = {name: difflib.get_close_matches(name.upper(), known, n=1, cutoff=0.85) for name in unknown}
    return {name: found[0] for name, found in similar.items() if found}


def read_agent_tables(folder: Path) -> dict[str, Mapping[str, Any]]:
    """The `[agents.NAME]` tables as they are in the file now. Raises SettingsError."""
    return _pop_agents(_read_toml(folder / TOML_FILE))


def _pop_agents(table: dict[str, Any]) -> dict[str, Mapping[str, Any]]:
    agents = table.pop("agents", {})
    if not isinstance(agents, dict) or not all(isinstance(agent, dict) for agent in agents.values()):
        raise SettingsError("gateway.toml: agents must be tables; write [agents.NAME]")
    return agents


def first_problem(error: ValidationError) -> tuple[str, str]:
    """The first problem of a table: the path of the value, and the rest of the sentence."""
    return _problem(error.errors(include_url=False)[0])


def _problem(found: ErrorDetails) -> tuple[str, str]:
    match found["type"]:
        case "value_error":
            problem = str(found["ctx"]["error"])
        case "literal_error":
            choices = found["ctx"]["expected"].replace("''", "").replace("'", "").replace(" or ", ", ").strip(", ")
            problem = f"is {found['input']!r}; use one of: {choices}"
        case "int_parsing" | "int_parsing_size" | "greater_than_equal" | "less_than":
            problem = f"is {found['input']!r}; use a whole number, 0 or more"
        case "bool_parsing":
            problem = f"is {found['input']!r}; use true or false"
        case "dict_type":
            problem = "must be a table"
        case _:
            problem = "must be text in quotes"
    return ".".join(str(part) for part in found["loc"]), problem if problem.startswith((":", ".")) else f" {problem}"


def read_table(kind: type[Table], table: Any, where: str) -> Table:
    """Validate a table of gateway.toml against a dataclass. `where` names the table in the error."""
    if not isinstance(table, dict):
        raise SettingsError(f"{where} must be a table")
    known = [field.name for field in dataclasses.fields(cast(Any, kind))]
    if unknown := sorted(set(table) - set(known)):
        raise SettingsError(f"{where}: unknown key {unknown[0]}; known are {', '.join(sorted(known))}")
    try:
        return TypeAdapter(kind).validate_python(table)
    except ValidationError as error:
        key, problem = first_problem(error)
        raise SettingsError(f"{where}.{key}{problem}") from None


def meant_word(word: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown word: the known one that is most like it; "" if none is."""
    similar = difflib.get_close_matches(word, list(known), n=1, cutoff=0.7)
    return f"; did you mean {similar[0]}?" if similar else ""


def exists(path: Path) -> bool:
    """Whether there is a file or folder. Raises SettingsError if that can't be seen, as in a folder of another user."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError as error:
        raise SettingsError(f"{path} can't be read: {error.strerror}") from None
    return True


def _read_toml(path: Path) -> dict[str, Any]:
    if not exists(path):
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"gateway.toml can't be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"gateway.toml can't be read: {error}") from None


def _read_dotenv(path: Path) -> dict[str, str]:
    if not exists(path):
        return {}
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise SettingsError(".env is not UTF-8 text; save it as such") from None
    except OSError as error:
        raise SettingsError(f".env can't be read: {error.strerror}") from None
    for found in dotenv.parser.parse_stream(io.StringIO(text)):
        if found.error:
            written = found.original.string  # with the empty lines before it
            number = found.original.line + written[: -len(written.lstrip())].count("\n")
            raise SettingsError(f".env, line {number} can't be read; write NAME=value, or # before a comment")
    # Values are taken literally: a key may well hold a dollar sign.
    values = dotenv.dotenv_values(stream=io.StringIO(text), interpolate=False)
    return {name: value for name, value in values.items() if value is not None}


def write_dotenv(folder: Path, name: str, value: str) -> None:
    """Set one value in `folder/.env`, which only its owner may read from then on. Raises SettingsError."""
    path = (folder / ".env").resolve()
    try:
        path.touch(mode=0o600)
        path.chmod(0o600)
        # Without quotes where possible: docker's --env-file takes them as a part of the value.
        dotenv.set_key(path, name, value, quote_mode="never" if re.fullmatch(r"[\w-]+", value) else "always")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} can't be written ({type(error).__name__}); make it writable") from None


def _as_text(name: str, value: Any) -> str:
    if isinstance(value, list) and all(isinstance(item, str | int) for item in value):
        return ",".join(str(item) for item in value)
    if isinstance(value, dict | list):
        raise SettingsError(f"gateway.toml: {name} must be a plain value")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _named_keys(agents: Iterable[Mapping[str, Any]]) -> set[str]:
    """The variables in models and tools: those of `api_key_env`, and `env:NAME` as a header or constant."""

    def named(value: Any) -> Iterator[str]:
        match value:
            case dict():
                if isinstance(name := value.get("api_key_env"), str):
                    yield name.strip()
                for item in value.values():
                    yield from named(item)
            case list():
                for item in value:
                    yield from named(item)
            case str() if value.startswith("env:"):
                yield value.removeprefix("env:").strip()

    return {name for agent in agents for key in ("brain", "engine", "tools") for name in named(agent.get(key))}


def _mistakes_together(settings: Settings) -> Iterator[str]:
    """What is wrong with settings that need each other."""
    if settings.database_url and not _POSTGRES_URL.fullmatch(settings.database_url.reveal()):
        yield (
            "DATABASE_URL is not an address of PostgreSQL; write it like postgresql://user:password@host:5432/name, "
            "with @ as %40 and / as %2F in the password, or put the password into PGPASSWORD"
        )
    if settings.gateway_admin_token and len(settings.gateway_admin_token.reveal()) < MIN_ADMIN_TOKEN:
        problem = f"GATEWAY_ADMIN_TOKEN is shorter than {MIN_ADMIN_TOKEN} characters"
        yield f"{problem}; use what this prints: openssl rand -hex 32"
    if settings.port > 65535:
        yield f"PORT is {settings.port}; use a number from 0 to 65535"
    if bool(settings.twilio_account_sid) != bool(settings.twilio_auth_token):
        yield "set TWILIO_ACCOUNT_SID and TWILIO_AUTH_TOKEN together; the Twilio console shows both"
    if bool(settings.telnyx_api_key) != bool(settings.telnyx_public_key):
        yield "set TELNYX_API_KEY and TELNYX_PUBLIC_KEY together; the Telnyx portal shows both"
    for engine in settings.engines:
        if not settings.has_engine_key(engine):
            yield f"VOICE_ENGINE is {engine} but {ENGINE_KEYS[engine]} is not set"
    provider = settings.summary_provider
    if provider in KEYED_PROVIDERS and not getattr(settings, f"{provider}_api_key"):
        yield f"SUMMARY_PROVIDER is {provider} but {provider.upper()}_API_KEY is not set"
    if is_url(provider, ("https", "http")) and not settings.summary_model:
        yield "SUMMARY_PROVIDER is a URL, so SUMMARY_MODEL has to name the model there"


# Folders


def make_private(folder: Path) -> None:
    """
    Make a folder with mode 0700. Raises OSError.

    Another user's folder, or a link that another user made, is refused: in a shared place such as /tmp that user could
    read or replace what is written there.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_owner(folder)
    folder.chmod(0o700)


def check_private(folder: Path) -> None:
    """Raise the OSError that `make_private` would raise; change nothing."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if there == folder:
        if not there.is_dir():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        _check_owner(folder)
    elif not there.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    elif not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _check_owner(folder: Path) -> None:
    if folder.stat().st_uid != os.geteuid() or folder.lstat().st_uid not in (os.geteuid(), 0):
        raise PermissionError(errno.EPERM, "it belongs to another user")


def folders(settings: Settings) -> dict[str, Path]:
    """The folders that the gateway writes to, by the name of their setting."""
    named = {name: getattr(settings, name) for name in ("data_dir", "voice_session_archive_dir", "record_dir")}
    return {name.upper(): folder for name, folder in named.items() if folder is not None}


def use_folder(name: str, folder: Path, *, how: Callable[[Path], None] = make_private) -> None:
    """Make the folder of a setting private; `check_private` only checks that it can be. Raises SettingsError."""
    try:
        how(folder)
    except OSError as error:
        raise _unusable(name, folder, error) from None


def _unusable(name: str, folder: Path, error: OSError) -> SettingsError:
    problem = error.strerror or type(error).__name__
    return SettingsError(f"{name} {folder} can't be used: {problem}; set {name} to a folder that you own")


def make_folders(settings: Settings) -> None:
    """The folders that the gateway writes to, private. Raises SettingsError."""
    for name, folder in folders(settings).items():
        use_folder(name, folder)


# The admin token


def admin_token(settings: Settings) -> Secret:
    """
    The token in use: from the settings, or made at the first start and stored under DATA_DIR.

    Makes DATA_DIR with mode 0700; raises SettingsError if that fails.
    """
    try:
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if token := existing_token(settings):
            return token
        made = secrets.token_urlsafe(32)
        path = settings.data_dir / ADMIN_TOKEN_FILE
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(made + "\n")
        return Secret(made)
    except OSError as error:
        raise _unusable("DATA_DIR", settings.data_dir, error) from None


def existing_token(settings: Settings) -> Secret | None:
    """The token of the settings, or the one that an earlier start has made. Raises SettingsError."""
    path = settings.data_dir / ADMIN_TOKEN_FILE
    if settings.gateway_admin_token:
        return settings.gateway_admin_token
    try:
        kept = path.read_text(encoding="utf-8").strip() if path.is_file() else ""
    except UnicodeDecodeError:
        raise SettingsError(f"{path} is not text; delete it, and a new one is made") from None
    except OSError as error:
        raise _unusable("DATA_DIR", settings.data_dir, error) from None
    if kept and len(kept) < MIN_ADMIN_TOKEN:
        raise SettingsError(f"{path} is shorter than {MIN_ADMIN_TOKEN} characters; delete it: a new one is made")
    return Secret(kept) if kept else None
