"""What the demo prints: wrapped text in a pipe, turns that grow on a terminal."""

import io

import pytest
from rich.console import Console

from gateway.cli.demo_page import Page


@pytest.fixture
def out():
    return io.StringIO()


def pipe(out, width=78):
    return Page(Console(file=out, width=width, highlight=False, markup=False, emoji=False))


def terminal(out):
    return Page(Console(file=out, force_terminal=True, color_system="standard", no_color=False, width=78))


def test_parts_of_a_turn_are_printed_together(out):
    with pipe(out).chat({"caller": "Caller", "agent": "Maya"}, {}) as chat:
        chat.said("agent", "Hello.")
        chat.said("agent", "How can I help you?")
        assert out.getvalue() == ""
        chat.said("caller", "My name\nis Anna.")
        assert out.getvalue() == "Maya:    Hello. How can I help you?\n"
    assert out.getvalue().endswith("Caller:  My name is Anna.\n")


def test_long_turns_are_indented(out):
    with pipe(out, width=40).chat({"agent": "Maya"}, {}) as chat:
        chat.said("agent", "One two three four five six seven.", 0.412)
    assert out.getvalue() == "Maya:    One two three four five six\n         seven.  412 ms\n"


def test_terminal_shows_the_turn_that_is_spoken(out):
    page = terminal(out)
    with page.chat({"caller": "Caller", "agent": "Maya"}, {"caller": "cyan"}) as chat:
        chat.said("caller", "Hello.")
        chat.talking = "agent"
        page.console.print(chat.render())
    assert "Maya is speaking" in out.getvalue()
    assert "\033[1;36mCaller:  \033[0m\033[36mHello.\033[0m\n" in out.getvalue()


def test_command_is_never_broken(out):
    page = pipe(out, width=20)
    page.commands({"a-long-path/bin/gateway serve": "what it does, in some words"})
    assert out.getvalue() == ("  a-long-path/bin/gateway serve\n      what it does,\n      in some words\n")


def test_quotes_have_a_margin(out):
    pipe(out).quoted("One.\n\nTwo.")
    assert out.getvalue() == "  │ One.\n  │\n  │ Two.\n"
