"""`gateway demo` from outside."""

import contextlib
import io
import re
import sys

import pytest
from rich.console import Console

from gateway.cli.demo import Page, TranscribedTurn, aligned, error_of, is_remembered
from gateway.cli.main import main


@pytest.fixture(scope="module")
def story():
    """What the demonstration prints where nobody looks."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["demo", "--recorded"]) == 0
    return out.getvalue()


@pytest.fixture(scope="module")
def spoken_story():
    """The same where voices and ears are real: faster than a busy machine can speak, the caller cuts in."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["demo", "--speed", "2"]) == 0
    return out.getvalue()


def test_spoken_calls_are_heard(spoken_story):
    assert "Caller:  My appointment is on Thursday at ten in the morning.\n  heard: " in spoken_story


def test_second_call_knows_of_the_first(spoken_story):
    second = spoken_story[spoken_story.index("Second call") :]
    assert "Welcome back" in second
    assert "Last time you said:" in second.replace("\n         ", " ")


def test_word_error_is_told(spoken_story):
    both = re.search(r"word error rate of (\d+\.\d)%", spoken_story.replace("\n", " "))
    assert float(both[1]) < 15
    assert len(re.findall(r"Word error rate: \d+\.\d% \(", spoken_story)) == 2


def test_spoken_demo_fits_a_terminal(spoken_story):
    assert max(len(line) for line in spoken_story.splitlines()) <= 80


def test_without_the_extra_calls_are_recorded_ones(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "moonshine_voice", None)  # as if it were not installed
    assert main(["demo"]) == 0
    assert "Carrier and voice engine are recordings" in capsys.readouterr().out.replace("\n", " ")


def test_demo_tells_both_calls(story):
    assert "Caller:  Hi, my name is Ana." in story
    assert "Caller:  Hi, it's me again. When was I supposed to bring my bike in?" in story


def test_demo_shows_what_the_agent_was_told(story):
    told = story[story.index("in the prompt:\n") :]
    assert "  │ <call_notes>\n" in told
    assert "Agent: You're booked for Thursday at ten." in told.replace("\n  │ ", " ")
    assert "Nothing: there are no notes" in story[: story.index("What is stored")].replace("\n", " ")


def test_demo_fits_a_terminal(story):
    assert max(len(line) for line in story.splitlines()) <= 80
    assert "\033" not in story


def test_demo_says_what_is_next(story):
    assert story.splitlines()[-1] == "Next: your own number. See README.md."


def test_terminal_gets_colour():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system="standard", no_color=False, width=78)
    Page(console).said("Caller", "Hello.", "cyan")
    assert out.getvalue() == "\033[36mCaller:  Hello.\033[0m\n"


def test_agent_who_knows_nothing_is_noticed():
    document = "# Call\n\n### Context for Next Call\nAna's bike is green.\n"
    assert is_remembered(document, "Notes: Ana's bike is green.")
    assert not is_remembered(document, "Nothing: there are no notes.")
    assert not is_remembered("# Call\n", "Notes")


LINES = ("My name is Anna.", "Thank you, goodbye.")


def test_line_stands_at_its_first_turn():
    transcript = [
        ("AGENT", "Hello."),
        ("CALLER", "My name"),
        ("CALLER", "is Anna."),
        ("AGENT", "Hello Anna."),
        ("CALLER", "Thank you goodbye."),
    ]
    turns = aligned(LINES, transcript)
    assert [turn.said for turn in turns] == ["", LINES[0], "", "", LINES[1]]
    assert error_of(turns).errors == 0


def test_line_that_was_not_recognized_is_all_errors():
    turns = aligned(LINES, [("CALLER", "My name is Anna.")])
    assert turns[-1] == TranscribedTurn("CALLER", "", LINES[1])
    assert (error_of(turns).errors, error_of(turns).words) == (3, 7)
