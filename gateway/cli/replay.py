"""`gateway replay`: plays recorded calls into a gateway and compares the results with the recording."""

import argparse
import asyncio
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import orjson

from gateway import logs, settings
from gateway.calls.recording_files import RecordingCipher
from gateway.cli.terminal import count
from gateway.errors import SettingsError
from gateway.replay.compare import Difference, compare, compare_stored
from gateway.replay.harness import CallerAudio, RunningGateway, replay_harness
from gateway.replay.recording import Recording, read
from gateway.simulate.gateway_under_test import GatewayAddress

SHOWN: Final = 20
"""Differences printed per file. Later ones usually follow from the first."""

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

    def __str__(self) -> str:
        call = f"{self.file}: {self.call_seconds:.1f} s call"
        if self.heard is not None:
            return f"{call} played; received {self.heard.seconds:.1f} s of audio and {self.heard.clears} clears"
        if not self.differences:
            return f"{call}, as recorded"
        found = len(self.differences)
        more = [f"and {found - SHOWN} more"] if found > SHOWN else []
        return "\n".join([f"{call}, {count(found, 'difference')}", *map(str, self.differences[:SHOWN]), *more])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a recorded call")
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
    recordings = [read(path, cipher) for path in options.files]
    for recording in recordings:
        if recording.warning:
            print(f"gateway: {recording.warning}", file=sys.stderr)
    reports = []
    for recording in recordings:
        reports.append(asyncio.run(_replayed(recording, running, options)))
        if not options.json:
            print(reports[-1])
    if options.json:
        content = [{**asdict(report), "equal": not report.differences} for report in reports]
        print(orjson.dumps(content, option=orjson.OPT_INDENT_2).decode())
    return 1 if any(report.differences for report in reports) else 0


async def _replayed(recording: Recording, running: RunningGateway | None, options: argparse.Namespace) -> Report:
    file, length = str(recording.path), recording.seconds
    if running is None:
        return Report(file, length, tuple(await replay(recording, speed=options.speed or 0.0)))
    if options.engine_port is None:
        # A real engine is listening; it needs audio in real time.
        pace = 1.0 if options.speed is None else options.speed
        return Report(file, length, heard=await running.speak(recording, speed=pace))
    outcome = await running.play(recording, engine_port=options.engine_port, speed=options.speed or 0.0)
    return Report(file, length, tuple(compare(recording, outcome)))


async def replay(recording: Recording, *, speed: float = 0.0) -> list[Difference]:
    """Play one call into a temporary gateway; return the differences."""
    async with replay_harness(recording) as harness:
        await harness.seed(recording)
        outcome = await harness.play(recording, speed=speed)
        stored = await harness.stored_call(recording)
    return [*compare(recording, outcome), *compare_stored(recording, stored)]


def _running(url: str) -> RunningGateway:
    if not settings.is_url(url, ("http", "https")):
        raise SettingsError(f"--url {url} is not an address; write it like http://127.0.0.1:8000")
    loaded = settings.load(os.environ, Path.cwd())
    if loaded.twilio_auth_token is None:
        raise SettingsError(
            "set TWILIO_ACCOUNT_SID and TWILIO_AUTH_TOKEN to those of the running gateway; they sign requests"
        )
    return RunningGateway(GatewayAddress(url, loaded.public_url), loaded.twilio_account_sid, loaded.twilio_auth_token)
