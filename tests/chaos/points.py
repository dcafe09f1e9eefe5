"""
Points at which the gateway is killed or a fault is injected.

Points in a call are moments of the script. Points in finalization are made to last: the store, the language model, a
database or Redis is paused until the kill, so that it cannot miss.
"""

import asyncio
import json
import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.chaos.call import ScriptedCall
from tests.chaos.faulty_libc import FaultyLibc
from tests.chaos.faulty_peers import PausableLlm, PausableReceiver, PausableRemem, rows
from tests.chaos.process import GatewayProcess
from tests.chaos.shared_redis import SharedRedis, process_of
from tests.link import Link
from tests.stage import until, until_it

LIVE_ENTRIES = "SELECT entry FROM entries WHERE session IN (SELECT session FROM live_calls)"


@dataclass
class KillContext:
    """The gateways and fakes that a point can pause or kill."""

    gateways: Sequence[GatewayProcess]
    victim: GatewayProcess
    """The gateway to kill: the one with the call, unless the point chooses another."""
    remem: PausableRemem
    receiver: PausableReceiver
    llm: PausableLlm | None
    redis: SharedRedis | None
    links: Sequence[Link]
    """Each gateway's link to Redis."""
    shim: FaultyLibc | None
    archive_dir: Path
    rng: random.Random
    dead: asyncio.Event = field(default_factory=asyncio.Event)
    """Set after the kill: paused fakes may continue."""

    @property
    def store(self) -> Path:
        return self.victim.data_dir / "gateway.db"

    @property
    def call_log(self) -> Path:
        return self.victim.data_dir / "call-log.db"

    @property
    def model(self) -> PausableLlm:
        assert self.llm is not None
        return self.llm

    @property
    def faulty_libc(self) -> FaultyLibc:
        assert self.shim is not None
        return self.shim

    @property
    def link(self) -> Link:
        """The victim's link to Redis."""
        return self.links[self.gateways.index(self.victim)]

    @property
    def shared_store(self) -> SharedRedis:
        assert self.redis is not None
        return self.redis

    def __post_init__(self) -> None:
        self._lines_before = {gateway.url: len(gateway.log) for gateway in self.gateways}
        self._archives_before = self._archives()
        self._endings_before = [job for gateway in self.gateways for job in _jobs(gateway)]

    def logged(self, *phrases: str) -> bool:
        """Whether the victim has logged all phrases in one line since the call began."""
        return self._logged_by(self.victim, phrases)

    def any_logged(self, *phrases: str) -> bool:
        """The same for any gateway: another one may have taken the work over."""
        return any(self._logged_by(gateway, phrases) for gateway in self.gateways)

    def _logged_by(self, gateway: GatewayProcess, phrases: tuple[str, ...]) -> bool:
        lines = gateway.log[self._lines_before[gateway.url] :]
        return any(all(phrase in line for phrase in phrases) for line in lines)

    def clock_is_off(self) -> bool:
        """Whether the victim's last log line is hours off."""
        said_at = datetime.fromisoformat(json.loads(self.victim.log[-1])["time"])
        return abs((said_at - datetime.now(UTC)).total_seconds()) > 3600

    def jobs(self, condition: str = "1") -> list[Any]:
        """Finalization jobs of this call. Jobs of earlier calls may linger when another node has done them."""
        return [job for job in _jobs(self.victim, condition) if job not in self._endings_before]

    async def turns_logged(self, call: ScriptedCall) -> None:
        """Wait until every turn so far is in the call log; turns are written in order."""
        await until(lambda: _holds(rows(self.call_log, LIVE_ENTRIES), call))

    async def known(self, call: ScriptedCall) -> None:
        """Wait until every turn so far is stored where it survives the kill."""
        await until_it(lambda: self._is_known(call))

    async def _is_known(self, call: ScriptedCall) -> bool:
        archived = [path.read_text() for path in self._archives() - self._archives_before]
        if self.redis is not None:
            return _holds([*await self.redis.transcripts(), *archived], call)
        logged = rows(self.call_log, LIVE_ENTRIES)
        return _holds([*logged, *rows(self.store, "SELECT session FROM finalization_jobs"), *archived], call)

    async def archived(self) -> None:
        await until(lambda: self._archives() - self._archives_before)

    async def find_worker(self) -> None:
        """Wait until a node runs the finalization job, and make it the victim."""
        name = await until_it(self.shared_store.worker)
        self.victim = next(gateway for gateway in self.gateways if gateway.pid == process_of(name))

    def _archives(self) -> set[Path]:
        return set(self.archive_dir.glob("*.txt"))


def _jobs(gateway: GatewayProcess, condition: str = "1") -> list[Any]:
    return rows(gateway.data_dir / "gateway.db", f"SELECT session_id FROM finalization_jobs WHERE {condition}")


def _holds(texts: Iterable[Any], call: ScriptedCall) -> bool:
    """Whether the last turn is among them, if the call has any."""
    said = call.said
    return not said or any(said[-1].text in str(text) for text in texts)


Arrangement = Callable[[KillContext, ScriptedCall], AbstractAsyncContextManager[None]]


@dataclass(frozen=True)
class Point:
    """Where to kill. `arrange` is entered before the call and yields at the moment of the kill."""

    name: str
    arrange: Arrangement
    stop_at: str = ""
    nodes: int = 1
    needs_llm: bool = False
    needs_faulty_libc: bool = False
    redis_forgets: bool = False
    """Redis loses its data before the dead node is restarted."""
    restart_first: bool = False
    """The dead node is restarted before the check: only it has all turns."""
    no_kill: bool = False
    """No kill: a fault is injected, and the process continues."""
