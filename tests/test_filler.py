"""What a caller hears while the agent thinks, in whole calls. Both carriers."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.audio import bundled_sound
from tests.stage import Stage, make_carrier, staged

PHRASE = "Let me see."


@pytest.fixture
async def stage(request: pytest.FixtureRequest, carrier_name: str, tmp_path: Path) -> AsyncIterator[Stage]:
    (tmp_path / "maya.md").write_text("You are Maya.")
    (tmp_path / "gateway.toml").write_text(f'[agents.maya]\nprompt = "maya.md"\nfiller = {request.param}\n')
    async with staged(tmp_path, make_carrier(carrier_name)) as made:
        yield made


typing = pytest.mark.parametrize("stage", ['{ after = 0.1, sound = "typing" }'], indirect=True)
phrases = pytest.mark.parametrize("stage", [f'{{ after = 0.1, say = ["{PHRASE}"] }}'], indirect=True)


async def _caller_waits(stage: Stage) -> tuple[Any, Any]:
    call, conversation = await stage.dial()
    await stage.played(call, conversation)
    await conversation.user_says("Is there a table?")
    return call, conversation


@typing
async def test_typing_is_heard_until_the_agent_speaks(stage: Stage) -> None:
    call, conversation = await _caller_waits(stage)
    taps = bundled_sound("typing")[:1600]
    await call.until(lambda: taps in bytes(call.heard_bytes))
    clears = call.clears
    await stage.answer(call, conversation, "Yes, there is.")
    assert call.clears == clears + 1
    await call.hang_up()
    assert "CALLER: Is there a table?\nAGENT: Yes, there is.\n" in await stage.archive()


@typing
async def test_typing_stops_when_the_caller_speaks(stage: Stage) -> None:
    call, conversation = await _caller_waits(stage)
    taps = bundled_sound("typing")[:1600]
    await call.until(lambda: taps in bytes(call.heard_bytes))
    clears = call.clears
    await conversation.user_starts_speaking()
    await call.until(lambda: call.clears > clears)
    await conversation.end_turn("Hello?")
    await call.hang_up()
    assert (await stage.archive()).endswith("CALLER: Is there a table?\nCALLER: Hello?\n")


@phrases
async def test_phrase_is_said_and_not_written_down(stage: Stage) -> None:
    call, conversation = await _caller_waits(stage)
    assert (await conversation.message("InjectAgentMessage"))["message"] == PHRASE
    await stage.played(call, conversation)
    await stage.answer(call, conversation, "Yes, there is.")
    await call.hang_up()
    assert "CALLER: Is there a table?\nAGENT: Yes, there is.\n" in await stage.archive()
