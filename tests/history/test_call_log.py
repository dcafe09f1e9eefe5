import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls.playout import MARK_BYTES
from gateway.calls.recorder import NoRecorder
from gateway.calls.transcript import CallRecords
from gateway.history.call_log import (
    CallLog,
    CallLogTimeouts,
    Cursor,
    LogRow,
    erase_calls,
    events_of_call,
    logged_sessions,
    restore,
    rows_beside_turns,
    rows_of_call,
    rows_of_turns,
    turns_from_rows,
)
from gateway.history.live_events import EventPublisher
from gateway.response_time import ResponseTime
from gateway.session import Consent, Speaker, Turn, Voicemail, VoiceSession
from tests.fakes.call_parts import make_transcript
from tests.stage import in_time, until

NOW = datetime(2026, 2, 6, 23, 15, tzinfo=UTC)
LATER = datetime(2026, 2, 6, 23, 16, tzinfo=UTC)
UNWRITABLE = "call log cannot be written, calls continue without it"


def a_session() -> VoiceSession:
    return VoiceSession(agent="maya", caller="+12025550143", carrier="twilio", started_at=NOW)


def turns_of(rows: Iterable[dict[str, object]]) -> list[Turn]:
    return [logged.turn for logged in turns_from_rows(rows)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "call-log.db"


@pytest.fixture
async def log(path: Path) -> AsyncIterator[CallLog]:
    log = CallLog(path)
    yield log
    log.close()


async def test_turns_survive_a_crash(log: CallLog, path: Path) -> None:
    """Another process reads what this one wrote, though it never closed anything."""
    session = a_session()
    log.open_call(session, {"called": "+12025550100"})
    call = EventPublisher(log).of(session)
    call.caller_said("Is my bike ready?", NOW)
    call.agent_said(1, "It will be", NOW)
    call.agent_said(1, "on Friday.", NOW)
    await log.flushed()
    survivor = CallLog(path)
    [left] = await survivor.unfinished()
    survivor.close()
    assert left.header == {"called": "+12025550100"}
    assert left.session.id == session.id
    assert left.session.turns == [
        Turn(Speaker.CALLER, "Is my bike ready?", NOW),
        Turn(Speaker.AGENT, "It will be on Friday.", NOW),
    ]


async def test_turn_is_stored_once(log: CallLog, path: Path) -> None:
    """The row that recovery reads becomes the live event when its latency is known."""
    session = a_session()
    log.open_call(session, {})
    call = EventPublisher(log).of(session)
    call.caller_said("Is it ready?", NOW)
    call.agent_said(1, "It is.", NOW)
    await log.flushed()
    assert [event["text"] for _, event in await log.after(Cursor())] == ["Is it ready?"]
    assert len(rows_of_call(path, session.id)) == 2
    call.first_audio_sent(ResponseTime(first_frame=0.84))
    await log.flushed()
    assert [event["text"] for _, event in await log.after(Cursor())] == ["Is it ready?", "It is."]
    [_, answer] = turns_from_rows(rows_of_call(path, session.id))
    assert (answer.turn.text, answer.response) == ("It is.", ResponseTime(first_frame=0.84))


async def test_released_call_keeps_only_events(log: CallLog, path: Path) -> None:
    session = a_session()
    log.open_call(session, {})
    call = EventPublisher(log).of(session)
    call.set_state({"cheese": "brie"})
    call.publish("hangup", reason="caller hung up", seconds=1, turns=0)
    log.release(session.id)
    assert await log.unfinished() == []
    assert [row["event"] for row in rows_of_call(path, session.id)] == ["hangup"]


async def test_call_of_another_process_is_not_released(path: Path) -> None:
    first, second = CallLog(path, "a"), CallLog(path, "b")
    session = a_session()
    first.open_call(session, {})
    first.append(LogRow(session.id, "", ""), {"state": {"cheese": "brie"}})
    await first.flushed()
    second.release(session.id)
    [left] = await second.unfinished()
    assert (left.node, left.session.state) == ("a", {"cheese": "brie"})
    second.claim(session.id)
    second.release(session.id)
    assert await second.unfinished() == []
    first.close()
    second.close()


async def test_erased_call_leaves_no_word(log: CallLog, path: Path) -> None:
    """The call goes on after another process has erased it: its rows are found by a second erasure."""
    session = a_session()
    log.open_call(session, {})
    call = EventPublisher(log).of(session)
    call.caller_said("My secret is safe.", NOW)
    call.agent_said(1, "Very.", NOW)
    await log.flushed()
    assert erase_calls(path, [session.id]) == 2
    call.caller_said("And the other one.", NOW)
    await log.flushed()
    assert logged_sessions(path) == {session.id}
    erase_calls(path, [], session.caller, "maya")
    assert (logged_sessions(path), await log.unfinished()) == (set(), [])


async def test_retracted_turns_stay_so_after_a_crash(log: CallLog, path: Path) -> None:
    session = a_session()
    session.state = {"cheese": "brie"}
    log.open_call(session, {})
    shared: list[bytes] = []
    call = EventPublisher(log).call(
        session.id, "maya", session.caller, "twilio", kept=True, share=lambda _, row: shared.append(row)
    )
    call.caller_said("Hello.", NOW)
    call.caller_said("My secret is safe.", LATER)
    call.agent_said(1, "It is.", LATER)
    call.agent_said(1, "Really.", NOW)
    call.cut_off(1, "It is.", "Really.")
    call.publish("function_finished", function="keep", ok=True, seconds=0.1, arguments="My secret", result="kept")
    session.taken_back = [f"caller {LATER.isoformat()}", f"agent {LATER.isoformat()}"]
    call.retract(session, rows_of_turns([Turn(Speaker.CALLER, "Hello.", NOW)]))
    call.set_off_record(True)
    [left] = await log.unfinished()
    assert left.session.turns == [Turn(Speaker.CALLER, "Hello.", NOW)]
    assert (left.session.state, left.session.off_record) == ({"cheese": "brie"}, True)
    assert left.session.taken_back == session.taken_back
    assert [event.get("text") for event in events_of_call(path, session.id)] == ["Hello.", None]
    kept = events_of_call(path, session.id)[-1]
    assert kept["function"] == "keep" and not kept.keys() & {"arguments", "result"}
    assert any(b"restart" in row for row in shared)


async def test_calls_are_kept_apart(log: CallLog) -> None:
    sessions = [a_session(), a_session()]
    publisher = EventPublisher(log)
    for session in sessions:
        log.open_call(session, {})
    for number in range(3):
        for session in sessions:
            publisher.of(session).caller_said(f"{session.id} {number}", NOW)
    left = {call.session.id: [turn.text for turn in call.session.turns] for call in await log.unfinished()}
    assert left == {session.id: [f"{session.id} {number}" for number in range(3)] for session in sessions}


async def test_resumed_call_keeps_its_turns(log: CallLog) -> None:
    session, publisher = a_session(), EventPublisher(log)
    log.open_call(session, {"attempt": 0})
    publisher.of(session).caller_said("One.", NOW)
    log.open_call(session, {"attempt": 1})
    publisher.of(session).caller_said("Two.", NOW)
    [left] = await log.unfinished()
    assert [turn.text for turn in left.session.turns] == ["One.", "Two."]
    assert left.header == {"attempt": 1}


async def test_call_that_came_back_has_each_turn_once(log: CallLog) -> None:
    """It went to another node and returned with all its turns, some of which are in this log."""
    session = a_session()
    log.open_call(session, {})
    EventPublisher(log).of(session).caller_said("One.", NOW)
    session.turns = [Turn(Speaker.CALLER, "One.", NOW), Turn(Speaker.AGENT, "Two", LATER, "and three.")]
    log.take_over(session, {"attempt": 2})
    [left] = await log.unfinished()
    assert left.session.turns == session.turns


async def test_full_disk_delays_no_call(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Calls go on, the failure is logged once, and what waited is written when there is room."""
    blocked = tmp_path / "call-log.db"
    blocked.mkdir()
    log = CallLog(blocked, timeouts=CallLogTimeouts(retry=0.05))
    session = a_session()
    log.open_call(session, {})
    call = EventPublisher(log).of(session)
    call.caller_said("First.", NOW)
    await until(lambda: UNWRITABLE in caplog.messages)
    call.caller_said("Second.", NOW)
    blocked.rmdir()
    async with asyncio.timeout(60):
        [left] = await log.unfinished()
    log.close()
    assert [turn.text for turn in left.session.turns] == ["First.", "Second."]
    assert caplog.messages.count(UNWRITABLE) == 1


async def test_damaged_last_record_is_dropped(log: CallLog, path: Path, tmp_path: Path) -> None:
    session = a_session()
    log.open_call(session, {})
    call = EventPublisher(log).of(session)
    call.caller_said("Whole.", NOW)
    await log.flushed()
    call.caller_said("Torn.", NOW)
    await log.flushed()
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in (path.name, f"{path.name}-wal"):
        (copy / name).write_bytes((path.parent / name).read_bytes())
    wal = copy / f"{path.name}-wal"
    wal.write_bytes(wal.read_bytes()[:-100])
    survivor = CallLog(copy / path.name)
    [left] = await survivor.unfinished()
    survivor.close()
    assert [turn.text for turn in left.session.turns] == ["Whole."]


async def test_secret_spread_over_turns_is_redacted(log: CallLog, path: Path) -> None:
    session = a_session()
    call = EventPublisher(log).of(session)
    call.caller_said("My card is 4242 4242", NOW)
    call.caller_said("4242 4242.", LATER)
    log.redact(session.id)
    await log.flushed()
    texts = [event["text"] for event in events_of_call(path, session.id)]
    assert not any("4242" in text for text in texts) and any("[card number removed]" in text for text in texts)


async def test_event_of_a_dropped_row_is_still_published(log: CallLog) -> None:
    """The row was dropped while the disk was full; the event is written when there is room."""
    log.publish(LogRow("voice-session:1", "", "maya"), b'{"event": "turn"}', appended=True)
    await log.flushed()
    assert [event for _, event in await log.after(Cursor())] == [{"event": "turn"}]


async def test_watcher_is_woken_by_a_commit(log: CallLog) -> None:
    waiting = asyncio.ensure_future(log.after(await log.head(), wait=30))
    await asyncio.sleep(0.05)
    EventPublisher(log).of(a_session()).publish("ringing", called="+12025550100")
    [(_, event)] = await in_time(waiting)
    assert event["event"] == "ringing"


async def test_old_events_are_deleted(log: CallLog, path: Path) -> None:
    session = a_session()
    EventPublisher(log).of(session).caller_said("Long ago.", NOW)
    log.delete_before(Cursor(Cursor.now().ms + 1000))
    await log.flushed()
    assert logged_sessions(path) == set()


def private(path: Path) -> bool:
    return (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


async def test_file_is_private(log: CallLog, path: Path) -> None:
    await log.flushed()
    assert private(path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize("text, cursor", [("5", Cursor(5)), ("5-7", Cursor(5, 7))])
def test_cursor_is_read(text: str, cursor: Cursor) -> None:
    assert Cursor.parse(text) == cursor
    assert Cursor.at(cursor.position) == cursor


def test_wrong_cursor_is_refused() -> None:
    with pytest.raises(ValueError, match="a cursor looks like 1770419700000-0"):
        Cursor.parse("yesterday")


def test_repeated_row_was_said_once() -> None:
    """It was shared, its acknowledgement was lost, and it was shared again."""
    caller = {"event": "turn", "speaker": "caller", "text": "Is it ready?", "at": NOW.isoformat()}
    agent = {"event": "turn", "speaker": "agent", "text": "It is.", "answer": 1, "at": NOW.isoformat()}
    turns = turns_of([caller, caller, agent, agent])
    assert turns == [Turn(Speaker.CALLER, "Is it ready?", NOW), Turn(Speaker.AGENT, "It is.", NOW)]


SPEECH = st.builds(
    Turn,
    st.sampled_from(Speaker),
    st.sampled_from(["Yes.", "No.", "Well, maybe."]),
    st.just(NOW),
)


@given(st.lists(SPEECH))
def test_rows_give_the_turns_back(turns: list[Turn]) -> None:
    rows = rows_of_turns(turns)
    repeats = any(one == other and one.speaker is Speaker.CALLER for one, other in zip(turns, turns[1:], strict=False))
    assert repeats or turns_of(rows) == turns


class Rows:
    """A call log that is a list."""

    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = []
        self._off = False

    def caller_said(self, text: str, at: datetime, *, is_late: bool = False) -> None:
        late = {"late": True} if is_late else {}
        self._append({"event": "turn", "speaker": "caller", "text": text, "at": at.isoformat(), **late})

    def agent_said(
        self, answer: int, text: str, at: datetime, *, by_operator: bool = False, before_answer: bool = False
    ) -> None:
        piece = {"event": "turn", "speaker": "agent", "text": text, "answer": answer, "at": at.isoformat()}
        self._append({**piece, **({"by_operator": True} if by_operator else {})})

    def set_off_record(self, off: bool) -> None:
        self._off = off

    def cut_off(self, answer: int, heard: str, unheard: str) -> None:
        self._append({"event": "interruption", "heard": heard, "unheard": unheard, "answer": answer})

    def turn_ended(self) -> None: ...

    def _append(self, row: dict[str, object]) -> None:
        if not self._off:
            self.rows.append(row)


@given(
    st.lists(
        st.sampled_from(
            ["caller", "agent", "operator", "sound", "mark", "done", "interrupt", "off", "on", "finished", "late"]
        ),
        max_size=30,
    )
)
def test_log_equals_the_transcript(happenings: list[str]) -> None:
    log = Rows()
    transcript = make_transcript(records=CallRecords(log, NoRecorder()))  # type: ignore[arg-type]
    playout = transcript.playout
    finished: list[str] = []
    for number, happening in enumerate(happenings):
        at = NOW + timedelta(seconds=number)
        if happening == "caller":
            transcript.caller_said(f"caller {number}", at)
        elif happening == "finished":
            finished.append(f"u{number}")
            transcript.caller_finished(finished[-1], at)
        elif happening == "late":
            transcript.caller_said(f"caller {number}", at, finished.pop() if finished else "")
        elif happening == "agent":
            transcript.agent_said(f"agent {number} says so.", at)
        elif happening == "operator":
            transcript.operator_says(f"operator {number} says so.")
            transcript.agent_said(f"operator {number} says so.", at)
        elif happening == "sound":
            transcript.agent_audio(MARK_BYTES, float(number))
            playout.audio_sent(MARK_BYTES, float(number))
        elif happening == "mark":
            playout.mark_reached(playout.next_mark(), float(number))
        elif happening == "done":
            transcript.agent_audio_done()
        elif happening in ("off", "on"):
            transcript.go_off_record(happening == "off")
        else:
            transcript.interrupted(float(number))
            playout.cleared()
    assert transcript.finish(99.0) == turns_of(log.rows)


@pytest.mark.parametrize("consent", Consent)
def test_consent_survives_the_process(consent: Consent) -> None:
    asked, restored = a_session(), a_session()
    asked.consent = consent
    restore(restored, rows_beside_turns(asked))
    assert restored.consent is consent


@pytest.mark.parametrize("voicemail", Voicemail)
def test_voicemail_survives_the_process(voicemail: Voicemail) -> None:
    called, restored = a_session(), a_session()
    called.voicemail = voicemail
    restore(restored, rows_beside_turns(called))
    assert restored.voicemail is voicemail
    assert VoiceSession.from_json(called.as_json()).voicemail is voicemail
