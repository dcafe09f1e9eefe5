"""Whole calls whose engines fail, on virtual time: five hundred failures of all kinds, from a fixed seed."""

import asyncio
import itertools
import random
from collections.abc import Iterable

import pytest

from gateway.agents import Agent, SilenceSettings
from gateway.audio import SILENCE_FRAME
from gateway.calls.call import Call, CallAgent, LiveCallTimeouts
from gateway.calls.engine_connection import EngineConfig, EngineTimeouts
from gateway.engines.failover import BACK_OFF, GuardedEngine
from gateway.memory.access import MemoryAccess
from gateway.session import EndReason, Speaker, VoiceSession
from gateway.tools.executor import CallTools
from tests.fakes.call_parts import (
    CALLER,
    FakeEvents,
    FakeLeg,
    FakeMemory,
    FakeMemorySource,
    FakeStream,
    make_records,
)
from tests.fakes.failing_engine import AT_CONNECT, IN_SESSION, FailingEngine, Fault, FaultPlan, Kind

pytestmark = pytest.mark.virtual_time

FAILURES = 500
FAILURES_PER_CALL = 5
GREETING = "Hi, Maya here."
SORRY = "Sorry, I lost you."
TIMEOUTS = EngineTimeouts()
FRAMES_PER_WORD = 10
LONGEST_SILENCE = 3.0
"""Seconds from the detection of a failure until the caller hears the agent."""


class HeardStream(FakeStream):
    """Notes when the caller heard the agent, and plays everything at once."""

    def __init__(self) -> None:
        super().__init__()
        self.heard_at: list[float] = []
        self.call: Call

    def send_audio(self, audio: bytes) -> None:
        self.heard_at.append(asyncio.get_running_loop().time())

    def send_mark(self, name: str) -> None:
        asyncio.get_running_loop().call_soon(self.call.on_mark, name)


class TimedEvents(FakeEvents):
    """Notes when a failure was detected."""

    def __init__(self) -> None:
        super().__init__()
        self.lost_at: list[float] = []

    def publish(self, event: str, **fields: object) -> None:
        super().publish(event, **fields)
        if event == "engine_lost":
            self.lost_at.append(asyncio.get_running_loop().time())


class Conversation:
    """One call with a caller who takes turns, whatever happens to the engines."""

    def __init__(self, engines: Iterable[GuardedEngine]) -> None:
        self.session = VoiceSession("maya", CALLER, "twilio")
        self.stream = HeardStream()
        records = make_records()
        self.events = TimedEvents()
        object.__setattr__(records, "events", self.events)
        access = MemoryAccess(caller=CALLER)
        access.open(FakeMemorySource(**{CALLER: FakeMemory()}))  # type: ignore[arg-type]
        silence = SilenceSettings(ask_after=0, hang_up_after=0)
        agent = Agent("maya", "You are Maya.", greeting=GREETING, sorry=SORRY, silence=silence)
        self.call = self.stream.call = Call(
            self.session,
            CallAgent(agent, CallTools(), None),
            self.stream,  # type: ignore[arg-type]
            FakeLeg(),  # type: ignore[arg-type]
            EngineConfig(list(engines), TIMEOUTS),
            access,
            records,
            LiveCallTimeouts(),
        )
        self.spoken: list[str] = []
        self._spoke_until: list[float] = []
        self._loop = asyncio.get_running_loop()
        self._words = itertools.cycle(range(1, 100))
        self._running = self._loop.create_task(self.call.run())

    async def frames(self, seconds: float, frame: bytes = SILENCE_FRAME) -> None:
        """The carrier sends this frame every 20 ms, and the call manager ticks the call."""
        for number in range(round(seconds * 50)):
            self.call.on_caller_audio(frame)
            if number % 2:
                await asyncio.sleep(0.04)
            if number % 12 == 0:
                self.call.tick(self._loop.time())

    async def hears_agent(self, since: float) -> None:
        """Wait until the agent has said something after `since` and is silent again."""
        for _ in range(200):
            await self.frames(0.2)
            heard = [at for at in self.stream.heard_at if at >= since]
            if heard and self._loop.time() - heard[-1] > 0.3:
                return
        raise AssertionError("the agent was not heard")

    async def speaks(self, words: int) -> None:
        said = [next(self._words) for _ in range(words)]
        self.spoken.append(" ".join(map(str, said)))
        for word in said:
            await self.frames(FRAMES_PER_WORD / 50, bytes([word]) * 160)
        self._spoke_until.append(self._loop.time())

    async def takes_turns(self, turns: int, words: random.Random) -> None:
        await self.hears_agent(0)
        for _ in range(turns):
            began = self._loop.time()
            await self.speaks(words.randint(2, 6))
            await self.hears_agent(began)

    async def hangs_up(self) -> None:
        self.call.on_stream_stopped()
        await self._running

    def silences(self) -> list[float]:
        """From the last failure that was detected, or the end of the caller's turn, until the agent was heard again."""
        found = []
        for lost, next_lost in itertools.zip_longest(self.events.lost_at, self.events.lost_at[1:]):
            heard = min(at for at in self.stream.heard_at if at > lost)
            if next_lost is None or heard < next_lost:
                spoke = [at for at in self._spoke_until if at < heard]
                found.append(heard - max([lost, *spoke]))
        return found

    def said_by(self, speaker: Speaker) -> list[str]:
        return [turn.text for turn in self.session.turns if turn.speaker is speaker]


def faults(seeded: random.Random, count: int) -> list[Fault]:
    """An engine fails during the call, the next one perhaps at connect; then the third one answers."""
    planned: list[Fault] = []
    while len(planned) < count:
        if seeded.random() < 0.5 and not (planned and planned[-1].kind in AT_CONNECT):
            planned.append(Fault(seeded.choice(AT_CONNECT)))
        else:
            planned.append(Fault(seeded.choice(IN_SESSION), turn=seeded.randint(1, 2), words=seeded.randint(1, 2)))
    return planned


async def test_no_turn_is_lost_in_five_hundred_failures() -> None:
    seeded = random.Random(16)
    failures, kinds, silences = 0, set(), []
    while failures < FAILURES:
        planned = faults(seeded, FAILURES_PER_CALL)
        plan = FaultPlan(planned)
        conversation = Conversation(GuardedEngine(FailingEngine(name, plan)) for name in ("a", "b", "c"))
        await conversation.takes_turns(2 * FAILURES_PER_CALL + 1, seeded)
        await conversation.hangs_up()
        assert conversation.said_by(Speaker.CALLER) == conversation.spoken, planned
        agent = " ".join(conversation.said_by(Speaker.AGENT))
        assert agent.count(GREETING) == 1, planned
        assert conversation.session.end_reason is EndReason.CALLER_HUNG_UP
        assert len(conversation.events.lost_at) == FAILURES_PER_CALL, planned
        assert agent.count(SORRY) <= FAILURES_PER_CALL
        failures += len(conversation.events.lost_at)
        kinds |= {fault.kind for fault in planned}
        silences += conversation.silences()
    assert kinds == set(Kind)
    assert max(silences) < LONGEST_SILENCE


async def test_outage_is_paid_for_once() -> None:
    """Of calls that come during an outage, one tries the failing engine after each pause."""
    broken = FailingEngine("broken", FaultPlan(itertools.repeat(Fault(Kind.HUNG_HANDSHAKE))))
    works = FailingEngine("works", FaultPlan())
    engines = [GuardedEngine(broken), GuardedEngine(works)]
    loop = asyncio.get_running_loop()
    began, quick = loop.time(), 0
    for _ in range(40):
        called = loop.time()
        conversation = Conversation(engines)
        await conversation.hears_agent(called)
        quick += conversation.stream.heard_at[0] - called < 1
        await conversation.hangs_up()
    trials = next(count for count in itertools.count() if sum(BACK_OFF[:count]) > loop.time() - began)
    assert broken.attempts <= trials + 1
    assert (len(works.sessions), quick) == (40, 40 - broken.attempts)
    assert conversation.session.engine == "works"
