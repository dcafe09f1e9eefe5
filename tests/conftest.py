import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import certifi
import pytest
from hypothesis import settings

from gateway.simulate.virtual_time import VirtualTimeLoop
from tests.forked_runs import ForkedRuns
from tests.memory.stores import Ground, PostgresGround, SqliteGround
from tests.postgres_server import PostgresServer, running_postgres
from tests.stage import Stage, make_carrier, staged

# The same examples in every run; HYPOTHESIS_PROFILE=searching looks for new ones. No deadline: the time of an example
# depends on the machine.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.register_profile("searching", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests marked `virtual_time` run on a clock that jumps."""
    is_virtual = item.get_closest_marker("virtual_time") is not None
    return {"virtual": VirtualTimeLoop} if is_virtual else {"real": asyncio.new_event_loop}


def pytest_addoption(parser: pytest.Parser) -> None:
    # Not `addoption`, which leaves lower-case letters to pytest itself.
    group = parser.getgroup("processes")
    group._addoption("-n", type=int, default=0, metavar="N", help="run the tests in N processes (default: in this one)")


def pytest_configure(config: pytest.Config) -> None:
    """
    Start processes for `-n`, and use a CA bundle with a single certificate.

    A gateway loads the bundle for HTTPS when it starts, which takes half of the CPU of a start. Tests stay on loopback.
    """
    first, end, _ = Path(certifi.where()).read_text().partition("-----END CERTIFICATE-----")
    bundle = Path(tempfile.mkdtemp(prefix="gateway-tests-")) / "ca.pem"
    bundle.write_text(f"{first}{end}\n")
    config.add_cleanup(lambda: shutil.rmtree(bundle.parent))
    os.environ["SSL_CERT_FILE"] = str(bundle)
    if count := config.getoption("-n"):
        config.pluginmanager.register(ForkedRuns(count))


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server per worker. Each test uses its own schema."""
    with running_postgres() as server:
        yield server


@pytest.fixture
def mortal_postgres(postgres: PostgresServer) -> Iterator[PostgresServer]:
    """The same for a test that kills it; it is restarted afterwards."""
    yield postgres
    postgres.kill()
    postgres.start()


@pytest.fixture(params=["sqlite", "postgres"])
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    """Runs the test once for each store."""
    if request.param == "sqlite":
        return SqliteGround(tmp_path / "data" / "gateway.db")
    return PostgresGround(request.getfixturevalue("postgres"))


@pytest.fixture(params=["twilio", "telnyx"])
def carrier_name(request: pytest.FixtureRequest) -> str:
    """Runs the test once for each carrier."""
    name: str = request.param
    return name


@pytest.fixture
async def stage(carrier_name: str, tmp_path: Path) -> AsyncIterator[Stage]:
    """A gateway between a carrier without playback delay and a scripted engine."""
    async with staged(tmp_path, make_carrier(carrier_name)) as stage:
        yield stage


@pytest.fixture
async def held_stage(carrier_name: str, tmp_path: Path) -> AsyncIterator[Stage]:
    """The same, but the test controls how far the phone plays."""
    async with staged(tmp_path, make_carrier(carrier_name, hold_playback=True)) as stage:
        yield stage
