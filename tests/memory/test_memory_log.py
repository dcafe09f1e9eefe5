"""The log itself, and databases in which facts and pinned topics had a log each."""

import json
from dataclasses import asdict, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.errors import StoreUnavailable
from gateway.memory.facts import CallerFact, FactStore
from gateway.memory.memory_log import SCHEMA, LogChange, Retention
from gateway.memory.pinned_topics import PinnedTopicStore, TopicNote
from gateway.memory.stores.documents import NewDocument
from gateway.session import TrustLevel
from tests.calls.aftermath import CALLER, START, a_session

ANA = ("maya", "+12025550101")
TEA = CallerFact("Prefers tea", "preference", 0.9, (1,))
TABLES = (
    """CREATE TABLE memory_log (
        number INTEGER PRIMARY KEY,
        agent TEXT NOT NULL,
        caller TEXT NOT NULL,
        session_id TEXT NOT NULL,
        position INTEGER NOT NULL,
        started_at TEXT NOT NULL,
        said TEXT NOT NULL,
        op TEXT NOT NULL DEFAULT '',
        document_id TEXT NOT NULL DEFAULT '',
        before TEXT,
        after TEXT,
        at TEXT NOT NULL,
        UNIQUE (session_id, position))""",
    """CREATE TABLE pin_log (
        agent TEXT NOT NULL,
        caller TEXT NOT NULL,
        session_id TEXT NOT NULL,
        position INTEGER NOT NULL,
        started_at TEXT NOT NULL,
        said TEXT NOT NULL,
        model TEXT NOT NULL DEFAULT '',
        meaning TEXT NOT NULL DEFAULT '',
        document_id TEXT NOT NULL DEFAULT '',
        at TEXT NOT NULL,
        PRIMARY KEY (session_id, position))""",
    "CREATE TABLE memory_taken_back (session_id TEXT PRIMARY KEY) WITHOUT ROWID",
)
"""As the version of October 2026 created them."""


@pytest.fixture
async def store(ground):
    async with ground.opened(schema=SCHEMA) as store:
        yield store


async def test_facts_and_topics_of_one_call_share_the_log(store):
    session = a_session()
    await FactStore(store).learn(session, [TEA], START)
    await PinnedTopicStore(store).note(session, [TopicNote("Kitchen")], START)
    query = "SELECT source, session_id, position FROM memory_entries ORDER BY source"
    rows = await store.look(lambda connection: connection.execute(query).fetchall())
    assert rows == [("caller-fact", session.id, 0), ("pinned-topic", session.id, 0)]


async def test_each_kind_is_forgotten_by_itself(store):
    session = a_session()
    facts, topics = FactStore(store), PinnedTopicStore(store)
    await facts.learn(session, [TEA], START)
    await topics.note(session, [TopicNote("Kitchen")], START)
    assert await facts.forget(None, CALLER) == 1
    assert [topic.title for topic in await topics.topics("maya", CALLER)] == ["Kitchen"]


async def test_session_is_reverted_for_both_kinds(store):
    facts, topics, session = FactStore(store), PinnedTopicStore(store), a_session()
    assert not await facts.is_reverted(session.id)
    await topics.revert(session.id)
    assert await facts.is_reverted(session.id) and not await facts.learn(session, [TEA], START)


async def test_replaced_fact_keeps_its_document(store):
    facts, session = FactStore(store), a_session()
    await facts.learn(session, [TEA], START)
    [before] = await facts.known("maya", CALLER, 9)
    await facts.learn(session, [CallerFact("Prefers green tea", "preference", 0.9, (1,))], START)
    [after] = await facts.known("maya", CALLER, 9)
    assert (after.id, after.text) == (before.id, "Prefers green tea")
    assert [hit.document.id for hit in await store.query("green", limit=1)] == [before.id]


async def test_expiry_is_limited_to_some_agents(store):
    facts = FactStore(store)
    await facts.learn(a_session(), [TEA], START)
    later = START + timedelta(days=1)
    assert await facts.expire(later, lambda agent: agent == "otto") == 0
    assert await facts.expire(later, lambda agent: agent == "maya") == 1


@pytest.mark.parametrize("source", ["caller-fact", "pinned-topic"])
async def test_foreign_document_of_the_same_source_is_no_item(store, source):
    tags = (source, "agent:maya", f"caller:{CALLER}")
    foreign = NewDocument("A title", "Some text", source, tags, source_id="elsewhere", metadata={"type": 1})
    document = await store.create(foreign)
    assert await FactStore(store).known("maya", CALLER, 9) == []
    assert await PinnedTopicStore(store).pinned("maya", CALLER) == []
    assert Retention(1).is_current(document, "maya", datetime.now(UTC) + timedelta(days=2))


# Retention


NOW = datetime(2026, 2, 6, 23, 15, tzinfo=UTC)


def test_agent_has_its_own_word():
    retention = Retention(90, {"maya": 7, "ben": 0})
    assert retention.oldest("maya", NOW) == NOW - timedelta(days=7)
    assert retention.oldest("ben", NOW) is None
    assert retention.oldest("eve", NOW) == NOW - timedelta(days=90)


def test_each_agent_is_expired_once():
    limits = Retention(90, {"maya": 7, "ben": 0}).limits(NOW)
    meant = {agent: [moment for moment, of in limits if of(agent)] for agent in ("maya", "ben", "eve")}
    assert meant == {"maya": [NOW - timedelta(days=7)], "ben": [], "eve": [NOW - timedelta(days=90)]}


def test_nothing_is_deleted_by_default():
    assert Retention().limits(NOW) == []


# A database of the version that had two logs


@pytest.fixture
async def migrated(ground):
    recorded = json.loads(Path(__file__).with_name("two_logs.json").read_text())

    def fill(connection):
        for table, rows in recorded["tables"].items():
            for row in rows:
                marks = ", ".join(f":{name}" for name in row)
                connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", row)

    async with ground.opened(schema=TABLES) as old:
        await old.run(fill)
    async with ground.opened(schema=SCHEMA):
        pass
    async with ground.opened(schema=SCHEMA) as store:
        yield store, recorded["expected"]


def as_json(values):
    return json.loads(json.dumps([asdict(value) for value in values], default=str))


def common_fields(changes):
    return [{field.name: change[field.name] for field in fields(LogChange)} for change in changes]


async def test_old_database_opens_without_loss(migrated):
    store, expected = migrated
    facts, topics = FactStore(store), PinnedTopicStore(store)
    for item in (*expected["known"], *expected["pinned"], *expected["topics"]):
        item["trust"] = TrustLevel.EVERYTHING  # what has no level was taught by a trusted call
    for change in expected["changes"]:
        for side in ("before", "after"):
            state = change[side]
            change[side] = f"{state['text']} ({state['confidence']:.0%} confidence)" if state else ""
    assert as_json(await facts.known(*ANA, 9, superseded=True)) == expected["known"]
    assert as_json(await facts.history(*ANA)) == common_fields(expected["changes"])
    assert as_json(await topics.pinned(*ANA, closed=True)) == expected["pinned"]
    assert as_json(await topics.topics(*ANA)) == expected["topics"]
    assert as_json(await topics.history(*ANA)) == common_fields(expected["topic_changes"])
    assert await facts.is_reverted("voice-session:3")


async def test_old_tables_are_dropped(migrated):
    store, _ = migrated
    assert await store.look(lambda connection: connection.execute("SELECT count(*) FROM memory_entries").fetchone())
    for table in ("memory_log", "pin_log", "memory_taken_back"):
        with pytest.raises(StoreUnavailable):
            await store.look(lambda connection, table=table: connection.execute(f"SELECT 1 FROM {table}"))


async def test_migrated_log_can_be_continued(migrated):
    """Nothing that is stored changes with the next call, and what was recorded twice is still recognised."""
    store, expected = migrated
    facts, topics = FactStore(store), PinnedTopicStore(store)
    session = a_session(caller=ANA[1])
    await facts.learn(session, [TEA], START)
    await topics.note(session, [TopicNote("Kitchen")], START)
    known = {fact["text"]: fact["id"] for fact in expected["known"]}
    assert {fact.text: fact.id for fact in await facts.known(*ANA, 9, superseded=True) if fact.text in known} == known
    pinned = {topic["title"]: topic["id"] for topic in expected["pinned"]}
    assert {topic.title: topic.id for topic in await topics.pinned(*ANA, closed=True)} == pinned
