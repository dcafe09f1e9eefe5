import asyncio

import orjson
import pytest

from gateway.cluster.directory import CallDirectory, ClusterTimeouts
from gateway.cluster.event_stream import EventStream, SharedErasure
from gateway.cluster.redis_store import RedisStore, connect
from gateway.errors import SharedStoreUnavailable
from gateway.history.call_log import Cursor
from gateway.maintenance import running
from tests.redis_server import files_holding, running_redis
from tests.stage import until_it

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


# Files


class Folder:
    """A Redis that keeps everything it is given in files, and the words in them."""

    def __init__(self, path):
        self.path = path

    def holds(self, word):
        return files_holding(self.path, word)

    async def no_longer_holds(self, word):
        return not self.holds(word)


@pytest.mark.parametrize("save", ["", "3600 1"])
async def test_erased_events_are_in_no_file(tmp_path, client, stream, save):
    """Redis deletes an entry of a stream by marking it, and keeps it in its files until they are written again."""
    folder = Folder(tmp_path)
    await client.config_set("save", save)
    if save:
        await client.bgsave()
    assert folder.holds(ANN["caller"])
    erasure = SharedErasure(client)
    assert await erasure.forget([], ANN["caller"], "") == 1
    assert folder.holds(ANN["caller"])
    assert await erasure.rewrite_files()
    await until_it(lambda: folder.no_longer_holds(ANN["caller"]))  # the old file is deleted in the background
    assert folder.holds(BEN["caller"])
    assert [event for _, event in await stream.after(Cursor(0))] == [BEN]


async def test_rewritten_stream_keeps_ids_and_expires(client, stream):
    found = await stream.after(Cursor(0))
    waiting = asyncio.create_task(stream.after(found[-1][0], wait=5.0))
    await SharedErasure(client).forget([], ANN["caller"], "")
    assert await stream.after(Cursor(0)) == found[1:]
    assert 0 < await client.pttl("voice-gateway:events") <= 3_600_000
    stream.share(orjson.dumps(ANN))
    assert [event for _, event in await waiting] == [ANN]
    assert sorted(await client.keys()) == [b"voice-gateway:events"]


async def test_long_stream_is_rewritten_in_pages(client, stream):
    async with client.pipeline(transaction=False) as pipeline:
        for number in range(1200):
            pipeline.xadd(
                "voice-gateway:events", {"event": orjson.dumps({**(ANN if number % 2 else BEN), "at": number})}
            )
        await pipeline.execute()
    assert await SharedErasure(client).forget([], ANN["caller"], "") == 601
    left = [orjson.loads(values[b"event"]) for _, values in await client.xrange("voice-gateway:events")]
    assert [event.get("at") for event in left] == [None, *range(0, 1200, 2)]


async def test_two_erasures_at_once_delete_both(client, stream):
    await asyncio.gather(*(SharedErasure(client).forget([], who["caller"], "") for who in (ANN, BEN)))
    assert await client.exists("voice-gateway:events", "voice-gateway:erasing") == 0


async def test_erasure_waits_for_another_one_no_longer_than_its_patience(client, stream):
    await client.set("voice-gateway:erasing", "another")
    with pytest.raises(SharedStoreUnavailable):
        await SharedErasure(client, patience=0.1).forget([], ANN["caller"], "")


async def test_forbidden_rewrite_is_reported(client, stream):
    """As a managed Redis does it."""
    await client.acl_setuser("default", commands=["-bgrewriteaof"])
    assert await SharedErasure(client).rewrite_files() is False


async def test_snapshot_is_made_if_the_configuration_is_hidden(tmp_path, client, stream):
    await client.acl_setuser("default", commands=["-config"])
    assert await SharedErasure(client).rewrite_files()
    assert (tmp_path / "dump.rdb").is_file()


async def test_redis_without_files_has_nothing_to_rewrite(tmp_path):
    async with running_redis(tmp_path, forgets=True) as server:
        client = connect(server.url)
        assert await SharedErasure(client).rewrite_files()
        assert list(tmp_path.iterdir()) == []
        await client.aclose()
