"""One gateway, killed at every moment of a call and before and after every finalization step."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from typing import Any

from tests.chaos.call import MOMENTS, ScriptedCall
from tests.chaos.faulty_peers import write_lock
from tests.chaos.points import Arrangement, KillContext, Point
from tests.fakes.remem import Fault
from tests.stage import in_time, until


def at_moment(moment: str) -> Point:
    """Kill while the script is stopped at this moment."""

    @contextlib.asynccontextmanager
    async def arrange(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
        await call.stopped()
        yield

    return Point(moment, arrange, stop_at=moment)


# Finalization steps


@contextlib.asynccontextmanager
async def _before_begin(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
    """The call has ended; its job cannot be stored."""
    await call.stopped()
    with write_lock(context.store):
        call.let_go()
        await until(lambda: call.moment == "last words")
        await context.known(call)
        yield
        await context.dead.wait()


@contextlib.asynccontextmanager
async def _begun(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
    context.remem.hold = "before"
    await until(context.jobs)
    yield


@contextlib.asynccontextmanager
async def _log_not_released(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
    """All steps are done, but the call log still has the call."""
    await call.stopped()
    await context.turns_logged(call)
    with write_lock(context.call_log):
        call.let_go()
        await until(lambda: context.jobs("remote_version > 0 AND archived"))
        yield
        await context.dead.wait()


@contextlib.asynccontextmanager
async def _archived(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
    context.remem.hold = "before"
    await context.archived()
    yield


@contextlib.asynccontextmanager
async def _summary_asked(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
    """The language model has not answered yet."""
    async with model_held(context, len(context.model.requests) + 1):
        yield


@contextlib.asynccontextmanager
async def _summary_unrecorded(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
    """The language model has answered; the result cannot be stored."""
    async with model_asked(context, len(context.model.requests) + 1):
        with write_lock(context.store):
            context.model.may_answer.set()
            await context.model.idle()
            await asyncio.sleep(0.1)
            yield
            await context.dead.wait()


@contextlib.asynccontextmanager
async def _upgrade_asked(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
    """The model failed and both stores have the extractive summary; now the model is asked again."""
    requests = await model_refuses(context)
    async with model_held(context, requests + 1):
        await until(lambda: context.jobs("remote_version > 0"))
        yield


@contextlib.asynccontextmanager
async def model_held(context: KillContext, requests: int) -> AsyncIterator[None]:
    """Request number `requests` gets no answer before the kill."""
    async with model_asked(context, requests):
        yield
        await context.dead.wait()


@contextlib.asynccontextmanager
async def model_asked(context: KillContext, requests: int) -> AsyncIterator[None]:
    """The model has received `requests` requests and answers after the block."""
    context.model.may_answer.clear()
    try:
        await in_time(context.model.received(requests))
        yield
    finally:
        context.model.may_answer.set()


async def model_refuses(context: KillContext) -> int:
    """The model refuses the first request. Returns the number of requests so far."""
    model = context.model
    requests = len(model.requests) + 1
    model.fails(401)
    await in_time(model.received(requests))
    await model.idle()
    return requests


@contextlib.asynccontextmanager
async def _own_document(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
    context.remem.hold = "before"
    await until(lambda: context.jobs("document_id <> ''"))
    yield


def _remote(hold: Any) -> Arrangement:
    @contextlib.asynccontextmanager
    async def arrange(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
        context.remem.hold = hold
        await in_time(context.remem.holding.wait())
        yield

    return arrange


@contextlib.asynccontextmanager
async def _remote_unrecorded(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
    """The remote store has answered; the completed step cannot be stored."""
    context.remem.hold = "after"
    await in_time(context.remem.holding.wait())
    with write_lock(context.store):
        context.remem.release.set()
        await asyncio.sleep(0.1)
        yield
        await context.dead.wait()


@contextlib.asynccontextmanager
async def _remote_answer_lost(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
    """The document is stored, the answer is lost, and the gateway waits to retry."""
    before = len(context.remem.documents)
    context.remem.next_faults.append(Fault.ANSWER_LOST)
    await until(lambda: len(context.remem.documents) > before)
    yield


def _webhook(hold: Any) -> Arrangement:
    @contextlib.asynccontextmanager
    async def arrange(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
        context.receiver.hold = hold
        await in_time(context.receiver.holding.wait())
        yield

    return arrange


# SIGTERM


@contextlib.asynccontextmanager
async def _draining(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
    """SIGTERM during a call; killed while draining."""
    await call.stopped()
    context.victim.send(signal.SIGTERM)
    await until(lambda: context.logged("gateway drains"))
    yield


@contextlib.asynccontextmanager
async def _draining_in_finalization(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
    """SIGTERM after the call; killed while its document is being sent."""
    context.remem.hold = "before"
    await in_time(context.remem.holding.wait())
    context.victim.send(signal.SIGTERM)
    await asyncio.sleep(0.1)
    yield


@contextlib.asynccontextmanager
async def _second_sigterm(context: KillContext, call: ScriptedCall) -> AsyncIterator[None]:
    """A second SIGTERM during a call: the process exits by itself."""
    await call.stopped()
    context.victim.send(signal.SIGTERM)
    await until(lambda: context.logged("gateway drains"))
    context.victim.send(signal.SIGTERM)
    await context.victim.gone()
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
    Point("webhook before", _webhook("before")),
    Point("webhook after", _webhook("after")),
    Point("draining", _draining, stop_at="text after barge-in"),
    Point("draining, ending", _draining_in_finalization),
    Point("second SIGTERM", _second_sigterm, stop_at="text after barge-in"),
)
