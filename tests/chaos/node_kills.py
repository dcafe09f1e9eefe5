"""
Two nodes that share a Redis: the one with the call, or the one that finalizes it, is killed.

After the kill the carrier is directed to the other node. The dead one is restarted when everything is done.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from tests.chaos.call import MOMENTS, ScriptedCall
from tests.chaos.faulty_peers import write_lock
from tests.chaos.kills import at_moment, model_asked, model_held, model_refuses
from tests.chaos.points import Arrangement, KillContext, Point
from tests.stage import in_time, until, until_it

TWO_NODES = "two nodes: "


@contextlib.asynccontextmanager
async def _before_begin(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
    """The call has ended; its node cannot store the job."""
    async with _over_but_not_begun(context, call):
        yield
        await context.dead.wait()


@contextlib.asynccontextmanager
async def _not_handed_over(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
    """The node has stored the job locally but not in Redis."""
    async with contextlib.AsyncExitStack() as redis:
        async with _over_but_not_begun(context, call):
            await redis.enter_async_context(context.shared_store.writes_paused())
        await until(context.jobs)
        yield
        await context.dead.wait()


@contextlib.asynccontextmanager
async def _not_shared(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
    """The same, and the last turns are not in Redis either."""
    await call.stopped()
    async with context.shared_store.writes_paused():
        call.let_go()
        await until(context.jobs)
        yield
        await context.dead.wait()


@contextlib.asynccontextmanager
async def _over_but_not_begun(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
    """Redis has all turns and the end of the call; nothing else can be stored."""
    await call.stopped()
    with write_lock(context.store):
        call.let_go()

        async def known() -> bool:  # the end is written after all turns
            states = [record["state"] for record in await context.shared_store.calls()]
            return bool(states) and set(states) == {"ended"}

        await until_it(known)
        yield


@contextlib.asynccontextmanager
async def _begun(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
    context.remem.hold = "before"
    await context.find_worker()
    yield


@contextlib.asynccontextmanager
async def _archived(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
    context.remem.hold = "before"
    await context.archived()
    await context.find_worker()
    yield


@contextlib.asynccontextmanager
async def _summary_asked(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
    async with model_held(context, len(context.model.requests) + 1):
        await context.find_worker()
        yield


@contextlib.asynccontextmanager
async def _summary_unrecorded(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
    async with model_asked(context, len(context.model.requests) + 1), context.shared_store.writes_paused():
        await context.find_worker()
        context.model.may_answer.set()
        await context.model.idle()
        await asyncio.sleep(0.1)
        yield
        await context.dead.wait()


@contextlib.asynccontextmanager
async def _upgrade_asked(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
    requests = await model_refuses(context)
    async with model_held(context, requests + 1):
        await _wait_for_step(context, "remote_version")
        await context.find_worker()
        yield


@contextlib.asynccontextmanager
async def _own_document(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
    context.remem.hold = "before"
    await _wait_for_step(context, "document_id")
    await context.find_worker()
    yield


def _remote(hold: Any) -> Arrangement:
    @contextlib.asynccontextmanager
    async def arrange(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
        context.remem.hold = hold
        await in_time(context.remem.holding.wait())
        await context.find_worker()
        yield

    return arrange


@contextlib.asynccontextmanager
async def _remote_unrecorded(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
    context.remem.hold = "after"
    await in_time(context.remem.holding.wait())
    await context.find_worker()
    async with context.shared_store.writes_paused():
        context.remem.release.set()
        await asyncio.sleep(0.1)
        yield
        await context.dead.wait()


@contextlib.asynccontextmanager
async def _done_elsewhere(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
    """The job is done; the node where the call ended may not know it yet."""
    before = len(context.remem.documents)

    async def done() -> bool:
        return len(context.remem.documents) > before and not await context.shared_store.jobs()

    await until_it(done)
    yield


async def _wait_for_step(context: KillContext, step: str) -> None:
    async def done() -> bool:
        return any(job[step] for job in await context.shared_store.jobs())

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
        replace(at_moment("last words"), name="Redis forgets meanwhile", redis_forgets=True),
        replace(at_moment("user text"), name="Redis forgets meanwhile, mid-call", redis_forgets=True),
        Point("not shared", _not_shared, stop_at="user text", restart_first=True),
    )
)
