"""`gateway setup`: points a phone number of a carrier account, or agents hosted at ElevenLabs, at this gateway."""

import argparse
import asyncio
import functools
import os
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from rich.console import RenderableType

from gateway import settings
from gateway.agents import Agent, AgentDirectory
from gateway.cli import terminal
from gateway.cli.audit import write_entry
from gateway.diagnostics.hosted_agents import RENEW_DAYS, has_llm, llm_tokens, read_agents
from gateway.errors import SettingsError
from gateway.history.api_tokens import ApiToken, TokenScope, TokenTable
from gateway.history.audit_log import AuditAction, AuditNote
from gateway.history.stores import opened_stores
from gateway.settings import Secret, Settings, write_dotenv
from gateway.telephony.elevenlabs_setup import ElevenLabsAccount, ElevenLabsSetup, LlmKeys
from gateway.telephony.number_setup import Redirection, TelnyxAccount, TwilioAccount, webhook_urls
from gateway.telephony.phone_numbers import e164

KEY_DAYS: Final = 365


DESCRIPTION: Final = (
    "Set a phone number's webhook, or the webhooks and secrets of agents hosted at ElevenLabs, through the provider's "
    "API and show what changed."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("carrier", choices=("twilio", "telnyx", "elevenlabs"))
    parser.add_argument("--number", default="", help="twilio, telnyx: which number, if the account has several")
    parser.add_argument("--agent", default="", help="elevenlabs: only this agent of gateway.toml")
    parser.add_argument(
        "--tools", action="store_true", help="elevenlabs: also let agents search their memory during a call, by MCP"
    )
    parser.add_argument(
        "--llm", action="store_true", help="elevenlabs: also have the agent's own language model (brain) answer"
    )
    replace = "elevenlabs: also replace webhooks and language models of other services"
    parser.add_argument("--replace", action="store_true", help=replace)
    parser.add_argument("--dry-run", action="store_true", help="only show what would change")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    loaded = settings.load(os.environ, Path.cwd())
    if not loaded.public_url.startswith("https://"):
        raise SettingsError("set PUBLIC_URL to the https address that carriers reach, such as your tunnel")
    if options.carrier == "elevenlabs":
        return _connect_agents(options, loaded)
    number = e164(options.number) or ""
    if options.number and not number:
        raise SettingsError(f"{options.number!r} is not a phone number; write it like +12025550100")
    with terminal.progress(f"asking {options.carrier.capitalize()}"):
        redirection = _redirection(options.carrier, loaded, number)
        if not options.dry_run:
            redirection.apply()
    if not options.dry_run:
        write_entry(loaded, AuditNote(AuditAction.NUMBER_SETUP, item=options.carrier))
    changes, number = redirection.changes, redirection.number
    if changes:
        text = [f"{number} {'would point' if options.dry_run else 'now points'} here"]
        text += [f"  {one.what}: {one.before or '(none)'} -> {one.after or '(none)'}" for one in changes]
    else:
        text = [f"{number} already points here"]
    changed = bool(changes) and not options.dry_run
    terminal.output(options.json, {"number": number, "changed": changed, "changes": list(map(asdict, changes))}, text)
    return 0


def _redirection(carrier: str, loaded: Settings, number: str) -> Redirection:
    urls = webhook_urls(loaded.public_url)
    if carrier == "twilio":
        if loaded.twilio_auth_token is None:
            raise SettingsError("set TWILIO_ACCOUNT_SID and TWILIO_AUTH_TOKEN; the Twilio console shows both")
        sid, token = loaded.twilio_account_sid, loaded.twilio_auth_token
        twilio = TwilioAccount(api_url=loaded.twilio_api_url, account_sid=sid, auth_token=token)
        return twilio.find(number, webhook_url=urls["twilio"], status_url=urls["twilio status"])
    if loaded.telnyx_api_key is None:
        raise SettingsError("set TELNYX_API_KEY and TELNYX_PUBLIC_KEY; the Telnyx portal shows both")
    telnyx = TelnyxAccount(api_url=loaded.telnyx_api_url, api_key=loaded.telnyx_api_key)
    return telnyx.find(number, webhook_url=urls["telnyx"])


def _connect_agents(options: argparse.Namespace, loaded: Settings) -> int:
    if loaded.elevenlabs_api_key is None:
        raise SettingsError("set ELEVENLABS_API_KEY; ElevenLabs shows it under API keys")
    account = ElevenLabsAccount(api_url=loaded.elevenlabs_api_url, api_key=loaded.elevenlabs_api_key)
    configured = hosted_agents(loaded, options.agent)
    llm_keys = _llm_keys(loaded, configured) if options.llm else {}
    with terminal.progress("asking ElevenLabs"):
        agents = read_agents(account, configured)

    def save(name: str, value: str) -> None:
        if name in os.environ:
            raise SettingsError(f"{name} is set in the environment, which hides .env; remove it there")
        write_dotenv(loaded.folder, name, value)

    origin = loaded.public_url.rstrip("/")
    set_up = ElevenLabsSetup(account, origin, save, options.dry_run, options.replace, options.tools)
    webhook_secret, initiation_secret = (
        (secret or Secret("")).reveal()
        for secret in (loaded.elevenlabs_webhook_secret, loaded.elevenlabs_initiation_secret)
    )
    with terminal.progress("connecting the agents"):
        set_up.connect(agents, webhook_secret=webhook_secret, initiation_secret=initiation_secret, llm_keys=llm_keys)
    if not options.dry_run:
        write_entry(loaded, AuditNote(AuditAction.NUMBER_SETUP, item=options.carrier))
    names, changes = [agent.name for agent in agents], set_up.changes
    text: list[RenderableType] = [f"{', '.join(names)}: already connected"]
    if changes:
        text = [f"{', '.join(names)}: {'would be connected' if options.dry_run else 'connected'}"]
        text += [f"  {one.what}: {one.before or '(none)'} -> {one.after or '(none)'}" for one in changes]
    if not options.dry_run and any(".env" in one.what for one in changes):
        text.append("restart the gateway now: it reads .env when it starts")
    text += [
        f"write {{{{memory}}}} into the prompt of {one.name} at ElevenLabs" for one in agents if not one.uses_memory
    ]
    changed = bool(changes) and not options.dry_run
    terminal.output(options.json, {"agents": names, "changed": changed, "changes": list(map(asdict, changes))}, text)
    return 0


def _llm_keys(loaded: Settings, agents: Iterable[Agent]) -> dict[str, LlmKeys]:
    """Raises SettingsError for an agent without a language model."""
    keys, tokens = {}, asyncio.run(llm_tokens(loaded))
    for agent in agents:
        if not has_llm(agent, loaded):
            raise SettingsError(f"{agent.name} has no language model of its own; set its brain in gateway.toml")
        renewed = datetime.now(UTC) + timedelta(days=RENEW_DAYS)
        valid = [one.id for one in tokens.values() if one.agent == agent.name and one.status(renewed) == "active"]
        keys[agent.name] = LlmKeys(valid, functools.partial(_create_key, loaded, agent.name))
    return keys


def _create_key(loaded: Settings, agent: str) -> tuple[str, str]:
    async def create() -> tuple[ApiToken, str]:
        async with opened_stores(loaded) as stores:
            tokens = TokenTable(stores.memory)
            return await tokens.create(TokenScope.LLM, days=KEY_DAYS, label="ElevenLabs", agent=agent)

    token, text = asyncio.run(create())
    write_entry(loaded, AuditNote(AuditAction.TOKEN_CREATE, agent=agent, item=token.id))
    return token.id, text


def hosted_agents(loaded: Settings, name: str = "") -> list[Agent]:
    """The agents that ElevenLabs hosts, or the one of this name. Raises SettingsError if there are none."""
    agents = AgentDirectory(loaded.agents, loaded.folder)
    found = [agent for agent in agents if agent.elevenlabs_agent and name in ("", agent.name)]
    if not found:
        which = f"agent {name} has" if name else "no agent has"
        raise SettingsError(f"{which} {'no ' if name else ''}elevenlabs_agent in gateway.toml; add its ElevenLabs id")
    return found
