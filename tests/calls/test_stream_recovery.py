import asyncio
import math

import pytest

from gateway.agents import Agent
from gateway.calls.call_table import CallTable, CallTimeouts, ManagedCall
from gateway.calls.state import CallState
from gateway.calls.stream_recovery import MAX_ATTEMPTS, RecoveryStep, StreamRecovery
from gateway.cluster.node import SingleNode
from gateway.errors import CarrierRefused, StreamInUse
from tests.fakes.call_control import FakeCallControl

pytestmark = pytest.mark.virtual_time

TIMEOUTS = CallTimeouts()


class Calls:
    """Records which calls were prepared for a new stream."""

    def __init__(self):
        self.prepared = []
        self.journaled = []

    def prepare(self, call):
        self.prepared.append(call)

    def open_log(self, session, call):
        self.journaled.append(call)


class Node(SingleNode):
    """A node whose calls may belong to another one."""

    node = "a"
    owns = True

    async def is_ours(self, key):
        return self.owns

    async def is_ours_now(self, key):
        return self.owns

    async def publish_token(self, record):
        return True


class Setup:
    def __init__(self, **control):
        self.control = FakeCallControl(**control)
        self.table = CallTable(3600.0)
        self.calls = Calls()
        self.cluster = Node()
        self.recovery = StreamRecovery(self.table, {"carrier": self.control}, self.calls, self.cluster, TIMEOUTS)

    def call(self, state=CallState.ACTIVE, **fields):
        maya = Agent("maya", "You are Maya.")
        call = ManagedCall(("carrier", "1"), "", "", "", maya, "wss://voice.example.com/media", state, **fields)
        self.table.add(call)
        return call


def now():
    return asyncio.get_running_loop().time()


# A stream is lost


async def test_carrier_that_asks_is_waited_for():
    setup = Setup(asks_to_resume=True)
    call = setup.call()
    assert setup.recovery.stream_lost(call) is RecoveryStep.WAIT
    assert (call.state, call.deadline) == (CallState.RECONNECTING, now() + TIMEOUTS.reconnect)
    assert call.liveness_check_at == now() + TIMEOUTS.liveness_check


async def test_other_carrier_is_asked_for_a_stream():
    setup = Setup(asks_to_resume=False)
    assert setup.recovery.stream_lost(setup.call()) is RecoveryStep.RESTART


async def test_call_is_given_up_after_too_many_attempts():
    setup = Setup(asks_to_resume=False)
    assert setup.recovery.stream_lost(setup.call(attempt=MAX_ATTEMPTS)) is RecoveryStep.GIVE_UP


async def test_lost_stream_withdraws_the_token():
    setup = Setup()
    call = setup.call(CallState.RINGING)
    call.open_token(now() + 30)
    setup.recovery.stream_lost(call)
    assert not call.has_open_token


async def test_transfer_is_journaled_for_a_restarted_gateway():
    setup = Setup()
    call = setup.call()
    call.session = call.new_session()
    setup.recovery.transfer_started(call)
    assert call.state is CallState.TRANSFERRING
    assert setup.calls.journaled == [call]


# A new token


async def test_renewed_call_has_an_open_token():
    setup = Setup()
    call = setup.call(CallState.RECONNECTING)
    assert await setup.recovery.renew(call)
    assert (call.attempt, call.has_open_token, call.token_is_shared) == (1, True, True)
    assert setup.calls.prepared == [call]


async def test_call_is_renewed_once():
    setup = Setup()
    call = setup.call(CallState.RECONNECTING)
    assert await setup.recovery.renew(call)
    assert not await setup.recovery.renew(call)


async def test_ended_call_is_not_renewed():
    setup = Setup()
    call = setup.call(CallState.RECONNECTING)
    setup.table.end(call, now())
    assert not await setup.recovery.renew(call)


# A new stream


async def test_new_stream_is_requested_after_a_grace_period():
    setup = Setup(asks_to_resume=False)
    call, before = setup.call(CallState.RECONNECTING), now()
    assert await setup.recovery.restart(call) is RecoveryStep.WAIT
    assert now() - before == pytest.approx(TIMEOUTS.hangup_grace)
    assert setup.control.commands == [("restart", "1", "replaces")]


async def test_caller_who_has_gone_gets_no_stream():
    setup = Setup(alive=False)
    assert await setup.recovery.restart(setup.call(CallState.RECONNECTING)) is RecoveryStep.CALLER_GONE
    assert setup.control.commands == []


async def test_call_of_another_node_gets_no_stream():
    setup = Setup()
    setup.cluster.owns = False
    assert await setup.recovery.restart(setup.call(CallState.RECONNECTING)) is RecoveryStep.OWNED_ELSEWHERE
    assert setup.control.commands == []


async def test_refused_stream_ends_the_call():
    setup = Setup()
    setup.control.refusal = CarrierRefused("telnyx", "streaming_start", 422)
    assert await setup.recovery.restart(setup.call(CallState.RECONNECTING)) is RecoveryStep.GIVE_UP


async def test_stream_that_another_node_may_have_is_waited_for():
    """The call was taken over from a silent node, which may still talk to the caller."""
    setup = Setup()
    setup.control.refusal = StreamInUse("telnyx", "streaming_start", 422)
    call = setup.call(CallState.RECONNECTING, may_be_elsewhere=True, attempt=1)
    assert await setup.recovery.restart(call) is RecoveryStep.WAIT
    assert setup.control.commands == [("restart", "1", "adds")]
    assert (call.attempt, call.has_open_token, call.deadline) == (0, False, now() + TIMEOUTS.reconnect)


# Is the caller still there?


@pytest.mark.parametrize(("alive", "outcome"), [(True, RecoveryStep.WAIT), (False, RecoveryStep.CALLER_GONE)])
async def test_carrier_knows_whether_the_caller_is_there(alive, outcome):
    setup = Setup(alive=alive)
    assert await setup.recovery.check_alive(setup.call(CallState.RECONNECTING)) is outcome


async def test_silent_carrier_shortens_the_wait():
    setup = Setup(alive=None)
    call = setup.call(CallState.RECONNECTING)
    assert await setup.recovery.check_alive(call) is RecoveryStep.WAIT
    assert call.deadline == now() + TIMEOUTS.liveness_unknown


async def test_answer_about_a_call_that_went_on_is_ignored():
    setup = Setup(alive=False)
    call = setup.call(CallState.RECONNECTING)
    await setup.recovery.renew(call)
    assert await setup.recovery.check_alive(call) is RecoveryStep.WAIT


# No stream came


async def test_expired_call_is_given_up():
    setup = Setup()
    assert await setup.recovery.expire(setup.call(CallState.RINGING)) is RecoveryStep.GIVE_UP


async def test_expired_call_of_another_node_is_left_alone():
    setup = Setup()
    setup.cluster.owns = False
    call = setup.call(CallState.RINGING, token_is_shared=True)
    assert await setup.recovery.expire(call) is RecoveryStep.OWNED_ELSEWHERE


@pytest.mark.parametrize(
    ("asks", "alive", "outcome"),
    [(True, False, RecoveryStep.CALLER_GONE), (True, True, RecoveryStep.WAIT), (False, True, RecoveryStep.RESTART)],
)
async def test_call_that_may_be_elsewhere_is_not_hung_up(asks, alive, outcome):
    setup = Setup(asks_to_resume=asks, alive=alive)
    call = setup.call(CallState.RECONNECTING, may_be_elsewhere=True)
    assert await setup.recovery.expire(call) is outcome
    assert setup.control.commands == []
    assert call.deadline == (math.inf if outcome is RecoveryStep.CALLER_GONE else now() + TIMEOUTS.reconnect)
