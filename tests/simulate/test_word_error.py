import pytest

from gateway.simulate.word_error import WordError, word_error


@pytest.mark.parametrize(
    "said, heard, errors",
    [
        ("Hello, how are you?", "hello how are you", 0),
        ("Hello, how are you?", "Hello, who are you?", 1),
        ("Hello, how are you?", "how are you", 1),
        ("Hello, how are you?", "Oh, hello, how are you?", 1),
        ("Hello, how are you?", "", 4),
        ("It is four seven two.", "It is 472.", 0),
        ("At half past ten.", "At half-past 10.", 0),
        ("It is four seven two.", "It is 482.", 1),
        ("Thank you, goodbye.", "Thank you, good-bye.", 0),
        ("It's three o'clock.", "It’s 3 o'clock", 0),
    ],
)
def test_words_are_compared_not_letters(said, heard, errors):
    assert word_error(said, heard).errors == errors


def test_errors_add_up():
    both = word_error("one two", "one") + word_error("hello there", "hello there")
    assert both == WordError(1, 4)
    assert str(both) == "25.0% (1 of 4 words)"
    assert WordError(0, 0).share == 0.0
