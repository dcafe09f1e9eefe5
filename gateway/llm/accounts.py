"""
Where the language models are that the settings and the `brain` entries of gateway.toml name.

An entry is "anthropic/MODEL", "xai/MODEL", "openai/MODEL" or "openclaw/AGENT" (the part after the slash is optional), a
table for any server with a chat completions API, or "script" for rules instead of a model.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, TypeVar
from urllib.parse import urlsplit

from gateway.errors import SettingsError
from gateway.settings import KEYED_PROVIDERS, Secret, Settings, is_url, read_table

SCRIPT: Final = "script"
DEFAULT_OPENCLAW_AGENT: Final = "main"
ENABLE_OPENCLAW: Final = "openclaw config set gateway.http.endpoints.chatCompletions.enabled true"
"""What switches OpenClaw's chat completions on; until then it answers 404."""
_KNOWN: Final = "anthropic/MODEL, xai/MODEL, openai/MODEL, openclaw/AGENT, script, or a table with url and model"

_Given = TypeVar("_Given")


@dataclass(frozen=True, kw_only=True)
class LlmAccounts:
    """Addresses and keys of the providers. `keys` holds the variables that `api_key_env` may name."""

    anthropic_api_key: Secret | None = None
    anthropic_base_url: str = "https://api.anthropic.com"
    xai_api_key: Secret | None = None
    xai_api_url: str = "https://api.x.ai/v1"
    openai_api_key: Secret | None = None
    openai_base_url: str = "https://api.openai.com/v1"
    openclaw_gateway_url: str = ""
    openclaw_gateway_token: Secret | None = None
    keys: Mapping[str, Secret] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Settings) -> "LlmAccounts":
        names = [field.name for field in fields(cls) if field.name != "keys"]  # those of the settings
        return cls(**{name: getattr(settings, name) for name in names}, keys=settings.agent_keys)

    @property
    def with_keys(self) -> list[str]:
        """The providers that have a key, in order of preference."""
        return [name for name in KEYED_PROVIDERS if getattr(self, f"{name}_api_key")]


@dataclass(frozen=True)
class ModelAddress:
    """A language model and how to reach it. `model` may be empty for the provider's default."""

    provider: Literal["anthropic", "xai", "openai", "openclaw", "compatible", "script"]
    name: str
    """For logs and `written_by`: the provider, or the server's host."""
    url: str = ""
    model: str = ""
    api_key: Secret | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Added to every request."""
    setting: str = ""
    """Where the user wrote the address of a server of their own."""


@dataclass(frozen=True, kw_only=True)
class ServerEntry:
    """A server with a chat completions API, such as Ollama, vLLM or llama.cpp. `options` are added to every request."""

    url: str = ""
    model: str = ""
    name: str = ""
    api_key: str = field(default="", repr=False)
    api_key_env: str = ""
    options: dict[str, Any] = field(default_factory=dict)


def model_address(entry: str | Mapping[str, Any], accounts: LlmAccounts, where: str) -> ModelAddress:
    """The model that an entry names. Raises SettingsError, which begins with `where`."""
    if not isinstance(entry, str):
        return _compatible(entry, accounts.keys, where)
    provider, _, model = (part.strip() for part in entry.partition("/"))
    entry_at = f"{where} {entry!r}"
    match provider:
        case "anthropic":
            key = _needed(accounts.anthropic_api_key, "ANTHROPIC_API_KEY", entry_at)
            return ModelAddress(provider, provider, accounts.anthropic_base_url, model, key)
        case "xai":
            key = _needed(accounts.xai_api_key, "XAI_API_KEY", entry_at)
            return ModelAddress(provider, provider, accounts.xai_api_url, model, key)
        case "openai":
            key = _needed(accounts.openai_api_key, "OPENAI_API_KEY", entry_at)
            return ModelAddress(provider, provider, accounts.openai_base_url, model, key)
        case "openclaw":
            url = _needed(accounts.openclaw_gateway_url, "OPENCLAW_GATEWAY_URL", entry_at)
            token = _needed(accounts.openclaw_gateway_token, "OPENCLAW_GATEWAY_TOKEN", entry_at)
            return ModelAddress(provider, provider, url, model, token)
        case "script" if not model:
            return ModelAddress(provider, provider)
        case _:
            raise SettingsError(f"{where} is {entry!r}; write {_KNOWN}")


def _needed(value: _Given | None, name: str, where: str) -> _Given:
    if not value:
        raise SettingsError(f"{where} needs {name}; set it in the environment or in .env")
    return value


def _compatible(table: Mapping[str, Any], keys: Mapping[str, Secret], where: str) -> ModelAddress:
    entry = read_table(ServerEntry, table, where)
    if not (is_url(entry.url, ("https", "http")) and entry.model.strip()):
        raise SettingsError(f'{where} needs url and model, like url = "http://127.0.0.1:11434/v1", model = "qwen3"')
    api_key = Secret(entry.api_key) if entry.api_key else None  # many of these servers need none
    if entry.api_key_env:
        api_key = _needed(keys.get(entry.api_key_env), entry.api_key_env, where)
    name = entry.name or urlsplit(entry.url).hostname or ""
    return ModelAddress("compatible", name, entry.url, entry.model.strip(), api_key, entry.options, "its url")
