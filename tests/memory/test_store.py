import asyncio
import threading
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.errors import DocumentNotFound, StoreUnavailable
from gateway.memory.stores.documents import NewDocument

START = datetime(2026, 2, 6, 23, 15, tzinfo=UTC)
ANA = ("voice-session", "agent:maya", "caller:+12025550101")
BEN = ("voice-session", "agent:maya", "caller:+12025550102")


@pytest.fixture
async def store(ground):
    async with ground.opened(now=lambda: START) as store:
        yield store


async def keep(store, content, *, tags=ANA, minutes=0, **fields):
    created_at = START + timedelta(minutes=minutes)
    return await store.create(NewDocument(title="", content=content, tags=tags, created_at=created_at, **fields))


def contents(hits):
    return [hit.document.content for hit in hits]


# One document


async def test_created_document_reads_back_whole(store):
    new = NewDocument("Order", "Blue kettle", "voice-call", ANA, START, {"call_id": "c1", "n": [1, None]}, "s:1")
    document = await store.create(new)
    assert await store.get(document.id) == document
    assert (document.title, document.content, document.source) == ("Order", "Blue kettle", "voice-call")
    assert (document.tags, document.metadata, document.source_id) == (ANA, {"call_id": "c1", "n": [1, None]}, "s:1")
    assert (document.created_at, document.updated_at) == (START, START)


async def test_documents_survive_reopening(ground):
    async with ground.opened() as first:
        kept = await keep(first, "blue kettle")
    async with ground.opened() as second:
        assert await second.get(kept.id) == kept
        assert contents(await second.query("kettle", limit=3, tags=ANA)) == ["blue kettle"]


async def test_one_document_per_source_id(store):
    first = await keep(store, "first", source_id="voice-session:1")
    again = await keep(store, "second", source_id="voice-session:1")
    assert again == first
    assert await store.newest(tags=ANA, limit=9) == [first]


async def test_racing_creates_make_one_document(store):
    made = await asyncio.gather(*(keep(store, f"try {n}", source_id="voice-session:1") for n in range(8)))
    assert len({document.id for document in made}) == 1


async def test_without_source_id_each_is_kept(store):
    await keep(store, "same")
    await keep(store, "same")
    assert len(await store.newest(tags=ANA, limit=9)) == 2


async def test_replace_changes_what_is_found(store):
    kept = await keep(store, "blue kettle")
    replaced = await store.replace(kept.id, "red pan", title="Pan")
    assert (replaced.title, replaced.content, replaced.tags) == ("Pan", "red pan", ANA)
    assert contents(await store.query("kettle", limit=1)) == []
    assert contents(await store.query("pan", limit=1)) == ["red pan"]


async def test_replace_keeps_title_unless_given(store):
    kept = await store.create(NewDocument("Order", "blue kettle"))
    assert (await store.replace(kept.id, "red pan")).title == "Order"


async def test_append_adds_a_line(store):
    kept = await keep(store, "blue kettle")
    assert (await store.append(kept.id, "red pan")).content == "blue kettle\nred pan"
    assert contents(await store.query("pan", limit=1)) == ["blue kettle\nred pan"]


async def test_deleted_document_is_gone(store):
    kept = await keep(store, "blue kettle")
    await store.delete(kept.id)
    assert await store.query("kettle", limit=3) == []
    assert await store.query("kettle", limit=3, tags=ANA) == []
    with pytest.raises(DocumentNotFound):
        await store.get(kept.id)


@pytest.mark.parametrize("call", ["get", "delete", "replace", "append"])
async def test_unknown_id_is_named(store, call):
    arguments = {"replace": ["text"], "append": ["text"]}.get(call, [])
    with pytest.raises(DocumentNotFound) as raised:
        await getattr(store, call)("nowhere", *arguments)
    assert str(raised.value) == "no document nowhere"


# Search


async def test_best_match_comes_first(store):
    await keep(store, "She likes tea in the morning")
    await keep(store, "She ordered a blue kettle and a red kettle stand")
    await keep(store, "The kettle is blue")
    assert contents(await store.query("Was the kettle blue?", limit=2, tags=ANA)) == [
        "The kettle is blue",
        "She ordered a blue kettle and a red kettle stand",
    ]


async def test_words_match_by_stem(store):
    await keep(store, "He was running marathons")
    assert contents(await store.query("run a marathon", limit=3)) == ["He was running marathons"]


@pytest.mark.parametrize("tags", [(), ANA])
@pytest.mark.parametrize("word", ["jane", "EXAMPLE", "5567", "arger", "Ärger", "пишите", "don", "1e5", "zwölf"])
async def test_words_are_those_a_person_sees(store, word, tags):
    await keep(store, "Tea.")
    await keep(store, "Ärger: ПИШИТЕ jane.doe@example.com, don't call (order #12-5567_zwolf/1e5)!")
    (hit,) = await store.query(word, limit=1, tags=tags)
    assert hit.score > 0.01 and "order" in hit.document.content


@pytest.mark.parametrize("tags", [(), ANA])
async def test_equal_matches_newest_first(store, tags):
    for minutes in (2, 3, 1):
        await keep(store, f"kettle {minutes}", minutes=minutes)
    assert contents(await store.query("kettle", limit=3, tags=tags)) == ["kettle 3", "kettle 2", "kettle 1"]


async def test_scores_are_small_and_fall(store):
    for minutes in range(3):
        await keep(store, f"kettle {minutes}", minutes=minutes)
    await keep(store, "tea")
    scores = [hit.score for hit in await store.query("kettle", limit=4, tags=ANA)]
    assert scores == [1 / 61, 1 / 62, 1 / 63, 0.001]


async def test_scope_is_filled_with_newest(store):
    await keep(store, "tea", minutes=1)
    await keep(store, "coffee", minutes=2)
    await keep(store, "kettle", minutes=0)
    assert contents(await store.query("kettle", limit=2, tags=ANA)) == ["kettle", "coffee"]
    assert contents(await store.query("???", limit=2, tags=ANA)) == ["coffee", "tea"]


async def test_without_tags_nothing_is_filled(store):
    await keep(store, "tea")
    assert await store.query("kettle", limit=2) == []
    assert await store.query("", limit=2) == []


async def test_large_scope_is_ranked_alike(ground):
    """Above 5000 documents the index does the ranking; tags still decide what is seen."""
    copies = """WITH RECURSIVE copy (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM copy WHERE n < 5000)
        INSERT INTO documents (id, title, content, source, tags, scope, created_at, updated_at, metadata, source_id)
        SELECT 'copy ' || n, title, content, source, tags, scope, created_at, updated_at, metadata, source_id
        FROM documents, copy"""
    async with ground.opened() as store:
        await keep(store, "tea", tags=("many",))
        await store.run(lambda connection: connection.execute(copies))
        await keep(store, "blue kettle", tags=("many",))
        await keep(store, "blue kettle of a stranger", tags=("other",))
        assert contents(await store.query("kettle", limit=1, tags=("many",))) == ["blue kettle"]


async def test_snippet_shows_the_match(store):
    await keep(store, "tea and cake\n" * 100 + "then a blue kettle\n" + "tea and cake\n" * 100)
    (hit,) = await store.query("kettle", limit=1, tags=ANA)
    assert hit.snippet.startswith("then a blue kettle\ntea and cake")
    assert len(hit.snippet) <= 500


async def test_short_content_is_its_own_snippet(store):
    await keep(store, "a blue kettle")
    (hit,) = await store.query("kettle", limit=1)
    assert hit.snippet == "a blue kettle"


# Isolation


async def test_every_tag_must_match(store):
    await keep(store, "kettle of Ana", tags=ANA)
    await keep(store, "kettle of Ben", tags=BEN)
    await keep(store, "kettle of Ana with Sam", tags=("voice-session", "agent:sam", "caller:+12025550101"))
    assert contents(await store.query("kettle of Ben", limit=9, tags=ANA)) == ["kettle of Ana"]
    assert [document.content for document in await store.newest(tags=ANA, limit=9)] == ["kettle of Ana"]


@pytest.mark.parametrize(
    "tag", ["caller:*", "caller:%", "caller:+1202555010", "caller:", "CALLER:+12025550101", "*", "%", '"', "' OR 1", ""]
)
async def test_tags_are_never_patterns(store, tag):
    await keep(store, "kettle of Ana")
    assert await store.query("kettle", limit=9, tags=(tag,)) == []
    assert await store.newest(tags=(tag,), limit=9) == []


@pytest.mark.parametrize("text", ['"', "kettle OR", "NEAR(", "scope : 1", "-x", "a AND (b", "kettle*", "{title}", "\0"])
async def test_search_syntax_is_harmless(store, text):
    await keep(store, "kettle of Ana")
    assert contents(await store.query(text, limit=9, tags=ANA)) == ["kettle of Ana"]
    await store.query(text, limit=9)


any_tag = st.text(min_size=1, max_size=20)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=200), mine=any_tag, theirs=any_tag)
async def test_nothing_crosses_callers(ground, text, mine, theirs):
    """Whatever is asked and however tags are spelt, only documents with that very tag come back."""
    async with ground.another().opened() as store:
        kept = await keep(store, text + " mine", tags=("shared", mine))
        await keep(store, text + " theirs", tags=("shared", theirs))
        await store.query(text, limit=9)
        found = [hit.document for hit in await store.query(text, limit=9, tags=("shared", mine))]
        found += await store.newest(tags=(mine,), limit=9)
    assert kept in found
    assert all(mine in document.tags for document in found)


# The database


async def test_other_tables_share_the_database(ground):
    schema = ["CREATE TABLE IF NOT EXISTS endings (session TEXT PRIMARY KEY)"]
    async with ground.opened(schema=schema) as store:
        await store.run(lambda connection: connection.execute("INSERT INTO endings VALUES ('s:1')"))
    async with ground.opened(schema=schema) as store:
        rows = await store.run(lambda connection: connection.execute("SELECT * FROM endings").fetchall())
    assert rows == [("s:1",)]


async def test_failed_work_leaves_nothing(store):
    def work(connection):
        connection.execute("DELETE FROM documents")
        raise DocumentNotFound("x")

    kept = await keep(store, "kettle")
    with pytest.raises(DocumentNotFound):
        await store.run(work)
    assert await store.get(kept.id) == kept


async def test_nodes_lose_none_of_each_others_words(ground):
    """Several nodes have the store open: what one reads is still true when it writes."""
    async with ground.opened() as store, ground.opened() as other:
        kept = await keep(store, "begin")
        await asyncio.gather(*(one.append(kept.id, "word") for one in (store, other) for _ in range(20)))
        assert (await store.get(kept.id)).content.count("word") == 40


async def test_reading_does_not_wait_for_writers(ground):
    async with ground.opened() as store, ground.opened() as other:
        kept = await keep(store, "kettle", tags=ANA)
        done = threading.Event()
        writing = asyncio.create_task(store.run(lambda _: done.wait(20)))
        assert await other.get(kept.id) == kept
        assert [hit.document for hit in await other.query("kettle", limit=1, tags=ANA)] == [kept]
        assert await other.newest(tags=ANA, limit=1) == [kept]
        done.set()
        assert await writing


async def test_closed_store_is_unavailable(ground):
    async with ground.opened() as store:
        await store.close()
        with pytest.raises(StoreUnavailable, match="store is closed"):
            await store.get("x")
