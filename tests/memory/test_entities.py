from datetime import timedelta

import pytest

from gateway.errors import DocumentNotFound
from gateway.memory.entities import EntityReader, sentence_facts
from gateway.memory.facts import CallerFact, FactStore
from gateway.memory.memory_log import SCHEMA, Retention
from gateway.memory.stores.documents import NewDocument
from gateway.memory.visible_documents import Namespaces, VisibleDocuments
from tests.calls.aftermath import CALLER, START, a_session

HERE = Namespaces()


@pytest.fixture
async def store(ground):
    async with ground.opened(schema=SCHEMA) as made:
        yield made


def reader(store, *, days=0):
    visible = VisibleDocuments(store, Retention(days), now=lambda: START + timedelta(days=30))
    return EntityReader(visible)


async def learn(store, text, day=0, kind="preference"):
    fact = CallerFact(text, kind, 0.9, (0,))
    await FactStore(store).learn(a_session(started_at=START + timedelta(days=day)), [fact], START)


@pytest.mark.parametrize(
    "text, facts",
    [
        ("Ana prefers mornings.", [("Ana", "preference")]),
        ("Ana Weber decided to stay. She likes it.", [("Ana Weber", "decision")]),
        ("- Acme Corp ordered two kettles\n- **Ben** lives in Leeds", [("Acme Corp", "episode"), ("Ben", "fact")]),
        ("Ana's dog is old.", [("Ana", "fact")]),
        ("The kettle is blue. It works. Yesterday we met. On Friday Ana comes.", []),
        ("## Heading\nno names here, 42 is a number", []),
    ],
)
def test_sentence_about_a_name_is_a_fact(text, facts):
    assert [(fact.entities[0], fact.type) for fact in sentence_facts(text)] == facts


async def test_caller_is_an_entity(store):
    await learn(store, "Prefers morning appointments")
    await learn(store, "Prefers evening appointments", day=1)
    await learn(store, "Will bring the keys", day=2, kind="commitment")
    [entity], total = await reader(store).entities(HERE, limit=10)
    assert (entity.name, entity.type, entity.fact_count, total) == (CALLER, "person", 2, 1)
    _, facts = await reader(store).entity(entity.id, HERE)
    assert {(fact.type, fact.content) for fact in facts} == {
        ("decision", "Will bring the keys"),
        ("preference", "Prefers evening appointments"),
    }
    _, all_facts = await reader(store).entity(entity.id, HERE, latest_only=False)
    assert len(all_facts) == 3
    [replacing] = [fact for fact in facts if fact.type == "preference"]
    assert replacing.instead_of == "Prefers morning appointments"


async def test_caller_has_the_name_from_the_calls(store):
    await learn(store, "Likes tea")
    content = f"## Voice Call Summary\n**Session:** voice-session:1\n**Caller:** Ana ({CALLER})\n**Agent:** maya\n"
    tags = ("voice-session", "agent:maya", f"caller:{CALLER}")
    await store.create(NewDocument("Voice Call Summary", content, "voice-call", tags, START))
    [entity], _ = await reader(store).entities(HERE, limit=10)
    assert (entity.name, entity.mention_count) == ("Ana", 1)
    [fact] = await reader(store).facts("tea", HERE, entity="ana", limit=10)
    assert (fact.content, fact.entities) == ("Likes tea", ("Ana",))


async def test_expired_facts_are_left_out(store):
    await learn(store, "Likes tea")
    [entity], _ = await reader(store).entities(HERE, limit=10)
    assert (await reader(store, days=10).entity(entity.id, HERE))[1] == []


async def test_other_namespaces_are_left_out(store):
    await learn(store, "Likes tea")
    await store.create(NewDocument("", "Ben likes tea.", tags=("namespace:work",)))
    work = Namespaces(("work",))
    [ben], total = await reader(store).entities(work, limit=10)
    assert (ben.name, total) == ("Ben", 1)
    assert [fact.content for fact in await reader(store).facts("tea", work, limit=10)] == ["Ben likes tea."]
    assert [fact.content for fact in await reader(store).facts("tea", HERE, limit=10)] == ["Likes tea"]
    assert (await reader(store).entities(Namespaces(("*",)), limit=1))[1] == 2
    with pytest.raises(DocumentNotFound):
        await reader(store).entity(ben.id, HERE)
