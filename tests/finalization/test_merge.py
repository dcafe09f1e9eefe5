from dataclasses import replace
from datetime import timedelta

import pytest

from gateway.finalization.merge import merged, merged_turns
from gateway.session import EndReason, Speaker, Turn
from tests.calls.aftermath import START, a_session


def turns(text: str, *, speaker=Speaker.CALLER):
    """A turn for each letter, at the second that it has in the alphabet."""
    return [Turn(speaker, letter, START + timedelta(seconds=ord(letter))) for letter in text]


def texts(some):
    return "".join(turn.text for turn in some)


@pytest.mark.parametrize(
    "one, other, whole",
    [
        ("", "", ""),
        ("abc", "", "abc"),
        ("abc", "abc", "abc"),
        ("abcde", "abc", "abcde"),
        ("abcd", "abcef", "abcdef"),  # it went on elsewhere before all was known there
        ("cd", "ab", "abcd"),
        ("ac", "bc", "abc"),
        ("bad", "bac", "bacd"),  # the clock was set back in the call
    ],
)
def test_every_turn_stands_once_in_order(one, other, whole):
    assert texts(merged_turns(turns(one), turns(other))) == whole
    assert texts(merged_turns(turns(other), turns(one))) == whole


def test_fuller_answer_is_kept():
    begun, whole, cut = (
        Turn(Speaker.AGENT, "Hello.", START),
        Turn(Speaker.AGENT, "Hello. How are you?", START),
        Turn(Speaker.AGENT, "Hello.", START, "How are you?"),
    )
    assert merged_turns([begun], [whole]) == merged_turns([whole], [begun]) == [whole]
    assert merged_turns([whole], [cut]) == merged_turns([cut], [begun]) == [cut]


def test_two_turns_of_one_moment_are_two():
    twice = [Turn(Speaker.CALLER, "Yes.", START), Turn(Speaker.CALLER, "Yes.", START)]
    assert merged_turns(twice, twice[:1]) == merged_turns(twice[:1], twice) == twice


def test_end_is_told_by_who_was_there():
    there = a_session(turns=turns("abc"), receipt={"block": "told"}, timings=[{"stt": 0.1}])
    died = replace(there, turns=turns("ab"), end_reason=EndReason.GATEWAY_DIED, receipt={}, timings=[], taken_over=True)
    for whole in (merged(there, died), merged(died, there)):
        assert whole == replace(there, taken_over=True)


def test_what_was_taken_back_does_not_come_back():
    """One node knows that the caller wants it forgotten, the other has it yet."""
    whole, [taken] = turns("abc"), turns("b")
    one = replace(a_session(turns=turns("ac")), taken_back=[taken.name])
    assert texts(merged(one, replace(one, turns=whole, taken_back=[])).turns) == "ac"
    assert texts(merged(replace(one, turns=whole, taken_back=[]), one).turns) == "ac"
