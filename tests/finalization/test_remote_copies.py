"""Documents in the remote store that follow ours: pinned topics, and calls whose facts were deleted."""

from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from gateway.errors import StoreRefused, StoreUnavailable
from gateway.finalization.document import add_facts, call_document
from gateway.finalization.remote_copies import RemoteCopies
from gateway.history.erasure import DataLocations, Eraser, NoSharedData
from gateway.history.stores import Stores, open_stores
from gateway.memory.facts import CallerFact, FactStore
from gateway.memory.memory_log import Retention
from gateway.memory.pinned_topics import PinnedTopicStore, TopicNote
from gateway.memory.remem_client import RememClient
from gateway.memory.visible_documents import VisibleDocuments
from gateway.settings import Secret
from tests.calls.aftermath import CALLER, START, SUMMARY, a_session
from tests.fakes.remem import FakeRemem, Fault

OTHER = "+12025550188"


class Remote:
    """Our store, a Remem, and what keeps the two in line."""

    def __init__(self, stores: Stores, fake: FakeRemem, client: RememClient) -> None:
        self.stores, self.store, self.fake, self.client = stores, stores.memory, fake, client
        self.topics, self.facts = PinnedTopicStore(self.store), FactStore(self.store)
        self.copies = RemoteCopies(self.store, client)

    def contents(self) -> list[str]:
        return [document.content for document in self.fake.documents.values()]


@pytest.fixture
async def remote(ground, tmp_path: Path):
    async with AsyncExitStack() as stack:
        stores = await open_stores(tmp_path, ground.database_url)
        stack.push_async_callback(stores.close)
        fake = await stack.enter_async_context(FakeRemem())
        http = await stack.enter_async_context(httpx.AsyncClient(trust_env=False))
        yield Remote(stores, fake, RememClient(fake.url, Secret(fake.api_key), http))


async def test_topic_is_sent_once_and_updated_in_place(remote: Remote):
    await remote.topics.pin("maya", CALLER, "Orlando sale", status="Offer made")
    assert await remote.copies.sync() == 1
    [document] = remote.fake.documents.values()
    assert document.title == "Pinned Topic — Orlando sale" and "Offer made" in document.content
    assert {"pinned-topic", "agent:maya", f"caller:{CALLER}"} <= {*document.tags}
    assert await remote.copies.sync() == 0

    await remote.topics.pin("maya", CALLER, "Orlando sale", status="Offer accepted")
    assert await remote.copies.sync() == 1
    [content] = remote.contents()
    assert "Offer accepted" in content

    await remote.topics.unpin("maya", CALLER, "Orlando sale")
    assert await remote.copies.sync() == 1
    assert remote.contents() == ["This topic is no longer pinned.\n"]


async def test_unpinned_topic_is_deleted_where_the_store_deletes(remote: Remote):
    remote.fake.deletes = True
    await remote.topics.pin("maya", CALLER, "Orlando sale", status="Offer made")
    await remote.copies.sync()
    await remote.topics.unpin("maya", CALLER, "Orlando sale")
    assert await remote.copies.sync() == 1
    assert remote.contents() == []


async def test_outage_and_lost_answer_leave_one_document(remote: Remote):
    await remote.topics.pin("maya", CALLER, "Orlando sale", status="Offer made")
    remote.fake.fails(Fault.ANSWER_LOST)
    remote.fake.honours_idempotency = False
    with pytest.raises(StoreUnavailable):
        await remote.copies.sync()
    assert await remote.copies.sync() == 1
    assert len(remote.contents()) == 1
    assert await remote.copies.sync() == 0


async def test_wrong_key_is_an_error_and_nothing_is_lost(remote: Remote):
    await remote.topics.pin("maya", CALLER, "Orlando sale", status="Offer made")
    remote.fake.api_key, right = "other", remote.fake.api_key
    with pytest.raises(StoreRefused):
        await remote.copies.sync()
    remote.fake.api_key = right
    await remote.copies.sync()
    assert len(remote.contents()) == 1


@pytest.mark.parametrize("by", ["operator", "document", "age"])
async def test_deleted_fact_leaves_the_remote_document(remote: Remote, by: str):
    session = a_session()
    facts = [CallerFact("Lives in Bath", "identity", 0.9, (1,)), CallerFact("Has a dog", "identity", 0.9, (1,))]
    summary = replace(SUMMARY, caller_facts=tuple(facts))
    await remote.store.create(call_document(session, summary, None))
    await remote.client.store(call_document(session, summary, None))
    await remote.facts.learn(session, facts, START)
    assert await remote.copies.sync() == 0 and "- Lives in Bath" in remote.contents()[0]

    [bath] = [fact for fact in await remote.facts.known("maya", CALLER, 9) if "Bath" in fact.text]
    match by:
        case "operator":
            await remote.facts.correct("maya", CALLER, bath.id, "", by="by-hand:1", now=datetime.now(UTC))
        case "document":
            await VisibleDocuments(remote.store, Retention()).delete(bath.id)
        case "age":
            await remote.facts.expire(START + timedelta(days=1))
    assert await remote.copies.sync() == 1
    [content] = remote.contents()
    assert "Bath" not in content and "Ana waits for her chain." in content
    assert ("- Has a dog" in content) is (by != "age")
    assert await remote.copies.sync() == 0


async def test_erasure_deletes_copies_of_the_caller_alone(remote: Remote, tmp_path: Path):
    for caller in (CALLER, OTHER):
        await remote.topics.note(a_session(caller=caller), [TopicNote("Roof repair", status="Offer")], START)
        await remote.topics.pin("maya", caller, "Orlando sale", status="Offer made")
    await remote.copies.sync()
    remote.fake.deletes = True
    assert len(remote.contents()) == 2
    locations = DataLocations(tmp_path, tmp_path / "archive")
    eraser = Eraser(remote.stores, locations, remote.client, Secret("key"), NoSharedData())
    result = await eraser.erase(await eraser.find(CALLER))
    assert result.deleted["remote documents"] == 1
    assert [f"caller:{OTHER}" in document.tags for document in remote.fake.documents.values()] == [True]
    assert await remote.copies.sync() == 0
    assert await eraser.holding([CALLER]) == []


def test_facts_are_added_to_their_section_once():
    content = call_document(a_session(), replace(SUMMARY, facts=("Has a dog",)), None).content
    added = add_facts(content, ["Has a dog", "Lives in Bath", "Lives in Bath"])
    assert added == content.replace("- Has a dog\n", "- Has a dog\n- Lives in Bath\n")
    assert add_facts(content, []) == content
