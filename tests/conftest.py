from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.stage import Stage, make_carrier, staged

# How long one example takes says something of the machine, not of the code.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


@pytest.fixture(params=["twilio", "telnyx"])
def carrier_name(request: pytest.FixtureRequest) -> str:
    """Every test that asks for it runs once for each carrier."""
    name: str = request.param
    return name


@pytest.fixture
async def stage(carrier_name: str, tmp_path: Path) -> AsyncIterator[Stage]:
    """A gateway between a carrier that plays at once and an engine that does what it is told."""
    async with staged(tmp_path, make_carrier(carrier_name)) as stage:
        yield stage


@pytest.fixture
async def held_stage(carrier_name: str, tmp_path: Path) -> AsyncIterator[Stage]:
    """The same, but the phone plays only what the test lets it play."""
    async with staged(tmp_path, make_carrier(carrier_name, hold_playback=True)) as stage:
        yield stage
