"""The page of `gateway demo`: headings, paragraphs, quotes, and the turns of a call as they are spoken."""

import contextlib
import time
from collections.abc import Iterator
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.rule import Rule
from rich.spinner import Spinner
from rich.text import Text

from gateway.cli.terminal import one_line
from gateway.text.figures import duration, milliseconds

WIDTH: Final = 78
"""Columns of the text, which is also quoted in documentation."""
_NAME_WIDTH: Final = 9


class Page:
    """Prints to a console, at most WIDTH columns wide."""

    def __init__(self, console: Console) -> None:
        self.console = console
        console.width = min(WIDTH, console.width)

    def heading(self, text: str) -> None:
        self.console.print()
        self.console.print(Rule(Text(text, "bold"), align="left", style="bold"))

    def line(self, text: str = "", style: str = "", *, first: str = "", rest: str = "") -> None:
        """A paragraph. `first` and `rest` are the margins of its first line and of the others."""
        for part in self._wrapped(text, style, first, rest):
            self.console.print(part)

    def quoted(self, text: str, style: str = "dim") -> None:
        for paragraph in text.strip().splitlines():
            self.line(paragraph, style, first="  │ ", rest="  │ ")

    def commands(self, commands: dict[str, str]) -> None:
        """What can be typed, each with what it does below it."""
        for command, what in commands.items():
            # A command that is broken into lines can't be copied.
            self.console.print(Text(f"  {command}", "bold cyan"), soft_wrap=True)
            self.line(what, "dim", first="      ", rest="      ")

    def turn(self, name: str, text: str, style: str = "", *, note: str = "") -> list[Text]:
        """A turn beside its speaker's name, with a remark behind it."""
        label = f"{name + ':':{_NAME_WIDTH}}"
        lines = self._wrapped(one_line(text), style, label, " " * _NAME_WIDTH)
        lines[0].stylize("bold", 0, len(label))
        if note and len(lines[-1]) + len(note) + 2 > self.console.width:
            lines.append(Text(" " * _NAME_WIDTH + note, "dim"))
        elif note:
            lines[-1].append(f"  {note}", "dim")
        return lines

    def _wrapped(self, text: str, style: str, first: str, rest: str) -> list[Text]:
        parts = Text(text).wrap(self.console, self.console.width - len(rest)) or [Text("")]
        return [Text(f"{rest if at else first}{part.plain}".rstrip(), style) for at, part in enumerate(parts)]

    @contextlib.contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """A spinner on a terminal while the block runs."""
        with self.console.status(text) if self.console.is_terminal else contextlib.nullcontext():
            yield

    @contextlib.contextmanager
    def chat(self, names: dict[str, str], styles: dict[str, str]) -> Iterator["Chat"]:
        """The turns of one call. On a terminal they grow while spoken; in a pipe each is printed at its end."""
        chat = Chat(self, names, styles)
        live = Live(get_renderable=chat.render, console=self.console, transient=True, refresh_per_second=10)
        with live if self.console.is_terminal else contextlib.nullcontext():
            yield chat
            chat.finish_turn()


class Chat:
    """Prints finished turns, and renders the one that is being spoken. Names and styles are by speaker."""

    def __init__(self, page: Page, names: dict[str, str], styles: dict[str, str]) -> None:
        self._page = page
        self._names = names
        self._styles = styles
        self._began = time.monotonic()
        self._spinner = Spinner("dots", style="dim")
        self._speaker = self._text = self._note = ""
        self.talking = ""
        """Who can be heard now."""

    def said(self, speaker: str, text: str, latency: float | None = None) -> None:
        """A turn, or the next part of it."""
        if speaker != self._speaker:
            self.finish_turn()
        self._speaker = speaker
        self._text = f"{self._text} {text}".strip()
        if latency is not None:
            self._note = milliseconds(latency)

    def finish_turn(self) -> None:
        for line in self._lines():
            self._page.console.print(line)
        self._speaker = self._text = self._note = ""

    def render(self) -> RenderableType:
        """The turn that is being spoken, and who can be heard."""
        seconds = duration(time.monotonic() - self._began)
        name = self._names.get(self.talking, "")
        self._spinner.update(text=Text(f"{seconds}  {name} is speaking" if name else seconds, "dim"))
        return Group(*self._lines(), self._spinner)

    def _lines(self) -> list[Text]:
        if not self._speaker:
            return []
        return self._page.turn(
            self._names[self._speaker], self._text, self._styles.get(self._speaker, ""), note=self._note
        )
