"""`gateway audit`: who did what; and the entries that commands write."""

import argparse
import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final, TypeVar

from rich.console import RenderableType
from rich.text import Text

from gateway import settings
from gateway.cli import terminal
from gateway.cli.remote import parse_time
from gateway.cli.terminal import line, second, short_id, table
from gateway.errors import SettingsError
from gateway.history.audit_log import AuditAction, AuditEntry, AuditFilter, AuditLog, AuditNote, AuditOutcome, cli_actor
from gateway.history.stores import existing_stores, have_stores
from gateway.memory.stores.documents import time_text
from gateway.settings import Settings, admin_token
from gateway.telephony.phone_numbers import e164
from gateway.text.figures import count

DESCRIPTION: Final = (
    "List administrative actions, newest first: logins, exports, erasures, corrections, listen-in, outbound calls, "
    "token changes. Reads DATA_DIR; the gateway may be running."
)

T = TypeVar("T")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--since", default="", metavar="TIME", help="10m, 2h, 7d ago, or a time like 2026-02-06T23:15")
    parser.add_argument(
        "--actor", default="", help="only by this actor: admin, a token id, login, cli, cli:USER, caller"
    )
    parser.add_argument("--action", default="", help="only this action, like caller.erase, or a group, like caller")
    parser.add_argument("--caller", default="", help="only about this phone number or other identifier")
    parser.add_argument("--limit", type=int, default=50, help="at most this many (default: 50)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--verify",
        nargs="?",
        const="",
        metavar="HASH",
        help="check that no entry was changed or deleted; HASH, noted earlier, must still be in the log",
    )


def run(options: argparse.Namespace) -> int:
    loaded = settings.load(os.environ, Path.cwd())
    if options.limit < 1:
        raise SettingsError(f"--limit is {options.limit}; use 1 or more")
    if options.action and not any(f"{name}.".startswith(f"{options.action}.") for name in AuditAction):
        raise SettingsError(f"no action is named {options.action!r}; use one of: {', '.join(AuditAction)}")
    return _verify(options, loaded) if options.verify is not None else _list(options, loaded)


def write_entry(loaded: Settings, note: AuditNote) -> None:
    """For a command that has no store open. Without a store there is no gateway here yet, and no log."""
    note.actor = cli_actor()
    if have_stores(loaded):
        _with_log(loaded, lambda audit: audit.write(note))


def _list(options: argparse.Namespace, loaded: Settings) -> int:
    caller = options.caller and (e164(options.caller) or options.caller.strip())
    since = time_text(parse_time(options.since)) if options.since else ""

    async def find(audit: AuditLog) -> list[AuditEntry]:
        chosen = AuditFilter(options.actor, options.action, audit.hash_of(caller), since)
        return await audit.page(chosen, limit=options.limit)

    found = _with_log(loaded, find)
    terminal.output(options.json, [asdict(entry) for entry in found], _text(found, options.limit))
    return 0


def _verify(options: argparse.Namespace, loaded: Settings) -> int:
    with terminal.progress("checking all entries"):
        checked = _with_log(loaded, lambda audit: audit.verify(options.verify.strip()))
    text: list[RenderableType] = [f"{count(checked.entries, 'entry', 'entries')} verified"]
    if checked.problem:
        text = [Text(f"the audit log was changed: {checked.problem}", "red"), *text]
    if checked.last_hash:
        text.append(f"last hash: {checked.last_hash}")
    terminal.output(options.json, asdict(checked), text)
    return 1 if checked.problem else 0


def _with_log(loaded: Settings, use: Callable[[AuditLog], Awaitable[T]]) -> T:
    async def used() -> T:
        async with existing_stores(loaded) as stores:
            return await use(AuditLog(stores.memory, admin_token(loaded)))

    return asyncio.run(used())


_STYLES: Final = {AuditOutcome.DONE: "", AuditOutcome.REFUSED: "yellow"}


def _text(found: Sequence[AuditEntry], limit: int) -> Iterator[RenderableType]:
    if not found:
        yield "no entries"
        return
    yield table(
        (
            (
                second(entry.at),
                entry.actor,
                entry.action,
                line(entry.outcome, _STYLES.get(AuditOutcome(entry.outcome), "red")),
                entry.caller,
                entry.agent,
                short_id(entry.session) or entry.item,
                entry.address,
            )
            for entry in found
        ),
        head=("time", "actor", "action", "outcome", "caller", "agent", "call or item", "address"),
    )
    if len(found) == limit:
        yield terminal.limited(limit, "entries")
