"""One live event as one line for a person."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from rich.text import Text

from gateway.cli.terminal import clock, count, duration, milliseconds, one_line, short_id

Event = Mapping[str, Any]

_CALLER_WIDTH: Final = 16
"""The longest E.164 number with its plus sign."""
_EVENT_WIDTH: Final = 9
_SLOW_SECONDS: Final = 1.5
"""A pause that callers notice."""

Described = tuple[str, str, str]
"""What happened, in one word; the details; a rich style."""


def line(event: Event) -> Text:
    """Time, session, caller, event, details."""
    what, details, style = _DESCRIBE.get(event["event"], _unknown)(event)
    caller = one_line(event["caller"] or "withheld")[:_CALLER_WIDTH]
    text = Text.assemble(
        (f"{clock(event['at'])}  {short_id(event['session']):8}", "dim"),
        f"  {caller:{_CALLER_WIDTH}}  ",
        (what.ljust(_EVENT_WIDTH), style),
        f"  {details}",
    )
    if (latency := event.get("latency")) is not None:
        text.append(f"  {milliseconds(latency)}", "red" if latency > _SLOW_SECONDS else "dim")
    text.rstrip()
    return text


def _turn(event: Event) -> Described:
    speaker = event["speaker"]
    return speaker, one_line(event.get("text", "")), "cyan" if speaker == "caller" else "green"


def _memory(event: Event) -> Described:
    found = f"{count(event['facts'], 'fact')}, {count(event['calls'], 'past call')}, access {event['tier']}"
    took = "" if event["seconds"] is None else f", {milliseconds(event['seconds'])}"
    outcome = "" if event["outcome"] == "loaded" else f" ({event['outcome']})"
    return "memory", f"{found}{took}{outcome}", "magenta"


def _interruption(event: Event) -> Described:
    heard, unheard = one_line(event.get("heard", "")), one_line(event.get("unheard", ""))
    return "barge-in", f"heard: {heard} — not heard: {unheard}", "yellow"


def _function_finished(event: Event) -> Described:
    result = "returned" if event["ok"] else "failed"
    details = f"{one_line(event['function'])} {result} after {milliseconds(event['seconds'])}"
    return "function", details, "blue" if event["ok"] else "red"


def _hangup(event: Event) -> Described:
    return "hangup", f"{event['reason']}, {duration(event['seconds'])}, {count(event['turns'], 'turn')}", "bold"


def _step(event: Event) -> Described:
    reason = f": {one_line(event['reason'])}" if event.get("reason") else ""
    return "step", f"{event['step']} {event['state']}{reason}", "dim" if event["state"] == "done" else "yellow"


def _summary(event: Event) -> Described:
    by = one_line(event["by"])
    return "summary", f"saved ({'no language model' if by == 'extractive' else by})", "green"


def _finished(event: Event) -> Described:
    problem = one_line(event["problem"])
    return "finished", f"failed: {problem}" if problem else "", "red" if problem else "dim"


def _unknown(event: Event) -> Described:
    return one_line(event["event"]), "", ""


_DESCRIBE: Final[Mapping[str, Callable[[Event], Described]]] = {
    "dialling": lambda event: ("dialling", f"{event['carrier']}, agent {event['agent']}", "bold"),
    "unanswered": lambda event: ("unanswered", one_line(event["reason"]), "yellow"),
    "ringing": lambda event: ("ringing", f"{event['carrier']}, agent {event['agent']}", "bold"),
    "refused": lambda event: ("refused", one_line(event["reason"]), "red"),
    "answered": lambda event: ("answered", f"again, stream {event['attempt'] + 1}" if event["attempt"] else "", "bold"),
    "memory": _memory,
    "turn": _turn,
    "interruption": _interruption,
    "function_called": lambda event: ("function", f"{one_line(event['function'])} called", "blue"),
    "function_finished": _function_finished,
    "engine_lost": lambda event: ("engine", f"lost: {one_line(event['reason'])}", "yellow"),
    "engine_back": lambda event: ("engine", "reconnected", "green"),
    "media_lost": lambda event: ("media", one_line(event["reason"]), "yellow"),
    "error": lambda event: ("error", f"{one_line(event['what'])}: {one_line(event['reason'])}", "red"),
    "hangup": _hangup,
    "step": _step,
    "summary": _summary,
    "finished": _finished,
}
