"""
All configuration, read once.

`load(environ, folder)` builds one frozen `Settings` from the environment, `.env` and `gateway.toml`, in that order of
precedence. Nobody else reads the environment; a room is given the values it needs, not the whole.
"""

import dataclasses
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

import dotenv

from gateway.errors import SettingsError


class Secret:
    """A value that shows itself only to the line that sends it."""

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


def setting(default: Any, meaning: str) -> Any:
    """A settings field: its default, and what a person is told about it."""
    return dataclasses.field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the gateway was told. Field names are the environment's, in lower case."""

    host: str = setting("127.0.0.1", "where it listens")
    port: int = setting(8000, "where it listens; 0 takes a free one")
    public_url: str = setting("", "the https address carriers reach; empty: the request's forwarded host")
    data_dir: Path = setting(Path("data"), "journal, embedded store and admin token; mode 0700")
    allowed_callers: frozenset[str] = setting(frozenset(), "E.164 numbers, comma separated; * for anyone")

    twilio_account_sid: str = setting("", "unset: Twilio paths answer 503")
    twilio_auth_token: Secret | None = setting(None, "checks webhooks, and hangs up calls")
    twilio_api_url: str = setting("https://api.twilio.com", "Twilio's REST interface")
    telnyx_api_key: Secret | None = setting(None, "unset: Telnyx paths answer 503")
    telnyx_public_key: str = setting("", "checks webhooks; base64, from the Telnyx portal")
    telnyx_api_url: str = setting("https://api.telnyx.com/v2", "Telnyx's REST interface")

    voice_engine: str = setting("", "deepgram where its key is set, else local")
    local_engine_calls: int = setting(0, "calls that the local engine takes at once; 0: four for each core")
    local_recogniser: str = setting("moonshine", "moonshine, whisper/MODEL, or https://host/v1#MODEL")
    local_voice: str = setting("hibari", "hibari, or https://host/v1#MODEL/VOICE")
    local_speech_api_key: Secret | None = setting(None, "key for recogniser and voice at an address")
    deepgram_api_key: Secret | None = setting(None, "unset: no Deepgram")
    deepgram_agent_url: str = setting("wss://agent.deepgram.com/v1/agent/converse", "Deepgram's Voice Agent socket")

    remem_api_url: str = setting("", "where call documents go as well; unset: the embedded store alone")
    remem_api_key: Secret | None = setting(None, "key for that store; with no URL: the one our own store asks for")
    summary_provider: Literal["", "anthropic", "xai", "extractive"] = setting(
        "", "who writes summaries; unset: the first that has a key, else extractive"
    )
    summary_model: str = setting("", "unset: claude-haiku-5-5 or grok-4.3")
    anthropic_api_key: Secret | None = setting(None, "summaries by Claude")
    anthropic_base_url: str = setting("https://api.anthropic.com", "without /v1")
    xai_api_key: Secret | None = setting(None, "summaries by Grok")
    xai_api_url: str = setting("https://api.x.ai/v1", "with /v1")
    openclaw_gateway_url: str = setting("", "an OpenClaw gateway that may be an agent's brain or text side")
    openclaw_gateway_token: Secret | None = setting(None, "its token; it opens everything there, so keep it private")

    redis_url: Secret | None = setting(None, "unset: one node, everything embedded; else shared by several nodes")
    database_url: Secret | None = setting(None, "unset: memory in a file under DATA_DIR; else in this PostgreSQL")
    voice_session_enabled: bool = setting(True, "false: calls work, nothing is remembered or read")
    voice_session_sync_interval: int = setting(30, "seconds between checkpoints of a live call to Redis")
    voice_session_context_limit: int = setting(3, "past calls put into the prompt")
    voice_session_archive_dir: Path = setting(Path("/tmp/voice-sessions"), "raw transcripts; mode 0700")
    voice_session_retention_days: int = setting(7, "raw transcripts older than this are deleted; 0 keeps them")

    memory_vectors: bool = setting(True, "false: memory is searched by words alone, which saves 250 MB")
    memory_retention_days: int = setting(90, "facts older than this are not told any more, and deleted; 0 keeps them")

    gateway_admin_token: Secret | None = setting(None, "unset: made at first start, kept under DATA_DIR")
    record_dir: Path | None = setting(None, "unset: nothing is recorded; else recorded calls, for gateway replay")
    listen_in: bool = setting(False, "true: whoever is logged in to the dashboard may listen to live calls")
    drain_seconds: int = setting(600, "how long live calls may go on after SIGTERM")
    otel_exporter_otlp_endpoint: str = setting("", "a collector for traces, over HTTP; unset: none")
    log_format: Literal["", "text", "json"] = setting("", "text on a terminal, else json")
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "debug shows frames, never their content")

    agents: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    """The `[agents.NAME]` tables of gateway.toml, as read; `gateway.agents` gives them meaning."""
    folder: Path = Path(".")
    """Where gateway.toml and prompts are looked for."""
    environ: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False, compare=False)
    """Everything that was set, for keys that gateway.toml names by their variable."""

    @property
    def engine(self) -> str:
        """The voice engine in force."""
        return self.voice_engine or ("deepgram" if self.deepgram_api_key else "local")

    @property
    def carriers(self) -> frozenset[str]:
        """The carriers whose credentials are set."""
        keys = {"twilio": self.twilio_auth_token, "telnyx": self.telnyx_api_key}
        return frozenset(name for name, key in keys.items() if key is not None)


NAMES: Final = tuple(field.name.upper() for field in dataclasses.fields(Settings) if "meaning" in field.metadata)


def load(environ: Mapping[str, str], folder: Path) -> Settings:
    """Read settings from the environment, `folder/.env` and `folder/gateway.toml`; SettingsError on a mistake."""
    table = _read_toml(folder / "gateway.toml")
    agents = table.pop("agents", {})
    if not isinstance(agents, dict) or not all(isinstance(agent, dict) for agent in agents.values()):
        raise SettingsError("gateway.toml: agents must be tables; write [agents.NAME]")
    from_file = {name.upper(): _as_text(name, value) for name, value in table.items()}
    if unknown := sorted(set(from_file) - set(NAMES)):
        raise SettingsError(f"gateway.toml: unknown setting {unknown[0].lower()}; README lists them all")
    from_dotenv = _read_dotenv(folder / ".env")
    texts = {**from_file, **from_dotenv, **environ}
    hints = get_type_hints(Settings)
    values = {
        name.lower(): _parsed(name, hints[name.lower()], texts[name].strip())
        for name in NAMES
        if texts.get(name, "").strip()
    }
    settings = Settings(**values, agents=agents, folder=folder, environ=texts)
    _check(settings)
    return settings


def _read_toml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise SettingsError(f"gateway.toml can't be read: {error}") from None


def _read_dotenv(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    try:
        # Values are taken as they stand: a key may well hold a dollar sign.
        values = dotenv.dotenv_values(path, interpolate=False)
    except UnicodeDecodeError:
        raise SettingsError(".env is not UTF-8 text; save it as such") from None
    except OSError as error:
        raise SettingsError(f".env can't be read: {error.strerror}") from None
    return {name: value for name, value in values.items() if value is not None}


def _as_text(name: str, value: Any) -> str:
    if isinstance(value, list) and all(isinstance(item, str | int) for item in value):
        return ",".join(str(item) for item in value)
    if isinstance(value, dict | list):
        raise SettingsError(f"gateway.toml: {name} must be a plain value")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parsed(name: str, kind: Any, text: str) -> Any:
    if get_origin(kind) is Literal:
        return _choice(name, text, get_args(kind))
    if kind == frozenset[str]:
        return frozenset(item.strip() for item in text.split(",") if item.strip())
    inner = next((option for option in get_args(kind) if option is not type(None)), kind)
    return _PARSERS[inner](name, text)


def _choice(name: str, text: str, choices: tuple[str, ...]) -> str:
    if text.lower() not in choices:
        raise SettingsError(f"{name} is {text!r}; use one of: {', '.join(choice for choice in choices if choice)}")
    return text.lower()


def _bool(name: str, text: str) -> bool:
    if text.lower() in ("true", "1", "yes", "on"):
        return True
    if text.lower() in ("false", "0", "no", "off"):
        return False
    raise SettingsError(f"{name} is {text!r}; use true or false")


def _int(name: str, text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise SettingsError(f"{name} is {text!r}; use a whole number, 0 or more")
    return int(text)


def _path(name: str, text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise SettingsError(f"{name} is {text!r}; there is no such user") from None


_PARSERS: Final[dict[Any, Callable[[str, str], Any]]] = {
    str: lambda _, text: text,
    int: _int,
    bool: _bool,
    Path: _path,
    Secret: lambda _, text: Secret(text),
}

_URLS: Final = {
    "public_url": ("https", "http"),
    "twilio_api_url": ("https", "http"),
    "telnyx_api_url": ("https", "http"),
    "deepgram_agent_url": ("wss", "ws"),
    "remem_api_url": ("https", "http"),
    "anthropic_base_url": ("https", "http"),
    "xai_api_url": ("https", "http"),
    "otel_exporter_otlp_endpoint": ("https", "http"),
}


_SECRET_URLS: Final = ("redis_url", "database_url")


def _is_key(text: str) -> bool:
    return text.isascii() and text.isprintable()


def is_url(text: str, schemes: tuple[str, ...]) -> bool:
    """Whether this is an address with a host and one of these schemes."""
    try:
        parts = urlsplit(text)
        return parts.scheme in schemes and bool(parts.hostname) and (parts.port or 0) >= 0  # reading it checks it
    except ValueError:
        return False


def _check(settings: Settings) -> None:
    for name, schemes in _URLS.items():
        value = getattr(settings, name)
        if value and not is_url(value, schemes):
            raise SettingsError(f"{name.upper()} is not a {schemes[0]} address; write it like {schemes[0]}://host/path")
    for name, secret in vars(settings).items():
        if isinstance(secret, Secret) and name not in _SECRET_URLS and not _is_key(secret.reveal()):
            raise SettingsError(f"{name.upper()} has a character that no header can carry; copy it once more")
    if settings.database_url and not settings.database_url.reveal().startswith(("postgresql://", "postgres://")):
        raise SettingsError(
            "DATABASE_URL is not an address of PostgreSQL; write it like postgresql://user:password@host:5432/name"
        )
    if settings.port > 65535:
        raise SettingsError(f"PORT is {settings.port}; use a number from 0 to 65535")
    if bool(settings.twilio_account_sid) != bool(settings.twilio_auth_token):
        raise SettingsError("set TWILIO_ACCOUNT_SID and TWILIO_AUTH_TOKEN together; the Twilio console shows both")
    if bool(settings.telnyx_api_key) != bool(settings.telnyx_public_key):
        raise SettingsError("set TELNYX_API_KEY and TELNYX_PUBLIC_KEY together; the Telnyx portal shows both")
    if settings.voice_engine == "deepgram" and not settings.deepgram_api_key:
        raise SettingsError("VOICE_ENGINE is deepgram but DEEPGRAM_API_KEY is not set")
    for provider, key in (("anthropic", settings.anthropic_api_key), ("xai", settings.xai_api_key)):
        if settings.summary_provider == provider and not key:
            raise SettingsError(f"SUMMARY_PROVIDER is {provider} but {provider.upper()}_API_KEY is not set")
