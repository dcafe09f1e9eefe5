"""
Opens the databases: memory (everything remembered of callers) and this node's finalization jobs.

Both are one file under DATA_DIR. With DATABASE_URL memory is in a database that all nodes share; jobs stay with their
node, where they wait while that database is away.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway import extras
from gateway.finalization import job_table
from gateway.history import archived_calls, calls_table, erasure
from gateway.history.migration import migrate_call_log
from gateway.memory import memory_log, personas, state
from gateway.memory.embeddings.embedder import Embedder
from gateway.memory.sqlite import SqliteStore
from gateway.memory.store import MemoryStore
from gateway.settings import Secret

_MEMORY: Final = (calls_table, archived_calls, memory_log, state, personas, erasure)
MEMORY_SCHEMA: Final = tuple(statement for module in _MEMORY for statement in module.SCHEMA)
"""All tables that hold data of callers."""


@dataclass(frozen=True)
class Stores:
    """`local` has this node's jobs. Without a shared database both are one store."""

    memory: MemoryStore
    local: SqliteStore

    async def close(self) -> None:
        await self.memory.close()
        await self.local.close()


def store_path(data_dir: Path) -> Path:
    return data_dir / "gateway.db"


async def open_local_store(data_dir: Path, *, embedder: Embedder | None = None) -> SqliteStore:
    """Open the file, creating it if needed; searched by meaning with an embedder. Raises StoreUnavailable."""
    await asyncio.to_thread(migrate_call_log, data_dir)
    schema = (*job_table.SCHEMA, *MEMORY_SCHEMA)
    return await SqliteStore.open(store_path(data_dir), schema=schema, embedder=embedder)


async def open_stores(data_dir: Path, database_url: Secret | None, *, embedder: Embedder | None = None) -> Stores:
    """Open both. A shared database need not be reachable yet."""
    if database_url is None:
        store = await open_local_store(data_dir, embedder=embedder)
        return Stores(store, store)
    extras.require("postgres", "DATABASE_URL is set")
    from gateway.memory.postgres import PostgresStore  # the driver takes long to import, and one node needs none

    local = await open_local_store(data_dir)
    return Stores(PostgresStore(database_url.reveal(), schema=MEMORY_SCHEMA, embedder=embedder), local)
