import logging
from typing import Any

import pytest

from gateway.agents import Agent
from gateway.calls.caller_identity import PIN_ARGUMENT, CallerIdentity
from gateway.calls.transcript import PIN_REMOVED
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

    def __init__(self) -> None:
        self.notes: list[object] = []

    def note(self, what: str, content: object) -> None:
        self.notes.append((what, content))

    def discard(self) -> None:
        self.discarded = True


class Line:
    """A call that notes how access to memory changes."""

    def __init__(self, *, memory: FakeMemory | None = None, fails: bool = False, **of_agent) -> None:
        self.changes: list[AccessChange] = []
        self.events = FakeEvents()
        self.session = VoiceSession(agent="maya", caller=NUMBER, carrier="twilio")
        self.access = MemoryAccess(TrustLevel.NAME, caller=NUMBER)
        self.other = FakeMemory()
        self.source = FakeMemorySource(fails=fails, **{NUMBER: memory, "state:customer:7": self.other})
        self.access.open(self.source)
        self.access.subscribe(self.changes.append)
        agent = Agent("maya", "You are Maya.", **of_agent)
        log = logging.LoggerAdapter(logging.getLogger("test"), {})
        self.tasks, self.recorder = FakeTasks(), FakeRecorder()
        self.caller = CallerIdentity(self.session, agent, self.access, self.events, log, self.tasks, self.recorder)

    def says(self, text: str, at: float = 0.0, *, question: str = "") -> str:
        return self.caller.caller_said(text, at, question=question)

    def press(self, keys: str) -> None:
        for key in keys:
            self.caller.digit_pressed(key, 1.0)


@pytest.fixture
async def with_pin():
    line = Line(trust=TrustPolicy(pin=Secret("4711")))
    line.source.common_pin = "4711"
    await line.caller.load_pin_length()
    return line


@pytest.fixture
async def with_own_pin():
    """The agent has a PIN for all, too."""
    line = Line(trust=TrustPolicy(pin=Secret("4711")))
    line.source.common_pin, line.source.pins[NUMBER] = "4711", "471199"
    await line.caller.load_pin_length()
    return line


async def test_words_are_written_as_they_are():
    line = Line()
    await line.caller.load_pin_length()
    assert line.says("I would like to order at 4711 Main Street.") == "I would like to order at 4711 Main Street."
    line.press("1")
    assert not line.recorder.discarded  # without a PIN a key is only a key


async def test_own_pin_is_checked_and_not_written_down(with_own_pin):
    """The recording, which has the digits, is deleted. What has not the PIN's length was misheard."""
    line = with_own_pin
    assert line.says("My PIN is 471188.") == line.says("My PIN is 1234.") == PIN_REMOVED
    await line.tasks.run()
    assert (line.access.level, line.source.tried) == (TrustLevel.NAME, ["471188"])
    assert line.recorder.discarded
    line.says("My PIN is 471199.")
    await line.tasks.run()
    assert (line.access.level, line.session.trust) == (TrustLevel.EVERYTHING, TrustLevel.EVERYTHING)
    assert line.access.proven


async def test_own_pin_is_typed_without_a_hash_key(with_own_pin):
    """It counts instead of the agent's, which is shorter."""
    with_own_pin.press("471199")
    await with_own_pin.tasks.run()
    assert (with_own_pin.source.tried, with_own_pin.access.proven) == (["471199"], True)


async def test_own_pin_of_unknown_length_ends_with_a_hash_key():
    line = Line()
    line.source.pins[NUMBER] = "471199"  # the store has not answered yet
    line.press("4")
    assert line.recorder.discarded
    line.press("71199#")
    await line.tasks.run()
    assert line.access.proven


async def test_pin_typed_before_its_length_is_known_counts():
    line = Line()
    line.source.pins[NUMBER] = "471199"
    line.press("471199")
    await line.caller.load_pin_length()
    await line.tasks.run()
    assert line.access.proven


async def test_store_away_leaves_the_length_unknown():
    line = Line(fails=True)
    await line.caller.load_pin_length()
    line.press("4711#")
    await line.tasks.run()
    assert line.source.tried == ["4711"]


async def test_three_attempts_a_call(with_pin):
    with_pin.press("123412341234")
    with_pin.says("My PIN is 4711.")
    await with_pin.tasks.run()
    assert (with_pin.source.tried, with_pin.access.level) == (["1234"] * 3, TrustLevel.NAME)


async def test_attempts_without_a_pin_do_not_count():
    line = Line()
    for _ in range(5):
        assert line.says("My PIN is 1234.") == PIN_REMOVED
        await line.tasks.run()
    line.source.pins[NUMBER] = "4711"
    line.says("My PIN is 4711.")
    await line.tasks.run()
    assert line.access.proven


async def test_no_attempt_after_the_right_pin(with_pin):
    with_pin.press("4711")
    await with_pin.tasks.run()
    with_pin.press("1234")
    assert with_pin.says("My PIN is 4712.") == PIN_REMOVED
    await with_pin.tasks.run()
    assert with_pin.source.tried == ["4711"]


async def test_function_sets_a_pin_for_a_certain_caller_only():
    line = Line()
    line.caller.set_pin("471199")
    assert line.recorder.discarded  # it has the arguments of the function
    line.access.level = TrustLevel.EVERYTHING
    line.caller.set_pin("4712")
    await line.tasks.run()
    assert line.source.pins == {NUMBER: "4712"}


async def test_function_replaces_a_pin_only_if_the_caller_is_proven():
    """A number of the allow list may be forged, and a new PIN would be the proof of the one who forged it."""
    line = Line()
    line.access.level, line.source.pins[NUMBER] = TrustLevel.EVERYTHING, "4711"
    line.caller.set_pin("4712")
    await line.tasks.run()
    assert line.source.pins == {NUMBER: "4711"}
    line.says("My PIN is 4711.")
    await line.tasks.run()
    line.caller.set_pin("4712")
    await line.tasks.run()
    assert line.source.pins == {NUMBER: "4712"}


@pytest.mark.parametrize("arguments", ['{"pin": "4711"}', '{"name": "Ana", "new_pin" : 4711}', '{"pinCode":"4711"}'])
def test_argument_that_is_a_pin_is_recognised(arguments):
    assert PIN_ARGUMENT.search(arguments)


@pytest.mark.parametrize("arguments", ["{}", '{"pinned": true}', '{"shipping": "pin"}', '{"opinion": "none"}'])
def test_other_arguments_are_no_pin(arguments):
    assert not PIN_ARGUMENT.search(arguments)


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
    assert line.recorder.notes == [("action", {"do": "identify", "caller": "state:customer:7"})]
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
