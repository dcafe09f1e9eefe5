"""The comparer: what counts as the same, and how a difference reads."""

import random
import zlib
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.audio import SILENCE_FRAME
from gateway.finalization.summary.call_summary import CallSummary
from gateway.replay.compare import Difference, compare, compare_stored, joined
from gateway.replay.player import Outcome, StoredCall
from gateway.replay.recording import AudioChecksum, CallHeader, RecordedFrame, Recording
from gateway.session import EndReason, Speaker, Turn, VoiceSession
from gateway.simulate.frames import AudioFrame, JsonFrame, ReceivedFrame

NOON = datetime(2026, 2, 6, 12, 0, tzinfo=UTC)
HEADER = CallHeader("twilio", "+12025550143", "+12025550100", "voice-session:1", NOON, {"name": "maya"})
HELLO, WORLD = b"hello" * 32, b"world" * 32
CLEAR = {"event": "clear"}


def mark(name, **more):
    return {"event": "mark", "mark": {"name": name}, **more}


def recording(*frames, peer="carrier", **more):
    """A call in which these went to a peer, one a line."""
    contents = [_print(frame) if isinstance(frame, bytes) else JsonFrame(frame) for frame in frames]
    steps = tuple(RecordedFrame(line, line / 10, "to", peer, content) for line, content in enumerate(contents, 2))
    return Recording(Path("call.jsonl"), HEADER, steps, **{"ended": SESSION, **more})


def outcome(*frames, peer="carrier", silent_frames=0, gateway_hung_up=False):
    """The same, as it came."""
    contents = [AudioFrame(frame) if isinstance(frame, bytes) else JsonFrame(frame) for frame in frames]
    arrivals = tuple(ReceivedFrame(number / 10, content) for number, content in enumerate(contents))
    return Outcome(
        arrivals if peer == "carrier" else (), arrivals if peer == "engine" else (), silent_frames, gateway_hung_up, 1.0
    )


def _print(audio):
    return AudioChecksum(len(audio), zlib.crc32(audio))


# The carrier


def test_equal_calls_have_no_differences():
    frames = (HELLO, mark("m1"), CLEAR, WORLD, mark("m2"))
    assert compare(recording(*frames), outcome(*frames)) == []


def test_sound_may_be_cut_otherwise():
    whole = HELLO + WORLD
    assert compare(recording(HELLO, WORLD, mark("m1")), outcome(whole[:1], whole[1:300], whole[300:], mark("m1"))) == []


def test_stream_ids_are_left_out():
    assert compare(recording(mark("m1", streamSid="MZ1")), outcome(mark("m1", streamSid="MZ2"))) == []


def test_missing_clear_names_its_line():
    found = compare(recording(HELLO, CLEAR, WORLD), outcome(HELLO, WORLD))
    [difference] = found
    assert [*difference.diff] == [
        "@@ to the carrier, line 2, 0.2 s @@",
        "- 0.02 s of audio",
        "- clear",
        "- 0.02 s of audio",
        "+ 0.04 s of audio",
    ]


def test_additional_mark_is_told():
    found = compare(recording(HELLO, CLEAR), outcome(HELLO, mark("m1"), CLEAR))
    assert [*found[0].diff] == ["@@ to the carrier, 0.1 s @@", "  0.02 s of audio", "+ mark m1", "  clear"]


def test_other_sound_is_told():
    found = compare(recording(HELLO, CLEAR), outcome(WORLD, CLEAR))
    assert [(difference.expected, difference.came) for difference in found] == [
        ("0.02 s of audio", "0.02 s of audio that sounds different")
    ]


def test_difference_reads_well():
    difference = Difference("to the carrier", "clear", "nothing", 644, 5.273, "CALLER: Stop.")
    assert str(difference) == "@@ to the carrier, line 644, 5.3 s @@ after CALLER: Stop.\n- clear"


def test_difference_names_the_turn_before_it():
    said = JsonFrame({"type": "ConversationText", "role": "user", "content": "Stop. " * 20})
    steps = (RecordedFrame(2, 0.05, "from", "engine", said), *recording(HELLO, CLEAR).steps)
    [difference] = compare(replace(recording(), steps=steps), outcome(HELLO))
    assert difference.turn == "CALLER: Stop. Stop. Stop. Stop. Stop. Stop. Stop. Stop. S…"


def test_recording_that_was_cut_off_ends_earlier():
    cut = recording(HELLO, CLEAR, HELLO, ended=None)
    assert compare(cut, outcome(HELLO, CLEAR, HELLO, WORLD, mark("m1"), CLEAR)) == []
    assert [one.came for one in compare(cut, outcome(HELLO, mark("m1"), CLEAR, HELLO))] == ["mark m1"]


# The engine


def settings(prompt):
    return {"type": "Settings", "agent": {"think": {"prompt": prompt}}}


def test_other_prompt_shows_its_lines():
    found = compare(
        recording(settings("You are Maya.\nBe kind."), peer="engine"),
        outcome(settings("You are Maya.\nBe quick."), peer="engine"),
    )
    assert [*found[0].diff] == [
        "@@ to the engine, line 2, 0.2 s @@",
        "        prompt:",
        "          You are Maya.",
        "-         Be kind.",
        "+         Be quick.",
    ]


def test_times_in_prompts_are_left_out():
    before, after = "Friday, 6 February 2026, 11:15 PM, 3 days ago", "Friday, 6 February 2026, 5:15 PM, yesterday"
    expected = recording(settings(f"Call of {before}"), peer="engine")
    assert compare(expected, outcome(settings(f"Call of {after}"), peer="engine")) == []


def test_silence_of_the_gateway_is_left_out():
    expected = recording(HELLO, SILENCE_FRAME, WORLD, peer="engine")
    assert compare(expected, outcome(HELLO, WORLD, peer="engine", silent_frames=12)) == []


def test_lost_silence_is_told():
    expected = recording(HELLO, SILENCE_FRAME, peer="engine")
    assert compare(expected, outcome(HELLO, peer="engine")) == [
        Difference("caller's audio to the engine", "1 frames of silence", "0 frames of silence")
    ]


def test_lost_sound_names_its_line():
    found = compare(recording(HELLO, WORLD, peer="engine"), outcome(HELLO, peer="engine"))
    assert found == [Difference("caller's audio to the engine", "0.04 s of audio", "0.02 s of audio", line=3, at=0.3)]


def test_more_sound_is_told():
    found = compare(recording(HELLO, peer="engine"), outcome(HELLO, WORLD, peer="engine"))
    assert found == [Difference("caller's audio to the engine", "0.02 s of audio", "0.04 s of audio")]


def test_sound_after_the_gateway_hung_up_is_left_out():
    ended = replace(SESSION, end_reason=EndReason.AGENT_HUNG_UP)
    expected = recording(HELLO, WORLD, peer="engine", ended=ended)
    assert compare(expected, outcome(HELLO, peer="engine", gateway_hung_up=True)) == []
    assert len(compare(expected, outcome(WORLD, peer="engine", gateway_hung_up=True))) == 1


# The end


def test_hangup_that_never_came_is_told():
    found = compare(recording(ended=replace(SESSION, end_reason=EndReason.AGENT_HUNG_UP)), outcome())
    assert found == [Difference("end of the call", "the gateway hangs up", "the caller hangs up")]


def test_hangup_too_early_is_told():
    found = compare(recording(ended=SESSION), outcome(gateway_hung_up=True))
    assert found == [Difference("end of the call", "the caller hangs up", "the gateway hangs up")]


# What is left behind

SESSION = VoiceSession(
    "maya",
    "+12025550143",
    "twilio",
    id="voice-session:1",
    started_at=NOON,
    ended_at=NOON,
    end_reason=EndReason.CALLER_HUNG_UP,
    turns=[Turn(Speaker.CALLER, "My bike is green.", NOON)],
)
SUMMARY = CallSummary("Ana", ("bikes",), (), (), ("The bike is green.",), "Ask about the bike.", "xai/grok-4.3")
DOCUMENT = """\
## Voice Call Summary — 2030-01-01 01:01 AM

**Session:** voice-session:another
**Duration:** 9m 9s
**Caller:** Ana (+12025550143)
**Agent:** maya

### Topics Discussed
- bikes

### Key Decisions

### Action Items

### Important Facts
- The bike is green.

### Context for Next Call
Ask about the bike.
"""
KEPT = StoredCall("CALLER: My bike is green.\n", DOCUMENT)


def test_same_memory_has_no_differences():
    assert compare_stored(recording(ended=SESSION, summary=SUMMARY), KEPT) == []


def test_other_transcript_shows_its_lines():
    other = replace(KEPT, archive="CALLER: My bike is —\n")
    found = compare_stored(recording(ended=SESSION, summary=SUMMARY), other)
    assert [*found[0].diff] == ["@@ transcript @@", "- CALLER: My bike is green.", "+ CALLER: My bike is —"]


def test_other_document_shows_its_lines():
    other = replace(KEPT, document=DOCUMENT.replace("- The bike is green.\n", ""))
    found = compare_stored(recording(ended=SESSION, summary=SUMMARY), other)
    assert [*found[0].diff] == [
        "@@ document @@",
        "  ",
        "  ### Important Facts",
        "- - The bike is green.",
        "  ",
        "  ### Context for Next Call",
    ]


def test_call_without_a_document_has_a_transcript():
    assert compare_stored(recording(ended=SESSION), replace(KEPT, document="")) == []
    assert [one.where for one in compare_stored(recording(ended=SESSION), StoredCall())] == ["transcript"]


@pytest.mark.parametrize(("first", "second"), [(0, 0), (7, 0), (0, 7), (160, 160), (1, 3200), (959, 240_000)])
def test_checksums_of_two_pieces_make_one(first, second):
    source = random.Random(first * 31 + second)
    a, b = source.randbytes(first), source.randbytes(second)
    assert joined(_print(a), _print(b)) == _print(a + b)


# Replies of the gateway to an agent with its own language model

REPLY = {"type": "InjectAgentMessage", "message": "Thank you. Hello.", "behavior": "interrupt"}


@pytest.mark.parametrize(
    ("has_brain", "said", "differs"),
    [(True, "Thank you. Hello.", False), (False, "Thank you. Hello.", True), (True, "Goodbye.", True)],
)
def test_reply_that_the_engine_fetched_may_be_injected(has_brain, said, differs):
    """If the recorded engine said it. A simulated engine fetches none."""
    text = JsonFrame({"type": "ConversationText", "role": "assistant", "content": said})
    header = replace(HEADER, agent={"name": "maya", "has_brain": has_brain})
    recorded = Recording(Path("call.jsonl"), header, (RecordedFrame(2, 0.1, "from", "engine", text),), ended=SESSION)
    assert bool(compare(recorded, outcome(REPLY, peer="engine"))) is differs


def test_reply_that_was_injected_must_be_injected_again():
    header = replace(HEADER, agent={"name": "maya", "has_brain": True})
    recorded = replace(recording(REPLY, peer="engine"), header=header)
    assert compare(recorded, outcome(REPLY, peer="engine")) == []
    assert len(compare(recorded, outcome(peer="engine"))) == 1
