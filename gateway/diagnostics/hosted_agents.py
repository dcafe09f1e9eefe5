"""Agents that ElevenLabs hosts: whether each is connected with this gateway."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlsplit

from gateway.agents import Agent
from gateway.diagnostics.configuration import Configuration
from gateway.diagnostics.http_probe import HttpProbe
from gateway.diagnostics.results import TIMEOUT, CheckResult, ok, problem, warning
from gateway.errors import CarrierRefused, SettingsError, StoreUnavailable
from gateway.history.api_tokens import ApiToken, TokenScope, TokenTable
from gateway.history.stores import existing_stores, have_stores
from gateway.invocation import command
from gateway.settings import Settings
from gateway.telephony.elevenlabs_setup import (
    CALL_TOKEN_HEADER,
    INITIATION_PATH,
    LLM_PATH,
    LLM_SECRET,
    PHONE_FORMAT,
    POST_CALL_PATH,
    ElevenLabsAccount,
    HostedAgent,
    llm_token_id,
)

RENEW_DAYS: Final = 30
"""A key of ElevenLabs that expires within this many days is replaced."""
_SET_UP: Final = f"run: {command('setup elevenlabs')}"
_SET_UP_LLM: Final = f"run: {command('setup elevenlabs --llm')}"
_KEY: Final = "correct ELEVENLABS_API_KEY; it needs access to agents, secrets and workspace webhooks"
_IMPORT: Final = f"fetch what was missed with: {command('import elevenlabs --since 7d')}"


async def check_elevenlabs(configuration: Configuration, probe: HttpProbe) -> list[CheckResult]:
    settings = configuration.settings
    agents = [agent for agent in configuration.agents if agent.elevenlabs_agent]
    if not agents:
        return []
    if (key := settings.elevenlabs_api_key) is None:
        return [problem("elevenlabs", "no key", "set ELEVENLABS_API_KEY, or remove elevenlabs_agent")]
    secrets = ("ELEVENLABS_INITIATION_SECRET", "ELEVENLABS_WEBHOOK_SECRET")
    if unset := [name for name in secrets if getattr(settings, name.lower()) is None]:
        return [problem("elevenlabs", f"not set: {', '.join(unset)}", _SET_UP)]
    account = ElevenLabsAccount(api_url=settings.elevenlabs_api_url, api_key=key, timeout=TIMEOUT)
    try:
        workspace, webhooks = await asyncio.to_thread(lambda: (account.workspace(), account.webhooks()))
        hosted = await asyncio.to_thread(read_agents, account, agents)
        names = await asyncio.to_thread(account.secret_names, LLM_SECRET) if any(a.llm_url for a in hosted) else {}
        tokens = await llm_tokens(settings)
    except CarrierRefused as error:
        reason = "rejects the key" if error.status in (401, 403) else f"answers {error.status}"
        return [problem("elevenlabs", f"{urlsplit(settings.elevenlabs_api_url).netloc} {reason}", _KEY)]
    except (SettingsError, StoreUnavailable) as error:
        return [problem("elevenlabs", str(error), "")]
    with_llm = {agent.name for agent in agents if has_llm(agent, settings)}
    origin, found = settings.public_url.rstrip("/"), []
    for agent in hosted:
        check = f"elevenlabs {agent.name}"
        problems = list(_hosted_agent(check, agent, origin, workspace, webhooks))
        if urlsplit(agent.llm_url).path == LLM_PATH:
            token = tokens.get(llm_token_id(names.get(agent.llm_secret_id, "")))
            problems += _hosted_llm(check, agent, origin, token, has_llm=agent.name in with_llm)
        found += problems or [ok(check, "connected both ways, and its prompt uses memory")]
    return found


def _hosted_agent(
    check: str, agent: HostedAgent, origin: str, workspace: Mapping[str, Any], webhooks: Sequence[Mapping[str, Any]]
) -> Iterator[CheckResult]:
    if not agent.asks_before_calls or agent.initiation_url(workspace) != origin + INITIATION_PATH:
        yield problem(check, "calls start without memory: its initiation webhook is not this gateway's", _SET_UP)
    elif not agent.has_secret_header(workspace):
        yield problem(check, "its initiation webhook sends no X-Gateway-Secret", _SET_UP)
    webhook = next((one for one in webhooks if one["webhook_id"] == agent.post_call_id(workspace)), {})
    failure = webhook.get("most_recent_failure_error_code")
    if webhook.get("webhook_url") != origin + POST_CALL_PATH:
        yield problem(check, "its calls are not remembered: its post-call webhook is not this gateway's", _SET_UP)
    elif webhook.get("is_auto_disabled") or webhook.get("is_disabled"):
        reason = f" after failures, the last with status {failure}" if webhook.get("is_auto_disabled") else ""
        yield problem(check, f"its post-call webhook is switched off{reason}", f"{_SET_UP}; {_IMPORT}")
    elif failure == 401:
        todo = f"if it goes on: remove ELEVENLABS_WEBHOOK_SECRET from .env; {_SET_UP}; {_IMPORT}"
        yield warning(check, "its post-call webhook was rejected: it may have another secret", todo)
    elif failure:
        yield warning(check, f"its post-call webhook failed, the last time with status {failure}", _IMPORT)
    if agent.is_registered and not agent.has_phone_format:
        yield problem(check, f"its calls are noise: it needs {PHONE_FORMAT} both ways", _SET_UP)
    if not agent.uses_memory:
        yield warning(check, "its prompt does not use memory", "write {{memory}} into its prompt at ElevenLabs")


def _hosted_llm(
    check: str, agent: HostedAgent, origin: str, token: ApiToken | None, *, has_llm: bool
) -> Iterator[CheckResult]:
    """Its voice at ElevenLabs, with the language model of this gateway."""
    now = datetime.now(UTC)
    if agent.llm_url != origin + LLM_PATH:
        yield problem(check, f"it asks for answers at {urlsplit(agent.llm_url).netloc}", _SET_UP_LLM)
    if not has_llm:
        yield problem(check, "it asks this gateway for answers, and has no brain", "set its brain in gateway.toml")
    if not agent.llm_secret_id or (token is not None and token.status(now) != "active"):
        state = token.status(now) if token is not None else "missing"
        yield problem(check, f"the API token with which it asks for answers is {state}", _SET_UP_LLM)
    elif token is not None and token.status(now + timedelta(days=RENEW_DAYS)) != "active":
        yield warning(
            check, f"the API token with which it asks for answers ends {token.expires_at:%Y-%m-%d}", _SET_UP_LLM
        )
    if not agent.llm_sends_call_token:
        yield problem(check, f"it asks for answers without the caller: it sends no {CALL_TOKEN_HEADER}", _SET_UP_LLM)
    if agent.answers_early:
        early = "speculative turn is on: functions may run before the caller has finished"
        yield warning(check, early, _SET_UP_LLM)


# Also for `gateway setup elevenlabs`


def read_agents(account: ElevenLabsAccount, agents: Iterable[Agent]) -> list[HostedAgent]:
    """With their settings at ElevenLabs. Raises SettingsError, CarrierRefused."""
    return [
        HostedAgent(one.name, one.elevenlabs_agent, one.is_handed_over, account.agent(one.elevenlabs_agent))
        for one in agents
    ]


def has_llm(agent: Agent, loaded: Settings) -> bool:
    """Whether the agent can answer for a voice at ElevenLabs. The local engine has a model for agents without one."""
    return bool(agent.brain) or "local" in loaded.engines


async def llm_tokens(loaded: Settings) -> dict[str, ApiToken]:
    """The API tokens with the scope `llm`, by id. Raises StoreUnavailable."""
    if not have_stores(loaded):
        return {}
    async with existing_stores(loaded) as stores:
        tokens = await TokenTable(stores.memory).tokens()
    return {token.id: token for token in tokens if token.scope is TokenScope.LLM}
