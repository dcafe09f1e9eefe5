"""
The agents' own language models, from the `brain` entries of gateway.toml.

An entry is "anthropic/MODEL", "xai/MODEL" or "openclaw/AGENT" (the part after the slash is optional), a table for any
server with a chat completions API, or "script" for rules instead of a model.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import orjson

from gateway.agents import Agent
from gateway.errors import SettingsError
from gateway.llm.anthropic import AnthropicUpstream
from gateway.llm.chat import Upstream
from gateway.llm.scripted import ScriptedUpstream
from gateway.settings import Secret, is_url, read_table
from gateway.text.spoken_text import load_rules, spoken

RECALL_SECONDS: Final = 0.05
"""The longest that an answer waits for memory."""
WARM_SECONDS: Final = 30.0  # servers and firewalls drop connections that are idle for a minute
LOOK_SECONDS: Final = 1.0
"""How soon connections are opened for a new call after an idle time: before its greeting has ended."""

_SCRIPT: Final = "script"
_SCRIPT_RECALL_SECONDS: Final = 0.5
"""The script has nothing to say but what it remembers, so it waits longer."""
_KNOWN: Final = "anthropic/MODEL, xai/MODEL, openclaw/AGENT, script, or a table with url and model"

_Given = TypeVar("_Given")


@dataclass(frozen=True)
class AgentLlm:
    """One agent's language models in order of preference, and what to say when they are slow or fail."""

    upstreams: tuple[Upstream, ...]
    first_token_seconds: float
    one_moment: str
    sorry: str
    language: str
    recall_seconds: float = RECALL_SECONDS
    """How long an answer waits for the search in memory."""
    opens: bool = False
    """Whether the greeting is its own, where the engine asks for one."""
    redacts: bool = True
    """Whether secrets that were spoken are removed from requests."""
    filters_text: bool = True
    """Whether answers are made speakable; off where another platform's voice reads tags."""


@dataclass(frozen=True, kw_only=True)
class LlmAccounts:
    """Addresses and keys of the providers. `keys` holds the variables that `api_key_env` may name."""

    anthropic_api_key: Secret | None = None
    anthropic_base_url: str = "https://api.anthropic.com"
    xai_api_key: Secret | None = None
    xai_api_url: str = "https://api.x.ai/v1"
    openclaw_gateway_url: str = ""
    openclaw_gateway_token: Secret | None = None
    keys: Mapping[str, Secret] = field(default_factory=dict)


def build_agent_llms(
    agents: Iterable[Agent],
    accounts: LlmAccounts,
    *,
    engine_has_llm: Callable[[str], bool] = lambda agent: True,
    recall_seconds: float = RECALL_SECONDS,
) -> dict[str, AgentLlm]:
    """
    By agent name; agents that use the engine's own model are not included. Equal entries share an upstream.

    `engine_has_llm`: whether this agent's engine has a model. Without one, an agent without entries gets the first
    provider with a key, else the script.
    """
    # In the same order as for summaries.
    default = "anthropic" if accounts.anthropic_api_key else "xai" if accounts.xai_api_key else _SCRIPT
    shared: dict[bytes, Upstream] = {}
    agent_llms: dict[str, AgentLlm] = {}
    for agent in agents:
        where = f"gateway.toml, [agents.{agent.name}]: brain"
        entries = agent.brain or (() if engine_has_llm(agent.name) else (default,))
        keys = [orjson.dumps(entry, option=orjson.OPT_SORT_KEYS) for entry in entries]
        for key, entry in zip(keys, entries, strict=True):
            if key not in shared:
                shared[key] = _upstream(entry, accounts, where)
        if entries:
            spoken("Hello.", load_rules(agent.language))  # its patterns are compiled now, not in the first call
            is_script = entries == (_SCRIPT,)
            agent_llms[agent.name] = AgentLlm(
                upstreams=tuple(shared[key] for key in keys),
                first_token_seconds=agent.first_token_seconds,
                one_moment=agent.one_moment,
                sorry=agent.no_answer,
                language=agent.language,
                recall_seconds=max(recall_seconds, _SCRIPT_RECALL_SECONDS) if is_script else recall_seconds,
                opens=is_script,
                redacts=agent.redact_brain and not is_script,
            )
    return agent_llms


async def keep_warm(
    agent_llms: Mapping[str, AgentLlm],
    live: Callable[[], bool],
    *,
    every: float = WARM_SECONDS,
    look: float = LOOK_SECONDS,
) -> None:
    """Open a connection to every upstream, and keep one open while there are calls. Runs until cancelled."""

    async def keep_one(upstream: Upstream) -> None:
        wanted = True
        while True:
            if wanted:
                await upstream.warm()
            await asyncio.sleep(every if wanted else look)
            wanted = live()

    async with asyncio.TaskGroup() as tasks:
        for upstream in _upstreams(agent_llms):
            tasks.create_task(keep_one(upstream))


async def close(agent_llms: Mapping[str, AgentLlm]) -> None:
    for upstream in _upstreams(agent_llms):
        await upstream.close()


def _upstreams(agent_llms: Mapping[str, AgentLlm]) -> Iterable[Upstream]:
    return dict.fromkeys(upstream for brain in agent_llms.values() for upstream in brain.upstreams)


# Entries


def _upstream(entry: str | Mapping[str, Any], accounts: LlmAccounts, where: str) -> Upstream:
    """Chat completions are imported here: aiohttp takes a tenth of a second, and few gateways need it."""
    if not isinstance(entry, str):
        return _compatible(entry, accounts.keys, where)
    provider, _, model = (part.strip() for part in entry.partition("/"))
    entry_at = f"{where} {entry!r}"
    match provider:
        case "anthropic":
            key = _needed(accounts.anthropic_api_key, "ANTHROPIC_API_KEY", entry_at)
            return AnthropicUpstream(accounts.anthropic_base_url, model, key)
        case "xai":
            key = _needed(accounts.xai_api_key, "XAI_API_KEY", entry_at)
            from gateway.llm.openai import xai_upstream

            return xai_upstream(accounts.xai_api_url, model, key, options={})
        case "openclaw":
            url = _needed(accounts.openclaw_gateway_url, "OPENCLAW_GATEWAY_URL", entry_at)
            token = _needed(accounts.openclaw_gateway_token, "OPENCLAW_GATEWAY_TOKEN", entry_at)
            from gateway.llm.openclaw import OpenClawUpstream

            return OpenClawUpstream(url, model, token)
        case "script" if not model:
            return ScriptedUpstream()
        case _:
            raise SettingsError(f"{where} is {entry!r}; write {_KNOWN}")


def _needed(value: _Given | None, name: str, where: str) -> _Given:
    if not value:
        raise SettingsError(f"{where} needs {name}; set it in the environment or in .env")
    return value


@dataclass(frozen=True, kw_only=True)
class ServerEntry:
    """A server with a chat completions API, such as Ollama, vLLM or llama.cpp. `options` are added to every request."""

    url: str = ""
    model: str = ""
    name: str = ""
    api_key: str = field(default="", repr=False)
    api_key_env: str = ""
    options: dict[str, Any] = field(default_factory=dict)


def _compatible(table: Mapping[str, Any], keys: Mapping[str, Secret], where: str) -> Upstream:
    from gateway.llm.openai import OpenAiUpstream

    entry = read_table(ServerEntry, table, where)
    if not (is_url(entry.url, ("https", "http")) and entry.model.strip()):
        raise SettingsError(f'{where} needs url and model, like url = "http://127.0.0.1:11434/v1", model = "qwen3"')
    api_key = Secret(entry.api_key) if entry.api_key else None  # many of these servers need none
    if entry.api_key_env:
        api_key = _needed(keys.get(entry.api_key_env), entry.api_key_env, where)
    name = entry.name or urlsplit(entry.url).hostname or ""
    return OpenAiUpstream(name, entry.url, entry.model.strip(), api_key, options=entry.options)
