"""Several people who share one phone number have separate memories. Whole calls, both carriers."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.stage import Stage, make_carrier, staged

SILENCE = 0.4


@pytest.fixture
async def stage(carrier_name: str, tmp_path: Path) -> AsyncIterator[Stage]:
    (tmp_path / "maya.md").write_text("You are Maya, talking to {{caller}}.\n{{memory}}")
    (tmp_path / "gateway.toml").write_text(
        f'[agents.maya]\nprompt = "maya.md"\n[agents.maya.memory.repeat_caller]\nnew_person_after = {SILENCE}\n'
    )
    async with staged(tmp_path, make_carrier(carrier_name)) as made:
        yield made


async def _call(stage: Stage, *turns: str) -> None:
    call, conversation = await stage.dial()
    for text in turns:
        await conversation.user_says(text)
    await call.hang_up()
    await stage.idle()


async def _ana_and_ben(stage: Stage) -> None:
    await _call(stage, "My name is Ana Lopez.", "I prefer window seats.")
    await _call(stage, "My name is Ben Okri.", "I prefer herring for breakfast.")


async def _searched(conversation: Any) -> str:
    asked = [{"name": "search_memory", "arguments": '{"query": "prefers seats breakfast"}'}]
    [found] = await conversation.call_functions(asked)
    return str(found)


async def test_new_name_at_the_beginning_locks_memory(stage: Stage) -> None:
    await _call(stage, "My name is Ana Lopez.", "I prefer window seats.")
    _, conversation = await stage.dial()
    assert "window seats" in conversation.prompt
    await conversation.user_says("Hello, my name is Ben Okri.")
    await conversation.message("UpdateThink")
    assert "window seats" not in conversation.prompt and "Ana" not in conversation.prompt
    assert "window seats" not in await _searched(conversation)


async def test_known_name_changes_nothing(stage: Stage) -> None:
    await _call(stage, "My name is Ana Lopez.", "I prefer window seats.")
    _, conversation = await stage.dial()
    await conversation.user_says("Hello, my name is Ana.")
    assert "window seats" in await _searched(conversation)
    assert not conversation.received("UpdateThink")


async def test_memory_is_closed_before_a_name_is_given(stage: Stage) -> None:
    await _ana_and_ben(stage)
    _, conversation = await stage.dial()
    for word in ("window seats", "herring", "Ana", "Ben"):
        assert word not in conversation.prompt
    found = await _searched(conversation)
    assert "window seats" not in found and "herring" not in found


@pytest.mark.parametrize(
    ("name", "own", "others"), [("Ana Lopez", "window seats", "herring"), ("Ben Okri", "herring", "window seats")]
)
async def test_name_opens_its_own_memory(stage: Stage, name: str, own: str, others: str) -> None:
    await _ana_and_ben(stage)
    _, conversation = await stage.dial()
    await conversation.user_says(f"My name is {name}.")
    await conversation.message("UpdateThink")
    assert own in conversation.prompt and others not in conversation.prompt
    found = await _searched(conversation)
    assert own in found and others not in found


async def test_new_name_after_a_long_silence_locks_memory(stage: Stage) -> None:
    await _call(stage, "My name is Ana Lopez.", "I prefer window seats.")
    _, conversation = await stage.dial()
    await conversation.user_says("My name is Ana Lopez.")
    await asyncio.sleep(SILENCE * 1.5)
    await conversation.user_says("Hi, my name is Ben Okri.")
    await conversation.message("UpdateThink")
    assert "window seats" not in conversation.prompt
    await asyncio.sleep(SILENCE * 1.5)
    await conversation.user_says("My name is Ana Lopez.")
    assert "window seats" not in await _searched(conversation)
    assert "window seats" not in conversation.prompt
