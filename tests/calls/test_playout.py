from hypothesis import given
from hypothesis import strategies as st

from gateway.calls.playout import MARK_BYTES, AgentUtterance, Playout
from gateway.engines.interface import WordEnd


def spoken(*pieces: tuple[str, int], done: bool = True) -> AgentUtterance:
    """An answer whose texts came each before their so many bytes of sound."""
    answer = AgentUtterance(start=0)
    for text, size in pieces:
        answer.said(text)
        answer.sent += size
    answer.done = done
    return answer


def test_mark_confirms_what_was_sent_before_it() -> None:
    playout = Playout()
    playout.audio_sent(MARK_BYTES, 0.0)
    name = playout.next_mark()
    playout.audio_sent(500, 0.0)
    assert playout.mark_reached(name, 0.0)
    assert (playout.confirmed, playout.sent) == (MARK_BYTES, MARK_BYTES + 500)


def test_flushed_mark_proves_nothing() -> None:
    playout = Playout()
    playout.audio_sent(MARK_BYTES, 0.0)
    name = playout.next_mark()
    playout.cleared()
    assert not playout.mark_reached(name, 0.0)
    assert playout.confirmed == 0


def test_mark_is_due_after_each_stretch() -> None:
    playout = Playout()
    assert not playout.audio_sent(MARK_BYTES - 1, 0.0)
    assert playout.audio_sent(1, 0.0)
    playout.next_mark()
    assert not playout.audio_sent(1, 0.0)


def test_unknown_mark_is_no_proof_of_marks() -> None:
    playout = Playout()
    assert not playout.mark_reached("stranger", 0.0)
    assert not playout.marks_work


def test_position_between_marks_follows_the_clock() -> None:
    playout = Playout()
    playout.audio_sent(MARK_BYTES, 1.0)
    name = playout.next_mark()
    playout.audio_sent(2 * MARK_BYTES, 1.0)
    playout.next_mark()
    assert playout.played(1.2) == 1600
    assert playout.played(5.0) == MARK_BYTES  # its mark has not come
    playout.mark_reached(name, 1.5)
    assert playout.played(1.6) == MARK_BYTES + 800


def test_position_after_a_clear_begins_with_new_audio() -> None:
    playout = Playout()
    playout.audio_sent(MARK_BYTES, 1.0)
    playout.cleared()
    playout.audio_sent(MARK_BYTES, 9.0)
    assert playout.played(9.1) == MARK_BYTES + 800


def test_whole_answer_is_heard_at_its_end() -> None:
    answer = spoken(("It is ready.", 8000), ("Come by on Friday.", 8000))
    assert answer.split_at(16000) == ("It is ready. Come by on Friday.", "")


def test_answer_is_cut_between_sentences() -> None:
    answer = spoken(("It is ready.", 8000), ("Come by on Friday.", 8000))
    assert answer.split_at(8000) == ("It is ready.", "Come by on Friday.")


def test_answer_is_cut_where_its_words_end() -> None:
    """The voice reports the times: "one" is drawn out, and the rest is fast."""
    answer = AgentUtterance(start=0)
    answer.said("Yes.")
    answer.sent += 4000
    answer.said("one two three four")
    answer.words_timed([WordEnd(3, 6000), WordEnd(7, 7000)])
    assert answer.word_ends(8000) == {6000, 7000}
    answer.sent += 6500
    assert answer.word_ends(500) == {500}
    answer.words_timed([WordEnd(13, 8000), WordEnd(18, 9000)])
    answer.sent += 3500
    answer.done = True
    assert answer.split_at(4000 + 5999) == ("Yes.", "one two three four")
    assert answer.split_at(4000 + 6000) == ("Yes. one", "two three four")
    assert answer.split_at(4000 + 8999) == ("Yes. one two three", "four")
    assert answer.split_at(4000 + 10000) == ("Yes. one two three four", "")


def test_answer_is_cut_at_a_word() -> None:
    answer = spoken(("one two three four", 9000))
    assert answer.split_at(4500) == ("one two", "three four")


def test_nothing_heard_of_an_answer() -> None:
    assert spoken(("It is ready.", 8000)).split_at(0) == ("", "It is ready.")


def test_sound_before_text_is_spread_over_all() -> None:
    answer = AgentUtterance(start=0, sent=8000)
    answer.said("one two")
    answer.said("three four")
    answer.sent = 9000
    answer.done = True
    assert answer.split_at(4500) == ("one two", "three four")


def test_unfinished_sentence_is_not_overrated() -> None:
    """Half a second of a long sentence is not the whole of what has come of it."""
    answer = spoken(("This is a rather long sentence about bicycles and their wheels.", 4000), done=False)
    heard, unheard = answer.split_at(4000)
    assert heard == "This is"
    assert unheard.endswith("wheels.")


@given(st.lists(st.tuples(st.text("ab ", min_size=1).filter(str.strip), st.integers(0, 9000))), st.integers(-10, 90000))
def test_no_word_is_lost_by_cutting(pieces: list[tuple[str, int]], heard_bytes: int) -> None:
    answer = spoken(*pieces)
    heard, unheard = answer.split_at(heard_bytes)
    assert (heard.split() + unheard.split()) == answer.text.split()
