"""What only the shared store can get wrong. What both do is in test_store.py, test_vectors.py and their neighbours."""

import asyncio
from urllib.parse import urlsplit

import pytest

from gateway.errors import StoreUnavailable
from gateway.history.stores import MEMORY_SCHEMA
from gateway.memory.embeddings import minilm
from gateway.memory.embeddings.embedder import Embedder
from gateway.memory.stores.documents import NewDocument
from gateway.memory.stores.postgres import PostgresStore
from tests.memory.stores import PostgresGround
from tests.stage import until_it

ANA = ("agent:maya", "caller:+12025550101")


@pytest.fixture
def ground(postgres):
    return PostgresGround(postgres)


async def problem_of(url, **options):
    store = PostgresStore(url, **options)
    try:
        with pytest.raises(StoreUnavailable) as raised:
            await store.newest(tags=ANA, limit=1)
        assert store.is_away
    finally:
        await store.close()
    return str(raised.value)


# Setting it up


async def test_nodes_that_start_at_once_make_the_tables_once(ground):
    async def start(number):
        async with ground.opened(schema=MEMORY_SCHEMA, embedder=Embedder(minilm.load)) as store:
            await store.create(NewDocument("", f"document {number}", tags=ANA))

    await asyncio.gather(*map(start, range(6)))
    async with ground.opened() as store:
        assert len(await store.newest(tags=ANA, limit=9)) == 6


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgresql://me:sesame@127.0.0.1:1/x", "connection refused"),
        ("postgresql://me:sesame%zz@127.0.0.1/x", "it is not an address; write it like "),
        ("postgresql://me:open sesame@127.0.0.1/x", "it is not an address; write it like "),
        ("postgresql://me:x@127.0.0.1/x?sesame=1", "it is not an address; write it like "),
        ("postgresql://me:x@127.0.0.1/x?sslmode=sesame", "TLS failed"),
        ("postgresql://me:open@sesame/word@127.0.0.1/x", "the host name is unknown"),
        ("postgresql://me:1/sesame@127.0.0.1/x", "the host name is unknown"),
        ("postgresql://me:sesame/x", "the host name is unknown"),
    ],
)
async def test_wrong_address_is_reported_without_its_password(url, reason):
    problem = await problem_of(url)
    assert problem.startswith(f"can't reach PostgreSQL, see DATABASE_URL: {reason}")
    assert "sesame" not in problem and "\n" not in problem


async def test_unknown_database_is_reported(postgres):
    problem = await problem_of(postgres.url.replace("/postgres", "/nowhere"))
    assert problem.endswith(": the database or the user does not exist")


async def test_database_must_hold_every_letter(postgres):
    postgres.run("CREATE DATABASE old_times ENCODING 'SQL_ASCII' TEMPLATE template0")
    url = postgres.url.replace("/postgres", "/old_times")
    assert await problem_of(url) == "the database's encoding is SQL_ASCII; make one with UTF8"


async def test_without_pgvector_words_alone_are_searched(postgres):
    """Nobody but an administrator can add an extension to a database."""
    postgres.run("CREATE DATABASE plain")
    postgres.run("CREATE ROLE tenant LOGIN")
    url = postgres.url.replace("/postgres", "/plain")
    postgres.run("GRANT ALL ON SCHEMA public TO tenant", url)
    tenant = url.replace("gateway:hidden-word", "tenant")
    problem = await problem_of(tenant, embedder=Embedder(minilm.load))
    assert problem.startswith("PostgreSQL has no pgvector 0.8 or newer; ") and "MEMORY_VECTORS=false" in problem
    store = PostgresStore(tenant)
    await store.create(NewDocument("", "blue kettle", tags=ANA))
    assert [hit.document.content for hit in await store.query("kettles", limit=1, tags=ANA)] == ["blue kettle"]
    await store.close()


async def test_nul_has_no_place_in_postgresql(ground):
    async with ground.opened() as store:
        kept = await store.create(NewDocument("", "a\0b", tags=("x\0y",)))
        assert (kept.content, kept.tags) == ("a\ufffdb", ("x\0y",))
        assert await store.newest(tags=("x\0y",), limit=1) == [kept]


# When it fails


async def test_server_that_comes_back_is_used_again(mortal_postgres):
    server = mortal_postgres
    store = PostgresStore(server.fresh())
    kept = await store.create(NewDocument("", "blue kettle", tags=ANA))
    await asyncio.to_thread(server.kill)
    for doing in (store.get, store.delete):
        with pytest.raises(StoreUnavailable):
            await doing(kept.id)
    assert store.is_away
    await asyncio.to_thread(server.start)

    async def is_back():
        try:
            return await store.get(kept.id)
        except StoreUnavailable:
            return None

    assert await until_it(is_back) == kept
    assert not store.is_away
    # Once more, unnoticed: a pooled connection that was lost is replaced without an error.
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)
    assert (await store.append(kept.id, "red pan")).content == "blue kettle\nred pan"
    assert [hit.document.id for hit in await store.query("pan", limit=1, tags=ANA)] == [kept.id]
    await store.close()


async def test_errors_quote_nothing_that_was_stored(ground):
    async with ground.opened() as store:
        with pytest.raises(StoreUnavailable) as raised:
            await store.run(lambda connection: connection.execute("SELECT ?::int", ("pomegranates",)))
    assert str(raised.value) == "PostgreSQL failed: InvalidTextRepresentation"


async def test_words_are_found_in_any_table(ground):
    async with ground.opened(schema=MEMORY_SCHEMA) as store:
        await store.run(
            lambda connection: connection.execute("INSERT INTO forgotten VALUES ('50% \\ Pomegranate', '')")
        )
        assert await store.tables_holding(["nothing", "pomegranate"]) == ["the table forgotten"]
        assert await store.tables_holding(["50% \\ p"]) == ["the table forgotten"]
        assert await store.tables_holding(["5_%", "pome_"]) == []
        assert await store.scrub()


async def test_address_may_name_a_socket_folder(postgres):
    """Without a host in it; the driver knows what to do."""
    port = urlsplit(postgres.url).port
    problem = await problem_of(f"postgresql:///x?host=/nowhere&port={port}")
    assert problem.endswith(": no such file or directory")


# Searching, beyond what test_store and test_search check for both databases


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
