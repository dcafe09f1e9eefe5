"""Live events as lines for a person."""

import io
from typing import Any

import pytest

from gateway.cli.tail import event_line, event_row, is_routine
from gateway.cli.terminal import as_text, make_console
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
    "answer_started": {"answer": 1, "latency": 0.12},
    "model_finished": {"provider": "llm", "model": "m-1", "outcome": "failed", "error": "500", "seconds": 0.3},
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
    "answer_started": "first audio  120 ms",
    "model_finished": "llm m-1 failed after 300 ms: 500",
    "interruption": "heard: It — not heard: is.",
    "function_finished": "book returned after 200 ms",
    "hangup": "caller hung up, 1:07, 3 turns",
    "step": "document pending: no answer",
    "summary": "saved (no language model)",
}


@pytest.mark.parametrize("kind", EVENTS)
def test_every_event_is_one_line(kind: str) -> None:
    text = event_line({"event": kind, "at": AT, **ABOUT, **FIELDS[kind]}).plain
    assert "\n" not in text
    assert f"  3f2a91c0  {CALLER}  " in text
    assert SHOWN.get(kind, "") in text


def test_refused_step_has_failed() -> None:
    refused = {"event": "step", "at": AT, **ABOUT, "step": "remote document", "state": "refused", "reason": "401"}
    assert event_line(refused).plain.endswith("remote document failed: 401")


def test_step_without_work_is_idle() -> None:
    done = {"event": "step", "at": AT, **ABOUT, "step": "webhook", "state": "done"}
    assert is_routine({**done, "ran": False})
    assert not is_routine(done)


@pytest.mark.parametrize(("outcome", "routine"), [("answered", True), ("cancelled", True), ("failed", False)])
def test_only_failed_requests_to_a_model_are_shown(outcome: str, routine: bool) -> None:
    assert is_routine({"event": "model_finished", "at": AT, **ABOUT, "outcome": outcome}) is routine


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        ({"outcome": "nothing"}, "no earlier calls found, 4 ms"),
        ({"outcome": "nothing", "tier": "none"}, "no access to memory, 4 ms"),
        ({"outcome": "failed"}, "0 facts, 0 past calls, access everything, 4 ms (failed)"),
    ],
)
def test_says_why_the_agent_was_given_nothing(found: dict[str, str], shown: str) -> None:
    event = {"event": "memory", "at": AT, **ABOUT, **FIELDS["memory"], "facts": 0, "calls": 0, **found}
    assert event_line(event).plain.endswith(shown)


def test_says_that_the_agent_ended_the_call() -> None:
    event = {"event": "function_finished", "at": AT, **ABOUT, "function": "end_call", "ok": True, "seconds": 0.0}
    assert event_line(event).plain.endswith("agent ended the call")


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


def test_terminal_breaks_between_words_beside_the_event() -> None:
    said = {"event": "turn", "at": AT, **ABOUT, "speaker": "agent", "text": "It is on Thursday at ten", "latency": None}
    page = io.StringIO()
    make_console(page, width=50).print(event_row(said))
    first, *rest = (line.rstrip() for line in page.getvalue().splitlines())
    assert "  3f2a91c0  agent      It is" in first
    indent = first.index("It is")
    assert " ".join([first[indent:], *(line[indent:] for line in rest)]) == "It is on Thursday at ten"
    assert rest and not any(line[:indent].strip() for line in rest)


def test_first_line_of_a_call_names_the_caller() -> None:
    ringing = {"event": "ringing", "at": AT, **ABOUT, "called": "+12025550100", "name": "Anna Brown"}
    assert as_text(event_row(ringing)).endswith(f"ringing    Anna Brown {CALLER}, twilio, agent maya\n")
    assert as_text(event_row({**ringing, "event": "call"})).endswith(
        f"call       Anna Brown {CALLER}, twilio, agent maya\n"
    )
