"""`gateway demo`: what the gateway does, without a key or an account."""

import argparse
import asyncio
import io
import sys
import textwrap
from typing import Any, Final, TextIO

from gateway import logs
from gateway.cli.own_gateway import own_gateway
from gateway.cli.replay import speed
from gateway.replay.demo import run_demo
from gateway.replay.recording import CallHeader

WIDTH: Final = 78
TERMINAL_SPEED: Final = 8.0
"""So many times faster than life, when a person is looking."""

_LABEL: Final = 9
_BOLD, _DIM, _CYAN, _GREEN, _PLAIN = "\033[1m", "\033[2m", "\033[36m", "\033[32m", "\033[0m"


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "demo",
        help="two calls of one caller, no key needed",
        description="Start a real gateway, play two recorded calls of one caller into it, and show what the agent "
        "was told the second time. Needs no key and no account.",
    )
    parser.add_argument("--speed", type=speed, metavar="N", help="1 is real time; 0 as fast as it goes")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    logs.keep_quiet()
    pace = options.speed if options.speed is not None else TERMINAL_SPEED if sys.stdout.isatty() else 0.0
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without our dashes still shows the words
    story = Story(sys.stdout, colour=sys.stdout.isatty())
    ending = asyncio.run(run_demo(own_gateway, story, speed=pace))
    if not ending.remembered:
        print("gateway: the agent was not told about the first call", file=sys.stderr)
        return 1
    story.closing()
    return 0


class Story:
    """Tells the demonstration on a terminal of 80 columns."""

    def __init__(self, out: TextIO, *, colour: bool) -> None:
        self._out = out
        self._colour = colour
        self._agent = ""
        self._call = 0
        self._speaker = ""

    def gateway_runs(self, url: str) -> None:
        self._line("Voice Gateway, demonstration", _BOLD)
        self._paragraph(
            f"A real gateway runs at {url}. Carrier and voice engine are recordings of two calls; everything "
            "between them happens now, faster than life."
        )

    def phone_rings(self, number: int, header: CallHeader) -> None:
        self._call, self._speaker = number, ""
        self._agent = str(header.agent["name"]).capitalize()
        title = "The first call" if number == 1 else "The second call, by the same caller"
        self._heading(title)
        self._line(f"The phone rings: {header.caller} calls {header.called} ({header.carrier.capitalize()}).")

    def agent_told(self, memory: str) -> None:
        if self._call == 1:
            self._paragraph(f"{self._agent} picks up. What she was told of earlier calls: {memory}")
        else:
            self._line(f"{self._agent} picks up. What she was told of earlier calls, word for word:")
            self._quoted(memory, _GREEN)
        self._line("")

    def said(self, speaker: str, text: str) -> None:
        name = "Caller" if speaker == "user" else self._agent
        label = f"{name}:" if name != self._speaker else ""
        self._speaker = name
        for line in textwrap.wrap(text, WIDTH - _LABEL):
            self._line(f"{label:{_LABEL}}{line}", _CYAN if speaker == "user" else "")
            label = ""

    def caller_hung_up(self, seconds: float) -> None:
        self._line("")
        self._line(f"The caller hangs up after {seconds:.0f} seconds.")

    def document_kept(self, document: str) -> None:
        self._heading("What is kept")
        self._paragraph(
            "One document in the store. No key for a language model is set, so rules wrote it: they pick sentences "
            "that were said, and invent none."
        )
        self._quoted(document, _DIM)

    def closing(self) -> None:
        self._heading("What you saw")
        self._paragraph(
            f"{self._agent}'s words are recorded. What she was told of the first call is not: the gateway kept it, "
            "found it when the phone rang again, and gave it to her before she said hello."
        )
        self._line('Next: your own number. See README.md, "A real number on a real phone".', _BOLD)

    # Lines

    def _heading(self, text: str) -> None:
        self._line("")
        self._line(f"── {text} {'─' * (WIDTH - len(text) - 4)}", _BOLD)

    def _paragraph(self, text: str) -> None:
        for line in textwrap.wrap(text, WIDTH):
            self._line(line)

    def _quoted(self, text: str, style: str) -> None:
        for line in text.strip().splitlines():
            for part in textwrap.wrap(line, WIDTH - 4, break_long_words=False) or [""]:
                self._line(f"  │ {part}".rstrip(), style)

    def _line(self, text: str, style: str = "") -> None:
        styled = f"{style}{text}{_PLAIN}" if style and self._colour and text else text
        print(styled, file=self._out, flush=True)
