"""Live events as lines for a person."""

from typing import Any

import pytest

from gateway.cli.tail import event_line
from gateway.history.live_events import EVENTS
from tests.stage import CALLER

ABOUT = {"session": "voice-session:3f2a91c0-aaaa", "agent": "maya", "caller": CALLER, "carrier": "twilio"}
AT = "2026-02-06T23:15:04+00:00"
FIELDS: dict[str, dict[str, Any]] = {
    "dialling": {},
    "unanswered": {"reason": "busy"},
    "ringing": {"called": "+12025550100"},
    "refused": {"reason": "caller is not in ALLOWED_CALLERS"},
    "answered": {"attempt": 1},
    "memory": {"facts": 2, "calls": 1, "tier": "everything", "seconds": 0.004, "outcome": "loaded"},
    "turn": {"speaker": "agent", "text": "It is.", "answer": 1, "latency": 0.84},
    "interruption": {"answer": 1, "heard": "It", "unheard": "is."},
    "function_called": {"function": "book"},
    "function_finished": {"function": "book", "ok": True, "seconds": 0.2},
    "engine_lost": {"engine": "deepgram", "reason": "closed"},
    "engine_back": {"engine": "deepgram"},
    "media_lost": {"reason": "media stream lost"},
    "voicemail": {"state": "left"},
    "error": {"what": "call failed", "reason": "KeyError"},
    "hangup": {"reason": "caller hung up", "seconds": 67.0, "turns": 3},
    "step": {"step": "document", "state": "waits", "reason": "no answer"},
    "summary": {"by": "extractive", "document": "d"},
    "finished": {"problem": ""},
}
SHOWN = {
    "dialling": "twilio, agent maya",
    "unanswered": "busy",
    "ringing": "twilio, agent maya",
    "answered": "again, stream 2",
    "memory": "2 facts, 1 past call, access everything, 4 ms",
    "turn": "It is.  840 ms",
    "interruption": "heard: It — not heard: is.",
    "function_finished": "book returned after 200 ms",
    "hangup": "caller hung up, 1:07, 3 turns",
    "step": "document waits: no answer",
    "summary": "saved (no language model)",
}


@pytest.mark.parametrize("kind", EVENTS)
def test_every_event_is_one_line(kind: str) -> None:
    text = event_line({"event": kind, "at": AT, **ABOUT, **FIELDS[kind]}).plain
    assert "\n" not in text
    assert f"  3f2a91c0  {CALLER}  " in text
    assert SHOWN.get(kind, "") in text


def test_lines_are_aligned() -> None:
    """Whatever country a number is of, and without one."""
    callers = [CALLER, "+4915112345678", "+123456789012345", ""]
    texts = [event_line({"event": "engine_back", "at": AT, **ABOUT, "caller": caller}).plain for caller in callers]
    assert len({text.index("engine") for text in texts}) == 1


def test_hostile_words_do_not_steer_the_terminal() -> None:
    said = {"event": "turn", "at": AT, **ABOUT, "speaker": "caller", "text": "a\x1b[2Jb\nc\u202ed"}
    assert event_line(said).plain.endswith("a [2Jb c d")


def test_colours_are_for_people() -> None:
    told = {"event": "hangup", "at": AT, **ABOUT, **FIELDS["hangup"]}
    assert [str(span.style) for span in event_line(told).spans] == ["dim", "bold"]
