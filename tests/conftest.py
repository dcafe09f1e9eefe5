import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import certifi
import pytest
from hypothesis import settings

from tests.memory.stores import Ground, PostgresGround, SqliteGround
from tests.postgres_server import PostgresServer, running_postgres
from tests.stage import Stage, make_carrier, staged
from tests.virtual_time import VirtualTimeLoop

# The same examples in every run; HYPOTHESIS_PROFILE=searching looks for new ones. No deadline: the time of an example
# depends on the machine.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.register_profile("searching", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests marked `virtual_time` run on a clock that jumps."""
    is_virtual = item.get_closest_marker("virtual_time") is not None
    return {"virtual": VirtualTimeLoop} if is_virtual else {"real": asyncio.new_event_loop}


def pytest_configure(config: pytest.Config) -> None:
    """
    Use a CA bundle with a single certificate.

    A gateway loads the bundle for HTTPS when it starts, which takes half of the CPU of a start. Tests stay on loopback.
    """
    first, end, _ = Path(certifi.where()).read_text().partition("-----END CERTIFICATE-----")
    bundle = Path(tempfile.mkdtemp(prefix="gateway-tests-")) / "ca.pem"
    bundle.write_text(f"{first}{end}\n")
    config.add_cleanup(lambda: shutil.rmtree(bundle.parent))
    os.environ["SSL_CERT_FILE"] = str(bundle)


SEVERAL_PROCESSES = ("test_cluster.py", "test_workers.py")
"""Tests that start several gateways each."""


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """
    Distribute tests one by one (`--dist loadgroup`), but keep those that share a fixture on one worker.

    Session fixtures are shared too: a server or a model that only a few tests need is started on one worker. PostgreSQL
    is the exception: it has so many tests that each worker runs its own server.

    Tests that start several processes are spread among the others: side by side they would wait for each other, and
    at the end most workers would have nothing left to do.
    """
    if hasattr(config, "workerinput"):
        heavy = [item for item in items if item.path.name in SEVERAL_PROCESSES]
        others = [item for item in items if item.path.name not in SEVERAL_PROCESSES]
        distance = len(others) * 2 // 3 // max(len(heavy), 1)
        for number, item in enumerate(heavy):
            others.insert(number * (distance + 1), item)
        items[:] = others
    for item in items:
        if group := _fixture_group(item):
            item.add_marker(pytest.mark.xdist_group(group))


def _fixture_group(item: pytest.Item) -> str:
    definitions = [found[-1] for found in item._fixtureinfo.name2fixturedefs.values()]
    if any(definition.scope == "module" for definition in definitions):
        return item.nodeid.partition("::")[0]
    own = (definition for definition in definitions if definition.func.__module__.startswith("tests."))
    return next((one.argname for one in own if one.scope == "session" and one.argname != "postgres"), "")


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
