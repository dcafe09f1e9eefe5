import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from gateway.calls.call_end import NOT_TRANSFERRED, TIME_IS_UP, CallEnd, CallLeg
from gateway.session import EndReason
from tests.fakes.call_control import FakeCallControl
from tests.fakes.call_parts import FakeEvents, FakeLeg

pytestmark = pytest.mark.virtual_time

TARGET = "+12025550188"


class FakeSpeech:
    """Speech output whose goodbye is played when the test says so."""

    def __init__(self) -> None:
        self.closed = False
        self.played = asyncio.Event()

    def expect_goodbye(self) -> None: ...

    async def goodbye_played(self) -> None:
        await self.played.wait()

    def close(self) -> None:
        self.closed = True


class Line:
    def __init__(self, tasks: asyncio.TaskGroup, leg: FakeLeg) -> None:
        self.speech = FakeSpeech()
        self.events = FakeEvents()
        self.leg = leg
        self.said: list[str] = []
        log = logging.LoggerAdapter(logging.getLogger("test"), {})
        self.end = CallEnd(tasks, leg, self.speech, self._say, self.events, log)

    def _say(self, text: str, *, interrupt: bool = False) -> None:
        self.said.append(text)


@pytest.fixture
async def lines() -> AsyncIterator[object]:
    made = []
    async with asyncio.TaskGroup() as tasks:

        def make(**of_leg: bool) -> Line:
            made.append(Line(tasks, FakeLeg(**of_leg)))
            return made[-1]

        yield make
        for line in made:
            line.end.cancel_goodbye()


async def settle() -> None:
    await asyncio.sleep(0.01)


async def test_first_reason_counts(lines):
    line = lines()
    line.end.end(EndReason.AGENT_HUNG_UP)
    line.end.end(EndReason.SHUTDOWN)
    await line.end.wait()
    assert (line.end.reason, line.speech.closed) == (EndReason.AGENT_HUNG_UP, True)


async def test_failed_call_has_no_reason(lines):
    assert lines().end.reason is EndReason.FAILED


async def test_hangup_explains_a_lost_stream(lines):
    line = lines()
    line.end.stream_lost()
    assert line.end.reason is EndReason.STREAM_LOST
    line.end.end(EndReason.CALLER_HUNG_UP, carrier_over=True)
    assert line.end.reason is EndReason.CALLER_HUNG_UP


@pytest.mark.parametrize(
    ("stop_ends_call", "reason"), [(True, EndReason.CALLER_HUNG_UP), (False, EndReason.STREAM_STOPPED)]
)
async def test_stopped_stream_means_what_the_carrier_says(lines, stop_ends_call, reason):
    line = lines(stop_ends_call=stop_ends_call)
    line.end.stream_stopped()
    assert line.end.reason is reason


# The goodbye


async def test_hangup_waits_for_the_goodbye(lines):
    line = lines()
    line.end.hang_up("f1")
    await settle()
    assert not line.end.is_over
    line.speech.played.set()
    await settle()
    assert line.end.reason is EndReason.AGENT_HUNG_UP


async def test_repeated_request_is_one(lines):
    line = lines()
    line.end.transfer(TARGET, "f1")
    line.end.transfer(TARGET, "f1")
    line.speech.played.set()
    await settle()
    assert line.leg.transfers == [TARGET]


async def test_withdrawn_request_does_not_hang_up(lines):
    line = lines()
    line.end.hang_up("f1")
    line.end.withdraw(("f0",))
    line.end.withdraw(("f1",))
    line.speech.played.set()
    await settle()
    assert not line.end.is_over


async def test_caller_may_talk_on_once(lines):
    line = lines()
    line.end.hang_up("f1")
    line.end.caller_spoke()
    line.end.hang_up("f2")
    line.end.caller_spoke()
    line.speech.played.set()
    await settle()
    assert line.end.is_over


# Transfer


async def test_transfer_ends_the_call_here(lines):
    line = lines()
    line.end.transfer(TARGET)
    await settle()
    assert (line.leg.transfers, line.end.reason) == ([TARGET], EndReason.TRANSFERRED)


async def test_stream_may_end_before_the_transfer_is_confirmed(lines):
    line = lines()
    line.end.transfer(TARGET)
    await asyncio.sleep(0)
    line.end.stream_stopped()
    assert line.end.reason is EndReason.TRANSFERRED


async def test_refused_transfer_is_admitted(lines, caplog):
    line = lines(refuses=True)
    line.end.transfer(TARGET)
    await settle()
    assert (line.said, line.end.is_over) == ([NOT_TRANSFERRED], False)
    assert "call could not be transferred" in caplog.messages
    line.end.stream_lost()
    assert line.end.reason is EndReason.STREAM_LOST


# The carrier's leg


@pytest.mark.parametrize(
    ("reason", "carrier_over", "hangups"),
    [
        (EndReason.AGENT_HUNG_UP, False, 1),
        (EndReason.ENGINE_LOST, False, 1),
        (EndReason.CALLER_HUNG_UP, True, 0),
        (EndReason.STREAM_LOST, False, 0),
        (EndReason.TRANSFERRED, True, 0),
    ],
)
async def test_leg_is_released_unless_the_caller_may_come_back(lines, reason, carrier_over, hangups):
    line = lines()
    line.end.end(reason, carrier_over=carrier_over)
    await line.end.release_leg()
    assert line.leg.hangups == hangups


async def test_refused_hangup_is_logged(lines, caplog):
    line = lines(refuses=True)
    line.end.end(EndReason.AGENT_HUNG_UP)
    await line.end.release_leg()
    assert "call could not be hung up" in caplog.messages
    assert [event for event, _ in line.events.written] == ["error"]


# At the carrier


def leg_of(control, *, is_ours=True, called="+12025550100"):
    async def ours():
        return is_ours

    return CallLeg(control, "CA1", called, "wss://voice.example.com/twilio/media", ours)


async def test_own_call_is_hung_up():
    control = FakeCallControl()
    await leg_of(control).hang_up()
    assert control.commands == [("hang up", "CA1")]


async def test_another_nodes_call_is_left_alone():
    control = FakeCallControl()
    await leg_of(control, is_ours=False).hang_up()
    assert control.commands == []


async def test_transfer_comes_from_the_dialled_number():
    control = FakeCallControl()
    await leg_of(control).transfer("+12025550199")
    await leg_of(control, called="sip:front@example.com").transfer("+12025550199")
    assert control.commands == [
        ("transfer", "CA1", "+12025550199", "+12025550100"),
        ("transfer", "CA1", "+12025550199", ""),
    ]


# The longest call


async def test_caller_hears_why_and_is_hung_up(lines):
    line = lines()
    line.end.time_is_up()
    await settle()
    assert (line.said, line.end.is_over) == ([TIME_IS_UP], False)
    line.end.caller_spoke()  # does not cancel it
    line.end.withdraw(["f1"])
    line.speech.played.set()
    await settle()
    assert line.end.reason is EndReason.TIME_LIMIT


async def test_time_limit_replaces_a_goodbye(lines):
    line = lines()
    line.end.transfer(TARGET, "f1")
    line.end.time_is_up()
    line.speech.played.set()
    await settle()
    assert (line.end.reason, line.leg.transfers) == (EndReason.TIME_LIMIT, [])


async def test_number_that_is_not_allowed_is_not_dialled(lines, caplog):
    line = lines(not_allowed=True)
    line.end.transfer("+19005550100")
    await settle()
    assert (line.said, line.end.is_over) == ([NOT_TRANSFERRED], False)
    assert "call could not be transferred" in caplog.messages
