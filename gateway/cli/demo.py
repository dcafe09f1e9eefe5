"""`gateway demo`: two calls by one caller, without a key or an account."""

import argparse
import asyncio
import io
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from gateway import logs
from gateway.cli.ephemeral_gateway import own_gateway
from gateway.cli.replay import speed
from gateway.cli.terminal import make_console
from gateway.replay.demo import run_demo
from gateway.replay.recording import CallHeader
from gateway.simulate.word_error import WordError
from gateway.speech import model_files

if TYPE_CHECKING:
    from gateway.simulate.local_demo import TranscribedTurn

DESCRIPTION: Final = (
    "Start a real gateway, phone it twice with a synthetic voice, and show what it heard, stored and remembered. Needs "
    "no key and no account. Without the extra `local` it plays two recorded calls instead."
)
TERMINAL_SPEED: Final = 8.0
"""Times faster than real time, on a terminal."""
LOCAL_SPEED: Final = 3.0
"""The same for the local engine, whose models need time of their own."""
WIDTH: Final = 78
"""Columns of the text, which is also quoted in documentation."""

_FIRST, _SECOND = "First call", "Second call, same caller"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--speed", type=speed, metavar="N", help="1: real time; 0: as fast as possible")
    parser.add_argument(
        "--recorded", action="store_true", help="play two recorded calls, as a cloud engine answered them"
    )


def run(options: argparse.Namespace) -> int:
    logs.keep_quiet()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without box characters still shows the words
    page = Page(make_console(sys.stdout, width=WIDTH))
    if options.recorded or not model_files.are_installed():
        return _play_recorded(page, options.speed)
    return _speak(page, options.speed)


def _play_recorded(page: "Page", given_speed: float | None) -> int:
    pace = given_speed if given_speed is not None else TERMINAL_SPEED if sys.stdout.isatty() else 0.0
    story = RecordedStory(page)
    result = asyncio.run(run_demo(own_gateway, story, speed=pace))
    if not result.remembered:
        print("gateway: the agent got nothing from the first call", file=sys.stderr)
        return 1
    story.closing()
    return 0


def _speak(page: "Page", given_speed: float | None) -> int:
    from gateway.simulate.local_demo import run_local_demo  # imports numpy

    story = LocalStory(page)
    result = asyncio.run(run_local_demo(own_gateway, story, speed=given_speed or LOCAL_SPEED))
    if not result.remembered:
        print("gateway: in the second call the agent did not remember the first", file=sys.stderr)
        return 1
    story.closing(result.error)
    return 0


class Page:
    """Headings, paragraphs, quotes and a transcript, on a console of fixed width."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._speaker = ""

    def heading(self, text: str) -> None:
        self._speaker = ""
        self._console.print()
        self._console.print(Rule(Text(text, "bold"), align="left", style="bold"))

    def line(self, text: str = "", style: str = "") -> None:
        self._print_wrapped(text, style)

    def quoted(self, text: str, style: str) -> None:
        for paragraph in text.strip().splitlines():
            self._print_wrapped(paragraph, style, first="  │ ", rest="  │ ")

    def said(self, name: str, text: str, style: str = "") -> None:
        """A turn beside its speaker's name, which is not repeated."""
        label = f"{name}:" if name != self._speaker else ""
        self._speaker = name
        self._print_wrapped(text, style, first=f"{label:9}", rest=" " * 9)

    def _print_wrapped(self, text: str, style: str, *, first: str = "", rest: str = "") -> None:
        for number, part in enumerate(Text(text).wrap(self._console, WIDTH - len(rest)) or [Text("")]):
            self._console.print(Text(f"{rest if number else first}{part.plain}".rstrip(), style))


class LocalStory:
    """Narrates calls with a synthetic voice and the local engine."""

    def __init__(self, page: Page) -> None:
        self._page = page

    def gateway_runs(self, url: str) -> None:
        self._page.line("Voice Gateway demo", "bold")
        self._page.line(
            f"A real gateway is running at {url}. A synthetic voice phones it twice. The local engine listens and "
            "speaks, and a scripted agent answers, all on this machine and live. Nothing is recorded."
        )

    def phone_rings(self, number: int, caller: str, called: str) -> None:
        self._page.heading(_FIRST if number == 1 else _SECOND)
        self._page.line(f"{caller} calls {called}. They talk …")
        self._page.line()

    def transcript(self, turns: "Sequence[TranscribedTurn]", error: WordError) -> None:
        for turn in turns:
            if turn.speaker == "AGENT":
                self._page.said("Maya", turn.heard)
            else:
                self._page.said("Caller", turn.said, "dim")
                self._page.said("  heard", turn.heard, "cyan")
        self._page.line()
        self._page.line(f"Word error rate: {error}.")

    def document_kept(self, document: str) -> None:
        self._page.heading("What is stored")
        self._page.line("One document, written without a language model: it quotes sentences from the call.")
        self._page.quoted(document, "dim")

    def closing(self, error: WordError) -> None:
        self._page.heading("What you saw")
        self._page.line(
            f"Two calls, understood with a word error rate of {error}. What Maya said about the first call in the "
            "second one came from the gateway's memory."
        )
        self._page.line("Next: talk to it yourself with `gateway call`. Then your own number: see README.md.", "bold")


class RecordedStory:
    """Narrates two recorded calls."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._agent = ""
        self._call = 0

    def gateway_runs(self, url: str) -> None:
        self._page.line("Voice Gateway demo", "bold")
        self._page.line(
            f"A real gateway is running at {url}. Carrier and voice engine are recordings of two calls; everything "
            "between them runs live, faster than real time."
        )

    def phone_rings(self, number: int, header: CallHeader) -> None:
        self._call = number
        self._agent = str(header.agent["name"]).capitalize()
        self._page.heading(_FIRST if number == 1 else _SECOND)
        self._page.line(f"{header.caller} calls {header.called} ({header.carrier.capitalize()}).")

    def agent_prompted(self, memory: str) -> None:
        if self._call == 1:
            self._page.line(f"{self._agent} picks up. Memory of earlier calls in the prompt: {memory}")
        else:
            self._page.line(f"{self._agent} picks up. Memory of earlier calls in the prompt:")
            self._page.quoted(memory, "green")
        self._page.line()

    def said(self, speaker: str, text: str) -> None:
        if speaker == "user":
            self._page.said("Caller", text, "cyan")
        else:
            self._page.said(self._agent, text)

    def caller_hung_up(self, seconds: float) -> None:
        self._page.line()
        self._page.line(f"The caller hangs up after {seconds:.0f} seconds.")

    def document_kept(self, document: str) -> None:
        self._page.heading("What is stored")
        self._page.line(
            "One document. No key for a language model is set, so the summary quotes sentences from the call."
        )
        self._page.quoted(document, "dim")

    def closing(self) -> None:
        self._page.heading("What you saw")
        self._page.line(
            f"{self._agent}'s words are recorded. Her memory of the first call is not: the gateway stored it, found it "
            "when the phone rang again, and put it into her prompt before she said hello."
        )
        self._page.line("Next: your own number. See README.md.", "bold")
