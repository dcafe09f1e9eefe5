"""`gateway tail`: follow calls as they happen."""

import argparse
import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import orjson

from gateway import settings
from gateway.cli.remote import Remote, add_url_option, parse_time
from gateway.errors import SettingsError
from gateway.telephony.phone_numbers import e164

PATH: Final = "/v1/live"
RETRY_SECONDS: Final = 0.5
SILENCE_SECONDS: Final = 40.0
"""A healthy stream sends a heartbeat every 15 seconds."""

DESCRIPTION: Final = "Follow calls as they happen: turns, latencies, memory, errors. Needs a running gateway."

_SESSION: Final = re.compile(r"voice-session:\S+|[0-9a-f]{8}[0-9a-f-]*")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("filter", nargs="?", default="", help="only this session, caller or agent")
    parser.add_argument("--since", default="", metavar="WHEN", help="start earlier: 10m, 2h, 3d, 2026-02-06T23:15")
    parser.add_argument("--json", action="store_true", help="one JSON event per line, as /v1/live sends it")
    add_url_option(parser)


def run(options: argparse.Namespace) -> int:
    remote = Remote.of(settings.load(os.environ, Path.cwd()), options.url)
    query = live_filter(options.filter)
    if options.since:
        query["since"] = parse_time(options.since).isoformat()
    asyncio.run(_follow(LiveReader(remote, query), as_json=options.json))
    return 0


def live_filter(text: str) -> dict[str, str]:
    """Query parameters: a number selects a caller, a UUID or its start a session, any other word an agent."""
    if not text:
        return {}
    if _SESSION.fullmatch(text):
        return {"session": text}
    if text[0] in "+0123456789":
        number = e164(text)
        if not number:
            raise SettingsError(
                f"{text!r} is not a session, a phone number or an agent; write numbers like +12025550143"
            )
        return {"caller": number}
    return {"agent": text}


async def _follow(reader: "LiveReader", *, as_json: bool) -> None:
    if as_json:
        async for event in reader.events():
            print(orjson.dumps(event).decode(), flush=True)
        return
    from gateway.cli import tail_text, terminal

    async for event in reader.events():
        terminal.show(tail_text.line(event), soft_wrap=True)


@dataclass
class LiveReader:
    """Reads a gateway's live events without end. After a lost connection it continues where it stopped."""

    remote: Remote
    query: dict[str, str]
    cursor: str = ""

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """Raise SettingsError if the first connection fails or the token is rejected."""
        connected_once = is_away = False
        timeout = httpx.Timeout(10.0, read=SILENCE_SECONDS)
        async with httpx.AsyncClient(base_url=self.remote.url, timeout=timeout) as http:
            while True:
                try:
                    async for event in self._stream(http):
                        if event is not None:
                            yield event
                            continue
                        if is_away:
                            _print_status("reconnected")
                        connected_once, is_away = True, False
                except httpx.HTTPError as error:
                    if not connected_once:
                        raise self.remote.unreachable(error) from None
                if not is_away:
                    _print_status("connection to the gateway lost; retrying")
                is_away = True
                await asyncio.sleep(RETRY_SECONDS)

    async def _stream(self, http: httpx.AsyncClient) -> AsyncIterator[dict[str, Any] | None]:
        """One connection: None once it is open, then its events."""
        headers = {**self.remote.headers, **({"Last-Event-ID": self.cursor} if self.cursor else {})}
        async with http.stream("GET", PATH, params=self.query, headers=headers) as answer:
            if answer.status_code == 401:
                raise self.remote.token_rejected()
            if answer.status_code != 200:
                raise httpx.RequestError(f"answered {answer.status_code}")
            yield None
            pending = ""
            async for text in answer.aiter_lines():
                name, _, value = text.partition(": ")
                if name == "id":
                    pending = value
                elif name == "data":
                    yield orjson.loads(value)
                elif not text:  # an empty line completes the event
                    self.cursor = pending or self.cursor


def _print_status(text: str) -> None:
    print(f"gateway: {text}", file=sys.stderr, flush=True)
