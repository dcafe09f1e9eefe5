"""`gateway tail`: follow calls as they happen."""

import argparse
import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import orjson
from rich.console import RenderableType
from rich.text import Text

from gateway import settings
from gateway.cli import terminal
from gateway.cli.remote import Remote, add_url_option, parse_time
from gateway.cli.terminal import clock, hanging, named, one_line, response_time, short_id
from gateway.errors import SettingsError
from gateway.telephony.phone_numbers import e164
from gateway.text.figures import count, duration, milliseconds

RETRY_SECONDS: Final = 0.5
SILENCE_SECONDS: Final = 40.0
"""A healthy stream sends a heartbeat every 15 seconds."""

DESCRIPTION: Final = "Follow calls as they happen: turns, response times, memory, errors. Needs a running gateway."

_CALLER_WIDTH: Final = 16
"""The longest E.164 number with its plus sign."""
SESSION_ID: Final = re.compile(r"voice-session:\S+|[0-9a-f]{8}[0-9a-f-]*")
"""A session's id, or its first characters."""


Event = Mapping[str, Any]


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
    reader = LiveReader(remote, query)
    if terminal.make_console(sys.stderr).is_terminal:
        which = f" of {options.filter}" if options.filter else ""
        reader.on_first_connection = partial(_print_status, f"following calls{which}; Ctrl-C stops")
    asyncio.run(_follow(reader, as_json=options.json))
    return 0


def live_filter(text: str) -> dict[str, str]:
    """Query parameters: a number selects a caller, a UUID or its start a session, any other word an agent."""
    if not text:
        return {}
    if SESSION_ID.fullmatch(text):
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
    is_terminal, shown = terminal.is_terminal(), set[str]()
    async for event in reader.events():
        if as_json:
            print(orjson.dumps(event).decode(), flush=True)
        elif is_routine(event):
            continue
        elif not is_terminal:
            terminal.show(event_line(event))
        else:
            if event["session"] not in shown:
                shown.add(event["session"])
                name = await asyncio.to_thread(reader.remote.caller_name, event["caller"])
                terminal.show(event_row({**event, "event": "call", "name": name}))
            terminal.show(event_row(event))


class _AnotherServer(httpx.RequestError):
    """The answer is neither a stream of events nor an error of the API."""


@dataclass
class LiveReader:
    """Reads a gateway's live events without end. After a lost connection it continues where it stopped."""

    remote: Remote
    query: dict[str, str]
    cursor: str = ""
    on_first_connection: Callable[[], None] = lambda: None

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
                        if not connected_once:
                            self.on_first_connection()
                        connected_once, is_away = True, False
                except httpx.HTTPError as error:
                    if not connected_once and isinstance(error, _AnotherServer):
                        raise self.remote.not_a_gateway() from None
                    if not connected_once:
                        raise self.remote.unreachable(error) from None
                if not is_away:
                    _print_status("connection to the gateway lost; retrying")
                is_away = True
                await asyncio.sleep(RETRY_SECONDS)

    async def _stream(self, http: httpx.AsyncClient) -> AsyncIterator[dict[str, Any] | None]:
        """One connection: None once it is open, then its events."""
        headers = {**self.remote.headers, **({"Last-Event-ID": self.cursor} if self.cursor else {})}
        async with http.stream("GET", "/v1/live", params=self.query, headers=headers) as answer:
            if answer.status_code == 401:
                raise self.remote.token_rejected()
            content_type = answer.headers.get("content-type", "").partition(";")[0]
            if answer.status_code < 500 and content_type not in ("text/event-stream", "application/json"):
                raise _AnotherServer(f"answered {answer.status_code}")
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


# Text for a person

STEP_STATES: Final = {"waits": "pending", "refused": "failed"}
"""States of post-call steps as the JSON names them, in words for a person."""


def is_routine(event: Event) -> bool:
    """
    Whether it is left out for a person: a post-call step without anything to do, such as the webhook where none is
    configured, and a request to a language model that did not fail, whose answer is shown.
    """
    return not event.get("ran", True) or event.get("outcome") in ("answered", "cancelled")


def event_line(event: Event) -> Text:
    """For a pipe: time, session, caller, event, details."""
    caller = one_line(event["caller"] or "withheld")[:_CALLER_WIDTH]
    what, details = _styled(event)
    text = Text.assemble(
        (f"{clock(event['at'])}  {short_id(event['session']):8}", "dim"), f"  {caller:{_CALLER_WIDTH}}  ", what, "  "
    )
    text.append(details).rstrip()
    return text


def event_row(event: Event, *, of_call: bool = True) -> RenderableType:
    """For a terminal: time, session, event; details beside them that break between words."""
    what, details = _styled(event)
    margin = f"{clock(event['at'])}  {short_id(event['session']):8}" if of_call else clock(event["at"])
    return hanging(Text.assemble((margin, "dim"), "  ", what), details)


def _styled(event: Event) -> tuple[Text, Text]:
    """What happened, as wide as the longest; the details."""
    what, details, style = (one_line(part) for part in _described(event))
    text = Text(details)
    if (seconds := event.get("latency")) is not None:
        text.append("  ").append(response_time(seconds, event.get("counted_from")))
    return Text(what.ljust(9), style), text


def _described(event: Event) -> tuple[str, str, str]:
    """What happened, in one word; the details; a rich style."""
    match event["event"]:
        case "call" | "dialling" | "ringing" as what:
            caller = f"{named(event['caller'], event['name'])}, " if "name" in event else ""
            return what, f"{caller}{event['carrier']}, agent {event['agent']}", "bold"
        case "unanswered" | "refused" as what:
            return what, event["reason"], "red" if what == "refused" else "yellow"
        case "answered":
            return "answered", f"again, stream {event['attempt'] + 1}" if event["attempt"] else "", "bold"
        case "memory":
            found = f"{count(event['facts'], 'fact')}, {count(event['calls'], 'past call')}, access {event['tier']}"
            if event["outcome"] == "nothing":
                found = "no access to memory" if event["tier"] == "none" else "no earlier calls found"
            took = "" if event["seconds"] is None else f", {milliseconds(event['seconds'])}"
            outcome = "" if event["outcome"] in ("loaded", "nothing") else f" ({event['outcome']})"
            return "memory", f"{found}{took}{outcome}", "magenta"
        case "turn":
            speaker = "operator" if event.get("by_operator") else event["speaker"]
            return speaker, event.get("text", ""), {"caller": "cyan", "operator": "magenta"}.get(speaker, "green")
        case "answer_started":
            return "agent", "first audio", "green"
        case "model_finished":
            about = f"{event['provider']} {event['model']}".strip()
            why, style = (f": {event['error']}", "red") if event["error"] else ("", "blue")
            return "model", f"{about} {event['outcome']} after {milliseconds(event['seconds'])}{why}", style
        case "interruption":
            return "barge-in", f"heard: {event.get('heard', '')} — not heard: {event.get('unheard', '')}", "yellow"
        case "function_called":
            return "function", f"{event['function']} called", "blue"
        case "function_finished" if event["function"] == "end_call" and event["ok"]:
            return "function", "agent ended the call", "blue"
        case "function_finished":
            result, style = ("returned", "blue") if event["ok"] else ("failed", "red")
            return "function", f"{event['function']} {result} after {milliseconds(event['seconds'])}", style
        case "engine_lost":
            return "engine", f"{event.get('engine', 'engine')} lost: {event['reason']}", "yellow"
        case "engine_back":
            return "engine", f"{event.get('engine', 'engine')} is connected", "green"
        case "media_lost":
            return "media", event["reason"], "yellow"
        case "voicemail":
            return "voicemail", event["state"], "bold"
        case "error":
            return "error", f"{event['what']}: {event['reason']}", "red"
        case "hangup":
            length = f"{duration(event['seconds'])}, {count(event['turns'], 'turn')}"
            return "hangup", f"{event['reason']}, {length}", "bold"
        case "step":
            reason = f": {event['reason']}" if event.get("reason") else ""
            state = str(STEP_STATES.get(event["state"], event["state"]))
            style = {"done": "dim", "failed": "red"}.get(state, "yellow")
            return "step", f"{event['step']} {state}{reason}", style
        case "summary":
            return "summary", f"saved ({'no language model' if event['by'] == 'extractive' else event['by']})", "green"
        case "finished":
            problem = event["problem"]
            return "finished", f"failed: {problem}" if problem else "", "red" if problem else "dim"
        case unknown:
            return unknown, "", ""
