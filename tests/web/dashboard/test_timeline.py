"""Who spoke when, estimated from words and measured in a recording."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from gateway.response_time import CountedFrom, ResponseTime
from gateway.web.dashboard.timeline import (
    FunctionUse,
    SpokenTurn,
    Stretch,
    Timeline,
    Wait,
    archived_turns,
    functions_of,
    logged_turns,
    noted,
    of_turns,
    picture,
    with_functions,
    with_recording,
    with_starts,
)
from gateway.web.dashboard.timeline import Span as Spoken

WORDS = "one two three four five six seven eight nine"


def test_caller_spoke_before_the_words_came_and_agent_after():
    drawn = of_turns([SpokenTurn("caller", WORDS, 10.0), SpokenTurn("agent", WORDS, 11.0)], 20.0)
    caller, agent = drawn.spans
    assert (round(caller.start, 1), caller.end) == (6.7, 10.0)
    assert (agent.start, round(agent.end, 1)) == (11.0, 14.3)
    assert drawn.waits == [] and "response time" not in drawn.description


def test_response_time_is_the_measured_one():
    """Not a distance in the picture, which is estimated from texts or found in the recording in another way."""
    measured = ResponseTime(speech_ended=0.5, first_frame=1.25)
    drawn = of_turns([SpokenTurn("caller", WORDS, 10.0), SpokenTurn("agent", WORDS, 11.0, response=measured)], 20.0)
    caller, agent = drawn.spans
    assert (round(caller.start, 2), caller.end, agent.start) == (6.42, 9.75, 11.0)
    assert drawn.waits == [Wait(11.0, measured)]
    spans = [Spoken("caller", 6.5, 9.8), Spoken("agent", 11.1, 12.0), Spoken("agent", 12.6, 14.0)]
    exact = with_recording(drawn, spans, 20.0)
    assert exact.waits == [Wait(11.1, measured)]
    for timeline in (drawn, exact):
        assert "longest response time 1.25 s" in timeline.description
        assert ">1.25 s</text>" in picture(timeline)


def test_time_that_is_counted_from_elsewhere_is_marked():
    measured = ResponseTime(first_frame=0.08, counted_from=CountedFrom.ENGINE)
    drawn = of_turns([SpokenTurn("caller", WORDS, 10.0), SpokenTurn("agent", WORDS, 11.0, response=measured)], 20.0)
    assert "response time" not in drawn.description
    assert ">80 ms*</text>" in picture(drawn)
    assert "response time 80 ms, from the engine&#39;s end of turn" in picture(drawn)


def test_interrupted_answer_ends_where_the_caller_begins():
    turns = [SpokenTurn("agent", WORDS * 3, 1.0, "and more", cut=True), SpokenTurn("caller", "stop", 4.0)]
    drawn = of_turns(turns, 10.0)
    [at] = drawn.interruptions
    assert 3.5 < at < 4.2 and "1 interruption" in drawn.description


def test_silence_of_seconds_is_dead_air():
    drawn = of_turns([SpokenTurn("agent", "Hello", 0.0), SpokenTurn("caller", "Yes", 8.0)], 9.0)
    [silence] = drawn.silences
    assert silence.end - silence.start > 6 and "1 period of dead air" in drawn.description


def test_recording_is_more_exact_than_words():
    drawn = of_turns([SpokenTurn("caller", "hello there", 3.0)], 6.0)
    exact = with_recording(drawn, [Spoken("caller", 1.2, 2.9)], 6.5)
    assert (exact.spans[0].start, exact.spans[0].words, exact.exact, exact.seconds) == (1.2, "hello there", True, 6.5)


def test_recorded_turns_begin_with_their_sound():
    """Equal words are not those of the turn before."""
    turns = [SpokenTurn("caller", "Yes.", 3.0), SpokenTurn("agent", "Go on.", 3.2), SpokenTurn("caller", "Yes.", 7.0)]
    drawn = of_turns(turns, 8.0)
    assert with_starts(turns, drawn) == turns
    spans = [
        Spoken("caller", 1.1, 1.5),
        Spoken("caller", 2.0, 2.4),
        Spoken("agent", 3.3, 4.0),
        Spoken("caller", 5.9, 6.4),
    ]
    exact = with_recording(drawn, spans, 8.0)
    assert [turn.at for turn in with_starts(turns, exact)] == [1.1, 3.2, 5.9]


def test_shares_are_of_the_whole_call():
    drawn = of_turns([SpokenTurn("agent", WORDS, 0.0)], 9 / 2.7 * 2)
    assert (drawn.share("agent"), drawn.share("caller")) == (0.5, 0.0)


def test_picture_escapes_what_was_said():
    drawn = picture(of_turns([SpokenTurn("caller", "<script>\u202e", 3.0)], 6.0, [Stretch(1, 2, "<b>")]))
    assert "<script>" not in drawn and "<b>" not in drawn and "\u202e" not in drawn
    assert 'role="img"' in drawn and 'class="function"' in drawn


def test_short_call_has_no_label_twice():
    drawn = picture(of_turns([], 0.9))
    assert drawn.count(">0:00</text>") == 1


@pytest.mark.parametrize(
    "seconds, expected",
    [
        (36, ["0:00", "0:05", "0:10", "0:15", "0:20", "0:25", "0:30", "0:35"]),
        (366, ["0:00", "1:00", "2:00", "3:00", "4:00", "5:00", "6:00"]),
        (4200, ["0:00", "10:00", "20:00", "30:00", "40:00", "50:00", "1:00:00", "1:10:00"]),
    ],
)
def test_ticks_are_whole_minutes(seconds: float, expected: list[str]):
    assert re.findall(r'class="tick"[^>]*>([^<]+)<', picture(of_turns([], seconds))) == expected


def test_labels_do_not_overlap():
    """Of close response times the longest has a label, and each function that has room; all have a tooltip."""
    waits = [Wait(10.0 + place, ResponseTime(first_frame=seconds)) for place, seconds in enumerate((0.5, 2.5, 0.6))]
    functions = [Stretch(20, 21, "find_part"), Stretch(22, 23, "reserve_part"), Stretch(99, 100, "end")]
    drawn = picture(Timeline(100.0, (), [*waits, Wait(90.0, ResponseTime(first_frame=0.7))], functions))
    assert re.findall(r'class="wait-label[^>]*>([^<]+)<', drawn) == ["2.50 s", "700 ms"]
    assert re.findall(r'class="mark"[^>]*>([^<]+)<', drawn) == ["reserve_part"]
    assert drawn.count(": response time ") == 4 and drawn.count("<title>0:20: find_part, 1.00 s</title>") == 1


def test_empty_call_can_be_drawn():
    assert "no interruptions" in picture(of_turns([], 0.0))


def test_operator_is_not_the_agent():
    turns = [SpokenTurn("agent", WORDS, 1.0), SpokenTurn("agent", WORDS, 5.0, by_operator=True)]
    drawn = of_turns(turns, 10.0)
    exact = with_recording(drawn, [Spoken("agent", 1.0, 3.0), Spoken("agent", 5.0, 6.0)], 10.0)
    for timeline in (drawn, exact):
        assert [span.speaker for span in timeline.spans] == ["agent", "operator"]
        assert 'class="operator"' in picture(timeline) and "<title>0:05 operator: one two" in picture(timeline)
    assert "agent 20%, operator 10%," in exact.description
    assert "operator" not in of_turns(turns[:1], 10.0).description


def test_archived_operator_is_marked():
    turns = archived_turns("AGENT: Hello.\nOPERATOR: One moment —\n")
    assert turns == [
        SpokenTurn("agent", "Hello."),
        SpokenTurn("agent", "One moment", cut=True, by_operator=True),
    ]


# Turns

START = datetime(2026, 2, 6, 23, 15, tzinfo=UTC)


def event(kind: str, after: float, **fields: object) -> dict[str, object]:
    return {"event": kind, "at": (START + timedelta(seconds=after)).isoformat(), **fields}


EVENTS = [
    event("ringing", -2.0),
    event("answered", 0.0),
    event("turn", 3.0, speaker="caller", text="Is my bike ready?"),
    event("turn", 4.0, speaker="agent", text="It is.", answer=1, latency=0.8, stages={"first_frame": 0.8}),
    event("turn", 5.0, speaker="agent", text="Come at five.", answer=1),
    event("interruption", 5.5, answer=1, heard="It is.", unheard="Come at five."),
    event("function_finished", 7.0, function="book", ok=False, seconds=1.5),
]


def test_pieces_of_an_answer_are_one_turn():
    caller, agent = logged_turns(EVENTS)
    assert (caller.who, caller.text, caller.at) == ("caller", "Is my bike ready?", 3.0)
    assert (agent.text, agent.unheard, agent.cut) == ("It is.", "Come at five.", True)
    assert agent.response == ResponseTime(first_frame=0.8, counted_from=CountedFrom.ENGINE)


def test_functions_have_a_start_and_an_end():
    assert functions_of(EVENTS) == [FunctionUse(5.5, 7.0, "book failed")]


def test_answer_has_the_functions_before_it():
    first, last = FunctionUse(2.0, 3.0, "find", "{}", "Thursday"), FunctionUse(9.0, 9.5, "end_call")
    turns = [
        SpokenTurn("agent", "Hello.", 0.5),
        SpokenTurn("caller", "When?", 1.5),
        SpokenTurn("agent", "Thursday.", 3.5),
    ]
    hello, asked, answer = with_functions(turns, [first, last])
    assert (hello.functions, asked.functions, answer.functions) == ((), (), [first, last])
    assert with_functions(turns[1:2], [first]) == turns[1:2]


def test_call_without_events_has_no_turns():
    assert logged_turns([]) == [] and functions_of([]) == []


def test_events_are_noted_before_the_turn_that_followed():
    turns = logged_turns(EVENTS)
    lost = [event("engine_lost", after, engine="deepgram", reason=f"{after}") for after in (3.5, 9.0)]
    notes = noted(turns, [*EVENTS, *lost])
    assert {place: [note.at for note in found] for place, found in notes.items()} == {1: [3.5], 2: [9.0]}
