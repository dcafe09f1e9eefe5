"""Checks of language models: every agent's own by a short request, the providers' keys, and what writes summaries."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Final

from gateway.diagnostics.configuration import Configuration
from gateway.diagnostics.http_probe import HttpProbe, bearer, host_of, json_object
from gateway.diagnostics.results import CheckResult, off, ok, problem, warning
from gateway.errors import LlmError
from gateway.finalization.summary.summarizer import summary_addresses
from gateway.llm.accounts import DEFAULT_OPENCLAW_AGENT, ENABLE_OPENCLAW, SCRIPT, LlmAccounts, ModelAddress
from gateway.llm.agent_llm import upstream_at
from gateway.llm.chat import ChatRequest, Upstream, Usage
from gateway.settings import KEYED_PROVIDERS, Secret, Settings
from gateway.text.figures import count

ANSWER_SECONDS: Final = 20.0
"""A model on one's own machine may have to be loaded first."""
_QUESTION: Final = ChatRequest(({"role": "user", "content": "Reply with the word ok."},), max_tokens=16)


async def check_language_models(configuration: Configuration, probe: HttpProbe) -> list[CheckResult]:
    settings = configuration.settings
    checks = await asyncio.gather(_providers(settings, probe), _openclaw(configuration, probe), _brains(configuration))
    return [*(one for found in checks for one in found), await _summaries(configuration)]


# The agents' own


async def _brains(configuration: Configuration) -> list[CheckResult]:
    """One request to each model, which several agents may share."""
    agents: dict[Upstream, list[str]] = {}
    for name, llm in configuration.agent_llms.items():
        for upstream in llm.upstreams:
            agents.setdefault(upstream, []).append(name)
    checks = [_brain(f"brain of {', '.join(names)}", upstream) for upstream, names in agents.items()]
    return list(await asyncio.gather(*checks))


async def _brain(check: str, upstream: Upstream) -> CheckResult:
    if upstream.name == SCRIPT:
        todo = "set brain in gateway.toml, or ANTHROPIC_API_KEY, XAI_API_KEY or OPENAI_API_KEY"
        return off(check, "rules instead of a language model", todo)
    setting = "brain in gateway.toml"
    key = f"{upstream.name.upper()}_API_KEY" if upstream.name in KEYED_PROVIDERS else f"the key of {setting}"
    return await _request(check, upstream, model=setting, key=key)


async def _request(check: str, upstream: Upstream, *, model: str, key: str) -> CheckResult:
    """Send one short request. `model` and `key` say where they are set."""
    name = " ".join(dict.fromkeys((upstream.name, upstream.model)))
    started, usage = time.monotonic(), None
    try:
        async with asyncio.timeout(ANSWER_SECONDS), contextlib.aclosing(upstream.answer(_QUESTION, "")) as events:
            async for event in events:
                usage = event if isinstance(event, Usage) else usage
    except TimeoutError:
        found = f"{name} did not answer within {ANSWER_SECONDS:.0f} s"
        return problem(check, found, f"name a faster model as {model}, or start its server")
    except LlmError as error:
        todo = f"correct {key}" if error.status in (401, 403) else f"correct {model}, or try again later"
        says_what_to_do = "; " in str(error)  # as errors of one's own servers do
        return problem(check, f"{name}: {error}", "" if says_what_to_do else todo)
    tokens = f", {count(usage.prompt_tokens + usage.completion_tokens, 'token')}" if usage else ""
    return ok(check, f"{name} answered in {time.monotonic() - started:.1f} s (cost: one short request{tokens})")


# Keys


async def _providers(settings: Settings, probe: HttpProbe) -> list[CheckResult]:
    """Every provider with a key."""
    checks = []
    if (key := settings.anthropic_api_key) is not None:
        headers = {"x-api-key": key.reveal(), "anthropic-version": "2023-06-01"}
        url = f"{settings.anthropic_base_url.rstrip('/')}/v1/models"
        names = {"keys": "ANTHROPIC_API_KEY", "address": "ANTHROPIC_BASE_URL"}
        checks.append(probe.check_key("anthropic", url, **names, headers=headers))
    if (key := settings.xai_api_key) is not None:
        url = f"{settings.xai_api_url.rstrip('/')}/models"
        names = {"keys": "XAI_API_KEY", "address": "XAI_API_URL"}
        checks.append(probe.check_key("xai", url, **names, headers=bearer(key)))
    if (key := settings.openai_api_key) is not None:
        url = f"{settings.openai_base_url.rstrip('/')}/models"
        names = {"keys": "OPENAI_API_KEY", "address": "OPENAI_BASE_URL"}
        checks.append(probe.check_key("openai", url, **names, headers=bearer(key)))
    return list(await asyncio.gather(*checks))


async def _openclaw(configuration: Configuration, probe: HttpProbe) -> list[CheckResult]:
    """Its chat completions have to be enabled, and it needs the agents that are named in gateway.toml."""
    settings = configuration.settings
    if not settings.openclaw_gateway_url:
        return []
    headers = bearer(settings.openclaw_gateway_token or Secret(""))
    url = f"{settings.openclaw_gateway_url.rstrip('/').removesuffix('/v1')}/v1/models"
    host, answer = host_of(url), await probe.answer("GET", url, headers=headers)
    if not isinstance(answer, str) and answer.status_code in (404, 405):
        found = f"{host} answers {answer.status_code}: its chat completions are switched off"
        return [problem("openclaw", found, f"run there: {ENABLE_OPENCLAW}")]
    names = {"keys": "OPENCLAW_GATEWAY_TOKEN", "address": "OPENCLAW_GATEWAY_URL"}
    checked = await probe.check_key("openclaw", url, **names, headers=headers)
    if isinstance(answer, str) or not answer.is_success:
        return [checked]
    match json_object(answer):
        case {"data": [*models]}:
            known = {model.get("id") for model in models if isinstance(model, dict)}
            for where, name in _openclaw_agents(configuration):
                if f"openclaw/{name}" not in known:
                    todo = f"correct {where}; openclaw agents list shows them"
                    return [problem("openclaw", f"{host} has no agent openclaw/{name}", todo)]
    return [checked]


def _openclaw_agents(configuration: Configuration) -> Iterator[tuple[str, str]]:
    """The agents there that are named, each with the key or setting that names it."""
    settings = configuration.settings
    named = [("brain", entry) for agent in configuration.agents for entry in agent.brain if isinstance(entry, str)]
    named += [("text_agent", agent.text_agent) for agent in configuration.agents]
    if settings.summary_provider == "openclaw":
        named.append(("SUMMARY_MODEL", f"openclaw/{settings.summary_model}"))
    for where, entry in named:
        provider, _, name = (part.strip() for part in entry.partition("/"))
        if provider == "openclaw":
            yield where, (name or DEFAULT_OPENCLAW_AGENT).lower()


# Summaries


async def _summaries(configuration: Configuration) -> CheckResult:
    """What writes the summaries. A model that SUMMARY_MODEL names is asked; the others are those of keys and agents."""
    settings, check = configuration.settings, "summaries"
    provider, model, key = settings.summary_provider, settings.summary_model, settings.summary_api_key
    addresses = summary_addresses(LlmAccounts.of(settings), provider, model, key)
    if addresses and model:
        return await _summary_model(check, addresses[0])
    if addresses:
        return ok(check, f"written by {addresses[0].provider}")
    brains = sorted(agent.name for agent in configuration.agents if set(map(str, agent.brain)) - {SCRIPT})
    if provider != "extractive" and brains:
        return ok(check, f"written by the language model of {', '.join(brains)}")
    if provider == "brain":
        return warning(check, "SUMMARY_PROVIDER is brain but no agent has one", "set brain in gateway.toml")
    if provider:
        return ok(check, "written by rules")
    return off(check, "written by rules; a language model writes better ones", "give an agent a brain, or set a key")


async def _summary_model(check: str, address: ModelAddress) -> CheckResult:
    key = f"{address.provider.upper()}_API_KEY" if address.provider in KEYED_PROVIDERS else "SUMMARY_API_KEY"
    upstream = upstream_at(address)
    try:
        return await _request(check, upstream, model="SUMMARY_MODEL", key=key)
    finally:
        await upstream.close()
