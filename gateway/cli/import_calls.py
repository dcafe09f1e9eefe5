"""`gateway import`: remembers the past conversations of agents hosted at ElevenLabs."""

import argparse
import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import httpx

from gateway import settings
from gateway.agents import AgentDirectory
from gateway.calls.call_factory import NoMemoryServices
from gateway.calls.hosted_calls import HostedCalls, HostedTimeouts
from gateway.calls.hosted_import import ConversationImport, ImportFinalizer, NoJobStore
from gateway.cli import terminal
from gateway.cli.remote import parse_time
from gateway.cli.setup import hosted_agents
from gateway.cluster.open import open_shared_erasure, open_shared_store
from gateway.errors import SettingsError
from gateway.finalization.archive import Archive
from gateway.finalization.job_table import JobTable
from gateway.finalization.steps import CallMemory, FinalizationSteps
from gateway.history.audit_log import AuditAction, AuditLog, AuditNote, cli_actor
from gateway.history.erasure import DataLocations, Eraser
from gateway.history.stores import existing_stores
from gateway.memory.remem_client import connect_remem
from gateway.settings import Settings, admin_token
from gateway.telephony.elevenlabs import PLATFORM, ElevenLabsApi
from gateway.telephony.phone_numbers import AllowList
from gateway.text.figures import count

DESCRIPTION: Final = (
    "Fetch past conversations and remember each like a call that was just reported: transcript, document, facts, "
    "topics. Interrupted or repeated, it continues with those that are missing. The gateway may be running."
)


class _ImportMemory(NoMemoryServices):
    """Stores calls; reads nothing."""

    remembers = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("platform", choices=(PLATFORM,))
    parser.add_argument("--since", default="90d", metavar="WHEN", help="90d, 12h or 2026-02-06 (default: 90d)")
    parser.add_argument("--agent", default="", help="only this agent of gateway.toml")
    parser.add_argument("--limit", type=int, default=0, help="at most this many, the oldest first (default: all)")
    parser.add_argument("--dry-run", action="store_true", help="only count them")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    loaded = settings.load(os.environ, Path.cwd())
    if loaded.elevenlabs_api_key is None:
        raise SettingsError("set ELEVENLABS_API_KEY; ElevenLabs shows it under API keys")
    if not loaded.voice_session_enabled:
        raise SettingsError("VOICE_SESSION_ENABLED is false, so nothing is remembered; set it to true to import calls")
    if options.limit < 0:
        raise SettingsError(f"--limit is {options.limit}; use 1 or more")
    return asyncio.run(_import(options, loaded))


async def _import(options: argparse.Namespace, loaded: Settings) -> int:
    since, agents = parse_time(options.since), hosted_agents(loaded, options.agent)
    begun = time.monotonic()
    async with _importer(loaded) as (work, audit):
        with terminal.progress("listing conversations"):
            listed = [one for agent in agents for one in await work.api.conversations(agent.elevenlabs_agent, since)]
            listed.sort(key=lambda one: one.started_at)
            new = await work.new(listed)
        new = new[: options.limit or None]
        if not options.dry_run and new:
            with terminal.progress("importing", total=len(new)) as line:
                work.on_progress = line.advance
                async with audit.noted(AuditNote(AuditAction.CALL_IMPORT, cli_actor(), item=PLATFORM)):
                    await work.run(new)
    counts = {name: work.counts[name] for name in ("imported", "skipped", "malformed")}
    seconds = round(time.monotonic() - begun, 1)
    found = {"found": len(listed), "new": len(new), **counts, "seconds": seconds}
    text = f"{count(len(listed), 'conversation')} since {since:%Y-%m-%d}, {len(new)} to import"
    if not options.dry_run:
        text = f"{count(counts['imported'], 'call')} imported in {seconds:.0f} s; {counts['skipped']} not kept"
        text += f"; {counts['malformed']} malformed" if counts["malformed"] else ""
        text += f"; {len(listed) - len(new)} were imported before, are not calls, or exceed --limit"
    terminal.output(options.json, found, [text])
    return 0


@contextlib.asynccontextmanager
async def _importer(loaded: Settings) -> AsyncIterator[tuple[ConversationImport, AuditLog]]:
    from gateway.app import make_embedder, make_summarizer  # imports the whole application

    agents, token = AgentDirectory(loaded.agents, loaded.folder), admin_token(loaded)
    assert loaded.elevenlabs_api_key is not None
    async with contextlib.AsyncExitStack() as stack:
        stores = await stack.enter_async_context(existing_stores(loaded, needs_local=True))
        http = await stack.enter_async_context(httpx.AsyncClient())
        shared = await stack.enter_async_context(open_shared_store(loaded))
        erasure = await stack.enter_async_context(open_shared_erasure(loaded))
        summarizer, embedder = make_summarizer(loaded, agents), make_embedder(loaded)
        stack.push_async_callback(summarizer.close)
        if embedder is not None:
            stack.callback(embedder.close)
        remem = connect_remem(loaded.remem_api_url, loaded.remem_api_key, http)
        eraser = Eraser(stores, DataLocations.of(loaded), remem, token, erasure)
        steps = FinalizationSteps(
            memory=CallMemory(stores.memory, embedder),
            jobs=NoJobStore(),
            remem=remem,
            summarizer=summarizer,
            archive=Archive(loaded.voice_session_archive_dir, retention_days=loaded.voice_session_retention_days),
            find_agent=agents.get,
            is_erased=eraser.is_erased,
        )
        finalizer = ImportFinalizer(steps, JobTable(stores.local), eraser.clear_away)
        allowed = AllowList(loaded.allowed_callers)
        calls = HostedCalls(agents, allowed, _ImportMemory(), finalizer, shared, token, HostedTimeouts())
        api = ElevenLabsApi(http, loaded.elevenlabs_api_url, loaded.elevenlabs_api_key)
        yield ConversationImport(api, calls, finalizer, lambda: None), AuditLog(stores.memory, token)
