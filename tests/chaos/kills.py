"""One gateway, killed at every moment of the call and before and after every step of its ending."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from typing import Any

from tests.chaos.call import MOMENTS, ScriptedCall
from tests.chaos.outside import write_lock
from tests.chaos.patience import until, wait_for_event
from tests.chaos.points import Arrangement, Point, Surroundings
from tests.fakes.remem import Fault


def at_moment(moment: str) -> Point:
    """The call stands still there."""

    @contextlib.asynccontextmanager
    async def arrange(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
        await call.stopped()
        yield

    return Point(moment, arrange, stop_at=moment)


# The ending's steps


@contextlib.asynccontextmanager
async def _before_begin(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    """The call is over; its ending can't be written down."""
    await call.stopped()
    with write_lock(around.store):
        call.let_go()
        await until(lambda: call.moment == "last words")
        await around.known(call)
        yield
        await around.dead.wait()


@contextlib.asynccontextmanager
async def _begun(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    around.remem.hold = "before"
    await until(around.jobs)
    yield


@contextlib.asynccontextmanager
async def _log_not_released(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    """Everything is done, but the call log could not be written: both have the call."""
    await call.stopped()
    await around.turns_logged(call)
    with write_lock(around.call_log):
        call.let_go()
        await until(lambda: around.jobs("remote_version > 0 AND archived"))
        yield
        await around.dead.wait()


@contextlib.asynccontextmanager
async def _archived(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    around.remem.hold = "before"
    await around.archived()
    yield


@contextlib.asynccontextmanager
async def _summary_asked(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    """The language model is thinking."""
    async with model_thinks(around, len(around.model.requests) + 1):
        yield


@contextlib.asynccontextmanager
async def _summary_unrecorded(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    """The language model has answered; that it has can't be written down."""
    async with model_asked(around, len(around.model.requests) + 1):
        with write_lock(around.store):
            around.model.may_answer.set()
            await around.model.idle()
            await asyncio.sleep(0.1)
            yield
            await around.dead.wait()


@contextlib.asynccontextmanager
async def _upgrade_asked(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    """The model failed, rules wrote the summary, both stores have it; now the model is asked again."""
    requests = await model_refuses(around)
    async with model_thinks(around, requests + 1):
        await until(lambda: around.jobs("remote_version > 0"))
        yield


@contextlib.asynccontextmanager
async def model_thinks(around: Surroundings, requests: int) -> AsyncIterator[None]:
    """The model's so-manieth question gets no answer while the gateway lives."""
    async with model_asked(around, requests):
        yield
        await around.dead.wait()


@contextlib.asynccontextmanager
async def model_asked(around: Surroundings, requests: int) -> AsyncIterator[None]:
    """The model has its so-manieth question, and answers when it is let."""
    around.model.may_answer.clear()
    try:
        await wait_for_event(around.model.received(requests))
        yield
    finally:
        around.model.may_answer.set()


async def model_refuses(around: Surroundings) -> int:
    """The model refuses the first question; how many it has had by then."""
    model = around.model
    requests = len(model.requests) + 1
    model.fails(401)
    await wait_for_event(model.received(requests))
    await model.idle()
    return requests


@contextlib.asynccontextmanager
async def _own_document(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    around.remem.hold = "before"
    await until(lambda: around.jobs("document_id <> ''"))
    yield


def _remote(hold: Any) -> Arrangement:
    @contextlib.asynccontextmanager
    async def arrange(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
        around.remem.hold = hold
        await wait_for_event(around.remem.holding.wait())
        yield

    return arrange


@contextlib.asynccontextmanager
async def _remote_unrecorded(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    """The remote store has answered; that it has can't be written down."""
    around.remem.hold = "after"
    await wait_for_event(around.remem.holding.wait())
    with write_lock(around.store):
        around.remem.release.set()
        await asyncio.sleep(0.1)
        yield
        await around.dead.wait()


@contextlib.asynccontextmanager
async def _remote_answer_lost(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    """The document is there, its answer is not, and the gateway waits for its next try."""
    before = len(around.remem.documents)
    around.remem.spoils.append(Fault.ANSWER_LOST)
    await until(lambda: len(around.remem.documents) > before)
    yield


# Told to stop


@contextlib.asynccontextmanager
async def _draining(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    """Told to stop with a caller on the line, and killed while it waits for the call's end."""
    await call.stopped()
    around.victim.send(signal.SIGTERM)
    await until(lambda: around.logged("gateway drains"))
    yield


@contextlib.asynccontextmanager
async def _leaving(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    """Told to stop when the call is over, and killed while its document is on the way."""
    around.remem.hold = "before"
    await wait_for_event(around.remem.holding.wait())
    around.victim.send(signal.SIGTERM)
    await asyncio.sleep(0.1)
    yield


@contextlib.asynccontextmanager
async def _second_sigterm(around: Surroundings, call: ScriptedCall) -> AsyncIterator[None]:
    """Told to stop at once with a caller on the line: no kill, the process ends by itself."""
    await call.stopped()
    around.victim.send(signal.SIGTERM)
    await until(lambda: around.logged("gateway drains"))
    around.victim.send(signal.SIGTERM)
    await around.victim.gone()
    yield


KILLS = (
    *(at_moment(moment) for moment in MOMENTS),
    Point("before begin", _before_begin, stop_at="function call"),
    Point("begun", _begun),
    Point("log not released", _log_not_released, stop_at="function call"),
    Point("archived", _archived),
    Point("summary asked", _summary_asked, needs_llm=True),
    Point("summary not recorded", _summary_unrecorded, needs_llm=True),
    Point("own document", _own_document),
    Point("remote create before", _remote("before")),
    Point("remote create after", _remote("after")),
    Point("remote not recorded", _remote_unrecorded),
    Point("remote answer lost", _remote_answer_lost),
    Point("upgrade asked", _upgrade_asked, needs_llm=True),
    Point("draining", _draining, stop_at="text after barge-in"),
    Point("draining, ending", _leaving),
    Point("second SIGTERM", _second_sigterm, stop_at="text after barge-in"),
)
