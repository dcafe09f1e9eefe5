"""The gateway's own store: documents, what is known of callers, and endings that are not done, in one file."""

from pathlib import Path

from gateway.calls import call_book, call_lines, endings
from gateway.memory import facts, personas, state
from gateway.memory.embedding import Embedder
from gateway.memory.sqlite import SqliteStore


def store_path(data_dir: Path) -> Path:
    return data_dir / "gateway.db"


async def open_own_store(data_dir: Path, *, embedder: Embedder | None = None) -> SqliteStore:
    """Open it, making it if need be; searched by meaning with an embedder. StoreUnavailable if that can't be done."""
    schema = (
        *endings.SCHEMA,
        *call_book.SCHEMA,
        *call_lines.SCHEMA,
        *facts.SCHEMA,
        *state.SCHEMA,
        *personas.SCHEMA,
    )
    return await SqliteStore.open(store_path(data_dir), schema=schema, embedder=embedder)
