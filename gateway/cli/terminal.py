"""
What commands print for a person: tables and colours on a terminal, plain aligned text in a pipe.

rich decides about colour (NO_COLOR, FORCE_COLOR, TERM). Cells and lines lose control characters here, because callers
choose their names and words.
"""

import contextlib
import io
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final, TextIO

import orjson
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

Cell = str | Text

_PIPE_WIDTH: Final = 10_000
"""Columns of a pipe: wide enough that nothing wraps, so one row stays one line."""
_CONTROL: Final = re.compile(r"[^\S ]+|[\x00-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]+")


def show(*parts: RenderableType, soft_wrap: bool = False) -> None:
    """Print to stdout. With `soft_wrap` a long line is left to the terminal to break."""
    console = make_console(sys.stdout)
    if console.is_terminal:
        console.print(*parts, sep="\n", soft_wrap=soft_wrap)
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


def make_console(file: TextIO, *, width: int | None = None) -> Console:
    return Console(file=file, width=width, highlight=False, markup=False, emoji=False)


@contextlib.contextmanager
def progress(step: str) -> Iterator[None]:
    """A spinner on stderr while the block runs, if a person is watching."""
    console = make_console(sys.stderr)
    with console.status(step) if console.is_terminal else contextlib.nullcontext():
        yield


def table(rows: Iterable[Sequence[Cell]], *, head: Sequence[str] = (), indent: int = 0) -> RenderableType:
    made = Table(box=None, show_header=bool(head), pad_edge=False, padding=(0, 2, 0, 0))
    lines = [[cell if isinstance(cell, Text) else line(cell) for cell in row] for row in rows]
    for index in range(len(lines[0]) if lines else len(head)):
        made.add_column(head[index] if head else "", overflow="fold")
    for cells in lines:
        made.add_row(*cells)
    return Padding(made, (0, 0, 0, indent))


def line(text: str, style: str = "") -> Text:
    return Text(one_line(text), style)


def one_line(text: str) -> str:
    """Text from a call without line breaks and control characters."""
    return _CONTROL.sub(" ", text).strip()


# Figures


def count(number: int, noun: str, plural: str = "") -> str:
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.0f} ms"


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"


def minute(time: str) -> str:
    """Local time, to the minute."""
    return f"{datetime.fromisoformat(time).astimezone():%Y-%m-%d %H:%M}"


def clock(time: str) -> str:
    """Local time of day."""
    return f"{datetime.fromisoformat(time).astimezone():%H:%M:%S}"


def short_id(session_id: str) -> str:
    """The first eight characters of a session's UUID, which commands accept in its place."""
    return session_id.removeprefix("voice-session:")[:8]
