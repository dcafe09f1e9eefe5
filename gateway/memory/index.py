"""
Where a database finds documents, by tag, by word and by meaning: what the search needs, whatever the database.

A tag is data, never a pattern: the index holds a number for each tag, and the tags of what it finds are compared
whole.
"""

import hashlib
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from gateway.memory.database import Connection

if TYPE_CHECKING:
    from gateway.memory.embeddings.vectors import Vectors

NARROW_SCOPE: Final = 5000
"""Documents; of a wider scope only those that share most words are looked at."""
MOST_CANDIDATES: Final = 200

MemberRow = Sequence[Any]
"""Of a document its tags, key, number of characters, metadata, time of creation, and vectors or None."""


@dataclass(frozen=True, slots=True)
class Unembedded:
    """A document that lacks vectors."""

    key: int
    content: str


class Index(Protocol):
    """The part of a store that is written once for each database. Words are plain: letters and digits."""

    # Search

    def state(self, connection: Connection, tags: tuple[str, ...]) -> Hashable | None:
        """What changes whenever a document with every tag does; None where there are too many to rank them all."""

    def members(self, connection: Connection, tags: tuple[str, ...]) -> Iterable[MemberRow]:
        """Of a narrow scope; there may be others among them."""

    def having(self, connection: Connection, tags: tuple[str, ...], words: Sequence[str]) -> dict[str, list[int]]:
        """For each word, the documents of a narrow scope that have it; there may be others among them."""

    def candidates(
        self, connection: Connection, tags: tuple[str, ...], words: Sequence[str], near: "Vectors | None"
    ) -> Iterable[tuple[float, MemberRow]]:
        """Of a wide scope, or of all documents, the likeliest, each with a score by words, or 0 for none."""

    def newest(self, connection: Connection, tags: tuple[str, ...], limit: int) -> list[int]:
        """Keys of the last documents that carry every tag, newest first."""

    def purge(self, connection: Connection) -> None:
        """Leave no words of documents that were deleted, in the transaction that did it."""

    # Vectors

    def has_vectors(self, connection: Connection) -> bool: ...

    def renew_vectors(self, connection: Connection) -> None:
        """Have those that another model made, if there are any, made again."""

    def missing_vectors(self, connection: Connection, wanted: Sequence[int], limit: int) -> list[Unembedded]:
        """Some documents that lack vectors: of the wanted ones if there are any, else the newest."""

    def keep_vectors(self, connection: Connection, made: Iterable[tuple[Unembedded, bytes]]) -> None:
        """Keep the vectors of documents that have not changed meanwhile."""


def token(tag: str) -> str:
    """A tag in the index: a number, which a stemmer leaves alone."""
    return str(int.from_bytes(hashlib.blake2b(tag.encode(), digest_size=16).digest(), "big"))


def index_text(tags: Sequence[str]) -> str:
    """Tags as they stand in the index, and in a document's `scope`."""
    return " ".join(map(token, tags))


def carries(own_tags: str, tags: Sequence[str]) -> bool:
    """Whether a document with these tags, as they are stored, has all of those."""
    return set(tags) <= set(orjson.loads(own_tags))


def carrying(*tags: str) -> tuple[str, tuple[str, ...]]:
    """A condition that holds for documents with every tag, and its parameters. It looks at each document."""
    condition = " AND ".join(["' ' || scope || ' ' LIKE ?"] * len(tags))
    return condition, tuple(f"% {token(tag)} %" for tag in tags)
