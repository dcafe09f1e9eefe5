"""Searching by words and by meaning, in a store with an embedder."""

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.errors import StoreUnavailable
from gateway.memory.embeddings import minilm
from gateway.memory.embeddings.embedder import MODEL, Embedder
from gateway.memory.embeddings.model_process import ModelGone
from gateway.memory.stores.database import NARROW_SCOPE
from gateway.memory.stores.documents import NewDocument, create_document
from gateway.memory.stores.search import parts, snippet
from gateway.memory.stores.sqlite import SqliteStore
from tests.memory.stores import Ground, SqliteGround
from tests.stage import until_it

ANA = ("caller-fact", "caller:+12025550101")
BEN = ("caller-fact", "caller:+12025550102")
PUPPY, KETTLE, TRAIN = "She has a puppy called Rex.", "The blue kettle is broken.", "He takes the train to work."
NOW = datetime(2026, 2, 6, tzinfo=UTC)
PET = "What pet does she have?"


def opened(ground: Ground, embedder: Embedder | None = None):
    return ground.opened(embedder=embedder or Embedder(minilm.load), embed_after=0)


@pytest.fixture
async def store(ground):
    async with opened(ground) as store:
        yield store


async def keep(store, *contents, tags=ANA, **fields):
    return [await store.create(NewDocument("", content, tags=tags, **fields)) for content in contents]


async def embedded(store):
    """Wait until every document has its vectors."""
    async with asyncio.timeout(60):
        while await store.look(lambda connection: store.index.missing_vectors(connection, (), 1)):
            await asyncio.sleep(0.01)


async def rows(store, statement):
    return await store.look(lambda connection: connection.execute(statement).fetchall())


async def models(store):
    own = "model" if isinstance(store, SqliteStore) else "embedded_by"
    return dict(await rows(store, f"SELECT content, {own} FROM documents d JOIN document_vectors v ON v.key = d.key"))


def contents(hits):
    return [hit.document.content for hit in hits]


# Found by meaning


async def test_found_without_a_common_word(store):
    await keep(store, PUPPY, KETTLE, TRAIN)
    await embedded(store)
    hits = await store.query(PET, limit=3, tags=ANA)
    assert hits[0].document.content == PUPPY
    assert [hit.score for hit in hits] == [1 / 61, 0.001, 0.001]


async def test_new_document_is_found_by_words_at_once(store):
    await keep(store, PUPPY, KETTLE)
    assert contents(await store.query("kettle", limit=1, tags=ANA)) == [KETTLE]


async def test_documents_of_one_call_come_together(store):
    await keep(store, "The kettle was ordered.", "It is for the mother.", metadata={"call_id": "1"})
    await keep(store, "It is for the brother.", metadata={"call_id": "2"})
    await embedded(store)
    assert contents(await store.query("Who gets the ordered kettle?", limit=2, tags=ANA)) == [
        "The kettle was ordered.",
        "It is for the mother.",
    ]


async def test_summary_is_found_by_the_facts_of_its_call(store):
    """What a query asks for need not be in the summary itself."""
    caller = ANA[1]
    for call, fact in (("1", PUPPY), ("2", TRAIN)):
        await keep(store, fact, metadata={"call_id": call})
        await keep(store, "They spoke of this and that.", tags=("voice-call", caller), metadata={"session_id": call})
    await embedded(store)
    (hit,) = await store.query(PET, limit=1, tags=("voice-call", caller))
    assert hit.document.metadata == {"session_id": "1"}


async def test_call_of_the_day_comes_first(store):
    for day in (5, 8, 20):
        await keep(store, "They spoke of the kettle.", created_at=datetime(2023, 5, day, tzinfo=UTC))
    await embedded(store)
    hits = await store.query("What about the kettle on May 8, 2023?", limit=3, tags=ANA)
    assert [hit.document.created_at.day for hit in hits] == [8, 5, 20]


async def test_newer_of_equal_matches_comes_first(store):
    for day in (3, 1, 2):
        await keep(store, KETTLE, created_at=datetime(2026, 1, day, tzinfo=UTC))
    await keep(store, KETTLE, created_at=datetime(2025, 9, 1, tzinfo=UTC), metadata={"last_said_at": "2026-01-20"})
    await keep(store, KETTLE, created_at=datetime(2025, 1, 1, tzinfo=UTC), metadata={"last_said_at": "whenever"})
    await embedded(store)
    hits = await store.query("kettle", limit=5, tags=ANA)
    assert [hit.document.created_at.strftime("%m-%d") for hit in hits] == ["09-01", "01-03", "01-02", "01-01", "01-01"]


async def test_better_match_wins_over_a_newer_one(store):
    subjects = ["kettle", "train", "puppy", "garden", "violin", "invoice", "dentist", "passport"]
    texts = [f"She asked about the {subject}, which is new." for subject in subjects]
    for age, text in enumerate(texts):
        await keep(store, text, created_at=NOW - timedelta(days=100 * age))
    await embedded(store)
    found = [await store.query(f"What about the {subject}?", limit=1, tags=ANA) for subject in subjects]
    assert [hits[0].document.content for hits in found] == texts


async def test_related_documents_share_no_word(store):
    puppy, kettle, vet = await keep(store, PUPPY, KETTLE, "The dog was at the vet.", created_at=NOW)
    await embedded(store)
    weights = await store.related({vet.id}, "", tags=ANA)
    assert weights[puppy.id] > 1.5 * weights[kettle.id]


async def test_older_document_is_related_less(store):
    old, new = [
        (await keep(store, "Her kettle is blue.", created_at=NOW - timedelta(days=days)))[0] for days in (30, 0)
    ]
    await embedded(store)
    weights = await store.related((), "kettle", tags=ANA)
    assert weights[new.id] == pytest.approx(2 * weights[old.id])


async def test_documents_like_the_best_one_come_next(store):
    await keep(store, "Her kettle is blue.", "Rex was at the vet.", "The puppy had its shots.")
    await embedded(store)
    hits = await store.query("Rex", limit=3, tags=ANA)
    assert contents(hits)[:2] == ["Rex was at the vet.", "The puppy had its shots."]


async def test_snippet_is_the_part_that_fits(store):
    long = " ".join([KETTLE, TRAIN] * 20 + [PUPPY] + [KETTLE, TRAIN] * 20)
    await keep(store, long)
    await embedded(store)
    (hit,) = await store.query(PET, limit=1, tags=ANA)
    assert hit.snippet.startswith(PUPPY)


async def test_without_tags_meaning_ranks_what_words_found(store):
    await keep(store, "Her bill for the month is late.", "She has a month old dog.", "The month of the train strike.")
    await embedded(store)
    hits = await store.query("pet, a month of age", limit=3)
    assert hits[0].document.content == "She has a month old dog."


# The whole store


async def test_whole_store_is_searched_by_meaning(store):
    for caller, content in enumerate([PUPPY, KETTLE, TRAIN]):
        await keep(store, content, tags=(f"caller:{caller}",))
    await embedded(store)
    assert contents(await store.query(PET, limit=3)) == [PUPPY]


async def test_changed_document_is_found_by_meaning_in_the_whole_store(store):
    await keep(store, KETTLE)
    await embedded(store)
    await store.query(PET, limit=1)  # loads the model and the vectors
    (document,) = await keep(store, TRAIN)
    await store.replace(document.id, PUPPY)

    async def is_found():
        return contents(await store.query(PET, limit=1)) == [PUPPY]

    await until_it(is_found)


async def test_words_find_what_has_no_vectors_yet(ground):
    class Stuck(Embedder):
        async def embed(self, texts):
            if texts and "train" in texts[0]:
                await asyncio.Event().wait()
            return await super().embed(texts)

    async with opened(ground, Stuck(minilm.load)) as store:
        await keep(store, PUPPY, KETTLE)
        await embedded(store)
        await keep(store, TRAIN)
        assert contents(await store.query("Which train does he take to work?", limit=1)) == [TRAIN]


async def test_deleted_document_is_not_found_in_the_whole_store(store):
    puppy, _ = await keep(store, PUPPY, KETTLE)
    await embedded(store)
    assert contents(await store.query(PET, limit=1)) == [PUPPY]
    await store.delete(puppy.id)
    assert contents(await store.query(PET, limit=1)) == []


async def test_wide_scope_has_no_document_of_another(store):
    """A scope of more documents than are ranked one by one."""

    def fill(connection, numbers):
        for number in numbers:
            create_document(connection, NewDocument("", f"Call {number}", tags=("agent:maya",)), NOW)
        if isinstance(store, SqliteStore):
            connection.execute("DELETE FROM unembedded_documents")
        else:
            connection.execute("UPDATE documents SET embedded_by = ?", (MODEL,))

    for first in range(0, NARROW_SCOPE + 1, 500):
        await store.run(partial(fill, numbers=range(first, min(first + 500, NARROW_SCOPE + 1))))
    for agent in ("maya", "otto"):
        await keep(store, PUPPY, f"The dog of {agent} barks.", tags=(f"agent:{agent}",))
    await embedded(store)
    hits = [hit for hit in await store.query(PET, limit=5, tags=("agent:maya",)) if hit.score > 0.01]
    assert sorted(contents(hits)) == [PUPPY, "The dog of maya barks."]
    assert all(hit.document.tags == ("agent:maya",) for hit in hits)


async def test_signs_of_an_older_version_are_made(tmp_path):
    ground = SqliteGround(tmp_path / "store.db")
    async with opened(ground) as store:
        await keep(store, PUPPY, KETTLE)
        await embedded(store)
        await store.run(lambda connection: connection.execute("DELETE FROM vector_signs"))
    async with opened(ground) as store:
        await until_it(lambda: rows(store, "SELECT key FROM vector_signs"))
        assert contents(await store.query(PET, limit=1)) == [PUPPY]


# Kept in step


async def test_every_document_gets_vectors(store):
    await keep(store, *(f"Fact number {number} of the caller." for number in range(20)))
    await embedded(store)
    assert len(await models(store)) == 20


async def test_vectors_follow_the_content(store):
    (document,) = await keep(store, TRAIN)
    await embedded(store)
    await store.replace(document.id, PUPPY)
    await embedded(store)
    assert await models(store) == {PUPPY: MODEL}
    (hit,) = await store.query(PET, limit=1, tags=ANA)
    assert hit.score > 0.01


async def test_vectors_go_with_the_document(store):
    documents = await keep(store, PUPPY, KETTLE)
    await embedded(store)
    for document in documents:
        await store.delete(document.id)
    assert await rows(store, "SELECT key FROM document_vectors") == []
    await embedded(store)


async def test_vectors_of_a_changed_document_are_not_kept(ground):
    """It was changed while the model read it."""
    reading, go_on = asyncio.Event(), asyncio.Event()

    class Slow(Embedder):
        async def embed(self, texts):
            reading.set()
            await go_on.wait()
            return await super().embed(texts)

    async with ground.opened() as store:
        (document,) = await keep(store, KETTLE)
    async with opened(ground, Slow()) as again:
        await reading.wait()
        await again.replace(document.id, PUPPY)
        go_on.set()
        await embedded(again)
        (hit,) = await again.query(PET, limit=1, tags=ANA)
        assert hit.score > 0.01


async def test_store_of_an_older_version_is_caught_up_on(tmp_path):
    ground = SqliteGround(tmp_path / "store.db")
    store = await SqliteStore.open(ground.path)
    await keep(store, PUPPY, KETTLE)
    for kind, name in await rows(store, "SELECT type, name FROM sqlite_master WHERE name LIKE 'vectors_%'"):
        await store.run(lambda connection, drop=f"DROP {kind} {name}": connection.execute(drop))
    for table in ("document_vectors", "unembedded_documents"):
        await store.run(lambda connection, table=table: connection.execute(f"DROP TABLE {table}"))
    await store.close()
    async with opened(ground) as store:
        await embedded(store)
        assert contents(await store.query(PET, limit=1, tags=ANA)) == [PUPPY]


async def test_vectors_of_another_model_are_made_again(ground):
    async with opened(ground) as store:
        await keep(store, PUPPY, KETTLE)
        await embedded(store)
        column = "document_vectors SET model" if isinstance(store, SqliteStore) else "documents SET embedded_by"
        await store.run(lambda connection: connection.execute(f"UPDATE {column} = 'older'"))
    async with opened(ground) as store:
        async with asyncio.timeout(60):
            while await models(store) != {PUPPY: MODEL, KETTLE: MODEL}:
                await asyncio.sleep(0.01)


async def test_without_model_words_answer(ground):
    def load():
        raise ModelGone("not installed")

    async with opened(ground, Embedder(load)) as store:
        await keep(store, PUPPY, KETTLE)
        assert contents(await store.query("kettle", limit=1, tags=ANA)) == [KETTLE]
        assert [hit.score for hit in await store.query(PET, limit=2, tags=ANA)] == [0.001, 0.001]


# Isolation


async def test_nearer_document_of_another_is_not_seen(store):
    await keep(store, KETTLE, tags=ANA)
    await keep(store, PUPPY, tags=BEN)
    await embedded(store)
    assert contents(await store.query(PET, limit=9, tags=ANA)) == [KETTLE]
    assert contents(await store.query(PET, limit=9, tags=BEN)) == [PUPPY]


tag_sets = st.sets(
    st.sampled_from(["a", "A", "a*", "*", "%", "agent:a", "agent:*", "caller:1", "caller:12"]), min_size=1
)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(documents=st.lists(tag_sets, min_size=1, max_size=6), asked=tag_sets)
async def test_only_documents_with_every_tag_are_found(ground, documents, asked):
    """And all of them, whatever their words and vectors say."""
    async with opened(ground.another()) as store:
        for number, tags in enumerate(documents):
            await keep(store, f"{PUPPY} {number}", tags=tuple(sorted(tags)))
        for settled in (False, True):
            if settled:
                await embedded(store)
            for text in (PET, "puppy", "* OR a"):
                hits = await store.query(text, limit=9, tags=tuple(asked))
                expected = {f"{PUPPY} {number}" for number, tags in enumerate(documents) if asked <= tags}
                assert set(contents(hits)) == expected


async def test_closed_store_is_unavailable(store):
    await keep(store, PUPPY)
    await embedded(store)
    await store.query(PET, limit=1, tags=ANA)
    await store.close()
    with pytest.raises(StoreUnavailable):
        await store.query(PET, limit=1, tags=ANA)


async def test_document_made_within_other_work_gets_its_vectors(store):
    """As facts are, with the log that they rest on."""
    await keep(store, "Has a cat")
    await embedded(store)
    await asyncio.sleep(0.1)  # by now the embedding task waits for documents
    await store.run(lambda connection: create_document(connection, NewDocument("", "Has a dog", tags=ANA), NOW))
    await embedded(store)
    assert set(await models(store)) == {"Has a cat", "Has a dog"}


# Parts of a text


SENTENCES = [f"This is sentence number {number} of a longer text." for number in range(20)]


def test_short_text_is_one_part():
    assert parts("Two. Sentences.") == ["Two. Sentences."]
    assert parts("") == [""]


def test_long_text_is_taken_by_sentences():
    assert parts(" ".join(SENTENCES)) == SENTENCES


def test_lines_are_parts_too():
    lines = [f"- the item number {number} of a longer list" for number in range(20)]
    assert parts("\n".join(lines)) == lines


def test_scraps_go_with_what_follows():
    text = " ".join(["Dr. Smith called in the morning about it."] * 10)
    assert parts(text) == ["Dr. Smith called in the morning about it."] * 10


def test_endless_sentence_is_cut():
    assert [len(part) for part in parts("x" * 1200)] == [500, 500, 200]


@given(st.text(alphabet="ab. \n", max_size=2000))
def test_parts_stand_in_the_text(text):
    found = parts(text)
    assert found and all(part in text for part in found)
    place = 0
    for part in found:
        place = text.index(part, place) + len(part)


def test_snippet_begins_at_the_part():
    text = " ".join(SENTENCES)
    assert snippet(text, (), 7).startswith("This is sentence number 7 of")
    assert len(snippet(text, (), 7)) <= 500


def test_snippet_without_part_shows_the_words():
    text = " ".join(SENTENCES) + "\nThen a blue kettle."
    assert snippet(text, ("kettle",), None) == "Then a blue kettle."
