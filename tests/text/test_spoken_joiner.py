import pytest

from gateway.text.spoken_joiner import SentenceJoint, SpokenJoiner


def said(*steps):
    """What a new speech says after these steps; text is said as it stands."""
    speech = SpokenJoiner()
    for step in steps:
        if isinstance(step, str):
            speech.say(step)
        else:
            step(speech)
    speech.finish()
    return speech.take()


def comma(speech):
    speech.pause(SentenceJoint.COMMA)


def sentence_break(speech):
    speech.pause(SentenceJoint.BREAK)


def newline(speech):
    speech.end_line(full_stop=False)


def item_end(speech):
    speech.end_line(full_stop=True)


def test_text_keeps_its_spaces():
    assert said("  one", " ", " two ", "three  ") == "  one  two three  "


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (["one ", SpokenJoiner.leave_out, " two"], "one two"),
        (["one", SpokenJoiner.leave_out, "two"], "one two"),
        (["one ", SpokenJoiner.leave_out, "."], "one."),
        (["(", SpokenJoiner.leave_out, "one"], "(one"),
        ([SpokenJoiner.leave_out, " one ", SpokenJoiner.leave_out], "one"),
    ],
)
def test_what_is_left_out_leaves_one_space(steps, expected):
    assert said(*steps) == expected


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (["one ", comma, " Two"], "one, Two"),
        (["one:", comma, "two"], "one: two"),
        (["one", sentence_break, "two", sentence_break, "Three", sentence_break], "one, two. Three."),
        ([comma, "one", comma, newline, comma, "two", comma], "one\ntwo"),
    ],
)
def test_pause_is_settled_by_its_neighbours(steps, expected):
    assert said(*steps) == expected


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (
            ["one ", item_end, "two!", item_end, '"three."', item_end, "(four)", item_end],
            'one.\ntwo!\n"three."\n(four).\n',
        ),
        (["one", newline, "two", newline, newline, "three"], "one\ntwo.\n\nthree"),
        (["one", newline, "  ", SpokenJoiner.begin_item, "two"], "one.\ntwo"),
        ([item_end, "one"], "\none"),
    ],
)
def test_item_ends_as_sentence(steps, expected):
    assert said(*steps) == expected


def test_word_stands_apart():
    speech = SpokenJoiner()
    speech.say("(R")
    speech.say_apart("and")
    speech.say("D) ")
    speech.say_apart("so")
    speech.say(", yes")
    assert speech.take() == "(R and D) so, yes"
