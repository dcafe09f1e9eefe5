"""
What a point is: where exactly something is done to the gateway, and what it may hold still until then.

Points of the call are moments of the script. Points of the ending are made to last: the store, the language model,
a database or Redis holds still until the kill has come, so that it can't miss.
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
from tests.chaos.outside import HoldingLlm, HoldingRemem, rows
from tests.chaos.patience import until, until_it
from tests.chaos.process import GatewayProcess
from tests.chaos.shared import SharedRedis, process_of
from tests.chaos.shim import FaultyLibc
from tests.link import Link

LIVE_ENTRIES = "SELECT entry FROM entries WHERE session IN (SELECT session FROM live_calls)"


@dataclass
class Surroundings:
    """What a point may hold still, and whom it kills."""

    gateways: Sequence[GatewayProcess]
    victim: GatewayProcess
    """Who is killed: the node that has the call, unless the point chooses another."""
    remem: HoldingRemem
    llm: HoldingLlm | None
    redis: SharedRedis | None
    links: Sequence[Link]
    """Each gateway's to Redis."""
    shim: FaultyLibc | None
    archive_dir: Path
    dice: random.Random
    dead: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the gateway has been killed: whatever is held may be let go."""

    @property
    def store(self) -> Path:
        return self.victim.data_dir / "gateway.db"

    @property
    def call_log(self) -> Path:
        return self.victim.data_dir / "call-log.db"

    @property
    def model(self) -> HoldingLlm:
        assert self.llm is not None
        return self.llm

    @property
    def faulty_libc(self) -> FaultyLibc:
        assert self.shim is not None
        return self.shim

    @property
    def link(self) -> Link:
        """The victim's."""
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
        """Whether the gateway has said all of this in one line since this call began."""
        return self._said_by(self.victim, phrases)

    def anybody_logged(self, *phrases: str) -> bool:
        """The same of any gateway: another one may have taken the work over meanwhile."""
        return any(self._said_by(gateway, phrases) for gateway in self.gateways)

    def _said_by(self, gateway: GatewayProcess, phrases: tuple[str, ...]) -> bool:
        lines = gateway.log[self._lines_before[gateway.url] :]
        return any(all(phrase in line for phrase in phrases) for line in lines)

    def clock_is_off(self) -> bool:
        """Whether the gateway's last words bear a time hours from ours."""
        said_at = datetime.fromisoformat(json.loads(self.victim.log[-1])["time"])
        return abs((said_at - datetime.now(UTC)).total_seconds()) > 3600

    def jobs(self, condition: str = "1") -> list[Any]:
        """Of this call. A node hears late what others have done for it: those of earlier calls may still be there."""
        return [job for job in _jobs(self.victim, condition) if job not in self._endings_before]

    async def turns_logged(self, call: ScriptedCall) -> None:
        """Until every turn so far is in the call log; they come there in order."""
        await until(lambda: _holds(rows(self.call_log, LIVE_ENTRIES), call))

    async def known(self, call: ScriptedCall) -> None:
        """Until every turn so far is where it outlives the one that is to be killed."""
        await until_it(lambda: self._is_known(call))

    async def _is_known(self, call: ScriptedCall) -> bool:
        archived = [path.read_text() for path in self._archives() - self._archives_before]
        if self.redis is not None:
            return _holds([*await self.redis.transcripts(), *archived], call)
        logged = rows(self.call_log, LIVE_ENTRIES)
        return _holds([*logged, *rows(self.store, "SELECT session FROM endings"), *archived], call)

    async def archived(self) -> None:
        await until(lambda: self._archives() - self._archives_before)

    async def find_worker(self) -> None:
        """Until a node carries out the ending; that one is to be killed."""
        name = await until_it(self.shared_store.worker)
        self.victim = next(gateway for gateway in self.gateways if gateway.pid == process_of(name))

    def _archives(self) -> set[Path]:
        return set(self.archive_dir.glob("*.txt"))


def _jobs(gateway: GatewayProcess, condition: str = "1") -> list[Any]:
    return rows(gateway.data_dir / "gateway.db", f"SELECT session_id FROM endings WHERE {condition}")


def _holds(texts: Iterable[Any], call: ScriptedCall) -> bool:
    """Whether the last words are among them. There may be none yet."""
    said = call.said
    return not said or any(said[-1].text in str(text) for text in texts)


Arrangement = Callable[[Surroundings, ScriptedCall], AbstractAsyncContextManager[None]]


@dataclass(frozen=True)
class Point:
    """Where to kill. `arrange` is entered before the call; its body begins when the moment has come."""

    name: str
    arrange: Arrangement
    stop_at: str = ""
    nodes: int = 1
    needs_llm: bool = False
    needs_shim: bool = False
    board_forgets: bool = False
    """Redis forgets everything before the dead node is started again."""
    back_first: bool = False
    """The dead node is started before it is judged what was kept: nobody else knows all that was said."""
    spoils: bool = False
    """No kill at all: the fault is the point, and the same process goes on."""
