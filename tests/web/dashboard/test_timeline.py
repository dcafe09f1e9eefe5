"""Who spoke when, estimated from words and measured in a recording."""

from datetime import UTC, datetime, timedelta

from gateway.web.dashboard.timeline import Span as Spoken
from gateway.web.dashboard.timeline import (
    SpokenTurn,
    Stretch,
    functions_of,
    logged_turns,
    of_turns,
    picture,
    with_recording,
)

WORDS = "one two three four five six seven eight nine"


def test_caller_spoke_before_the_words_came_and_agent_after():
    drawn = of_turns([SpokenTurn("caller", WORDS, 10.0), SpokenTurn("agent", WORDS, 11.0)], 20.0)
    caller, agent = drawn.spans
    assert (round(caller.start, 1), caller.end) == (6.7, 10.0)
    assert (agent.start, round(agent.end, 1)) == (11.0, 14.3)
    assert drawn.waits == [Stretch(10.0, 11.0, "1.0 s")]


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


def test_shares_are_of_the_whole_call():
    drawn = of_turns([SpokenTurn("agent", WORDS, 0.0)], 9 / 2.7 * 2)
    assert (drawn.share("agent"), drawn.share("caller")) == (0.5, 0.0)


def test_picture_escapes_what_was_said():
    drawn = picture(of_turns([SpokenTurn("caller", "<script>\u202e", 3.0)], 6.0, [Stretch(1, 2, "<b>")]))
    assert "<script>" not in drawn and "<b>" not in drawn and "\u202e" not in drawn
    assert 'role="img"' in drawn and 'class="function"' in drawn


def test_empty_call_can_be_drawn():
    assert "no interruptions" in picture(of_turns([], 0.0))


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
    assert (agent.text, agent.unheard, agent.cut, agent.wait) == ("It is.", "Come at five.", True, 0.8)
    assert agent.stages == [("first frame sent", 0.8)]


def test_functions_have_a_start_and_an_end():
    assert functions_of(EVENTS) == [Stretch(5.5, 7.0, "book failed")]


def test_call_without_events_has_no_turns():
    assert logged_turns([]) == [] and functions_of([]) == []
