"""Calls as text: what a caller can choose does not steer the terminal."""

import io
import re

import pytest

from gateway.cli.sessions import ALL_DONE, NO_CALLS, call_details, call_list
from gateway.cli.terminal import as_text, make_console

HEAD = ["call", "time", "caller", "agent", "carrier", "length", "turns", "outcome"]
HOSTILE = "\x1b[2Jcaller\r\n\u202e"
CALL = {
    "session": "voice-session:3f2a91c0-aaaa",
    "started_at": "2026-02-06T23:15:04+00:00",
    "agent": "maya",
    "caller": HOSTILE,
    "carrier": "twilio",
    "seconds": 67.0,
    "turns": 1,
    "outcome": "caller hung up",
    "ending": "rests",
    "archived": True,
    "summary_by": "",
    "document": "",
    "remote": False,
    "problem": HOSTILE,
}

DETAILS = {"summary": "", "transcript": [], "timings": [], "receipt": {}, "steps": {}, "timeline": []}


def test_hostile_names_do_not_steer_the_terminal() -> None:
    """A caller is known by a SIP header, perhaps, and a store's refusal may be quoted."""
    said = {"speaker": "caller", "text": HOSTILE, "at": "", "unheard": HOSTILE, "by_operator": False}
    step = {"remote": {"state": "refused", "at": "", "reason": HOSTILE}}
    event = {"event": "turn", "at": CALL["started_at"], "speaker": "caller", "text": HOSTILE}
    more = {
        "summary": HOSTILE,
        "transcript": [said],
        "timings": [],
        "receipt": {"block": HOSTILE},
        "steps": step,
        "timeline": [event],
    }
    for text in (as_text(*call_list([CALL])), as_text(*call_details({**CALL, **more}))):
        assert "[2Jcaller" in text
        assert not set("\x1b\r\u202e") & set(text)


def test_steps_are_in_words_and_idle_ones_hidden() -> None:
    idle = {"state": "done", "at": "", "reason": "", "ran": False}
    waits = {"state": "waits", "at": "", "reason": "no answer", "ran": True}
    timeline = [{"event": "step", "at": CALL["started_at"], "step": "webhook", "state": "done", "ran": False}]
    more = {**DETAILS, "steps": {"webhook": idle, "document": waits}, "timeline": timeline}
    text = as_text(*call_details({**CALL, **more}))
    assert "document  pending  no answer" in text
    assert "webhook" not in text


def test_names_have_a_label() -> None:
    more = {**DETAILS, "summary": "- Is called Daniel", "receipt": {"block": "Is called Daniel"}}
    lines = as_text(*call_details({**CALL, **more})).splitlines()
    assert {"  - Name: Daniel", "  Name: Daniel"} <= set(lines)


def test_failed_job_is_listed_below_its_call() -> None:
    call = {**CALL, "caller": "+12025550143", "name": "Anna Brown", "problem": "remem answered 401"}
    lines = as_text(*call_list([call])).splitlines()
    assert re.split("  +", lines[0]) == [*HEAD, "post-call"]
    assert lines[1].startswith("3f2a91c0  2026-02-0") and lines[1].endswith("1:07      1  caller hung up  failed")
    assert "  Anna Brown +12025550143  maya   twilio  " in lines[1]
    assert lines[4:] == [
        "    archived, not summarised, not stored, not sent to the remote store",
        "    failed: remem answered 401",
    ]


def test_finished_calls_say_so() -> None:
    lines = as_text(*call_list([{**CALL, "ending": "done"}])).splitlines()
    assert (re.split("  +", lines[0]), lines[-1]) == (HEAD, ALL_DONE)
    assert as_text(*call_list([])) == f"{NO_CALLS}\n"


def test_list_that_may_have_more_calls_says_so() -> None:
    calls = [{**CALL, "ending": "done"}] * 3
    said = "at most 3 calls, the newest ones; --limit changes that"
    assert as_text(*call_list(calls, 3)).splitlines()[-2:] == [ALL_DONE, said]
    assert said not in as_text(*call_list(calls, 4))


def test_transcript_breaks_between_words_beside_its_speaker() -> None:
    turn = {"speaker": "agent", "text": "Your appointment is on Thursday at ten", "at": "", "unheard": ""}
    page = io.StringIO()
    make_console(page, width=30).print(*call_details({**CALL, **DETAILS, "transcript": [turn]}), sep="\n")
    shown = [line.rstrip() for line in page.getvalue().splitlines()]
    first = shown.index("Transcript") + 1
    assert shown[first : first + 2] == ["  agent   Your appointment is", "          on Thursday at ten"]


@pytest.mark.parametrize(
    ("first_audio", "line"),
    [
        (0.42, "engine: deepgram, first audio 420 ms after the answer"),
        (None, "engine: deepgram, first audio not measured"),
    ],
)
def test_engine_is_shown_with_its_first_audio(first_audio: float | None, line: str) -> None:
    call = {**CALL, **DETAILS, "engine": "deepgram", "first_audio": first_audio}
    assert line in as_text(*call_details(call)).splitlines()
