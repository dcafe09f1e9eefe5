import pytest

from gateway.speech.endpointing import (
    COMPLETE,
    DICTATING,
    FRAME_SECONDS,
    HANGING,
    OPEN,
    TurnBoundary,
    TurnDetector,
    wait_after,
)


def hear(turn, probability, seconds):
    """The moments in so many seconds, and after how many each came."""
    frames = round(seconds / FRAME_SECONDS)
    heard = [(turn.hear(probability), (frame + 1) * FRAME_SECONDS) for frame in range(frames)]
    return [(moment, round(at, 3)) for moment, at in heard if moment is not None]


def test_speech_is_noticed_within_a_fifth_of_a_second():
    [(moment, after)] = hear(TurnDetector(), 0.9, 1.0)
    assert moment is TurnBoundary.BEGAN
    assert after < 0.2


def test_a_click_is_no_speech():
    turn = TurnDetector()
    assert hear(turn, 0.9, 2 * FRAME_SECONDS) == []
    assert hear(turn, 0.1, 1.0) == []
    assert not turn.speaking


def test_a_pause_is_told_once_and_its_end():
    turn = TurnDetector()
    hear(turn, 0.9, 1.0)
    assert [moment for moment, _ in hear(turn, 0.0, 0.4)] == [TurnBoundary.PAUSED]
    assert [moment for moment, _ in hear(turn, 0.9, 0.4)] == [TurnBoundary.WENT_ON]


@pytest.mark.parametrize("before", range(8))
def test_a_click_does_not_hide_a_pause(before):
    turn = TurnDetector()
    hear(turn, 0.9, 1.0)
    heard = hear(turn, 0.0, before * FRAME_SECONDS) + hear(turn, 0.9, FRAME_SECONDS) + hear(turn, 0.0, 1.0)
    assert [moment for moment, _ in heard] == [TurnBoundary.PAUSED]


def test_soft_endings_belong_to_the_turn():
    turn = TurnDetector()
    hear(turn, 0.9, 1.0)
    assert hear(turn, 0.45, 1.0) == []
    assert turn.silence == 0


def test_who_pauses_long_is_waited_for():
    turn = TurnDetector()
    assert turn.patience("I see.") == COMPLETE
    hear(turn, 0.9, 1.0)
    hear(turn, 0.0, 0.45)
    hear(turn, 0.9, 1.0)
    assert COMPLETE < turn.patience("I see.") <= OPEN + 0.1


def test_who_was_cut_off_is_waited_for_from_then_on():
    turn = TurnDetector()
    hear(turn, 0.9, 1.0)
    hear(turn, 0.0, COMPLETE)
    turn.over()
    hear(turn, 0.0, 0.1)
    hear(turn, 0.9, 1.0)
    assert turn.patience("I see.") == pytest.approx(0.5, abs=0.05)


def test_who_waits_for_an_answer_is_answered_as_soon():
    turn = TurnDetector()
    hear(turn, 0.9, 1.0)
    hear(turn, 0.0, COMPLETE)
    turn.over()
    hear(turn, 0.0, 1.0)
    hear(turn, 0.9, 1.0)
    assert turn.patience("I see.") == COMPLETE


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("I would like to book a table.", COMPLETE),
        ("Is it ready?", COMPLETE),
        ("I would like to", HANGING),
        ("I would like to book a table and.", HANGING),
        ("Well, I think,", HANGING),
        ("Um.", HANGING),
        ("My number is 555 01", DICTATING),
        ("It is four, seven, two.", DICTATING),
        ("Something without an end", OPEN),
        ("", OPEN),
    ],
)
def test_how_a_text_ends_says_how_long_to_wait(text, seconds):
    assert wait_after(text) == seconds
