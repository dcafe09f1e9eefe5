"""`gateway call`: phone the agent from this terminal, with the microphone or WAV files."""

import argparse
import asyncio
import contextlib
import os
import sys
from functools import partial
from pathlib import Path
from typing import Final

from gateway import settings
from gateway.cli.remote import local_url
from gateway.settings import Settings, admin_token
from gateway.simulate.softphone import phone_line
from gateway.telephony.phone_numbers import e164

DESCRIPTION: Final = (
    "Phone a running gateway with this machine's microphone, or with WAV files that play after the agent's greeting. "
    "Ctrl-C hangs up."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", metavar="URL", help="the gateway's address (default: from .env)")
    parser.add_argument("--caller", type=_number, default="+12025550199", metavar="NUMBER", help="the caller's number")
    parser.add_argument("--called", default="", metavar="NUMBER", help="the number to dial, or an agent's name")
    add = partial(parser.add_argument, type=Path, metavar="FILE")
    add("--in", dest="files", action="append", default=[], help="a WAV file to say; may be repeated")
    add("--out", help="save what was heard to a WAV file")


def run(options: argparse.Namespace) -> int:
    from gateway.simulate.call_audio import check_place, read_wav, write_wav  # imports numpy

    given = settings.load(os.environ, Path.cwd())
    lines = [read_wav(path) for path in options.files]
    if options.out is not None:
        check_place(options.out)
    heard = bytearray()
    try:
        asyncio.run(_call(options, given, lines, heard))
    except KeyboardInterrupt:
        print("", file=sys.stderr)
    finally:
        if options.out is not None and heard:
            write_wav(options.out, bytes(heard))
    return 0


async def _call(options: argparse.Namespace, given: Settings, lines: list[bytes], heard: bytearray) -> None:
    from gateway.simulate.call_audio import open_audio_device
    from gateway.simulate.synthetic_caller import ScriptedCaller

    url = options.url or local_url(given.host, given.port)
    # GATEWAY_ADMIN_TOKEN, or the token of the gateway that uses this DATA_DIR.
    token = given.gateway_admin_token or admin_token(given)
    with contextlib.ExitStack() as stack:
        microphone = stack.enter_context(open_audio_device()) if not lines else None
        async with phone_line(url, token, caller=options.caller, called=options.called) as phone:
            print("connected; Ctrl-C hangs up", file=sys.stderr)
            caller = microphone or ScriptedCaller(phone, lines)

            def listen(frame: bytes) -> None:
                caller.listen(frame)
                heard.extend(frame)

            await phone.talk(caller.speak, listen)
    print("call ended", file=sys.stderr)


def _number(text: str) -> str:
    number = e164(text)
    if number is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number like +12025550143")
    return number
