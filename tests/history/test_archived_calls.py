"""Calls of long ago: out of prompt, search and lists, compressed, still readable, erased with their caller."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.errors import DocumentNotFound
from gateway.finalization.document import call_document
from gateway.history.archived_calls import ArchivedCalls
from gateway.history.calls_table import EVERY_CALL, CallRowFilter, CallsTable
from gateway.history.erasure import DataLocations, Eraser, NoSharedData
from gateway.history.queries import CallFilter, CallHistory
from gateway.history.report import MemoryReports
from gateway.history.stores import Stores, open_stores
from gateway.memory.memory_log import Retention
from gateway.memory.recall import Recall
from gateway.memory.remem_client import NoRemem
from gateway.memory.visible_documents import VisibleDocuments
from gateway.response_time import ResponseTime
from gateway.session import VoiceSession
from gateway.settings import Secret
from tests.calls.aftermath import CALLER, SUMMARY, a_session

NOW = datetime.now(UTC)
OLD, RECENT = NOW - timedelta(days=400), NOW - timedelta(days=3)
YEAR = Retention(call_days=365)
LIMIT = YEAR.oldest_call(NOW).isoformat()


@pytest.fixture
async def stores(ground, tmp_path: Path):
    stores = await open_stores(tmp_path, ground.database_url)
    yield stores
    await stores.close()


def a_call(started_at: datetime, **fields) -> VoiceSession:
    receipt = {"items": [{"kind": "fact"}], "block": "Prefers mornings"}
    timings = [ResponseTime(first_frame=0.5).as_json()]
    given = {"started_at": started_at, "ended_at": started_at + timedelta(seconds=60), "receipt": receipt}
    return a_session(**given, timings=timings, **fields)


async def ended(stores: Stores, session: VoiceSession, context: str) -> VoiceSession:
    document = await stores.memory.create(call_document(session, replace(SUMMARY, context=context), None))
    await CallsTable(stores.memory).write(session, document_id=document.id, summary_by="test/model")
    return session


async def test_old_calls_leave_prompt_search_and_lists_and_stay_readable(stores: Stores, tmp_path: Path):
    old = await ended(stores, a_call(OLD), "Ana ordered quinces.")
    recent = await ended(stores, a_call(RECENT), "Ana ordered walnuts.")
    before = await CallsTable(stores.memory).find(old.id)
    assert await ArchivedCalls(stores.memory).archive(LIMIT) == 1
    assert await ArchivedCalls(stores.memory).archive(LIMIT) == 0

    recall = Recall(stores.memory, NoRemem(), 3)
    assert [call.session_id for call in await recall.own_calls("maya", CALLER)] == [recent.id]
    assert not [hit for hit in await stores.memory.query("quinces", limit=5) if "quinces" in hit.document.content]
    assert [row.session_id for row in await CallsTable(stores.memory).page(EVERY_CALL)] == [recent.id]
    with pytest.raises(DocumentNotFound):
        await stores.memory.get(before.document_id)

    found = await ArchivedCalls(stores.memory).find(old.uuid[:8])
    assert found.call == before
    assert "Ana ordered quinces." in found.document and found.title.startswith("Voice Call Summary — ")
    history = CallHistory(stores, data_dir=tmp_path, archive_dir=tmp_path)
    [row] = await history.calls(CallFilter(caller=CALLER), archived=True)
    assert (row["session"], row["told"], row["outcome"]) == (old.id, 1, "caller hung up")
    assert [row["session"] for row in await history.calls(CallFilter())] == [recent.id]
    assert "quinces" in (await history.call(old.id))["summary"]
    assert "walnuts" in (await history.call(recent.id))["summary"]


async def test_call_past_its_time_is_not_used_before_it_is_archived(stores: Stores):
    await ended(stores, a_call(OLD), "Ana ordered quinces.")
    assert len(await Recall(stores.memory, NoRemem(), 3).own_calls("maya", CALLER)) == 1
    recall = Recall(stores.memory, NoRemem(), 3, YEAR)
    assert await recall.own_calls("maya", CALLER) == []
    assert await recall.search("maya", CALLER, "quinces") == []
    assert await VisibleDocuments(stores.memory, YEAR).query("quinces", limit=5) == []


async def test_archive_is_filtered_like_the_list(stores: Stores):
    for agent, caller in (("maya", CALLER), ("leo", CALLER), ("leo", "+12025550188")):
        await ended(stores, a_call(OLD, agent=agent, caller=caller), "Nothing.")
    archived = ArchivedCalls(stores.memory)
    await archived.archive(LIMIT)
    found = await archived.newest(CallRowFilter(agent="leo", caller=CALLER, outcomes=("caller hung up",)), limit=5)
    assert [(old.call.agent, old.call.caller) for old in found] == [("leo", CALLER)]
    assert len(await archived.newest(EVERY_CALL, limit=2)) == 2


async def test_more_calls_than_one_transaction_takes(stores: Stores):
    table = CallsTable(stores.memory)
    for minute in range(205):
        await table.write(a_call(OLD + timedelta(minutes=minute)), document_id="", summary_by="")
    assert await ArchivedCalls(stores.memory).archive(LIMIT) == 205
    assert await table.count(EVERY_CALL) == 0


async def test_erasure_and_export_include_the_archive(stores: Stores, tmp_path: Path):
    old = await ended(stores, a_call(OLD), "Ana ordered quinces.")
    other = await ended(stores, a_call(OLD, caller="+12025550188"), "Ben ordered walnuts.")
    await ArchivedCalls(stores.memory).archive(LIMIT)
    [exported] = (await MemoryReports(stores.memory).of(CALLER)).as_json()["archived"]
    assert exported["session_id"] == old.id and "quinces" in exported["document"]
    eraser = Eraser(stores, DataLocations(tmp_path, tmp_path / "archive"), None, Secret("key"), NoSharedData())
    result = await eraser.erase(await eraser.find(CALLER))
    assert result.deleted["archived calls"] == 1
    assert await ArchivedCalls(stores.memory).find(old.id) is None
    assert await ArchivedCalls(stores.memory).find(other.id) is not None


async def test_reverted_call_stays_in_the_archive_without_its_document(stores: Stores, tmp_path: Path):
    old = await ended(stores, a_call(OLD), "Ana ordered quinces.")
    archived = ArchivedCalls(stores.memory)
    await archived.archive(LIMIT)
    eraser = Eraser(stores, DataLocations(tmp_path, tmp_path / "archive"), None, Secret("key"), NoSharedData())
    result = await eraser.revert((await archived.find(old.id)).call)
    assert result.deleted["documents"] == 1
    assert (await archived.find(old.id)).document == ""
    assert await eraser.sweep() == 0  # reverted, not erased: what else is kept of the call stays
