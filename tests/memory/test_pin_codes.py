import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from gateway.cluster.store import NoSharedStore
from gateway.memory.access import PinResult
from gateway.memory.pin_codes import FAILURES_COUNT, MOST_FAILURES, SCHEMA, PinCodeStore
from gateway.settings import Secret
from tests.fakes.shared_store import FakeSharedStore

NOON = datetime(2026, 11, 2, 12, tzinfo=UTC)
ANA = ("maya", "+12025550101")


@pytest.fixture
async def store(ground):
    async with ground.opened(schema=SCHEMA) as opened:
        yield opened


async def test_pin_is_stored_as_a_salted_hash(store):
    pins = PinCodeStore(store, NoSharedStore())
    await pins.set(*ANA, "471199")
    await pins.set("maya", "+12025550102", "471199")
    rows = await store.fetch("SELECT salt, hash FROM pin_codes")
    assert len({salt for salt, _ in rows}) == len({hashed for _, hashed in rows}) == 2
    assert not any("471199" in value for row in rows for value in row)
    assert await pins.check(*ANA, "471199") is PinResult.RIGHT
    assert await pins.check("ben", ANA[1], "471199") is None


@pytest.mark.parametrize("pin", ["", "471", "4" * 13, "47 11", "٤٧١١"])
async def test_pin_is_4_to_12_digits(store, pin):
    with pytest.raises(ValueError, match="a PIN has 4 to 12 digits"):
        await PinCodeStore(store, NoSharedStore()).set(*ANA, pin)


async def test_five_failures_an_hour_lock_the_pin(store):
    """Over all calls and nodes: the failures are in the store. A right PIN does not open a locked one."""
    pins, other_node = PinCodeStore(store, NoSharedStore()), PinCodeStore(store, NoSharedStore())
    await pins.set(*ANA, "4711")
    results = [await node.check(*ANA, "1234", now=NOON) for node in (pins, other_node, pins, other_node, pins)]
    assert results == [PinResult.WRONG] * 4 + [PinResult.LOCKED]
    assert await other_node.check(*ANA, "4711", now=NOON + timedelta(minutes=59)) is PinResult.LOCKED
    assert await pins.check(*ANA, "4711", now=NOON + FAILURES_COUNT) is PinResult.RIGHT
    assert await pins.check(*ANA, "1234", now=NOON + FAILURES_COUNT) is PinResult.WRONG


async def test_common_pin_is_counted_too(store):
    pins, common = PinCodeStore(store, NoSharedStore()), Secret("4711")

    async def check(tried, now=NOON):
        return await pins.check(*ANA, tried, common=common, now=now)

    assert [await check("1234") for _ in range(5)] == [PinResult.WRONG] * 4 + [PinResult.LOCKED]
    assert await check("4711") is PinResult.LOCKED
    assert await check("4711", NOON + FAILURES_COUNT) is PinResult.RIGHT


async def test_own_pin_counts_instead_of_the_common_one(store):
    pins = PinCodeStore(store, NoSharedStore())
    await pins.set(*ANA, "471199")
    assert (await pins.length(*ANA), await pins.length("maya", "+12025550102")) == (6, 0)
    assert await pins.check(*ANA, "4711", common=Secret("4711")) is PinResult.WRONG
    assert await pins.check(*ANA, "471199", common=Secret("4711")) is PinResult.RIGHT
    assert await pins.check("maya", "+12025550102", "4711", common=Secret("4711")) is PinResult.RIGHT


async def test_nodes_with_a_store_each_share_the_failures(ground):
    """With Redis and without a common database. The counter does not contain the number."""
    shared, common = FakeSharedStore(), Secret("4711")
    async with ground.opened(schema=SCHEMA) as one, ground.another().opened(schema=SCHEMA) as other:
        nodes = [PinCodeStore(one, shared), PinCodeStore(other, shared)]
        tries = [await nodes[number % 2].check(*ANA, "1234", common=common) for number in range(6)]
        assert tries == [PinResult.WRONG] * 5 + [PinResult.LOCKED]
        assert await nodes[0].check(*ANA, "4711", common=common) is PinResult.LOCKED
        assert not any(ANA[1] in name for name in shared.names)
        shared.is_away = True
        assert await nodes[1].check(*ANA, "4711", common=common) is PinResult.RIGHT  # its own three failures
        shared.is_away = False
        await nodes[0].set(*ANA, "4712")
        assert await nodes[0].check(*ANA, "4712", common=common) is PinResult.RIGHT


async def test_parallel_guesses_count(store):
    pins = PinCodeStore(store, NoSharedStore())
    await pins.set(*ANA, "4711")
    results = await asyncio.gather(*(pins.check(*ANA, f"{number:04}") for number in range(12)))
    assert results.count(PinResult.WRONG) == MOST_FAILURES - 1


async def test_pin_can_be_removed(store):
    pins = PinCodeStore(store, NoSharedStore())
    await pins.set(*ANA, "4711")
    assert await pins.remove(*ANA) and not await pins.remove(*ANA)
    await pins.set(*ANA, "4711")
    assert await pins.forget("", ANA[1]) == 1
    assert await pins.check(*ANA, "4711") is None


async def test_pins_of_the_earlier_table_are_kept(ground):
    """It had no length, so # completes them."""
    old = """CREATE TABLE IF NOT EXISTS caller_pin_codes (
        agent TEXT NOT NULL, caller TEXT NOT NULL, salt TEXT NOT NULL, hash TEXT NOT NULL,
        PRIMARY KEY (agent, caller)) WITHOUT ROWID"""
    async with ground.opened(schema=(*SCHEMA, old)) as store:
        await PinCodeStore(store, NoSharedStore()).set(*ANA, "471199")
        await store.change("INSERT INTO caller_pin_codes SELECT agent, caller, salt, hash FROM pin_codes")
        await store.change("DELETE FROM pin_codes")
    async with ground.opened(schema=SCHEMA) as store:
        pins = PinCodeStore(store, NoSharedStore())
        assert await pins.length(*ANA) == 0
        assert await pins.check(*ANA, "471199") is PinResult.RIGHT
