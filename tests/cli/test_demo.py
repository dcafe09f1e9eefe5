"""`gateway demo` from outside."""

import contextlib
import io

import pytest

from gateway.cli.demo import Story
from gateway.cli.main import main
from gateway.replay.demo import Ending


@pytest.fixture(scope="module")
def story():
    """What the demonstration prints where nobody looks."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["demo"]) == 0
    return out.getvalue()


def test_demo_tells_both_calls(story):
    assert "Caller:  Hi, my name is Ana." in story
    assert "Caller:  Hi, it's me again. When was I supposed to bring my bike in?" in story


def test_demo_shows_what_the_agent_was_told(story):
    told = story[story.index("word for word:") :]
    assert "  │ <call_notes>\n" in told
    assert "Caller: Let's book Thursday at ten." in told
    assert "Nothing: there are no notes" in story[: story.index("What is kept")]


def test_demo_fits_a_terminal(story):
    assert max(len(line) for line in story.splitlines()) <= 80
    assert "\033" not in story


def test_demo_says_what_is_next(story):
    assert story.splitlines()[-1] == 'Next: your own number. See README.md, "A real number on a real phone".'


def test_terminal_gets_colour():
    out = io.StringIO()
    Story(out, colour=True).said("user", "Hello.")
    assert out.getvalue() == "\033[36mCaller:  Hello.\033[0m\n"


def test_agent_who_knows_nothing_is_noticed():
    assert Ending(context="Ana's bike is green.", told="Notes: Ana's bike is green.").remembered
    assert not Ending(context="Ana's bike is green.", told="Nothing: there are no notes.").remembered
    assert not Ending(context="", told="Notes").remembered
