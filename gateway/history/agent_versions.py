"""
Earlier versions of agents: their live settings, when they were first used, and who changed them.

They are in the memory store, so nodes with one database share them. Each call's receipt names the version that it used.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from gateway.agents import AgentDirectory, LiveSettings
from gateway.errors import StoreError
from gateway.memory.stores.database import Connection, tables
from gateway.memory.stores.documents import time_text
from gateway.memory.stores.store import MemoryStore

KEPT_VERSIONS: Final = 200
"""Of each agent; the oldest are deleted."""
FILES: Final = "files"
"""The actor of a change that was made in the files."""
CHECK_SECONDS: Final = 1.0
"""Between two checks of the files."""

_ENTRY: Final = "number, agent, version, at, actor"
_COLUMNS: Final = f"{_ENTRY}, prompt, greeting, voice, options"
_NEWEST: Final = "SELECT version FROM agent_versions WHERE agent = ? ORDER BY number DESC LIMIT 1"
_DELETE_OLD: Final = """DELETE FROM agent_versions WHERE agent = :agent AND number <= (
    SELECT number FROM agent_versions WHERE agent = :agent ORDER BY number DESC LIMIT 1 OFFSET :kept)"""
SCHEMA: Final = tables("agent_versions")


@dataclass(frozen=True)
class VersionEntry:
    """What a list needs of a version. `actor` is `admin`, a token, or `files`."""

    number: int
    agent: str
    version: str
    at: datetime
    actor: str


@dataclass(frozen=True)
class AgentVersion(VersionEntry):
    live: LiveSettings


class AgentVersionTable:
    """The versions in a store that was opened with SCHEMA, `kept` of each agent. Raises StoreUnavailable."""

    def __init__(
        self,
        store: MemoryStore,
        *,
        kept: int = KEPT_VERSIONS,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._store = store
        self._kept = kept
        self._now = now

    async def add(self, agent: str, live: LiveSettings, actor: str) -> int:
        """Returns its number, or 0 if the agent's newest version has the same settings: nothing is added then."""
        texts = (live.prompt, live.greeting, live.voice)
        values = (agent, live.version, time_text(self._now()), actor, *texts, _options(live))

        def work(connection: Connection) -> int:
            newest = connection.execute(_NEWEST, (agent,)).fetchone()
            if newest is not None and newest[0] == live.version:
                return 0
            (last,) = connection.execute("SELECT coalesce(max(number), 0) FROM agent_versions").fetchone()
            connection.execute("INSERT INTO agent_versions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (last + 1, *values))
            connection.execute(_DELETE_OLD, {"agent": agent, "kept": self._kept})
            return int(last) + 1

        return await self._store.run(work)

    async def remove(self, number: int) -> None:
        """Delete a version that could not be written to the files."""
        await self._store.change("DELETE FROM agent_versions WHERE number = ?", number)

    async def entries(self, agent: str) -> list[VersionEntry]:
        """All that are kept, newest first."""
        query = f"SELECT {_ENTRY} FROM agent_versions WHERE agent = ? ORDER BY number DESC"
        return [_entry(*row) for row in await self._store.fetch(query, agent)]

    async def find(self, agent: str, version: str) -> AgentVersion | None:
        """The newest entry of this version."""
        query = f"SELECT {_COLUMNS} FROM agent_versions WHERE agent = ? AND version = ? ORDER BY number DESC LIMIT 1"
        rows = await self._store.fetch(query, agent, version)
        return _version(rows[0]) if rows else None

    async def before(self, version: AgentVersion) -> AgentVersion | None:
        """The version that this one replaced."""
        query = f"SELECT {_COLUMNS} FROM agent_versions WHERE agent = ? AND number < ? ORDER BY number DESC LIMIT 1"
        rows = await self._store.fetch(query, version.agent, version.number)
        return _version(rows[0]) if rows else None


def _options(live: LiveSettings) -> str:
    tools = {"disabled_tools": sorted(live.disabled_tools), "transfer_to": dict(live.transfer_to)}
    return orjson.dumps({"engine": live.engine, **tools}).decode()


def _entry(number: int, agent: str, version: str, at: str, actor: str) -> VersionEntry:
    return VersionEntry(number, agent, version, datetime.fromisoformat(at), actor)


def _version(row: Any) -> AgentVersion:
    number, agent, version, at, actor, prompt, greeting, voice, options = row
    given = orjson.loads(options)
    tools = {"disabled_tools": frozenset(given["disabled_tools"]), "transfer_to": given["transfer_to"]}
    live = LiveSettings(prompt, greeting, voice, tuple(given["engine"]), **tools)
    return AgentVersion(number, agent, version, datetime.fromisoformat(at), actor, live)


async def follow_files(agents: AgentDirectory, versions: AgentVersionTable, seconds: float = CHECK_SECONDS) -> None:
    """Apply changes of the agents' files and record each version, until cancelled."""
    recorded: dict[str, str] = {}
    while True:
        await agents.refresh()
        for agent in agents:
            if recorded.get(agent.name) == agent.version:
                continue
            with contextlib.suppress(StoreError):  # the store logs that it is away; this is tried again
                await versions.add(agent.name, agent.live, FILES)
                recorded[agent.name] = agent.version
        await asyncio.sleep(seconds)
