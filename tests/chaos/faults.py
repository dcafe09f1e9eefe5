"""Faults around a gateway that is killed only when it has noticed, or not at all: disk, clock, store, model, Redis."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from gateway.cluster.directory import ALIVE_SECONDS, BEAT_SECONDS
from tests.chaos.call import MOMENTS, ScriptedCall
from tests.chaos.patience import until, until_it, wait_for_event
from tests.chaos.points import Arrangement, Point, Surroundings
from tests.chaos.shared import process_of
from tests.fakes.remem import Fault


@contextlib.asynccontextmanager
async def _disk_full_then_room(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    """No file may grow from the first words on; there is room again before the kill."""
    await call.stopped()
    await around.turns_logged(call)
    around.victim.may_write(1)
    call.let_go("function call")
    await call.stopped()
    await until(lambda: around.logged("call log cannot be written"))
    around.victim.may_write(-1)
    await around.turns_logged(call)
    yield


@contextlib.asynccontextmanager
async def _disk_full_at_the_end(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    """There is no room for the whole ending; then there is. No kill."""
    await call.stopped()
    around.victim.may_write(1)
    call.let_go()
    await until(lambda: around.logged("ending step waits"))
    around.victim.may_write(-1)
    yield


@contextlib.asynccontextmanager
async def _disk_read_only_in_the_call(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    """The file system refuses every write from the first words on, and takes them again before the kill."""
    await call.stopped()
    await around.turns_logged(call)
    around.faulty_libc.fails(read_only=True)
    call.let_go("function call")
    await call.stopped()
    await until(lambda: around.logged("call log cannot be written"))
    around.faulty_libc.fails()
    await around.turns_logged(call)
    yield


@contextlib.asynccontextmanager
async def _disk_read_only_at_the_end(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    """Nothing of the ending can be written; then it can. No kill."""
    await call.stopped()
    around.faulty_libc.fails(read_only=True)
    call.let_go()
    await until(lambda: around.logged("ending step waits"))
    around.faulty_libc.fails()
    yield


# The clock


def _clock_jumps(hours: int) -> Arrangement:
    """By hours in mid-call, and to the other side before its end. It is right again when the call is over."""

    @contextlib.asynccontextmanager
    async def arrange(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
        try:
            await call.stopped()
            around.faulty_libc.fails(seconds_ahead=hours * 3600)
            call.let_go("barge-in")
            await call.stopped()
            around.faulty_libc.fails(seconds_ahead=-hours * 3600)
            call.let_go("function call")  # where the gateway has something to say
            await call.stopped()
            await until(around.clock_is_off)
            yield
        finally:
            around.faulty_libc.fails()
            call.let_go()

    return arrange


# The remote store and the language model


def _store_answers(fault: Fault) -> Arrangement:
    """The first write fails this way; the gateway is killed while it waits to try again."""

    @contextlib.asynccontextmanager
    async def arrange(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
        around.remem.spoils.append(fault)
        await until(lambda: around.logged("ending step"))
        yield

    return arrange


@contextlib.asynccontextmanager
async def _store_turns_away(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    """Too busy, then broken, then its answer is lost: tried until it succeeds, and no kill."""
    around.remem.spoils.extend((Fault.TOO_MANY_REQUESTS, Fault.BROKEN, Fault.ANSWER_LOST))
    await until(lambda: around.logged("ending step waits"))
    yield


@contextlib.asynccontextmanager
async def _store_hangs(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    """It takes the document and says nothing, until the gateway has given up on it. No kill."""
    around.remem.hold = "after"
    await until(lambda: around.logged("ending step waits"))
    around.remem.let_go()
    yield


def _model_fails(status: int) -> Arrangement:
    """It says so until rules have written the summary; the gateway is killed before it asks again."""

    @contextlib.asynccontextmanager
    async def arrange(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
        around.model.fails(status, times=2, retry_after="1")
        await until(lambda: around.logged("summary provider failed"))
        await until(lambda: around.jobs("remote_version > 0"))
        yield

    return arrange


@contextlib.asynccontextmanager
async def _model_babbles(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    """What it answers is no summary; it is asked again later. No kill."""
    for text in ("<html>Welcome!</html>", '{"choices": []}'):
        around.model.babbles(text)
    await until(lambda: around.logged("summary provider failed"))
    yield


# Redis


def _redis_dies(*, next_moment: str, forgets: bool) -> Arrangement:
    """Killed; the call goes on while it is away, or when it is back. Last words are not waited for so long."""

    @contextlib.asynccontextmanager
    async def arrange(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
        await call.stopped()
        async with around.shared_store.away(forgets=forgets):
            if next_moment == MOMENTS[-1] or around.dice.random() < 0.5:
                call.let_go(next_moment)
                await call.stopped()
        call.let_go()
        yield

    return arrange


@contextlib.asynccontextmanager
async def _redis_away_for_long(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    """So long that every node's sign of life is too old: nobody may be taken for dead when it is back."""
    await call.stopped()
    async with around.shared_store.away(forgets=False):
        await asyncio.sleep(ALIVE_SECONDS + 0.5)
    await asyncio.sleep(ALIVE_SECONDS)
    call.let_go()
    yield


def _redis_dies_in_the_ending(*, forgets: bool) -> Arrangement:
    """Killed while the document is on the way; that it has arrived can't be written down."""

    @contextlib.asynccontextmanager
    async def arrange(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
        around.remem.hold = around.dice.choice(("before", "after"))
        await wait_for_event(around.remem.holding.wait())
        await around.find_worker()
        async with around.shared_store.away(forgets=forgets):
            around.remem.hold = ""
            around.remem.release.set()
            await until(lambda: around.anybody_logged("ending step waits"))
        yield

    return arrange


@contextlib.asynccontextmanager
async def _redis_forgot_shortly_before(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    """Redis comes back empty; the node is killed when it has had a moment to make itself and its call known again."""
    await call.stopped()
    async with around.shared_store.away(forgets=True):
        pass
    await asyncio.sleep(1.5 * BEAT_SECONDS)
    yield


# The link between one node and Redis


@contextlib.asynccontextmanager
async def _cut_off(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    """The other node takes this one for dead. The caller speaks with it all the time. No kill."""
    await call.stopped()
    async with around.link.away():
        call.let_go("function call")
        await call.stopped()
        await asyncio.sleep(ALIVE_SECONDS + 2 * BEAT_SECONDS)
    call.let_go()
    yield


@contextlib.asynccontextmanager
async def _cut_off_until_over(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    """The call ends meanwhile, and the other node, which does not know all, makes its ending. No kill."""
    await call.stopped()
    await around.known(call)  # one that knows of no word would make none
    async with around.link.away():
        call.let_go()
        await around.archived()
    yield


@contextlib.asynccontextmanager
async def _cut_off_and_killed(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    """What was said meanwhile is in the call log of the dead node alone."""
    await call.stopped()
    async with around.link.away():
        call.let_go("function call")
        await call.stopped()
        await around.turns_logged(call)
        yield
        await around.dead.wait()


@contextlib.asynccontextmanager
async def _cut_off_in_the_ending(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    """Another node claims the ending while the document is on its way; it arrives after all. No kill."""
    around.remem.hold = "before"
    await wait_for_event(around.remem.holding.wait())
    await around.find_worker()
    former = around.victim
    async with around.link.away():

        async def claimed() -> bool:
            return process_of(await around.shared_store.worker()) != former.pid

        await until_it(claimed)
        await asyncio.sleep(0.5)
        around.remem.hold = ""
        around.remem.release.set()
    yield


def _redis_points(forgets: bool) -> tuple[Point, ...]:
    name = "Redis forgets, " if forgets else "Redis restarts, "
    places = (("ringing", "ring", "greeting"), ("mid-call", "user text", "mark"), ("stop", "stop", "last words"))
    return (
        *(
            Point(name + where, _redis_dies(next_moment=then, forgets=forgets), stop_at=moment, nodes=2, spoils=True)
            for where, moment, then in places
        ),
        Point(name + "ending", _redis_dies_in_the_ending(forgets=forgets), nodes=2, spoils=True),
    )


FAULTS = (
    Point("disk full, then room", _disk_full_then_room, stop_at="user text"),
    Point("disk full at the end", _disk_full_at_the_end, stop_at="function call", spoils=True),
    Point("disk read-only in the call", _disk_read_only_in_the_call, stop_at="user text", needs_shim=True),
    Point(
        "disk read-only at the end", _disk_read_only_at_the_end, stop_at="function call", needs_shim=True, spoils=True
    ),
    Point("clock jumps on and back", _clock_jumps(5), stop_at="user text", needs_shim=True),
    Point("clock jumps back and on", _clock_jumps(-5), stop_at="user text", needs_shim=True, spoils=True),
    Point("store answers 429", _store_answers(Fault.TOO_MANY_REQUESTS)),
    Point("store answers 500", _store_answers(Fault.BROKEN)),
    Point("store answers a page", _store_answers(Fault.HTML)),
    Point("store redirects", _store_answers(Fault.REDIRECT)),
    Point("store fails again and again", _store_turns_away, spoils=True),
    Point("store hangs", _store_hangs, spoils=True),
    Point("model answers 429", _model_fails(429), needs_llm=True),
    Point("model answers 500", _model_fails(500), needs_llm=True),
    Point("model babbles", _model_babbles, needs_llm=True, spoils=True),
    Point("Redis away for long", _redis_away_for_long, stop_at="user text", nodes=2, spoils=True),
    Point("Redis forgot a moment ago", _redis_forgot_shortly_before, stop_at="user text", nodes=2),
    Point("cut off in the call", _cut_off, stop_at="user text", nodes=2, spoils=True),
    Point("cut off until the call is over", _cut_off_until_over, stop_at="user text", nodes=2, spoils=True),
    Point("cut off and killed", _cut_off_and_killed, stop_at="user text", nodes=2, back_first=True),
    Point("cut off in the ending", _cut_off_in_the_ending, nodes=2, spoils=True),
    *_redis_points(forgets=False),
    *_redis_points(forgets=True),
)
