"""
The named points: where exactly the gateway is killed.

Points of the call are moments of the script. Points of the ending are made to last: the store, the language model or
a database holds still until the kill has come, so that it can't miss.
"""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.chaos.call import MOMENTS, ScriptedCall
from tests.chaos.outside import GatewayProcess, HoldingRemem, rows, write_lock
from tests.fakes.llm import FakeLlm
from tests.fakes.remem import Fault
from tests.stage import until


@dataclass
class Surroundings:
    """What a point may hold still."""

    gateway: GatewayProcess
    remem: HoldingRemem
    llm: FakeLlm | None
    data_dir: Path
    archive_dir: Path
    dead: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the gateway has been killed: whatever is held may be let go."""

    @property
    def store(self) -> Path:
        return self.data_dir / "gateway.db"

    @property
    def journal(self) -> Path:
        return self.data_dir / "journal.db"

    def __post_init__(self) -> None:
        self._lines_before = len(self.gateway.log)

    def logged(self, phrase: str) -> bool:
        """Whether the gateway has said so since this call began."""
        return any(phrase in line for line in self.gateway.log[self._lines_before :])

    def endings(self, condition: str = "1") -> list[Any]:
        return rows(self.store, f"SELECT session_id FROM endings WHERE {condition}")

    async def journaled(self, call: ScriptedCall) -> None:
        """Until every turn so far is in the journal."""
        await until(lambda: len(rows(self.journal, "SELECT 1 FROM entries")) >= len(call.said))


Arrangement = Callable[[Surroundings, ScriptedCall], AbstractAsyncContextManager[None]]


@dataclass(frozen=True)
class Point:
    """Where to kill. `arrange` is entered before the call; its body begins when the moment has come."""

    name: str
    arrange: Arrangement
    stop_at: str = ""
    needs_llm: bool = False
    leaves: bool = False
    """The gateway has gone by itself when the body begins; it is only started again."""
    spoils: bool = False
    """No kill at all: the fault is the point, and the same process goes on."""


def _at(moment: str) -> Point:
    @contextlib.asynccontextmanager
    async def arrange(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
        await call.stopped()
        yield

    return Point(moment, arrange, stop_at=moment)


@contextlib.asynccontextmanager
async def _before_begin(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    """The call is over; its ending can't be written down."""
    await call.stopped()
    with write_lock(around.store):
        call.let_go()
        await until(lambda: call.moment == "last words")
        await asyncio.sleep(0.2)
        yield
        await around.dead.wait()


@contextlib.asynccontextmanager
async def _begun(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    await until(around.endings, timeout=20)
    yield


@contextlib.asynccontextmanager
async def _journal_not_left(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    """Everything is done, but the journal could not be told: both know of the call."""
    await call.stopped()
    await around.journaled(call)
    with write_lock(around.journal):
        call.let_go()
        await until(lambda: around.endings("remote_version > 0 AND archived"))
        yield
        await around.dead.wait()


@contextlib.asynccontextmanager
async def _archived(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    before = set(around.archive_dir.glob("*.txt"))
    await until(lambda: set(around.archive_dir.glob("*.txt")) - before, timeout=20)
    yield


@contextlib.asynccontextmanager
async def _summary_asked(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    """The language model is thinking."""
    async with _thinking(around, around.llm, len(around.llm.requests) + 1 if around.llm else 0):
        yield


@contextlib.asynccontextmanager
async def _summary_unrecorded(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    """The language model has answered; that it has can't be written down."""
    llm = around.llm
    assert llm is not None
    llm.pace = replace(llm.pace, before_headers=0.3)
    try:
        await llm.received(len(llm.requests) + 1)
        with write_lock(around.store):
            await llm.idle()
            await asyncio.sleep(0.1)
            yield
            await around.dead.wait()
    finally:
        llm.pace = replace(llm.pace, before_headers=0.0)


@contextlib.asynccontextmanager
async def _upgrade_asked(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    """The model failed, rules wrote the summary, both stores have it; now the model is asked again."""
    llm = around.llm
    assert llm is not None
    before = len(llm.requests)
    llm.fails(401)
    await until(lambda: around.endings("remote_version > 0"), timeout=20)
    async with _thinking(around, llm, before + 2):
        yield


@contextlib.asynccontextmanager
async def _thinking(around: Surroundings, llm: FakeLlm | None, requests: int) -> AsyncIterator[None]:
    assert llm is not None
    llm.pace = replace(llm.pace, hangs="before headers")
    try:
        await asyncio.wait_for(llm.received(requests), 20)
        yield
        await around.dead.wait()
    finally:
        llm.pace = replace(llm.pace, hangs="")


@contextlib.asynccontextmanager
async def _own_document(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    await until(lambda: around.endings("document_id <> ''"), timeout=20)
    yield


def _remote(hold: Any) -> Arrangement:
    @contextlib.asynccontextmanager
    async def arrange(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
        around.remem.hold = hold
        await asyncio.wait_for(around.remem.holding.wait(), 20)
        yield

    return arrange


@contextlib.asynccontextmanager
async def _remote_unrecorded(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    """The remote store has answered; that it has can't be written down."""
    around.remem.hold = "after"
    await asyncio.wait_for(around.remem.holding.wait(), 20)
    with write_lock(around.store):
        around.remem.release.set()
        await asyncio.sleep(0.1)
        yield
        await around.dead.wait()


@contextlib.asynccontextmanager
async def _remote_answer_lost(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    """The document is there, its answer is not, and the gateway waits for its next try."""
    await call.stopped()
    before = len(around.remem.documents)
    around.remem.fails(Fault.ANSWER_LOST)
    call.let_go()
    await until(lambda: len(around.remem.documents) > before)
    yield


@contextlib.asynccontextmanager
async def _draining(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    """Told to stop with a caller on the line, and killed while it waits for the call's end."""
    await call.stopped()
    around.gateway.send(signal.SIGTERM)
    await until(lambda: around.logged("gateway drains"))
    yield


@contextlib.asynccontextmanager
async def _leaving(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    """Told to stop when the call is over, and killed while its document is on the way."""
    around.remem.hold = "before"
    await asyncio.wait_for(around.remem.holding.wait(), 20)
    around.gateway.send(signal.SIGTERM)
    await asyncio.sleep(0.1)
    yield


@contextlib.asynccontextmanager
async def _second_sigterm(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    """Told to stop at once with a caller on the line: no kill, the process ends by itself."""
    await call.stopped()
    around.gateway.send(signal.SIGTERM)
    await until(lambda: around.logged("gateway drains"))
    around.gateway.send(signal.SIGTERM)
    await around.gateway.gone()
    yield


@contextlib.asynccontextmanager
async def _disk_full_then_room(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    """No file may grow from the first words on; there is room again before the kill."""
    await call.stopped()
    await around.journaled(call)
    around.gateway.may_write(1)
    call.let_go("function call")
    await call.stopped()
    await until(lambda: around.logged("journal can't be written"))
    around.gateway.may_write(-1)
    await around.journaled(call)
    yield


@contextlib.asynccontextmanager
async def _disk_full_at_the_end(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    """There is no room for the whole ending; then there is. No kill."""
    await call.stopped()
    around.gateway.may_write(1)
    call.let_go()
    await until(lambda: around.logged("ending step waits"), timeout=20)
    around.gateway.may_write(-1)
    yield


POINTS = {
    point.name: point
    for point in (
        *(_at(moment) for moment in MOMENTS),
        Point("before begin", _before_begin, stop_at="function call"),
        Point("begun", _begun),
        Point("journal not left", _journal_not_left, stop_at="function call"),
        Point("archived", _archived),
        Point("summary asked", _summary_asked, needs_llm=True),
        Point("summary not recorded", _summary_unrecorded, needs_llm=True),
        Point("own document", _own_document),
        Point("remote create before", _remote("before")),
        Point("remote create after", _remote("after")),
        Point("remote not recorded", _remote_unrecorded),
        Point("remote answer lost", _remote_answer_lost, stop_at="function call"),
        Point("upgrade asked", _upgrade_asked, needs_llm=True),
        Point("draining", _draining, stop_at="text after barge-in"),
        Point("draining, ending", _leaving),
        Point("second SIGTERM", _second_sigterm, stop_at="text after barge-in", leaves=True),
        Point("disk full, then room", _disk_full_then_room, stop_at="user text"),
        Point("disk full at the end", _disk_full_at_the_end, stop_at="function call", spoils=True),
    )
}
