import logging

import pytest

from gateway.agents import Agent
from gateway.calls.caller_identity import PIN_REMOVED, CallerIdentity
from gateway.history.live_events import EventPublisher
from gateway.memory.identity import IdentifierSource, RepeatCallerSettings
from gateway.memory.trust import MemoryAccess, TrustLevel, TrustPolicy
from gateway.session import VoiceSession
from gateway.settings import Secret

NUMBER = "+12025550143"
BY_STATE = RepeatCallerSettings(identifier_source=IdentifierSource("state", "customer"))


class Memory:
    """What is known of people on one number; `cancel` ends its loading."""

    def __init__(self, person: str = "") -> None:
        self.person = person
        self.cancelled = False

    def person_is(self, name: str) -> bool:
        changed, self.person = name != self.person, name
        return changed

    def cancel(self) -> None:
        self.cancelled = True


class Line:
    """A call that remembers what it is told of its caller."""

    def __init__(self, *, memory: Memory | None = None, **of_agent) -> None:
        self.told: list[object] = []
        self.session = VoiceSession(agent="maya", caller=NUMBER, carrier="twilio")
        self.access = MemoryAccess(TrustLevel.NAME)
        self.others = {"state:customer:7": Memory()}
        self.caller = CallerIdentity(
            self,
            self.session,
            Agent("maya", "You are Maya.", **of_agent),
            self.access,
            memory=memory,
            look_up=self.others.get,
            call_events=EventPublisher().of(self.session),
            log=logging.LoggerAdapter(logging.getLogger("test"), {}),
        )

    def says(self, text: str, at: float = 0.0, *, question: str = "") -> str:
        return self.caller.said(text, at, question=question)

    def memory_is(self, memory: Memory | None) -> None:
        self.told.append(memory)

    def caller_is_another(self) -> None:
        self.told.append("another")

    def somebody_else_speaks(self) -> None:
        self.told.append("somebody else")

    def more_may_be_told(self) -> None:
        self.told.append("more")


@pytest.fixture
def with_pin():
    return Line(trust=TrustPolicy(pin=Secret("4711")))


def test_words_are_written_as_they_are():
    assert Line().says("My PIN is 4711.") == "My PIN is 4711."


def test_spoken_pin_is_not_written_down(with_pin):
    assert with_pin.says("4 7 1 1", question="What is your PIN?") == PIN_REMOVED
    assert (with_pin.access.tier, with_pin.told) == (TrustLevel.EVERYTHING, ["more"])


def test_wrong_pin_is_not_written_down_either(with_pin):
    assert with_pin.says("My PIN is 4712.") == PIN_REMOVED
    assert (with_pin.access.tier, with_pin.told) == (TrustLevel.NAME, [])


def test_pin_may_be_pressed(with_pin):
    for second, digit in enumerate("4711"):
        with_pin.caller.pressed(digit, float(second))
    assert with_pin.told == ["more"]


def test_another_name_has_its_own_memory():
    memory = Memory("Ana")
    line = Line(memory=memory)
    line.says("My name is Bernd.")
    assert line.told == ["somebody else", memory]
    assert (line.access.person, line.access.locked) == ("Bernd", False)


def test_memory_of_whoever_has_gone_stays_locked():
    line = Line(memory=Memory("Ana"))
    line.says("My name is Bernd.")
    line.says("My name is Ana.", 100.0)
    assert line.access.locked


def test_function_finds_out_who_it_is():
    line = Line(memory=(before := Memory()), repeat_caller=BY_STATE)
    line.session.state = {"customer": 7}
    line.caller.state_changed()
    assert (line.session.caller, line.session.number) == ("state:customer:7", NUMBER)
    assert line.told == ["another", line.others["state:customer:7"]]
    assert before.cancelled


def test_other_state_changes_nothing():
    line = Line(memory=Memory(), repeat_caller=BY_STATE)
    line.session.state = {"order": 7}
    line.caller.state_changed()
    assert (line.session.caller, line.told) == (NUMBER, [])


def test_loading_ends_with_the_call():
    line = Line(memory=(memory := Memory()))
    line.caller.call_over()
    assert memory.cancelled
