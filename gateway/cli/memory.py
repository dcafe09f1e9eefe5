"""`gateway memory`: what is known of callers and why; and how to take it back."""

import argparse
import asyncio
import contextlib
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

import httpx
import orjson

from gateway import settings
from gateway.admin_token import admin_token
from gateway.agents import DEFAULT_AGENT
from gateway.cli import memory_text
from gateway.cluster.open import open_shared_erasure
from gateway.errors import SettingsError
from gateway.history.calls_table import CallsTable, FinishedCall
from gateway.history.erasure import DataLocations, Eraser, ErasureResult, NoSharedData
from gateway.history.report import CallerReport, MemoryReports
from gateway.history.stores import Stores, open_stores, store_path
from gateway.memory.pinned_topics import PinnedTopicStore
from gateway.memory.remem_client import connect_remem
from gateway.memory.store import MemoryStore
from gateway.settings import Settings
from gateway.telephony.phone_numbers import e164


@dataclass(frozen=True)
class _Context:
    """What every action works with."""

    options: argparse.Namespace
    settings: Settings
    stores: Stores

    @property
    def store(self) -> MemoryStore:
        return self.stores.memory

    @property
    def places(self) -> DataLocations:
        return DataLocations.of(self.settings)

    def show(self, content: Any, text: str) -> None:
        print(orjson.dumps(content, default=str).decode() if self.options.json else text)

    @contextlib.asynccontextmanager
    async def eraser(self) -> AsyncIterator[Eraser]:
        secret = admin_token(self.settings)
        async with httpx.AsyncClient() as http, open_shared_erasure(self.settings) as shared:
            remote = connect_remem(self.settings.remem_api_url, self.settings.remem_api_key, http)
            yield Eraser(self.stores, self.places, remote, secret, shared or NoSharedData())

    async def report(self) -> CallerReport:
        report = await MemoryReports(self.store).of(_caller(self.options.caller), self.options.agent)
        return report or _nobody()

    async def call(self) -> FinishedCall:
        found = await CallsTable(self.store).find(self.options.session)
        if found is None or self.options.agent not in ("", found.agent):
            session = self.options.session
            raise SettingsError(f"no call {session} is known, or several begin so; `gateway memory show` lists them")
        return found

    async def confirmed(self, question: str) -> bool:
        """A person at a terminal is asked; a script means what it says."""
        if self.options.yes or not sys.stdin.isatty():
            return True
        print(f"{question} This can't be undone. [y/N] ", end="", file=sys.stderr, flush=True)
        answer = await asyncio.to_thread(sys.stdin.readline)
        if answer.strip().lower() in ("y", "yes"):
            return True
        print("nothing was deleted", file=sys.stderr)
        return False


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "memory",
        help="show what is known of callers, and take it back",
        description="What is known of callers, why, and how to undo it. Reads DATA_DIR; a gateway may run meanwhile.",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    for name, (act, meaning, arguments) in _ACTIONS.items():
        action = actions.add_parser(name, help=meaning, description=f"{meaning[0].upper()}{meaning[1:]}.")
        for argument in arguments:
            optional = {"nargs": "?", "default": ""} if argument.startswith("[") else {}
            plain = argument.strip("[]")
            action.add_argument(plain.lower(), metavar=plain, help=_MEANINGS[argument], **optional)
        action.add_argument("--agent", default="", metavar="NAME", help="with this agent alone")
        action.add_argument("--json", action="store_true", help="for machines")
        if act in (_revert, _forget):
            action.add_argument("--yes", action="store_true", help="do not ask at a terminal")
        if act is _pin:
            _add_pin_options(action)
        if act is _forget:
            action.add_argument(
                "--verify",
                nargs="*",
                metavar="WORD",
                help="then look for these in all files and tables; without any, for the caller and what was known",
            )
        action.set_defaults(run=run, act=act)


def _add_pin_options(action: argparse.ArgumentParser) -> None:
    action.add_argument("--about", default="", metavar="TEXT", help="what it is")
    action.add_argument("--status", default="", metavar="TEXT", help="where it stands")
    action.add_argument("--item", action="append", default=[], metavar="TEXT", help="what is still to be done")
    action.add_argument("--closed", action="store_true", help="it is over: the agent is not told of it any more")


def run(options: argparse.Namespace) -> int:
    given = settings.load(os.environ, Path.cwd())
    where = store_path(given.data_dir)
    if given.database_url is None and not where.is_file():
        raise SettingsError(f"there is no {where}; has a gateway run here? DATA_DIR says where it keeps its files")
    return asyncio.run(_act(options, given))


async def _act(options: argparse.Namespace, given: Settings) -> int:
    stores = await open_stores(given.data_dir, given.database_url)
    try:
        act: Callable[[_Context], Awaitable[int]] = options.act
        return await act(_Context(options, given, stores))
    finally:
        await stores.close()


# Looking


async def _list(manager: _Context) -> int:
    known = await MemoryReports(manager.store).callers(manager.options.agent)
    manager.show(known, memory_text.acquaintances(known))
    return 0


async def _show(manager: _Context) -> int:
    report = await manager.report()
    content = {
        "pins": report.pins,
        "facts": report.facts,
        "notes": report.notes,
        "state": report.state,
        "calls": report.calls[: memory_text.MOST_CALLS],
    }
    manager.show({"caller": report.caller, **content, "reverted": report.reverted}, memory_text.report(report))
    return 0


async def _log(manager: _Context) -> int:
    changes = (await manager.report()).changes
    manager.show(changes, memory_text.changes(changes))
    return 0


async def _diff(manager: _Context) -> int:
    report = await manager.report()
    if manager.options.session:
        call = await manager.call()
        if call.caller != report.caller:
            raise SettingsError(f"{call.session_id} is not a call of that caller")
        session_id = call.session_id
    else:
        session_id = report.calls[0].session_id if report.calls else ""
    changes = [change for change in report.changes if change.session_id == session_id]
    manager.show(changes, memory_text.changes(changes))
    return 0


async def _explain(manager: _Context) -> int:
    call = await manager.call()
    manager.show({"session": call.session_id, **call.receipt}, memory_text.receipt(call))
    return 0


async def _export(manager: _Context) -> int:
    print(orjson.dumps(await manager.report(), default=str, option=orjson.OPT_INDENT_2).decode())
    return 0


async def _audit(manager: _Context) -> int:
    findings = await MemoryReports(manager.store).audit(manager.options.agent)
    counts = dict(Counter(finding.kind for finding in findings))
    manager.show({"counts": counts, "findings": findings}, memory_text.findings(counts, findings))
    return 0


async def _stats(manager: _Context) -> int:
    figures = await MemoryReports(manager.store).stats(manager.options.agent)
    manager.show(figures, memory_text.figures(figures))
    return 0


# Pinned topics


async def _pin(manager: _Context) -> int:
    given = manager.options
    agent, caller = await _agent(manager), _caller(given.caller)
    try:
        pin = await PinnedTopicStore(manager.store).pin(
            agent,
            caller,
            given.title,
            about=given.about,
            status=given.status,
            open_items=given.item,
            closed=given.closed,
        )
    except ValueError as error:
        raise SettingsError(str(error)) from None
    manager.show(pin, memory_text.pinned(pin))
    return 0


async def _unpin(manager: _Context) -> int:
    agent, caller = await _agent(manager), _caller(manager.options.caller)
    if not await PinnedTopicStore(manager.store).unpin(agent, caller, manager.options.title):
        raise SettingsError("no topic of this name is pinned; `gateway memory show` lists those that are")
    manager.show({"unpinned": manager.options.title}, "unpinned")
    return 0


async def _agent(manager: _Context) -> str:
    """The one that is named, or the only one there is."""
    names = list(manager.settings.agents) or [DEFAULT_AGENT]
    known = {one.agent for one in await MemoryReports(manager.store).callers()}
    given: str = manager.options.agent
    if given and given not in known.union(names):
        raise SettingsError(f"there is no agent {given}; there are {', '.join(sorted(known.union(names)))}")
    if not given and len(names) != 1:
        raise SettingsError(f"a topic is pinned for one agent; say --agent, one of {', '.join(sorted(names))}")
    return given or names[0]


# Undoing


async def _revert(manager: _Context) -> int:
    call = await manager.call()
    if not await manager.confirmed(f"Take back everything that the call {call.session_id} taught?"):
        return 1
    async with manager.eraser() as eraser:
        undone = await eraser.revert(call)
    manager.show(undone, memory_text.undone(undone))
    return _code(undone)


async def _forget(manager: _Context) -> int:
    caller, words = _caller(manager.options.caller), await _planted(manager)
    async with manager.eraser() as eraser:
        traces = await eraser.find(caller, manager.options.agent)
        # With one agent named, a remote store may have documents that nothing here tells of.
        if not traces and not words and not (manager.options.agent and manager.settings.remem_api_url):
            _nobody()
        if not await manager.confirmed(f"Forget {caller}, with {len(traces.sessions)} calls?"):
            return 1
        undone = await eraser.erase(traces)
    held_by = await eraser.holding(words) if words else []
    told = memory_text.forgotten(undone, held_by, under_way=len(traces.unfinished), verified=bool(words))
    manager.show({"undone": undone, "under_way": len(traces.unfinished), "still_in": held_by}, told)
    return 1 if held_by else _code(undone)


async def _planted(manager: _Context) -> list[str]:
    """What to look for afterwards: the words that were given, or who the caller is and what is known of them."""
    given: list[str] | None = manager.options.verify
    if given is None or any(given):
        return [word for word in given or () if word]
    report = await MemoryReports(manager.store).of(_caller(manager.options.caller), manager.options.agent)
    known = [*(one.fact.text for one in report.facts), *(one.pin.title for one in report.pins)]
    return [*known, *([] if manager.options.agent else [report.caller])]


def _code(undone: ErasureResult) -> int:
    return 0 if undone.is_complete else 1


def _caller(text: str) -> str:
    """A number in one spelling; another identifier, where an agent's settings have such, as it is."""
    return e164(text) or text.strip()


def _nobody() -> NoReturn:
    raise SettingsError("nothing is known of this caller; `gateway memory list` names who is known")


_MEANINGS: Final = {
    "CALLER": "a number in E.164, like +12025550143",
    "SESSION": "a call's id, or the beginning of it",
    "[SESSION]": "a call's id, or the beginning of it; without it, the last one",
    "TITLE": "a topic's name, in a few words",
}

_ACTIONS: Final[dict[str, tuple[Callable[[_Context], Awaitable[int]], str, tuple[str, ...]]]] = {
    "list": (_list, "who is known", ()),
    "show": (_show, "what is known of a caller: topics, facts, state, the newest calls", ("CALLER",)),
    "log": (_log, "every change to what is known of a caller", ("CALLER",)),
    "diff": (_diff, "what one call changed", ("CALLER", "[SESSION]")),
    "explain": (_explain, "what the agent was told before a call, and where it came from", ("SESSION",)),
    "pin": (_pin, "have the agent told of a topic in every call, or change one that is pinned", ("CALLER", "TITLE")),
    "unpin": (_unpin, "let go of a pinned topic", ("CALLER", "TITLE")),
    "revert": (_revert, "take back everything that one call taught", ("SESSION",)),
    "forget": (_forget, "delete everything about a caller", ("CALLER",)),
    "export": (_export, "everything about a caller, as one JSON document", ("CALLER",)),
    "audit": (_audit, "facts, topics and state that a person should look at", ()),
    "stats": (_stats, "how much is known and used, without a number of anybody", ()),
}
