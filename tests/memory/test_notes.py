import pytest

from gateway.calls.own_store import open_own_store
from gateway.memory.notes import CallerNotes
from gateway.memory.pins import PinBook
from gateway.memory.state import CallerState

ANA, BEN = "+12025550101", "+12025550102"


@pytest.fixture
async def store(tmp_path):
    store = await open_own_store(tmp_path)
    yield store
    await store.close()


async def test_forgotten_caller_has_no_topics(store):
    pins = PinBook(store)
    notes = CallerNotes(store, CallerState(store), pins)
    await notes.remember("Wants tea.", caller=ANA, agent="maya")
    for caller in (ANA, BEN):
        await pins.pin("maya", caller, "Orlando sale")
    assert await notes.forget_caller(caller=ANA, agent="maya") == 2
    assert await pins.topics("maya", ANA) == []
    assert [pin.title for pin in await pins.pinned("maya", BEN)] == ["Orlando sale"]
    assert await notes.search("tea sale", caller=ANA, agent="maya", limit=5) == []
