"""What a person sees on a terminal, and what a pipe gets."""

import io
import os
import pty
import subprocess
import sys

import pytest
from rich.text import Text

from gateway.cli.terminal import as_text, count, duration, line, milliseconds, one_line, progress, short_id, show, table

ROWS = [("a", "first"), ("bcd", "second " * 60)]
SHOW = """
from rich.text import Text
from gateway.cli.terminal import show
show(Text("red", "red"))
"""


def test_pipe_gets_aligned_columns_of_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    show(table(ROWS), "end")
    assert capsys.readouterr().out == f"a    first\nbcd  {'second ' * 59}second\nend\n"


def test_table_has_a_head_and_an_indent() -> None:
    assert as_text(table([("1", "2")], head=("one", "two"), indent=2)) == "  one  two\n  1    2\n"


def test_empty_cells_leave_no_trace() -> None:
    assert as_text(table([("voice-session:3f2a91c0", "maya", "")], indent=2)) == "  voice-session:3f2a91c0  maya\n"


def test_pipe_gets_no_colour() -> None:
    assert as_text(Text("failed", "red")) == "failed\n"


@pytest.mark.parametrize(("environ", "is_red"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_terminal_gets_colour_unless_it_declines(environ: dict[str, str], is_red: bool) -> None:
    person, terminal = pty.openpty()
    given = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    subprocess.run([sys.executable, "-c", SHOW], stdout=terminal, env={**given, "TERM": "xterm", **environ}, check=True)
    os.close(terminal)
    shown = os.read(person, 1000)
    os.close(person)
    assert (b"\x1b[31mred" in shown) == is_red
    assert b"red" in shown


def test_cells_lose_control_characters() -> None:
    hostile = "a\x1b[2Jb\nc\u202ed"
    assert one_line(hostile) == line(hostile).plain == "a [2Jb c d"
    assert as_text(table([(hostile, "next")])) == "a [2Jb c d  next\n"


def test_markup_of_callers_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    show("[bold]:smile:[/bold]", table([("[red]", ":+1:")]))
    assert capsys.readouterr().out == "[bold]:smile:[/bold]\n[red]  :+1:\n"


def test_progress_is_silent_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    with progress("working"):
        pass
    assert stderr.getvalue() == ""


def test_figures_are_short() -> None:
    assert (count(1, "call"), count(1200, "call")) == ("1 call", "1,200 calls")
    assert (milliseconds(0.84), milliseconds(None)) == ("840 ms", "-")
    assert (duration(67.2), duration(0)) == ("1:07", "0:00")
    assert short_id("voice-session:3f2a91c0-aaaa") == "3f2a91c0"
