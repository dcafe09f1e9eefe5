"""What later calls corrected is gone from prompts, lists and documents."""

from dataclasses import replace
from datetime import timedelta

import pytest

from gateway.finalization.document import call_document
from gateway.history.calls_table import SCHEMA as CALLS_SCHEMA
from gateway.history.calls_table import CallsTable
from gateway.memory.facts import CallerFact, FactStore
from gateway.memory.loader import MemoryLoader
from gateway.memory.memory_log import SCHEMA
from gateway.memory.recall import Recall
from gateway.memory.remem_client import NoRemem
from tests.calls.aftermath import CALLER, START, SUMMARY, a_session


@pytest.fixture
async def store(ground):
    async with ground.opened(schema=[*SCHEMA, *CALLS_SCHEMA]) as opened:
        yield opened


async def a_call(store, *facts: CallerFact, day: int = 0, name: str = "", known: str = "", **summary):
    """A finished call with its document and facts, on a day after START."""
    at = START + timedelta(days=day)
    session = replace(a_session(), id=f"voice-session:{day}", started_at=at, ended_at=at, known_name=known)
    written = replace(SUMMARY, caller_name=name, facts=(), caller_facts=facts, **summary)
    document = await store.create(call_document(session, written, None))
    await FactStore(store).learn(session, facts, at, speakers=[known or name] * 3)
    await CallsTable(store).write(session, document_id=document.id, summary_by="extractive")
    return session


def fact(text: str, **fields) -> CallerFact:
    return CallerFact(text, "identity", 0.9, (1,), **fields)


async def documents(store) -> list[str]:
    query = "SELECT content FROM documents WHERE source = 'voice-call' ORDER BY created_at"
    return [content for (content,) in await store.fetch(query)]


async def loaded(store) -> MemoryLoader:
    loader = MemoryLoader(Recall(store, NoRemem(), 3), agent="maya", caller=CALLER, limit=3)
    await loader.by(5)
    return loader


async def test_document_lists_lasting_facts(store):
    await a_call(store, fact("Lives in Bath"), fact("Has a dog"))
    [content] = await documents(store)
    assert "### Important Facts\n- Lives in Bath\n- Has a dog\n" in content


async def test_replaced_fact_leaves_the_document(store):
    await a_call(store, fact("Lives in Bath"), fact("Has a dog"))
    await a_call(store, fact("Lives in York"), day=1)
    first, second = await documents(store)
    assert "### Important Facts\n- Has a dog\n\n###" in first and "- Lives in York" in second


async def test_fact_corrected_within_a_call_is_listed_once(store):
    await a_call(store, fact("Lives in Bath"), fact("Lives in York"))
    [content] = await documents(store)
    assert "Bath" not in content and "- Lives in York" in content


async def test_deleted_fact_leaves_the_document(store):
    await a_call(store, fact("Lives in Bath"))
    facts = FactStore(store)
    [known] = await facts.known("maya", CALLER, 9)
    await facts.correct("maya", CALLER, known.id, "", by="by-hand:1", now=START)
    [content] = await documents(store)
    assert "Bath" not in content


async def test_notes_of_earlier_calls_have_no_replaced_value(store):
    notes = {"context": "Caller: We live at 22 Canal Street. The box comes on Monday.", "decisions": ()}
    await a_call(store, fact("Lives at 22 Canal Street"), **notes)
    notes["context"] = "Caller: We moved from 22 Canal Street to 5 Orchard Mews."
    await a_call(store, fact("Lives at 5 Orchard Mews"), day=1, **notes)
    later, first = (await loaded(store)).calls
    assert first.context == "The box comes on Monday."
    assert later.context == "Caller: We moved from 22 Canal Street to 5 Orchard Mews."
    assert first.facts == later.facts == ()  # they are known as facts


@pytest.mark.parametrize("new", ["Jon Reid", "John Obrecht"])
async def test_corrected_name_is_the_callers_name(store, new: str):
    await a_call(store, fact("Is called John Reed"), fact("Has a dog"), name="John Reed")
    corrected = fact(f"Is called {new}", relation="replaces", known="Is called John Reed")
    await a_call(store, corrected, day=1, name=new, known="John Reed")
    await a_call(store, fact("Has a cat"), day=2, name="", known=new)
    memory = await loaded(store)
    assert memory.person == new
    assert {one.text for one in memory.facts} == {f"Is called {new}", "Has a dog", "Has a cat"}
    assert [call.caller_name for call in memory.calls] == ["", new, new]
    assert f"**Caller:** {new} (" in (await documents(store))[1]
    assert await CallsTable(store).names_of_callers([CALLER]) == {CALLER: new}


async def test_names_corrected_in_earlier_versions_count(store):
    await a_call(store, fact("Is called John Reed"), name="John Reed")
    await a_call(store, fact("Is called Jon Reid"), day=1, name="John Reed", known="John Reed")
    await store.change("DELETE FROM corrected_names")
    assert (await loaded(store)).person == "Jon Reid"
    facts = FactStore(store)
    assert await facts.find_corrected_names() == 1
    assert await CallsTable(store).names_of_callers([CALLER]) == {CALLER: "Jon Reid"}
    assert await facts.find_corrected_names() == 0


async def test_operators_correction_counts_in_prompts(store):
    await a_call(store, fact("Is called Anna Reese"), name="Anna Reese")
    facts = FactStore(store)
    [known] = await facts.known("maya", CALLER, 9)
    now = START + timedelta(days=5)
    await facts.correct("maya", CALLER, known.id, "Is called Ana Ruiz", by="by-hand:1", now=now)
    assert (await loaded(store)).person == "Ana Ruiz"
