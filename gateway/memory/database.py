"""
What memory is kept in, as the rooms that keep it see it: a blocking connection, in SQL that every database knows.

Facts, state, personas, the book of calls and the search are written once, as plain functions of a Connection that a
store runs off the event loop: `run` for a transaction, `look` for reading. The embedded store hands in sqlite3's own
connection, the shared one psycopg's in a wrapper that knows how PostgreSQL writes a parameter. Where the two can't
speak alike, in full text and vectors, an Index stands between (`index.py`), once for each.

To add a table:
- give its module a SCHEMA of `CREATE ... IF NOT EXISTS` statements, and name it in `history/stores.py`; a store makes
  the tables it is opened with, nothing else does;
- types are TEXT, INTEGER (of 32 bits), REAL and BLOB; a key that counts by itself is `number INTEGER PRIMARY KEY`;
- times are text of one width, so that text order is time order; what has a shape is JSON, read and written here;
- parameters are `?` or `:name`; `INSERT ... ON CONFLICT` instead of `INSERT OR ...`; a subquery in FROM has a name;
- no `rowid`, PRAGMA or JSON function; documents with a tag are found by `index.carrying`;
- work given to `run` may be done twice, when another node came in between: it changes nothing but the database;
- say in `history/erasure.py` how a caller is forgotten there. `forget --verify` looks into every table by itself.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

Parameters = Sequence[Any] | Mapping[str, Any]


class Rows(Protocol):
    """What a statement has found or done."""

    @property
    def rowcount(self) -> int: ...

    @property
    def description(self) -> Any: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """A connection to either database; sqlite3's own is one."""

    def execute(self, statement: str, parameters: Parameters = ..., /) -> Rows: ...

    def executemany(self, statement: str, parameters: Iterable[Sequence[Any]], /) -> object: ...
