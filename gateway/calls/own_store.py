"""The gateway's own store: documents, what is known of callers, and endings that are not done, in one file."""

from pathlib import Path

from gateway.calls import endings
from gateway.memory import personas, state
from gateway.memory.sqlite import SqliteStore


def store_path(data_dir: Path) -> Path:
    return data_dir / "gateway.db"


async def open_own_store(data_dir: Path) -> SqliteStore:
    """Open it, making it if need be. StoreUnavailable if that can't be done."""
    return await SqliteStore.open(store_path(data_dir), schema=(*endings.SCHEMA, *state.SCHEMA, *personas.SCHEMA))
