"""Callers erased during a call, on both carriers; and from the files of Redis."""

import asyncio
from pathlib import Path

import pytest

from gateway.cli.main import main
from gateway.history.erasure import DataLocations, Eraser, NoSharedData, holding
from gateway.history.stores import Stores, open_local_store
from gateway.settings import Secret
from tests.redis_server import files_holding, running_redis
from tests.stage import ADMIN, CALLER, Stage, make_carrier, staged, until_it


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


async def test_redis_files_hold_nothing_of_an_erased_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis appends everything to a file: the turns of the call, its caller, its events, its finalization job."""

    def in_files(word: str) -> list[str]:
        return files_holding(tmp_path / "redis", word)

    async def gone() -> bool:
        return not in_files("Xanthippe") and not in_files(CALLER)

    async with running_redis(tmp_path / "redis") as redis:
        places = {"DATA_DIR": "data", "VOICE_SESSION_ARCHIVE_DIR": "archive"}
        environ = {name: str(tmp_path / folder) for name, folder in places.items()} | {"REDIS_URL": redis.url}
        async with staged(tmp_path, make_carrier("twilio"), **environ) as stage:
            call, conversation = await stage.dial()
            await conversation.user_says("My name is Xanthippe.")
            await call.hang_up()
            await stage.idle()
            assert in_files("Xanthippe") and in_files(CALLER)
            monkeypatch.chdir(tmp_path)
            for name, value in {**environ, "GATEWAY_ADMIN_TOKEN": ADMIN}.items():
                monkeypatch.setenv(name, value)
            assert await asyncio.to_thread(main, ["memory", "forget", CALLER, "--yes"]) == 0
            await until_it(gone)  # Redis deletes the old file in the background
