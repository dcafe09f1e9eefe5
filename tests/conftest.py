import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.memory.stores import Ground, PostgresGround, SqliteGround
from tests.postgres_server import PostgresServer, running_postgres
from tests.stage import Stage, make_carrier, staged
from tests.virtual_time import VirtualTimeLoop

# The same examples every time: whether a change passes is no matter of luck. HYPOTHESIS_PROFILE=searching looks for new
# ones. How long one takes says something of the machine, not of the code.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.register_profile("searching", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests marked `virtual_time` run on a clock that jumps."""
    is_virtual = item.get_closest_marker("virtual_time") is not None
    return {"virtual": VirtualTimeLoop} if is_virtual else {"real": asyncio.new_event_loop}


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for all tests; each has a schema of its own there."""
    with running_postgres() as server:
        yield server


@pytest.fixture
def mortal_postgres(postgres: PostgresServer) -> Iterator[PostgresServer]:
    """The same, for a test that kills it; the next one finds it alive."""
    yield postgres
    postgres.kill()
    postgres.start()


@pytest.fixture(params=["sqlite", "postgres"])
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    """Every test that asks for it runs once for each store."""
    if request.param == "sqlite":
        return SqliteGround(tmp_path / "data" / "gateway.db")
    return PostgresGround(request.getfixturevalue("postgres"))


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
