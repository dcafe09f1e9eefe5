"""What nodes know of each other's calls, on both boards: one owner for each call, whatever happens at once."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.cluster.directory import CallDirectory, CallRecord, CallState, NodeCommandKind
from gateway.cluster.store import SharedStore
from gateway.errors import SharedStoreUnavailable
from gateway.session import VoiceSession
from tests.calls.grounds import Ground, prepared
from tests.stage import until_it

KEY = ("twilio", "CA1")
SESSION = VoiceSession(agent="maya", caller="+12025550143", carrier="twilio")
HEADER = {**SESSION.as_json(), "turns": []}


class Nodes:
    """Gateways on one board, as far as it concerns them."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, name: str) -> CallDirectory:
        return self.on(await self.ground.open(), name)

    def on(self, shared_store: SharedStore, name: str) -> CallDirectory:
        directory = CallDirectory(shared_store, token_seconds=30, node=name)
        self._tasks.append(asyncio.create_task(directory.run()))
        return directory

    async def many(self) -> list[CallDirectory]:
        return [await self.start(f"node-{number}") for number in range(6)]

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()


@pytest.fixture(params=["file", "redis"])
async def nodes(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Nodes]:
    async with prepared(request.param, tmp_path) as ground:
        nodes = Nodes(ground)
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
    """A board that goes away after so many requests, once; the request that it fails was not carried out."""

    def __init__(self, shared_store: SharedStore, requests: int) -> None:
        self._shared_store = shared_store
        self._requests = requests

    def __getattr__(self, name: str) -> Any:
        self._requests -= 1
        if self._requests == -1:
            raise SharedStoreUnavailable("it went away")
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
    assert await owner(many[0]) == (winner.node, CallState.LIVE)
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
    message = await dead.next_message()
    assert message is not None and (message.word, message.key) == (NodeCommandKind.TAKEN, KEY)


async def test_event_is_new_to_one_of_many(nodes: Nodes) -> None:
    answers = await asyncio.gather(*(node.is_new_event("evt-1") for node in await nodes.many()))
    assert answers.count(True) == 1


# Word for another node


async def test_message_reaches_a_living_node(nodes: Nodes) -> None:
    a, b = await nodes.start("a"), await nodes.start("b")
    reached, message = await asyncio.gather(a.reached("b", NodeCommandKind.ENDED, KEY), b.next_message())
    assert reached and message is not None
    assert (message.word, message.key) == (NodeCommandKind.ENDED, KEY)


async def test_message_that_nobody_takes_shows_the_dead(nodes: Nodes) -> None:
    a = await nodes.start("a")
    assert not await a.reached("b", NodeCommandKind.ENDED, KEY)


async def test_released_call_comes_with_its_last_words(nodes: Nodes) -> None:
    """The other node writes what was said before it lets go."""
    a, b = await nodes.start("a"), await nodes.start("b")
    await a.open(ringing(a))
    live = await a.redeem(KEY, "secret", "AC1")
    assert live is not None

    async def let_go() -> None:
        message = await a.next_message()
        assert message is not None and message.word is NodeCommandKind.RELEASE
        a.said(SESSION.id, b'{"caller": "One more thing."}')
        a.parked(replace(live, state=CallState.PARKED))

    record = await b.find(KEY)
    assert record is not None
    await asyncio.gather(b.release(record), let_go())
    adopted = await b.adopt(KEY, "a")
    assert adopted is not None and adopted.state is CallState.PARKED
    assert await b.turns(SESSION.id) == [{"caller": "One more thing."}]


# A node dies


async def test_calls_of_a_node_that_left_are_orphans(nodes: Nodes) -> None:
    a, b = await nodes.start("a"), await nodes.start("b")
    await a.beat({})
    await a.open(ringing(a))
    assert await b.orphans() == []
    await a.leave()
    assert await b.orphans() == [(KEY, "a")]
    assert await b.adopt(KEY, "a") == ringing(a)
    assert await b.orphans() == []
    assert [node["node"] for node in await b.nodes()] == []


async def test_node_without_heartbeat_is_dead(tmp_path: Path) -> None:
    async def outlived(kind: str) -> None:
        async with prepared(kind, tmp_path) as ground:
            nodes = Nodes(ground)
            a, b = await nodes.start("a"), await nodes.start("b")
            await a.beat({"calls": 1})
            await a.open(ringing(a))
            assert await b.alive("a")
            assert await until_it(b.orphans) == [(KEY, "a")]
            assert not await b.alive("a")
            nodes.stop()

    await asyncio.gather(outlived("file"), outlived("redis"))


@pytest.mark.parametrize("requests", range(5))
async def test_interrupted_adoption_is_finished(nodes: Nodes, requests: int) -> None:
    """Wherever the board goes away in between, the call is found again, by this node or another."""
    a, c = await nodes.start("a"), await nodes.start("c")
    b = nodes.on(Unsteady(await nodes.ground.open(), requests), "b")  # type: ignore[arg-type]
    await a.beat({})
    await a.open(ringing(a))
    await a.leave()
    with pytest.raises(SharedStoreUnavailable):
        await b.adopt(KEY, "a")
    await b.beat({})
    adopted = [await node.adopt(key, former) for node in (b, c) for key, former in await node.orphans()]
    assert [record.session for record in adopted if record] == [HEADER]
    assert await owner(c) == ("b", CallState.RINGING)


async def test_beat_tells_figures(nodes: Nodes) -> None:
    a, b = await nodes.start("a"), await nodes.start("b")
    await b.beat({"calls": 2, "endings": 0})
    await a.beat({"calls": 0, "endings": 1})
    await a.beat({"calls": 1, "endings": 0})
    expected = [{"node": "a", "calls": 1, "endings": 0}, {"node": "b", "calls": 2, "endings": 0}]
    assert await a.nodes() == await b.nodes() == expected


# A node that was taken for dead


async def test_taken_call_is_not_taken_back(nodes: Nodes) -> None:
    """What the former node still writes changes nothing: neither the call nor what was said."""
    a, b = await nodes.start("a"), await nodes.start("b")
    await a.open(ringing(a))
    await b.adopt(KEY, "a")
    b.said(SESSION.id, b'{"caller": "Hello."}')
    await b.written()
    a.parked(ringing(a, state=CallState.PARKED))
    a.checkpoint(KEY, SESSION.id, [])
    await a.ring_again(ringing(a, token="other"))
    a.over(KEY)
    a.settled(KEY, SESSION.id)
    await a.written()
    assert await owner(b) == ("b", CallState.RINGING)
    assert await b.turns(SESSION.id) == [{"caller": "Hello."}]
    assert await b.redeem(KEY, "other", "AC1") is None


async def test_words_for_a_taken_call_are_not_the_boards(nodes: Nodes) -> None:
    """A node that was out of reach writes what it has queued: what others know of the call stays as they wrote it."""
    a, b = await nodes.start("a"), await nodes.start("b")
    await a.open(ringing(a))
    assert await a.redeem(KEY, "secret", "AC1")
    a.said(SESSION.id, b'{"caller": "One."}')
    await a.written()
    assert await b.adopt(KEY, "a")
    await a.next_message()
    await a.mend()
    a.said(SESSION.id, b'{"caller": "Two."}')
    await a.written()
    assert await b.turns(SESSION.id) == [{"caller": "One."}]
    message = await a.next_message()
    assert message is not None and (message.word, message.key) == (NodeCommandKind.TAKEN, KEY)


# A board that forgets


async def forget(nodes: Nodes, *names: str) -> None:
    shared_store = await nodes.ground.open()
    for name in ("call:twilio:CA1", f"journal:{SESSION.id}", "alive:a", *names):
        await shared_store.delete(name)
    await shared_store.leave("calls:a", "twilio:CA1")
    await shared_store.leave("nodes", "a")


async def test_forgotten_node_makes_its_calls_known_again(nodes: Nodes) -> None:
    a, b = await nodes.start("a"), await nodes.start("b")
    assert not await a.beat({})
    await a.open(ringing(a))
    await a.redeem(KEY, "secret", "AC1")
    await forget(nodes)
    assert await a.beat({})
    await a.mend()
    assert await owner(b) == ("a", CallState.LIVE)
    await a.leave()
    assert await b.orphans() == [(KEY, "a")]


async def test_forgotten_node_shows_life_with_its_next_word(nodes: Nodes) -> None:
    """Nobody looks for the calls of a node that is not known to be one."""
    a, b = await nodes.start("a"), await nodes.start("b")
    await a.beat({})
    await a.open(ringing(a))
    await forget(nodes)
    a.checkpoint(KEY, SESSION.id, [{"caller": "Hello."}])
    await a.written()
    assert await b.alive("a")
    await a.leave()
    assert await b.orphans() == [(KEY, "a")]


async def test_outage_is_mended_before_anything_is_written(nodes: Nodes) -> None:
    a, b = await nodes.start("a"), await nodes.start("b")
    await a.open(ringing(a))
    await a.redeem(KEY, "secret", "AC1")
    await nodes.ground.ruin()
    a.said(SESSION.id, b'{"caller": "Two."}')
    await not_written(a)
    await nodes.ground.mend()
    assert await b.adopt(KEY, "a")
    await a.written()
    assert await b.turns(SESSION.id) == []


# Written soon


async def test_queue_keeps_order_through_an_outage(nodes: Nodes) -> None:
    a, b = await nodes.start("a"), await nodes.start("b")
    await a.open(ringing(a))
    for number in range(6):
        if number == 3:
            await a.written()
            await nodes.ground.ruin()
        a.said(SESSION.id, b"%d" % number)
    a.over(KEY)
    await not_written(a)
    await nodes.ground.mend()
    await a.written()
    assert await b.turns(SESSION.id) == [0, 1, 2, 3, 4, 5]
    assert await owner(b) == ("a", CallState.OVER)


@pytest.mark.parametrize("outage", [False, True])
async def test_settled_call_leaves_a_tombstone_without_content(nodes: Nodes, outage: bool) -> None:
    a, b = await nodes.start("a"), await nodes.start("b")
    await a.open(ringing(a))
    a.said(SESSION.id, b'{"caller": "Hello."}')
    a.over(KEY)
    await a.written()
    if outage:
        await nodes.ground.ruin()
    a.settled(KEY, SESSION.id)
    if outage:
        await not_written(a)
        await nodes.ground.mend()
    await a.written()
    tombstone = CallRecord(KEY, "a", CallState.OVER)
    assert await b.find(KEY) == tombstone
    assert await b.turns(SESSION.id) == []
    assert await b.open(ringing(b)) == tombstone


async def test_checkpoint_mends_what_the_board_lost(nodes: Nodes) -> None:
    a, b = await nodes.start("a"), await nodes.start("b")
    shared_store = await nodes.ground.open()
    await a.beat({})
    await a.open(ringing(a))
    for name in ("call:twilio:CA1", f"journal:{SESSION.id}"):
        await shared_store.delete(name)
    await shared_store.leave("calls:a", "twilio:CA1")
    a.checkpoint(KEY, SESSION.id, [{"caller": "Hello."}])
    await a.written()
    assert await b.find(KEY) == ringing(a)
    assert await b.turns(SESSION.id) == [{"caller": "Hello."}]
    await a.leave()
    assert await b.orphans() == [(KEY, "a")]


async def test_call_begun_without_a_board_becomes_known(nodes: Nodes) -> None:
    a, b = await nodes.start("a"), await nodes.start("b")
    a.parked(ringing(a, state=CallState.PARKED))
    await a.ring_again(ringing(a, attempt=1))
    assert await b.redeem(KEY, "secret", "AC1") == ringing(a, attempt=1)


async def test_call_answered_while_the_board_was_slow_is_live_there(nodes: Nodes) -> None:
    """Others know where it is, and its token opens nothing any more."""
    a, b = await nodes.start("a"), await nodes.start("b")
    await a.open(ringing(a))
    a.answered(KEY)
    await a.written()
    assert [record.key for record in await b.live_elsewhere()] == [KEY]
    assert await b.redeem(KEY, "secret", "AC1") is None


async def test_call_that_another_node_answered_stays_theirs(nodes: Nodes) -> None:
    a, b = await nodes.start("a"), await nodes.start("b")
    await a.open(ringing(a))
    await b.redeem(KEY, "secret", "AC1")
    a.answered(KEY)
    await a.written()
    assert await owner(a) == ("b", CallState.LIVE)


async def not_written(node: CallDirectory) -> None:
    """The queue was tried, and waits."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(node.written(), 0.1)
        pytest.fail("it was written")


async def test_newer_nodes_may_say_more(nodes: Nodes) -> None:
    """While all are being replaced, one by one: a field or a word that this version does not know ends nothing."""
    node, shared_store = await nodes.start("node"), await nodes.ground.open()
    stored = orjson.dumps({**orjson.loads(ringing(node).as_bytes()), "mood": "good"})
    await shared_store.put("call:twilio:CA1", stored, 60)
    assert await node.find(KEY) == ringing(node)
    word = {"word": "sing", "key": KEY, "text": "", "id": "1"}
    await shared_store.append("inbox:node", [orjson.dumps(word)], 60)
    assert await node.next_message() is None
    assert await shared_store.items("inbox:node") == []
