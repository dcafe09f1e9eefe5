"""Recorded calls into a real gateway: equal calls have no differences, changes are reported."""

import pytest

from gateway.replay.compare import compare
from gateway.replay.harness import replay_harness
from gateway.replay.recording import read
from tests.replay.calls import (
    ALL,
    RECORDINGS,
    changed_recording,
    frame_of,
    replayed,
    with_other_prompt,
    with_other_words,
    without_clears,
)


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
async def test_recorded_call_replays_equal(path):
    assert [str(difference) for difference in await replayed(read(path))] == []


async def test_call_replays_equal_at_a_pace():
    recording = read(RECORDINGS / "engine-refused.jsonl")
    assert await replayed(recording, speed=20) == []


async def test_clear_that_was_not_recorded_is_noticed(tmp_path):
    differences = await replayed(changed_recording("barge-in", tmp_path, without_clears))
    assert [(d.where, d.expected, d.came) for d in differences] == [("to the carrier", "nothing", "clear")] * 2


async def test_other_words_change_the_transcript(tmp_path):
    differences = await replayed(changed_recording("barge-in", tmp_path, with_other_words))
    transcript = next(difference for difference in differences if difference.where == "transcript")
    diff = [*transcript.diff]
    assert "- AGENT: It is eighty dollars, and it takes two days." in diff
    assert "+ AGENT: It is eighteen dollars, and it takes two days." in diff


async def test_other_prompt_is_noticed(tmp_path):
    differences = await replayed(changed_recording("goodbye", tmp_path, with_other_prompt))
    [difference] = differences
    assert difference.where == "to the engine"
    added = [line.removeprefix("+").strip() for line in difference.diff if line.startswith("+")]
    assert added[0] == "You are another agent."


async def test_what_never_comes_is_not_waited_for_twice(tmp_path):
    """One frame too many in the recording: the call goes on without it, and the difference says where."""
    expected = {"t": 0.5, "to": "carrier", "frame": {"event": "clear"}}

    def with_early_clear(line):
        return expected if frame_of(line).get("type") == "LatencyReport" and line["t"] < 3 else line

    recording = changed_recording("telnyx", tmp_path, with_early_clear)
    async with replay_harness(recording) as harness:
        outcome = await harness.play(recording, timeout=3.0)
    found = [(d.expected, d.came) for d in compare(recording, outcome)]
    assert found == [("clear\nclear", "nothing")]


async def test_language_model_says_the_recorded_summary(tmp_path):
    summary = {
        "caller_name": "Ana",
        "topics": ["A green bike"],
        "decisions": [],
        "action_items": [],
        "facts": ["The bike is green"],
        "context": "Ana owns a green bike.",
        "written_by": "xai/a-model",
    }

    def with_summary(line):
        return line | {"content": summary} if line.get("note") == "summary" else line

    assert await replayed(changed_recording("goodbye", tmp_path, with_summary)) == []


async def test_memory_of_the_recording_is_told_again():
    recording = read(next(path for path in ALL if path.name == "second.jsonl"))
    async with replay_harness(recording) as harness:
        await harness.seed(recording)
        outcome = await harness.play(recording)
    prompt = outcome.to_engine[0].content.fields["agent"]["think"]["prompt"]
    assert "You speak with Ana (+12025550143)." in prompt
    assert "Key decisions: Caller: Let's book Thursday at ten.; Agent: You're booked for Thursday at ten." in prompt
