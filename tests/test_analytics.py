"""Repeat callers, counted for agents that want it. Both carriers."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.stage import CALLER, Stage, make_carrier, staged

FUNCTIONS = '''
from gateway import Conversation


def pick(conv: Conversation) -> str:
    """Note a cheese."""
    conv.state["cheese"] = "brie"
    return "noted"
'''


@pytest.fixture
def agent(request: pytest.FixtureRequest, carrier_name: str) -> str:
    """One for each test: what is counted is counted for the whole process."""
    return re.sub(r"[^a-z]", "-", f"{request.node.name}-{carrier_name}")[:60].strip("-")


@pytest.fixture
def enabled() -> bool:
    return True


@pytest.fixture
async def stage(carrier_name: str, tmp_path: Path, agent: str, enabled: bool) -> AsyncIterator[Stage]:
    (tmp_path / "p.md").write_text("You answer the phone.\n{{memory}}")
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    (tmp_path / "gateway.toml").write_text(
        f'[agents.{agent}]\nprompt = "p.md"\nfunctions = "functions.py"\n'
        f'[agents.{agent}.memory.repeat_caller]\nanalytics_enabled = {str(enabled).lower()}\nstate_keys = ["cheese"]\n'
    )
    async with staged(tmp_path, make_carrier(carrier_name)) as made:
        yield made


async def _call(stage: Stage) -> None:
    call, conversation = await stage.dial()
    await conversation.user_says("I prefer window seats.")
    await conversation.call_functions(["pick"])
    await call.hang_up()
    await stage.idle()


async def _counted(stage: Stage, agent: str) -> dict[str, float]:
    """What /metrics has of an agent."""
    text = (await stage.http.get("/metrics")).text
    assert CALLER not in text
    lines = [line.removeprefix("voice_gateway_") for line in text.splitlines() if f'agent="{agent}"' in line]
    return {
        name.replace(f'agent="{agent}"', "").replace(",", ""): float(value) for name, value in map(str.split, lines)
    }


async def test_returning_caller_is_counted(stage: Stage, agent: str) -> None:
    await _call(stage)
    await _call(stage)
    counted = await _counted(stage, agent)
    assert counted['repeat_callers_total{who="first-time"}'] == 1
    assert counted['repeat_callers_total{who="returning"}'] == 1
    assert counted['state_keys_filled_total{key="cheese"}'] == 2
    assert counted["recall_used_total{}"] == 1
    assert counted["days_between_calls_count{}"] == 1
    assert counted['days_between_calls_bucket{le="0.04"}'] == 1


@pytest.mark.parametrize("enabled", [False])
async def test_nothing_is_counted_unasked(stage: Stage, agent: str) -> None:
    await _call(stage)
    assert await _counted(stage, agent) == {}
