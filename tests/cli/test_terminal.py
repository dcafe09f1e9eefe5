"""What a person sees on a terminal, and what a pipe gets."""

import io
import os
import pty
import subprocess
import sys

import pytest
from rich.text import Text

from gateway.cli.terminal import as_text, fitted, line, make_console, named, one_line, progress, short_id, show, table

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


def test_figures_are_set_right() -> None:
    rows = [("a", "1:07"), ("b", "12:00")]
    assert (
        as_text(table(rows, head=("call", "length"), figures=["length"]))
        == "call  length\na       1:07\nb      12:00\n"
    )


def test_widest_columns_become_narrower_first() -> None:
    assert fitted([10, 40, 20], [10, 12, 8], 50) == [10, 20, 20]
    assert fitted([10, 40, 20], [10, 12, 8], 28) == [10, 10, 8]  # less than the words need
    assert fitted([4, 5], [4, 5], 80) == [4, 5]


def test_narrow_tables_break_between_words() -> None:
    page = io.StringIO()
    rows = [("3f2a91c0", "2026-02-06 23:15", "Anna Brown +12025550143")]
    make_console(page, width=34).print(table(rows, head=("call", "time", "caller")))
    shown = [line.rstrip() for line in page.getvalue().splitlines()]
    assert shown == [
        "call      time        caller",
        "3f2a91c0  2026-02-06  Anna Brown",
        "          23:15       +12025550143",
    ]


def test_row_without_room_for_its_words_becomes_a_list() -> None:
    page = io.StringIO()
    rows = [("3f2a91c0", "Anna Brown +12025550143", "caller hung up", ""), ("7d3ee116", "withheld", "failed", "x")]
    make_console(page, width=30).print(table(rows, head=("call", "caller", "outcome", "post-call")))
    assert [line.rstrip() for line in page.getvalue().splitlines()] == [
        "call     3f2a91c0",
        "caller   Anna Brown",
        "         +12025550143",
        "outcome  caller hung up",
        "",
        "call       7d3ee116",
        "caller     withheld",
        "outcome    failed",
        "post-call  x",
        "",
    ]


def test_figures_keep_their_unit() -> None:
    page = io.StringIO()
    rows = [("end of turn", "400 ms"), ("first audio", "1.08 s")]
    make_console(page, width=16).print(table(rows, head=("stage", "p50"), figures=("p50",)))
    assert [line.rstrip() for line in page.getvalue().splitlines()] == [
        "stage        p50",
        "end of    400 ms",
        "turn",
        "first     1.08 s",
        "audio",
    ]


def test_callers_are_named() -> None:
    assert [named("+12025550143", ""), named("", "")] == ["+12025550143", "withheld"]
    assert named("+12025550143", "Anna Brown") == "Anna Brown +12025550143"


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
    with progress("working", total=1) as line:
        line.step("still working")
        line.note("done")
        line.advance()
    assert stderr.getvalue() == ""


PROGRESS = """
from gateway.cli.terminal import progress
with progress("reading", total=2) as line:
    line.advance()
    line.step("writing")
    line.note("one is done")
"""


def test_progress_names_the_step_on_a_terminal() -> None:
    person, terminal = pty.openpty()
    subprocess.run([sys.executable, "-c", PROGRESS], stderr=terminal, env={**os.environ, "TERM": "xterm"}, check=True)
    os.close(terminal)
    shown = os.read(person, 10_000).decode()
    os.close(person)
    assert "writing" in shown and "1/2" in shown and "one is done" in shown


def test_session_id_is_shortened() -> None:
    assert short_id("voice-session:3f2a91c0-aaaa") == "3f2a91c0"
