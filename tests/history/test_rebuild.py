"""What calls left in memory, derived again from their words: a plan first, then applied, then undone."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import orjson
import pytest

from gateway.errors import LlmUnavailable
from gateway.finalization.archive import Archive
from gateway.finalization.document import call_document
from gateway.finalization.job_table import JobTable
from gateway.finalization.steps import CallMemory, FinalizationSteps
from gateway.finalization.summary.summarizer import Summarizer
from gateway.history.erasure import DataLocations, Eraser, NoSharedData
from gateway.history.queries import CallHistory
from gateway.history.rebuild import MemoryRebuild, RebuiltCall
from gateway.history.stores import Stores, open_stores
from gateway.memory.facts import CallerFact
from gateway.memory.pinned_topics import TopicNote
from gateway.session import Speaker, TrustLevel, Turn, VoiceSession
from gateway.settings import Secret
from tests.calls.aftermath import CALLER, START, SUMMARY, MoodyModel, a_session

LINES = "AGENT: Hello.\nCALLER: I live in Leeds, and I always prefer a call in the morning.\n"


class Place:
    """A store with one call that was summarised badly, and its transcript."""

    def __init__(self, stores: Stores, folder: Path) -> None:
        self.stores, self.folder = stores, folder
        self.memory = CallMemory(stores.memory)
        self.archive = Archive(folder / "archive", retention_days=0)
        self.session = a_session(turns=[])

    async def fill(self) -> None:
        summary = replace(SUMMARY, context="Ana lives in Bath.")
        document = await self.stores.memory.create(call_document(self.session, summary, None))
        await self.memory.calls.write(self.session, document_id=document.id, summary_by="test/model")
        await self.memory.facts.learn(self.session, [CallerFact("Lives in Bath", "identity", 0.9, (1,))], START)
        await self.memory.topics.note(self.session, [TopicNote("Roof repair", status="Offer sent")], START)

    def rebuild(self, *models: MoodyModel) -> MemoryRebuild:
        steps = FinalizationSteps(
            memory=self.memory,
            jobs=JobTable(self.stores.local),
            remem=None,
            summarizer=Summarizer(models, "", tries_each=1),
            archive=self.archive,
            find_agent={}.get,
            is_erased=self.eraser().is_erased,
        )
        history = CallHistory(self.stores, data_dir=self.folder, archive_dir=self.folder / "archive")
        return MemoryRebuild(steps, history, DataLocations(self.folder, self.folder, self.folder / "recordings"))

    async def plan(self, *models: MoodyModel) -> list[RebuiltCall]:
        return [call async for call in self.rebuild(*models).plan(CALLER)]

    async def applied(self) -> MemoryRebuild:
        await self.archive.write(self.session.uuid, LINES)
        await self.rebuild().apply(await self.plan())
        return self.rebuild()

    async def state(self) -> tuple[list[str], list[str], str, str]:
        """Facts, topics, document, and who wrote it."""
        call = await self.memory.calls.find(self.session.id)
        facts = [fact.text for fact in await self.memory.facts.known("maya", CALLER, 10)]
        topics = [topic.title for topic in await self.memory.topics.topics("maya", CALLER)]
        return facts, topics, (await self.stores.memory.get(call.document_id)).content, call.summary_by

    def eraser(self) -> Eraser:
        return Eraser(
            self.stores, DataLocations(self.folder, self.folder / "archive"), None, Secret("k"), NoSharedData()
        )


@pytest.fixture
async def place(ground, tmp_path: Path):
    stores = await open_stores(tmp_path, ground.database_url)
    place = Place(stores, tmp_path)
    await place.fill()
    yield place
    await stores.close()


async def test_plan_shows_the_difference_and_changes_nothing(place: Place):
    await place.archive.write(place.session.uuid, LINES)
    before = await place.state()
    [call] = await place.plan()
    assert call.is_changed and not call.problem
    assert "-Ana lives in Bath." in call.diff
    assert {"-Fact: Lives in Bath", "+Fact: Lives in Leeds", "-Topic: Roof repair: Offer sent"} <= {*call.diff}
    assert await place.state() == before


async def test_applied_and_undone(place: Place):
    before = await place.state()
    rebuild = await place.applied()
    facts, topics, document, summary_by = await place.state()
    assert "Lives in Leeds" in facts and "Lives in Bath" not in facts
    assert (topics, summary_by) == ([], "extractive") and "Bath" not in document
    [again] = await place.plan()
    assert not again.is_changed

    assert await rebuild.undo(CALLER) == 1
    assert await place.state() == before
    assert await rebuild.undo(CALLER) == 0


async def test_words_of_a_recording_serve_too(place: Place):
    (place.folder / "recordings").mkdir()
    turns = [Turn(Speaker.CALLER, "I live in Leeds.", START)]
    rows = (
        {"t": 0, "note": "call", "content": {}},
        {"t": 9, "note": "ended", "content": a_session(turns=turns).as_json()},
    )
    recording = b"".join(orjson.dumps(row) + b"\n" for row in rows)
    (place.folder / "recordings" / f"{place.session.uuid}.jsonl").write_bytes(recording)
    [call] = await place.plan()
    assert "+Fact: Lives in Leeds" in call.diff


async def test_call_stays_as_it_is_without_words_or_model(place: Place):
    [call] = await place.plan()
    assert (call.is_changed, call.problem) == (False, "its words are no longer kept")
    await place.archive.write(place.session.uuid, LINES)
    [call] = await place.plan(MoodyModel(LlmUnavailable("the model is away")))
    assert (call.is_changed, call.problem) == (False, "the model is away")


async def test_name_of_an_earlier_call_stays_in_the_header(place: Place):
    later = a_session(turns=[], known_name="Ana Ruiz", started_at=START + timedelta(days=1))
    document = await place.stores.memory.create(call_document(later, replace(SUMMARY, caller_name=""), None))
    await place.memory.calls.write(later, document_id=document.id, summary_by="test/model")
    await place.archive.write(later.uuid, LINES)
    await place.rebuild().apply([call for call in await place.plan() if call.is_changed])
    assert "**Caller:** Ana Ruiz (+12025550143)" in (await place.stores.memory.get(document.id)).content


async def test_rebuild_and_undo_keep_the_trust_level(place: Place):
    place.session = a_session(turns=[], caller="+12025550177", trust=TrustLevel.SUMMARIES)
    await place.fill()
    await place.archive.write(place.session.uuid, LINES)
    planned = [call async for call in place.rebuild().plan("+12025550177")]
    await place.rebuild().apply(planned)
    known = await place.memory.facts.known("maya", "+12025550177", 10)
    assert {fact.trust for fact in known} == {TrustLevel.SUMMARIES} and "Lives in Leeds" in {
        fact.text for fact in known
    }
    await place.rebuild().undo("+12025550177")
    [fact] = await place.memory.facts.known("maya", "+12025550177", 10)
    assert (fact.text, fact.trust) == ("Lives in Bath", TrustLevel.SUMMARIES)


async def test_reverted_call_is_left_out(place: Place):
    await place.archive.write(place.session.uuid, LINES)
    await place.eraser().revert(await place.memory.calls.find(place.session.id))
    assert await place.plan() == []


async def deleted_fact(place: Place) -> None:
    [fact] = [fact for fact in await place.memory.facts.known("maya", CALLER, 10) if "Leeds" in fact.text]
    await place.memory.facts.correct("maya", CALLER, fact.id, "", by="by-hand:1", now=datetime.now(UTC))


async def reverted(place: Place) -> None:
    await place.eraser().revert(await place.memory.calls.find(place.session.id))


async def erased(place: Place) -> None:
    await place.eraser().erase(await place.eraser().find(CALLER))


async def a_month_later(place: Place) -> None:
    await place.memory.facts.delete_old_undo(datetime.now(UTC) + timedelta(days=31))


@pytest.mark.parametrize("change", [deleted_fact, reverted, erased, a_month_later])
async def test_deleting_anything_deletes_the_copy_for_undo(place: Place, change):
    rebuild = await place.applied()
    await change(place)
    assert await rebuild.undo(CALLER) == 0


async def test_other_callers_are_not_touched(place: Place):
    other = VoiceSession("maya", "+12025550188", "twilio", started_at=START)
    await place.memory.facts.learn(other, [CallerFact("Lives in Bath", "identity", 0.9, (1,))], START)
    await (await place.applied()).undo("+12025550188")
    [fact] = await place.memory.facts.known("maya", "+12025550188", 10)
    assert fact.text == "Lives in Bath"
    assert "Lives in Leeds" in (await place.state())[0]
