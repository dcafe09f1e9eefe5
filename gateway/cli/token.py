"""`gateway token`: creates, lists and revokes API tokens."""

import argparse
import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich.console import RenderableType

from gateway import settings
from gateway.agents import AgentDirectory
from gateway.cli import terminal
from gateway.errors import SettingsError
from gateway.history.api_tokens import CACHE_SECONDS, DEFAULT_DAYS, ApiToken, TokenScope, TokenTable
from gateway.history.audit_log import AuditAction, AuditLog, AuditNote, cli_actor
from gateway.history.stores import opened_stores
from gateway.invocation import command
from gateway.settings import Settings, admin_token
from gateway.telephony.phone_numbers import e164

DESCRIPTION: Final = (
    "Tokens for programs that use the HTTP API or MCP. Works on DATA_DIR or DATABASE_URL; the gateway may be running."
)

Act = Callable[[argparse.Namespace, Settings, TokenTable, AuditLog], Awaitable[int]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    create = actions.add_parser("create", help="create a token and print it once", description="Create a token.")
    create.add_argument("--scope", required=True, choices=list(map(str, TokenScope)), help="what it is for")
    create.add_argument("--days", type=int, default=DEFAULT_DAYS, help=f"valid for ({DEFAULT_DAYS}); 0: no expiry")
    create.add_argument("--label", default="", help="what uses it")
    agent = "scope llm: the agent that answers; scope mcp: only the memory of this agent"
    create.add_argument("--agent", default="", metavar="NAME", help=agent)
    create.add_argument("--caller", default="", metavar="NUMBER", help="scope mcp: only the memory of this caller")
    listing = actions.add_parser("list", help="list all tokens", description="List all tokens.")
    revoke = actions.add_parser("revoke", help="revoke a token", description="Revoke a token.")
    revoke.add_argument("id", metavar="ID", help=f"as `{command('token list')}` shows it")
    for action, act in ((create, _create), (listing, _list), (revoke, _revoke)):
        action.add_argument("--json", action="store_true", help="print JSON")
        action.set_defaults(act=act)


def run(options: argparse.Namespace) -> int:
    given = settings.load(os.environ, Path.cwd())

    async def act() -> int:
        async with opened_stores(given) as stores:
            action: Act = options.act
            audit = AuditLog(stores.memory, admin_token(given))
            return await action(options, given, TokenTable(stores.memory), audit)

    return asyncio.run(act())


async def _create(options: argparse.Namespace, given: Settings, tokens: TokenTable, audit: AuditLog) -> int:
    agents = [agent.name for agent in AgentDirectory(given.agents, given.folder)]
    if options.agent and options.agent not in agents:
        raise SettingsError(f"no agent is named {options.agent}; the agents are {', '.join(agents)}")
    caller = e164(options.caller) or ""
    if options.caller and not caller:
        raise SettingsError(f"{options.caller!r} is not a phone number; write it like +12025550143")
    try:
        token, text = await tokens.create(
            TokenScope(options.scope), days=options.days, label=options.label, agent=options.agent, caller=caller
        )
    except ValueError as error:
        raise SettingsError(str(error)) from None
    note = AuditNote(AuditAction.TOKEN_CREATE, cli_actor(), agent=token.agent, caller=token.caller, item=token.id)
    await audit.write(note)
    lines = [text, f"{_summary(token)}. Copy it now: it can't be shown again."]
    terminal.output(options.json, {"token": text, **_as_json(token)}, lines)
    return 0


async def _list(options: argparse.Namespace, given: Settings, tokens: TokenTable, audit: AuditLog) -> int:
    found = await tokens.tokens()
    terminal.output(options.json, list(map(_as_json, found)), _table(found))
    return 0


async def _revoke(options: argparse.Namespace, given: Settings, tokens: TokenTable, audit: AuditLog) -> int:
    token_id = options.id.removeprefix("vg_")[:8]
    if not await tokens.revoke(token_id):
        raise SettingsError(f"no active token {options.id}; `{command('token list')}` lists all tokens")
    await audit.write(AuditNote(AuditAction.TOKEN_REVOKE, cli_actor(), item=token_id))
    line = f"revoked vg_{token_id}; running gateways refuse it within {CACHE_SECONDS:.0f} s"
    terminal.output(options.json, {"id": token_id, "status": "revoked"}, [line])
    return 0


def _table(tokens: list[ApiToken]) -> list[RenderableType]:
    if not tokens:
        return [f"no tokens; `{command('token create --scope read')}` creates one"]
    now = datetime.now(UTC)
    rows = [
        (f"vg_{token.id}", token.scope, token.label, _bound(token), _day(token.created_at), _day(token.expires_at))
        + (_day(token.last_used_at), token.status(now))
        for token in tokens
    ]
    return [terminal.table(rows, head=("id", "scope", "label", "for", "created", "expires", "last used", "status"))]


def _summary(token: ApiToken) -> str:
    bound = f" for {_bound(token)}" if token.agent else ""
    return f"scope {token.scope}{bound}, {f'until {_day(token.expires_at)}' if token.expires_at else 'no expiry'}"


def _bound(token: ApiToken) -> str:
    return ", ".join(filter(None, (token.agent, token.caller))) or "-"


def _day(time: datetime | None) -> str:
    return terminal.day(time) if time else "never"


def _as_json(token: ApiToken) -> dict[str, Any]:
    known = {name: value for name, value in asdict(token).items() if name != "hash"}
    return {**known, "status": token.status(datetime.now(UTC))}
