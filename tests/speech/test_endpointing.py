import pytest

from gateway.speech.endpointing import (
    ASKED,
    ASKED_DICTATING,
    CLAUSE,
    COMPLETE,
    DICTATING,
    FRAME_SECONDS,
    INCOMPLETE,
    OPEN,
    TurnBoundary,
    TurnDetector,
    silence_after,
)


def feed(turn, probability, seconds):
    """The boundaries in so many seconds, and when each came."""
    frames = round(seconds / FRAME_SECONDS)
    heard = [(turn.feed(probability), (frame + 1) * FRAME_SECONDS) for frame in range(frames)]
    return [(boundary, round(at, 3)) for boundary, at in heard if boundary is not None]


def test_speech_is_detected_within_a_fifth_of_a_second():
    [(boundary, after)] = feed(TurnDetector(), 0.9, 1.0)
    assert boundary is TurnBoundary.STARTED
    assert after < 0.2


def test_click_is_not_speech():
    turn = TurnDetector()
    assert feed(turn, 0.9, 2 * FRAME_SECONDS) == []
    assert feed(turn, 0.1, 1.0) == []
    assert not turn.speaking


def test_pause_and_its_end_are_reported_once():
    turn = TurnDetector()
    feed(turn, 0.9, 1.0)
    assert [boundary for boundary, _ in feed(turn, 0.0, 0.4)] == [TurnBoundary.PAUSED]
    assert [boundary for boundary, _ in feed(turn, 0.9, 0.4)] == [TurnBoundary.RESUMED]


@pytest.mark.parametrize("before", range(8))
def test_click_does_not_hide_a_pause(before):
    turn = TurnDetector()
    feed(turn, 0.9, 1.0)
    heard = feed(turn, 0.0, before * FRAME_SECONDS) + feed(turn, 0.9, FRAME_SECONDS) + feed(turn, 0.0, 1.0)
    assert [boundary for boundary, _ in heard] == [TurnBoundary.PAUSED]


def test_soft_endings_belong_to_the_turn():
    turn = TurnDetector()
    feed(turn, 0.9, 1.0)
    assert feed(turn, 0.45, 1.0) == []
    assert turn.silence == 0


def test_caller_with_long_pauses_gets_more_time():
    turn = TurnDetector()
    assert turn.required_silence("I see.") == COMPLETE
    feed(turn, 0.9, 1.0)
    feed(turn, 0.0, 0.45)
    feed(turn, 0.9, 1.0)
    assert COMPLETE < turn.required_silence("I see.") <= OPEN + 0.1


def test_caller_who_was_cut_off_gets_more_time():
    turn = TurnDetector()
    feed(turn, 0.9, 1.0)
    feed(turn, 0.0, COMPLETE)
    turn.end_turn()
    feed(turn, 0.0, 0.1)
    feed(turn, 0.9, 1.0)
    assert turn.required_silence("I see.") == pytest.approx(0.5, abs=0.05)


def test_caller_who_waits_is_answered_as_soon():
    turn = TurnDetector()
    feed(turn, 0.9, 1.0)
    feed(turn, 0.0, COMPLETE)
    turn.end_turn()
    feed(turn, 0.0, 1.0)
    feed(turn, 0.9, 1.0)
    assert turn.required_silence("I see.") == COMPLETE


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("I would like to book a table.", COMPLETE),
        ("Is it ready?", COMPLETE),
        ("I would like to", INCOMPLETE),
        ("I would like to book a table and.", INCOMPLETE),
        ("Well, I think,", INCOMPLETE),
        ("Um.", INCOMPLETE),
        ("My number is 555 01", DICTATING),
        ("It is four, seven, two.", DICTATING),
        ("Something without an end", OPEN),
        ("It is spelled R. O. H.", DICTATING),
        ("R-o-h-l", DICTATING),
        ("T.", DICTATING),
        ("Option B.", COMPLETE),
        ("Yes, I can.", COMPLETE),
        ("It's a.", INCOMPLETE),
        ("Ana at example dot", INCOMPLETE),
        ("If I come on Monday.", CLAUSE),
        ("All right. When the bike is ready.", CLAUSE),
        ("If I come on Monday, it is too late.", COMPLETE),
        ("To whom?", COMPLETE),
        ("", OPEN),
    ],
)
def test_ending_of_the_text_decides_the_silence(text, seconds):
    assert silence_after(text) == seconds


@pytest.mark.parametrize(("patience", "factor"), [("short", 0.8), ("normal", 1.0), ("long", 1.8)])
def test_patience_changes_every_pause(patience, factor):
    turn = TurnDetector()
    turn.patience = patience
    for text, silence in (("It is ready.", COMPLETE), ("I need a", INCOMPLETE), ("four seven", DICTATING)):
        assert turn.required_silence(text) == pytest.approx(silence * factor)


@pytest.mark.parametrize(
    ("text", "silence"),
    [
        ("two zero two", ASKED_DICTATING),
        ("It's K R O", ASKED_DICTATING),
        ("anna dot", ASKED_DICTATING),
        ("anna dot miller", ASKED),
        ("I don't have any.", ASKED),
        ("202-555-0143", ASKED_DICTATING),
    ],
)
def test_dictation_that_was_asked_for_is_not_cut_in_the_middle(text, silence):
    turn = TurnDetector()
    turn.patience = "dictation"
    assert turn.required_silence(text) == silence
