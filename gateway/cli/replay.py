"""`gateway replay`: plays recorded calls into a gateway and compares the results with the recording."""

import argparse
import asyncio
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import orjson
from rich.text import Text

from gateway import logs, settings
from gateway.calls.recording_files import RecordingCipher
from gateway.cli.terminal import printable, progress, show
from gateway.errors import RecordingError, SettingsError
from gateway.invocation import typed_path
from gateway.replay.compare import Difference, compare
from gateway.replay.harness import CallerAudio, RunningGateway, replay
from gateway.replay.recording import Recording, read
from gateway.simulate.gateway_under_test import GatewayAddress
from gateway.text.figures import count

SHOWN: Final = 20
"""Differences printed per file. Later ones usually follow from the first."""

_STYLES: Final = {"-": "not bold red", "+": "not bold green", "@": "not bold cyan"}

DESCRIPTION: Final = (
    "Play recorded calls into a temporary gateway, or into a running one, and compare the results with the recording. "
    "RECORD_DIR makes a gateway record its calls."
)


@dataclass(frozen=True)
class Report:
    """The result for one file. `heard` is set if there was nothing to compare with."""

    file: str
    call_seconds: float
    differences: tuple[Difference, ...] = ()
    heard: CallerAudio | None = None

    def text(self) -> Text:
        """The result in one line, and a unified diff."""
        call = f"{self.file}: {self.call_seconds:.1f} s call"
        if self.heard is not None:
            audio = f"received {self.heard.seconds:.1f} s of audio and {self.heard.clears} clears"
            return Text(f"{call} played; {audio}")
        if not self.differences:
            return Text(f"{call}, as recorded")
        found = len(self.differences)
        text = Text(f"{call}, {count(found, 'difference')}\n", "bold")
        lines = ["--- recorded", "+++ replayed", *(line for one in self.differences[:SHOWN] for line in one.diff)]
        for line in [*lines, *([f"and {found - SHOWN} more"] if found > SHOWN else [])]:
            text.append(f"{printable(line)}\n", _STYLES.get(line[:1], "not bold"))
        text.rstrip()
        return text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", nargs="+", type=typed_path, metavar="FILE", help="a recorded call, or a folder of them"
    )
    parser.add_argument("--url", help="a running gateway; requests are signed with TWILIO_AUTH_TOKEN")
    parser.add_argument(
        "--engine-port",
        type=int,
        metavar="PORT",
        help="simulate the engine too; the gateway needs DEEPGRAM_AGENT_URL=ws://127.0.0.1:PORT/v1/agent/converse",
    )
    parser.add_argument("--speed", type=speed, metavar="N", help="1: real time; 0: as fast as possible (default)")
    parser.add_argument("--json", action="store_true", help="print one JSON array")


def speed(text: str) -> float:
    """A command-line argument: how many times faster than real time."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a speed; 1 is real time, 0 as fast as possible")
    return value


def run(options: argparse.Namespace) -> int:
    logs.keep_quiet()
    if options.engine_port is not None and not options.url:
        raise SettingsError("--engine-port is for a running gateway; give its address with --url")
    running = _running(options.url) if options.url else None
    cipher = RecordingCipher(settings.load(os.environ, Path.cwd()).record_key)
    paths = [path for given in options.files for path in _files(given)]
    reports = []
    for number, path in enumerate(paths, 1):
        try:
            recording = read(path, cipher)
        except RecordingError as error:  # the others can be played
            print(f"gateway: {error}", file=sys.stderr)
            continue
        if recording.warning:
            print(f"gateway: {recording.warning}", file=sys.stderr)
        which = f" ({number} of {len(paths)})" if len(paths) > 1 else ""
        with progress(f"Playing {path.name}{which}, a call of {recording.seconds:.0f} s …"):
            reports.append(_replayed(recording, running, options))
        if not options.json:
            show(reports[-1].text())
    if options.json:
        content = [{**asdict(report), "equal": not report.differences} for report in reports]
        print(orjson.dumps(content, option=orjson.OPT_INDENT_2).decode())
    if any(report.differences for report in reports):
        return 1
    return 2 if len(reports) < len(paths) else 0


def _files(given: Path) -> list[Path]:
    if not given.is_dir():
        return [given]
    if not (found := sorted(given.glob("*.jsonl"))):
        raise SettingsError(f"{given} has no recorded calls (*.jsonl); RECORD_DIR is where the gateway writes them")
    return found


def _replayed(recording: Recording, running: RunningGateway | None, options: argparse.Namespace) -> Report:
    file, length = str(recording.path), recording.seconds
    if running is None:
        return Report(file, length, tuple(replay(recording, speed=options.speed or 0.0)))
    if options.engine_port is None:
        # A real engine is listening; it needs audio in real time.
        pace = 1.0 if options.speed is None else options.speed
        return Report(file, length, heard=asyncio.run(running.speak(recording, speed=pace)))
    outcome = asyncio.run(running.play(recording, engine_port=options.engine_port, speed=options.speed or 0.0))
    return Report(file, length, tuple(compare(recording, outcome)))


def _running(url: str) -> RunningGateway:
    if not settings.is_url(url, ("http", "https")):
        raise SettingsError(f"--url {url} is not an address; write it like http://127.0.0.1:8000")
    loaded = settings.load(os.environ, Path.cwd())
    if loaded.twilio_auth_token is None:
        raise SettingsError(
            "set TWILIO_ACCOUNT_SID and TWILIO_AUTH_TOKEN to those of the running gateway; they sign requests"
        )
    return RunningGateway(GatewayAddress(url, loaded.public_url), loaded.twilio_account_sid, loaded.twilio_auth_token)
