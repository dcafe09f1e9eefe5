import asyncio

import orjson
import pytest

from gateway.cluster.directory import CallDirectory, ClusterTimeouts
from gateway.cluster.event_stream import EventStream, SharedErasure
from gateway.cluster.redis_store import RedisStore, connect
from gateway.history.call_log import Cursor
from gateway.maintenance import running
from tests.redis_server import running_redis

ANN, BEN = (
    {"caller": f"+1202555010{number}", "agent": "maya", "session": f"voice-session:{number}"} for number in (1, 2)
)


@pytest.fixture
async def client(tmp_path):
    async with running_redis(tmp_path) as server:
        client = connect(server.url)
        yield client
        await client.aclose()


@pytest.fixture
async def stream(client):
    """Two events were shared: one of Ann's call, one of Ben's."""
    directory = CallDirectory(RedisStore(client), ClusterTimeouts(), node="a")
    stream = EventStream(client, directory)
    async with running(directory.run()):
        for event in (ANN, BEN):
            stream.share(orjson.dumps(event))
        await directory.flushed()
        yield stream


async def test_events_of_all_nodes_come_in_order(stream):
    found = await stream.after(Cursor(0))
    assert [event for _, event in found] == [ANN, BEN]
    assert await stream.after(found[0][0]) == found[1:]
    assert await stream.head() == found[-1][0]


async def test_reader_waits_for_the_next_event(stream):
    waiting = asyncio.create_task(stream.after(await stream.head(), wait=5.0))
    await asyncio.sleep(0.05)
    stream.share(orjson.dumps(ANN))
    assert [event for _, event in await waiting] == [ANN]


@pytest.mark.parametrize(("sessions", "caller", "agent"), [([ANN["session"]], "", ""), ([], ANN["caller"], "maya")])
async def test_erased_events_are_gone(client, stream, sessions, caller, agent):
    assert await SharedErasure(client).forget(sessions, caller, agent) == 1
    assert [event for _, event in await stream.after(Cursor(0))] == [BEN]


async def test_events_with_another_agent_stay(client, stream):
    assert await SharedErasure(client).forget([], ANN["caller"], "tom") == 0
