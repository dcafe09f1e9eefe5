"""The gateway's own store: documents, what is known of callers, and endings that are not done, in one file."""

from pathlib import Path

from gateway.calls import call_book, call_lines, endings, forgetting
from gateway.memory import facts, personas, pin_log, state
from gateway.memory.embedding import Embedder
from gateway.memory.sqlite import SqliteStore


def store_path(data_dir: Path) -> Path:
    return data_dir / "gateway.db"


async def open_own_store(data_dir: Path, *, embedder: Embedder | None = None) -> SqliteStore:
    """Open it, making it if need be; searched by meaning with an embedder. StoreUnavailable if that can't be done."""
    tables = (endings, call_book, call_lines, facts, pin_log, state, personas, forgetting)
    schema = [statement for table in tables for statement in table.SCHEMA]
    return await SqliteStore.open(store_path(data_dir), schema=schema, embedder=embedder)
