"""Personas and notes of a text agent, heard on the phone: one memory for both."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from gateway.history.erasure import DataLocations, holding
from tests.replay.calls import replay_all
from tests.stage import ADMIN, CALLER, PATIENCE, Stage, make_carrier, staged

PERSONA = {
    "action": "create",
    "persona_name": "jordan",
    "memory_type": "identity",
    "content": "Owns the shop on Harbour Street.",
}


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    (tmp_path / "maya.md").write_text("You are Maya.\n{{persona:jordan}}\n{{memory}}")
    (tmp_path / "gateway.toml").write_text('[agents.maya]\nprompt = "maya.md"\n')
    async with staged(tmp_path, make_carrier("twilio"), RECORD_DIR=str(tmp_path / "records")) as made:
        yield made


async def _tool(stage: Stage, name: str, arguments: dict[str, object]) -> dict[str, object]:
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {ADMIN}"}, timeout=PATIENCE) as http,
        Client(streamable_http_client(f"{stage.url}/mcp", http_client=http)) as client,
    ):
        result = await client.call_tool(name, arguments)
        answer: dict[str, object] = json.loads(result.content[0].text)
        return answer


async def test_persona_is_in_the_prompt(stage: Stage, tmp_path: Path) -> None:
    """Also in that of a replay."""
    assert (await _tool(stage, "persona", PERSONA))["success"] is True
    call, conversation = await stage.dial()
    assert "Owns the shop on Harbour Street." in conversation.prompt
    await conversation.user_says("Who owns the shop?")
    await call.hang_up()
    await stage.idle()
    await replay_all(tmp_path / "records")


async def test_note_of_a_text_agent_is_known_on_the_phone(stage: Stage) -> None:
    note = {"content": "Ordered a blue saddle by mail.", "caller": CALLER, "agent": "maya"}
    await _tool(stage, "memory_remember", note)
    _, conversation = await stage.dial()
    assert "Ordered a blue saddle by mail." in conversation.prompt
    asked = [{"name": "search_memory", "arguments": '{"query": "saddle"}'}]
    [answer] = await conversation.call_functions(asked)
    assert "blue saddle" in answer


async def test_forgotten_caller_is_forgotten_everywhere(stage: Stage, tmp_path: Path) -> None:
    call, conversation = await stage.dial()
    await conversation.user_says("My name is Xanthippe Lopez.")
    await call.hang_up()
    await stage.document()
    await stage.idle()
    answer = await _tool(stage, "memory_forget", {"caller": CALLER, "agent": "maya"})
    assert answer["success"] is True and answer["forgotten"]
    assert not holding(["Xanthippe"], DataLocations(tmp_path / "data", tmp_path / "archive"))
    again = await _tool(stage, "memory_forget", {"caller": CALLER, "agent": "maya"})
    assert again == {"success": True, "forgotten": 0}
