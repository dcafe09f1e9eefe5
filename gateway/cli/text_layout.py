"""Pages of text for a terminal of 80 columns."""

import textwrap
from typing import Final, TextIO

WIDTH: Final = 78
BOLD, DIM, CYAN, GREEN = "\033[1m", "\033[2m", "\033[36m", "\033[32m"
_PLAIN: Final = "\033[0m"
_LABEL: Final = 9


class TextLayout:
    """Writes headings, paragraphs, quotes and what somebody said."""

    def __init__(self, out: TextIO, *, colour: bool) -> None:
        self._out = out
        self._colour = colour
        self._speaker = ""

    def heading(self, text: str) -> None:
        self._speaker = ""
        self.line("")
        self.line(f"── {text} {'─' * (WIDTH - len(text) - 4)}", BOLD)

    def paragraph(self, text: str) -> None:
        for line in textwrap.wrap(text, WIDTH):
            self.line(line)

    def quoted(self, text: str, style: str) -> None:
        for line in text.strip().splitlines():
            for part in textwrap.wrap(line, WIDTH - 4, break_long_words=False) or [""]:
                self.line(f"  │ {part}".rstrip(), style)

    def said(self, name: str, text: str, style: str = "") -> None:
        """Beside the speaker's name, which is not repeated."""
        label = f"{name}:" if name != self._speaker else ""
        self._speaker = name
        for line in textwrap.wrap(text, WIDTH - _LABEL):
            self.line(f"{label:{_LABEL}}{line}", style)
            label = ""

    def line(self, text: str, style: str = "") -> None:
        styled = f"{style}{text}{_PLAIN}" if style and self._colour and text else text
        print(styled, file=self._out, flush=True)
