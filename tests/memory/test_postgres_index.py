"""Searching in PostgreSQL, beyond what test_store and test_search check for both databases."""

import pytest

from gateway.memory.documents import NewDocument
from gateway.memory.embeddings import minilm
from gateway.memory.embeddings.embedder import Embedder
from tests.memory.stores import PostgresGround
from tests.stage import until_it

ANA = ("agent:maya", "caller:+12025550101")


@pytest.fixture
def ground(postgres):
    return PostgresGround(postgres)


async def test_embedder_of_a_later_start_finds_what_was_stored_before(ground):
    async with ground.opened() as store:
        await store.create(NewDocument("", "She has a puppy called Rex.", tags=ANA))
    async with ground.opened(embedder=Embedder(minilm.load), embed_after=0) as store:

        async def found():
            hits = await store.query("What pet does she have?", limit=1, tags=ANA)
            return hits[0].score > 0.01

        await until_it(found)


async def test_wide_search_finds_by_meaning_alone(ground):
    """With no tag, or more documents than can be ranked, nearest vectors are candidates as well."""
    async with ground.opened(embedder=Embedder(minilm.load), embed_after=0) as store:
        for content in ("The blue kettle is broken.", "She has a puppy called Rex.", "He takes the train to work."):
            await store.create(NewDocument("", content, tags=ANA))

        async def found():
            hits = await store.query("What pet does she have?", limit=3)
            return [hit.document.content for hit in hits if hit.score > 0.01] == ["She has a puppy called Rex."]

        await until_it(found)


async def test_vectors_come_back_as_they_were_made(ground):
    embedder = Embedder(minilm.load)
    text = "She has a puppy called Rex."
    made = await embedder.embed([text, "Another part."])
    async with ground.opened(embedder=embedder, embed_after=60) as store:
        await store.create(NewDocument("", text, tags=ANA))
        [document] = await store.look(lambda connection: store.index.missing_vectors(connection, (), 1))
        await store.run(lambda connection: store.index.keep_vectors(connection, [(document, made)]))
        [(*_, kept)] = await store.look(lambda connection: list(store.index.members(connection, ANA)))
    assert kept == made


async def test_another_nodes_change_is_seen_at_once(ground):
    """A node caches scopes until one of their documents changes."""
    async with ground.opened() as store, ground.opened() as other:
        kept = await store.create(NewDocument("", "blue kettle", tags=ANA))
        for content in ("red kettle", "green kettle"):
            assert len(await store.query("kettle", limit=9, tags=ANA)) == 1
            await other.replace(kept.id, content)
            assert [hit.document.content for hit in await store.query("kettle", limit=9, tags=ANA)] == [content]
        await other.create(NewDocument("", "a second", tags=ANA))
        await other.delete(kept.id)
        assert [hit.document.content for hit in await store.query("kettle", limit=9, tags=ANA)] == ["a second"]
