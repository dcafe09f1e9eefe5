"""Whole calls whose memory is in a real PostgreSQL server: shared by nodes, and killed in mid-call."""

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.app import Timeouts
from tests.postgres_server import PostgresServer
from tests.stage import CALLER, Stage, make_carrier, staged, until_it

FACT = "My name is Ana Quibble."
STOPS_AT_ONCE = Timeouts(finalization_close=0.5)


async def one_call(stage: Stage, text: str, caller: str = CALLER) -> str:
    """A call in which the caller says this. Returns the prompt of its agent."""
    call, conversation = await stage.dial(caller)
    await conversation.user_says(text)
    await call.hang_up()
    return str(conversation.prompt)


@contextlib.asynccontextmanager
async def node(
    folder: Path, url: str, *, hurries: bool = False, timeouts: Timeouts = Timeouts()
) -> AsyncIterator[Stage]:
    async with staged(folder, make_carrier("twilio"), hurries=hurries, timeouts=timeouts, DATABASE_URL=url) as stage:
        yield stage


async def shows(stage: Stage, **expected: object) -> bool:
    state = (await stage.http.get("/health")).json()
    return expected.items() <= state.items()


async def test_what_one_node_learns_another_knows(tmp_path: Path, postgres: PostgresServer) -> None:
    url = postgres.fresh()
    async with node(tmp_path / "a", url) as first, node(tmp_path / "b", url) as second:
        await one_call(first, FACT)
        await first.idle()
        assert "Ana Quibble" in await one_call(second, "Hello again.")
        assert "Ana Quibble" not in await one_call(second, "Hello.", "+12025550188")
        assert await shows(second, store="postgresql", database="ok")
    local = (tmp_path / "a" / "data" / "gateway.db").read_bytes()
    assert b"<caller_facts>" not in local and b"caller-fact" not in local.replace(b"'caller-fact'", b"")


async def test_database_killed_in_mid_call_loses_nothing(tmp_path: Path, mortal_postgres: PostgresServer) -> None:
    server = mortal_postgres
    async with node(tmp_path, server.fresh()) as stage:
        call, conversation = await stage.dial()
        await asyncio.to_thread(server.kill)
        await conversation.user_says(FACT)
        await call.hang_up()
        # While it is away new callers are answered as usual, by an agent without memory.
        assert "Ana Quibble" not in await one_call(stage, "Hello.", "+12025550188")

        await until_it(lambda: shows(stage, database="away", endings=2))
        assert "voice_gateway_database_away 1.0" in (await stage.http.get("/metrics")).text
        await asyncio.to_thread(server.start)
        await until_it(lambda: shows(stage, database="ok", endings=0))
        document = await stage.document()
        assert "Ana Quibble" in document["content"]
        assert "Ana Quibble" in await one_call(stage, "Hello again.")


async def test_database_that_says_nothing_holds_up_no_call(tmp_path: Path) -> None:
    """It takes connections and never answers, as behind a broken network."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with node(
            tmp_path, f"postgresql://127.0.0.1:{silent.getsockname()[1]}/x", hurries=True, timeouts=STOPS_AT_ONCE
        ) as stage:
            asking, _ = await asyncio.to_thread(silent.accept)
            with asking:
                call, conversation = await stage.dial()
                await stage.answer(call, conversation, "Hello.")
                assert await shows(stage, calls=1)


async def test_ending_outlives_gateway_and_database(tmp_path: Path, mortal_postgres: PostgresServer) -> None:
    """The gateway is stopped while the database is away: the next one stores what the call said."""
    server = mortal_postgres
    url = server.fresh()
    async with node(tmp_path, url, timeouts=STOPS_AT_ONCE) as stage:
        call, conversation = await stage.dial()
        await conversation.user_says(FACT)
        await asyncio.to_thread(server.kill)
        await call.hang_up()
        await stage.archive()
    await asyncio.to_thread(server.start)
    async with node(tmp_path, url) as stage:
        assert "Ana Quibble" in (await stage.document())["content"]


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("mysql://me:sesame@127.0.0.1/x", "DATABASE_URL is not an address of PostgreSQL; write it like postgresql://"),
        ("postgresql://me:sesame@127.0.0.1:1/x", "can't reach PostgreSQL, see DATABASE_URL: "),
    ],
)
async def test_wrong_address_is_one_line_at_the_start(tmp_path: Path, url: str, told: str) -> None:
    command = "from gateway.cli.main import main; raise SystemExit(main(['serve', '--port', '0']))"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", command),
        cwd=tmp_path,
        env={"DATABASE_URL": url, "DATA_DIR": str(tmp_path / "data")},
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await process.communicate()
    assert process.returncode == 2
    assert said.decode().startswith(f"gateway: {told}") and said.count(b"\n") == 1 and b"sesame" not in said
