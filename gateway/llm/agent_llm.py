"""The agents' own language models, from the `brain` entries of gateway.toml."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import orjson

from gateway.agents import Agent
from gateway.llm.accounts import SCRIPT, LlmAccounts, ModelAddress, model_address
from gateway.llm.anthropic import AnthropicUpstream
from gateway.llm.chat import Upstream
from gateway.llm.scripted import ScriptedUpstream
from gateway.settings import Secret
from gateway.text.spoken_text import load_rules, spoken

RECALL_SECONDS: Final = 0.05
"""The longest that an answer waits for memory."""
WARM_SECONDS: Final = 30.0  # servers and firewalls drop connections that are idle for a minute
LOOK_SECONDS: Final = 1.0
"""How soon connections are opened for a new call after an idle time: before its greeting has ended."""

_SCRIPT_RECALL_SECONDS: Final = 0.5
"""The script has nothing to say but what it remembers, so it waits longer."""


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
    default = next(iter(accounts.with_keys), SCRIPT)
    shared: dict[bytes, Upstream] = {}
    agent_llms: dict[str, AgentLlm] = {}
    for agent in agents:
        where = f"gateway.toml, [agents.{agent.name}]: brain"
        entries = agent.brain or (() if engine_has_llm(agent.name) else (default,))
        spoken_in = [agent.language if entry == SCRIPT else "" for entry in entries]
        keys = [orjson.dumps(pair, option=orjson.OPT_SORT_KEYS) for pair in zip(entries, spoken_in, strict=True)]
        for key, entry in zip(keys, entries, strict=True):
            if key not in shared:
                shared[key] = upstream_at(model_address(entry, accounts, where), agent.language)
        if entries:
            spoken("Hello.", load_rules(agent.language))  # its patterns are compiled now, not in the first call
            is_script = entries == (SCRIPT,)
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

    kept: set[Upstream] = set()
    async with asyncio.TaskGroup() as tasks:
        while True:  # an agent whose engine is changed may need one later
            for upstream in [one for one in _upstreams(agent_llms) if one not in kept]:
                kept.add(upstream)
                tasks.create_task(keep_one(upstream))
            await asyncio.sleep(look)


async def close(agent_llms: Mapping[str, AgentLlm]) -> None:
    for upstream in _upstreams(agent_llms):
        await upstream.close()


def _upstreams(agent_llms: Mapping[str, AgentLlm]) -> Iterable[Upstream]:
    return dict.fromkeys(upstream for brain in agent_llms.values() for upstream in brain.upstreams)


def upstream_at(address: ModelAddress, language: str = "en") -> Upstream:
    """Chat completions are imported here: aiohttp takes a tenth of a second, and few gateways need it."""
    if address.provider == "script":
        return ScriptedUpstream(language)
    if address.provider == "anthropic":
        return AnthropicUpstream(address.url, address.model, address.api_key or Secret(""))
    if address.provider == "openclaw":
        from gateway.llm.openclaw import OpenClawUpstream

        return OpenClawUpstream(address.url, address.model, address.api_key)
    from gateway.llm.openai import OPENAI_MODEL, OpenAiUpstream, xai_upstream

    if address.provider == "xai":
        return xai_upstream(address.url, address.model, address.api_key or Secret(""), options={})
    model = address.model or OPENAI_MODEL
    own = address.setting
    return OpenAiUpstream(
        address.name, address.url, model, address.api_key, options=address.options, address_setting=own
    )
