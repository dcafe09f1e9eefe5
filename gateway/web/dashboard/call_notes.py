"""Events of a call that are not turns, in words: voice engine, media stream, memory, voicemail, problems."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from gateway.text.figures import count

MAX_NOTES: Final = 100
"""Shown of one call: an engine may be lost every few seconds."""

EVENT_WORDS: Final[Mapping[str, Mapping[str, str]]] = {
    "problems": {
        "engine warned": "Voice engine warning",
        "engine failed": "The voice engine failed",
        "voice engine gone": "The voice engine is unavailable",
        "call could not be hung up": "The carrier did not end the call",
        "call could not be transferred": "The call was not transferred",
    },
    # Of voice engines, those that say little to a person.
    "codes": {
        "ANSWERED_IN_TEXT": "it answered in text instead of speech",
        "TRANSCRIPTION_FAILED": "it could not transcribe the caller",
        "THINK_REQUEST_FAILED": "the language model failed",
        "SLOW_THINK_REQUEST": "the language model is slow",
        "INCOMPLETE_MAX_OUTPUT_TOKENS": "the answer reached its length limit",
        "INCOMPLETE_CONTENT_FILTER": "its content filter stopped the answer",
    },
    # Why the agent was given nothing, where it is not for want of earlier calls.
    "no_memory": {
        "late": "Memory is not loaded yet",
        "failed": "Memory could not be loaded",
        "off": "Memory is off",
    },
}
"""By what `error` events call the problem, its code, and outcomes of `memory` events. `transcript.js` has them too."""
_CODE: Final = re.compile(r"[A-Za-z0-9]+([_.][A-Za-z0-9]+)+")


@dataclass(frozen=True)
class CallNote:
    """Something that happened `at` this many seconds after the answer."""

    at: float
    text: str
    is_problem: bool = False
    times: int = 1
    """How often, without anything else in between."""


def notes_of(events: Sequence[Mapping[str, Any]], seconds: Iterable[float]) -> list[CallNote]:
    """In the order of the events, which happened `seconds` after the answer. What repeats itself is one note."""
    notes: list[CallNote] = []
    lost = ""
    for event, at in zip(events, seconds, strict=True):
        text, is_problem = _described(event, lost)
        if event["event"] == "engine_lost":
            lost = event.get("engine", "")
        if text and notes and notes[-1].text == text:
            notes[-1] = replace(notes[-1], times=notes[-1].times + 1)
        elif text:
            notes.append(CallNote(at, text, is_problem))
    if more := notes[MAX_NOTES:]:
        notes[MAX_NOTES:] = [CallNote(more[0].at, f"{count(len(more), 'more event')}, see the log")]
    return notes


def _described(event: Mapping[str, Any], lost: str) -> tuple[str, bool]:
    """Its words, empty for an event that has none, and whether it is a problem. `lost`: the engine that was lost."""
    engine = event.get("engine", "")
    match event["event"]:
        case "answered" if event.get("attempt"):
            return "Media stream connected again", False
        case "media_lost":
            return "Media stream lost", True
        case "engine_lost":
            return f"Voice engine lost: {', '.join(filter(None, [engine, event['reason']]))}", True
        case "engine_back":
            return f"{engine or 'Voice engine'} {'took over' if lost and engine != lost else 'connected again'}", False
        case "memory" if event["outcome"] == "failed":
            return EVENT_WORDS["no_memory"]["failed"], True
        case "voicemail":
            return "Message left on the voicemail" if event["state"] == "left" else "Voicemail reached", False
        case "error":
            return _problem(event["what"], event["reason"]), True
    return "", False


def _problem(what: str, reason: str) -> str:
    if what == "call failed":
        return "The call failed. See the log for details."
    readable = re.sub("[_.]", " ", reason).lower() if _CODE.fullmatch(reason) else reason
    words = EVENT_WORDS["codes"].get(reason, readable)
    return ": ".join(filter(None, [EVENT_WORDS["problems"].get(what, what), words]))
