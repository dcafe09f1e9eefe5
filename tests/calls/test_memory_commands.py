from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from gateway.agents import Agent
from gateway.calls.memory_commands import NEED_PROOF, MemoryCommands
from gateway.memory.access import AccessChange, MemoryAccess
from gateway.session import TrustLevel, VoiceSession
from gateway.text.voice_commands import VoiceCommandKind
from tests.fakes.call_parts import CALLER, FakeMemory, FakeMemorySource, make_records, make_transcript

pytestmark = pytest.mark.virtual_time

AT = datetime(2026, 2, 6, 23, 15, tzinfo=UTC)


@dataclass
class Known:
    text: str


class Line:
    """A call in which the caller gives memory commands."""

    def __init__(
        self,
        *,
        level: TrustLevel = TrustLevel.EVERYTHING,
        proven: bool = True,
        memory: FakeMemory | None = None,
        **source,
    ) -> None:
        self.session = VoiceSession("maya", CALLER, "twilio", state={"day": "Friday"})
        self.records = make_records()
        self.transcript = make_transcript(self.session, self.records)
        self.access = MemoryAccess(level, caller=CALLER)
        self.access.proven = proven
        self.source = FakeMemorySource(**source)
        self.source.memories[CALLER] = memory or FakeMemory()
        self.access.open(self.source)
        self.changes: list[AccessChange] = []
        self.access.subscribe(self.changes.append)
        agent = Agent("maya", "You are Maya.")
        self.commands = MemoryCommands(self.session, agent, self.transcript, self.access, timeout=8.0)
        self.now = 0.0

    async def says(self, text: str) -> str:
        """The reply to a command; empty if it is none."""
        self.now += 1
        command = self.commands.recognize(text, self.now)
        turn = self.transcript.caller_said(text, AT)
        reply = await self.commands.run(command, turn) if command is not None else ""
        if reply:
            self.transcript.agent_said(reply, AT)
        return reply

    @property
    def said(self) -> list[str]:
        return [turn.text for turn in self.transcript.so_far]


async def test_unproven_caller_erases_nothing():
    """A listed number may be forged: erasing everything aloud needs attestation A or the PIN."""
    line = Line(proven=False)
    await line.says("Forget everything about me.")
    await line.says("Yes.")
    assert line.source.erased == [] and not line.session.off_record
    line.access.raise_level(TrustLevel.EVERYTHING)
    await line.says("Forget everything about me.")
    await line.says("Yes.")
    assert line.source.erased == [CALLER]


async def test_talk_is_no_command():
    assert await Line().says("I never forget anything.") == ""


async def test_known_facts_are_listed():
    line = Line(memory=FakeMemory("Ana", facts=[Known("Prefers tea.")]))
    assert "Prefers tea." in await line.says("What do you know about me?")


async def test_level_limits_what_is_listed():
    line = Line(memory=FakeMemory("Ana", facts=[Known("Prefers tea.")]), level=TrustLevel.NAME)
    reply = await line.says("What do you know about me?")
    assert "Ana" in reply and "tea" not in reply


async def test_last_words_are_retracted_after_a_yes():
    line = Line()
    await line.says("My code is blue.")
    await line.says("Forget that.")
    await line.says("Yes.")
    assert "My code is blue." not in line.said
    assert len(line.session.taken_back) == 1
    assert line.records.recorder.discarded


async def test_no_keeps_everything():
    line = Line()
    await line.says("My code is blue.")
    await line.says("Forget that.")
    await line.says("No.")
    assert "My code is blue." in line.said and line.session.taken_back == []


async def test_off_record_counts_for_its_own_turn():
    line = Line()
    await line.says("Off the record, please.")
    await line.says("I have never liked it.")
    assert line.session.off_record
    assert line.transcript.finish(0.0) == []
    assert line.records.recorder.discarded


async def test_on_record_keeps_turns_again():
    line = Line()
    await line.says("Off the record, please.")
    await line.says("Back on the record.")
    assert not line.session.off_record


async def test_everything_is_erased_after_a_yes():
    line = Line()
    await line.says("My name is Ana.")
    await line.says("Forget everything about me.")
    assert line.source.erased == []
    await line.says("Yes.")
    assert (line.source.erased, line.changes) == ([CALLER], [AccessChange.REVOKED])
    assert line.session.off_record and line.session.state == {}
    assert "My name is Ana." not in line.said


async def test_erased_call_stays_off_the_record():
    line = Line()
    await line.says("Forget everything about me.")
    await line.says("Yes.")
    await line.says("Back on the record.")
    assert line.session.off_record


async def test_erasure_needs_the_highest_level():
    """A forged number must not erase its owner's memory."""
    line = Line(level=TrustLevel.SUMMARIES)
    await line.says("Forget everything about me.")
    await line.says("Yes.")
    assert line.source.erased == []


async def test_failed_erasure_is_admitted(caplog):
    line = Line(fails=True)
    await line.says("Forget everything about me.")
    await line.says("Yes.")
    assert not line.session.off_record
    assert "memory command failed" in caplog.messages


async def test_without_memory_there_is_nothing_to_do():
    line = Line()
    line.access.close()
    line.source.can_erase = False
    reply = await line.says("Forget that.")
    assert reply and line.session.taken_back == []


def test_forged_number_cannot_wipe_out_memory() -> None:
    assert NEED_PROOF == {VoiceCommandKind.FORGET_EVERYTHING, VoiceCommandKind.SET_PIN}


async def test_pin_is_set_after_a_yes():
    line = Line()
    assert await line.says("Set my PIN to four seven one one.") == (
        "Shall I set the number you just gave as your PIN? Please say yes or no."
    )
    assert line.source.pins == {}
    assert await line.says("Yes.") == "All right, your PIN is set."
    assert line.source.pins == {CALLER: "4711"}


async def test_no_leaves_the_pin():
    line = Line()
    await line.says("Set my PIN to 4711.")
    await line.says("No.")
    await line.says("Yes.")
    assert line.source.pins == {}


@pytest.mark.parametrize("certainty", [{"proven": False}, {"level": TrustLevel.SUMMARIES}])
async def test_uncertain_caller_sets_no_pin(certainty):
    """Needs attestation A, or the present PIN: a number of the allow list may be forged."""
    line = Line(**certainty)
    for said in ("Set my PIN to 4711.", "Yes."):
        assert await line.says(said) == "I'm sorry, I can't do that right now."
    assert line.source.pins == {}


@pytest.mark.parametrize("said", ["Set my PIN to three digits.", "Set my PIN to 471.", "Set my PIN to"])
async def test_caller_learns_how_to_set_a_pin(said):
    line = Line()
    assert await line.says(said) == "Please say: set my PIN to, and then four to twelve digits."
    await line.says("Yes.")
    assert line.source.pins == {}


async def test_without_memory_no_pin_is_set():
    line = Line()
    line.source.can_erase = False
    assert await line.says("Set my PIN to 4711.") == "I'm sorry, I can't do that right now."
