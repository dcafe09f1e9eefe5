"""Trust levels in whole calls: how much of a memory the agent gets. Both carriers."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.history.calls_table import CallsTable
from gateway.history.stores import open_local_store
from tests.stage import Stage, make_carrier, staged

CONFIGURATION = """
[agents.maya]
prompt = "maya.md"

[agents.maya.memory.trust]
attested = "everything"
unattested = "name"
failed = "none"
with_pin = "everything"
pin = "4711"
"""


@pytest.fixture
async def stage(carrier_name: str, tmp_path: Path) -> AsyncIterator[Stage]:
    (tmp_path / "maya.md").write_text("You are Maya, talking to {{caller}}.\n{{memory}}")
    (tmp_path / "gateway.toml").write_text(CONFIGURATION)
    async with staged(tmp_path, make_carrier(carrier_name)) as made:
        yield made


def _vouched(stage: Stage, level: str, *, passed: bool = True) -> dict[str, Any]:
    """How the carrier says who vouches for the number."""
    if stage.carrier.name == "twilio":
        return {"StirVerstat": f"TN-Validation-{'Passed' if passed else 'Failed'}-{level}"}
    return {"shaken_stir_attestation": level, "shaken_stir_validated": passed}


async def _remember(stage: Stage) -> None:
    call, conversation = await stage.dial(**_vouched(stage, "A"))
    await conversation.user_says("My name is Ana, and my red bike has a flat tyre.")
    await call.hang_up()
    await stage.document()


async def test_attested_caller_gets_everything(stage: Stage) -> None:
    await _remember(stage)
    _, conversation = await stage.dial(**_vouched(stage, "A"))
    assert "flat tyre" in conversation.prompt


async def test_unattested_caller_is_only_named(stage: Stage) -> None:
    await _remember(stage)
    _, conversation = await stage.dial(**_vouched(stage, "C"))
    assert "talking to Ana" in conversation.prompt and "<caller_name>Ana</caller_name>" in conversation.prompt
    assert "flat tyre" not in conversation.prompt
    [found] = await conversation.call_functions([{"name": "search_memory", "arguments": '{"query": "tyre"}'}])
    assert "flat tyre" not in found


async def test_name_is_known_however_long_ago_it_was_given(stage: Stage, tmp_path: Path) -> None:
    """Also in a prompt whose only placeholder is the memory, and in the receipt."""
    await _remember(stage)
    for _ in range(4):
        call, conversation = await stage.dial(**_vouched(stage, "A"))
        await conversation.user_says("Is my bike ready?")
        await call.hang_up()
        await stage.idle()
    call, conversation = await stage.dial(**_vouched(stage, "C"))
    assert "<caller_name>Ana</caller_name>" in conversation.prompt and "bike" not in conversation.prompt
    await conversation.user_says("Hello.")
    await call.hang_up()
    await stage.idle()
    store = await open_local_store(tmp_path / "data")
    try:
        [last, *_] = await CallsTable(store).newest()
    finally:
        await store.close()
    [item] = last.receipt["items"]
    assert (item["kind"], item["text"], item["tier"], last.receipt["tier"]) == ("name", "Ana", "name", "name")
    assert last.receipt["block"] in conversation.prompt


async def test_forged_number_gets_nothing(stage: Stage) -> None:
    await _remember(stage)
    _, conversation = await stage.dial(**_vouched(stage, "A", passed=False))
    assert "Ana" not in conversation.prompt and "flat tyre" not in conversation.prompt


async def test_pin_by_keypad_opens_memory(stage: Stage) -> None:
    await _remember(stage)
    call, conversation = await stage.dial(**_vouched(stage, "C"))
    await call.press("4711#")
    assert "flat tyre" in (await conversation.message("UpdatePrompt"))["prompt"]


async def test_spoken_pin_opens_memory_and_is_not_kept(stage: Stage) -> None:
    await _remember(stage)
    call, conversation = await stage.dial(**_vouched(stage, "C"))
    await conversation.user_says("My PIN is four seven one one.")
    assert "flat tyre" in (await conversation.message("UpdatePrompt"))["prompt"]
    await call.hang_up()
    await stage.idle()
    assert not any("four seven one one" in text or "4711" in text for text in stage.archives())


async def test_wrong_pin_opens_nothing(stage: Stage) -> None:
    await _remember(stage)
    call, conversation = await stage.dial(**_vouched(stage, "C"))
    await call.press("4712#")
    await conversation.user_says("What did we talk about?")
    assert not conversation.received("UpdatePrompt")
