"""
The database interface that memory is written against: a blocking connection, and SQL that SQLite and PostgreSQL share.

Facts, state, personas, finished calls and the search are plain functions of a Connection that a store runs off the
event loop: `run` for a transaction, `look` for reads. The embedded store passes sqlite3's own connection, the shared
store a wrapper around psycopg's that translates parameters. Full text and vectors differ between the two; each has its
own Index (`index.py`).

To add a table:
- give its module a SCHEMA of `CREATE ... IF NOT EXISTS` statements and list it in `history/stores.py`; a store creates
  the tables it is opened with;
- types are TEXT, INTEGER (32 bits), REAL and BLOB; an automatic key is `number INTEGER PRIMARY KEY`;
- times are text of one width, so that text order is time order; structured values are JSON, encoded in Python;
- parameters are `?` or `:name`; use `INSERT ... ON CONFLICT` instead of `INSERT OR ...`; name every subquery in FROM;
- no `rowid`, PRAGMA or JSON function; find documents by tag with `index.carrying`;
- a function given to `run` may run twice, after a conflict with another node: it must change nothing but the database;
- a table that replaces an earlier one copies its rows with a Migration, listed after it in SCHEMA;
- say in `history/erasure.py` how a caller is erased from it. `forget --verify` searches every table anyway.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Parameters = Sequence[Any] | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Migration:
    """Copies the rows of an earlier version's table with one statement, then drops that table. Runs while it exists."""

    table: str
    copy: str

    @property
    def statements(self) -> tuple[str, str]:
        return self.copy, f"DROP TABLE {self.table}"


Schema = Sequence[str | Migration]


class Rows(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int: ...

    @property
    def description(self) -> Any: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """A connection to either database; sqlite3's own satisfies it."""

    def execute(self, statement: str, parameters: Parameters = ..., /) -> Rows: ...

    def executemany(self, statement: str, parameters: Iterable[Sequence[Any]], /) -> object: ...
