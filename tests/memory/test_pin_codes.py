import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from gateway.memory.access import PinEntry, PinResult
from gateway.memory.pin_codes import FAILURES_COUNT, MOST_FAILURES, SCHEMA, PinCodeStore

NOON = datetime(2026, 11, 2, 12, tzinfo=UTC)
ANA = ("maya", "+12025550101")


@pytest.fixture
async def store(ground):
    async with ground.opened(schema=SCHEMA) as opened:
        yield opened


async def test_pin_is_stored_as_a_salted_hash(store):
    pins = PinCodeStore(store)
    await pins.set(*ANA, "471199")
    await pins.set("maya", "+12025550102", "471199")
    rows = await store.fetch("SELECT salt, hash FROM caller_pin_codes")
    assert len({salt for salt, _ in rows}) == len({hashed for _, hashed in rows}) == 2
    assert not any("471199" in value for row in rows for value in row)
    assert await pins.check(*ANA, "471199") is PinResult.RIGHT
    assert await pins.check("ben", ANA[1], "471199") is None


@pytest.mark.parametrize("pin", ["", "471", "4" * 13, "47 11", "٤٧١١"])
async def test_pin_is_4_to_12_digits(store, pin):
    with pytest.raises(ValueError, match="a PIN has 4 to 12 digits"):
        await PinCodeStore(store).set(*ANA, pin)


async def test_five_failures_an_hour_lock_the_pin(store):
    """Over all calls and nodes: the failures are in the store. A right PIN does not open a locked one."""
    pins, other_node = PinCodeStore(store), PinCodeStore(store)
    await pins.set(*ANA, "4711")
    results = [await node.check(*ANA, "1234", now=NOON) for node in (pins, other_node, pins, other_node, pins)]
    assert results == [PinResult.WRONG] * 4 + [PinResult.LOCKED]
    assert await other_node.check(*ANA, "4711", now=NOON + timedelta(minutes=59)) is PinResult.LOCKED
    assert await pins.check(*ANA, "4711", now=NOON + FAILURES_COUNT) is PinResult.RIGHT
    assert await pins.check(*ANA, "1234", now=NOON + FAILURES_COUNT) is PinResult.WRONG


async def test_attempts_at_a_common_pin_are_counted_too(store):
    pins = PinCodeStore(store)
    assert [await pins.count(*ANA, right=False, now=NOON) for _ in range(6)] == [True] * 5 + [False]
    assert not await pins.count(*ANA, right=True, now=NOON)
    assert await pins.count(*ANA, right=True, now=NOON + FAILURES_COUNT)


async def test_parallel_guesses_count(store):
    pins = PinCodeStore(store)
    await pins.set(*ANA, "4711")
    results = await asyncio.gather(*(pins.check(*ANA, f"{number:04}") for number in range(12)))
    assert results.count(PinResult.WRONG) == MOST_FAILURES - 1


async def test_pin_can_be_removed(store):
    pins = PinCodeStore(store)
    await pins.set(*ANA, "4711")
    assert await pins.remove(*ANA) and not await pins.remove(*ANA)
    await pins.set(*ANA, "4711")
    assert await pins.forget("", ANA[1]) == 1
    assert await pins.check(*ANA, "4711") is None


def test_entry_ends_with_a_hash_key():
    entry = PinEntry()
    assert [entry.pressed(key, 1.0) for key in "12*4711#"] == [""] * 7 + ["4711"]
    assert entry.heard("It is four seven one one.", question="What is your PIN?") == "4711"
    assert entry.heard("Four seven one one.", question="How many?") == ""
