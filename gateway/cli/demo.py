"""
`gateway demo`: two calls by one caller, without a key or an account.

With the extra `local`, a synthetic voice calls a real gateway; recognition, memory and answers are the gateway's own
work. Without it, two recorded calls are played into a real gateway. The store starts empty either way: what the agent
knows in the second call comes from the first.
"""

import argparse
import asyncio
import io
import re
import secrets
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

import httpx
from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from gateway import extras, logs
from gateway.cli.replay import speed
from gateway.cli.terminal import make_console
from gateway.replay.harness import ReplayHarness, replay_harness
from gateway.replay.recording import RecordedFrame, Recording, read
from gateway.settings import Secret, Settings
from gateway.simulate.frames import JsonFrame
from gateway.simulate.gateway_under_test import GatewayAddress, GatewayApi, own_gateway
from gateway.simulate.softphone import phone_line
from gateway.simulate.word_error import WordError, word_error

DESCRIPTION: Final = (
    "Start a real gateway, phone it twice with a synthetic voice, and show what it heard, stored and remembered. Needs "
    "no key and no account. Without the extra `local` it plays two recorded calls instead."
)
WIDTH: Final = 78
"""Columns of the text, which is also quoted in documentation."""

_FIRST, _SECOND = "First call", "Second call, same caller"
_PLACEHOLDER: Final = re.compile(r"\\\{\\\{(\w+)\\\}\\\}")

CALLER: Final = "+12025550143"
CALLED: Final = "+12025550100"
GREETING: Final = "Harbour Street Bicycles, this is Maya. How can I help you?"
FIRST_CALL: Final = (
    "Hi, my name is Anna. My road bike needs new brake pads.",
    "My appointment is on Thursday at ten in the morning.",
    "I prefer a text message when it is ready.",
    "My order number is four seven two nine one six.",
    "Yes, that is right.",
    "Thank you, goodbye.",
)
SECOND_CALL: Final = (
    "Hello, it is me again. When is my appointment?",
    "What did we talk about last time?",
    "Thank you, goodbye.",
)


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
    page.line("Voice Gateway demo", "bold")
    if options.recorded or not extras.is_installed("local"):
        default = 8.0 if sys.stdout.isatty() else 0.0
        return asyncio.run(_play_recorded(page, default if options.speed is None else options.speed))
    return asyncio.run(_speak(page, options.speed or 3.0))  # the models need time of their own


class Page:
    """Headings, paragraphs, quotes and a transcript, on a console of fixed width."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._speaker = ""

    def heading(self, text: str) -> None:
        self._speaker = ""
        self._console.print()
        self._console.print(Rule(Text(text, "bold"), align="left", style="bold"))

    def line(self, text: str = "", style: str = "", *, first: str = "", rest: str = "") -> None:
        """A paragraph. `first` and `rest` are the margins of its first line and of the others."""
        for number, part in enumerate(Text(text).wrap(self._console, WIDTH - len(rest)) or [Text("")]):
            self._console.print(Text(f"{rest if number else first}{part.plain}".rstrip(), style))

    def quoted(self, text: str, style: str) -> None:
        for paragraph in text.strip().splitlines():
            self.line(paragraph, style, first="  │ ", rest="  │ ")

    def said(self, name: str, text: str, style: str = "") -> None:
        """A turn beside its speaker's name, which is not repeated."""
        label = f"{name}:" if name != self._speaker else ""
        self._speaker = name
        self.line(text, style, first=f"{label:9}", rest=" " * 9)


# Two recorded calls


async def _play_recorded(page: Page, pace: float) -> int:
    folder = resources.files("gateway.replay").joinpath("calls")
    first, second = (read(Path(str(folder.joinpath(name)))) for name in ("first.jsonl", "second.jsonl"))
    async with replay_harness(first) as harness:
        page.line(
            f"A real gateway is running at {harness.api.address.url}. Carrier and voice engine are recordings of two "
            "calls; everything between them runs live, faster than real time."
        )
        page.heading(_FIRST)
        await _play(page, first, harness, pace)
        document = (await harness.stored_call(first)).document
        page.heading("What is stored")
        page.line("One document. No key for a language model is set, so the summary quotes sentences from the call.")
        page.quoted(document, "dim")
        page.heading(_SECOND)
        prompted = await _play(page, second, harness, pace)
    if not is_remembered(document, prompted):
        print("gateway: the agent got nothing from the first call", file=sys.stderr)
        return 1
    page.heading("What you saw")
    page.line(
        f"{_agent_name(second)}'s words are recorded. Her memory of the first call is not: the gateway stored it, "
        "found it when the phone rang again, and put it into her prompt before she said hello."
    )
    page.line("Next: your own number. See README.md.", "bold")
    return 0


async def _play(page: Page, recording: Recording, harness: ReplayHarness, pace: float) -> str:
    """Play one call and show it. Returns the memory in the agent's prompt."""
    header, agent, memory = recording.header, _agent_name(recording), ""

    def observe(frame: RecordedFrame) -> None:
        nonlocal memory
        fields = frame.content.fields if isinstance(frame.content, JsonFrame) else {}
        if fields.get("type") == "Settings":
            memory = _memory_part(harness, str(header.agent["prompt"]))
            picks_up = f"{agent} picks up. Memory of earlier calls in the prompt:"
            if recording.memory.calls:
                page.line(picks_up)
                page.quoted(memory, "green")
            else:
                page.line(f"{picks_up} {memory}")
            page.line()
        elif fields.get("type") == "ConversationText":
            speaker = ("Caller", "cyan") if fields["role"] == "user" else (agent, "")
            page.said(speaker[0], str(fields["content"]), speaker[1])

    page.line(f"{header.caller} calls {header.called} ({header.carrier.capitalize()}).")
    await harness.play(recording, speed=pace, observer=observe)
    page.line()
    page.line(f"The caller hangs up after {recording.seconds:.0f} seconds.")
    return memory


def _agent_name(recording: Recording) -> str:
    return str(recording.header.agent["name"]).capitalize()


def _memory_part(harness: ReplayHarness, template: str) -> str:
    """What replaced {{memory}} in the prompt that the engine received."""
    messages = (received.content for received in harness.engine.sink.frames)
    settings = next(message.fields for message in messages if isinstance(message, JsonFrame))
    groups = {"memory": "(?P<memory>.*)"}
    pattern = _PLACEHOLDER.sub(lambda placeholder: groups.get(placeholder[1], ".*?"), re.escape(template))
    match = re.fullmatch(pattern, settings["agent"]["think"]["prompt"], re.DOTALL)
    return match["memory"] if match else ""


def is_remembered(document: str, prompted: str) -> bool:
    """Whether what the first call's document says to the next call is in that call's prompt."""
    context = document.partition("### Context for Next Call\n")[2].strip()
    return bool(context) and context in prompted


# Two spoken calls


@dataclass(frozen=True)
class TranscribedTurn:
    """One turn of the transcript. `said` is the caller's real line, at the first turn in which it was recognized."""

    speaker: str
    heard: str
    said: str = ""


async def _speak(page: Page, pace: float) -> int:
    admin_token = Secret(secrets.token_urlsafe(16))
    with tempfile.TemporaryDirectory(prefix="gateway-demo-") as name:
        folder = Path(name)
        (folder / "prompt.md").write_text("What you know from earlier calls:\n{{memory}}\n", encoding="utf-8")
        settings = Settings(
            voice_engine="local",
            data_dir=folder / "data",
            voice_session_archive_dir=folder / "archive",
            gateway_admin_token=admin_token,
            agents={"maya": {"prompt": "prompt.md", "greeting": GREETING, "numbers": [CALLED], "brain": "script"}},
            folder=folder,
        )
        async with own_gateway(settings) as url, httpx.AsyncClient(trust_env=False) as http:
            api = GatewayApi(GatewayAddress(url), http, admin_token)
            await api.wait_ready()
            page.line(
                f"A real gateway is running at {url}. A synthetic voice phones it twice. The local engine listens and "
                "speaks, and a scripted agent answers, all on this machine and live. Nothing is recorded."
            )
            page.heading(_FIRST)
            first = await _call(page, api, FIRST_CALL, folder / "archive", pace)
            page.heading("What is stored")
            page.line("One document, written without a language model: it quotes sentences from the call.")
            page.quoted(await api.document_text((await api.call_documents())[0]["id"]), "dim")
            page.heading(_SECOND)
            second = await _call(page, api, SECOND_CALL, folder / "archive", pace)
    answers = " ".join(turn.heard for turn in second if turn.speaker == "AGENT")
    kept = [turn.heard for turn in first if turn.speaker == "CALLER" and len(turn.heard.split()) > 4]
    if not any(text in answers for text in kept):
        print("gateway: in the second call the agent did not remember the first", file=sys.stderr)
        return 1
    page.heading("What you saw")
    page.line(
        f"Two calls, understood with a word error rate of {error_of(first) + error_of(second)}. What Maya said about "
        "the first call in the second one came from the gateway's memory."
    )
    page.line("Next: talk to it yourself with `gateway call`. Then your own number: see README.md.", "bold")
    return 0


async def _call(page: Page, api: GatewayApi, lines: Sequence[str], archive: Path, pace: float) -> list[TranscribedTurn]:
    from gateway.simulate.synthetic_caller import ScriptedCaller, pico  # imports numpy

    page.line(f"{CALLER} calls {CALLED}. They talk …")
    page.line()
    spoken = [pico(line) for line in lines]
    async with phone_line(api.address.url, api.admin_token, caller=CALLER, called=CALLED) as phone:
        caller = ScriptedCaller(phone, spoken)
        await phone.talk(caller.speak, caller.listen, speed=pace)
    await api.wait_idle(60.0)
    turns = aligned(lines, _newest_transcript(archive))
    for turn in turns:
        if turn.speaker == "AGENT":
            page.said("Maya", turn.heard)
        else:
            page.said("Caller", turn.said, "dim")
            page.said("  heard", turn.heard, "cyan")
    page.line()
    page.line(f"Word error rate: {error_of(turns)}.")
    return turns


def _newest_transcript(archive: Path) -> list[tuple[str, str]]:
    path = max(archive.glob("voice-session-*.txt"), key=lambda path: path.stat().st_mtime_ns)
    lines = path.read_text(encoding="utf-8").splitlines()
    return [(speaker, text) for speaker, colon, text in (line.partition(": ") for line in lines) if colon]


def aligned(lines: Sequence[str], transcript: Sequence[tuple[str, str]]) -> list[TranscribedTurn]:
    """The transcript with each real line at the first turn in which it was recognized."""
    turns: list[TranscribedTurn] = []
    unsaid, line, so_far = list(lines), "", ""
    for speaker, heard in transcript:
        said, both = "", f"{so_far} {heard}"
        if speaker == "CALLER" and unsaid and word_error(line, both).errors >= word_error(line, so_far).errors:
            said = line = unsaid.pop(0)
            so_far = heard
        elif speaker == "CALLER":
            so_far = both
        turns.append(TranscribedTurn(speaker, heard, said))
    return turns + [TranscribedTurn("CALLER", "", line) for line in unsaid]


def error_of(turns: Sequence[TranscribedTurn]) -> WordError:
    """The word error of the whole call, independent of turn boundaries."""
    return word_error(" ".join(turn.said for turn in turns), " ".join(t.heard for t in turns if t.speaker == "CALLER"))
