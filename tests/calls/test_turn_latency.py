import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls.turn_latency import TurnLatencyTracker, observe
from gateway.history.calls_table import percentiles
from gateway.metrics import REGISTRY, RESPONSE_SECONDS
from gateway.response_time import STAGES, CountedFrom, ResponseTime

ENGINE, TRANSCRIPT = CountedFrom.ENGINE, CountedFrom.TRANSCRIPT


def a_clock() -> TurnLatencyTracker:
    return TurnLatencyTracker(lambda turn: None)


def test_every_stage_counts_from_the_last_voiced_frame() -> None:
    finished_turns: list[ResponseTime] = []
    clock = TurnLatencyTracker(finished_turns.append)
    clock.caller_starts(8.0)
    clock.speech_ended(10.0, 9.4)
    clock.transcript(10.05, 9.4)
    clock.llm_request(10.1)
    clock.first_token(10.4)
    clock.first_audio(10.55)
    clock.first_frame(10.5502)
    assert finished_turns == []
    clock.finish_turn()
    assert finished_turns == clock.finished == [ResponseTime(0.6, 0.65, 0.7, 1.0, 1.15, 1.1502)]


def test_text_ends_the_speech_of_an_engine_that_does_not_report_it() -> None:
    clock = a_clock()
    clock.caller_starts(8.0)
    clock.transcript(10.0, 9.4)
    clock.first_frame(10.5)
    clock.finish_turn()
    assert clock.finished == [ResponseTime(transcript=0.6, first_frame=1.1)]


@pytest.mark.parametrize("reported_first", [True, False])
def test_engines_figures_fill_what_we_can_not_see(reported_first: bool) -> None:
    clock = a_clock()
    clock.speech_ended(10.0, 9.5)
    clock.transcript(10.05, 9.5)
    if not reported_first:
        clock.first_audio(10.7)
    clock.reported(ttt=0.3)
    clock.reported(tts=0.2)
    clock.first_audio(10.7)
    clock.finish_turn()
    assert clock.finished == [ResponseTime(0.5, 0.55, 0.7, 1.0, 1.2)]


def test_what_we_saw_outweighs_the_engines_figures() -> None:
    clock = a_clock()
    clock.speech_ended(10.0, 9.5)
    clock.transcript(10.05, 9.5)
    clock.reported(stt=0.3, ttt=0.9, tts=0.9)
    clock.llm_request(10.1)
    clock.first_token(10.4)
    clock.first_audio(10.7)
    clock.finish_turn()
    assert clock.finished == [ResponseTime(0.5, 0.55, 0.6, 0.9, 1.2)]


# Where no voiced frame was found


@pytest.mark.parametrize(
    "voiced_at",
    [
        pytest.param(None, id="none"),
        pytest.param(9.98, id="the caller still makes a sound"),
        pytest.param(6.9, id="before the caller began to speak"),
    ],
)
def test_time_is_counted_from_the_engines_report(voiced_at: float | None) -> None:
    clock = a_clock()
    clock.caller_starts(8.0)
    clock.speech_ended(10.0, voiced_at)
    clock.transcript(10.05, voiced_at)
    clock.first_frame(10.5)
    clock.finish_turn()
    assert clock.finished == [ResponseTime(transcript=0.05, first_frame=0.5, counted_from=ENGINE)]


def test_voice_of_the_previous_turn_does_not_count() -> None:
    clock = a_clock()
    for at in (10.0, 20.0):
        clock.transcript(at, 9.4)
        clock.first_frame(at + 0.5)
    clock.finish_turn()
    assert clock.finished == [
        ResponseTime(transcript=0.6, first_frame=1.1),
        ResponseTime(first_frame=0.5, counted_from=TRANSCRIPT),
    ]


def test_turn_that_an_engine_splits_is_answered_once() -> None:
    """The second text comes without another sound: the answer to both is late by as much."""
    clock = a_clock()
    clock.transcript(10.0, 9.4)
    clock.transcript(10.2, 9.4)
    clock.first_frame(10.5)
    clock.finish_turn()
    assert clock.finished == [ResponseTime(transcript=0.6), ResponseTime(transcript=0.8, first_frame=1.1)]


def test_unannounced_end_of_speech_lies_before_the_text() -> None:
    """By the last figure before the text: those that come in the silence after it are of no turn."""
    clock = a_clock()
    clock.finish_turn()
    clock.reported(stt=0.5)
    clock.reported(stt=0.12)
    clock.transcript(10.12, None)
    clock.reported(stt=0.01)
    clock.first_audio(10.7)
    clock.finish_turn()
    assert clock.finished == [ResponseTime(transcript=0.12, first_audio=0.7, counted_from=ENGINE)]


def test_figure_does_not_change_after_it_was_shown() -> None:
    shown: list[ResponseTime | None] = []
    clock = TurnLatencyTracker(lambda turn: None, on_answer=shown.append)
    clock.transcript(10.0, None)
    clock.first_audio(10.7)
    clock.first_frame(10.7)
    clock.reported(stt=0.3)
    clock.finish_turn()
    [turn] = clock.finished
    assert shown[0] is not None
    assert (turn.first_frame, turn.counted_from) == (shown[0].first_frame, shown[0].counted_from) == (0.7, TRANSCRIPT)


def test_end_of_turn_after_its_text_says_nothing_new() -> None:
    clock = a_clock()
    clock.transcript(10.1, 9.6)
    clock.speech_ended(10.2, 9.6)
    clock.finish_turn()
    assert clock.finished == [ResponseTime(transcript=0.5)]


def test_model_asked_on_a_guess_was_asked_before_the_end() -> None:
    clock = a_clock()
    clock.llm_request(9.4)
    clock.speech_ended(10.0, 9.6)
    clock.transcript(10.0, 9.6)
    clock.first_frame(10.2)
    clock.finish_turn()
    [turn] = clock.finished
    assert turn == ResponseTime(0.4, 0.4, llm_request=-0.2, first_frame=0.6)
    assert [seconds for _, seconds in turn.steps] == pytest.approx([0.0, 0.4, 0.0, 0.2])


# What is a turn


def test_token_of_an_earlier_request_is_none_of_this_turn() -> None:
    """The model is slow, and the caller goes on before it answers."""
    clock = a_clock()
    clock.speech_ended(10.0, 9.5)
    clock.transcript(10.0, 9.5)
    clock.llm_request(10.0)
    clock.caller_starts(12.0)
    clock.first_token(12.5)
    clock.speech_ended(13.5, 13.0)
    clock.transcript(13.5, 13.0)
    clock.llm_request(13.5)
    clock.first_token(14.0)
    clock.finish_turn()
    assert [turn.first_token for turn in clock.finished] == [None, 1.0]


def test_greeting_and_noises_are_no_turns() -> None:
    shown: list[ResponseTime | None] = []
    clock = TurnLatencyTracker(lambda turn: None, on_answer=shown.append)
    clock.first_audio(1.0)
    clock.first_frame(1.0)
    clock.caller_starts(2.0)
    clock.speech_ended(2.1, 2.0)
    clock.first_frame(5.0)  # an answer that was interrupted goes on
    clock.finish_turn()
    clock.finish_turn()
    assert clock.finished == []
    assert shown == [None, None]


def test_answer_before_the_text_is_measured() -> None:
    """Engines that answer the audio itself send the text of a named turn when they have it."""
    shown: list[ResponseTime | None] = []
    clock = TurnLatencyTracker(lambda turn: None, on_answer=shown.append)
    clock.caller_starts(8.0)
    clock.speech_ended(10.0, 9.5, "one")
    clock.speech_ended(10.0, 9.5, "one")
    clock.first_frame(10.5)
    assert shown == [ResponseTime(speech_ended=0.5, first_frame=1.0)]
    clock.transcript(11.0, 9.5, "one")
    clock.caller_starts(12.0)
    clock.transcript(12.1, 9.5, "one")  # of the turn before
    clock.speech_ended(13.0, 12.6, "two")
    clock.finish_turn()
    assert clock.finished == [ResponseTime(0.5, 1.5, first_frame=1.0)]
    assert clock.finished[0].steps == [("end of turn detected", 0.5), ("first frame sent", 0.5)]


@pytest.mark.parametrize("text_first", [True, False])
def test_operators_words_are_no_response(text_first: bool) -> None:
    """Nor is what the agent says after them. Its answer before them is, and the next turn has its own."""
    answers: list[ResponseTime | None] = []
    clock = TurnLatencyTracker(lambda turn: None, on_answer=answers.append)

    def turn(start: float, *by_operator: bool) -> None:
        clock.caller_starts(start)
        clock.speech_ended(start + 1, start + 0.5)
        clock.transcript(start + 1.5, start + 0.5)
        for number, one in enumerate(by_operator, 2):
            if text_first:
                clock.agent_said(by_operator=one)
            clock.first_audio(start + number)
            clock.first_frame(start + number)
            if not text_first:
                clock.agent_said(by_operator=one)

    turn(10, True, False)
    turn(20, False, True)
    clock.finish_turn()
    assert [one.first_frame for one in clock.finished] == [None, 1.5]
    assert [one.first_audio for one in clock.finished] == [None, 1.5]
    if text_first:
        assert answers == [None, None, clock.finished[1]]


@pytest.mark.parametrize("text_first", [True, False])
def test_words_before_the_answer_are_no_response(text_first: bool) -> None:
    """The model is slow, and the caller hears "One moment, please." first."""
    shown: list[ResponseTime | None] = []
    clock = TurnLatencyTracker(lambda turn: None, on_answer=shown.append)

    def says(text: str, at: float) -> None:
        for step in ("text", "audio") if text_first else ("audio", "text"):
            if step == "audio":
                clock.first_audio(at)
                clock.first_frame(at)
            elif not clock.precedes_answer(text):
                clock.agent_said(by_operator=False)

    clock.transcript(10.0, 9.4)
    clock.llm_request(10.0)
    clock.one_moment("One moment, please. I'm looking.")
    assert clock.awaits_answer
    says("One moment, please.", 12.0)
    says("I'm looking.", 12.5)
    assert clock.awaits_answer
    clock.first_token(13.0)
    says("It is ready.", 13.2)
    if not text_first:  # with the text it is known that audio is the answer's
        clock.first_audio(13.2)
        clock.first_frame(13.2)
    clock.one_moment("One moment, please. I'm looking.")  # before a second part of the answer
    says("One moment, please.", 15.0)
    clock.finish_turn()
    answer = ResponseTime(transcript=0.6, llm_request=0.6, first_token=3.6, first_audio=3.8, first_frame=3.8)
    assert clock.finished == [answer]
    assert shown[-1] == answer
    assert len(shown) == (1 if text_first else 2)


def test_named_turn_without_words_is_none() -> None:
    shown: list[ResponseTime | None] = []
    clock = TurnLatencyTracker(lambda turn: None, on_answer=shown.append)
    clock.speech_ended(10.0, 9.5, "one")
    clock.needs_no_answer("another")
    clock.needs_no_answer("one")
    clock.first_frame(18.0)  # "Are you still there?"
    clock.finish_turn()
    assert (shown, clock.finished) == ([None], [])


def test_interrupted_turn_has_what_it_has() -> None:
    clock = a_clock()
    clock.speech_ended(10.0, 9.9)
    clock.transcript(10.1, 9.9)
    clock.caller_starts(10.3)
    clock.first_audio(11.0)
    clock.speech_ended(12.0, 11.9)
    clock.transcript(12.2, 11.9)
    clock.finish_turn()
    assert clock.finished[0] == ResponseTime(0.1, 0.2)
    assert clock.finished[1].transcript == 0.3


STEPS = st.sampled_from(["speech_ended", "transcript", "llm_request", "first_token", "first_audio", "first_frame"])


@given(st.lists(STEPS | st.sampled_from(["finish_turn", "caller_starts", "reported", "voice"])), st.integers(0, 1000))
def test_any_order_gives_a_timing_for_each_text(steps: list[str], started: int) -> None:
    """
    Whatever comes in whatever order, no text goes uncounted, no response time is negative, its steps add up to it, and
    the clock's start does not matter.
    """

    def play(now: float) -> list[ResponseTime]:
        clock, voiced_at = a_clock(), None
        for step in steps:
            now += 0.125
            match step:
                case "finish_turn":
                    clock.finish_turn()
                case "voice":
                    voiced_at = now
                case "reported":
                    clock.reported(stt=0.25, ttt=0.5, tts=0.25)
                case "speech_ended" | "transcript":
                    getattr(clock, step)(now, voiced_at)
                case _:
                    getattr(clock, step)(now)
        clock.finish_turn()
        return clock.finished

    turns = play(0.0)
    assert play(float(started)) == turns
    assert len(turns) == steps.count("transcript")
    for turn in turns:
        if turn.first_frame is not None:
            assert turn.first_frame >= 0
            assert sum(seconds for _, seconds in turn.steps) == pytest.approx(turn.first_frame)


def test_known_stages_are_observed() -> None:
    def read(sample: str, stage: str) -> float:
        labels = {"stage": stage, "engine": "local"}
        return REGISTRY.get_sample_value(f"voice_gateway_turn_stage_seconds_{sample}", labels) or 0.0

    def unmeasured() -> float:
        labels = {"engine": "local", "counted_from": "engine"}
        return REGISTRY.get_sample_value("voice_gateway_unmeasured_turns_total", labels) or 0.0

    counts, total, others = {stage: read("count", stage) for stage in STAGES}, read("sum", "llm_request"), unmeasured()
    observe("local", ResponseTime(transcript=0.25, llm_request=-0.2))
    observe("local", ResponseTime(first_frame=0.1, counted_from=ENGINE))
    assert [stage for stage in STAGES if read("count", stage) > counts[stage]] == ["transcript", "llm_request"]
    assert read("sum", "llm_request") == total
    assert unmeasured() == others + 1


@pytest.mark.parametrize("longest", [0.3, 0.9, 1.9, 3.0, 4.9])
def test_quantiles_of_the_histogram_are_those_of_the_answers(longest: float) -> None:
    """As Prometheus computes them, and as the Health page and `gateway latency` do."""
    engine = f"answers up to {longest} s"
    answers = [longest * (0.1 + 0.9 * (number / 100) ** 2) for number in range(1, 101)]
    for seconds in answers:
        observe(engine, ResponseTime(first_frame=seconds))
    ranks = [50, 90, 95]
    for rank, exact in zip(ranks, percentiles(np.array(answers), ranks), strict=True):
        if exact >= 0.2:
            assert histogram_quantile(engine, rank / 100) == pytest.approx(exact, rel=0.125, abs=0.05)


def histogram_quantile(engine: str, rank: float) -> float:
    below, count = 0.0, 0.0
    wanted = rank * (sample("count", engine) or 0.0)
    for bound in RESPONSE_SECONDS:
        reached = sample("bucket", engine, le=str(bound)) or 0.0
        if reached >= wanted:
            return below + (bound - below) * (wanted - count) / (reached - count)
        below, count = bound, reached
    return below


def sample(kind: str, engine: str, **more: str) -> float | None:
    labels = {"stage": "first_frame", "engine": engine, **more}
    return REGISTRY.get_sample_value(f"voice_gateway_turn_stage_seconds_{kind}", labels)
