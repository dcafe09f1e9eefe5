"""The shared store in a real Redis; the in-memory one of other tests has to behave the same."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.cluster.redis_store import RedisStore, connect, foreign_errors
from gateway.cluster.store import SharedStore
from gateway.errors import SharedStoreUnavailable
from tests.cluster.shared_stores import StoreServer, store_server
from tests.fakes.shared_store import FakeSharedStore
from tests.link import linked
from tests.redis_server import RedisServer, running_redis
from tests.stage import until_it

MANY = 8


@pytest.fixture(params=["memory", "redis"])
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StoreServer]:
    async with store_server(request.param, tmp_path) as server:
        yield server


@pytest.fixture
async def shared_store(server: StoreServer) -> SharedStore:
    return await server.open()


async def at_once(server: StoreServer, work: Callable[[SharedStore, int], Awaitable[Any]]) -> list[Any]:
    """The results of many nodes that do this at the same time."""
    stores = [await server.open() for _ in range(MANY)]
    return await asyncio.gather(*(work(shared_store, number) for number, shared_store in enumerate(stores)))


async def gone(shared_store: SharedStore, name: str) -> None:
    async def expired() -> bool:
        return await shared_store.get(name) is None

    await until_it(expired)


# Values


async def test_every_node_sees_a_value(server: StoreServer, shared_store: SharedStore) -> None:
    await shared_store.put("call:1", b"\x00\xff", 60)
    assert await (await server.open()).get("call:1") == b"\x00\xff"
    assert await shared_store.get("call:2") is None


async def test_value_expires(shared_store: SharedStore) -> None:
    await shared_store.put("token", b"secret", 0.05)
    await gone(shared_store, "token")
    assert not await shared_store.swap("token", b"secret", b"other", 60)
    assert not await shared_store.delete("token")
    assert await shared_store.add("token", b"another", 60)


async def test_writing_again_keeps_a_value_longer(shared_store: SharedStore) -> None:
    await shared_store.put("alive", b"1", 0.05)
    await shared_store.put("clock", b"1", 0.05)
    await shared_store.put("alive", b"2", 60)
    await gone(shared_store, "clock")
    assert await shared_store.get("alive") == b"2"


async def test_swap_needs_what_stands_there(shared_store: SharedStore) -> None:
    await shared_store.put("call", b"ringing", 60)
    assert not await shared_store.swap("call", b"live", b"over", 60)
    assert await shared_store.get("call") == b"ringing"
    assert await shared_store.swap("call", b"ringing", b"live", 60)
    assert await shared_store.get("call") == b"live"


async def test_one_of_many_adds(server: StoreServer, shared_store: SharedStore) -> None:
    added = await at_once(server, lambda shared_store, number: shared_store.add("call", b"%d" % number, 60))
    assert added.count(True) == 1
    assert await shared_store.get("call") == b"%d" % added.index(True)


async def test_one_of_many_swaps(server: StoreServer, shared_store: SharedStore) -> None:
    await shared_store.put("call", b"dead", 60)
    swapped = await at_once(server, lambda shared_store, number: shared_store.swap("call", b"dead", b"%d" % number, 60))
    assert swapped.count(True) == 1
    assert await shared_store.get("call") == b"%d" % swapped.index(True)


async def test_of_many_who_delete_one_is_told(server: StoreServer, shared_store: SharedStore) -> None:
    await shared_store.put("token", b"secret", 60)
    deleted = await at_once(server, lambda shared_store, _: shared_store.delete("token"))
    assert deleted.count(True) == 1


# Sets


async def test_set_holds_who_joined(server: StoreServer, shared_store: SharedStore) -> None:
    await at_once(server, lambda shared_store, number: shared_store.join("nodes", f"node-{number}"))
    await shared_store.join("nodes", "node-0")
    await shared_store.leave("nodes", "node-1")
    await shared_store.leave("nodes", "a stranger")
    assert await shared_store.members("nodes") == {f"node-{number}" for number in range(MANY) if number != 1}
    assert await shared_store.members("calls") == set()


# Lists


async def test_items_stay_in_order(shared_store: SharedStore) -> None:
    await shared_store.append("journal", [b"1", b"2"], 60)
    await shared_store.append("journal", [b"3"], 60)
    assert await shared_store.items("journal") == [b"1", b"2", b"3"]
    assert await shared_store.take("journal", 0) == b"1"
    assert await shared_store.items("journal") == [b"2", b"3"]


async def test_each_item_is_taken_once(server: StoreServer, shared_store: SharedStore) -> None:
    items = [b"%d" % number for number in range(MANY - 1)]
    await shared_store.append("inbox", items, 60)
    taken = await at_once(server, lambda shared_store, _: shared_store.take("inbox", 0))
    assert sorted(item for item in taken if item) == items
    assert taken.count(None) == 1


async def test_take_waits_for_an_item(server: StoreServer, shared_store: SharedStore) -> None:
    waiting = asyncio.create_task(shared_store.take("inbox", wait=20))
    await (await server.open()).append("inbox", [b"hello"], 60)
    assert await waiting == b"hello"


async def test_take_gives_up(shared_store: SharedStore) -> None:
    assert await shared_store.take("inbox", wait=0.05) is None


async def test_list_expires_as_a_whole(shared_store: SharedStore) -> None:
    """What is written last says how long all of it is kept."""
    for name in ("kept", "lost", "clock"):
        await shared_store.append(name, [b"1"], 2)
    await shared_store.append("kept", [b"2"], 60)

    async def expired() -> bool:
        return not await shared_store.items("clock") and not await shared_store.items("lost")

    await until_it(expired)
    assert await shared_store.items("kept") == [b"1", b"2"]
    assert await shared_store.take("lost", 0) is None
    assert not await shared_store.delete("lost")


async def test_rewritten_list_is_never_seen_half(server: StoreServer, shared_store: SharedStore) -> None:
    versions = [[b"%d" % number] * 50 for number in range(20)]
    seen: list[list[bytes]] = []
    other = await server.open()

    async def look() -> None:
        while not seen or seen[-1] != versions[-1]:
            seen.append(await other.items("journal"))

    looking = asyncio.create_task(look())
    for version in versions:
        await shared_store.rewrite("journal", version, 60)
    await looking
    assert [items for items in seen if items and items not in versions] == []
    await shared_store.rewrite("journal", [], 60)
    assert await other.items("journal") == []


async def test_deleted_list_is_gone(shared_store: SharedStore) -> None:
    await shared_store.append("inbox", [b"1"], 60)
    assert await shared_store.delete("inbox")
    assert await shared_store.items("inbox") == []


# The server is gone


@pytest.mark.parametrize(
    "work",
    [
        lambda shared_store: shared_store.get("name"),
        lambda shared_store: shared_store.put("name", b"1", 60),
        lambda shared_store: shared_store.add("name", b"1", 60),
        lambda shared_store: shared_store.swap("name", b"1", b"2", 60),
        lambda shared_store: shared_store.delete("name"),
        lambda shared_store: shared_store.join("set", "member"),
        lambda shared_store: shared_store.leave("set", "member"),
        lambda shared_store: shared_store.members("set"),
        lambda shared_store: shared_store.append("list", [b"1"], 60),
        lambda shared_store: shared_store.rewrite("list", [b"1"], 60),
        lambda shared_store: shared_store.items("list"),
        lambda shared_store: shared_store.take("list", 0.1),
    ],
    ids="get put add swap delete join leave members append rewrite items take".split(),
)
async def test_unreachable_store_is_unavailable(
    server: StoreServer, shared_store: SharedStore, work: Callable[[SharedStore], Any]
) -> None:
    await shared_store.put("name", b"1", 60)
    await server.stop()
    with pytest.raises(SharedStoreUnavailable):
        await work(shared_store)
    await server.restart()
    assert await shared_store.get("name") == b"1"


async def test_redis_address_stays_out_of_errors() -> None:
    shared_store = RedisStore(connect("redis://:hunter2@127.0.0.1:1/0"))
    with pytest.raises(SharedStoreUnavailable) as raised:
        await shared_store.get("name")
    assert "hunter2" not in str(raised.value)
    await shared_store.close()


async def test_redis_connections_that_fell_silent_cost_one_failure(tmp_path: Path) -> None:
    """The idle ones are dropped with the first that fails."""
    async with running_redis(tmp_path) as server, linked(server.port) as link:
        shared_store = RedisStore(connect(link.redis_url))
        await asyncio.gather(*(shared_store.put(f"name{number}", b"1", 60) for number in range(5)))
        link.falls_silent()
        with pytest.raises(SharedStoreUnavailable):
            await shared_store.get("name0")
        assert await shared_store.get("name0") == b"1"
        await shared_store.close()


# The fake and the real one

NAMES = st.sampled_from(["a", "b"])
VALUES = st.binary(max_size=3)
STEPS = st.one_of(
    st.tuples(st.just("get"), NAMES),
    st.tuples(st.just("put"), NAMES, VALUES, st.just(60)),
    st.tuples(st.just("add"), NAMES, VALUES, st.just(60)),
    st.tuples(st.just("swap"), NAMES, VALUES, VALUES, st.just(60)),
    st.tuples(st.just("delete"), st.sampled_from(["a", "list"])),
    st.tuples(st.sampled_from(["join", "leave"]), st.just("set"), NAMES),
    st.tuples(st.just("members"), st.just("set")),
    st.tuples(st.sampled_from(["append", "rewrite"]), st.just("list"), st.lists(VALUES, max_size=3), st.just(60)),
    st.tuples(st.just("items"), st.just("list")),
    st.tuples(st.just("take"), st.just("list"), st.just(0)),
)


class Twins:
    """A store of each kind, in a loop of their own."""

    def __init__(self, runner: asyncio.Runner, server: RedisServer) -> None:
        self._runner = runner
        self._server = server

    def play(self, steps: list[tuple[Any, ...]]) -> list[list[Any]]:
        return [self._runner.run(self._answers(kind, steps)) for kind in ("memory", "redis")]

    async def _answers(self, kind: str, steps: list[tuple[Any, ...]]) -> list[Any]:
        shared_store: Any = FakeSharedStore()
        if kind == "redis":
            await self._server.empty()
            shared_store = RedisStore(connect(self._server.url))
        answers = [await getattr(shared_store, name)(*arguments) for name, *arguments in steps]
        await shared_store.close()
        return answers


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twins]:
    folder = tmp_path_factory.mktemp("twins")
    server = RedisServer(folder / "redis", forgets=True)
    with asyncio.Runner() as runner:
        runner.run(server.start())
        yield Twins(runner, server)
        runner.run(server.kill())


@settings(max_examples=40, deadline=None)
@given(steps=st.lists(STEPS, max_size=25))
def test_both_stores_answer_alike(twins: Twins, steps: list[tuple[Any, ...]]) -> None:
    in_memory, in_redis = twins.play(steps)
    assert in_memory == in_redis


@pytest.mark.parametrize("server", ["redis"], indirect=True)
async def test_writer_can_be_cancelled_at_any_moment(shared_store: SharedStore) -> None:
    async def write_forever() -> None:
        while True:
            await shared_store.put("alive", b"1", 60)

    for moment in range(60):
        writer = asyncio.create_task(write_forever())
        for _ in range(moment):
            await asyncio.sleep(0)
        writer.cancel()
        await asyncio.wait({writer}, timeout=60)
        assert writer.cancelled()


class Stubborn:
    """Its work ignores one cancellation, as redis-py does at times before Python 3.12."""

    _client = None

    @foreign_errors
    async def get(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(2)
        await asyncio.sleep(2)
        raise ConnectionError


@pytest.mark.virtual_time
async def test_time_out_ends_the_wait_at_once() -> None:
    clock = asyncio.get_running_loop().time
    began = clock()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.03):
            await Stubborn().get()
    assert clock() - began < 0.05
    await asyncio.sleep(5)  # no task waits for its late failure


# Limits


async def test_nodes_admit_so_many_together(server: StoreServer) -> None:
    waits = await at_once(server, lambda store, _: store.admit("dialled", MANY - 2, 60))
    assert waits.count(0.0) == MANY - 2 and all(0 <= wait <= 60 for wait in waits)


async def test_admitted_ones_count_for_a_time_each(shared_store: SharedStore) -> None:
    """The window slides: the first one makes room while the second still counts."""
    assert [await shared_store.admit("dialled", 2, 60) for _ in range(2)] == [0.0, 0.0]
    wait = await shared_store.admit("dialled", 2, 0.3)
    assert 0 < wait <= 0.3
    await asyncio.sleep(wait + 0.002)
    assert await shared_store.admit("dialled", 2, 0.3) == 0.0
    assert await shared_store.delete("dialled")


async def test_as_many_join_as_there_is_room(server: StoreServer) -> None:
    joined = await at_once(server, lambda store, number: store.join_limited("calls", str(number), 3, 60))
    assert sum(joined) == 3
    store = await server.open()
    inside = sorted(await store.members("calls"))
    assert await store.join_limited("calls", inside[0], 3, 60)  # a member already
    await store.leave("calls", inside[0])
    assert await store.join_limited("calls", "another", 3, 60)
    assert await store.join_limited("calls", "beyond", 0, 60)
