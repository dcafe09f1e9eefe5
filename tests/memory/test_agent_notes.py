from gateway.history.erasure import DataLocations, Eraser, NoSharedData
from gateway.history.stores import Stores, open_local_store
from gateway.memory.agent_notes import CallerNotes
from gateway.memory.pinned_topics import PinnedTopicStore
from gateway.settings import Secret

ANA, BEN = "+12025550101", "+12025550102"


async def test_forgotten_caller_has_no_topics(tmp_path):
    store = await open_local_store(tmp_path)
    pins = PinnedTopicStore(store)
    eraser = Eraser(
        Stores(store, store), DataLocations(tmp_path, tmp_path / "archive"), None, Secret("key"), NoSharedData()
    )
    notes = CallerNotes(store, eraser.erase_caller)
    await notes.remember("Wants tea.", caller=ANA, agent="maya")
    for caller in (ANA, BEN):
        await pins.pin("maya", caller, "Orlando sale")
    assert await notes.forget_caller(caller=ANA, agent="maya") > 0
    assert await pins.topics("maya", ANA) == []
    assert [pin.title for pin in await pins.pinned("maya", BEN)] == ["Orlando sale"]
    assert await notes.search("tea sale", caller=ANA, agent="maya", limit=5) == []
    await store.close()
