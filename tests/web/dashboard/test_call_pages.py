"""The page of a call, as a person with a browser finds it."""

import contextlib
import re
import wave
from datetime import UTC, datetime, timedelta
from io import BytesIO

import orjson
import pytest
from cryptography.fernet import Fernet

from gateway.finalization.job_table import FinalizationJob, JobTable
from gateway.finalization.summary.call_summary import CallSummary
from gateway.history.call_log import FILE_NAME, Cursor, open_call_log
from gateway.history.calls_table import CallsTable
from gateway.response_time import ResponseTime
from gateway.session import Consent, EndReason, Speaker, Turn
from tests.calls.aftermath import a_session
from tests.web.conftest import Visitor
from tests.web.dashboard.examples import keep

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "{{ 7 * 7 }}{% for x in ().__class__.__base__.__subclasses__() %}{{ x }}{% endfor %}",
    "</textarea></title></svg><script>alert(1)</script>",
    "javascript:alert(1)",
    "\u202egnp.exe\u2066\x1b[31m\x00\x9b31m\u2028",
]


async def test_call_shows_its_parts(visitor: Visitor):
    page = await visitor.page(f"/calls/{visitor.session.uuid}")
    for words in (
        "Ana Ruiz",
        "Let&#39;s book Thursday at ten.",
        "Booked for Thursday at ten in the morning",
        "Prefers a text message when the bike is ready",
        "&lt;caller_facts&gt;",
        "aller speaks",
        "Transcript archived",
        'class="wave caller"',
        "Recording, 0:",
        "sound.wav",
    ):
        assert words in page
    assert len(re.findall(r'<li class="turn ', page)) == len(visitor.session.turns)


async def test_words_that_were_not_heard_are_struck_out(visitor: Visitor):
    session = a_session(turns=[Turn(Speaker.AGENT, "I have ten", datetime(2026, 2, 6, 23, 15, tzinfo=UTC), "or four.")])
    await CallsTable(visitor.store).write(session, document_id="", summary_by="")
    await JobTable(visitor.store).save(FinalizationJob(session, archived=True, problem="the remote store said 401"))
    page = await visitor.page(f"/calls/{session.uuid}")
    assert "I have ten" in page and "<s>or four.</s>" in page
    assert "Retry now" in page
    assert (await visitor.post(f"/calls/{session.uuid}/retry")).headers["location"].endswith("?done=retry")
    job = await JobTable(visitor.store).of(session.id)
    assert job is not None and job.problem == ""


async def test_old_call_says_what_is_gone(visitor: Visitor):
    session = a_session(timings=[ResponseTime(first_frame=0.84).as_json()])
    await CallsTable(visitor.store).write(session, document_id="", summary_by="test")
    page = await visitor.page(f"/calls/{session.uuid}")
    assert "The transcript has expired" in page and "840 ms" in page


async def test_call_of_which_later_ones_may_not_know_says_so(visitor: Visitor):
    """Its transcript is archived, and nothing else will be written."""
    untrusted = a_session(receipt={"tier": "none", "items": [], "block": ""})
    unheard = a_session(end_reason=EndReason.VOICEMAIL_REACHED)
    for session, why in ((untrusted, "None: the number was not verified."), (unheard, "None: no message was left.")):
        await CallsTable(visitor.store).write(session, document_id="", summary_by="")
        page = await visitor.page(f"/calls/{session.uuid}")
        assert why in page and "Not written yet" not in page and "/revert" not in page
        assert re.findall(r'class="state">(\w+)<', page) == ["done", "skipped", "skipped"]


async def test_call_says_what_went_wrong_and_when(visitor: Visitor):
    """Between the turns, and after the last one."""
    session = a_session(started_at=datetime.now(UTC) - timedelta(minutes=9))
    await CallsTable(visitor.store).write(session, document_id="", summary_by="")
    turn = {"event": "turn", "speaker": "agent", "text": "Hello.", "answer": 1}
    lost = {"event": "engine_lost", "engine": "deepgram", "reason": "timeout"}
    events = [
        (0, {"event": "answered", "attempt": 0}),
        (1, {"event": "memory", "facts": 0, "calls": 0, "tier": "everything", "seconds": 0.1, "outcome": "failed"}),
        (2, lost),
        (3, {"event": "engine_back", "engine": "openai"}),
        (4, turn),
        (65, {"event": "media_lost", "reason": "media stream lost"}),
    ]
    with contextlib.closing(open_call_log(visitor.folder / "data" / FILE_NAME)) as log, log:
        for number, (after, event) in enumerate(events, Cursor.now().position):
            at = (session.started_at + timedelta(seconds=after)).isoformat()
            row = (session.id, session.caller, "maya", number, orjson.dumps({**event, "at": at}).decode())
            log.execute("INSERT INTO entries (session, caller, agent, position, entry) VALUES (?, ?, ?, ?, ?)", row)
    page = await visitor.page(f"/calls/{session.uuid}")
    transcript = page.partition('<ol class="turns"')[2].partition("</ol>")[0]
    shown = re.sub(r"<[^>]+>|\s+", " ", transcript)
    assert " ".join(shown.partition(">")[2].split()) == (
        "0:01 Memory could not be loaded 0:02 Voice engine lost: deepgram, timeout 0:03 openai took over"
        " Agent 0:04 Hello. 1:05 Media stream lost"
    )
    assert "Memory could not be loaded." in page and "No earlier calls found." not in page


@pytest.mark.parametrize("words", HOSTILE)
async def test_hostile_words_are_data(visitor: Visitor, words: str):
    """In a transcript, a summary, a name, a fact, a receipt: shown, never obeyed."""
    session = a_session(
        turns=[Turn(Speaker.CALLER, words, datetime.now(UTC), words), Turn(Speaker.AGENT, words, datetime.now(UTC))],
        started_at=datetime.now(UTC) - timedelta(minutes=1),
        receipt={
            "tier": "everything",
            "block": words,
            "items": [{"kind": "fact", "text": words, "session": words, "age_days": 1, "score": 0.5, "tokens": 1}],
        },
        state={"note": words.replace("\x00", "")},
    )
    summary = CallSummary(words, (words,), (words,), (words,), (words,), words, words)
    await keep(visitor.store, session, summary)
    await JobTable(visitor.store).save(FinalizationJob(session, problem=words))
    found = await visitor.post("/calls/find", find=words)
    addresses = ["/calls", found.headers["location"], f"/calls/{session.uuid}", "/callers", "/vitals"]
    [caller] = re.findall(r'h1><a href="(/callers/[\w-]+)"', await visitor.page(f"/calls/{session.uuid}"))
    for address in [*addresses, caller]:
        page = await visitor.page(address)
        assert "<script>alert" not in page and "<img src=x" not in page and "' onmouseover='" not in page
        assert "49" not in re.findall(r'class="said"[^>]*>([^<]*)', page)
        assert not re.search("[\x00-\x08\x1b\x9b\u202e\u2066\u2028]", page)


async def test_sound_is_two_voices(visitor: Visitor):
    answer = await visitor.http.get(f"/calls/{visitor.session.uuid}/sound.wav")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "audio/wav")
    with wave.open(BytesIO(answer.content)) as sound:
        assert (sound.getnchannels(), sound.getframerate(), sound.getsampwidth()) == (2, 8000, 2)
        assert 30 < sound.getnframes() / 8000 < 40


async def test_sound_comes_in_pieces(visitor: Visitor):
    path = f"/calls/{visitor.session.uuid}/sound.wav"
    whole = (await visitor.http.get(path)).content
    for asked, start, end in (
        ("0-1", 0, 2),
        ("40-1002", 40, 1003),
        ("1001-1001", 1001, 1002),
        ("-10", len(whole) - 10, len(whole)),
    ):
        answer = await visitor.http.get(path, headers={"Range": f"bytes={asked}"})
        assert (answer.status_code, answer.content) == (206, whole[start:end])
        assert answer.headers["content-range"] == f"bytes {start}-{end - 1}/{len(whole)}"
    assert (await visitor.http.get(path, headers={"Range": "bytes=99999999-"})).status_code == 416
    for endless in (f"{'9' * 5000}-", f"0-{'9' * 5000}", f"-{'9' * 5000}"):  # more digits than int() takes
        assert (await visitor.http.get(path, headers={"Range": f"bytes={endless}"})).status_code == 200


async def test_revert_undoes_what_was_learned(visitor: Visitor):
    path = f"/calls/{visitor.session.uuid}"
    assert "Can&#39;t take calls at work" in await visitor.page(await visitor.caller_address())
    assert (await visitor.post(f"{path}/revert")).status_code == 400
    assert (await visitor.post(f"{path}/revert", sure="yes")).headers["location"] == f"{path}?done=reverted"
    page = await visitor.page(f"{path}?done=reverted")
    assert "Undone. Nothing learned from this call is kept." in page and "Deleted when this call was undone." in page
    assert "Can&#39;t take calls at work" not in await visitor.page(await visitor.caller_address())


async def test_page_has_every_part(visitor: Visitor):
    page = await visitor.page(f"/calls/{visitor.session.uuid}")
    for title in ("Timeline", "Transcript", "Summary", "Learned from this call", "Post-call processing"):
        assert f">{title}</h2>" in page


async def test_recording_without_its_key_is_named(visitor: Visitor):
    path = visitor.folder / "recordings" / f"{visitor.session.uuid}.jsonl"
    path.write_bytes(Fernet(Fernet.generate_key()).encrypt(path.read_bytes()) + b"\n")
    problem = f"{path} is encrypted; set RECORD_KEY to the key that it was recorded with"
    page = await visitor.page(f"/calls/{visitor.session.uuid}")
    assert problem in page and "<audio" not in page
    answer = await visitor.http.get(f"/calls/{visitor.session.uuid}/sound.wav")
    assert answer.status_code == 409 and problem in answer.text


async def test_page_shows_consent_and_retention(visitor: Visitor):
    page = await visitor.page(f"/calls/{visitor.session.uuid}")
    assert "Recording: agreed" in page and "Recordings are deleted after" not in page
    for consent in (Consent.REFUSED, Consent.ANNOUNCED):
        ancient = a_session(started_at=datetime(1900, 1, 1, tzinfo=UTC), consent=consent)
        await CallsTable(visitor.store).write(ancient, document_id="", summary_by="test")
        page = await visitor.page(f"/calls/{ancient.uuid}")
        assert f"Recording: {consent}" in page
        assert ("Recordings are deleted after" in page) == (consent is Consent.ANNOUNCED)
    assert "Recordings are deleted after 36,500 days (RECORD_RETENTION_DAYS)." in page
