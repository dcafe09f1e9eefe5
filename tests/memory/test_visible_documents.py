from datetime import timedelta

import pytest

from gateway.history.erasure import DataLocations, Eraser, NoSharedData
from gateway.history.stores import Stores, open_local_store
from gateway.memory.facts import CallerFact, FactStore
from gateway.memory.memory_log import SCHEMA, Retention
from gateway.memory.pinned_topics import PinnedTopicStore
from gateway.memory.stores.documents import NewDocument
from gateway.memory.visible_documents import CallerNotes, VisibleDocuments
from gateway.settings import Secret
from tests.calls.aftermath import CALLER, START, a_session

SCOPE = ("agent:maya", "caller:+12025550143")


@pytest.fixture
async def store(ground):
    async with ground.opened(schema=SCHEMA) as made:
        yield made


async def learn(store, text, day=0):
    fact = CallerFact(text, "preference", 0.9, (0,))
    await FactStore(store).learn(a_session(started_at=START + timedelta(days=day)), [fact], START)


async def found(store, *, days=0, limit=10, tags=SCOPE):
    shown = VisibleDocuments(store, Retention(days, {"leo": 0}, call_days=days), now=lambda: START + timedelta(days=30))
    return [hit.document.content for hit in await shown.query("appointments", limit=limit, tags=tags)]


async def test_superseded_fact_is_not_shown(store):
    await learn(store, "Prefers morning appointments")
    await learn(store, "Prefers evening appointments", day=1)
    assert await found(store) == ["Prefers evening appointments"]
    assert await found(store, limit=1) == ["Prefers evening appointments"]


async def test_fact_that_is_too_old_is_not_shown(store):
    await learn(store, "Prefers morning appointments")
    await learn(store, "Likes tea", day=25)
    assert await found(store, days=10) == ["Likes tea"]
    assert len(await found(store, days=40)) == 2


@pytest.mark.parametrize("source", ["caller-fact", "voice-call"])
async def test_document_of_a_client_is_shown_however_old(store, source):
    await store.create(NewDocument("2023-05-08", "Has two appointments", source, SCOPE, START))
    assert await found(store, days=10) == ["Has two appointments"]


async def test_deleted_fact_and_topic_are_in_no_log(store):
    """What the fact took the place of is known again."""
    await learn(store, "Prefers morning appointments")
    await learn(store, "Prefers evening appointments", day=1)
    book, pins = FactStore(store), PinnedTopicStore(store)
    [fact] = await book.known("maya", CALLER, 10)
    pin = await pins.pin("maya", CALLER, "Orlando sale")
    for document_id in (fact.id, pin.id):
        await VisibleDocuments(store, Retention()).delete(document_id)
    assert await pins.topics("maya", CALLER) == []
    left = ["Prefers morning appointments (90% confidence)"]
    assert [change.after for change in await book.history("maya", CALLER)] == left
    assert [fact.text for fact in await book.known("maya", CALLER, 10)] == ["Prefers morning appointments"]


# Notes of text agents

ANA, BEN = "+12025550101", "+12025550102"


async def test_forgotten_caller_has_no_topics(tmp_path):
    store = await open_local_store(tmp_path)
    pins = PinnedTopicStore(store)
    eraser = Eraser(
        Stores(store, store), DataLocations(tmp_path, tmp_path / "archive"), None, Secret("key"), NoSharedData()
    )
    notes = CallerNotes(VisibleDocuments(store, Retention()), eraser.erase_caller)
    await notes.remember("Wants tea.", caller=ANA, agent="maya")
    for caller in (ANA, BEN):
        await pins.pin("maya", caller, "Orlando sale")
    assert await notes.forget_caller(caller=ANA, agent="maya") > 0
    assert await pins.topics("maya", ANA) == []
    assert [pin.title for pin in await pins.pinned("maya", BEN)] == ["Orlando sale"]
    assert await notes.search("tea sale", caller=ANA, agent="maya", limit=5) == []
    await store.close()


async def test_title_of_calls_finds_the_newest(store):
    for day in range(3):
        at = START + timedelta(days=day)
        text = "voice call summary " * (3 - day)
        await store.create(NewDocument("Voice Call Summary", f"{text}{day}", "voice-call", ("voice-session",), at))
    await store.create(NewDocument("Voice Call Summary", "voice call summary", "api", (), START + timedelta(days=9)))
    visible = VisibleDocuments(store, Retention())
    hits = await visible.query("voice call summary", limit=4)
    assert [hit.document.content[-1] for hit in hits[:3]] == ["2", "1", "0"]
    [newest] = await visible.query(" Voice Call Summary", limit=1)
    assert newest.document.content.endswith("2")
