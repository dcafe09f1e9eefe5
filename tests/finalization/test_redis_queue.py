"""Jobs of several nodes, on a real Redis server: each runs once, and again when more of the call is known."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from gateway.cluster.event_stream import SharedErasure
from gateway.cluster.redis_store import connect
from gateway.errors import TakenOver
from gateway.finalization.job import FinalizationJob, JobState, QueueStatus
from gateway.finalization.redis_queue import RedisJobQueue
from gateway.session import EndReason, Speaker, Turn
from tests.calls.aftermath import START, a_session
from tests.redis_server import running_redis

SESSION = a_session(
    turns=[Turn(Speaker.CALLER, text, START + timedelta(seconds=at)) for at, text in enumerate(("One.", "Two."))]
)
DIED = replace(SESSION, turns=SESSION.turns[:1], end_reason=EndReason.GATEWAY_DIED, taken_over=True)


class Room:
    """Nodes on one server."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.dead: set[str] = set()
        self.clients = [connect(url)]

    def node(self, name: str) -> RedisJobQueue:
        async def alive(other: str) -> bool:
            return other not in self.dead

        self.clients.append(connect(self._url))
        return RedisJobQueue(self.clients[-1], name, alive)


@pytest.fixture
async def room(tmp_path: Path) -> AsyncIterator[Room]:
    async with running_redis(tmp_path / "redis") as server:
        room = Room(server.url)
        yield room
        for client in room.clients:
            await client.aclose()


async def taken(stream: RedisJobQueue) -> FinalizationJob:
    async with asyncio.timeout(60):
        while not (found := await stream.next()):
            pass
    [job] = found
    return job


async def finished(stream: RedisJobQueue, job: FinalizationJob) -> None:
    job.document_id, job.version = "doc", job.version + 1
    job.remote_id, job.remote_version = "remote", job.version
    await stream.save(job)
    await stream.finish(job)


async def test_job_is_not_handed_over_twice(room: Room) -> None:
    a = room.node("a")
    await a.hand_over(FinalizationJob(SESSION))
    await finished(a, await taken(a))
    await a.hand_over(FinalizationJob(SESSION))
    assert await a.status(SESSION.id) is QueueStatus.DONE
    assert await a.next() == []


async def test_more_turns_requeue_a_done_job(room: Room) -> None:
    """A node that was believed dead comes back: the same documents are replaced by those of all turns."""
    a, b = room.node("a"), room.node("b")
    await b.hand_over(FinalizationJob(DIED))
    await finished(b, await taken(b))
    await a.hand_over(FinalizationJob(SESSION))
    again = await taken(b)
    assert again.session == replace(SESSION, taken_over=True)
    assert (again.archived, again.summary, again.document_id) == (False, None, "")
    assert (again.version, again.remote_id, again.remote_version) == (1, "remote", 1)
    await finished(b, again)
    await a.hand_over(FinalizationJob(SESSION))
    assert await a.next() == []


async def test_other_turns_are_added_to_a_done_job(room: Room) -> None:
    a, b = room.node("a"), room.node("b")
    went_on = replace(DIED, turns=[*DIED.turns, Turn(Speaker.CALLER, "Three.", START + timedelta(seconds=9))])
    await b.hand_over(FinalizationJob(went_on))
    await finished(b, await taken(b))
    await a.hand_over(FinalizationJob(SESSION))
    again = await taken(a)
    assert [turn.text for turn in again.session.turns] == ["One.", "Two.", "Three."]


async def test_job_with_fewer_turns_is_stopped(room: Room) -> None:
    """Even on the node that gets the new one: both know the call, and only one may write."""
    a = room.node("a")
    await a.hand_over(FinalizationJob(DIED))
    less = await taken(a)
    await a.hand_over(FinalizationJob(SESSION))
    for write in (a.save, a.finish, a.park):
        with pytest.raises(TakenOver):
            await write(less)
    more = await taken(a)
    assert len(more.session.turns) == 2 and not more.remote_checked
    with pytest.raises(TakenOver):
        await a.save(less)
    await finished(a, more)
    assert await a.status(SESSION.id) is QueueStatus.DONE
    assert await a.next() == []


async def test_failed_job_is_kept_and_queued_again(room: Room) -> None:
    a = room.node("a")
    await a.hand_over(FinalizationJob(SESSION))
    assert await a.status(SESSION.id) is QueueStatus.PENDING
    job = await taken(a)
    job.problem = "remote document: remem answered 401"
    job.move_to(JobState.RUNNING)
    job.move_to(JobState.FAILED)
    await a.park(job)
    assert await a.status(SESSION.id) is QueueStatus.FAILED
    failed = await a.load(SESSION.id)
    assert failed is not None and failed.problem == job.problem
    await a.hand_over(FinalizationJob(SESSION))
    again = await taken(a)
    assert (again.state, again.problem) == (JobState.QUEUED, "")


async def test_unknown_job_is_lost(room: Room) -> None:
    a = room.node("a")
    assert (await a.status(SESSION.id), await a.load(SESSION.id)) == (QueueStatus.LOST, None)


async def test_fewer_turns_change_nothing(room: Room) -> None:
    a, b = room.node("a"), room.node("b")
    await a.hand_over(FinalizationJob(SESSION))
    job = await taken(a)
    await b.hand_over(FinalizationJob(DIED))
    assert await b.next() == []
    await finished(a, job)
    await b.hand_over(FinalizationJob(DIED))
    assert await b.next() == []


@pytest.mark.parametrize("first", [SESSION, DIED])
async def test_two_nodes_hand_over_at_once(room: Room, first: object) -> None:
    a, b = room.node("a"), room.node("b")
    told = [SESSION, DIED] if first is SESSION else [DIED, SESSION]
    await asyncio.gather(
        *(node.hand_over(FinalizationJob(session)) for node, session in zip((a, b), told, strict=True))
    )
    job = await taken(a)
    assert len(job.session.turns) == 2
    await finished(a, job)
    assert await b.next() == []


async def test_entry_of_a_dead_node_is_claimed(room: Room) -> None:
    a, b = room.node("a"), room.node("b")
    await a.hand_over(FinalizationJob(SESSION))
    job = await taken(a)
    room.dead.add("a")
    claimed = await taken(b)
    assert claimed.session == SESSION and not claimed.remote_checked
    with pytest.raises(TakenOver):
        await a.save(job)
    await finished(b, claimed)


async def test_erased_call_leaves_no_words_in_redis(room: Room) -> None:
    """Neither of one under way, whose worker is stopped, nor of one that is known for a day for who may add to it."""
    one, other, traces = room.node("one"), room.node("other"), SharedErasure(room.clients[0])
    await one.hand_over(FinalizationJob(DIED))
    await finished(one, await taken(one))
    assert await holding(room, "One.") == [f"voice-gateway:ending-told:{DIED.id}"]
    assert await traces.forget([DIED.id], DIED.caller, "") == 1
    await one.hand_over(FinalizationJob(replace(DIED, id="voice-session:2")))
    under_way = await taken(other)
    assert await traces.forget(["voice-session:2"], DIED.caller, "") > 0
    with pytest.raises(TakenOver):
        await other.save(under_way)
    assert await holding(room, "One.") == []


async def holding(room: Room, words: str) -> list[str]:
    """The names of values with these words."""
    client = room.clients[0]
    names = [name async for name in client.scan_iter() if await client.type(name) == b"string"]
    return [name.decode() for name in names if words.encode() in await client.get(name)]
