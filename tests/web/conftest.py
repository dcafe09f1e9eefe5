"""A gateway with example calls, and a client that is logged in to its dashboard. It requests pages without a socket."""

import asyncio
import atexit
import copy
import functools
import re
import shutil
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.app import create_app
from gateway.history.stores import open_local_store
from gateway.memory.stores.sqlite import SqliteStore
from gateway.session import VoiceSession
from gateway.settings import Secret, Settings
from tests.web.dashboard.examples import fill

TOKEN = "admin-token-of-the-tests"
ORIGIN = "http://testserver"


@dataclass
class Visitor:
    """A browser without a screen."""

    http: httpx.AsyncClient
    folder: Path
    session: VoiceSession
    store: SqliteStore

    async def get(self, path: str, **options: Any) -> httpx.Response:
        return await self.http.get(path, headers={"Accept": "text/html"}, **options)

    async def page(self, path: str) -> str:
        answer = await self.get(path)
        assert answer.status_code == 200, answer.text
        return answer.text

    async def post(self, path: str, *, origin: str = ORIGIN, **form: str) -> httpx.Response:
        """A form of ours, filled in."""
        form.setdefault("form_token", await self.form_token())
        return await self.http.post(path, data=form, headers={"Origin": origin, "Accept": "text/html"})

    async def form_token(self) -> str:
        [token, *_] = re.findall(r'name="form_token" value="([^"]*)"', await self.page("/calls"))
        return token

    async def caller_address(self) -> str:
        [address, *_] = re.findall(r'href="(/callers/[\w-]+)"', await self.page(f"/calls/{self.session.uuid}"))
        return address


@functools.cache
def _examples() -> tuple[Path, VoiceSession]:
    """A folder with example calls, filled once, and one of their sessions."""
    folder = Path(tempfile.mkdtemp(prefix="gateway-examples-"))
    atexit.register(shutil.rmtree, folder)
    filling = fill(folder / "data", folder / "archive", folder / "recordings", now=datetime.now(UTC), calls=60)
    return folder, asyncio.run(filling)


@pytest.fixture
async def stranger(tmp_path: Path) -> AsyncIterator[Visitor]:
    """Somebody who has not logged in."""
    examples, session = await asyncio.to_thread(_examples)
    shutil.copytree(examples, tmp_path, dirs_exist_ok=True)
    settings = Settings(
        data_dir=tmp_path / "data",
        voice_session_archive_dir=tmp_path / "archive",
        voice_session_archive_days=0,  # tests write calls of 1900, and the job that archives runs after a second
        record_dir=tmp_path / "recordings",
        record_retention_days=36500,  # the example is old
        gateway_admin_token=Secret(TOKEN),
        memory_vectors=False,
        deepgram_api_key=Secret("dg-test-key"),  # pages need no engine; the local one would start a process
        folder=tmp_path,
    )
    app = create_app(settings)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app)
        store = await open_local_store(tmp_path / "data")
        async with httpx.AsyncClient(transport=transport, base_url=ORIGIN) as http:
            yield Visitor(http, tmp_path, copy.deepcopy(session), store)
        await store.close()


@pytest.fixture
async def visitor(stranger: Visitor) -> Visitor:
    await stranger.http.post("/login", data={"token": TOKEN})
    return stranger
