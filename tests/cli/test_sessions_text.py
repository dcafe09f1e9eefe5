"""Calls as text: what a caller can choose does not steer the terminal."""

from gateway.cli.sessions import ALL_DONE, call_details, call_list
from gateway.cli.terminal import as_text

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


def test_hostile_names_do_not_steer_the_terminal() -> None:
    """A caller is known by a SIP header, perhaps, and a store's refusal may be quoted."""
    said = {"speaker": "caller", "text": HOSTILE, "at": "", "unheard": HOSTILE}
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


def test_failed_job_is_listed_below_its_call() -> None:
    lines = as_text(*call_list([{**CALL, "caller": "…0143", "problem": "remem answered 401"}])).splitlines()
    assert lines[0].startswith("3f2a91c0  2026-02-0") and lines[0].endswith("1:07  1 turn  caller hung up  failed")
    assert lines[3:] == [
        "    archived, not summarised, not stored, not sent to the remote store",
        "    failed: remem answered 401",
    ]


def test_finished_calls_say_so() -> None:
    assert as_text(*call_list([{**CALL, "ending": "done"}])).splitlines()[-1] == ALL_DONE
    assert as_text(*call_list([])) == f"{ALL_DONE}\n"
