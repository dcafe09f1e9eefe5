"""
What commands print for a person: tables and colours on a terminal, plain aligned text in a pipe.

rich decides about colour (NO_COLOR, FORCE_COLOR, TERM). Cells and lines lose control characters here, because callers
choose their names and words.
"""

import contextlib
import io
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final, TextIO

import orjson
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from gateway.response_time import SLOW_SECONDS, CountedFrom
from gateway.text.figures import milliseconds

Cell = str | Text

_PIPE_WIDTH: Final = 10_000
"""Columns of a pipe: wide enough that nothing wraps, so one row stays one line."""
_GAP: Final = 2
"""Spaces between columns."""
_CONTROL: Final = re.compile(r"[^\S ]+|[\x00-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]+")


def show(*parts: RenderableType) -> None:
    """Print to stdout."""
    console = make_console(sys.stdout)
    if console.is_terminal:
        console.print(*parts, sep="\n")
    else:
        sys.stdout.write(as_text(*parts))
        sys.stdout.flush()


def output(as_json: bool, content: Any, text: Iterable[RenderableType]) -> None:
    """Print the content as JSON, or the text for a person."""
    if as_json:
        print(orjson.dumps(content, default=str).decode())
    else:
        show(*text)


def as_text(*parts: RenderableType) -> str:
    """The same as plain text, without trailing spaces."""
    plain = io.StringIO()
    console = Console(file=plain, width=_PIPE_WIDTH, color_system=None, highlight=False, markup=False, emoji=False)
    console.print(*parts, sep="\n")
    return "".join(f"{line.rstrip()}\n" for line in plain.getvalue().splitlines())


def is_terminal() -> bool:
    """Whether a person reads stdout."""
    return make_console(sys.stdout).is_terminal


def make_console(file: TextIO, *, width: int | None = None) -> Console:
    return Console(file=file, width=width, highlight=False, markup=False, emoji=False)


class ProgressLine:
    """The line that `progress` shows."""

    def __init__(self, shown: Progress, task: TaskID) -> None:
        self._shown = shown
        self._task = task

    def step(self, text: str) -> None:
        """Say what is being done now."""
        self._shown.update(self._task, description=one_line(text))

    def advance(self) -> None:
        """Count one of `total`."""
        self._shown.advance(self._task)

    def note(self, text: str) -> None:
        """Print a line above it, which stays."""
        if not self._shown.disable:
            self._shown.console.print(one_line(text))


@contextlib.contextmanager
def progress(step: str, total: int | None = None, *, per_second: int = 10) -> Iterator[ProgressLine]:
    """A line on stderr while the block runs: what is done, a bar of `total`, the time. Nothing in a pipe."""
    console = make_console(sys.stderr)
    bar = () if total is None else (BarColumn(), MofNCompleteColumn())
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), *bar, TimeElapsedColumn())
    options: dict[str, Any] = {"refresh_per_second": per_second, "disable": not console.is_terminal}
    with Progress(*columns, console=console, transient=True, **options) as shown:
        yield ProgressLine(shown, shown.add_task(step, total=total))


def table(
    rows: Iterable[Sequence[Cell]], *, head: Sequence[str] = (), figures: Collection[str] = (), indent: int = 0
) -> RenderableType:
    """Columns under bold heads. Cells break between words, but those under a head in `figures`, which are set right."""
    made = Table(box=None, show_header=bool(head), pad_edge=False, padding=(0, _GAP, 0, 0))
    lines = [[cell if isinstance(cell, Text) else line(cell) for cell in row] for row in rows]
    for name in head or [""] * len(lines[0]):
        made.add_column(name, overflow="fold", justify="right" if name in figures else "left")
    for cells in lines:
        made.add_row(*cells)
    return Padding(_FittedTable(made), (0, 0, 0, indent))


class _FittedTable:
    """
    A table as wide as the console. rich alone would break words while other columns have room.

    Where even words have no room, each row becomes a list, so that numbers and ids can still be copied.
    """

    def __init__(self, table: Table) -> None:
        self._table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        columns, words, whole = self._table.columns, [], []
        for column in columns:
            head, *cells = [Measurement.get(console, options, cell) for cell in (column.header, *column.cells)]
            is_figure = column.justify == "right"  # a number is not separated from its unit
            words.append(max([head.minimum, *(cell.maximum if is_figure else cell.minimum for cell in cells)]))
            whole.append(max([head.maximum, *(cell.maximum for cell in cells)]))
        room = options.max_width - _GAP * (len(columns) - 1)
        if sum(words) > room and any(column.header for column in columns):
            by_row = list(zip(*(column.cells for column in columns), strict=True))
            yield from (_as_list([column.header for column in columns], row) for row in by_row)
            return
        for column, width in zip(columns, fitted(whole, words, room), strict=True):
            column.width = width
        yield self._table


def _as_list(head: Sequence[RenderableType], row: Sequence[RenderableType]) -> RenderableType:
    """The cells of a row below each other, and an empty line."""
    made = Table(box=None, show_header=False, pad_edge=False, padding=(0, _GAP, 0, 0))
    made.add_column(no_wrap=True, style="bold")
    made.add_column(overflow="fold")
    for name, cell in zip(head, row, strict=True):
        if str(cell):
            made.add_row(name, cell)
    made.add_row("", "")
    return made


def fitted(whole: Sequence[int], words: Sequence[int], room: int) -> list[int]:
    """
    The widths of columns that have `room` in all, the widest made narrower first.

    A column becomes narrower than its longest word only if it must.
    """
    widths = list(whole)
    for least in (words, [1] * len(widths)):
        while sum(widths) > room and (wide := [n for n, width in enumerate(widths) if width > least[n]]):
            widths[max(wide, key=lambda n: widths[n])] -= 1
    return widths


def limited(limit: int, nouns: str) -> Text:
    """Below a list that is as long as its limit: there may be more."""
    return Text(f"at most {limit:,} {nouns}, the newest ones; --limit changes that", "dim")


def hanging(margin: Text, text: Text) -> RenderableType:
    """Text that breaks between words, to the right of its margin."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(margin, text)
    return grid


def line(text: str, style: str = "") -> Text:
    return Text(one_line(text), style)


def one_line(text: str) -> str:
    """Text from a call without line breaks and control characters."""
    return _CONTROL.sub(" ", text).strip()


def printable(text: str) -> str:
    """The same, with spaces before and after it kept."""
    return _CONTROL.sub(" ", text)


# Figures


def response_time(seconds: float, counted_from: str | None) -> Text:
    """With a note if it is not counted from the caller's last voiced frame."""
    note = CountedFrom(counted_from or CountedFrom.ENGINE).note
    style = "red" if seconds >= SLOW_SECONDS else "dim"
    return Text(f"{milliseconds(seconds)}{note and f' {note}'}", style)


def day(time: datetime) -> str:
    """Local date, with its zone."""
    return f"{time.astimezone():%Y-%m-%d %Z}"


def minute(time: str) -> str:
    """Local time, to the minute, with its zone."""
    return f"{datetime.fromisoformat(time).astimezone():%Y-%m-%d %H:%M %Z}"


def second(time: str) -> str:
    """Local time, to the second, with its zone."""
    return f"{datetime.fromisoformat(time).astimezone():%Y-%m-%d %H:%M:%S %Z}"


def clock(time: str) -> str:
    """Local time of day, with its zone."""
    return f"{datetime.fromisoformat(time).astimezone():%H:%M:%S %Z}"


def named(caller: str, name: str) -> str:
    """A caller's number, and the name if it is known."""
    return " ".join(filter(None, (name, caller or "withheld")))


def short_id(session_id: str) -> str:
    """The first eight characters of a session's UUID, which commands accept in its place."""
    return session_id.removeprefix("voice-session:")[:8]
