import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls.turn_latency import TurnLatency, TurnLatencyTracker, observe
from gateway.metrics import REGISTRY

SECONDS = st.none() | st.floats(-1.0, 100.0)
TIMINGS = st.builds(TurnLatency, SECONDS, SECONDS, SECONDS, SECONDS, SECONDS)


def a_clock() -> TurnLatencyTracker:
    return TurnLatencyTracker(lambda timing: None)


def test_every_stage_counts_from_the_end_of_speech() -> None:
    finished_turns: list[TurnLatency] = []
    clock = TurnLatencyTracker(finished_turns.append)
    clock.finish_turn()
    clock.speech_ended(10.0)
    clock.transcript(10.05)
    clock.llm_request(10.1)
    clock.first_token(10.4)
    clock.first_audio(10.55)
    clock.first_frame(10.5502)
    assert finished_turns == []
    clock.finish_turn()
    assert finished_turns == clock.finished == [TurnLatency(0.05, 0.1, 0.4, 0.55, 0.5502)]


@pytest.mark.parametrize("reported_first", [True, False])
def test_engines_figures_fill_what_we_can_not_see(reported_first: bool) -> None:
    clock = a_clock()
    clock.speech_ended(10.0)
    clock.transcript(10.05)
    if not reported_first:
        clock.first_audio(10.7)
    clock.reported(ttt=0.3)
    clock.reported(tts=0.2)
    clock.first_audio(10.7)
    clock.finish_turn()
    assert clock.finished == [TurnLatency(0.05, 0.2, 0.5, 0.7, None)]


def test_what_we_saw_outweighs_the_engines_figures() -> None:
    clock = a_clock()
    clock.speech_ended(10.0)
    clock.transcript(10.05)
    clock.reported(stt=0.3, ttt=0.9, tts=0.9)
    clock.llm_request(10.1)
    clock.first_token(10.4)
    clock.first_audio(10.7)
    clock.finish_turn()
    assert clock.finished == [TurnLatency(0.05, 0.1, 0.4, 0.7, None)]


def test_unannounced_end_of_speech_lies_before_the_text() -> None:
    """By the last figure before the text: those that come in the silence after it are of no turn."""
    clock = a_clock()
    clock.finish_turn()
    clock.reported(stt=0.5)
    clock.reported(stt=0.12)
    clock.transcript(10.12)
    clock.reported(stt=0.01)
    clock.first_audio(10.7)
    clock.finish_turn()
    assert clock.finished == [TurnLatency(transcript=0.12, first_audio=0.7)]


def test_text_stands_for_an_unknown_end_of_speech() -> None:
    clock = a_clock()
    clock.transcript(10.0)
    clock.first_audio(10.7)
    clock.finish_turn()
    assert clock.finished == [TurnLatency(first_audio=0.7)]


def test_end_of_turn_after_its_text_says_nothing_new() -> None:
    clock = a_clock()
    clock.reported(stt=0.1)
    clock.transcript(10.1)
    clock.speech_ended(10.2)
    clock.finish_turn()
    assert clock.finished == [TurnLatency(transcript=0.1)]


def test_model_asked_on_a_guess_was_asked_before_the_end() -> None:
    clock = a_clock()
    clock.finish_turn()
    clock.llm_request(9.8)
    clock.speech_ended(10.0)
    clock.transcript(10.0)
    clock.finish_turn()
    assert clock.finished == [TurnLatency(transcript=0.0, llm_request=-0.2)]


def test_greeting_and_noises_are_no_turns() -> None:
    clock = a_clock()
    clock.first_audio(1.0)
    clock.first_frame(1.0)
    clock.finish_turn()
    clock.llm_request(2.0)
    clock.speech_ended(2.1)
    clock.finish_turn()
    clock.finish_turn()
    assert clock.finished == []


def test_interrupted_turn_has_what_it_has() -> None:
    clock = a_clock()
    clock.speech_ended(10.0)
    clock.transcript(10.1)
    clock.finish_turn()
    clock.first_audio(11.0)
    clock.speech_ended(12.0)
    clock.transcript(12.2)
    clock.finish_turn()
    assert clock.finished[0] == TurnLatency(transcript=0.1)
    assert clock.finished[1].transcript == 0.2


def test_two_texts_are_two_turns() -> None:
    clock = a_clock()
    for at in (10.0, 20.0):
        clock.transcript(at)
        clock.first_audio(at + 0.5)
        clock.first_audio(at + 3.0)
    clock.finish_turn()
    assert clock.finished == [TurnLatency(first_audio=0.5)] * 2


STEPS = st.sampled_from(["speech_ended", "transcript", "llm_request", "first_token", "first_audio", "first_frame"])


@given(st.lists(STEPS | st.sampled_from(["finish_turn", "reported"])), st.integers(0, 1000))
def test_any_order_gives_a_timing_for_each_text(steps: list[str], started: int) -> None:
    """Whatever comes in whatever order, no text goes uncounted, and the clock's start does not matter."""

    def play(now: float) -> list[TurnLatency]:
        clock = a_clock()
        for step in steps:
            now += 0.125
            if step == "finish_turn":
                clock.finish_turn()
            elif step == "reported":
                clock.reported(stt=0.25, ttt=0.5, tts=0.25)
            else:
                getattr(clock, step)(now)
        clock.finish_turn()
        return clock.finished

    assert play(float(started)) == play(0.0)
    assert len(play(0.0)) == steps.count("transcript")


@given(TIMINGS)
def test_timing_survives_storage(timing: TurnLatency) -> None:
    assert TurnLatency.from_json(timing.as_json()) == timing


def test_stage_missing_in_storage_is_unknown() -> None:
    assert TurnLatency.from_json({"first_audio": 0.5, "later_invention": 1}) == TurnLatency(first_audio=0.5)


def test_known_stages_are_observed() -> None:
    def read(sample: str, stage: str) -> float:
        labels = {"stage": stage, "engine": "local"}
        return REGISTRY.get_sample_value(f"voice_gateway_turn_stage_seconds_{sample}", labels) or 0.0

    stages = ("transcript", "llm_request", "first_token", "first_audio", "first_frame")
    counts, total = {stage: read("count", stage) for stage in stages}, read("sum", "llm_request")
    observe("local", TurnLatency(transcript=0.25, llm_request=-0.2))
    assert [stage for stage in stages if read("count", stage) > counts[stage]] == ["transcript", "llm_request"]
    assert read("sum", "llm_request") == total
