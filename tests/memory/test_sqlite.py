import stat
import subprocess
import sys
import threading

import pytest

from gateway.errors import StoreUnavailable
from gateway.memory.stores.documents import NewDocument
from gateway.memory.stores.sqlite import SqliteStore
from tests.memory.stores import SqliteGround


@pytest.fixture
async def store(tmp_path):
    async with SqliteGround(tmp_path / "store.db").opened() as store:
        yield store


async def test_file_is_for_us_alone(tmp_path):
    path = tmp_path / "data" / "store.db"
    async with SqliteGround(path).opened() as store:
        await store.create(NewDocument("", "kettle"))
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == {"store.db": 0o600, "store.db-wal": 0o600, "store.db-shm": 0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


async def test_sql_runs_off_the_loop(store):
    threads = {await store.run(lambda _: threading.get_ident()) for _ in range(5)}
    assert len(threads) == 1
    assert threads.isdisjoint({threading.get_ident()})


async def test_sql_errors_become_ours(store):
    with pytest.raises(StoreUnavailable) as raised:
        await store.run(lambda connection: connection.execute("SELECT * FROM nowhere"))
    assert str(raised.value) == "the embedded store failed: no such table: nowhere"


async def test_closed_store_is_unavailable(tmp_path):
    store = await SqliteStore.open(tmp_path / "store.db")
    await store.close()
    await store.close()
    with pytest.raises(StoreUnavailable) as raised:
        await store.get("x")
    assert str(raised.value) == "the embedded store is closed"


async def test_damaged_file_is_reported(tmp_path):
    path = tmp_path / "store.db"
    path.write_text("this is no database, " * 100)
    with pytest.raises(StoreUnavailable) as raised:
        await SqliteStore.open(path)
    assert str(raised.value) == f"can't open {path}: file is not a database"


READ = "import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute('SELECT title FROM documents').fetchall())"


def read_elsewhere(path):
    """What another process finds, which then closes the file."""
    return subprocess.run([sys.executable, "-c", READ, path], check=True, capture_output=True, text=True).stdout


async def test_second_connection_of_a_process_does_not_cost_the_first_its_locks(tmp_path):
    """Else another process that closes the file takes the log away, and what is written next is lost."""
    path = tmp_path / "store.db"
    first = await SqliteStore.open(path)
    second = await SqliteStore.open(path)
    read_elsewhere(path)
    await first.create(NewDocument("Kept", "A kettle.", "test"))
    assert read_elsewhere(path) == "[('Kept',)]\n"
    await first.close()
    await second.close()
