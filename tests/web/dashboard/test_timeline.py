"""Who spoke when, estimated from words and measured in a recording."""

from gateway.web.dashboard.timeline import Span as Spoken
from gateway.web.dashboard.timeline import SpokenTurn, Stretch, of_turns, picture, with_recording

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
