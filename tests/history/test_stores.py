"""Files that the previous version wrote, as SQL dumps in `old_databases`, are opened without loss."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.errors import StoreUnavailable
from gateway.history.call_log import (
    FILE_NAME,
    LoggedTurn,
    events_of_call,
    recovered_calls,
    rows_of_call,
    turns_from_rows,
)
from gateway.history.stores import migrate_call_log
from gateway.response_time import CountedFrom, ResponseTime
from gateway.session import Speaker, Turn

START = datetime(2026, 2, 6, 23, 15, tzinfo=UTC)
LIVE = "voice-session:11111111-1111-4111-8111-111111111111"
FINISHED = "voice-session:22222222-2222-4222-8222-222222222222"
OLD = Path(__file__).parent / "old_databases"


def restore_dump(name: str, folder: Path) -> Path:
    path = folder / f"{name}.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((OLD / f"{name}.sql").read_text())
        connection.execute("PRAGMA journal_mode = WAL")
    return path


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    for name in ("journal", "events"):
        restore_dump(name, tmp_path)
    yield tmp_path


def after(seconds: int) -> datetime:
    return START + timedelta(seconds=seconds)


def test_live_call_is_recovered(data_dir: Path) -> None:
    migrate_call_log(data_dir)
    [left] = recovered_calls(data_dir / FILE_NAME)
    assert (left.session.id, left.header, left.node) == (LIVE, {"called": "+12025550100", "attempt": 1}, "node-a")
    assert (left.session.caller, left.session.number) == ("customer:7", "+12025550143")
    assert left.session.state == {"cheese": "brie"}
    assert left.session.turns == [
        Turn(Speaker.AGENT, "Hello, this is Maya.", after(1)),
        Turn(Speaker.CALLER, "Is my bike ready?", after(3)),
        Turn(Speaker.AGENT, "It will be", after(4), "ready on Friday at noon."),
        Turn(Speaker.CALLER, "Thank you.", after(8)),
        Turn(Speaker.AGENT, "You are welcome.", after(9)),
    ]


def test_events_are_kept(data_dir: Path) -> None:
    migrate_call_log(data_dir)
    events = events_of_call(data_dir / FILE_NAME, FINISHED)
    assert [event["event"] for event in events] == ["answered", "turn", "turn", "hangup"]
    assert events[0]["id"] == "1794961551532-7"
    [_, answer] = turns_from_rows(rows_of_call(data_dir / FILE_NAME, FINISHED))
    measured = ResponseTime(first_frame=0.84, counted_from=CountedFrom.ENGINE)
    assert answer == LoggedTurn(Turn(Speaker.AGENT, "With pleasure.", START), measured, answer.answer)
    live = turns_from_rows(events_of_call(data_dir / FILE_NAME, LIVE))
    assert live[1].turn == Turn(Speaker.CALLER, "Is my bike ready?", after(3))


def test_old_files_are_gone(data_dir: Path) -> None:
    migrate_call_log(data_dir)
    migrate_call_log(data_dir)
    assert sorted(path.name for path in data_dir.iterdir()) == [FILE_NAME]


def test_interrupted_migration_is_repeated(data_dir: Path) -> None:
    """The process was killed after the commit and before the old files were deleted."""
    migrate_call_log(data_dir)
    for name in ("journal", "events"):
        restore_dump(name, data_dir)
    before = rows_of_call(data_dir / FILE_NAME, LIVE)
    migrate_call_log(data_dir)
    assert rows_of_call(data_dir / FILE_NAME, LIVE) == before
    assert len(events_of_call(data_dir / FILE_NAME, FINISHED)) == 4


def test_one_old_file_is_enough(data_dir: Path) -> None:
    (data_dir / "journal.db").unlink()
    migrate_call_log(data_dir)
    assert recovered_calls(data_dir / FILE_NAME) == []
    assert len(events_of_call(data_dir / FILE_NAME, FINISHED)) == 4


def test_running_earlier_version_keeps_its_files(data_dir: Path) -> None:
    with closing(sqlite3.connect(data_dir / "journal.db")) as connection:
        connection.execute("SELECT * FROM entries").fetchone()
        with pytest.raises(StoreUnavailable, match="cannot be migrated: database is locked"):
            migrate_call_log(data_dir)
    assert (data_dir / "journal.db").is_file() and (data_dir / "events.db").is_file()


def test_new_installation_has_nothing_to_migrate(tmp_path: Path) -> None:
    migrate_call_log(tmp_path)
    assert list(tmp_path.iterdir()) == []
