"""Faults of disk, clock, store, model and Redis. The gateway is killed after it has noticed, or not at all."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from gateway.cluster.directory import ClusterTimeouts
from tests.chaos.call import MOMENTS, ScriptedCall
from tests.chaos.points import Arrangement, KillContext, Point
from tests.chaos.shared_redis import process_of
from tests.fakes.remem import Fault
from tests.stage import in_time, until, until_it


@contextlib.asynccontextmanager
async def _disk_full_then_room(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
    """The disk is full from the first turn on and has room again before the kill."""
    await call.stopped()
    await context.turns_logged(call)
    context.victim.may_write(1)
    call.let_go("function call")
    await call.stopped()
    await until(lambda: context.logged("call log cannot be written"))
    context.victim.may_write(-1)
    await context.turns_logged(call)
    yield


@contextlib.asynccontextmanager
async def _disk_full_at_the_end(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
    """The disk is full during finalization, then has room. No kill."""
    await call.stopped()
    context.victim.may_write(1)
    call.let_go()
    await until(lambda: context.logged("finalization step will be retried"))
    context.victim.may_write(-1)
    yield


@contextlib.asynccontextmanager
async def _disk_read_only_in_the_call(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
    """The disk is read-only from the first turn on and writable again before the kill."""
    await call.stopped()
    await context.turns_logged(call)
    context.faulty_libc.fails(read_only=True)
    call.let_go("function call")
    await call.stopped()
    await until(lambda: context.logged("call log cannot be written"))
    context.faulty_libc.fails()
    await context.turns_logged(call)
    yield


@contextlib.asynccontextmanager
async def _disk_read_only_at_the_end(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
    """The disk is read-only during finalization, then writable. No kill."""
    await call.stopped()
    context.faulty_libc.fails(read_only=True)
    call.let_go()
    await until(lambda: context.logged("finalization step will be retried"))
    context.faulty_libc.fails()
    yield


# The clock


def _clock_jumps(hours: int) -> Arrangement:
    """The clock jumps by hours during the call and then in the other direction. It is right again after the call."""

    @contextlib.asynccontextmanager
    async def arrange(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
        try:
            await call.stopped()
            context.faulty_libc.fails(seconds_ahead=hours * 3600)
            call.let_go("barge-in")
            await call.stopped()
            context.faulty_libc.fails(seconds_ahead=-hours * 3600)
            call.let_go("function call")  # where the gateway logs something
            await call.stopped()
            await until(context.clock_is_off)
            yield
        finally:
            context.faulty_libc.fails()
            call.let_go()

    return arrange


# The remote store and the language model


def _store_answers(fault: Fault) -> Arrangement:
    """The first write fails; the gateway is killed while it waits to retry."""

    @contextlib.asynccontextmanager
    async def arrange(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
        context.remem.next_faults.append(fault)
        await until(lambda: context.logged("finalization step"))
        yield

    return arrange


@contextlib.asynccontextmanager
async def _store_fails_repeatedly(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
    """429, then 500, then the answer is lost: retried until it succeeds. No kill."""
    context.remem.next_faults.extend((Fault.TOO_MANY_REQUESTS, Fault.BROKEN, Fault.ANSWER_LOST))
    await until(lambda: context.logged("finalization step will be retried"))
    yield


@contextlib.asynccontextmanager
async def _store_hangs(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
    """The store takes the document and does not answer until the gateway times out. No kill."""
    context.remem.hold = "after"
    await until(lambda: context.logged("finalization step will be retried"))
    context.remem.let_go()
    yield


def _model_fails(status: int) -> Arrangement:
    """The model fails until the extractive summary is stored; the gateway is killed before it retries."""

    @contextlib.asynccontextmanager
    async def arrange(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
        context.model.fails(status, times=2, retry_after="1")
        await until(lambda: context.logged("summary provider failed"))
        await until(lambda: context.jobs("remote_version > 0"))
        yield

    return arrange


@contextlib.asynccontextmanager
async def _model_answers_nonsense(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
    """The answer is not a summary; the gateway asks again later. No kill."""
    for text in ("<html>Welcome!</html>", '{"choices": []}'):
        context.model.babbles(text)
    await until(lambda: context.logged("summary provider failed"))
    yield


# Redis


def _redis_dies(*, next_moment: str, forgets: bool) -> Arrangement:
    """Redis is killed; the call continues while it is down, or after its restart."""

    @contextlib.asynccontextmanager
    async def arrange(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
        await call.stopped()
        async with context.shared_store.away(forgets=forgets):
            if next_moment == MOMENTS[-1] or context.rng.random() < 0.5:
                call.let_go(next_moment)
                await call.stopped()
        call.let_go()
        yield

    return arrange


@contextlib.asynccontextmanager
async def _redis_away_for_long(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
    """Redis is down until every heartbeat has expired: no node may count as dead after its restart."""
    await call.stopped()
    async with context.shared_store.away(forgets=False):
        await asyncio.sleep(ClusterTimeouts().node_expiry + 0.5)
    await asyncio.sleep(ClusterTimeouts().node_expiry)
    call.let_go()
    yield


def _redis_dies_in_the_ending(*, forgets: bool) -> Arrangement:
    """Redis is killed while the document is sent; the completed step cannot be stored."""

    @contextlib.asynccontextmanager
    async def arrange(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
        context.remem.hold = context.rng.choice(("before", "after"))
        await in_time(context.remem.holding.wait())
        await context.find_worker()
        async with context.shared_store.away(forgets=forgets):
            context.remem.hold = ""
            context.remem.release.set()
            await until(lambda: context.any_logged("finalization step will be retried"))
        yield

    return arrange


@contextlib.asynccontextmanager
async def _redis_forgot_shortly_before(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
    """Redis comes back empty; the node is killed when it has published itself and its whole call again."""
    await call.stopped()
    store = context.shared_store
    async with store.away(forgets=True):
        pass

    async def is_published() -> bool:
        turns = [one.text for one in call.said if not one.cut]
        shared = " ".join(map(str, await store.transcripts()))
        is_whole = all(text in shared for text in turns)
        return is_whole and context.victim.pid in await store.members() and bool(await store.calls())

    await until_it(is_published)
    yield


# The link between one node and Redis


@contextlib.asynccontextmanager
async def _cut_off(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
    """The other node considers this one dead while its call continues. No kill."""
    await call.stopped()
    async with context.link.away():
        call.let_go("function call")
        await call.stopped()
        await asyncio.sleep(ClusterTimeouts().node_expiry + 2 * ClusterTimeouts().heartbeat)
    call.let_go()
    yield


@contextlib.asynccontextmanager
async def _cut_off_until_over(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
    """The call ends while cut off; the other node, which lacks some turns, finalizes it. No kill."""
    await call.stopped()
    await context.known(call)  # without any turn it would not finalize the call
    async with context.link.away():
        call.let_go()
        await context.archived()
    yield


@contextlib.asynccontextmanager
async def _cut_off_and_killed(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
    """The turns spoken while cut off are only in the dead node's call log."""
    await call.stopped()
    async with context.link.away():
        call.let_go("function call")
        await call.stopped()
        await context.turns_logged(call)
        yield
        await context.dead.wait()


@contextlib.asynccontextmanager
async def _cut_off_in_the_ending(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
    """Another node claims the job while the document is being sent; it arrives nevertheless. No kill."""
    context.remem.hold = "before"
    await in_time(context.remem.holding.wait())
    await context.find_worker()
    former = context.victim
    async with context.link.away():

        async def claimed() -> bool:
            return process_of(await context.shared_store.worker()) != former.pid

        await until_it(claimed)
        await asyncio.sleep(0.5)
        context.remem.hold = ""
        context.remem.release.set()
    yield


def _redis_points(forgets: bool) -> tuple[Point, ...]:
    name = "Redis forgets, " if forgets else "Redis restarts, "
    places = (("ringing", "ring", "greeting"), ("mid-call", "user text", "mark"), ("stop", "stop", "last words"))
    return (
        *(
            Point(name + where, _redis_dies(next_moment=then, forgets=forgets), stop_at=moment, nodes=2, no_kill=True)
            for where, moment, then in places
        ),
        Point(name + "ending", _redis_dies_in_the_ending(forgets=forgets), nodes=2, no_kill=True),
    )


FAULTS = (
    Point("disk full, then room", _disk_full_then_room, stop_at="user text"),
    Point("disk full at the end", _disk_full_at_the_end, stop_at="function call", no_kill=True),
    Point("disk read-only in the call", _disk_read_only_in_the_call, stop_at="user text", needs_faulty_libc=True),
    Point(
        "disk read-only at the end",
        _disk_read_only_at_the_end,
        stop_at="function call",
        needs_faulty_libc=True,
        no_kill=True,
    ),
    Point("clock jumps on and back", _clock_jumps(5), stop_at="user text", needs_faulty_libc=True),
    Point("clock jumps back and on", _clock_jumps(-5), stop_at="user text", needs_faulty_libc=True, no_kill=True),
    Point("store answers 429", _store_answers(Fault.TOO_MANY_REQUESTS)),
    Point("store answers 500", _store_answers(Fault.BROKEN)),
    Point("store answers a page", _store_answers(Fault.HTML)),
    Point("store redirects", _store_answers(Fault.REDIRECT)),
    Point("store fails again and again", _store_fails_repeatedly, no_kill=True),
    Point("store hangs", _store_hangs, no_kill=True),
    Point("model answers 429", _model_fails(429), needs_llm=True),
    Point("model answers 500", _model_fails(500), needs_llm=True),
    Point("model babbles", _model_answers_nonsense, needs_llm=True, no_kill=True),
    Point("Redis away for long", _redis_away_for_long, stop_at="user text", nodes=2, no_kill=True),
    Point("Redis forgot a moment ago", _redis_forgot_shortly_before, stop_at="user text", nodes=2),
    Point("cut off in the call", _cut_off, stop_at="user text", nodes=2, no_kill=True),
    Point("cut off until the call is over", _cut_off_until_over, stop_at="user text", nodes=2, no_kill=True),
    Point("cut off and killed", _cut_off_and_killed, stop_at="user text", nodes=2, restart_first=True),
    Point("cut off in the ending", _cut_off_in_the_ending, nodes=2, no_kill=True),
    *_redis_points(forgets=False),
    *_redis_points(forgets=True),
)
