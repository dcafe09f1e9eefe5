"""Facts in a remote store without tags: they arrive, stay with their caller, and can be reverted."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from gateway.history.calls_table import CallRowFilter, CallsTable
from gateway.history.erasure import DataLocations, Eraser, NoSharedData
from gateway.history.stores import Stores, open_local_store
from gateway.memory.remem_client import RememClient
from gateway.settings import Secret
from tests.fakes.remem import FakeRemem
from tests.stage import ADMIN, CALLER, Stage, make_carrier, patient_client, running_gateway, staged, until

OTHER_CALLER, OTHER_LINE = "+12025550188", "+12025550101"
AGENTS = f'[agents.maya]\nprompt = "p.md"\n[agents.ben]\nprompt = "p.md"\nnumbers = ["{OTHER_LINE}"]\n'


@pytest.fixture
async def remem() -> AsyncIterator[FakeRemem]:
    async with FakeRemem(face="current") as made:
        yield made


@pytest.fixture
async def stage(carrier_name: str, tmp_path: Path, remem: FakeRemem) -> AsyncIterator[Stage]:
    async with _gateway(carrier_name, tmp_path, remem) as made:
        yield made


def _furnish(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "p.md").write_text("You answer the phone.\n{{memory}}")
    (folder / "gateway.toml").write_text(AGENTS)


@contextlib.asynccontextmanager
async def _gateway(carrier_name: str, folder: Path, remem: FakeRemem) -> AsyncIterator[Stage]:
    _furnish(folder)
    keys = {"REMEM_API_URL": remem.url, "REMEM_API_KEY": remem.api_key}
    async with staged(folder, make_carrier(carrier_name), **keys) as made:
        yield made


async def _call(stage: Stage, *turns: str, **whose: str) -> str:
    call, conversation = await stage.dial(**whose)
    for text in turns:
        await conversation.user_says(text)
    await call.hang_up()
    await stage.idle()
    prompt: str = conversation.prompt
    return prompt


async def _taught(stage: Stage, remem: FakeRemem) -> None:
    await _call(stage, "My name is Ana Lopez. I prefer window seats.")
    await until(lambda: remem.documents)


def _contents(remem: FakeRemem) -> str:
    return "\n".join(document.content for document in remem.documents.values())


async def test_fact_is_in_the_document_there(stage: Stage, remem: FakeRemem) -> None:
    await _taught(stage, remem)
    assert "- Is called Ana Lopez\n- Prefers window seats\n" in _contents(remem)
    assert len(remem.documents) == 1


async def test_another_gateway_knows_only_this_caller(
    stage: Stage, remem: FakeRemem, carrier_name: str, tmp_path: Path
) -> None:
    """Its own store is empty: everything comes from the remote one, which filters nothing."""
    await _taught(stage, remem)
    async with _gateway(carrier_name, tmp_path / "second", remem) as second:
        assert "Prefers window seats" in await _call(second)
        assert "window seats" not in await _call(second, caller=OTHER_CALLER)
        assert "window seats" not in await _call(second, called=OTHER_LINE)


async def _texts(http: httpx.AsyncClient) -> str:
    """All that a gateway's store has."""
    found = (await http.post("/v1/query", json={"text": "voice call summary", "limit": 100})).json()["results"]
    whole = [(await http.get(f"/v1/documents/{result['id']}")).json() for result in found]
    return "\n".join(document["content"] for document in whole)


async def test_revert_and_forget_reach_there(carrier_name: str, tmp_path: Path) -> None:
    """The remote store is another gateway's, which can delete."""
    own, places = tmp_path / "own", DataLocations(tmp_path / "own" / "data", tmp_path / "own" / "archive")
    environ = {"DATA_DIR": str(tmp_path / "data"), "GATEWAY_ADMIN_TOKEN": ADMIN, "MEMORY_VECTORS": "false"}
    async with contextlib.AsyncExitStack() as stack:
        url = await stack.enter_async_context(running_gateway(environ, tmp_path))
        http = await stack.enter_async_context(patient_client(url, headers={"X-API-Key": ADMIN}))
        _furnish(own)
        keys = {"REMEM_API_URL": url, "REMEM_API_KEY": ADMIN}
        stage = await stack.enter_async_context(staged(own, make_carrier(carrier_name), **keys))
        await _call(stage, "I prefer window seats.")
        await _call(stage, "I prefer herring for breakfast.")
        await _call(stage, "I prefer kippers for breakfast.", caller=OTHER_CALLER)
        there = await _texts(http)
        assert all(f"- Prefers {what}" in there for what in ("window seats", "herring", "kippers"))
        store = await open_local_store(places.data_dir)
        stack.push_async_callback(store.close)
        eraser = Eraser(
            Stores(store, store), places, RememClient(url, Secret(ADMIN), http), Secret(ADMIN), NoSharedData()
        )
        newest, _ = await CallsTable(store).newest(CallRowFilter(caller=CALLER))
        await eraser.revert(newest)
        left = await _texts(http)
        assert "herring" not in left and "window seats" in left
        await eraser.erase(await eraser.find(CALLER))
        left = await _texts(http)
        assert "window seats" not in left and "kippers" in left
