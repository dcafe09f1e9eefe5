"""One node among several, and a node alone: on an in-memory store and virtual time."""

import asyncio

import orjson
import pytest

from gateway.calls.state import CallState
from gateway.cluster.directory import CallDirectory, CallRecord, ClusterTimeouts, NodeCommandKind
from gateway.cluster.node import ClusterNode, Reclaim, SingleNode
from gateway.history.call_log import rows_of_turns
from gateway.session import Speaker, Turn, VoiceSession
from gateway.telephony.codec import StreamStarted
from tests.fakes.shared_store import FakeSharedStore

pytestmark = pytest.mark.virtual_time

KEY = ("twilio", "CA1")
SESSION = VoiceSession(agent="maya", caller="+12025550143", carrier="twilio")
TIMEOUTS = ClusterTimeouts()
STARTED = StreamStarted("CA1", "MZ1", token="secret")


class FakeCalls:
    """A call manager that records what the cluster asks of it."""

    def __init__(self):
        self.log = []
        self.taken_over = []
        self.media = set()
        self.alive = False
        self.releases = None

    def carrier_ended(self, key):
        self.log.append("carrier ended")

    def stream_failed(self, key, token=""):
        self.log.append(f"stream failed {token}".strip())

    def transfer_finished(self, key, *, answered):
        self.log.append("transferred" if answered else "transfer failed")

    def answered_by(self, key, report):
        self.log.append(f"answered by {report}")

    def operator_ends(self, key):
        self.log.append("operator ends")

    def operator_says(self, key, words):
        self.log.append(f"operator says {words}")

    def has_media(self, key):
        return key in self.media

    async def release(self, key):
        self.log.append("release")
        if self.releases is not None:
            self.releases()

    def drop(self, key):
        self.log.append("drop")

    def take_over(self, record, session):
        self.taken_over.append((record, session))

    async def restore_turns(self, session):
        self.log.append("restore turns")

    async def may_be_alive(self, record):
        return self.alive

    def checkpoints(self):
        return [(key, SESSION.id, [{"caller": "Hello."}]) for key in self.media]


class Cluster:
    """Nodes on one store."""

    def __init__(self):
        self.store = FakeSharedStore()
        self._tasks = {}

    def start(self, name, *, shares_disk=False):
        node = ClusterNode(
            CallDirectory(self.store, TIMEOUTS, node=name), TIMEOUTS, sync_seconds=30, shares_disk=shares_disk
        )
        calls = FakeCalls()
        self._tasks[name] = [
            asyncio.create_task(node.run()),
            asyncio.create_task(node.listen(calls, lambda: {"calls": len(calls.media)})),
        ]
        return node, calls

    def kill(self, name):
        for task in self._tasks.pop(name):
            task.cancel()

    def stop(self):
        for name in list(self._tasks):
            self.kill(name)


@pytest.fixture
async def cluster():
    cluster = Cluster()
    yield cluster
    cluster.stop()


def record(node, state=CallState.RINGING, **fields):
    fields = {"token": "secret" if state is CallState.RINGING else ""} | fields
    return CallRecord(KEY, node, state, session={**SESSION.as_json(), "turns": []}, **fields)


async def active(node, calls):
    """A call that has media at this node."""
    await node.announce(record(node.node))
    await node.redeem(KEY, STARTED, is_local=True)
    calls.media.add(KEY)
    for row in rows_of_turns([Turn(Speaker.CALLER, "Hello.", SESSION.started_at)]):
        node.share_entry(SESSION.id, orjson.dumps(row))
    await node.directory.flushed()


# Membership


async def test_nodes_see_each_other(cluster):
    a, _ = cluster.start("a")
    _, calls = cluster.start("b")
    calls.media.add(KEY)
    await asyncio.sleep(3 * TIMEOUTS.heartbeat)
    assert a.nodes == [{"node": "a", "calls": 0}, {"node": "b", "calls": 1}]


async def test_dead_node_disappears(cluster):
    a, _ = cluster.start("a")
    cluster.start("b")
    await asyncio.sleep(1)
    cluster.kill("b")
    await asyncio.sleep(TIMEOUTS.node_expiry + 2 * TIMEOUTS.heartbeat)
    assert [node["node"] for node in a.nodes] == ["a"]
    assert not await a.is_alive("b")


async def test_nodes_are_unknown_while_the_store_is_away(cluster):
    a, _ = cluster.start("a")
    await asyncio.sleep(1.5)
    cluster.store.is_away = True
    await asyncio.sleep(2)
    assert (list(a.nodes), a.is_away) == ([], True)
    cluster.store.is_away = False
    await asyncio.sleep(2)
    assert (len(a.nodes), a.is_away) == (1, False)


async def test_no_node_counts_as_dead_right_after_an_outage(cluster):
    a, _ = cluster.start("a")
    await asyncio.sleep(1.5)
    cluster.store.is_away = True
    await asyncio.sleep(2)
    cluster.store.is_away = False
    assert await a.is_alive("b")
    await asyncio.sleep(TIMEOUTS.outage_grace + 1)
    assert not await a.is_alive("b")


# Tokens


async def test_announced_call_is_in_force(cluster):
    a, _ = cluster.start("a")
    b, _ = cluster.start("b")
    assert await a.announce(record("a")) == record("a")
    assert await b.announce(record("b")) == record("a")


async def test_call_is_not_announced_without_the_store(cluster):
    a, _ = cluster.start("a")
    cluster.store.is_away = True
    assert await a.announce(record("a")) is None
    assert not await a.publish_token(record("a", CallState.RECONNECTING, token="new"))


async def test_other_node_redeems_the_token(cluster):
    a, calls = cluster.start("a")
    b, _ = cluster.start("b")
    await a.announce(record("a"))
    assert await b.redeem(KEY, STARTED, is_local=False) == record("a")
    await asyncio.sleep(2)
    assert calls.log == ["drop"]
    assert not await a.is_ours(KEY)


# Commands


@pytest.mark.parametrize(
    ("kind", "done"),
    [
        (NodeCommandKind.ENDED, "carrier ended"),
        (NodeCommandKind.STREAM_FAILED, "stream failed t"),
        (NodeCommandKind.TRANSFERRED, "transferred"),
        (NodeCommandKind.TRANSFER_FAILED, "transfer failed"),
        (NodeCommandKind.ANSWERED_BY, "answered by machine"),
    ],
)
async def test_report_reaches_the_owner(cluster, kind, done):
    a, calls = cluster.start("a")
    b, _ = cluster.start("b")
    await active(a, calls)
    assert await b.forward(kind, KEY, "machine" if kind is NodeCommandKind.ANSWERED_BY else "t")
    await asyncio.sleep(0.1)
    assert calls.log == [done]


async def test_report_about_an_unknown_call_is_not_forwarded(cluster):
    a, _ = cluster.start("a")
    assert not await a.forward(NodeCommandKind.ENDED, KEY)


async def test_report_about_a_dead_nodes_call_takes_it_over(cluster):
    a, calls = cluster.start("a")
    await active(a, calls)
    cluster.kill("a")
    b, theirs = cluster.start("b")
    await asyncio.sleep(0.01)
    assert await b.forward(NodeCommandKind.ENDED, KEY)
    [(taken, session)] = theirs.taken_over
    assert (taken.node, [turn.text for turn in session.turns], session.taken_over) == ("a", ["Hello."], True)
    assert theirs.log == ["carrier ended"]


async def test_operator_reaches_calls_of_other_nodes(cluster):
    a, calls = cluster.start("a")
    b, _ = cluster.start("b")
    await active(a, calls)
    assert [session.id for session in await b.sessions_elsewhere()] == [SESSION.id]
    assert await b.command(NodeCommandKind.SAY, SESSION.id, "Hold on.")
    assert await b.command(NodeCommandKind.END, SESSION.id)
    await asyncio.sleep(0.1)
    assert calls.log == ["operator says Hold on.", "operator ends"]
    assert not await b.command(NodeCommandKind.END, "another session")


# Takeover


async def test_released_call_is_fetched_with_its_turns(cluster):
    a, calls = cluster.start("a")
    b, _ = cluster.start("b")
    await active(a, calls)
    calls.releases = lambda: a.stream_lost(record("a", CallState.RECONNECTING), None)
    fetched = await b.fetch(KEY)
    assert fetched is not None
    _, session = fetched
    assert ([turn.text for turn in session.turns], session.taken_over) == (["Hello."], False)


async def test_call_of_a_dead_node_is_taken_over(cluster):
    a, calls = cluster.start("a")
    await active(a, calls)
    b, theirs = cluster.start("b")
    cluster.kill("a")
    await asyncio.sleep(TIMEOUTS.node_expiry + 3 * TIMEOUTS.heartbeat)
    assert [taken.key for taken, _ in theirs.taken_over] == [KEY]
    assert await b.is_ours(KEY)


async def test_call_that_may_be_alive_is_left_with_its_silent_node(cluster):
    a, calls = cluster.start("a")
    await active(a, calls)
    _, theirs = cluster.start("b")
    theirs.alive = True
    cluster.kill("a")
    await asyncio.sleep(30)
    assert theirs.taken_over == []


async def test_worker_restores_turns_from_the_shared_disk(cluster):
    a, calls = cluster.start("a", shares_disk=True)
    await active(a, calls)
    _, theirs = cluster.start("b", shares_disk=True)
    cluster.kill("a")
    await asyncio.sleep(TIMEOUTS.node_expiry + 3 * TIMEOUTS.heartbeat)
    assert theirs.log == ["restore turns"]


async def test_cut_off_node_takes_back_a_call_with_media(cluster):
    a, calls = cluster.start("a")
    await active(a, calls)
    b = CallDirectory(cluster.store, TIMEOUTS, node="b")
    await b.adopt(KEY, "a", state=CallState.RECONNECTING)
    await asyncio.sleep(2)
    assert calls.log == []
    assert await a.is_ours(KEY)


async def test_store_that_lost_everything_is_filled_again(cluster):
    a, calls = cluster.start("a")
    await active(a, calls)
    await asyncio.sleep(1)
    cluster.store.lose_everything()
    await asyncio.sleep(2 * TIMEOUTS.heartbeat)
    found = await a.directory.find(KEY)
    assert found is not None and (found.node, found.state) == ("a", CallState.ACTIVE)
    assert await a.directory.journal(SESSION.id) == [{"caller": "Hello."}]


async def test_ended_call_is_waited_for(cluster):
    a, calls = cluster.start("a")
    await active(a, calls)
    waiting = asyncio.create_task(a.wait_until_ended(KEY))
    await asyncio.sleep(10)
    assert not waiting.done()
    a.call_ended(KEY)
    await asyncio.sleep(TIMEOUTS.end_poll + 1)
    assert waiting.done()


# After a start


async def test_journaled_call_of_a_dead_process_is_resumed_once(cluster):
    a, _ = cluster.start("a", shares_disk=True)
    b, _ = cluster.start("b", shares_disk=True)
    assert await a.reclaim(KEY, "an earlier process") is Reclaim.RESUME
    assert await b.reclaim(KEY, "an earlier process") is Reclaim.LEAVE


async def test_journaled_call_of_another_machine_is_contributed_to(cluster):
    a, calls = cluster.start("a")
    b, _ = cluster.start("b")
    await active(a, calls)
    assert await b.reclaim(KEY, "an earlier process of b") is Reclaim.CONTRIBUTE


async def test_event_is_new_to_one_node(cluster):
    a, _ = cluster.start("a")
    b, _ = cluster.start("b")
    assert [await a.is_new_event("1"), await b.is_new_event("1")] == [True, False]
    cluster.store.is_away = True
    assert await b.is_new_event("1")


async def test_bearer_is_found_by_every_node(cluster):
    a, _ = cluster.start("a")
    b, _ = cluster.start("b")
    a.share_bearer("digest", "maya", "+12025550143", 3)
    await a.directory.flushed()
    assert await b.find_bearer("digest") == ("maya", "+12025550143", 3)
    a.withdraw_bearer("digest")
    await a.directory.flushed()
    assert await b.find_bearer("digest") is None
    cluster.store.is_away = True
    assert await b.find_bearer("digest") is None


async def test_closed_node_leaves_at_once(cluster):
    a, calls = cluster.start("a")
    b, _ = cluster.start("b")
    await active(a, calls)
    await a.close()
    assert not await b.is_alive("a")


# Alone


async def test_single_node_owns_every_call():
    node = SingleNode()
    assert await node.is_ours(KEY) and await node.is_ours_now(KEY)
    assert await node.reclaim(KEY, "an earlier process") is Reclaim.RESUME
    assert await node.is_new_event("1")
    assert (node.node, node.nodes, node.takes_over_calls) == ("", (), False)


async def test_single_node_shares_nothing():
    node = SingleNode()
    assert await node.announce(record("")) is None
    assert not await node.publish_token(record(""))
    assert await node.redeem(KEY, STARTED, is_local=False) is None
    assert await node.fetch(KEY) is None
    assert not await node.forward(NodeCommandKind.ENDED, KEY)
    assert await node.sessions_elsewhere() == []
    assert not await node.command(NodeCommandKind.END, SESSION.id)
    assert await node.find_bearer("digest") is None
    assert not await node.is_alive("b")
