"""
Where the gateway keeps what calls leave: what is known of callers, and endings that are not done.

Both in one file under DATA_DIR; or, with DATABASE_URL, what is known in a database that all nodes share. Endings stay
with their node in any case: they wait there while the database is away.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway import extras
from gateway.finalization import job_table
from gateway.history import call_rows, calls_table, erasure
from gateway.memory import memory_log, personas, state
from gateway.memory.embeddings.embedder import Embedder
from gateway.memory.sqlite import SqliteStore
from gateway.memory.store import MemoryStore
from gateway.settings import Secret

_MEMORY: Final = (calls_table, call_rows, memory_log, state, personas, erasure)
MEMORY_SCHEMA: Final = tuple(statement for module in _MEMORY for statement in module.SCHEMA)
"""All tables that hold something of callers."""


@dataclass(frozen=True)
class Stores:
    """`memory` is what is known of callers, `local` this node's endings. Without a shared database both are one."""

    memory: MemoryStore
    local: SqliteStore

    async def close(self) -> None:
        await self.memory.close()
        await self.local.close()


def store_path(data_dir: Path) -> Path:
    return data_dir / "gateway.db"


async def open_local_store(data_dir: Path, *, embedder: Embedder | None = None) -> SqliteStore:
    """Open the file, making it if need be; searched by meaning with an embedder. StoreUnavailable if it can't be."""
    schema = (*job_table.SCHEMA, *MEMORY_SCHEMA)
    return await SqliteStore.open(store_path(data_dir), schema=schema, embedder=embedder)


async def open_stores(data_dir: Path, database_url: Secret | None, *, embedder: Embedder | None = None) -> Stores:
    """The same, with what is known of callers in a shared database if one is named. That need not be there yet."""
    if database_url is None:
        store = await open_local_store(data_dir, embedder=embedder)
        return Stores(store, store)
    extras.require("postgres", "DATABASE_URL is set")
    from gateway.memory.postgres import PostgresStore  # its driver takes a while to import, and one node needs none

    local = await open_local_store(data_dir)
    return Stores(PostgresStore(database_url.reveal(), schema=MEMORY_SCHEMA, embedder=embedder), local)
