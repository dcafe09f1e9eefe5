"""Checks of language models: every agent's own by a short request, the providers' keys, and what writes summaries."""

import asyncio
import contextlib
import time
from typing import Final

from gateway.diagnostics.configuration import Configuration
from gateway.diagnostics.http_probe import HttpProbe, bearer, host_of
from gateway.diagnostics.results import CheckResult, off, ok, problem, warning
from gateway.errors import LlmError
from gateway.llm.accounts import ENABLE_OPENCLAW, SCRIPT
from gateway.llm.chat import ChatRequest, Upstream, Usage
from gateway.settings import KEYED_PROVIDERS, Secret, Settings, is_url
from gateway.text.figures import count

ANSWER_SECONDS: Final = 20.0
"""A model on one's own machine may have to be loaded first."""
_QUESTION: Final = ChatRequest(({"role": "user", "content": "Reply with the word ok."},), max_tokens=16)


async def check_language_models(configuration: Configuration, probe: HttpProbe) -> list[CheckResult]:
    settings = configuration.settings
    checks = await asyncio.gather(_providers(settings, probe), _openclaw(configuration, probe), _brains(configuration))
    return [*(one for found in checks for one in found), await _summaries(configuration, probe)]


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
    model = " ".join(dict.fromkeys((upstream.name, upstream.model)))
    started, usage = time.monotonic(), None
    todo = "correct brain in gateway.toml, its key or its address"
    try:
        async with asyncio.timeout(ANSWER_SECONDS), contextlib.aclosing(upstream.answer(_QUESTION, "")) as events:
            async for event in events:
                usage = event if isinstance(event, Usage) else usage
    except TimeoutError:
        return problem(check, f"{model} did not answer within {ANSWER_SECONDS:.0f} s", todo)
    except LlmError as error:
        return problem(check, f"{model}: {error}", todo)
    tokens = f", {count(usage.prompt_tokens + usage.completion_tokens, 'token')}" if usage else ""
    return ok(check, f"{model} answered in {time.monotonic() - started:.1f} s (cost: one short request{tokens})")


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
    if not isinstance(answer, str) and answer.status_code == 404:
        found = f"{host} answers 404: its chat completions are switched off"
        return [problem("openclaw", found, f"run there: {ENABLE_OPENCLAW}")]
    names = {"keys": "OPENCLAW_GATEWAY_TOKEN", "address": "OPENCLAW_GATEWAY_URL"}
    checked = await probe.check_key("openclaw", url, **names, headers=headers)
    if isinstance(answer, str) or not answer.is_success:
        return [checked]
    with contextlib.suppress(ValueError, TypeError, KeyError):
        known = {model["id"] for model in answer.json()["data"]}
        entries = [entry for agent in configuration.agents for entry in agent.brain]
        named = {entry for entry in entries if isinstance(entry, str) and entry.startswith("openclaw/")}
        if missing := sorted(named - known):
            todo = "correct brain; openclaw agents list shows them"
            return [problem("openclaw", f"{host} has no agent {missing[0]}", todo)]
    return [checked]


# Summaries


async def _summaries(configuration: Configuration, probe: HttpProbe) -> CheckResult:
    """What writes the summaries, by the same rule as `build_summarizer`."""
    settings, check = configuration.settings, "summaries"
    brains = sorted(agent.name for agent in configuration.agents if set(map(str, agent.brain)) - {SCRIPT})
    by_key = next((name for name in KEYED_PROVIDERS if getattr(settings, f"{name}_api_key")), "")
    provider = settings.summary_provider or by_key or ("brain" if brains else "extractive")
    if is_url(provider, ("http", "https")):
        names = {"keys": "SUMMARY_API_KEY", "address": "SUMMARY_PROVIDER"}
        return await probe.check_server(check, f"{provider.rstrip('/')}/models", settings.summary_api_key, **names)
    if provider == "brain" and brains:
        return ok(check, f"written by the language model of {', '.join(brains)}")
    if provider == "brain":
        return warning(check, "SUMMARY_PROVIDER is brain but no agent has one", "set brain in gateway.toml")
    if provider != "extractive":
        return ok(check, f"written by {provider}")
    if settings.summary_provider:
        return ok(check, "written by rules")
    return off(check, "written by rules; a language model writes better ones", "give an agent a brain, or set a key")
