"""The life of calls at one node, with a fake carrier, cluster and finalizer, on virtual time."""

import asyncio
import time
from types import SimpleNamespace

import pytest

from gateway.agents import AgentDirectory
from gateway.calls.call import LiveCallTimeouts
from gateway.calls.call_factory import CallFactory, NoMemoryServices
from gateway.calls.call_table import CallTimeouts, ManagedCall
from gateway.calls.engine_connection import CallEngines, EngineTimeouts
from gateway.calls.manager import MAX_STRANGERS, MAX_UNCLAIMED_STREAMS, Admission, CallManager, Refusal
from gateway.calls.outbound import OutboundCall
from gateway.calls.recorder import NoRecorder, RecordingDirectory
from gateway.calls.state import CallState
from gateway.cluster.directory import CallRecord, NodeCommandKind
from gateway.cluster.node import Reclaim, SingleNode
from gateway.engines.failover import GuardedEngine
from gateway.engines.interface import NoEngine
from gateway.errors import SharedStoreUnavailable
from gateway.history.call_log import RecoveredCall
from gateway.history.live_events import EventPublisher, NoCallLog
from gateway.llm.chat import ModelName
from gateway.session import EndReason, Speaker, Turn, Voicemail, VoiceSession
from gateway.telephony.codec import StreamStarted
from gateway.telephony.machine_detection import AnsweredBy
from gateway.telephony.phone_numbers import AllowList
from gateway.tools.executor import CallTools
from tests.fakes.call_control import FakeCallControl
from tests.fakes.call_parts import FakeVoiceEngine
from tests.fakes.finalizer import FakeFinalizer

pytestmark = pytest.mark.virtual_time

CALLER, CALLED = "+12025550143", "+12025550100"
TWILIO, TELNYX = ("twilio", "CA1"), ("telnyx", "v3:1")
TIMEOUTS = CallTimeouts()


class FakeCall:
    """A live call that ends when the test, or the manager, says so."""

    def __init__(self, session):
        self.session = session
        self.recorder = NoRecorder()
        self.model = ModelName("fake", "fake-1")
        self.is_over = self.ran_end_function = False
        self.monitor = SimpleNamespace(levels=lambda now: (0.0, 0.0), stop_measuring=lambda: None)
        self.log_rows = [{"caller": "Hello."}]
        self.said = []
        self.reports = []
        self.on_over = lambda: None
        self._over = asyncio.get_running_loop().create_future()

    async def run(self):
        self.session.end_reason = await self._over
        if self.session.end_reason is EndReason.FAILED:
            raise RuntimeError("a bug in the call")

    @property
    def may_go_on(self):
        return self.session.end_reason in (EndReason.STREAM_LOST, EndReason.STREAM_STOPPED, EndReason.TRANSFERRED)

    def end(self, reason, *, carrier_over=False):
        if not self._over.done():
            self._over.set_result(reason)

    def tick(self, now): ...

    def turns(self):
        return self.session.turns

    def say(self, text):
        self.said.append(text)

    def answered_by(self, report, message):
        self.reports.append((report, message))


class Calls(CallFactory):
    """Calls without a media stream or an engine."""

    def make(self, call, tools, stream, control, cluster):
        return FakeCall(call.session or call.new_session())


class Remembering(NoMemoryServices):
    """Calls are kept, but not in this log."""

    remembers = True

    def __init__(self):
        super().__init__()
        self.log = NoCallLog()


class FakeCluster(SingleNode):
    """One of several nodes. Records what the manager publishes."""

    node = "a"
    takes_over_calls = True

    def __init__(self):
        self.log = []
        self.claims = []
        self.released = []
        self.full = None
        self.records = {}
        self.fetched = None
        self.owns = True
        self.is_away = False
        self.reclaims = Reclaim.RESUME

    async def announce(self, record):
        return None if self.is_away else self.records.setdefault(record.key, record)

    async def claim(self, key, groups):
        self.claims.append(groups)
        return self.full

    async def claim_dial(self, order_id, groups, seconds):
        return await self.claim(("dialled", order_id), groups)

    async def release_dial(self, order_id, groups):
        self.released.append(order_id)

    async def publish_token(self, record):
        self.records[record.key] = record
        return True

    async def redeem(self, key, started, *, is_local):
        if self.is_away:
            raise SharedStoreUnavailable("away")
        record = self.records.get(key)
        return record if record is not None and record.token == started.token else None

    def stream_lost(self, record, session):
        self.records[record.key] = record

    def call_ended(self, key):
        self.log.append(("ended", key))

    def forget_call(self, key, session_id=""):
        self.log.append(("forgotten", key))

    async def fetch(self, key):
        return self.fetched

    async def forward(self, kind, key, text=""):
        self.log.append((kind, key))
        return True

    async def is_ours(self, key):
        return self.owns

    async def is_ours_now(self, key):
        return self.owns

    async def reclaim(self, key, writer):
        return self.reclaims


class Tools:
    """Loads no tools, and takes as long as `seconds`."""

    seconds = 0.0

    def load(self, agent, access):
        async def tools():
            await asyncio.sleep(self.seconds)
            return CallTools()

        return asyncio.get_running_loop().create_task(tools())


class Setup:
    def __init__(self, folder, *, cluster=None, allowed="*", has_engine=True, memory=None, **limits):
        self.twilio = FakeCallControl(asks_to_resume=True)
        self.telnyx = FakeCallControl(asks_to_resume=False)
        self.finalizer = FakeFinalizer(is_shared=cluster is not None)
        self.cluster = cluster or SingleNode()
        self.tools = Tools()
        engines = [GuardedEngine(FakeVoiceEngine() if has_engine else NoEngine())]
        self.calls = Calls(
            CallEngines(lambda agent: engines, EngineTimeouts()),
            agent_llms=None,
            tool_loader=self.tools,
            memory=memory or NoMemoryServices(),
            recordings=RecordingDirectory(None),
            publisher=EventPublisher(),
            timeouts=LiveCallTimeouts(),
        )
        self.manager = CallManager(
            AgentDirectory({}, folder),
            Admission(AllowList(frozenset(filter(None, allowed.split(",")))), **limits),
            {"twilio": self.twilio, "telnyx": self.telnyx},
            self.calls,
            self.finalizer,
            self.cluster,
            TIMEOUTS,
        )
        self.ticking = asyncio.get_running_loop().create_task(self.manager.run())

    async def accept(self, key=TWILIO, caller=CALLER):
        return await self.manager.accept(
            key, caller=caller, called=CALLED, media_url="wss://voice.example.com/media", account_id="AC1"
        )

    async def attach(self, call, token=None, **fields):
        """Open a media stream with the call's token, or another one."""
        started = StreamStarted(call.key[1], "MZ1", token=call.token if token is None else token, **fields)
        return await self.manager.admit(started, SimpleNamespace(carrier=call.key[0], close=lambda: None))

    async def answered(self, key=TWILIO):
        call = await self.accept(key)
        assert await self.attach(call) is call.media
        return call

    @property
    def end_reasons(self):
        return [session.end_reason for session in self.finalizer.submitted]


@pytest.fixture
async def setup(tmp_path):
    setup = Setup(tmp_path)
    yield setup
    setup.ticking.cancel()


@pytest.fixture
async def node(tmp_path):
    setup = Setup(tmp_path, cluster=FakeCluster(), memory=Remembering())
    yield setup
    setup.ticking.cancel()


# The event loop


async def test_worst_delay_is_of_the_last_minute(setup, caplog):
    assert setup.manager.loop_lag == 0.0
    await asyncio.sleep(1.0)
    time.sleep(0.3)  # noqa: ASYNC251 (a blocked loop is the subject)
    await asyncio.sleep(30.0)
    assert 0.25 < setup.manager.loop_lag < 1.0
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == ["event loop was held up"]
    await asyncio.sleep(60.0)
    assert setup.manager.loop_lag < 0.25


# Admission


async def test_incoming_call_rings_with_an_open_token(setup):
    call = await setup.accept()
    assert (call.state, call.has_open_token, call.number) == (CallState.RINGING, True, CALLER)
    assert setup.manager.live_calls == 0


async def test_repeated_webhook_gets_the_same_call(setup):
    assert await setup.accept() is await setup.accept()


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({"allowed": "+12025550199"}, Refusal.NOT_ALLOWED),
        ({"allowed": ""}, Refusal.NOBODY_ALLOWED),
        ({"has_engine": False}, Refusal.NO_ENGINE),
    ],
)
async def test_call_is_refused(tmp_path, options, refusal):
    setup = Setup(tmp_path, **options)
    assert await setup.accept() is refusal
    setup.ticking.cancel()


async def test_draining_manager_refuses_calls(setup):
    await setup.manager.drain(0.2)
    assert await setup.accept() is Refusal.CLOSING


async def test_hangup_can_overtake_the_first_webhook(setup):
    setup.manager.carrier_ended(TWILIO)
    assert await setup.accept() is Refusal.OVER


# Media


async def test_token_attaches_media_once(setup):
    call = await setup.answered()
    assert call.state is CallState.ACTIVE
    assert await setup.attach(call) is None
    assert setup.manager.live_calls == 1


async def test_wrong_token_attaches_nothing(setup):
    call = await setup.accept()
    assert await setup.attach(call, token="guess") is None
    assert call.state is CallState.RINGING


async def test_unusable_audio_ends_the_call(setup):
    call = await setup.accept()
    assert await setup.attach(call, problem="16 kHz") is None
    await asyncio.sleep(0)
    assert call.state is CallState.ENDED
    await asyncio.sleep(0.1)
    assert setup.twilio.commands == [("hang up", "CA1")]


async def test_call_that_ends_while_tools_load_gets_no_media(setup):
    setup.tools.seconds = 2
    call = await setup.accept()
    attaching = asyncio.create_task(setup.attach(call))
    await asyncio.sleep(1)
    assert call.state is CallState.ACTIVE
    setup.manager.carrier_ended(TWILIO)
    assert await attaching is None
    assert call.state is CallState.ENDED


class UnclaimedStream:
    carrier = "twilio"

    def __init__(self):
        self.is_closed = False

    def close(self):
        self.is_closed = True


async def test_oldest_unclaimed_stream_is_closed(setup):
    streams = [UnclaimedStream() for _ in range(MAX_UNCLAIMED_STREAMS + 1)]
    for stream in streams:
        setup.manager.expect(stream, "198.51.100.7", is_verified=True)
    assert [stream.is_closed for stream in streams] == [True] + [False] * MAX_UNCLAIMED_STREAMS


@pytest.mark.parametrize(
    ("caller", "strangers"),
    [
        ("198.51.100.7", [f"192.0.2.{n % 4}" for n in range(200)]),
        ("198.51.100.7", [f"192.0.2.{n}" for n in range(200)]),
        ("2001:db8:9:1::/64", [f"2001:db8:8:{n:x}::/64" for n in range(200)]),
        ("192.0.2.9", [f"192.0.2.{n % 4}" for n in range(200)] + [f"203.0.113.{n % 4}" for n in range(200)]),
    ],
    ids=["few addresses", "one network", "one network of IPv6", "the caller's network"],
)
@pytest.mark.parametrize("comes", ["first", "between", "last"])
async def test_strangers_compete_with_each_other(setup, caller, strangers, comes):
    """A caller whose carrier does not sign the upgrade keeps its socket, whatever others open."""
    waiting = UnclaimedStream()
    at = {"first": 0, "between": len(strangers) // 2, "last": len(strangers)}[comes]
    streams = [UnclaimedStream() for _ in strangers]
    peers = list(zip(streams, strangers, strict=True))
    for stream, peer in [*peers[:at], (waiting, caller), *peers[at:]]:
        setup.manager.expect(stream, peer, is_verified=False)
    assert not waiting.is_closed
    assert sum(not stream.is_closed for stream in streams) == MAX_STRANGERS - 1


async def test_call_without_media_is_given_up(setup):
    call = await setup.accept()
    await asyncio.sleep(TIMEOUTS.token + 1)
    assert call.state is CallState.ENDED
    assert setup.twilio.commands == [("hang up", "CA1")]


# The end


async def test_hangup_finalizes_the_call(setup):
    call = await setup.answered()
    setup.manager.carrier_ended(TWILIO)
    await asyncio.sleep(0.1)
    assert call.state is CallState.ENDED
    assert setup.end_reasons == [EndReason.CALLER_HUNG_UP]
    assert await setup.accept() is Refusal.OVER


async def test_failed_call_is_hung_up_and_finalized(setup):
    call = await setup.answered()
    call.media.end(EndReason.FAILED)
    await asyncio.sleep(0.1)
    assert setup.twilio.commands == [("hang up", "CA1")]
    assert setup.end_reasons == [EndReason.FAILED]


async def test_drain_waits_for_the_last_call(setup):
    call = await setup.answered()
    draining = asyncio.create_task(setup.manager.drain(600))
    await asyncio.sleep(100)
    assert not draining.done()
    call.media.end(EndReason.CALLER_HUNG_UP)
    await asyncio.sleep(1)
    assert draining.done()


async def test_close_ends_every_call(setup):
    await setup.answered()
    ringing = await setup.accept(TELNYX)
    await setup.manager.close()
    assert setup.end_reasons == [EndReason.SHUTDOWN]
    assert ringing.state is CallState.ENDED
    assert setup.telnyx.commands == [("hang up", "v3:1")]


# Lost streams


async def test_twilio_resumes_with_a_new_token(setup):
    call = await setup.answered()
    token = call.token
    again = await setup.manager.resume(TWILIO)
    assert (again, again.state) == (call, CallState.RECONNECTING)
    assert again.token != token
    assert await setup.attach(call) is not None
    assert call.state is CallState.ACTIVE


async def test_telnyx_is_asked_for_a_new_stream(setup):
    call = await setup.answered(TELNYX)
    setup.manager.stream_failed(TELNYX, call.token)
    await asyncio.sleep(TIMEOUTS.hangup_grace + 0.1)
    assert setup.telnyx.commands == [("restart", "v3:1", "replaces")]
    assert call.has_open_token


async def test_failure_of_an_older_stream_is_ignored(setup):
    call = await setup.answered(TELNYX)
    setup.manager.stream_failed(TELNYX, "an older token")
    await asyncio.sleep(TIMEOUTS.hangup_grace + 0.1)
    assert call.state is CallState.ACTIVE


async def test_call_that_is_not_resumed_ends(setup):
    call = await setup.answered()
    call.media.end(EndReason.STREAM_LOST)
    await asyncio.sleep(TIMEOUTS.reconnect + 1)
    assert call.state is CallState.ENDED
    assert setup.end_reasons == [EndReason.STREAM_LOST]


async def test_hangup_that_only_breaks_the_stream_is_found_out(setup):
    call = await setup.answered()
    call.media.end(EndReason.STREAM_LOST)
    setup.twilio.alive = False
    await asyncio.sleep(TIMEOUTS.liveness_check + 0.2)
    assert setup.end_reasons == [EndReason.CALLER_HUNG_UP]


async def test_streams_that_fail_at_once_are_given_up(setup):
    call = await setup.answered(TELNYX)
    for _ in range(4):
        call.media.end(EndReason.STREAM_LOST)
        await asyncio.sleep(TIMEOUTS.hangup_grace + 0.1)
        if call.has_open_token:
            await setup.attach(call)
    assert call.state is CallState.ENDED
    assert [command[0] for command in setup.telnyx.commands] == ["restart"] * 3 + ["hang up"]


# Transfers


async def transferring(setup, key=TELNYX):
    call = await setup.answered(key)
    call.media.end(EndReason.TRANSFERRED)
    await asyncio.sleep(0.01)
    assert call.state is CallState.TRANSFERRING
    return call


async def test_answered_transfer_ends_the_call(setup):
    call = await transferring(setup)
    setup.manager.transfer_finished(TELNYX, answered=True)
    assert (call.state, setup.end_reasons) == (CallState.ENDED, [EndReason.TRANSFERRED])
    assert setup.telnyx.commands == []


async def test_failed_transfer_returns_to_the_agent(setup):
    call = await transferring(setup)
    setup.manager.transfer_finished(TELNYX, answered=False)
    await asyncio.sleep(TIMEOUTS.hangup_grace + 0.1)
    assert await setup.attach(call) is not None
    assert call.state is CallState.ACTIVE


async def test_transfer_without_a_report_is_not_hung_up(setup):
    await transferring(setup)
    await asyncio.sleep(TIMEOUTS.reconnect + 1)
    assert setup.end_reasons == [EndReason.TRANSFERRED]
    assert setup.telnyx.commands == []


async def test_outcome_may_come_before_our_side_ends(setup):
    call = await setup.answered(TELNYX)
    setup.manager.transfer_finished(TELNYX, answered=True)
    call.media.end(EndReason.TRANSFERRED)
    await asyncio.sleep(0.01)
    assert call.state is CallState.ENDED


# Other nodes


async def test_call_that_rings_elsewhere_gets_the_same_token(node):
    there = CallRecord(TWILIO, "b", CallState.RINGING, "AC1", token="theirs", called=CALLED)
    node.cluster.records[TWILIO] = there
    assert (await node.accept()).token == "theirs"
    node.cluster.records[TWILIO] = CallRecord(TWILIO, "b", CallState.ENDED)
    assert await node.accept() is Refusal.OVER


async def test_media_of_another_nodes_call_moves_here(node):
    node.cluster.records[TWILIO] = CallRecord(TWILIO, "b", CallState.RINGING, "AC1", called=CALLED, token="theirs")
    started = StreamStarted("CA1", "MZ1", token="theirs")
    assert await node.manager.admit(started, SimpleNamespace(carrier="twilio", close=lambda: None)) is not None
    assert node.manager.has_media(TWILIO)


async def test_own_token_works_without_the_store(node):
    node.cluster.is_away = True
    assert await node.answered()


async def test_lost_call_is_released_and_contributed(node):
    call = await node.answered()
    call.media.session.turns.append(Turn(Speaker.CALLER, "Hello.", call.media.session.started_at))
    node.manager.drop(TWILIO)
    await asyncio.sleep(0.01)
    assert node.finalizer.contributed == [call.session]
    assert node.finalizer.submitted == []
    assert not node.manager.has_media(TWILIO)


async def test_unknown_calls_are_reported_to_their_node(node):
    node.manager.carrier_ended(TWILIO)
    node.manager.transfer_finished(TELNYX, answered=True)
    await asyncio.sleep(0.01)
    assert node.cluster.log == [(NodeCommandKind.ENDED, TWILIO), (NodeCommandKind.TRANSFERRED, TELNYX)]


async def test_resumed_call_is_fetched_from_its_node(node):
    session = VoiceSession("maya", CALLER, "twilio")
    node.cluster.fetched = (CallRecord(TWILIO, "b", CallState.ACTIVE, "AC1", called=CALLED), session)
    call = await node.manager.resume(TWILIO)
    assert (call.session, call.has_open_token) == (session, True)


async def test_ended_call_of_a_dead_node_is_finalized(node):
    session = VoiceSession("maya", CALLER, "twilio")
    node.manager.take_over(CallRecord(TWILIO, "b", CallState.ENDED), session)
    assert node.finalizer.submitted == [session]
    assert node.cluster.log == [("ended", TWILIO), ("forgotten", TWILIO)]


async def test_stopping_node_leaves_ringing_calls_to_others(node):
    await node.accept()
    await node.manager.close()
    assert node.twilio.commands == []


# Calls of an earlier process


@pytest.mark.parametrize(
    ("reclaims", "state"),
    [(Reclaim.RESUME, CallState.RECONNECTING), (Reclaim.CONTRIBUTE, None), (Reclaim.LEAVE, None)],
)
async def test_journaled_call_is_continued_unless_another_node_has_it(node, reclaims, state):
    node.cluster.reclaims = reclaims
    call = ManagedCall(TWILIO, "AC1", CALLER, CALLED, node.manager._agents.answering(CALLED), "wss://media")
    recovered = RecoveredCall(call.new_session(), call.journal_header, "an earlier process")

    async def unfinished():
        return [recovered]

    node.calls.log.unfinished = unfinished
    await node.manager.recover(ended=frozenset())
    await asyncio.sleep(0.01)
    found = node.manager._table.get(TWILIO)
    assert (found.state if found else None) is state
    assert len(node.finalizer.contributed) == (reclaims is Reclaim.CONTRIBUTE)


# Limits


async def numbered(setup, *callers):
    """Accept one call of each caller; returns the refusals."""
    accepted = [await setup.accept(("twilio", f"CA-{number}"), caller) for number, caller in enumerate(callers)]
    return [call if isinstance(call, Refusal) else None for call in accepted]


async def test_one_call_too_many_is_refused(tmp_path, caplog):
    setup = Setup(tmp_path, max_calls=2)
    assert await numbered(setup, CALLER, "", CALLER) == [None, None, Refusal.FULL]
    assert "call refused" in caplog.messages
    setup.manager.carrier_ended(("twilio", "CA-0"))
    assert isinstance(await setup.accept(("twilio", "CA-9")), ManagedCall)
    setup.ticking.cancel()


async def test_one_number_has_so_many_calls_at_once(tmp_path):
    setup = Setup(tmp_path, calls_per_caller=2)
    assert await numbered(setup, CALLER, CALLER, CALLER, "+12025550199") == [None, None, Refusal.CALLER_BUSY, None]
    setup.ticking.cancel()


async def test_withheld_numbers_are_not_one_caller(tmp_path):
    setup = Setup(tmp_path, calls_per_caller=1)
    assert await numbered(setup, "", "anonymous", "") == [None, None, None]
    setup.ticking.cancel()


async def test_repeated_webhook_is_not_one_more_call(tmp_path):
    setup = Setup(tmp_path, max_calls=1)
    assert await setup.accept() is await setup.accept()
    setup.ticking.cancel()


@pytest.mark.parametrize(("group", "refusal"), [("all", Refusal.FULL), (CALLER, Refusal.CALLER_BUSY)])
async def test_calls_of_other_nodes_count(tmp_path, group, refusal):
    setup = Setup(tmp_path, cluster=FakeCluster(), max_calls=5, calls_per_caller=3)
    await setup.accept()
    setup.cluster.full = group
    assert await setup.accept(TELNYX) is refusal
    assert setup.cluster.claims == [{"all": 5, CALLER: 3}] * 2
    setup.ticking.cancel()


async def test_answered_outbound_call_is_counted_and_not_refused(tmp_path):
    setup = Setup(tmp_path, cluster=FakeCluster(), max_calls=1)
    await setup.accept()
    order = OutboundCall("+12025550199", CALLED)
    assert await setup.manager.claim_dial(order) is Refusal.FULL  # before it is dialled
    assert isinstance(await setup.manager.picked_up(TELNYX, order, media_url="wss://media"), ManagedCall)
    assert setup.cluster.claims[-1] == {"all": 0, "+12025550199": 0}
    setup.ticking.cancel()


@pytest.mark.parametrize(("group", "refusal"), [("all", Refusal.FULL), ("+12025550199", Refusal.CALLER_BUSY)])
async def test_outbound_calls_count_at_all_nodes_while_they_ring(tmp_path, group, refusal):
    setup = Setup(tmp_path, cluster=FakeCluster(), max_calls=4, calls_per_caller=2)
    order = OutboundCall("+12025550199", CALLED)
    assert await setup.manager.claim_dial(order) is None
    assert setup.cluster.claims == [{"all": 4, "+12025550199": 2}]
    await setup.manager.picked_up(TELNYX, order, media_url="wss://media")
    await asyncio.sleep(0)
    assert setup.cluster.released == [order.id]
    setup.cluster.full = group
    assert await setup.manager.claim_dial(OutboundCall("+12025550199", CALLED)) is refusal
    setup.ticking.cancel()


async def test_ringing_outbound_calls_count(tmp_path):
    setup = Setup(tmp_path, max_calls=2, calls_per_caller=1)
    orders = [OutboundCall(number, CALLED) for number in (CALLER, "+12025550199")]
    dial = setup.manager.claim_dial
    assert await dial(orders[0]) is None
    assert await dial(OutboundCall(CALLER, CALLED)) is Refusal.CALLER_BUSY
    assert await dial(orders[1]) is None
    assert await setup.accept(caller="") is Refusal.FULL
    setup.manager.unanswered("twilio", orders[0], "busy")
    await setup.manager.picked_up(TWILIO, orders[1], media_url="wss://media")
    assert await dial(orders[0]) is None
    assert await dial(OutboundCall("+12025550198", CALLED)) is Refusal.FULL
    setup.manager.carrier_ended(TWILIO)
    await asyncio.sleep(TIMEOUTS.dialling + 1)  # its end was reported to another node
    assert await dial(OutboundCall(CALLER, CALLED)) is None
    setup.ticking.cancel()


# Mailboxes


async def dialled(setup, message=""):
    """An answered outbound call that waits for its media."""
    order = OutboundCall(CALLER, CALLED, voicemail=message)
    call = await setup.manager.picked_up(TWILIO, order, media_url="wss://media")
    return call, order


async def test_report_reaches_a_live_call(tmp_path):
    setup = Setup(tmp_path)
    call, order = await dialled(setup, "Call back.")
    media = await setup.attach(call)
    setup.manager.answered_by(TWILIO, AnsweredBy.MACHINE)
    assert media.reports == [(AnsweredBy.MACHINE, "Call back.")]
    assert setup.manager.outbound_key("twilio", order.id) == TWILIO
    assert setup.manager.outbound_key("telnyx", order.id) is setup.manager.outbound_key("twilio", "other") is None
    setup.ticking.cancel()


async def test_report_waits_for_the_media(tmp_path):
    setup = Setup(tmp_path)
    call, _ = await dialled(setup)
    setup.manager.answered_by(TWILIO, AnsweredBy.MACHINE)
    media = await setup.attach(call)
    await asyncio.sleep(0)
    assert media.reports == [(AnsweredBy.MACHINE, "")]
    setup.ticking.cancel()


async def test_report_may_come_before_the_call(tmp_path):
    setup = Setup(tmp_path)
    setup.manager.answered_by(TWILIO, AnsweredBy.MACHINE)
    await asyncio.sleep(0.1)
    call, _ = await dialled(setup)
    await asyncio.sleep(1)
    media = await setup.attach(call)
    await asyncio.sleep(0)
    assert media.reports == [(AnsweredBy.MACHINE, "")]
    setup.ticking.cancel()


async def test_report_about_another_nodes_call_is_forwarded(tmp_path):
    setup = Setup(tmp_path, cluster=FakeCluster())
    setup.manager.answered_by(TWILIO, AnsweredBy.MACHINE)
    await asyncio.sleep(0.1)
    assert setup.cluster.log == [(NodeCommandKind.ANSWERED_BY, TWILIO)]
    setup.ticking.cancel()


async def test_new_stream_of_a_call_with_a_mailbox_knows_it(tmp_path):
    """The process that got the report is gone, and the message was not left."""
    setup = Setup(tmp_path)
    call, _ = await dialled(setup, "Call back.")
    call.session = call.new_session()
    call.session.voicemail = Voicemail.REACHED
    media = await setup.attach(call)
    await asyncio.sleep(0)
    assert media.reports == [(AnsweredBy.GREETING_OVER, "Call back.")]
    setup.ticking.cancel()


async def test_report_about_other_calls_changes_nothing(tmp_path):
    """Of an incoming call, or one placed without `voicemail`: the agent talks on."""
    setup = Setup(tmp_path)
    call, _ = await dialled(setup, None)
    media = await setup.attach(call)
    setup.manager.answered_by(TWILIO, AnsweredBy.MACHINE)
    assert media.reports == []
    setup.ticking.cancel()
