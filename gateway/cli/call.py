"""`gateway call`: phone the agent from this terminal, with the microphone or WAV files."""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final

from gateway import settings
from gateway.cli import terminal
from gateway.cli.remote import Remote, add_url_option
from gateway.cli.tail import LiveReader, event_row, is_routine
from gateway.cli.terminal import short_id
from gateway.invocation import command, typed_path
from gateway.simulate.softphone import Speak, phone_line
from gateway.telephony.phone_numbers import e164
from gateway.text.figures import count, duration

DESCRIPTION: Final = (
    "Phone a running gateway with this machine's microphone, or with WAV files that play after the agent's greeting. "
    "Prints the transcript with the response time of each answer. Ctrl-C hangs up."
)

_LAST_WORDS_SECONDS: Final = 5.0
"""How long the last events of a call may take to arrive after it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_url_option(parser)
    parser.add_argument("--caller", type=_number, default="+12025550199", metavar="NUMBER", help="the caller's number")
    parser.add_argument("--called", default="", metavar="NUMBER", help="the number to dial, or an agent's name")
    add = partial(parser.add_argument, type=typed_path, metavar="FILE")
    add("--in", dest="files", action="append", default=[], help="a WAV file to play; may be repeated")
    add("--out", help="save the received audio to a WAV file")


def run(options: argparse.Namespace) -> int:
    from gateway.simulate.call_audio import check_place, read_wav, write_wav  # imports numpy

    remote = Remote.of(settings.load(os.environ, Path.cwd()), options.url)
    lines = [read_wav(path) for path in options.files]
    if options.out is not None:
        check_place(options.out)
    heard = bytearray()
    try:
        asyncio.run(_call(options, remote, lines, heard))
    finally:
        if options.out is not None and heard:
            write_wav(options.out, bytes(heard))
            _say(f"saved {options.out}")
    return 0


async def _call(options: argparse.Namespace, remote: Remote, lines: list[bytes], heard: bytearray) -> None:
    from gateway.simulate.call_audio import open_audio_device
    from gateway.simulate.synthetic_caller import ScriptedCaller

    async with contextlib.AsyncExitStack() as stack:
        microphone = stack.enter_context(open_audio_device()) if not lines else None
        with terminal.progress(f"calling {remote.url}"):
            line = phone_line(remote.url, remote.token, caller=options.caller, called=options.called)
            phone = await stack.enter_async_context(line)
        _say(f"connected to {phone.agent}, session {phone.session_id}; Ctrl-C hangs up")
        caller = microphone or ScriptedCaller(phone, lines)

        def listen(frame: bytes) -> None:
            caller.listen(frame)
            heard.extend(frame)

        transcript = asyncio.create_task(_show_transcript(remote, phone.session_id))
        await phone.talk(_until_interrupted(caller.speak), listen)
        await asyncio.wait({transcript}, timeout=_LAST_WORDS_SECONDS)
        ending = transcript.result() if transcript.done() else ""
        transcript.cancel()
    _say(f"call ended{ending and f': {ending}'}")
    elsewhere = f" --url {options.url}" if options.url else ""
    _say(f"summary and response times: {command(f'sessions {short_id(phone.session_id)}{elsewhere}')}")


def _until_interrupted(speak: Speak) -> Speak:
    """The first Ctrl-C hangs up, a second one ends the program."""
    interrupted = asyncio.Event()
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        interrupted.set()
        loop.remove_signal_handler(signal.SIGINT)

    with contextlib.suppress(RuntimeError):  # not the main thread
        loop.add_signal_handler(signal.SIGINT, interrupt)
    return lambda: None if interrupted.is_set() else speak()


async def _show_transcript(remote: Remote, session_id: str) -> str:
    """Print what happens in the call until it is over. Returns how it ended."""
    since = (datetime.now(UTC) - timedelta(minutes=5)).isoformat()  # the other clock may be behind
    async for event in LiveReader(remote, {"session": session_id, "since": since}).events():
        if event["event"] == "hangup":
            return f"{event['reason']}, {duration(event['seconds'])}, {count(event['turns'], 'turn')}"
        if not is_routine(event):
            terminal.show(event_row(event, of_call=False))
    return ""


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _number(text: str) -> str:
    number = e164(text)
    if number is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number like +12025550143")
    return number
