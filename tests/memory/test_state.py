import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.memory.state import MOST_KEYS, SCHEMA, CallerStateStore, check_value, listed

NOON = datetime(2026, 2, 6, 12, 0, tzinfo=UTC)
ANA = ("maya", "+12025550101")
BEN = ("maya", "+12025550102")

SCALAR = "a state value must be text, a finite number, true, false, or a flat dictionary of these"
FLAT = "a dictionary in a state value may hold only text, finite numbers, true and false"
KEY = "a state key must be text of 1 to 100 characters"
LONG = "a state value may have at most 4000 characters as JSON"
FOREIGN = "a state value must be Unicode text and numbers of at most 64 bits"


@pytest.fixture
async def state(ground):
    async with ground.opened(schema=SCHEMA) as store:
        yield CallerStateStore(store)


async def save(state, who, session_id, minutes=0, **values):
    await state.save(*who, values, session_id=session_id, now=NOON + timedelta(minutes=minutes))


# Saving and loading


async def test_values_come_back_as_they_were(state):
    values = {"city": "Österreich", "visits": 3, "score": 1.0, "vip": True, "address": {"zip": "20001", "floor": 2}}
    await save(state, ANA, "s1", **values)
    loaded = await state.load(*ANA)
    assert loaded == values
    assert [type(value) for value in loaded.values()] == [type(values[key]) for key in loaded]


async def test_later_session_overrules_key_by_key(state):
    await save(state, ANA, "s1", city="Ulm", size="M")
    await save(state, ANA, "s2", 1, city="Bonn")
    assert await state.load(*ANA) == {"city": "Bonn", "size": "M"}


async def test_session_saved_late_does_not_overrule(state):
    """An ending that had to wait for the disk must not undo what a newer call learned."""
    await save(state, ANA, "newer", 5, city="Bonn")
    await save(state, ANA, "older", 1, city="Ulm")
    assert await state.load(*ANA) == {"city": "Bonn"}


async def test_saving_a_session_again_changes_nothing(state):
    await save(state, ANA, "s1", city="Ulm")
    await save(state, ANA, "s2", 1, city="Bonn")
    await save(state, ANA, "s1", 2, city="Ulm")
    assert await state.load(*ANA) == {"city": "Bonn"}


async def test_repeat_of_unchanged_values_changes_nothing(state):
    await save(state, ANA, "s1", city="Ulm")
    await save(state, ANA, "s2", 1, city="Ulm")
    await save(state, ANA, "s3", 2, city="Bonn")
    await save(state, ANA, "s2", 3, city="Ulm")
    assert await state.load(*ANA) == {"city": "Bonn"}


async def test_callers_and_agents_are_apart(state):
    await save(state, ANA, "s1", city="Ulm")
    await save(state, BEN, "s2", city="Bonn")
    await state.save("otto", ANA[1], {"city": "Jena"}, session_id="s1", now=NOON)
    assert await state.load(*ANA) == {"city": "Ulm"}
    assert await state.load(*BEN) == {"city": "Bonn"}
    assert await state.load("otto", ANA[1]) == {"city": "Jena"}
    assert await state.load("otto", BEN[1]) == {}


async def test_refused_value_saves_nothing(state):
    with pytest.raises(ValueError, match="flat"):
        await save(state, ANA, "s1", city="Ulm", visits=None)
    assert await state.load(*ANA) == {}
    await save(state, ANA, "s1", city="Ulm")
    assert await state.load(*ANA) == {"city": "Ulm"}


async def test_too_many_keys_save_nothing(state):
    await save(state, ANA, "s1", **{f"key {number}": number for number in range(MOST_KEYS)})
    with pytest.raises(ValueError) as raised:
        await save(state, ANA, "s2", 1, **{"key 0": "changed", "one more": 1})
    assert str(raised.value) == "an agent keeps at most 100 state keys about a caller"
    assert (await state.load(*ANA))["key 0"] == 0


# Taking back


async def test_revert_brings_back_earlier_values(state):
    await save(state, ANA, "s1", city="Ulm")
    await save(state, ANA, "s2", 1, city="Bonn", size="M")
    assert await state.revert("s2") == 2
    assert await state.load(*ANA) == {"city": "Ulm"}
    assert await state.revert("s2") == 0


CALLS = st.lists(st.dictionaries(st.sampled_from(["city", "size"]), st.integers(0, 2)), min_size=1, max_size=4)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=CALLS, data=st.data())
async def test_revert_is_as_if_the_call_had_not_happened(ground, calls, data):
    """Also where several calls set the same value."""
    named = [(f"s{number}", number, values) for number, values in enumerate(calls)]
    ended = data.draw(st.permutations(named))
    reverted = data.draw(st.sampled_from([name for name, *_ in named]))

    async def outcome(sessions, then=None):
        async with ground.another().opened(schema=SCHEMA) as store:
            state = CallerStateStore(store)
            for name, minutes, values in sessions:
                await save(state, ANA, name, minutes, **values)
            if then:
                await state.revert(then)
            return await state.load(*ANA)

    assert await outcome(ended, reverted) == await outcome([call for call in named if call[0] != reverted])


async def test_forgetting_spares_the_others(state):
    await save(state, ANA, "s1", city="Ulm", size="M")
    await save(state, ANA, "s2", 1, city="Bonn")
    await save(state, BEN, "s3", city="Jena")
    assert await state.forget(*ANA) == 3
    assert await state.load(*ANA) == {}
    assert await state.load(*BEN) == {"city": "Jena"}


@pytest.mark.parametrize("takes_back", [lambda state: state.forget(*ANA), lambda state: state.revert("s1")])
async def test_late_repeat_does_not_undo_it(state, takes_back):
    await save(state, ANA, "s1", city="Ulm")
    await takes_back(state)
    await save(state, ANA, "s1", 1, city="Ulm")
    assert await state.load(*ANA) == {}


# Values


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("k", None, SCALAR),
        ("k", ["a"], SCALAR),
        ("k", b"a", SCALAR),
        ("k", math.nan, SCALAR),
        ("k", {"a": {"b": 1}}, FLAT),
        ("k", {"a": None}, FLAT),
        ("k", {"a": -math.inf}, FLAT),
        ("k", {1: "a"}, KEY),
        ("", "a", KEY),
        ("k" * 101, "a", KEY),
        (7, "a", KEY),
        ("k", 2**64, FOREIGN),
        ("k", "\ud800", FOREIGN),
        ("\ud800", "a", FOREIGN),
        ("k", "a" * 3999, LONG),
        ("k", {str(number): "a" * 100 for number in range(40)}, LONG),
    ],
)
def test_what_can_not_be_kept_is_refused(key, value, problem):
    with pytest.raises(ValueError) as raised:
        check_value(key, value)
    assert str(raised.value) == problem


words = st.text(min_size=1, max_size=100)
numbers = st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.booleans() | numbers | words


@given(words, scalars | st.dictionaries(words, scalars, max_size=3))
def test_what_can_be_kept_is_returned(key, value):
    assert check_value(key, value) == value


def test_checked_dictionary_is_a_copy():
    given_value = {"zip": "20001"}
    checked = check_value("address", given_value)
    given_value["zip"] = "changed"
    assert checked == {"zip": "20001"}


def test_only_listed_keys_are_kept():
    values = {"city": "Ulm", "mood": "fine"}
    assert listed(values, frozenset({"city", "size"})) == {"city": "Ulm"}
    assert listed(values, frozenset()) == {}
    assert listed(values, None) == values
