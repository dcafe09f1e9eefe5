import asyncio
import contextlib
from dataclasses import replace

import pytest

from gateway.agents import FillerSettings
from gateway.audio import bundled_sound
from gateway.calls.filler import NO_FILLER
from gateway.calls.monitoring import CallMonitor
from gateway.calls.playout import MARK_BYTES
from gateway.calls.speech_output import APOLOGY_TEXT, CannedReplies, ReplyOverride, SpeechOutput, SpeechTimeouts
from gateway.calls.turn_latency import TurnLatencyTracker
from gateway.engines.interface import WordEnd
from gateway.session import Turn
from tests.fakes.call_parts import FakeStream, make_transcript

pytestmark = pytest.mark.virtual_time

TIMEOUTS = SpeechTimeouts()
AUDIO = b"\x01" * 160
OURS = "Shall I forget that? Please say yes or no."


class Line:
    """The output of one call, and what reaches the carrier and the engine."""

    def __init__(self, *, filler: FillerSettings = NO_FILLER) -> None:
        self.stream = FakeStream()
        self.transcript = make_transcript()
        self.latency = TurnLatencyTracker(lambda timing: None)
        self.said: list[tuple[str, bool]] = []
        self.output = SpeechOutput(
            self.stream, self.transcript, CallMonitor(), self.latency, filler, self._say, TIMEOUTS
        )

    def _say(self, text: str, *, interrupt: bool = False) -> None:
        self.said.append((text, interrupt))

    def agent_says(self, text: str, audio: bytes = AUDIO) -> None:
        self.output.text(text)
        self.output.play(audio)
        self.output.audio_done()

    def answers(self, audio: bytes) -> bool:
        """Whether this audio of the engine is heard, and an answer."""
        self.transcript.answer_due_since = 1.0
        self.output.play(audio)
        return self.transcript.answer_due_since is None

    def carrier_plays_all(self) -> None:
        for mark in self.stream.marks:
            self.output.mark_played(mark)

    @property
    def turns(self) -> list[Turn]:
        return self.transcript.so_far


async def test_answer_is_passed_on_with_marks():
    line = Line()
    assert line.answers(b"\x01" * (MARK_BYTES + 10))
    assert line.stream.sent == [b"\x01" * MARK_BYTES, "m1", b"\x01" * 10]


async def test_marks_stand_where_words_end():
    """What was heard of an interrupted answer is exact where the voice reports its words."""
    line = Line()
    line.output.text("one two three")
    line.output.words_timed([WordEnd(3, 1000), WordEnd(7, 1600)])
    line.output.play(b"\x01" * 1600)
    line.output.words_timed([WordEnd(13, 6000)])
    line.output.play(b"\x01" * 5000)
    assert [item if isinstance(item, str) else len(item) for item in line.stream.sent] == [
        *(1000, "m1", 600, "m2"),
        *(3200, "m3", 1200, "m4", 600),
    ]
    line.output.mark_played("m2")
    assert line.output.interrupt() == 625
    assert (line.turns[-1].text, line.turns[-1].unheard) == ("one two", "three")


async def test_words_of_an_interrupted_answer_mean_nothing():
    line = Line()
    line.output.text("one two")
    line.output.interrupt()
    line.output.words_timed([WordEnd(3, 100)])
    line.output.open_gate()
    line.output.play(AUDIO)
    assert line.stream.sent == ["clear", AUDIO]


async def test_interrupted_answer_is_cleared_and_not_heard():
    line = Line()
    line.agent_says("It is ready.", b"\x01" * 16_000)
    line.output.mark_played("m1")
    assert line.output.interrupt() == 1600
    assert line.stream.sent[-1] == "clear"
    assert not line.turns[-1].heard
    assert not line.answers(AUDIO)
    assert line.stream.sent[-1] == "clear"


async def test_interruption_after_the_answer_cuts_nothing():
    line = Line()
    line.agent_says("It is ready.")
    line.carrier_plays_all()
    assert line.output.interrupt() is None


@pytest.mark.parametrize("opens", ["open_gate", "new_session", "turn_is_final"])
async def test_next_answer_is_heard_again(opens):
    line = Line()
    line.output.interrupt()
    if opens == "turn_is_final":
        line.output.turn_is_final("Yes.", overridden=False)
    else:
        getattr(line.output, opens)()
    assert line.answers(AUDIO)


async def test_nothing_is_played_after_the_end():
    line = Line()
    line.output.close()
    assert not line.answers(AUDIO)
    assert line.output.interrupt() is None
    line.output.text("Too late.")
    assert (line.stream.sent, line.turns) == ([], [])


# Filler


async def test_filler_fills_the_wait_and_stops_for_the_answer():
    line = Line(filler=FillerSettings(after=1.0, sound="typing"))
    now = asyncio.get_running_loop().time()
    line.output.turn_is_final("Is there a table?", overridden=False)
    line.output.tick(now + 0.9)
    assert line.stream.sent == []
    line.output.tick(now + 1.1)
    assert line.answers(AUDIO)
    assert line.stream.sent == ["filler", "stop filler", AUDIO]


async def test_filler_phrase_is_not_part_of_the_answer():
    line = Line(filler=FillerSettings(after=1.0, phrases=("Let me see.",)))
    line.output.turn_is_final("Is there a table?", overridden=False)
    line.output.tick(asyncio.get_running_loop().time() + 1.1)
    assert line.said == [("Let me see.", False)]
    line.output.text("Let me see.")
    assert not line.answers(AUDIO)
    line.output.audio_done()
    assert line.turns == []


# Replies of the gateway


async def test_engine_answer_is_replaced_by_the_reply():
    line = Line()
    line.output.turn_is_final("Forget that.", overridden=True)
    assert line.output.overridden
    assert not line.answers(b"wrong")
    line.output.text("I can't do that.")
    await line.output.reply("Forget that.", OURS)
    assert line.said == [(OURS, True)]
    line.output.text("Shall I forget that?")
    line.output.play(b"ours")
    assert line.stream.audio == b"ours"
    assert [turn.text for turn in line.turns] == ["Shall I forget that?"]


async def test_held_audio_of_the_reply_is_played_with_its_text():
    line = Line()
    line.output.turn_is_final("Forget that.", overridden=True)
    await line.output.reply("Forget that.", OURS)
    line.output.play(b"ours")
    line.transcript.answer_due_since = 1.0
    line.output.text(OURS)
    assert line.transcript.answer_due_since is None
    assert line.stream.audio == b"ours"


async def test_fetched_reply_is_not_injected():
    line = Line()
    line.output.replies.enabled = True
    line.output.turn_is_final("Forget that.", overridden=True)
    replying = asyncio.create_task(line.output.reply("Forget that.", OURS))
    assert await line.output.replies.fetch("forget that") == OURS
    await replying
    assert line.said == []


async def test_caller_who_goes_on_gets_the_engine_back():
    line = Line()
    line.output.turn_is_final("Forget that.", overridden=True)
    line.output.turn_is_final("And now?", overridden=False)
    assert line.answers(AUDIO)


# Goodbye and apology


@contextlib.asynccontextmanager
async def goodbye(line):
    line.output.expect_goodbye()
    waiting = asyncio.create_task(line.output.goodbye_played())
    await asyncio.sleep(0)
    yield waiting
    waiting.cancel()


async def test_goodbye_is_over_when_it_was_played():
    line = Line()
    async with goodbye(line) as waiting:
        line.agent_says("Goodbye.")
        await asyncio.sleep(TIMEOUTS.goodbye - 1)
        assert not waiting.done()
        line.carrier_plays_all()
        await asyncio.sleep(0.01)
        assert waiting.done()


async def test_silent_agent_has_said_its_goodbye():
    line = Line()
    async with goodbye(line) as waiting:
        await asyncio.sleep(TIMEOUTS.goodbye_start + 0.01)
        line.carrier_plays_all()
        await asyncio.sleep(0.01)
        assert waiting.done()


async def test_goodbye_takes_no_longer_than_its_timeout():
    line = Line()
    async with goodbye(line) as waiting:
        line.output.play(AUDIO)
        await asyncio.sleep(TIMEOUTS.goodbye + 0.01)
        assert waiting.done()


async def test_apology_is_played_and_written():
    line = Line()
    line.output.turn_is_final("Forget that.", overridden=True)
    apologising = asyncio.create_task(line.output.apologise())
    await asyncio.sleep(0.01)
    assert line.stream.audio == bundled_sound("apology")
    assert [turn.text for turn in line.turns] == [APOLOGY_TEXT]
    assert not apologising.done()
    line.carrier_plays_all()
    await apologising


# What belongs to the reply


def overriding() -> ReplyOverride:
    override = ReplyOverride()
    override.begin()
    return override


def test_nothing_is_held_without_need():
    assert not ReplyOverride().active


def test_own_answer_of_the_engine_is_dropped():
    override = overriding()
    assert override.release("I can't do that.") is None
    override.hold(b"wrong")
    override.expect(OURS)
    assert override.release("I can't, really.") is None
    assert override.active


def test_reply_is_let_through():
    override = overriding()
    override.release("I can't do that.")
    override.hold(b"wrong")
    override.expect(OURS)
    assert override.release("Shall I forget that?") == b""
    assert not override.active


def test_audio_before_its_text_is_ours_too():
    override = overriding()
    override.hold(b"wrong")
    assert override.release("I can't do that.") is None
    override.expect(OURS)
    override.hold(b"ours")
    assert override.release("shall I forget that") == b"ours"


# Replies to language model requests


def make_replies() -> CannedReplies:
    replies = CannedReplies(TIMEOUTS)
    replies.enabled = True
    return replies


async def test_early_request_waits_for_the_turn():
    replies = make_replies()
    fetching = asyncio.create_task(replies.fetch("forget that"))
    await asyncio.sleep(0)
    replies.turn_is_final("Forget that.", overridden=True)
    assert await replies.offer("Forget that.", "Shall I?")
    assert await fetching == "Shall I?"


async def test_late_request_gets_the_same():
    replies = make_replies()
    replies.turn_is_final("Forget that.", overridden=True)
    offering = asyncio.create_task(replies.offer("Forget that.", "Shall I?"))
    await asyncio.sleep(0)
    assert [await replies.fetch("Forget that."), await replies.fetch("Forget that.")] == ["Shall I?"] * 2
    assert await offering


async def test_half_a_turn_was_not_ours():
    replies = make_replies()
    fetching = asyncio.create_task(replies.fetch("Forget that"))
    await asyncio.sleep(0)
    replies.turn_is_final("Forget that idea.", overridden=False)
    assert await fetching == ""


async def test_request_for_an_unfinished_turn_goes_to_the_model():
    started = asyncio.get_running_loop().time()
    assert await make_replies().fetch("Forget that") == ""
    assert asyncio.get_running_loop().time() - started == pytest.approx(TIMEOUTS.final_turn)


async def test_unfetched_reply_is_reported():
    replies = make_replies()
    replies.turn_is_final("Forget that.", overridden=True)
    assert not await replies.offer("Forget that.", "Shall I?")


async def test_disabled_replies_are_not_waited_for():
    replies = CannedReplies(replace(TIMEOUTS, reply_fetch=60.0))
    started = asyncio.get_running_loop().time()
    assert not await replies.offer("Forget that.", "Shall I?")
    assert asyncio.get_running_loop().time() == started


async def test_same_words_in_another_turn_need_a_new_reply():
    replies = make_replies()
    replies.turn_is_final("Yes.", overridden=True)
    await replies.offer("Yes.", "Done.")
    replies.caller_speaks()
    fetching = asyncio.create_task(replies.fetch("Yes."))
    await asyncio.sleep(0)
    replies.turn_is_final("Yes.", overridden=False)
    assert await fetching == ""


# Messages for a mailbox

LEFT = "This is Maya of Harbour Street Bicycles. Your bike is ready."


@pytest.mark.parametrize(
    ("said", "is_heard"),
    [
        ("This is Maya of Harbour Street Bicycles.", True),
        ("This is Maya from Harbour Street Bicycles.", True),
        ("Hello, who is speaking, please?", False),
        ("I am sorry, I can't do that.", False),
    ],
)
async def test_only_the_message_is_heard(said, is_heard):
    """An engine whose model speaks may change a word."""
    line = Line()
    line.output.mute()
    line.output.play(b"of an answer to the greeting")
    line.output.say_only(LEFT)
    line.output.text(said)
    line.output.play(AUDIO)
    assert (AUDIO in line.stream.audio) is is_heard and b"greeting" not in line.stream.audio


@pytest.mark.virtual_time
async def test_message_counts_as_played_when_the_carrier_says_so():
    line = Line()
    line.output.say_only(LEFT)
    waiting = asyncio.create_task(line.output.played(start=20.0, longest=60.0))
    line.output.text(LEFT)
    line.output.play(AUDIO)
    line.output.audio_done()
    await asyncio.sleep(1)
    assert not waiting.done()
    line.carrier_plays_all()
    assert await waiting
    line.output.say_only(LEFT)
    assert not await line.output.played(start=20.0, longest=60.0)
