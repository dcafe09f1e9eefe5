"""Pages about agents: the list, one agent with its settings, earlier versions; edit, preview and restore."""

import asyncio
import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from gateway.agent_files import MAX_GREETING, MAX_PROMPT_BYTES, MAX_VOICE, AgentFiles, why_engine_fixed
from gateway.agents import (
    Agent,
    AgentDirectory,
    LiveSettings,
    engine_name,
    render_prompt,
    wanted_personas,
    wants_memory,
)
from gateway.calls.agent_context import memory_text
from gateway.calls.call_factory import MemoryServices, NoMemoryServices
from gateway.calls.consent import first_words
from gateway.engines.registry import EngineDirectory
from gateway.errors import FileChanged, SettingsError
from gateway.history.agent_versions import AgentVersion, AgentVersionTable
from gateway.history.api_tokens import TokenTable
from gateway.history.calls_table import CallsTable
from gateway.memory.access import MemoryAccess
from gateway.memory.stores.store import MemoryStore
from gateway.session import TrustLevel
from gateway.settings import TOML_FILE
from gateway.telephony.phone_numbers import Attestation, e164, transfer_target
from gateway.tools.builtin import END_CALL, transfer_schema
from gateway.tools.executor import CallTools, ToolLoader
from gateway.web.audit import audit_note
from gateway.web.auth import ADMIN
from gateway.web.dashboard import agent_settings
from gateway.web.login import Form, LoginGuard
from gateway.web.login_sessions import LoginSession
from gateway.web.softphone import EXAMPLES, MICROPHONE, suggested_callers

FORM_BYTES: Final = 13 * MAX_PROMPT_BYTES
"""Browsers send at most that many characters, of up to four bytes, and three characters for each byte."""
SHOWN_VERSIONS: Final = 15
MAX_DIFF_LINES: Final = 200
MAX_DIFF_CHARACTERS: Final = 16_000
MAX_FILES: Final = 50
MAX_TOOLS: Final = 100
MAX_DESCRIPTION: Final = 160
MAX_LINE: Final = 1000
"""Characters of the fields for engine and transfer targets."""
PREVIEW_SECONDS: Final = 5.0
"""How long a preview waits for memory, with a store far away."""
SITUATIONS: Final = {
    "verified": ("Verified number", Attestation.FULL),
    "unverified": ("Unverified number", Attestation.GATEWAY),
    "failed": ("Failed verification", Attestation.FAILED),
}
"""What decides how much memory a call may use."""
_NOTICES: Final = {
    "saved": "Saved. New calls use this version.",
    "restored": "Restored. New calls use this version.",
    "same": "No changes to save.",
}
_CHANGED: Final = (
    "Not saved: the files were changed since this page was loaded. Your text is still here; the changes below are"
    " against the files as they are now. Save again to replace them."
)


@dataclass(frozen=True)
class AgentRow:
    agent: Agent
    engines: Sequence[str]
    voice: str
    brain: Sequence[str]
    calls: int


@dataclass(frozen=True)
class ShownTool:
    """`source` is where it comes from; empty for one that does not exist at the moment."""

    name: str
    description: str
    source: str
    is_enabled: bool = True


@dataclass(frozen=True)
class Preview:
    """What an engine would receive for a caller."""

    prompt: str
    greeting: str
    level: TrustLevel
    has_memory: bool
    caller: str
    engines: Sequence[str]
    tools: Sequence[str]


@dataclass(frozen=True)
class DiffLine:
    """`kind` is added, removed, same or gap."""

    kind: str
    text: str


class AgentPages:
    def __init__(
        self,
        guard: LoginGuard,
        agents: AgentDirectory,
        engines: EngineDirectory,
        store: MemoryStore,
        memory: MemoryServices | NoMemoryServices,
        tools: ToolLoader,
        tokens: TokenTable,
    ) -> None:
        self._guard = guard
        self._agents = agents
        self._engines = engines
        self._rows = CallsTable(store)
        self._versions = AgentVersionTable(store)
        self._memory = memory
        self._tools = tools
        self._tokens = tokens
        self._files = AgentFiles(agents)

    def routes(self) -> list[Route]:
        guard = self._guard
        return [
            Route("/agents", guard.page(self._list)),
            Route("/agents/{name}", guard.page(self._show)),
            Route("/agents/{name}/preview", guard.action(self._preview, FORM_BYTES), methods=["POST"]),
            Route("/agents/{name}/save", guard.action(self._save, FORM_BYTES), methods=["POST"]),
            # Their answer is a page, which may be opened again at its address.
            Route("/agents/{name}/preview", guard.page(self._show_again)),
            Route("/agents/{name}/save", guard.page(self._show_again)),
            Route("/agents/{name}/restore", guard.action(self._restore), methods=["POST"]),
            Route("/agents/{name}/versions/{version}", guard.page(self._show_version)),
        ]

    # Reading

    async def _list(self, request: Request, session: LoginSession) -> Response:
        await self._agents.refresh()
        calls = await self._rows.calls_by_agent()
        rows = [
            AgentRow(
                agent,
                agent_settings.engine_names(agent, self._engines),
                agent_settings.voice_of(agent, self._agents.table(agent.name), self._engines).name,
                agent_settings.brain_names(agent, self._engines),
                calls.get(agent.name, 0),
            )
            for agent in self._agents
        ]
        return await self._guard.html(
            "agents.html",
            session,
            here="agents",
            rows=rows,
            added=self._agents.added,
            problem=self._agents.problem,
            file=self._agents.folder / TOML_FILE,
        )

    async def _show(self, request: Request, session: LoginSession) -> Response:
        agent = await self._agent(request)
        notice = _NOTICES.get(request.query_params.get("done", ""), "")
        every = request.query_params.get("versions") == "all"
        return await self._page(session, agent, agent.live, notice=notice, every_version=every)

    async def _show_again(self, request: Request, session: LoginSession) -> Response:
        return RedirectResponse(f"/agents/{(await self._agent(request)).name}", 303)

    async def _show_version(self, request: Request, session: LoginSession) -> Response:
        agent = await self._agent(request)
        version = await self._version(agent, request.path_params["version"])
        before = await self._versions.before(version)
        return await self._guard.html(
            "agent_version.html",
            session,
            here="agents",
            agent=agent,
            version=version,
            is_current=version.version == agent.version,
            before=before,
            live=version.live,
            changes=_diff(before.live, version.live) if before else [],
            to_current=_diff(agent.live, version.live),
        )

    # Changing

    async def _preview(self, request: Request, session: LoginSession, form: Form) -> Response:
        agent = await self._agent(request)
        live, problem = _live_settings(agent, form), ""
        try:
            live = await asyncio.to_thread(self._files.check, agent, live)
        except SettingsError as error:
            problem = f"This can't be saved: {error}."
        usable = replace(agent.live, prompt=live.prompt, greeting=live.greeting) if problem else live
        preview = await self._render(agent, usable, form)
        return await self._page(session, agent, live, form=form, preview=preview, problem=problem)

    async def _save(self, request: Request, session: LoginSession, form: Form) -> Response:
        agent = await self._agent(request)
        live = _live_settings(agent, form)
        if live == agent.live:
            audit_note().action = None
            return RedirectResponse(f"/agents/{agent.name}?done=same", 303)
        try:
            await self._change(agent, live, session, form)
        except FileChanged:
            agent = await self._agent(request)
            return await self._page(session, agent, live, form=form, problem=_CHANGED, status=409)
        except SettingsError as error:
            return await self._page(session, agent, live, form=form, problem=f"Not saved: {error}.", status=400)
        return RedirectResponse(f"/agents/{agent.name}?done=saved", 303)

    async def _restore(self, request: Request, session: LoginSession, form: Form) -> Response:
        agent = await self._agent(request)
        version = await self._version(agent, form.get("version", ""))
        try:
            await self._change(agent, version.live, session, form)
        except FileChanged:
            raise HTTPException(409, "Not restored. The agent was changed elsewhere; go back and reload.") from None
        except SettingsError as error:
            raise HTTPException(400, f"Not restored. This version can't be used: {error}.") from None
        return RedirectResponse(f"/agents/{agent.name}?done=restored", 303)

    async def _change(self, agent: Agent, live: LiveSettings, session: LoginSession, form: Form) -> None:
        """Raises SettingsError, and FileChanged if the files are not as they were when the page was loaded."""
        note = audit_note()
        note.agent, note.item = agent.name, live.version
        if form.get("base") != agent.version:
            raise FileChanged("the agent's files were changed since the page was loaded")
        live = await asyncio.to_thread(self._files.check, agent, live)
        note.item = live.version
        # Recorded first: the job that follows the files would take the change for one that was made there.
        number = await self._versions.add(agent.name, live, await self._actor(session))
        try:
            async with self._agents.files_lock:
                await asyncio.to_thread(self._files.write, agent, live)
        except (SettingsError, FileChanged):
            await self._versions.remove(number)
            raise
        await self._agents.refresh()

    async def _actor(self, session: LoginSession) -> str:
        if session.token == ADMIN:
            return ADMIN
        labels = {token.id: token.label for token in await self._tokens.tokens()}
        return f"{labels.get(session.token) or 'token'} (vg_{session.token})"

    # One agent

    async def _agent(self, request: Request) -> Agent:
        await self._agents.refresh()
        if agent := self._agents.get(request.path_params["name"]):
            return agent
        raise HTTPException(404, "Agent not found. A new agent in gateway.toml is available after a restart.")

    async def _version(self, agent: Agent, version: str) -> AgentVersion:
        if found := await self._versions.find(agent.name, version):
            return found
        raise HTTPException(404, "Version not found. The oldest versions of an agent are deleted.")

    async def _render(self, agent: Agent, live: LiveSettings, form: Form) -> Preview:
        """With the same functions as a call."""
        caller = e164(form.get("caller", "")) or form.get("caller", "").strip()
        _, attestation = SITUATIONS.get(form.get("situation", ""), SITUATIONS["verified"])
        level = agent.trust.level(attestation, withheld=not caller)
        agent = replace(
            agent,
            prompt=live.prompt,
            greeting=live.greeting,
            engine=live.engine,
            transfer_to=live.transfer_to,
            disabled_tools=live.disabled_tools,
        )
        access = MemoryAccess(level, caller=caller)
        if wants_memory(agent.prompt):
            access.open(self._memory.source(agent, access))
        try:
            memory, name = await memory_text(agent, access, PREVIEW_SECONDS)
        finally:
            access.close()
        personas = await self._tools.personas.render(wanted_personas(agent.prompt))
        now = datetime.now().astimezone(agent.timezone)
        shown = f"{name} ({caller})" if name else caller
        prompt = render_prompt(agent.prompt, memory=memory, now=now, caller=shown, personas=personas)
        return Preview(
            prompt,
            first_words(agent, agent.greeting),
            level,
            wants_memory(agent.prompt),
            caller,
            agent.engine or self._engines.default_names,
            [tool.name for tool in await self._tools_of(agent) if tool.is_enabled],
        )

    async def _page(
        self,
        session: LoginSession,
        agent: Agent,
        live: LiveSettings,
        *,
        form: Mapping[str, str] | None = None,
        preview: Preview | None = None,
        problem: str = "",
        notice: str = "",
        status: int = 200,
        every_version: bool = False,
    ) -> Response:
        table, path = self._agents.table(agent.name), self._agents.prompt_path(agent.name)
        versions = await self._versions.entries(agent.name)
        toml = self._agents.folder / TOML_FILE
        page = await self._guard.html(
            "agent.html",
            session,
            status=status,
            here="agents",
            agent=agent,
            live=live,
            fields=_fields(live),
            base=agent.version,
            changes=_diff(agent.live, live),
            chosen={"caller": EXAMPLES[0], "situation": "verified", **(form or {})},
            situations={key: (label, agent.trust.level(how)) for key, (label, how) in SITUATIONS.items()},
            preview=preview,
            names=await self._rows.names_of_callers([preview.caller] if preview else []),
            prompt_path=path,
            toml=toml,
            is_bundled=path != agent.prompt_file,
            read_only=[why for one in (path, toml) if (why := await asyncio.to_thread(self._files.why_read_only, one))],
            is_long=len(agent.prompt.encode()) > MAX_PROMPT_BYTES,
            limits={"prompt": MAX_PROMPT_BYTES, "greeting": MAX_GREETING, "voice": MAX_VOICE, "line": MAX_LINE},
            voice=agent_settings.voice_of(agent, table, self._engines),
            engine_fixed=why_engine_fixed(table),
            default_engines=self._engines.default_names,
            usable_engines=self._engines.usable_names,
            rows=agent_settings.rows(agent, table, self._engines),
            unset=agent_settings.unset(agent, table),
            waiting=self._agents.keys_read_at_start(agent.name),
            broken=self._agents.problem,
            tools=await self._tools_of(replace(agent, disabled_tools=live.disabled_tools)),
            max_tools=MAX_TOOLS,
            documents=await asyncio.to_thread(_documents, agent.knowledge) if agent.knowledge else [],
            versions=versions if every_version else versions[:SHOWN_VERSIONS],
            version_count=len(versions),
            suggested=await suggested_callers(self._rows),
            problem=problem,
            notice=notice,
        )
        page.headers.update(MICROPHONE)
        return page

    async def _tools_of(self, agent: Agent) -> list[ShownTool]:
        """What a call could get, and which of it the agent has."""
        access = MemoryAccess(TrustLevel.NONE, caller="preview")  # nothing is read for a call without trust
        loaded: CallTools = await self._tools.load(agent, access)
        own = [END_CALL, *([transfer_schema(tuple(agent.transfer_to))] if agent.transfer_to else [])]
        functions = agent.functions.name if agent.functions else ""
        sources = [
            *((tool.schema, functions) for tool in loaded.tool_module.tools.values()),
            *((tool.schema, "MCP or HTTP") for tool in loaded.remote),
            *((tool.schema, "built in") for tool in loaded.builtins),
            *((schema, "built in") for schema in own),
        ]
        off = agent.disabled_tools
        tools = [
            ShownTool(one.name, _shortened(one.description), source, one.name not in off)
            for one, source in ((schema.definition, source) for schema, source in sources)
        ]
        missing = sorted(off - {tool.name for tool in tools})
        return [*tools, *(ShownTool(name, "", "", is_enabled=False) for name in missing)]


def _fields(live: LiveSettings) -> dict[str, str]:
    """The texts of the form's fields."""
    return {
        "prompt": live.prompt,
        "greeting": live.greeting,
        "voice": live.voice,
        "engine": ", ".join(live.engine),
        "transfer_to": "".join(f"{name} = {target}\n" for name, target in live.transfer_to.items()),
    }


def _live_settings(agent: Agent, form: Form) -> LiveSettings:
    """What a form has. A field that was not edited leaves its setting as it is, to the last character."""
    shown = _fields(agent.live)
    edited = {name: form[name] for name in shown if name in form and _sent(form[name]) != _sent(shown[name])}
    texts = {name: _sent(text).strip() for name, text in edited.items()}
    live = agent.live
    live = replace(
        live,
        prompt=texts.get("prompt", live.prompt),
        greeting=texts.get("greeting", live.greeting),
        voice=texts.get("voice", live.voice),
    )
    if "engine" in edited:
        engines = [name for name in edited["engine"].split(",") if name.strip()]
        live = replace(live, engine=tuple(dict.fromkeys(map(engine_name, engines))))
    if "transfer_to" in edited:
        lines = [line.partition("=") for line in edited["transfer_to"].splitlines() if line.strip()]
        targets = {name.strip(): transfer_target(target) or target.strip() for name, _, target in lines}
        live = replace(live, transfer_to=targets)
    # Browsers leave out boxes that are not ticked, and the page those of more tools than it shows.
    offered = form.get("tools", "").split()
    kept_off = agent.disabled_tools.difference(offered)
    return replace(live, disabled_tools=kept_off.union(name for name in offered if f"tool:{name}" not in form))


def _sent(text: str) -> str:
    """A field's text without what a browser changes in it."""
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\N{REPLACEMENT CHARACTER}")


def _shortened(text: str) -> str:
    first = " ".join(text.split())
    return first if len(first) <= MAX_DESCRIPTION else f"{first[: MAX_DESCRIPTION - 1]}…"


def _documents(folder: Path) -> list[str]:
    """The names of an agent's documents, as far as a page should show them."""
    found = (Path(root, name) for root, _, names in os.walk(folder) for name in names if not name.startswith("."))
    return sorted(str(path.relative_to(folder)) for path, _ in zip(found, range(MAX_FILES), strict=False))


# Differences


def _diff(before: LiveSettings, after: LiveSettings) -> list[DiffLine]:
    """Line by line; empty for equal settings, cut to what a page can show."""
    lines: list[DiffLine] = []
    size = 0
    for line in _changed_lines(before, after):
        size += len(line.text)
        if len(lines) == MAX_DIFF_LINES or size > MAX_DIFF_CHARACTERS:
            return [*lines, DiffLine("gap", "Not all changes are shown here.")]
        lines.append(line)
    return lines


def _changed_lines(before: LiveSettings, after: LiveSettings) -> Iterator[DiffLine]:
    kinds = {"+": "added", "-": "removed", " ": "same"}
    unified = difflib.unified_diff(before.prompt.splitlines(), after.prompt.splitlines(), n=2, lineterm="")
    for number, line in enumerate(unified):
        if number > 2:  # after the names of the files and the first lines' numbers
            yield DiffLine(kinds[line[0]], line[1:]) if line[0] in kinds else DiffLine("gap", "…")
    old, new = _values(before), _values(after)
    if before.prompt != after.prompt and old != new:
        yield DiffLine("gap", "…")
    for name in [*old, *(name for name in new if name not in old)]:
        if old.get(name) != new.get(name):
            if name in old:
                yield DiffLine("removed", f"{name}: {old[name]}")
            if name in new:
                yield DiffLine("added", f"{name}: {new[name]}")


def _values(live: LiveSettings) -> dict[str, str]:
    """All but the prompt, by what a page calls it."""
    return {
        "greeting": live.greeting,
        "voice": live.voice,
        "engine": " → ".join(live.engine) or "VOICE_ENGINE",
        **{f"transfer target {name}": target for name, target in live.transfer_to.items()},
        **{f"tool {name}": "off" for name in sorted(live.disabled_tools)},
    }
