"""Migrations, in both databases. Everything else in this module is an interface."""

import pytest

from gateway.errors import StoreUnavailable
from gateway.memory.stores.database import Migration

OLD = ("CREATE TABLE IF NOT EXISTS old (word TEXT NOT NULL)",)
NEW = "CREATE TABLE IF NOT EXISTS new (word TEXT NOT NULL)"
MOVE = Migration("old", "INSERT INTO new SELECT word FROM old")


async def words(store, table):
    rows = await store.look(lambda connection: connection.execute(f"SELECT word FROM {table}").fetchall())
    return [word for (word,) in rows]


@pytest.fixture
async def filled(ground):
    async with ground.opened(schema=OLD) as store:
        await store.run(lambda connection: connection.execute("INSERT INTO old VALUES ('kettle')"))
    return ground


async def test_rows_are_moved_once(filled):
    for _ in range(2):
        async with filled.opened(schema=(NEW, MOVE)) as store:
            assert await words(store, "new") == ["kettle"]
            with pytest.raises(StoreUnavailable):
                await words(store, "old")


async def test_new_database_needs_no_migration(ground):
    async with ground.opened(schema=(NEW, MOVE)) as store:
        assert await words(store, "new") == []


async def test_failed_migration_leaves_the_old_table(filled):
    broken = Migration("old", "INSERT INTO new SELECT missing FROM old")
    with pytest.raises(StoreUnavailable):
        async with filled.opened(schema=(NEW, broken)) as store:
            await words(store, "new")
    async with filled.opened(schema=OLD) as store:
        assert await words(store, "old") == ["kettle"]
