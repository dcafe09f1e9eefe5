"""One event of the live feed as one line for a person."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from gateway.cli.remote import Paint, one_line

Event = Mapping[str, Any]

_CALLER_WIDTH: Final = 16
"""The longest number there is."""
_EVENT_WIDTH: Final = 9
_SLOW_SECONDS: Final = 1.5
"""A pause that callers notice."""


def line(event: Event, paint: Paint) -> str:
    """Clock, call, caller, what happened."""
    what, text, colour = _TOLD.get(event["event"], _unknown)(event)
    clock = f"{datetime.fromisoformat(event['at']).astimezone():%H:%M:%S}"
    session = event["session"].removeprefix("voice-session:")[:8]
    caller = one_line(event["caller"] or "nameless")[:_CALLER_WIDTH]
    head = f"{paint(clock, 'dim')}  {paint(session.ljust(8), 'dim')}  {caller.ljust(_CALLER_WIDTH)}"
    return f"{head}  {paint(what.ljust(_EVENT_WIDTH), *colour)}  {text}{_latency(event, paint)}".rstrip()


def _latency(event: Event, paint: Paint) -> str:
    seconds = event.get("latency")
    if seconds is None:
        return ""
    return "  " + paint(f"{seconds * 1000:.0f} ms", "red" if seconds > _SLOW_SECONDS else "dim")


Told = tuple[str, str, tuple[str, ...]]


def _turn(event: Event) -> Told:
    speaker = event["speaker"]
    return speaker, one_line(event.get("text", "")), ("cyan",) if speaker == "caller" else ("green",)


def _memory(event: Event) -> Told:
    told = f"{_count(event['facts'], 'fact')}, {_count(event['calls'], 'past call')}, tier {event['tier']}"
    seconds = event["seconds"]
    took = "" if seconds is None else f", {seconds * 1000:.0f} ms"
    outcome = event["outcome"]
    return "memory", told + took + ("" if outcome == "loaded" else f" ({outcome})"), ("magenta",)


def _interruption(event: Event) -> Told:
    return (
        "cut off",
        f"heard: {one_line(event.get('heard', ''))} — not: {one_line(event.get('unheard', ''))}",
        ("yellow",),
    )


def _finished_function(event: Event) -> Told:
    ok = event["ok"]
    text = f"{one_line(event['function'])} {'done' if ok else 'failed'}, {event['seconds'] * 1000:.0f} ms"
    return "function", text, ("blue",) if ok else ("red",)


def _hangup(event: Event) -> Told:
    minutes, seconds = divmod(round(event["seconds"]), 60)
    return "hangup", f"{event['reason']}, {minutes}:{seconds:02}, {_count(event['turns'], 'turn')}", ("bold",)


def _step(event: Event) -> Told:
    state = event["state"]
    reason = f": {one_line(event['reason'])}" if event.get("reason") else ""
    return "ending", f"{event['step']} {state}{reason}", ("dim",) if state == "done" else ("yellow",)


def _finished(event: Event) -> Told:
    problem = one_line(event["problem"])
    return "finished", f"rests: {problem}" if problem else "", ("red",) if problem else ("dim",)


def _unknown(event: Event) -> Told:
    return one_line(event["event"]), "", ()


_TOLD: Final[Mapping[str, Callable[[Event], Told]]] = {
    "dialling": lambda event: ("dialling", f"{event['carrier']}, by {event['agent']}", ("bold",)),
    "unanswered": lambda event: ("unanswered", one_line(event["reason"]), ("yellow",)),
    "ringing": lambda event: ("ringing", f"{event['carrier']}, for {event['agent']}", ("bold",)),
    "refused": lambda event: ("refused", one_line(event["reason"]), ("red",)),
    "answered": lambda event: (
        "answered",
        f"again, stream {event['attempt'] + 1}" if event["attempt"] else "",
        ("bold",),
    ),
    "memory": _memory,
    "turn": _turn,
    "interruption": _interruption,
    "function_called": lambda event: ("function", f"{one_line(event['function'])} called", ("blue",)),
    "function_finished": _finished_function,
    "engine_lost": lambda event: ("engine", f"lost: {one_line(event['reason'])}", ("yellow",)),
    "engine_back": lambda event: ("engine", "back", ("green",)),
    "media_lost": lambda event: ("media", one_line(event["reason"]), ("yellow",)),
    "error": lambda event: ("error", f"{one_line(event['what'])}: {one_line(event['reason'])}", ("red",)),
    "hangup": _hangup,
    "step": _step,
    "summary": lambda event: ("summary", f"stored, by {one_line(event['by'])}", ("green",)),
    "finished": _finished,
}


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
