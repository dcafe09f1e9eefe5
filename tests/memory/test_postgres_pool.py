import asyncio
import time

import pytest

from gateway.errors import StoreUnavailable
from gateway.memory.stores.postgres_pool import PostgresPool, PostgresTimeouts
from tests.stage import PATIENCE, until_it


def pool_on(url, prepare=lambda raw: None, timeouts=PostgresTimeouts()):
    return PostgresPool(url, prepare, "SELECT 1", readers=1, writers=1, timeouts=timeouts)


@pytest.fixture
async def pool(postgres):
    pool = pool_on(postgres.url)
    yield pool
    await pool.close()


async def test_connection_is_used_again(pool):
    first = await pool.read(lambda raw: raw.info.backend_pid, PATIENCE)
    assert await pool.write(lambda raw: raw.info.backend_pid, PATIENCE) == first


async def test_lost_connection_is_replaced(pool):
    first = await pool.read(lambda raw: raw.info.backend_pid, PATIENCE)
    with pytest.raises(StoreUnavailable, match="AdminShutdown|InterfaceError|OperationalError|closed every"):
        await pool.read(lambda raw: raw.execute("SELECT pg_terminate_backend(pg_backend_pid())"), PATIENCE)
    assert await pool.read(lambda raw: raw.info.backend_pid, PATIENCE) != first


async def test_server_that_does_not_answer_is_given_up(pool):
    await pool.read(lambda raw: None, PATIENCE)
    with pytest.raises(StoreUnavailable) as raised:
        await pool.read(lambda raw: raw.execute("SELECT pg_sleep(600)"), 1)
    assert str(raised.value) == "PostgreSQL does not answer" and raised.value.answer_lost
    assert await pool.read(lambda raw: raw.execute("SELECT 2").fetchone(), PATIENCE) == (2,)


async def test_server_that_stops_in_the_middle_of_making_tables_is_given_up(postgres):
    """Jobs that wait for the tables wait no longer than that either."""
    waits = [600, 0]
    pool = pool_on(postgres.url, lambda raw: raw.execute("SELECT pg_sleep(%s)", (waits.pop(0),)))
    try:
        with pytest.raises(StoreUnavailable, match="does not answer"):
            await pool.read(lambda raw: None, 1)

        async def is_back():
            try:
                return await pool.read(lambda raw: raw.execute("SELECT 2").fetchone(), PATIENCE)
            except StoreUnavailable:
                return None

        assert await until_it(is_back) == (2,)
    finally:
        await pool.close()


async def test_work_that_was_given_up_is_not_done_again(pool):
    tries = []

    def work(raw):
        tries.append(raw)
        raw.execute("SELECT pg_sleep(600)")

    await pool.read(lambda raw: None, PATIENCE)
    with pytest.raises(StoreUnavailable):
        await pool.read(work, 1)
    await pool.read(lambda raw: None, PATIENCE)
    assert len(tries) == 1


async def test_closing_cuts_off_what_takes_too_long(postgres):
    pool = pool_on(postgres.url, timeouts=PostgresTimeouts(close=0.2))
    await pool.read(lambda raw: None, PATIENCE)
    stuck = asyncio.create_task(pool.read(lambda raw: raw.execute("SELECT pg_sleep(600)"), 600))
    await asyncio.sleep(0.2)
    await asyncio.wait_for(pool.close(), PATIENCE)
    with pytest.raises(StoreUnavailable):
        await stuck


async def test_unreachable_server_fails_at_once_with_the_reason(caplog):
    pool = pool_on("postgresql://127.0.0.1:1/x")
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match="can't reach PostgreSQL, see DATABASE_URL: "):
        await pool.read(lambda raw: None, PATIENCE)
    assert time.monotonic() - began < PATIENCE / 2
    await pool.close()
    assert not caplog.records  # a command prints the reason as one line


async def test_server_that_is_away_is_not_tried_for_a_moment():
    """A host that swallows packets would hold up every thread for as long as connecting may take."""
    tried = []

    class Away(PostgresPool):
        def _connect(self):
            tried.append(self)
            raise StoreUnavailable("away")

    timeouts = PostgresTimeouts(away=PATIENCE)
    pool = Away("", lambda raw: None, "", readers=1, writers=1, timeouts=timeouts)
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="away"):
            await pool.read(lambda raw: None, PATIENCE)
    assert len(tried) == 1
    await pool.close()
