import logging
from typing import Any

import pytest

from gateway.agents import Agent
from gateway.calls.caller_identity import PIN_REMOVED, CallerIdentity
from gateway.memory.access import AccessChange, MemoryAccess, TrustPolicy
from gateway.memory.identity import IdentifierSource, RepeatCallerSettings
from gateway.session import TrustLevel, VoiceSession
from gateway.settings import Secret
from tests.fakes.call_parts import FakeEvents, FakeMemory, FakeMemorySource

NUMBER = "+12025550143"
BY_STATE = RepeatCallerSettings(identifier_source=IdentifierSource("state", "customer"))


class FakeTasks:
    """Collects tasks until they are run."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []

    def create_task(self, work: Any, *, name: str) -> None:
        self.waiting.append(work)

    async def run(self) -> None:
        while self.waiting:
            await self.waiting.pop(0)


class FakeRecorder:
    discarded = False

    def discard(self) -> None:
        self.discarded = True


class Line:
    """A call that notes how access to memory changes."""

    def __init__(self, *, memory: FakeMemory | None = None, **of_agent) -> None:
        self.changes: list[AccessChange] = []
        self.events = FakeEvents()
        self.session = VoiceSession(agent="maya", caller=NUMBER, carrier="twilio")
        self.access = MemoryAccess(TrustLevel.NAME, caller=NUMBER)
        self.other = FakeMemory()
        self.source = FakeMemorySource(**{NUMBER: memory, "state:customer:7": self.other})
        self.access.open(self.source)
        self.access.subscribe(self.changes.append)
        agent = Agent("maya", "You are Maya.", **of_agent)
        log = logging.LoggerAdapter(logging.getLogger("test"), {})
        self.tasks, self.recorder = FakeTasks(), FakeRecorder()
        self.caller = CallerIdentity(self.session, agent, self.access, self.events, log, self.tasks, self.recorder)

    def says(self, text: str, at: float = 0.0, *, question: str = "") -> str:
        return self.caller.caller_said(text, at, question=question)


@pytest.fixture
def with_pin():
    return Line(trust=TrustPolicy(pin=Secret("4711")))


def test_words_are_written_as_they_are():
    assert Line().says("I would like to order at 4711 Main Street.") == "I would like to order at 4711 Main Street."


async def test_own_pin_is_checked_and_not_written_down():
    """The caller's own PIN may be said, or typed with #. The recording, which has the digits, is deleted."""
    line = Line()
    line.source.pins[NUMBER] = "471199"
    assert line.says("My PIN is 1234.") == PIN_REMOVED
    await line.tasks.run()
    assert line.access.level is TrustLevel.NAME and line.recorder.discarded
    for key in "471199#":
        line.caller.digit_pressed(key, 1.0)
    await line.tasks.run()
    assert (line.access.level, line.session.trust) == (TrustLevel.EVERYTHING, TrustLevel.EVERYTHING)
    assert line.access.proven


async def test_function_sets_a_pin_for_a_certain_caller_only():
    line = Line()
    line.caller.set_pin("471199")
    line.access.raise_level(TrustLevel.EVERYTHING)
    line.caller.set_pin("4712")
    await line.tasks.run()
    assert line.source.pins == {NUMBER: "4712"}


async def test_spoken_pin_is_not_written_down(with_pin):
    assert with_pin.says("4 7 1 1", question="What is your PIN?") == PIN_REMOVED
    await with_pin.tasks.run()
    assert (with_pin.access.level, with_pin.changes) == (TrustLevel.EVERYTHING, [AccessChange.LEVEL_RAISED])


async def test_locked_pin_is_refused(with_pin):
    """After too many failures in other calls."""
    with_pin.source.is_locked = True
    assert with_pin.says("My PIN is 4711.") == PIN_REMOVED
    await with_pin.tasks.run()
    assert (with_pin.access.level, with_pin.changes) == (TrustLevel.NAME, [])


async def test_wrong_pin_is_not_written_down_either(with_pin):
    assert with_pin.says("My PIN is 4712.") == PIN_REMOVED
    await with_pin.tasks.run()
    assert (with_pin.access.level, with_pin.changes) == (TrustLevel.NAME, [])


async def test_pin_may_be_pressed(with_pin):
    for second, digit in enumerate("4711"):
        with_pin.caller.digit_pressed(digit, float(second))
    await with_pin.tasks.run()
    assert with_pin.changes == [AccessChange.LEVEL_RAISED]


def test_another_name_has_its_own_memory():
    line = Line(memory=FakeMemory("Ana"))
    line.says("I'm her husband, my name is Bernd.")
    assert line.changes == [AccessChange.SPEAKER_CHANGED, AccessChange.CONTENT_CHANGED]
    assert (line.access.person, line.access.locked) == ("Bernd", False)


def test_memory_of_an_earlier_speaker_stays_locked():
    line = Line(memory=FakeMemory("Ana"))
    line.says("This is her husband, my name is Bernd.")
    line.says("My name is Ana.", 100.0)
    assert line.access.locked


def test_unfamiliar_name_keeps_the_memory():
    line = Line(memory=FakeMemory("Ana"))
    line.says("My name is Bernd.")
    assert line.changes == []
    assert (line.access.person, line.access.locked, line.session.known_name) == ("Ana", False, "Ana")


def test_tool_identifies_the_caller():
    line = Line(memory=(before := FakeMemory()), repeat_caller=BY_STATE)
    line.session.state = {"customer": 7}
    line.caller.state_changed()
    assert (line.session.caller, line.session.number) == ("state:customer:7", NUMBER)
    assert line.events.written == [("identity", "state:customer:7", NUMBER)]
    assert (line.changes, line.access.memory) == ([AccessChange.CALLER_CHANGED], line.other)
    assert before.cancelled


def test_other_state_changes_nothing():
    line = Line(memory=FakeMemory(), repeat_caller=BY_STATE)
    line.session.state = {"order": 7}
    line.caller.state_changed()
    assert (line.session.caller, line.changes) == (NUMBER, [])


def test_recording_of_a_blacklisted_customer_is_deleted():
    source = BY_STATE.identifier_source
    line = Line(repeat_caller=RepeatCallerSettings(identifier_source=source, identifier_blacklist=("7",)))
    line.session.state["customer"] = "8"
    line.caller.state_changed()
    assert not line.recorder.discarded
    line.session.state["customer"] = "7"
    line.caller.state_changed()
    assert line.session.caller == "" and line.recorder.discarded
