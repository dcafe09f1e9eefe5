import os
from pathlib import Path

import pytest

from gateway.cluster.store import LocalStore
from gateway.errors import SharedStoreUnavailable


@pytest.fixture
async def store(tmp_path):
    store = await LocalStore.open(tmp_path / "data" / "local.db")
    yield store
    await store.close()


async def test_value_is_kept(store):
    await store.put("name", b"1", 60)
    await store.put("name", b"2", 60)
    assert await store.get("name") == b"2"
    assert await store.get("other") is None


async def test_value_expires(store):
    await store.put("name", b"1", -1)
    assert await store.get("name") is None
    assert not await store.delete("name")


async def test_name_is_added_once(store):
    assert [await store.add("name", b"1", 60), await store.add("name", b"2", 60)] == [True, False]
    assert await store.get("name") == b"1"


async def test_expired_name_is_added_again(store):
    await store.put("name", b"1", -1)
    assert await store.add("name", b"2", 60)


async def test_value_is_deleted_once(store):
    await store.put("name", b"1", 60)
    assert [await store.delete("name"), await store.delete("name")] == [True, False]


async def test_values_outlive_the_process(tmp_path: Path) -> None:
    first = await LocalStore.open(tmp_path / "local.db")
    await first.put("name", b"1", 60)
    await first.close()
    second = await LocalStore.open(tmp_path / "local.db")
    assert await second.get("name") == b"1"
    await second.close()


async def test_closed_store_is_unavailable(tmp_path: Path) -> None:
    store = await LocalStore.open(tmp_path / "local.db")
    await store.close()
    with pytest.raises(SharedStoreUnavailable):
        await store.get("name")


async def test_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "local.db").write_bytes(b"no database, whatever its name says" * 100)
    with pytest.raises(SharedStoreUnavailable, match=r"local\.db: file is not a database"):
        await LocalStore.open(tmp_path / "local.db")


async def test_file_is_for_its_owner_only(store, tmp_path: Path) -> None:
    await store.put("token", b"secret", 60)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "data").iterdir()} == {0o600}


async def test_file_of_an_earlier_version_is_deleted(tmp_path: Path) -> None:
    """It held turns of calls that workers shared."""
    for suffix in ("", "-wal"):
        (tmp_path / f"workers.db{suffix}").touch()
    store = await LocalStore.open(tmp_path / "local.db")
    await store.close()
    assert not [name for name in os.listdir(tmp_path) if name.startswith("workers.db")]


async def test_so_many_are_admitted_within_a_time(store):
    assert [await store.admit("name", 2, 600) for _ in range(2)] == [0.0, 0.0]
    assert 0 < await store.admit("name", 2, 600) <= 600
    assert await store.admit("name", 3, 600) == 0.0  # those that were refused do not count
    assert await store.delete("name")
    assert await store.admit("name", 1, 60) == 0.0
