"""What is decided before a hosted call. tests/web/test_elevenlabs.py has whole calls."""

import asyncio
from dataclasses import fields, replace
from datetime import UTC, datetime
from types import SimpleNamespace

import httpx
import pytest

from gateway.agents import AgentDirectory
from gateway.calls.call_factory import NoMemoryServices
from gateway.calls.hosted_calls import HostedCalls, HostedTimeouts
from gateway.errors import SharedStoreUnavailable, StoreUnavailable
from gateway.finalization.steps import FinalizationSteps
from gateway.finalization.webhooks import WebhookOutbox, WebhookTarget
from gateway.memory.loader import MemoryLoader
from gateway.session import EndReason, Speaker, TrustLevel, Turn
from gateway.settings import Secret
from gateway.telephony.hosted import HostedConversation
from gateway.telephony.phone_numbers import AllowList, Attestation
from tests.calls.aftermath import aftermath_in
from tests.fakes.finalizer import FakeFinalizer
from tests.fakes.webhook_receiver import SECRET, WebhookReceiver
from tests.memory.test_loader import SlowRecall, past_call
from tests.stage import until

CALLER = "+12025550143"


class Store:
    """An ExpiringStore in memory. `fails` makes it unreachable, `hangs` silent."""

    def __init__(self):
        self.values = {}
        self.fails = self.hangs = False

    async def get(self, name):
        await self._obey()
        return self.values.get(name)

    async def put(self, name, value, seconds):
        await self._obey()
        self.values[name] = value

    async def delete(self, name):
        await self._obey()
        return self.values.pop(name, None) is not None

    async def _obey(self):
        if self.hangs:
            await asyncio.Event().wait()
        if self.fails:
            raise SharedStoreUnavailable("away")


class Finalizer(FakeFinalizer):
    def __init__(self):
        super().__init__()
        self.known, self.failure = set(), None

    async def has(self, session_id):
        if self.failure:
            raise self.failure
        return session_id in self.known


class Remembers(NoMemoryServices):
    remembers = True


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def finalizer():
    return Finalizer()


@pytest.fixture
def calls(tmp_path, store, finalizer):
    return hosted(tmp_path, store, finalizer)


QUICK = HostedTimeouts(store=0.05, token=0.05, stored=0.2)


def hosted(folder, store, finalizer, memory=Remembers, allowed=(CALLER, "*"), timeouts=QUICK):
    (folder / "p.md").write_text("{{memory}}")
    tables = {"maya": {"prompt": "p.md", "elevenlabs_agent": "agent_1"}}
    agents = AgentDirectory(tables, folder)
    token = Secret("admin-token-of-the-tests")
    return HostedCalls(agents, AllowList(frozenset(allowed)), memory(), finalizer, store, token, timeouts)


def reported(**fields):
    turn = Turn(Speaker.CALLER, "Hello.", datetime(2026, 2, 6, tzinfo=UTC))
    given = {
        "id": "conv_1",
        "agent_id": "agent_1",
        "number": CALLER,
        "call_id": "CA1",
        "started_at": turn.at,
        "seconds": 5.0,
        "end_reason": EndReason.CALLER_HUNG_UP,
        "turns": [turn],
        "is_dialled": True,
        "is_call": True,
    }
    return HostedConversation(**given | fields)


async def test_what_is_stored_is_sealed_and_without_memory(calls, store):
    agent = calls.agent("agent_1")
    call = await calls.prepare(agent, "CA1", CALLER, Attestation.FULL)
    await asyncio.sleep(0)
    assert call.token and call.caller == CALLER
    for name, sealed in store.values.items():
        assert CALLER.encode() not in sealed and b"CA1" not in sealed
        assert call.token not in name and call.token.encode() not in sealed
    again = await calls.prepared("CA1")
    assert (again.token, again.caller, again.memory) == (call.token, CALLER, "")


async def test_another_node_gives_the_same_token(tmp_path, store, finalizer):
    one, other = hosted(tmp_path, store, finalizer), hosted(tmp_path, store, finalizer)
    first = await one.prepare(one.agent("agent_1"), "CA1", CALLER)
    await asyncio.sleep(0)
    assert (await other.prepare(other.agent("agent_1"), "CA1", CALLER)).token == first.token


@pytest.mark.parametrize("trouble", ["fails", "hangs"])
async def test_store_that_is_away_costs_nothing(calls, store, trouble):
    setattr(store, trouble, True)
    call = await calls.prepare(calls.agent("agent_1"), "CA1", CALLER)
    assert call.caller == CALLER
    assert await calls.prepared("CA1") is None


@pytest.mark.parametrize(
    ("attestation", "level"),
    [(Attestation.FULL, TrustLevel.EVERYTHING), (Attestation.FAILED, TrustLevel.NONE)],
)
async def test_report_has_the_level_that_was_decided(calls, finalizer, attestation, level):
    await calls.prepare(calls.agent("agent_1"), "CA1", CALLER, attestation)
    await asyncio.sleep(0)
    assert await calls.finish("elevenlabs", reported())
    [session] = finalizer.submitted
    assert (session.id, session.trust, session.engine) == ("voice-session:conv_1", level, "elevenlabs")


@pytest.mark.parametrize(
    ("fields", "level"),
    [
        ({}, TrustLevel.EVERYTHING),  # in ALLOWED_CALLERS by number
        ({"number": "+12025550188"}, TrustLevel.SUMMARIES),
        ({"is_dialled": False}, TrustLevel.SUMMARIES),
    ],
)
async def test_report_alone_proves_what_a_number_proves(calls, finalizer, fields, level):
    assert await calls.finish("elevenlabs", reported(**fields))
    assert finalizer.submitted[0].trust is level


async def test_report_of_another_caller_than_was_decided_gets_no_more(calls, finalizer):
    await calls.prepare(calls.agent("agent_1"), "CA1", CALLER, Attestation.FULL)
    await asyncio.sleep(0)
    assert await calls.finish("elevenlabs", reported(number="+12025550188"))
    assert finalizer.submitted[0].trust is TrustLevel.SUMMARIES


async def test_known_or_foreign_reports_are_not_submitted(calls, finalizer):
    finalizer.known = {"voice-session:conv_1"}
    for conversation in (
        reported(),
        reported(id="conv_2", agent_id="agent_2"),
        reported(id="conv_3", number=""),
        reported(id="conv_4", is_call=False),
    ):
        assert await calls.finish("elevenlabs", conversation)
    assert finalizer.submitted == []


async def test_report_that_cannot_be_stored_must_be_sent_again(calls, finalizer):
    finalizer.failure = StoreUnavailable("away")
    assert not await calls.finish("elevenlabs", reported())
    finalizer.failure = None
    finalizer.submit = lambda session, **_: None  # never stored
    assert not await calls.finish("elevenlabs", reported())


async def test_without_memory_nothing_is_kept(tmp_path, store, finalizer):
    calls = hosted(tmp_path, store, finalizer, NoMemoryServices)
    assert await calls.finish("elevenlabs", reported())
    assert finalizer.submitted == []


# During the call


@pytest.mark.parametrize("key", ["CA1", ""])
async def test_token_opens_its_call_on_every_node(tmp_path, store, finalizer, key):
    one, other = hosted(tmp_path, store, finalizer), hosted(tmp_path, store, finalizer)
    made = await one.prepare(one.agent("agent_1"), key, CALLER, Attestation.FULL)
    await asyncio.sleep(0)
    found = await other.with_token(made.token)
    assert (found.agent, found.caller, found.level) == ("maya", CALLER, TrustLevel.EVERYTHING)
    for wrong in ("", "wrong", made.token[:-1], "CA1"):
        assert await other.with_token(wrong) is None
    store.hangs = True
    assert await other.with_token(made.token) is None


@pytest.mark.parametrize("sent_back", [True, False])
async def test_report_ends_the_token_and_keeps_the_state(calls, store, finalizer, sent_back):
    made = await calls.prepare(calls.agent("agent_1"), "" if sent_back else "CA1", CALLER, Attestation.FULL)
    await asyncio.sleep(0)
    await calls.keep_state(made.token, {"booked": "Monday"})
    assert not any(b"Monday" in value for value in store.values.values())
    await calls.finish("elevenlabs", reported(call_token=made.token if sent_back else ""))
    [session] = finalizer.submitted
    assert (session.state, session.trust) == ({"booked": "Monday"}, TrustLevel.EVERYTHING)
    assert await calls.with_token(made.token) is None
    assert await calls.state(made.token) == {}


async def test_state_waits_for_a_report_that_is_stored(calls, finalizer):
    made = await calls.prepare(calls.agent("agent_1"), "CA1", CALLER, Attestation.FULL)
    await asyncio.sleep(0)
    await calls.keep_state(made.token, {"booked": "Monday"})
    finalizer.failure = StoreUnavailable("away")
    assert not await calls.finish("elevenlabs", reported())
    assert await calls.with_token(made.token) is None  # the call is over all the same
    finalizer.failure = None
    assert await calls.finish("elevenlabs", reported())
    assert finalizer.submitted[0].state == {"booked": "Monday"}


# The answer before a call does not wait


class Memory(Remembers):
    """Memory in a store of our own, which answers, and a remote one."""

    def __init__(self, recall):
        super().__init__()
        self._recall = recall

    def source(self, agent, access):
        return SimpleNamespace(load=lambda caller: MemoryLoader(self._recall, agent="maya", caller=caller, limit=3))


class MoodyRecall(SlowRecall):
    """`mood`: how the stores answer."""

    def __init__(self, mood):
        super().__init__()
        self.mood = mood

    async def own_calls(self, agent, caller):
        if self.mood == "all silent":
            await asyncio.Event().wait()
        return [past_call("own", context="Likes tea.")]

    async def remote_calls(self, agent, caller):
        match self.mood:
            case "slow":
                await asyncio.sleep(5)
            case "refused":
                raise StoreUnavailable("refused")
            case _:
                await asyncio.Event().wait()
        return [past_call("remote")]


@pytest.mark.virtual_time
@pytest.mark.parametrize("shared", ["quick", "silent", "refused"])
@pytest.mark.parametrize("mood", ["silent", "slow", "refused", "all silent"])
async def test_answer_comes_in_150_ms_whatever_the_stores_do(tmp_path, store, finalizer, mood, shared):
    store.hangs, store.fails = shared == "silent", shared == "refused"
    recall = MoodyRecall(mood)
    calls = hosted(tmp_path, store, finalizer, memory=lambda: Memory(recall), timeouts=HostedTimeouts())
    clock = asyncio.get_running_loop().time
    for key in ("CA1", ""):  # with and without an id by which a repeated question is recognized
        began = clock()
        call = await calls.prepare(calls.agent("agent_1"), key, CALLER, Attestation.FULL)
        assert clock() - began <= 0.15
        assert ("Likes tea." in call.memory) == (mood != "all silent")
        assert call.token


# A process that dies while a report is handled

STEPS = "write_archive save_state write_document list_call learn_facts note_topics notify finish".split()


def dying_in(steps, name, reached, *, is_done):
    """Steps of a process that comes no further than this one, before or after it is done."""

    class Mortal(FinalizationSteps): ...

    async def step(self, job):
        if is_done:
            await getattr(FinalizationSteps, name)(self, job)
        reached.set()
        await asyncio.Event().wait()

    step.__name__ = name
    setattr(Mortal, name, step)
    return Mortal(**{one.name: getattr(steps, one.name) for one in fields(steps)})


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("step", ["store the job", *STEPS])
async def test_killed_process_leaves_one_document_and_one_webhook(tmp_path, store, step, is_done):
    """Whether the platform got its answer or not, it may send the report again, before and after the restart."""
    reached = asyncio.Event()
    async with WebhookReceiver().running() as receiver, aftermath_in(tmp_path) as after, httpx.AsyncClient() as http:
        target = WebhookTarget(receiver.url, frozenset({"call.ended"}))
        webhooks = WebhookOutbox(after.store, http, {"maya": target}, [Secret(SECRET)])
        after.steps = whole = replace(after.steps, webhooks=webhooks)
        jobs = after.jobs
        if step == "store the job":
            after.jobs = DyingTable(jobs, reached, is_done=is_done)
        else:
            after.steps = dying_in(whole, step, reached, is_done=is_done)
        worker = after.finalizer()
        calls = hosted(tmp_path, store, worker)
        first = asyncio.create_task(calls.finish("elevenlabs", reported()))
        await reached.wait()
        await worker.close(seconds=0)
        await first  # True or False: the process may die before or after the answer
        after.steps, after.jobs = whole, jobs
        worker = after.finalizer()
        await worker.resume()
        calls = hosted(tmp_path, store, worker, timeouts=HostedTimeouts())
        for _ in range(2):
            assert await calls.finish("elevenlabs", reported())
        await until(lambda: not worker.unfinished)
        delivering = asyncio.create_task(webhooks.run())
        await until(receiver.messages)
        assert await calls.finish("elevenlabs", reported())
        await until(lambda: not worker.unfinished)
        delivering.cancel()
        await asyncio.wait({delivering})
        assert [document.source_id for document in await after.documents()] == ["voice-session:conv_1"]
        assert len(receiver.attempts) == len(receiver.accepted) == 1 and len(after.archives()) == 1


class DyingTable:
    """The table of jobs of a process that comes no further than storing one."""

    def __init__(self, table, reached, *, is_done):
        self._table, self._reached, self._is_done = table, reached, is_done

    def __getattr__(self, name):
        return getattr(self._table, name)

    async def add(self, job):
        if self._is_done:
            await self._table.add(job)
        self._reached.set()
        await asyncio.Event().wait()
