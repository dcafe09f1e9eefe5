"""`gateway demo`: what the gateway does, without a key or an account."""

import argparse
import asyncio
import io
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from gateway import logs
from gateway.cli.ephemeral_gateway import own_gateway
from gateway.cli.replay import speed
from gateway.cli.text_layout import BOLD, CYAN, DIM, GREEN, TextLayout
from gateway.replay.demo import run_demo
from gateway.replay.recording import CallHeader
from gateway.simulate.word_error import WordError
from gateway.speech import model_files

if TYPE_CHECKING:
    from gateway.simulate.local_demo import TranscribedTurn

TERMINAL_SPEED: Final = 8.0
"""So many times faster than life, when a person is looking."""
LOCAL_SPEED: Final = 3.0
"""The same where models listen and speak: they need some time themselves."""

_FIRST, _SECOND = "The first call", "The second call, by the same caller"


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "demo",
        help="two calls of one caller, no key needed",
        description="Start a real gateway, phone it twice with a synthetic voice, and show what it heard, kept and "
        "remembered. Needs no key and no account. Without the extra `local` it plays two recorded calls instead.",
    )
    parser.add_argument("--speed", type=speed, metavar="N", help="1 is real time; 0 as fast as it goes")
    parser.add_argument("--recorded", action="store_true", help="two recorded calls: what a cloud engine would do")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    logs.keep_quiet()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without our dashes still shows the words
    page = TextLayout(sys.stdout, colour=sys.stdout.isatty())
    if options.recorded or not model_files.are_installed():
        return _play_recorded(page, options.speed)
    return _speak(page, options.speed)


def _play_recorded(page: TextLayout, given_speed: float | None) -> int:
    pace = given_speed if given_speed is not None else TERMINAL_SPEED if sys.stdout.isatty() else 0.0
    story = Story(page)
    job = asyncio.run(run_demo(own_gateway, story, speed=pace))
    if not job.remembered:
        print("gateway: the agent was not told about the first call", file=sys.stderr)
        return 1
    story.closing()
    return 0


def _speak(page: TextLayout, given_speed: float | None) -> int:
    from gateway.simulate.local_demo import run_local_demo  # arithmetic with sound, which a server does without

    story = LocalStory(page)
    job = asyncio.run(run_local_demo(own_gateway, story, speed=given_speed or LOCAL_SPEED))
    if not job.remembered:
        print("gateway: the agent did not know in the second call what was said in the first", file=sys.stderr)
        return 1
    story.closing(job.error)
    return 0


class LocalStory:
    """Tells of calls that were spoken and heard."""

    def __init__(self, page: TextLayout) -> None:
        self._page = page

    def gateway_runs(self, url: str) -> None:
        self._page.line("Voice Gateway, demonstration", BOLD)
        self._page.paragraph(
            f"A real gateway runs at {url}. A synthetic voice phones it twice; the local engine listens, a scripted "
            "agent answers and a voice speaks, all on this machine and now. Nothing of it is recorded."
        )

    def phone_rings(self, number: int, caller: str, called: str) -> None:
        self._page.heading(_FIRST if number == 1 else _SECOND)
        self._page.line(f"The phone rings: {caller} calls {called}. They talk …")
        self._page.line("")

    def transcript(self, turns: "Sequence[TranscribedTurn]", error: WordError) -> None:
        for turn in turns:
            if turn.speaker == "AGENT":
                self._page.said("Maya", turn.heard)
            else:
                self._page.said("Caller", turn.said, DIM)
                self._page.said("  heard", turn.heard, CYAN)
        self._page.line("")
        self._page.line(f"Word error: {error}.")

    def document_kept(self, document: str) -> None:
        self._page.heading("What is kept")
        self._page.paragraph("One document, written by rules: they pick sentences that were heard, and invent none.")
        self._page.quoted(document, DIM)

    def closing(self, error: WordError) -> None:
        self._page.heading("What you saw")
        self._page.paragraph(
            f"Two calls, understood with a word error of {error}. What Maya said of the first call in the second, the "
            "gateway had kept and found again by itself."
        )
        self._page.line("Next: talk to it yourself, `gateway call`. Then your own number: see README.md.", BOLD)


class Story:
    """Tells of two recorded calls."""

    def __init__(self, page: TextLayout) -> None:
        self._page = page
        self._agent = ""
        self._call = 0

    def gateway_runs(self, url: str) -> None:
        self._page.line("Voice Gateway, demonstration", BOLD)
        self._page.paragraph(
            f"A real gateway runs at {url}. Carrier and voice engine are recordings of two calls; everything "
            "between them happens now, faster than life."
        )

    def phone_rings(self, number: int, header: CallHeader) -> None:
        self._call = number
        self._agent = str(header.agent["name"]).capitalize()
        self._page.heading(_FIRST if number == 1 else _SECOND)
        self._page.line(f"The phone rings: {header.caller} calls {header.called} ({header.carrier.capitalize()}).")

    def agent_prompted(self, memory: str) -> None:
        if self._call == 1:
            self._page.paragraph(f"{self._agent} picks up. What she was told of earlier calls: {memory}")
        else:
            self._page.line(f"{self._agent} picks up. What she was told of earlier calls, word for word:")
            self._page.quoted(memory, GREEN)
        self._page.line("")

    def said(self, speaker: str, text: str) -> None:
        if speaker == "user":
            self._page.said("Caller", text, CYAN)
        else:
            self._page.said(self._agent, text)

    def caller_hung_up(self, seconds: float) -> None:
        self._page.line("")
        self._page.line(f"The caller hangs up after {seconds:.0f} seconds.")

    def document_kept(self, document: str) -> None:
        self._page.heading("What is kept")
        self._page.paragraph(
            "One document in the store. No key for a language model is set, so rules wrote it: they pick sentences "
            "that were said, and invent none."
        )
        self._page.quoted(document, DIM)

    def closing(self) -> None:
        self._page.heading("What you saw")
        self._page.paragraph(
            f"{self._agent}'s words are recorded. What she was told of the first call is not: the gateway kept it, "
            "found it when the phone rang again, and gave it to her before she said hello."
        )
        self._page.line('Next: your own number. See README.md, "A real number on a real phone".', BOLD)
