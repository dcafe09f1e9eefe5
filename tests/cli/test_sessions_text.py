"""Calls as text: what a caller can choose does not steer the terminal."""

from gateway.cli.remote import Paint
from gateway.cli.sessions_text import table, whole

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
    more = {"transcript": [said], "timings": [], "receipt": {"block": HOSTILE}, "steps": step, "timeline": [event]}
    for text in (table([CALL], Paint(False)), whole({**CALL, **more}, Paint(False))):
        assert "[2Jcaller" in text
        assert not set("\x1b\r\u202e") & set(text)
