"""`gateway tail`: what happens in calls, line by line, as it happens."""

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
from gateway.cli.remote import Paint, Remote, add_remote, moment
from gateway.cli.tail_text import line
from gateway.errors import SettingsError
from gateway.telephony.phone_numbers import e164

PATH: Final = "/v1/live"
RETRY_SECONDS: Final = 0.5
SILENCE_SECONDS: Final = 40.0
"""A stream shows every 15 seconds that it lives."""

_SESSION: Final = re.compile(r"voice-session:\S+|[0-9a-f]{8}[0-9a-f-]*")


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "tail",
        help="follow calls as they happen",
        description="Follow calls as they happen: turns, latencies, memory, errors. Needs a running gateway.",
    )
    parser.add_argument("whose", nargs="?", default="", help="only this session, caller or agent")
    parser.add_argument("--since", default="", metavar="WHEN", help="begin earlier: 10m, 2h, 3d, 2026-02-06T23:15")
    parser.add_argument("--json", action="store_true", help="for machines: one event a line, as /v1/live has it")
    add_remote(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    remote = Remote.of(settings.load(os.environ, Path.cwd()), options.url)
    query = choice(options.whose)
    if options.since:
        query["since"] = moment(options.since).isoformat()
    asyncio.run(_follow(LiveReader(remote, query), as_json=options.json))
    return 0


def choice(whose: str) -> dict[str, str]:
    """What the feed is asked for: a number is a caller's, a uuid or its beginning a session's, a name an agent's."""
    if not whose:
        return {}
    if _SESSION.fullmatch(whose):
        return {"session": whose}
    if whose[0] in "+0123456789":
        number = e164(whose)
        if not number:
            raise SettingsError(
                f"{whose!r} is neither a session, a number nor an agent; write numbers like +12025550143"
            )
        return {"caller": number}
    return {"agent": whose}


async def _follow(reader: "LiveReader", *, as_json: bool) -> None:
    paint = Paint()
    async for event in reader.events():
        print(orjson.dumps(event).decode() if as_json else line(event, paint), flush=True)


@dataclass
class LiveReader:
    """Reads a gateway's feed for good: when it is away, from where it stopped."""

    remote: Remote
    query: dict[str, str]
    place: str = ""

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """SettingsError when there is no gateway at first, or it does not take the token."""
        reached = away = False
        timeout = httpx.Timeout(10.0, read=SILENCE_SECONDS)
        async with httpx.AsyncClient(base_url=self.remote.url, timeout=timeout) as http:
            while True:
                try:
                    async for event in self._stream(http):
                        if event is None:
                            reached = True
                            _tell("the gateway is back" if away else "")
                            away = False
                        else:
                            yield event
                except httpx.HTTPError as error:
                    if not reached:
                        raise self.remote.unreachable(error) from None
                _tell("" if away else "the gateway is away; waiting for it")
                away = True
                await asyncio.sleep(RETRY_SECONDS)

    async def _stream(self, http: httpx.AsyncClient) -> AsyncIterator[dict[str, Any] | None]:
        """One connection: None when it stands, then its events."""
        headers = {**self.remote.headers, **({"Last-Event-ID": self.place} if self.place else {})}
        async with http.stream("GET", PATH, params=self.query, headers=headers) as answer:
            if answer.status_code == 401:
                raise self.remote.refused()
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
                elif not text:  # only now is the event whole
                    self.place = pending or self.place


def _tell(words: str) -> None:
    if words:
        print(f"gateway: {words}", file=sys.stderr, flush=True)
