"""
The database interface that memory is written against: a blocking connection, and SQL that SQLite and PostgreSQL share.

Facts, state, personas, finished calls and the search are plain functions of a Connection that a store runs off the
event loop: `run` for a transaction, `look` for reads. The embedded store passes sqlite3's own connection, the shared
store a wrapper around psycopg's that translates parameters. Full text and vectors differ between the two; each has an
Index of its own.

To add a table:
- put `CREATE ... IF NOT EXISTS` statements into a section of `tables.sql`, give its module a SCHEMA of them, and list
  the module in `history/stores.py`; a store creates the tables it is opened with;
- types are TEXT, INTEGER (32 bits), REAL and BLOB; an automatic key is `number INTEGER PRIMARY KEY`;
- times are text of one width, so that text order is time order; structured values are JSON, encoded in Python;
- parameters are `?` or `:name`; use `INSERT ... ON CONFLICT` instead of `INSERT OR ...`; name every subquery in FROM;
- no `rowid`, PRAGMA or JSON function; find documents by tag with `documents.carrying`;
- a function given to `run` may run twice, after a conflict with another node: it must change nothing but the database;
- a table that replaces an earlier one copies its rows with a Migration, listed after it in SCHEMA;
- say in `history/erasure.py` how a caller is erased from it. `forget --verify` searches every table anyway.
"""

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

if TYPE_CHECKING:
    from gateway.memory.embeddings.vectors import Vectors

NARROW_SCOPE: Final = 5000
"""Documents. All documents of a narrow scope are ranked; in a wider one only those that share most words are."""
MOST_CANDIDATES: Final = 200

_MOST_PARAMETERS: Final = 500  # some builds of SQLite take 999, PostgreSQL takes 65,535

Parameters = Sequence[Any] | Mapping[str, Any]
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Migration:
    """Copies the rows of an earlier version's table and drops it, in one transaction. Runs while that table exists."""

    table: str
    copy: "str | Callable[[Connection], None]" = ""

    def apply(self, connection: "Connection") -> None:
        if callable(self.copy):
            self.copy(connection)
        elif self.copy:
            connection.execute(self.copy)
        connection.execute(f"DROP TABLE {self.table}")

    def __str__(self) -> str:
        return f"migrate {self.table}"


Schema = Sequence[str | Migration]


def batches(values: Sequence[_Value]) -> Iterator[Sequence[_Value]]:
    """The values in parts that fit into one statement as parameters."""
    for first in range(0, len(values), _MOST_PARAMETERS):
        yield values[first : first + _MOST_PARAMETERS]


@cache
def tables(section: str) -> tuple[str, ...]:
    """The statements of a section of `tables.sql`."""
    text = (resources.files("gateway.memory.stores") / "tables.sql").read_text(encoding="utf-8")
    _, *parts = re.split(r"^-- == (\w+) ==$", text, flags=re.MULTILINE)
    statements = re.sub("^--.*\n", "", parts[parts.index(section) + 1], flags=re.MULTILINE)
    return tuple(statements.strip().split("\n\n"))


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


MemberRow = Sequence[Any]
"""A document's tags, key, id, number of characters, metadata, time of creation, and vectors or None."""
Unembedded = tuple[int, str]
"""The key and the content of a document without vectors."""


class Index(Protocol):
    """Finds documents by tag, word and vector: the part of a store that is written once per database."""

    # Search. Words consist of letters and digits.

    def state(self, connection: Connection, tags: tuple[str, ...]) -> Hashable | None:
        """A value that changes with every document that has all tags; None for a wide scope."""

    def members(self, connection: Connection, tags: tuple[str, ...]) -> Iterable[MemberRow]:
        """The documents of a narrow scope, and possibly others."""

    def having(self, connection: Connection, tags: tuple[str, ...], words: Sequence[str]) -> dict[str, list[int]]:
        """For each word, the documents of a narrow scope that contain it, and possibly others."""

    def candidates(
        self, connection: Connection, tags: tuple[str, ...], words: Sequence[str], near: "Vectors | None"
    ) -> Iterable[tuple[float, MemberRow]]:
        """The likeliest documents of a wide scope, or of the whole store, each with its score by words, or 0."""

    def newest(self, connection: Connection, tags: tuple[str, ...], limit: int) -> list[int]:
        """Keys of the last documents with every tag, newest first."""

    def purge(self, connection: Connection) -> None:
        """Remove the words of deleted documents from the index, in the transaction that deleted them."""

    # Vectors

    def has_vectors(self, connection: Connection) -> bool: ...

    def renew_vectors(self, connection: Connection) -> None:
        """Mark documents whose vectors another model made as unembedded."""

    def missing_vectors(self, connection: Connection, wanted: Sequence[int], limit: int) -> list[Unembedded]:
        """Some documents without vectors: those that are wanted, else the newest."""

    def keep_vectors(self, connection: Connection, made: Iterable[tuple[Unembedded, bytes]]) -> None:
        """Store the vectors of documents whose content is still the same."""
