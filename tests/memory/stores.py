"""Both stores, for tests that each has to pass: a file, or a schema of a real PostgreSQL server."""

import contextlib
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Protocol

from gateway.memory.stores.postgres import PostgresStore
from gateway.memory.stores.sqlite import SqliteStore
from gateway.memory.stores.store import MemoryStore
from gateway.settings import Secret
from tests.postgres_server import PostgresServer


class Ground(Protocol):
    """A place for one store, which can be opened any number of times."""

    database_url: Secret | None
    """What DATABASE_URL says; None for the embedded store."""

    def opened(self, **options: Any) -> contextlib.AbstractAsyncContextManager[MemoryStore]: ...

    def another(self, name: str = "other") -> "Ground":
        """A place beside it that holds nothing; what was in the last one of that name is gone."""


class SqliteGround:
    database_url = None

    def __init__(self, path: Path) -> None:
        self.path = path
        self._numbers = itertools.count(1)

    @contextlib.asynccontextmanager
    async def opened(self, **options: Any) -> AsyncIterator[MemoryStore]:
        store = await SqliteStore.open(self.path, **options)
        try:
            yield store
        finally:
            await store.close()

    def another(self, name: str = "other") -> "SqliteGround":
        return SqliteGround(self.path.with_name(f"{name}-{next(self._numbers)}.db"))


class PostgresGround:
    def __init__(self, server: PostgresServer) -> None:
        self.database_url = Secret(server.fresh())
        self._server = server
        self._others: dict[str, PostgresGround] = {}

    @contextlib.asynccontextmanager
    async def opened(self, **options: Any) -> AsyncIterator[MemoryStore]:
        store = PostgresStore(self.database_url.reveal(), **options)
        try:
            yield store
        finally:
            await store.close()

    def another(self, name: str = "other") -> "PostgresGround":
        """To empty tables takes a tenth of the time that it takes to make them."""
        if name in self._others:
            self._server.empty(self._others[name].database_url.reveal())
        else:
            self._others[name] = PostgresGround(self._server)
        return self._others[name]
