"""`gateway memory`: what is known about callers, where it came from, and how to erase it."""

import argparse
import asyncio
import contextlib
import getpass
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, NoReturn

import httpx
import orjson
from rich.console import RenderableType

from gateway import settings
from gateway.agents import DEFAULT_AGENT, AgentDirectory
from gateway.cli import memory_text, terminal
from gateway.cli.tail import SESSION_ID
from gateway.cluster.open import open_shared_erasure, open_shared_store
from gateway.errors import SettingsError
from gateway.finalization.archive import Archive
from gateway.finalization.job_table import JobTable
from gateway.finalization.steps import CallMemory, FinalizationSteps
from gateway.history.archived_calls import ArchivedCalls
from gateway.history.audit_log import AuditAction, AuditLog, AuditNote, AuditOutcome, cli_actor
from gateway.history.calls_table import CallsTable, FinishedCall
from gateway.history.erasure import DataLocations, Eraser
from gateway.history.queries import CallHistory
from gateway.history.rebuild import MemoryRebuild, RebuiltCall
from gateway.history.report import CallerReport, MemoryReports
from gateway.history.stores import Stores, existing_stores
from gateway.invocation import command
from gateway.memory.pin_codes import PinCodeStore
from gateway.memory.pinned_topics import PinnedTopicStore
from gateway.memory.remem_client import connect_remem
from gateway.settings import KEYED_PROVIDERS, SUMMARY_PROVIDERS, Settings, admin_token
from gateway.telephony.phone_numbers import e164
from gateway.text.figures import count
from gateway.text.person_names import folded_words, searched_words

DESCRIPTION: Final = (
    "Show what is known about callers and where it came from; correct or erase it. Reads DATA_DIR; the gateway may be "
    "running."
)


@dataclass(frozen=True)
class _Context:
    """What every action works with."""

    options: argparse.Namespace
    settings: Settings
    stores: Stores

    @property
    def reports(self) -> MemoryReports:
        return MemoryReports(self.stores.memory)

    @property
    def caller(self) -> str:
        """A phone number in E.164, with or without its plus sign, or another identifier unchanged."""
        given = self.options.caller.strip()
        return e164(given) or (e164(f"+{given}") if given.isdecimal() else None) or given

    async def report_of_name(self) -> CallerReport:
        """Of the one caller with this name."""
        wanted = searched_words(self.options.caller)
        known = await self.reports.callers(self.options.agent)
        names = await CallsTable(self.stores.memory).names_of_callers({one.caller for one in known})
        found = [caller for caller, name in sorted(names.items()) if _is_named(wanted, folded_words(name))]
        if len(found) > 1 and wanted:
            listed = ", ".join(terminal.one_line(terminal.named(caller, names[caller])) for caller in found)
            raise SettingsError(f"several callers are named {self.options.caller}: {listed}; write the number")
        report = await self.reports.of(found[0], self.options.agent) if found and wanted else None
        return report or _unknown_caller()

    def audited(self, action: AuditAction, **subject: str) -> contextlib.AbstractAsyncContextManager[AuditNote]:
        """Write an audit entry for what the block does."""
        note = AuditNote(action, cli_actor(), **{"agent": self.options.agent, **subject})
        return AuditLog(self.stores.memory, admin_token(self.settings)).noted(note)

    def show(self, content: Any, text: Iterable[RenderableType], exit_code: int = 0) -> int:
        terminal.output(self.options.json, content, text)
        return exit_code

    @contextlib.asynccontextmanager
    async def eraser(self) -> AsyncIterator[Eraser]:
        secret, places = admin_token(self.settings), DataLocations.of(self.settings)
        async with httpx.AsyncClient() as http, open_shared_erasure(self.settings) as shared:
            remote = connect_remem(self.settings.remem_api_url, self.settings.remem_api_key, http)
            yield Eraser(self.stores, places, remote, secret, shared)

    async def report(self) -> CallerReport:
        return await self.reports.of(self.caller, self.options.agent) or await self.report_of_name()

    async def call(self) -> FinishedCall:
        found = await CallsTable(self.stores.memory).find(self.options.session)
        if found is None and (old := await ArchivedCalls(self.stores.memory).find(self.options.session)):
            found = old.call
        if found is None or self.options.agent not in ("", found.agent):
            raise SettingsError(f"no single call matches {self.options.session}; `{command('sessions')}` lists calls")
        return found

    async def confirmed(self, question: str, *, can_undo: bool = False) -> bool:
        """Ask a person at a terminal; a script has decided already."""
        if self.options.yes or not sys.stdin.isatty():
            return True
        warning = "" if can_undo else " This can't be undone."
        print(f"{question}{warning} [y/N] ", end="", file=sys.stderr, flush=True)
        answer = await asyncio.to_thread(sys.stdin.readline)
        if answer.strip().lower() in ("y", "yes"):
            return True
        print(f"nothing was {'changed' if can_undo else 'deleted'}", file=sys.stderr)
        return False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    for name, (act, meaning, arguments) in _ACTIONS.items():
        action = actions.add_parser(name, help=meaning, description=f"{meaning[0].upper()}{meaning[1:]}.")
        for argument in arguments:
            keywords = dict(_ARGUMENTS[argument])
            if not argument.startswith("-"):
                keywords["metavar"] = argument.strip("[]")
            action.add_argument(argument.strip("[]").lower(), **keywords)
        action.add_argument("--agent", default="", metavar="NAME", help="only for this agent")
        action.add_argument("--json", action="store_true", help="print JSON")
        action.set_defaults(act=act)


def run(options: argparse.Namespace) -> int:
    given = settings.load(os.environ, Path.cwd())
    action: Callable[[_Context], Awaitable[int]] = options.act

    async def act() -> int:
        async with existing_stores(given) as stores:
            return await action(_Context(options, given, stores))

    return asyncio.run(act())


def _is_named(wanted: Iterable[Iterable[str]], words: Sequence[str]) -> bool:
    return all(any(spelling.rstrip() in words for spelling in spellings) for spellings in wanted)


def _unknown_caller() -> NoReturn:
    raise SettingsError(f"nothing is known about this caller; `{command('memory list')}` lists known callers")


# Reading


async def _list(context: _Context) -> int:
    known = await context.reports.callers(context.options.agent)
    names = await CallsTable(context.stores.memory).names_of_callers(one.caller for one in known)
    content = [{**asdict(one), "name": names.get(one.caller, "")} for one in known]
    return context.show(content, memory_text.callers(known, names))


async def _show(context: _Context) -> int:
    report = await context.report()
    content = {name: getattr(report, name) for name in ("caller", "pins", "facts", "notes", "state", "reverted")}
    content["calls"] = [call.as_json() for call in report.calls[: memory_text.MOST_CALLS]]
    names = await CallsTable(context.stores.memory).names_of_callers([report.caller])
    content["name"] = name = names.get(report.caller, "")
    return context.show(content, memory_text.report(report, name))


async def _log(context: _Context) -> int:
    changes = (await context.report()).changes
    return context.show(changes, memory_text.changes(changes))


async def _diff(context: _Context) -> int:
    given = context.options
    if not given.session and SESSION_ID.fullmatch(given.caller):
        if not await context.reports.of(context.caller, given.agent):  # a number without its plus sign looks alike
            given.session = given.caller
            given.caller = (await context.call()).caller
    report = await context.report()
    if given.session:
        call = await context.call()
        if call.caller != report.caller:
            raise SettingsError(f"{call.session_id} is not a call from that caller")
        session_id = call.session_id
    else:
        session_id = report.calls[0].session_id if report.calls else ""
    changes = [change for change in report.changes if change.session_id == session_id]
    return context.show(changes, memory_text.changes(changes))


async def _explain(context: _Context) -> int:
    call = await context.call()
    return context.show({"session": call.session_id, **call.receipt}, memory_text.context(call))


async def _export(context: _Context) -> int:
    async with context.audited(AuditAction.CALLER_EXPORT, caller=context.caller):
        with terminal.progress("collecting everything about this caller"):
            report = await context.reports.of(context.caller, context.options.agent) or _unknown_caller()
            content = report.as_json()
    print(orjson.dumps(content, default=str, option=orjson.OPT_INDENT_2).decode())
    return 0


async def _audit(context: _Context) -> int:
    with terminal.progress("reading what is known of all callers"):
        findings = await context.reports.audit(context.options.agent)
    counts = dict(Counter(finding.kind for finding in findings))
    return context.show({"counts": counts, "findings": findings}, memory_text.findings(counts, findings))


async def _stats(context: _Context) -> int:
    with terminal.progress("counting"):
        figures = await context.reports.stats(context.options.agent)
    return context.show(figures, memory_text.stats(figures))


# Pinned topics


async def _pin(context: _Context) -> int:
    given = context.options
    texts = {"about": given.about or None, "status": given.status or None, "open_items": given.item or None}
    agent = await _agent(context)
    try:
        async with context.audited(AuditAction.TOPIC_PIN, caller=context.caller, agent=agent):
            pin = await PinnedTopicStore(context.stores.memory).pin(
                agent, context.caller, given.title, **texts, closed=given.closed
            )
    except ValueError as error:
        raise SettingsError(str(error)) from None
    return context.show(pin, memory_text.topic(pin))


async def _unpin(context: _Context) -> int:
    agent, title = await _agent(context), context.options.title
    async with context.audited(AuditAction.TOPIC_UNPIN, caller=context.caller, agent=agent):
        if not await PinnedTopicStore(context.stores.memory).unpin(agent, context.caller, title):
            raise SettingsError(
                f"no pinned topic has this title; `{command(f'memory show {context.caller}')}` lists them"
            )
    return context.show({"unpinned": title}, ["unpinned"])


async def _pin_code(context: _Context) -> int:
    agent = await _agent(context)
    async with open_shared_store(context.settings) as shared:
        pin_codes = PinCodeStore(context.stores.memory, shared)
        if context.options.remove:
            async with context.audited(AuditAction.PIN_REMOVE, caller=context.caller, agent=agent):
                if not await pin_codes.remove(agent, context.caller):
                    raise SettingsError("this caller has no PIN")
            return context.show({"removed": True}, ["PIN removed"])
        # Not an argument: those are visible to other users of the machine, and kept by shells.
        ask = (lambda: getpass.getpass("PIN: ")) if sys.stdin.isatty() else sys.stdin.readline
        pin = await asyncio.to_thread(ask)
        try:
            async with context.audited(AuditAction.PIN_SET, caller=context.caller, agent=agent):
                await pin_codes.set(agent, context.caller, pin.strip())
        except ValueError as error:
            raise SettingsError(str(error)) from None
    return context.show({"set": True}, ["PIN set"])


async def _agent(context: _Context) -> str:
    """The agent of --agent, or the only one configured."""
    names = list(context.settings.agents) or [DEFAULT_AGENT]
    known = {one.agent for one in await context.reports.callers()}
    given: str = context.options.agent
    if given and given not in known.union(names):
        raise SettingsError(f"no agent is named {given}; use one of {', '.join(sorted(known.union(names)))}")
    if not given and len(names) != 1:
        raise SettingsError(f"several agents are configured; add --agent, one of {', '.join(sorted(names))}")
    return given or names[0]


# Rebuilding


async def _rebuild(context: _Context) -> int:
    given = context.options
    if bool(given.caller) == given.all:
        raise SettingsError("name a caller, or use --all for all of them")
    known = await context.reports.callers(given.agent)
    callers = sorted({one.caller for one in known}) if given.all else [context.caller]
    async with _memory_rebuild(context) as rebuild:
        if given.undo:
            restored = 0
            for caller in callers:
                async with context.audited(AuditAction.MEMORY_UNDO, caller=caller) as note:
                    undone = await rebuild.undo(caller, given.agent)
                    note.action, restored = note.action if undone else None, restored + undone
            if not restored:
                raise SettingsError("there is no rebuild of the last 30 days to undo")
            return context.show({"restored": restored}, [f"restored {count(restored, 'call')}"])
        planned: list[RebuiltCall] = []
        with terminal.progress("reading calls, callers done:", total=len(callers)) as line:
            for caller in callers:
                planned += [call async for call in rebuild.plan(caller, given.agent)]
                line.advance()
        if not planned and given.all:
            raise SettingsError("no calls are kept, so there is nothing to rebuild")
        if not planned:
            _unknown_caller()
        context.show([call.as_json() for call in planned], memory_text.rebuilt(planned))
        changed = [call for call in planned if call.is_changed]
        size = count(len(changed), "call")
        if given.dry_run or not changed:
            return 0
        if not await context.confirmed(f"Apply to {size}?", can_undo=True):
            return 1
        with terminal.progress("storing"):
            for caller in dict.fromkeys(call.session.caller for call in changed):
                async with context.audited(AuditAction.MEMORY_REBUILD, caller=caller):
                    await rebuild.apply([call for call in changed if call.session.caller == caller])
    print(f"{size} rebuilt; --undo restores them within 30 days", file=sys.stderr)
    return 0


@contextlib.asynccontextmanager
async def _memory_rebuild(context: _Context) -> AsyncIterator[MemoryRebuild]:
    from gateway.app import make_embedder, make_summarizer  # imports the whole application

    given, stores = context.settings, context.stores
    provider, _, model = context.options.model.partition("/")
    if provider not in ("", *SUMMARY_PROVIDERS):
        known = ", ".join(SUMMARY_PROVIDERS)
        raise SettingsError(f"--model is {provider!r}; use one of: {known}, or a model such as anthropic/MODEL")
    if provider in KEYED_PROVIDERS and not getattr(given, f"{provider}_api_key"):
        raise SettingsError(f"--model {provider} needs {provider.upper()}_API_KEY")
    embedder, archive_dir = make_embedder(given), given.voice_session_archive_dir
    agents = AgentDirectory(given.agents, given.folder)
    summarizer = make_summarizer(given, agents, provider=provider, model=model)
    try:
        async with httpx.AsyncClient() as http, context.eraser() as eraser:
            steps = FinalizationSteps(
                memory=CallMemory(stores.memory, embedder),
                jobs=JobTable(stores.local),
                remem=connect_remem(given.remem_api_url, given.remem_api_key, http),
                summarizer=summarizer,
                archive=Archive(archive_dir, retention_days=0),
                find_agent=agents.get,
                is_erased=eraser.is_erased,
            )
            history = CallHistory(stores, data_dir=given.data_dir, archive_dir=archive_dir)
            yield MemoryRebuild(steps, history, DataLocations.of(given))
    finally:
        await summarizer.close()
        if embedder is not None:
            embedder.close()


# Erasure


async def _revert(context: _Context) -> int:
    call = await context.call()
    if not await context.confirmed(f"Undo everything learned from {call.session_id}?"):
        return 1
    subject = {"session": call.session_id, "caller": call.caller, "agent": call.agent}
    async with context.eraser() as eraser, context.audited(AuditAction.CALL_REVERT, **subject) as note:
        with terminal.progress("undoing what was learned"):
            result = await eraser.revert(call)
        note.outcome = None if result.is_complete else AuditOutcome.INCOMPLETE
    return context.show(result, memory_text.deleted(result), 0 if result.is_complete else 1)


_ERASE_AGAIN: Final = (0.2, 0.5, 1.0)
"""Seconds before each further attempt to erase what was left."""


async def _forget(context: _Context) -> int:
    async with context.eraser() as eraser:
        with terminal.progress("looking for everything about this caller"):
            found = await eraser.find_all(context.caller, context.options.agent)
            callers, calls = [data.caller for data in found], {call for data in found for call in data.sessions}
            words = await _words_to_verify(context, callers)
        # With --agent, the remote store may hold documents that no local row mentions.
        if not any(found) and not words and not (context.options.agent and context.settings.remem_api_url):
            _unknown_caller()
        if not await context.confirmed(f"Forget {', '.join(callers)} and {count(len(calls), 'call')}?"):
            return 1
        async with context.audited(AuditAction.CALLER_ERASE, caller=context.caller) as note:
            with terminal.progress(f"erasing {count(len(calls), 'call')}") as line:
                result = await eraser.erase_all(found)
                line.step("checking that nothing is left")
                held_by = await eraser.holding(words)
                for pause in _ERASE_AGAIN:  # a gateway that runs may have kept a file busy, or logged the end of a call
                    if not (result.unscrubbed or held_by):
                        break
                    await asyncio.sleep(pause)
                    again = await eraser.erase_all(found)
                    result = replace(again, deleted=Counter(result.deleted) + Counter(again.deleted))
                    held_by = await eraser.holding(words)
            note.outcome = None if result.is_complete else AuditOutcome.INCOMPLETE
    under_way = len({call for data in found for call in data.unfinished})
    text = memory_text.forgotten(result, held_by, under_way=under_way, verified=bool(words))
    exit_code = 0 if result.is_complete and not held_by else 1
    content = {"callers": callers, "undone": result, "under_way": under_way, "still_in": held_by}
    return context.show(content, text, exit_code)


async def _words_to_verify(context: _Context, callers: Sequence[str]) -> list[str]:
    """The words after --verify, or the caller's number and other identifiers, and what is known about them."""
    given: list[str] | None = context.options.verify
    if given is None or any(given):
        return [word for word in given or () if word]
    agent = context.options.agent
    reports = {caller: await context.reports.of(caller, agent) for caller in callers}
    learned = {one.fact.text for report in reports.values() for one in report.facts}
    learned |= {one.pin.title for report in reports.values() for one in report.pins}
    # What is also known about another caller, or by another agent, is still there afterwards.
    for other in await context.reports.callers() if learned else ():
        if other.caller not in reports or agent not in ("", other.agent):
            kept = orjson.dumps((await context.reports.of(other.caller, other.agent)).as_json(), default=str)
            learned = {text for text in learned if orjson.dumps(text)[1:-1].lower() not in kept.lower()}
    # Not the ids of sessions: an erased one stays listed, so that nothing writes to it again.
    return [*([] if agent else callers), *sorted(learned)]


_CALLER_HELP: Final = (
    "a phone number like +12025550143, or another identifier; show, log and diff also take a name, diff a session id"
)
_SESSION_HELP: Final = "a session id, or its first characters"
_OPTIONAL: Final = {"nargs": "?", "default": ""}
_FLAG: Final = {"action": "store_true"}
_TEXT: Final = {"default": "", "metavar": "TEXT"}
_VERIFY_HELP: Final = (
    "search all files and tables for these words afterwards (default: the caller, and facts that no other caller has)"
)
_ARGUMENTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "CALLER": {"help": _CALLER_HELP},
    "[CALLER]": {**_OPTIONAL, "help": _CALLER_HELP},
    "SESSION": {"help": _SESSION_HELP},
    "[SESSION]": {**_OPTIONAL, "help": f"{_SESSION_HELP} (default: the last call)"},
    "TITLE": {"help": "the topic's title, a few words"},
    "--remove": {**_FLAG, "help": "remove the PIN"},
    "--yes": {**_FLAG, "help": "do not ask for confirmation"},
    "--about": {**_TEXT, "help": "description"},
    "--status": {**_TEXT, "help": "current status"},
    "--item": {"action": "append", "default": [], "metavar": "TEXT", "help": "open item; may be repeated"},
    "--closed": {**_FLAG, "help": "close it: the agent no longer gets it"},
    "--all": {**_FLAG, "help": "all callers"},
    "--model": {"default": "", "help": "a SUMMARY_PROVIDER, or a model such as anthropic/MODEL"},
    "--dry-run": {**_FLAG, "help": "show what would change, and change nothing"},
    "--undo": {**_FLAG, "help": "restore what the last rebuild replaced"},
    "--verify": {"nargs": "*", "metavar": "WORD", "help": _VERIFY_HELP},
}
_ACTIONS: Final[Mapping[str, tuple[Callable[[_Context], Awaitable[int]], str, Sequence[str]]]] = {
    "list": (_list, "known callers", ()),
    "show": (_show, "what is known about a caller: topics, facts, state, the newest calls", ("CALLER",)),
    "log": (_log, "every change to what is known about a caller", ("CALLER",)),
    "diff": (_diff, "what one call changed", ("CALLER", "[SESSION]")),
    "explain": (_explain, "which memories a call started with, and where each came from", ("SESSION",)),
    "pin": (
        _pin,
        "pin a topic, so that the agent gets it in every call, or change a pinned one",
        "CALLER TITLE --about --status --item --closed".split(),
    ),
    "unpin": (_unpin, "unpin a topic", ("CALLER", "TITLE")),
    "pin-code": (_pin_code, "set the PIN of a caller, read from standard input, or remove it", ("CALLER", "--remove")),
    "revert": (_revert, "undo everything learned from one call", ("SESSION", "--yes")),
    "forget": (_forget, "delete everything about a caller", ("CALLER", "--verify", "--yes")),
    "rebuild": (
        _rebuild,
        "derive summaries, facts and topics again from what is kept of calls",
        "[CALLER] --all --model --dry-run --undo --yes".split(),
    ),
    "export": (_export, "everything about a caller, as one JSON document", ("CALLER",)),
    "audit": (_audit, "facts, topics and state that a person should review", ()),
    "stats": (_stats, "how much is known and used, without phone numbers", ()),
}
