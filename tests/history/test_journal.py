import asyncio
import sqlite3
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls.playout import MARK_BYTES, Playout
from gateway.calls.transcript import Transcript
from gateway.history.journal import Journal, circumstances, entries_of, turns_of
from gateway.session import Speaker, Turn, VoiceSession
from tests.stage import until

NOW = datetime(2026, 2, 6, 23, 15, tzinfo=UTC)


def a_session() -> VoiceSession:
    return VoiceSession(agent="maya", caller="+12025550143", carrier="twilio", started_at=NOW)


@pytest.fixture
async def journal(tmp_path: Path) -> AsyncIterator[Journal]:
    journal = Journal(tmp_path / "data" / "journal.db")
    yield journal
    journal.close()


async def test_turns_are_there_after_a_crash(journal: Journal, tmp_path: Path) -> None:
    """Another process reads what this one wrote, though it never closed anything."""
    session = a_session()
    log = journal.open_session(session, {"called": "+12025550100"})
    log.caller_said("Is my bike ready?", NOW)
    log.agent_said(1, "It will be", NOW)
    log.agent_said(1, "on Friday.", NOW)
    await journal.flushed()
    survivor = Journal(tmp_path / "data" / "journal.db")
    [left] = await survivor.unfinished()
    survivor.close()
    assert left.header == {"called": "+12025550100"}
    assert left.session.id == session.id
    assert left.session.turns == [
        Turn(Speaker.CALLER, "Is my bike ready?", NOW),
        Turn(Speaker.AGENT, "It will be on Friday.", NOW),
    ]


async def test_forgotten_session_leaves_no_word(journal: Journal, tmp_path: Path) -> None:
    session = a_session()
    journal.open_session(session, {}).caller_said("My secret is safe.", NOW)
    journal.forget(session.id)
    assert await journal.unfinished() == []
    with sqlite3.connect(tmp_path / "data" / "journal.db") as connection:
        assert connection.execute("SELECT count(*) FROM entries").fetchone() == (0,)
    connection.close()


async def test_session_forgotten_in_mid_call_leaves_no_word(journal: Journal, tmp_path: Path) -> None:
    """Somebody else has deleted it meanwhile, and the call went on."""
    session = a_session()
    log = journal.open_session(session, {})
    journal.put("DELETE FROM sessions")
    log.caller_said("My secret is safe.", NOW)
    journal.forget(session.id)
    await journal.flushed()
    with sqlite3.connect(tmp_path / "data" / "journal.db") as connection:
        assert connection.execute("SELECT count(*) FROM entries").fetchone() == (0,)
    connection.close()


async def test_what_was_taken_back_stays_so_after_a_crash(journal: Journal) -> None:
    session = a_session()
    session.state = {"cheese": "brie"}
    log = journal.open_session(session, {})
    log.caller_said("My secret is safe.", NOW)
    log.begin_anew([*entries_of([Turn(Speaker.CALLER, "Hello.", NOW)]), *circumstances(session)])
    log.record_is(off=True)
    [left] = await journal.unfinished()
    assert left.session.turns == [Turn(Speaker.CALLER, "Hello.", NOW)]
    assert (left.session.state, left.session.off_record) == ({"cheese": "brie"}, True)


async def test_calls_are_kept_apart(journal: Journal) -> None:
    first, second = a_session(), a_session()
    logs = {session.id: journal.open_session(session, {}) for session in (first, second)}
    for number in range(3):
        for session_id, log in logs.items():
            log.caller_said(f"{session_id} {number}", NOW)
    left = {call.session.id: call.session.turns for call in await journal.unfinished()}
    assert left == {id_: [Turn(Speaker.CALLER, f"{id_} {number}", NOW) for number in range(3)] for id_ in logs}


async def test_call_that_goes_on_keeps_its_turns(journal: Journal) -> None:
    session = a_session()
    journal.open_session(session, {"attempt": 0}).caller_said("One.", NOW)
    journal.open_session(session, {"attempt": 1}).caller_said("Two.", NOW)
    [left] = await journal.unfinished()
    assert [turn.text for turn in left.session.turns] == ["One.", "Two."]
    assert left.header == {"attempt": 1}


async def test_unwritable_disk_holds_nobody_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Calls go on, the log says so once, and what waited is written when there is room."""
    blocked = tmp_path / "journal.db"
    blocked.mkdir()
    journal = Journal(blocked)
    log = journal.open_session(a_session(), {})
    log.caller_said("First.", NOW)
    await until(lambda: "file can't be written, calls go on without it" in caplog.messages)
    log.caller_said("Second.", NOW)
    blocked.rmdir()
    async with asyncio.timeout(60):
        [left] = await journal.unfinished()
    journal.close()
    assert [turn.text for turn in left.session.turns] == ["First.", "Second."]
    assert caplog.messages.count("file can't be written, calls go on without it") == 1


async def test_damaged_last_record_is_dropped(journal: Journal, tmp_path: Path) -> None:
    session = a_session()
    log = journal.open_session(session, {})
    log.caller_said("Whole.", NOW)
    await journal.flushed()
    log.caller_said("Torn.", NOW)
    await journal.flushed()
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("journal.db", "journal.db-wal"):
        (copy / name).write_bytes((tmp_path / "data" / name).read_bytes())
    log_file = copy / "journal.db-wal"
    log_file.write_bytes(log_file.read_bytes()[:-100])
    survivor = Journal(copy / "journal.db")
    [left] = await survivor.unfinished()
    survivor.close()
    assert [turn.text for turn in left.session.turns] == ["Whole."]


def test_entry_that_is_there_twice_was_said_once() -> None:
    """It was shared, its answer was lost, and it was shared again."""
    caller = {"caller": "Is it ready?", "at": NOW.isoformat()}
    agent = {"agent": "It is.", "answer": 1, "at": NOW.isoformat()}
    turns = turns_of([caller, caller, agent, agent])
    assert turns == [Turn(Speaker.CALLER, "Is it ready?", NOW), Turn(Speaker.AGENT, "It is.", NOW)]


class Remembered:
    """A journal that is a list."""

    def __init__(self) -> None:
        self.entries: list[dict[str, object]] = []

    def caller_said(self, text: str, at: datetime) -> None:
        self.entries.append({"caller": text, "at": at.isoformat()})

    def agent_said(self, answer: int, text: str, at: datetime) -> None:
        self.entries.append({"agent": text, "answer": answer, "at": at.isoformat()})

    def record_is(self, *, off: bool) -> None:
        self.entries.append({"off_record": off})

    def cut_off(self, answer: int, heard: str, unheard: str) -> None:
        self.entries.append({"heard": heard, "unheard": unheard, "answer": answer})


@given(st.lists(st.sampled_from(["caller", "agent", "sound", "mark", "done", "interrupt", "off", "on"]), max_size=30))
def test_journal_tells_what_the_transcript_tells(happenings: list[str]) -> None:
    playout, remembered = Playout(), Remembered()
    transcript = Transcript(playout, journal=remembered)
    for number, happening in enumerate(happenings):
        if happening == "caller":
            transcript.caller_said(f"caller {number}", NOW)
        elif happening == "agent":
            transcript.agent_said(f"agent {number} says so.", NOW)
        elif happening == "sound":
            transcript.agent_audio(MARK_BYTES, float(number))
            playout.audio_sent(MARK_BYTES)
        elif happening == "mark":
            playout.mark_reached(playout.next_mark())
        elif happening == "done":
            transcript.agent_audio_done()
        elif happening in ("off", "on"):
            transcript.go_off_record(happening == "off")
        else:
            transcript.interrupted(float(number))
            playout.cleared()
    assert transcript.ended(99.0) == turns_of(remembered.entries)
