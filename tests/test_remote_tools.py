"""Tools of other programs in whole calls: the engine calls them, a real server answers. No Python file of the user."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.app import Timeouts
from gateway.tools.remote import RemoteTimeouts
from tests.fakes.tool_servers import TOKEN, FakeMcpServer, FakeToolServer, text
from tests.stage import CALLER, Stage, make_carrier, staged, until_it

CONFIGURATION = """
[agents.maya]
prompt = "maya.md"

[[agents.maya.tools]]
mcp = "{mcp}"
api_key_env = "CRM_TOKEN"
prefix = "crm_"
tools = ["find_order"]
send_caller = true

[[agents.maya.tools]]
http = "POST {http}/orders/{{order}}/notes"
name = "add_note"
description = "Add a note to an order."
parameters = {{ order = "its number", note = "what to write", caller = {{ from = "caller" }} }}
headers = {{ X-Api-Key = "env:SHOP_KEY" }}
timeout = 0.2
"""
SHOP_KEY = "shop-key-77c2"
FOUND = {"name": "crm_find_order", "arguments": '{"order": "A-17"}'}
NOTED = {"name": "add_note", "arguments": '{"order": "A-17", "note": "leave it at the door"}'}


@pytest.fixture
async def crm() -> AsyncIterator[FakeMcpServer]:
    async with FakeMcpServer(token=TOKEN).running() as server:
        yield server


@pytest.fixture
async def shop() -> AsyncIterator[FakeToolServer]:
    async with FakeToolServer().running() as server:
        yield server


@pytest.fixture
async def stage(tmp_path: Path, crm: FakeMcpServer, shop: FakeToolServer) -> AsyncIterator[Stage]:
    (tmp_path / "maya.md").write_text("You are Maya.")
    (tmp_path / "gateway.toml").write_text(CONFIGURATION.format(mcp=crm.url, http=shop.url))
    timeouts = replace(Timeouts(), remote_tools=RemoteTimeouts(first_pause=0.01, longest_pause=0.05))
    keys = {"CRM_TOKEN": TOKEN, "SHOP_KEY": SHOP_KEY}
    async with staged(tmp_path, make_carrier("twilio"), timeouts=timeouts, **keys) as made:
        await until_it(lambda: _tools_are(made, "ok"))
        yield made


async def _tools_are(stage: Stage, state: str) -> bool:
    return bool((await stage.http.get("/health")).json()["tools"] == state)


async def _functions(conversation: Any) -> set[str]:
    settings = await conversation.settings_received()
    return {function["name"] for function in settings["agent"]["think"]["functions"]}


async def test_agent_uses_tools_of_both_kinds(
    stage: Stage, crm: FakeMcpServer, shop: FakeToolServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "gateway")
    _, conversation = await stage.dial()
    assert {"crm_find_order", "add_note"} <= await _functions(conversation)
    assert "crm_cancel_order" not in await _functions(conversation)  # not in the allow-list
    assert await conversation.call_functions([FOUND]) == ["Order A-17 is on its way."]
    assert await conversation.call_functions([NOTED]) == ['{"status":"on its way"}']
    [(name, arguments, meta)] = crm.calls
    assert (name, arguments) == ("find_order", {"order": "A-17"})
    assert meta["voice-gateway/caller"] == CALLER
    assert meta["voice-gateway/session"].startswith("voice-session:")
    [(_, path, body, headers)] = shop.requests
    assert (path, body) == ("/orders/A-17/notes", {"note": "leave it at the door", "caller": CALLER})
    assert headers["x-api-key"] == SHOP_KEY
    logged = caplog.text + "".join(str(vars(line)) for line in caplog.records)
    for secret in (TOKEN, SHOP_KEY, "leave it at the door", "A-17", CALLER):
        assert secret not in logged


async def test_failures_are_explained_to_the_agent(
    stage: Stage, crm: FakeMcpServer, shop: FakeToolServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(arguments: dict[str, Any]) -> Any:
        return text("no order A-17", is_error=True)

    crm.results["find_order"] = refuse
    shop.hold = asyncio.Event()
    _, conversation = await stage.dial()

    async def problem(call: dict[str, str]) -> str:
        [answer] = await conversation.call_functions([call])
        return str(json.loads(answer)["error"])

    assert await problem(FOUND) == "crm_find_order failed: no order A-17"
    assert await problem({**FOUND, "arguments": "{}"}) == "wrong arguments for crm_find_order: order: Field required"
    assert (await problem(NOTED)).startswith("add_note took too long")
    await asyncio.wait_for(shop.abandoned.wait(), 10)
    failed = [line for line in caplog.records if line.message == "function failed"]
    assert [(vars(line)["function"], vars(line)["error"]) for line in failed] == [("crm_find_order", "tool error")]
    assert "A-17" not in "".join(str(vars(line)) for line in caplog.records if line.name.startswith("gateway"))


async def test_long_result_is_cut(stage: Stage, crm: FakeMcpServer) -> None:
    async def talk(arguments: dict[str, Any]) -> Any:
        return text("x" * 50_000)

    crm.results["find_order"] = talk
    _, conversation = await stage.dial()
    assert await conversation.call_functions([FOUND]) == ["x" * 8000 + " … (cut off here)"]


async def test_uncertain_caller_gets_no_tool_for_the_number(stage: Stage, shop: FakeToolServer) -> None:
    """Without attestation the number may be forged, and the tool would act for another person."""
    _, conversation = await stage.dial("+12025550188", StirVerstat="TN-Validation-Passed-C")
    [answer] = await conversation.call_functions([NOTED])
    assert "not certain who the caller is" in json.loads(answer)["error"]
    assert shop.requests == []
