"""What a call may teach: nothing that a call teaches changes what more trusted calls taught."""

import asyncio
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.memory import facts, pinned_topics
from gateway.memory.identity import only_person
from gateway.memory.memory_log import SCHEMA, LogEntry
from gateway.memory.pinned_topics import PinnedTopicStore, TopicNote
from gateway.memory.recall import limited, most_trusted, render_facts
from gateway.memory.state import MOST_KEYS, CallerStateStore
from gateway.memory.state import SCHEMA as STATE_SCHEMA
from gateway.memory.stores.sqlite import SqliteStore
from gateway.session import TrustLevel, VoiceSession

NOON = datetime(2026, 11, 2, 12, tzinfo=UTC)
ANA = ("maya", "+12025550101")
LEVELS = st.sampled_from([TrustLevel.NAME, TrustLevel.SUMMARIES, TrustLevel.EVERYTHING])
TEXTS = [
    "Lives in Boston",
    "Lives in Denver",
    "Prefers tea",
    "Prefers coffee",
    "Has a dog",
    "Has a dog named Rex",
    "Has two dogs",
    "Does not eat meat",
    "Eats meat",
    "Name is Ana Ruiz",
]
TITLES = ["Kitchen renovation", "kitchen renovation", "Tax return", "Move to Denver"]


def entry(number, level, content):
    at = (NOON + timedelta(days=number)).isoformat()
    return LogEntry(f"voice-session:{number:03}", 0, at, content | level.mark, b"", at)


@st.composite
def statements(draw):
    text, person = st.sampled_from(TEXTS), st.sampled_from(["", "", "Ana Ruiz", "Peter Holm", "Ana"])
    drawn = draw(st.lists(st.tuples(LEVELS, text, person, st.floats(0.5, 1)), max_size=12))
    return [
        entry(
            number, level, {"text": text, "type": "preference", "confidence": confidence, "turns": (), "person": person}
        )
        for number, (level, text, person, confidence) in enumerate(drawn)
    ]


@st.composite
def mentions(draw):
    status, state = st.sampled_from(["", "Ordered", "Paid"]), st.sampled_from(["", "open", "closed"])
    drawn = draw(st.lists(st.tuples(LEVELS, st.sampled_from(TITLES), status, state), max_size=12))
    return [
        entry(number, level, {"title": title, "status": status, "state": state})
        for number, (level, title, status, state) in enumerate(drawn)
    ]


def at_least(level, entries):
    return [one for one in entries if one.trust >= level]


def visible_facts(entries, level):
    """The facts of this level and above, as a reader gets them."""
    return [
        (
            fact.reading.text,
            fact.confidence,
            fact.last_said_at,
            fact.person,
            fact.superseded_by is None,
            fact.instead_of,
        )
        for fact in facts.project(entries)[0]
        if fact.trust >= level
    ]


def visible_topics(entries, level):
    return [
        (topic.name.text, topic.state, topic.status, topic.open_items, topic.is_pinned, len(topic.history))
        for topic in pinned_topics.project(entries)[0]
        if topic.trust >= level
    ]


@settings(max_examples=400, deadline=None)
@given(statements(), LEVELS)
def test_no_call_changes_facts_of_higher_trust(entries, level):
    """Readers see and lose nothing because of a call below the level that taught it."""
    assert visible_facts(entries, level) == visible_facts(at_least(level, entries), level)
    names = [(fact.trust, fact.person) for fact in facts.project(entries)[0]]
    if any(name and trust >= level for trust, name in names):
        above = [(trust, name) for trust, name in names if trust >= level]
        assert only_person(most_trusted(names)) == only_person(most_trusted(above))


@settings(max_examples=400, deadline=None)
@given(mentions(), LEVELS)
def test_no_call_changes_topics_of_higher_trust(entries, level):
    assert visible_topics(entries, level) == visible_topics(at_least(level, entries), level)


@given(st.lists(st.tuples(LEVELS, st.integers())), LEVELS, st.integers(1, 4))
def test_nothing_takes_the_place_of_higher_trust(items, level, limit):
    """The limits of a prompt are those of each level."""
    above = [item for item in items if item[0] >= level]
    found = limited(items, limit, lambda item: item[0])
    assert [item for item in found if item[0] >= level] == limited(above, limit, lambda item: item[0])


@pytest.fixture
async def store(ground):
    async with ground.opened(schema=(*SCHEMA, *STATE_SCHEMA)) as opened:
        yield opened


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(LEVELS, st.sampled_from("abc"), st.integers(0, 9)), max_size=8), LEVELS)
def test_no_call_changes_state_of_higher_trust(history, level):
    """The value of a key is that of the newest among the most trusted calls."""

    async def kept(calls):
        with tempfile.TemporaryDirectory() as folder:
            opened = await SqliteStore.open(Path(folder) / "gateway.db", schema=STATE_SCHEMA)
            try:
                state = CallerStateStore(opened)
                for number, (trust, key, value) in calls:
                    now = NOON + timedelta(days=number)
                    await state.save(*ANA, {key: value}, session_id=f"voice-session:{number}", now=now, trust=trust)
                return await state.load(*ANA)
            finally:
                await opened.close()

    numbered = list(enumerate(history))
    above = [call for call in numbered if call[1][0] >= level]
    whole, alone = asyncio.run(kept(numbered)), asyncio.run(kept(above))
    assert {key: whole[key] for key in alone} == alone
    assert {key for key in alone if key in whole.unverified} == set(alone.unverified)


def a_call(number, trust, days=0):
    started_at = NOON + timedelta(days=days or number)
    return VoiceSession(*ANA, "twilio", id=f"voice-session:{number}", started_at=started_at, trust=trust)


def said(text, confidence=0.9):
    return facts.CallerFact(text, "preference", confidence, ())


async def test_unverified_fact_is_confirmed_by_repetition(store):
    known = facts.FactStore(store)
    await known.learn(a_call(1, TrustLevel.SUMMARIES), [said("Prefers tea")], NOON)
    [fact] = await known.known(*ANA, 9)
    assert (fact.text, fact.trust) == ("Prefers tea", TrustLevel.SUMMARIES)
    assert "Do not rely on it" in render_facts([fact])
    await known.learn(a_call(2, TrustLevel.EVERYTHING), [said("Prefers tea")], NOON)
    [fact] = await known.known(*ANA, 9)
    assert (fact.text, fact.trust, fact.session_id) == ("Prefers tea", TrustLevel.EVERYTHING, "voice-session:2")
    assert "Do not rely on it" not in render_facts([fact])


async def test_unverified_contradiction_is_refused(store):
    known = facts.FactStore(store)
    await known.learn(a_call(1, TrustLevel.EVERYTHING), [said("Lives in Boston")], NOON)
    await known.learn(a_call(2, TrustLevel.SUMMARIES), [said("Lives in Denver", 1.0)], NOON)
    assert [fact.text for fact in await known.known(*ANA, 9)] == ["Lives in Boston"]
    assert [change.op for change in await known.history(*ANA)] == ["add", "refuse"]


async def test_failed_attestation_teaches_nothing(store):
    known, topics = facts.FactStore(store), PinnedTopicStore(store)
    call = a_call(1, TrustLevel.NONE)
    await known.learn(call, [said("Prefers tea")], NOON)
    await topics.note(call, [TopicNote("Kitchen")], NOON)
    assert await known.known(*ANA, 9) == await topics.topics(*ANA) == []


async def test_unverified_topic_stands_beside_the_verified_one(store):
    topics = PinnedTopicStore(store)
    for number in (1, 2):
        await topics.note(a_call(number, TrustLevel.EVERYTHING), [TopicNote("Kitchen", status="Ordered")], NOON)
    await topics.note(a_call(3, TrustLevel.SUMMARIES), [TopicNote("Kitchen", status="Cancelled")], NOON)
    pinned = {topic.trust: topic.status for topic in await topics.pinned(*ANA)}
    assert pinned == {TrustLevel.EVERYTHING: "Ordered", TrustLevel.SUMMARIES: "Cancelled"}
    await topics.note(a_call(4, TrustLevel.EVERYTHING), [TopicNote("Kitchen", status="Cancelled")], NOON)
    [topic] = await topics.pinned(*ANA)
    assert (topic.status, topic.trust) == ("Cancelled", TrustLevel.EVERYTHING)


async def test_unverified_topic_can_be_unpinned(store):
    topics = PinnedTopicStore(store)
    for number in (1, 2):
        await topics.note(a_call(number, TrustLevel.SUMMARIES), [TopicNote("Kitchen")], NOON)
    [topic] = await topics.pinned(*ANA)
    assert await topics.unpin(*ANA, topic.id)
    assert await topics.pinned(*ANA) == []


async def test_unverified_keys_leave_room_for_others(store):
    state = CallerStateStore(store)
    many = {f"key{number}": number for number in range(MOST_KEYS)}
    await state.save(*ANA, many, session_id="voice-session:1", now=NOON, trust=TrustLevel.SUMMARIES)
    await state.save(*ANA, {"plan": "gold"}, session_id="voice-session:2", now=NOON)
    kept = await state.load(*ANA)
    assert kept["plan"] == "gold" and "plan" not in kept.unverified and len(kept.unverified) == MOST_KEYS


async def test_state_of_earlier_versions_counts_as_trusted(ground):
    """The table of earlier versions had no level."""
    old = """CREATE TABLE caller_state_log (
        number INTEGER PRIMARY KEY, agent TEXT NOT NULL, caller TEXT NOT NULL, key TEXT NOT NULL,
        value TEXT NOT NULL, session_id TEXT NOT NULL, at TEXT NOT NULL)"""
    values = "(1, 'maya', '+12025550101', 'plan', '\"gold\"', 'voice-session:1', '2026-11-02T12:00:00.000000+00:00')"
    async with ground.opened(schema=(old,)) as opened:
        await opened.run(lambda connection: connection.execute(f"INSERT INTO caller_state_log VALUES {values}"))
    async with ground.opened(schema=STATE_SCHEMA) as opened:
        kept = await CallerStateStore(opened).load(*ANA)
        assert kept == {"plan": "gold"} and not kept.unverified
