"""Callers erased during a call. Both carriers."""

from pathlib import Path

from gateway.history.erasure import DataLocations, Eraser, NoSharedData, holding
from gateway.history.stores import Stores, open_local_store
from gateway.settings import Secret
from tests.stage import ADMIN, CALLER, Stage


async def _forget(folder: Path) -> DataLocations:
    """As another process does it."""
    places = DataLocations(folder / "data", folder / "archive")
    store = await open_local_store(places.data_dir)
    try:
        eraser = Eraser(Stores(store, store), places, None, Secret(ADMIN), NoSharedData())
        await eraser.erase(await eraser.find(CALLER))
    finally:
        await store.close()
    return places


async def test_call_that_goes_on_is_not_remembered(stage: Stage, tmp_path: Path) -> None:
    call, conversation = await stage.dial()
    await conversation.user_says("My name is Xanthippe.")
    places = await _forget(tmp_path)
    await conversation.user_says("I prefer quokkas.")
    await call.hang_up()
    await stage.idle()
    assert await stage.documents() == [] and stage.archives() == []
    assert not holding(["Xanthippe", "quokka"], places)
    _, conversation = await stage.dial()
    assert "Xanthippe" not in conversation.prompt and "quokka" not in conversation.prompt


async def test_next_call_is_remembered_again(stage: Stage, tmp_path: Path) -> None:
    call, conversation = await stage.dial()
    await _forget(tmp_path)
    await call.hang_up()
    call, conversation = await stage.dial()
    await conversation.user_says("My name is Xanthippe.")
    await call.hang_up()
    assert "Xanthippe" in (await stage.document())["content"]
