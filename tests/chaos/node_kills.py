"""
Two nodes that share Redis: the one that has the call, or carries out its ending, is killed.

From the kill on the carrier is sent to the other node. The dead one is started again when everything is done.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from tests.chaos.call import MOMENTS, ScriptedCall
from tests.chaos.kills import at_moment, model_asked, model_refuses, model_thinks
from tests.chaos.outside import write_lock
from tests.chaos.patience import until, until_it, wait_for_event
from tests.chaos.points import Arrangement, Point, Surroundings

TWO_NODES = "two nodes: "


@contextlib.asynccontextmanager
async def _before_begin(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    """The call is over; its node can't write down its ending."""
    async with _over_but_not_begun(around, call):
        yield
        await around.dead.wait()


@contextlib.asynccontextmanager
async def _not_handed_over(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    """Its node has written down the ending, and Redis takes no word of it."""
    async with contextlib.AsyncExitStack() as redis:
        async with _over_but_not_begun(around, call):
            await redis.enter_async_context(around.shared_store.takes_no_writes())
        await until(around.jobs)
        yield
        await around.dead.wait()


@contextlib.asynccontextmanager
async def _not_shared(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    """The same, and of the last words too."""
    await call.stopped()
    async with around.shared_store.takes_no_writes():
        call.let_go()
        await until(around.jobs)
        yield
        await around.dead.wait()


@contextlib.asynccontextmanager
async def _over_but_not_begun(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    """All that was said, and that the call is over, is known to both nodes; nothing else can be written down."""
    await call.stopped()
    with write_lock(around.store):
        call.let_go()

        async def known() -> bool:  # that it is over is written after all that was said
            states = [record["state"] for record in await around.shared_store.calls()]
            return bool(states) and set(states) == {"over"}

        await until_it(known)
        yield


@contextlib.asynccontextmanager
async def _begun(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    around.remem.hold = "before"
    await around.find_worker()
    yield


@contextlib.asynccontextmanager
async def _archived(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    around.remem.hold = "before"
    await around.archived()
    await around.find_worker()
    yield


@contextlib.asynccontextmanager
async def _summary_asked(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    async with model_thinks(around, len(around.model.requests) + 1):
        await around.find_worker()
        yield


@contextlib.asynccontextmanager
async def _summary_unrecorded(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    async with model_asked(around, len(around.model.requests) + 1), around.shared_store.takes_no_writes():
        await around.find_worker()
        around.model.may_answer.set()
        await around.model.idle()
        await asyncio.sleep(0.1)
        yield
        await around.dead.wait()


@contextlib.asynccontextmanager
async def _upgrade_asked(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    requests = await model_refuses(around)
    async with model_thinks(around, requests + 1):
        await _come_to(around, "remote_version")
        await around.find_worker()
        yield


@contextlib.asynccontextmanager
async def _own_document(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    around.remem.hold = "before"
    await _come_to(around, "document_id")
    await around.find_worker()
    yield


def _remote(hold: Any) -> Arrangement:
    @contextlib.asynccontextmanager
    async def arrange(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
        around.remem.hold = hold
        await wait_for_event(around.remem.holding.wait())
        await around.find_worker()
        yield

    return arrange


@contextlib.asynccontextmanager
async def _remote_unrecorded(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    around.remem.hold = "after"
    await wait_for_event(around.remem.holding.wait())
    await around.find_worker()
    async with around.shared_store.takes_no_writes():
        around.remem.release.set()
        await asyncio.sleep(0.1)
        yield
        await around.dead.wait()


@contextlib.asynccontextmanager
async def _done_elsewhere(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    """The ending is done; where the call ended that may not be known yet."""
    before = len(around.remem.documents)

    async def done() -> bool:
        return len(around.remem.documents) > before and not await around.shared_store.jobs()

    await until_it(done)
    yield


async def _come_to(around: Surroundings, step: str) -> None:
    async def done() -> bool:
        return any(job[step] for job in await around.shared_store.jobs())

    await until_it(done)


NODE_KILLS = tuple(
    replace(point, name=TWO_NODES + point.name, nodes=2)
    for point in (
        *(at_moment(moment) for moment in MOMENTS),
        Point("before begin", _before_begin, stop_at="function call"),
        Point("not handed over", _not_handed_over, stop_at="function call"),
        Point("begun", _begun),
        Point("archived", _archived),
        Point("summary asked", _summary_asked, needs_llm=True),
        Point("summary not recorded", _summary_unrecorded, needs_llm=True),
        Point("own document", _own_document),
        Point("remote create before", _remote("before")),
        Point("remote create after", _remote("after")),
        Point("remote not recorded", _remote_unrecorded),
        Point("upgrade asked", _upgrade_asked, needs_llm=True),
        Point("done", _done_elsewhere),
        replace(at_moment("last words"), name="Redis forgets meanwhile", board_forgets=True),
        replace(at_moment("user text"), name="Redis forgets meanwhile, mid-call", board_forgets=True),
        Point("not shared", _not_shared, stop_at="user text", back_first=True),
    )
)
