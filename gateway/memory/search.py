"""
Search in the embedded store: words by its index, meaning by stored vectors.

A tag is data, never a pattern: the index holds a number for each tag, and the tags of what it finds are compared
whole. A query looks at its scope first and ranks only there, so its cost follows the size of the scope and not that
of the store.
"""

import hashlib
import re
import sqlite3
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.memory import ranking
from gateway.memory.embedding import MODEL
from gateway.memory.wordpiece import without_accents

if TYPE_CHECKING:
    from gateway.memory.meaning import Reading, Space

_NARROW_SCOPE: Final = 5000  # documents; of a wider one only those that share most words are looked at
_MOST_CANDIDATES: Final = 200
_MOST_WORDS: Final = 64
_MOST_QUERY_CHARACTERS: Final = 2000  # Remem's own clients cut here
_MOST_REMEMBERED: Final = 20_000  # documents of scopes, about 30 MB of vectors
_COMMON_WORD: Final = 0.1  # what a stop word or a sign adds to the meaning of a question; the rarest word adds 1

# They stand in nearly every document: costly to look up, and they say nothing about which one is meant.
_STOP_WORDS: Final = frozenset(
    """a an and are as at be been but by can could did do does for from had has have he her him his how i if in is it
    its me my of on or our s she so t that the their them they this to was we were what when where which who whom
    whose why will with would you your""".split()
)

_MEMBER: Final = "d.tags, d.key, length(d.content), d.metadata, d.created_at, v.vectors"
_WITH_VECTORS: Final = "JOIN documents d ON d.key = w.key LEFT JOIN document_vectors v ON v.key = d.key AND v.model = ?"


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked. `reading` is missing where there is no model: then words decide alone."""

    text: str
    reading: "Reading | None" = None

    @property
    def words(self) -> list[str]:
        """What to look for: plain words only, so nothing in a query can act as search syntax."""
        words = dict.fromkeys(re.findall(r"[^\W_]+", self.text[:_MOST_QUERY_CHARACTERS].lower()))
        return ([word for word in words if word not in _STOP_WORDS] or list(words))[:_MOST_WORDS]


@dataclass(frozen=True, slots=True)
class Match:
    """A document, by its key. One that is not `found` belongs to the scope, but nothing in it fits."""

    key: int
    found: bool
    part: int | None
    """Which part of its text is nearest to the question, where it has vectors."""


@dataclass(frozen=True, slots=True)
class _Member:
    """A document of a scope."""

    key: int
    size: int
    call: Hashable
    """The call that it tells of."""
    created_at: str
    vectors: bytes | None


class Scope:
    """Some documents, in the order of storing."""

    def __init__(self, members: Iterable[_Member]) -> None:
        self.members = sorted(members, key=lambda member: member.key)
        self.sizes = {member.key: member.size for member in self.members}
        self.calls = [member.call for member in self.members]
        by_age = sorted(self.members, key=lambda member: (member.created_at, member.key), reverse=True)
        self.newest_first = [member.key for member in by_age]
        self.without_vectors = [member.key for member in self.members if not member.vectors]

    def nearest(self, reading: "Reading | None", weights: Mapping[str, float]) -> dict[int, tuple[float, int]]:
        """Of each document with vectors the part nearest to the question, whose words weigh so much: cosine, part."""
        keys = [member.key for member in self.members if member.vectors]
        if reading is None or not keys:
            return {}
        question = reading.pooled(lambda word: weights.get(word, _COMMON_WORD))
        return dict(zip(keys, self._space.nearest(question), strict=True))

    @cached_property
    def _space(self) -> "Space":
        from gateway.memory.meaning import Space  # who has a reading has it loaded already

        return Space([member.vectors for member in self.members if member.vectors])


class Scopes:
    """The scopes looked at last, as long as nothing in the store changes."""

    def __init__(self) -> None:
        self._version: tuple[int, int] | None = None
        self._scopes: OrderedDict[tuple[str, ...], Scope] = OrderedDict()

    def get(self, connection: sqlite3.Connection, tags: tuple[str, ...]) -> Scope:
        # The first number tells of changes by other connections, the second of ours.
        version = (connection.execute("PRAGMA data_version").fetchone()[0], connection.total_changes)
        if version != self._version:
            self._scopes.clear()
            self._version = version
        self._scopes[tags] = scope = self._scopes.pop(tags, None) or Scope(_members(connection, tags))
        while sum(len(scope.members) for scope in self._scopes.values()) > _MOST_REMEMBERED:
            self._scopes.popitem(last=False)
        return scope


def is_narrow(connection: sqlite3.Connection, tags: tuple[str, ...]) -> bool:
    """Whether the documents that carry every tag are so few that all of them can be ranked."""
    return bool(tags) and _rarest(connection, tags)[1] <= _NARROW_SCOPE


def search_scope(
    connection: sqlite3.Connection, scope: Scope, tags: tuple[str, ...], question: Question
) -> list[Match]:
    """
    Every document of a narrow scope, best first; of equals the newest.

    FTS5's own bm25() counts each word over the whole store, which would let strangers' documents slow down and colour
    the search.
    """
    scope_match = _scope_match(_rarest(connection, tags)[0])
    having = {word: _having(connection, scope, scope_match, word) for word in question.words}
    total = len(scope.members)
    weights = {word: ranking.rarity(total, len(keys)) / ranking.rarity(total, 0) for word, keys in having.items()}
    return _ranked(scope, ranking.coverage(scope.sizes, having.values()), question, weights)


def search_all(connection: sqlite3.Connection, tags: tuple[str, ...], question: Question) -> list[Match]:
    """Of a wide scope, or of the whole store, the documents that share most words, ranked like a scope."""
    if not question.words:
        return []
    match = _word_match(*question.words)
    rows = connection.execute(
        f"""SELECT w.score, {_MEMBER} FROM (
                SELECT rowid AS key, -bm25(document_words, 1, 1, 0) AS score FROM document_words
                WHERE document_words MATCH ? ORDER BY score DESC LIMIT {_MOST_CANDIDATES}) w {_WITH_VECTORS}""",
        (f"{_scope_match(*tags)} AND {match}" if tags else match, MODEL),
    )
    scores = {member: score for score, *row in rows if (member := _member(row, tags))}
    best = max(scores.values(), default=1)
    covered = {member.key: score / best for member, score in scores.items()}
    return _ranked(Scope(scores), covered, question, dict.fromkeys(question.words, 1))


def newest(connection: sqlite3.Connection, tags: tuple[str, ...], limit: int) -> list[int]:
    """Keys of the last documents that carry every tag, newest first."""
    if is_narrow(connection, tags):
        rows = connection.execute(
            """SELECT d.key, d.tags FROM document_words w JOIN documents d ON d.key = w.rowid
                WHERE document_words MATCH ? ORDER BY d.created_at DESC, d.key DESC""",
            (_scope_match(_rarest(connection, tags)[0]),),
        )
    else:
        rows = connection.execute("SELECT key, tags FROM documents ORDER BY created_at DESC, key DESC")
    return list(islice((key for key, own_tags in rows if _carries(own_tags, tags)), limit))


def index_text(tags: Sequence[str]) -> str:
    """Tags as they stand in the index."""
    return " ".join(map(_token, tags))


# Scope


def _token(tag: str) -> str:
    """A tag in the index: a number, which the stemmer leaves alone."""
    return str(int.from_bytes(hashlib.blake2b(tag.encode(), digest_size=16).digest(), "big"))


def _rarest(connection: sqlite3.Connection, tags: tuple[str, ...]) -> tuple[str, int]:
    """The tag that fewest documents carry, and how many those are."""
    counts = dict.fromkeys(tags, 0)
    marks = ", ".join("?" * len(tags))
    counts.update(connection.execute(f"SELECT tag, documents FROM document_tags WHERE tag IN ({marks})", tags))
    return min(counts.items(), key=lambda item: item[1])


def _carries(own_tags: str, tags: tuple[str, ...]) -> bool:
    return set(tags) <= set(orjson.loads(own_tags))


def _members(connection: sqlite3.Connection, tags: tuple[str, ...]) -> list[_Member]:
    rows = connection.execute(
        f"""SELECT {_MEMBER} FROM (SELECT rowid AS key FROM document_words WHERE document_words MATCH ?) w
            {_WITH_VECTORS}""",
        (_scope_match(_rarest(connection, tags)[0]), MODEL),
    )
    return [member for row in rows if (member := _member(row, tags))]


def _member(row: Sequence[Any], tags: tuple[str, ...]) -> _Member | None:
    own_tags, key, size, metadata, created_at, vectors = row
    if not _carries(own_tags, tags):
        return None
    known = orjson.loads(metadata)
    call = known.get("call_id") or known.get("session_id")
    return _Member(key, size, call if isinstance(call, str) else key, created_at, vectors)


# Words and meaning


def _scope_match(*tags: str) -> str:
    return f"scope : ({' AND '.join(map(_token, tags))})"


def _word_match(*words: str) -> str:
    quoted = " OR ".join(f'"{word}"' for word in words)
    return f"{{title content}} : ({quoted})"


def _having(connection: sqlite3.Connection, scope: Scope, scope_match: str, word: str) -> list[int]:
    """The documents of the scope that have the word."""
    match = f"{scope_match} AND {_word_match(word)}"
    rows = connection.execute("SELECT rowid FROM document_words WHERE document_words MATCH ?", (match,))
    return [key for (key,) in rows if key in scope.sizes]


def _ranked(
    scope: Scope, covered: Mapping[int, float], question: Question, weights: Mapping[str, float]
) -> list[Match]:
    plain_weights = {without_accents(word): weight for word, weight in weights.items()}
    near = scope.nearest(question.reading, plain_weights)
    scores = [ranking.fused(covered.get(key, 0), near[key][0] if key in near else 0) for key in scope.sizes]
    lifted = dict(zip(scope.sizes, ranking.lifted(scores, scope.calls), strict=True))
    matches = [_match(key, covered, near) for key in scope.newest_first]
    return sorted(matches, key=lambda match: (not match.found, -lifted[match.key]))


def _match(key: int, covered: Mapping[int, float], near: Mapping[int, tuple[float, int]]) -> Match:
    cosine, part = near.get(key, (0, None))
    return Match(key, found=key in covered or cosine >= ranking.NEAR, part=part)
