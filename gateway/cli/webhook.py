"""`gateway webhook`: make a secret, send a test message, list messages that were not accepted."""

import argparse
import asyncio
import os
from pathlib import Path
from typing import Final

import httpx

from gateway import settings
from gateway.agents import AgentDirectory
from gateway.app import webhook_targets
from gateway.cli import terminal
from gateway.cli.terminal import minute, short_id, table
from gateway.errors import SettingsError, connection_problem
from gateway.finalization.webhooks import new_secret, send_test, undelivered
from gateway.history.stores import existing_stores
from gateway.invocation import command
from gateway.settings import Settings

DESCRIPTION: Final = (
    "Make a secret for WEBHOOK_SECRET, send a signed test message, or list messages that were not accepted yet. "
    f"`{command('sessions retry')}` sends failed ones again."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("secret", "test", "list"))
    parser.add_argument("--agent", default="", help="test: the agent whose webhook is tested (default: the first)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    if options.action == "secret":
        print(new_secret())
        return 0
    loaded = settings.load(os.environ, Path.cwd())
    return asyncio.run(_test(options, loaded) if options.action == "test" else _list(options, loaded))


async def _test(options: argparse.Namespace, loaded: Settings) -> int:
    agents = AgentDirectory(loaded.agents, loaded.folder)
    if options.agent and agents.get(options.agent) is None:
        known = ", ".join(agent.name for agent in agents)
        raise SettingsError(f"no agent is named {options.agent}; the agents are {known}")
    targets = webhook_targets(loaded, agents)
    agent = options.agent or next(iter(targets), "")
    if agent not in targets:
        raise SettingsError("no webhook is set; set WEBHOOK_URL, or `webhook` of an agent in gateway.toml")
    url = targets[agent].url
    async with httpx.AsyncClient(timeout=15.0) as http:
        try:
            with terminal.progress(f"sending a message to {url}"):
                status = await send_test(http, url, loaded.webhook_secrets, {"agent": agent})
        except httpx.HTTPError as error:
            raise SettingsError(f"{url} can't be reached: {connection_problem(error)}") from None
    is_accepted = 200 <= status < 300
    text = f"{url} {'accepted the message' if is_accepted else 'refused the message'}: status {status}"
    terminal.output(options.json, {"url": url, "status": status, "accepted": is_accepted}, [text])
    return 0 if is_accepted else 1


async def _list(options: argparse.Namespace, loaded: Settings) -> int:
    async with existing_stores(loaded) as stores:
        rows = await undelivered(stores.memory)
    columns = [
        (short_id(row["session"]), row["agent"], row["event"], row["state"], str(row["attempts"]))
        + (minute(row["due_at"]) if row["state"] == "pending" else "", row["problem"])
        for row in rows
    ]
    head = ("call", "agent", "event", "state", "attempts", "next attempt", "problem")
    shown = table(columns, head=head, figures=("attempts",))
    terminal.output(options.json, rows, [shown] if rows else ["no messages are waiting"])
    return 0
