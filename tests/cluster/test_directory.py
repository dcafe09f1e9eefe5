"""The shared call directory: every call has one owner, whatever happens at once."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.calls.state import CallState
from gateway.cluster.directory import CallDirectory, CallRecord, ClusterTimeouts, NodeCommandKind
from gateway.cluster.store import SharedStore
from gateway.errors import SharedStoreUnavailable
from gateway.session import VoiceSession
from tests.cluster.shared_stores import StoreServer, store_server
from tests.stage import until_it

KEY = ("twilio", "CA1")
SESSION = VoiceSession(agent="maya", caller="+12025550143", carrier="twilio")
HEADER = {**SESSION.as_json(), "turns": []}


class Nodes:
    """Directories of several nodes on one store."""

    def __init__(self, server: StoreServer) -> None:
        self.server = server
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, name: str) -> CallDirectory:
        return self.on(await self.server.open(), name)

    def on(self, shared_store: SharedStore, name: str) -> CallDirectory:
        directory = CallDirectory(shared_store, ClusterTimeouts(), node=name)
        self._tasks.append(asyncio.create_task(directory.run()))
        return directory

    async def many(self) -> list[CallDirectory]:
        return [await self.start(f"node-{number}") for number in range(6)]

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()


@pytest.fixture(params=["memory", "redis"])
async def nodes(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Nodes]:
    async with store_server(request.param, tmp_path) as server:
        nodes = Nodes(server)
        yield nodes
        nodes.stop()


def ringing(node: CallDirectory, **fields: Any) -> CallRecord:
    return replace(
        CallRecord(KEY, node.node, CallState.RINGING, "AC1", SESSION.caller, token="secret", session=HEADER), **fields
    )


async def owner(node: CallDirectory) -> tuple[str, CallState]:
    record = await node.find(KEY)
    assert record is not None
    return record.node, record.state


class Unsteady:
    """A store that fails once, after so many requests; the failed request was not carried out."""

    def __init__(self, shared_store: SharedStore, requests: int) -> None:
        self._shared_store = shared_store
        self._requests = requests

    def __getattr__(self, name: str) -> Any:
        self._requests -= 1
        if self._requests == -1:
            raise SharedStoreUnavailable("the store is away")
        return getattr(self._shared_store, name)


# One of many


async def test_call_is_opened_by_one_of_many(nodes: Nodes) -> None:
    many = await nodes.many()
    answers = await asyncio.gather(*(node.open(ringing(node)) for node in many))
    assert len({answer.node for answer in answers}) == 1
    assert await owner(many[0]) == (answers[0].node, CallState.RINGING)


async def test_token_is_redeemed_by_one_of_many(nodes: Nodes) -> None:
    many = await nodes.many()
    await many[0].open(ringing(many[0]))
    redeemed = await asyncio.gather(*(node.redeem(KEY, "secret", "AC1") for node in many))
    [winner] = [node for node, record in zip(many, redeemed, strict=True) if record]
    assert await owner(many[0]) == (winner.node, CallState.ACTIVE)
    assert await winner.redeem(KEY, "secret", "AC1") is None


@pytest.mark.parametrize("token, account", [("wrong", "AC1"), ("", "AC1"), ("secret", "AC2")])
async def test_wrong_token_spends_nothing(nodes: Nodes, token: str, account: str) -> None:
    a, b = await nodes.start("a"), await nodes.start("b")
    await a.open(ringing(a))
    assert await b.redeem(KEY, token, account) is None
    assert await b.redeem(KEY, "secret", "AC1") == ringing(a)


async def test_call_is_adopted_by_one_of_many(nodes: Nodes) -> None:
    dead, *others = await nodes.many()
    await dead.open(ringing(dead))
    adopted = await asyncio.gather(*(node.adopt(KEY, dead.node) for node in others))
    [winner] = [node for node, record in zip(others, adopted, strict=True) if record]
    assert await owner(dead) == (winner.node, CallState.RINGING)
    message = await dead.next_command()
    assert message is not None and (message.kind, message.key) == (NodeCommandKind.TAKEN, KEY)


async def test_event_is_new_to_one_of_many(nodes: Nodes) -> None:
    answers = await asyncio.gather(*(node.is_new_event("evt-1", 60) for node in await nodes.many()))
    assert answers.count(True) == 1


# Commands


async def test_command_reaches_a_living_node(nodes: Nodes) -> None:
    a, b = await nodes.start("a"), await nodes.start("b")
    reached, message = await asyncio.gather(a.deliver("b", NodeCommandKind.ENDED, KEY), b.next_command())
    assert reached and message is not None
    assert (message.kind, message.key) == (NodeCommandKind.ENDED, KEY)


async def test_unread_command_shows_a_dead_node(nodes: Nodes) -> None:
    a = await nodes.start("a")
    assert not await a.deliver("b", NodeCommandKind.ENDED, KEY)


async def test_released_call_comes_with_its_last_turns(nodes: Nodes) -> None:
    """The other node writes the last turns before it releases the call."""
    a, b = await nodes.start("a"), await nodes.start("b")
    await a.open(ringing(a))
    live = await a.redeem(KEY, "secret", "AC1")
    assert live is not None

    async def release() -> None:
        message = await a.next_command()
        assert message is not None and message.kind is NodeCommandKind.RELEASE
        a.append(SESSION.id, b'{"caller": "One more thing."}')
        a.update(replace(live, state=CallState.RECONNECTING, token=""))

    record = await b.find(KEY)
    assert record is not None
    await asyncio.gather(b.release(record), release())
    adopted = await b.adopt(KEY, "a")
    assert adopted is not None and adopted.state is CallState.RECONNECTING
    assert await b.journal(SESSION.id) == [{"caller": "One more thing."}]


# A node dies


async def test_calls_of_a_node_that_left_are_orphans(nodes: Nodes) -> None:
    a, b = await nodes.start("a"), await nodes.start("b")
    await a.heartbeat({})
    await a.open(ringing(a))
    assert await b.orphans() == []
    await a.leave()
    assert await b.orphans() == [(KEY, "a")]
    assert await b.adopt(KEY, "a") == ringing(a)
    assert await b.orphans() == []
    assert [node["node"] for node in await b.nodes()] == []


async def test_node_without_heartbeat_is_dead(tmp_path: Path) -> None:
    async with store_server("redis", tmp_path) as server:
        nodes = Nodes(server)
        a, b = await nodes.start("a"), await nodes.start("b")
        await a.heartbeat({"calls": 1})
        await a.open(ringing(a))
        assert await b.alive("a")
        assert await until_it(b.orphans) == [(KEY, "a")]
        assert not await b.alive("a")
        nodes.stop()


@pytest.mark.parametrize("requests", range(5))
async def test_interrupted_adoption_is_finished(nodes: Nodes, requests: int) -> None:
    """Wherever the store fails in between, this node or another finds the call again."""
    a, c = await nodes.start("a"), await nodes.start("c")
    b = nodes.on(Unsteady(await nodes.server.open(), requests), "b")  # type: ignore[arg-type]
    await a.heartbeat({})
    await a.open(ringing(a))
    await a.leave()
    with pytest.raises(SharedStoreUnavailable):
        await b.adopt(KEY, "a")
    await b.heartbeat({})
    adopted = [await node.adopt(key, former) for node in (b, c) for key, former in await node.orphans()]
    assert [record.session for record in adopted if record] == [HEADER]
    assert await owner(c) == ("b", CallState.RINGING)


async def test_heartbeat_carries_counts(nodes: Nodes) -> None:
    a, b = await nodes.start("a"), await nodes.start("b")
    await b.heartbeat({"calls": 2, "endings": 0})
    await a.heartbeat({"calls": 0, "endings": 1})
    await a.heartbeat({"calls": 1, "endings": 0})
    expected = [{"node": "a", "calls": 1, "endings": 0}, {"node": "b", "calls": 2, "endings": 0}]
    assert await a.nodes() == await b.nodes() == expected


# A node that was wrongly taken for dead


async def test_taken_call_is_not_taken_back(nodes: Nodes) -> None:
    """What the former owner still writes changes neither the call nor its turns."""
    a, b = await nodes.start("a"), await nodes.start("b")
    await a.open(ringing(a))
    await b.adopt(KEY, "a")
    b.append(SESSION.id, b'{"caller": "Hello."}')
    await b.flushed()
    a.update(ringing(a, state=CallState.RECONNECTING, token=""))
    a.checkpoint(KEY, SESSION.id, [])
    await a.publish_token(ringing(a, token="other"))
    a.ended(KEY)
    a.forget(KEY, SESSION.id)
    await a.flushed()
    assert await owner(b) == ("b", CallState.RINGING)
    assert await b.journal(SESSION.id) == [{"caller": "Hello."}]
    assert await b.redeem(KEY, "other", "AC1") is None


async def test_queued_turns_of_a_taken_call_are_not_written(nodes: Nodes) -> None:
    """A node that was cut off writes its queue; the journal of the new owner stays as it is."""
    a, b = await nodes.start("a"), await nodes.start("b")
    await a.open(ringing(a))
    assert await a.redeem(KEY, "secret", "AC1")
    a.append(SESSION.id, b'{"caller": "One."}')
    await a.flushed()
    assert await b.adopt(KEY, "a")
    await a.next_command()
    await a.republish()
    a.append(SESSION.id, b'{"caller": "Two."}')
    await a.flushed()
    assert await b.journal(SESSION.id) == [{"caller": "One."}]
    message = await a.next_command()
    assert message is not None and (message.kind, message.key) == (NodeCommandKind.TAKEN, KEY)


# A store that loses data


async def lose(nodes: Nodes, *names: str) -> None:
    shared_store = await nodes.server.open()
    for name in ("call:twilio:CA1", f"journal:{SESSION.id}", "alive:a", *names):
        await shared_store.delete(name)
    await shared_store.leave("calls:a", "twilio:CA1")
    await shared_store.leave("nodes", "a")


async def test_lost_node_republishes_its_calls(nodes: Nodes) -> None:
    a, b = await nodes.start("a"), await nodes.start("b")
    assert not await a.heartbeat({})
    await a.open(ringing(a))
    await a.redeem(KEY, "secret", "AC1")
    await lose(nodes)
    assert await a.heartbeat({})
    await a.republish()
    assert await owner(b) == ("a", CallState.ACTIVE)
    await a.leave()
    assert await b.orphans() == [(KEY, "a")]


async def test_lost_node_registers_with_its_next_write(nodes: Nodes) -> None:
    """Else its calls would never be taken over."""
    a, b = await nodes.start("a"), await nodes.start("b")
    await a.heartbeat({})
    await a.open(ringing(a))
    await lose(nodes)
    a.checkpoint(KEY, SESSION.id, [{"caller": "Hello."}])
    await a.flushed()
    assert await b.alive("a")
    await a.leave()
    assert await b.orphans() == [(KEY, "a")]


async def test_records_are_republished_before_the_queue(nodes: Nodes) -> None:
    a, b = await nodes.start("a"), await nodes.start("b")
    await a.open(ringing(a))
    await a.redeem(KEY, "secret", "AC1")
    await nodes.server.stop()
    a.append(SESSION.id, b'{"caller": "Two."}')
    await not_written(a)
    await nodes.server.restart()
    assert await b.adopt(KEY, "a")
    await a.flushed()
    assert await b.journal(SESSION.id) == []


# Queued writes


async def test_queue_keeps_order_through_an_outage(nodes: Nodes) -> None:
    a, b = await nodes.start("a"), await nodes.start("b")
    await a.open(ringing(a))
    for number in range(6):
        if number == 3:
            await a.flushed()
            await nodes.server.stop()
        a.append(SESSION.id, b"%d" % number)
    a.ended(KEY)
    await not_written(a)
    await nodes.server.restart()
    await a.flushed()
    assert await b.journal(SESSION.id) == [0, 1, 2, 3, 4, 5]
    assert await owner(b) == ("a", CallState.ENDED)


@pytest.mark.parametrize("outage", [False, True])
async def test_forgotten_call_leaves_a_tombstone_without_content(nodes: Nodes, outage: bool) -> None:
    a, b = await nodes.start("a"), await nodes.start("b")
    await a.open(ringing(a))
    a.append(SESSION.id, b'{"caller": "Hello."}')
    a.ended(KEY)
    await a.flushed()
    if outage:
        await nodes.server.stop()
    a.forget(KEY, SESSION.id)
    if outage:
        await not_written(a)
        await nodes.server.restart()
    await a.flushed()
    tombstone = CallRecord(KEY, "a", CallState.ENDED)
    assert await b.find(KEY) == tombstone
    assert await b.journal(SESSION.id) == []
    assert await b.open(ringing(b)) == tombstone


async def test_checkpoint_restores_what_the_store_lost(nodes: Nodes) -> None:
    a, b = await nodes.start("a"), await nodes.start("b")
    shared_store = await nodes.server.open()
    await a.heartbeat({})
    await a.open(ringing(a))
    for name in ("call:twilio:CA1", f"journal:{SESSION.id}"):
        await shared_store.delete(name)
    await shared_store.leave("calls:a", "twilio:CA1")
    a.checkpoint(KEY, SESSION.id, [{"caller": "Hello."}])
    await a.flushed()
    assert await b.find(KEY) == ringing(a)
    assert await b.journal(SESSION.id) == [{"caller": "Hello."}]
    await a.leave()
    assert await b.orphans() == [(KEY, "a")]


async def test_call_begun_without_the_store_is_published_later(nodes: Nodes) -> None:
    a, b = await nodes.start("a"), await nodes.start("b")
    a.update(ringing(a, state=CallState.RECONNECTING, token=""))
    await a.publish_token(ringing(a, attempt=1))
    assert await b.redeem(KEY, "secret", "AC1") == ringing(a, attempt=1)


async def test_call_answered_while_the_store_was_slow_is_active(nodes: Nodes) -> None:
    """Other nodes see its owner, and its token opens nothing any more."""
    a, b = await nodes.start("a"), await nodes.start("b")
    await a.open(ringing(a))
    a.media_attached(KEY)
    await a.flushed()
    assert [record.key for record in await b.active_elsewhere()] == [KEY]
    assert await b.redeem(KEY, "secret", "AC1") is None


async def test_call_answered_by_another_node_stays_theirs(nodes: Nodes) -> None:
    a, b = await nodes.start("a"), await nodes.start("b")
    await a.open(ringing(a))
    await b.redeem(KEY, "secret", "AC1")
    a.media_attached(KEY)
    await a.flushed()
    assert await owner(a) == ("b", CallState.ACTIVE)


async def not_written(node: CallDirectory) -> None:
    """The queue is not written within a moment."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(node.flushed(), 0.1)
        pytest.fail("it was written")


async def test_fields_and_commands_of_newer_versions_are_ignored(nodes: Nodes) -> None:
    """During a rolling upgrade."""
    node, shared_store = await nodes.start("node"), await nodes.server.open()
    stored = orjson.dumps({**orjson.loads(ringing(node).as_bytes()), "mood": "good"})
    await shared_store.put("call:twilio:CA1", stored, 60)
    assert await node.find(KEY) == ringing(node)
    command = {"kind": "sing", "key": KEY, "text": "", "id": "1"}
    await shared_store.append("inbox:node", [orjson.dumps(command)], 60)
    assert await node.next_command() is None
    assert await shared_store.items("inbox:node") == []


# Limits over all nodes


async def test_room_for_so_many_calls_at_all_nodes(nodes: Nodes) -> None:
    many = await nodes.many()
    groups = {"all": 6, "+12025550143": 2}
    full = await asyncio.gather(*(node.claim(("twilio", node.node), groups) for node in many))
    assert (full.count(None), full.count("+12025550143")) == (2, 4)
    assert await many[0].claim(("twilio", "other-1"), {"all": 4}) is None  # what was refused is not counted
    assert await many[0].claim(("twilio", "other-2"), {"all": 4}) is None
    assert await many[1].claim(("twilio", "other-3"), {"all": 4}) == "all"
    assert await many[1].claim(("twilio", "other-3"), {"all": 0}) is None


async def test_ended_call_makes_room(nodes: Nodes) -> None:
    first, second = await nodes.start("a"), await nodes.start("b")
    groups = {"all": 1, "+12025550143": 1}
    assert await first.claim(KEY, groups) is None
    assert await second.claim(KEY, groups) is None  # the same call: its webhook came twice
    await first.open(ringing(first, number="+12025550143"))
    assert await second.claim(("twilio", "CA2"), groups) == "all"
    first.ended(KEY)
    await first.flushed()
    assert await second.claim(("twilio", "CA2"), groups) is None


async def test_ringing_phone_counts_at_all_nodes(nodes: Nodes) -> None:
    first, second = await nodes.start("a"), await nodes.start("b")
    groups = {"all": 1, "+12025550143": 1}
    assert await first.claim_dial("order-1", groups, 60) is None
    assert await second.claim(KEY, groups) == "all"
    assert await second.claim_dial("order-2", groups, 60) == "all"
    await second.release_dial("order-1", groups)  # its end was reported there
    assert await second.claim(KEY, groups) is None


async def test_ended_calls_of_a_dead_node_are_not_counted_for_ever(nodes: Nodes) -> None:
    """It died before it could withdraw its claim."""
    first, second = await nodes.start("a"), await nodes.start("b")
    await first.open(ringing(first, state=CallState.ENDED))
    for key in (KEY, ("twilio", "not-announced-yet")):
        assert await first.claim(key, {"all": 2}) is None
    assert await second.claim(("twilio", "CA2"), {"all": 2}) is None
    assert await second.claim(("twilio", "CA3"), {"all": 2}) == "all"


async def test_call_that_was_never_announced_is_not_counted_for_ever(nodes: Nodes) -> None:
    timeouts = ClusterTimeouts(takeover_check=0.05)
    node = CallDirectory(await nodes.server.open(), timeouts, node="a")
    assert await node.claim(KEY, {"all": 1}) is None
    assert await node.claim(("twilio", "CA2"), {"all": 1}) == "all"
    await asyncio.sleep(0.1)
    assert await node.claim(("twilio", "CA2"), {"all": 1}) is None
