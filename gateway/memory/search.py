"""
Search in a store: words by its index, meaning by stored vectors.

A query looks at its scope first and ranks only there, so its cost follows the size of the scope and not that of the
store.
"""

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import orjson

from gateway.memory import ranking
from gateway.memory.database import Connection
from gateway.memory.embeddings.wordpiece import without_accents
from gateway.memory.index import Index, MemberRow, carries

if TYPE_CHECKING:
    from gateway.memory.embeddings.vectors import QueryEmbedding, VectorSpace

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


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked. `reading` is missing where there is no model: then words decide alone."""

    text: str
    reading: "QueryEmbedding | None" = None

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


class SearchScope:
    """Some documents, in the order of storing."""

    def __init__(self, members: Iterable[_Member]) -> None:
        self.members = sorted(members, key=lambda member: member.key)
        self.sizes = {member.key: member.size for member in self.members}
        self.calls = [member.call for member in self.members]
        by_age = sorted(self.members, key=lambda member: (member.created_at, member.key), reverse=True)
        self.newest_first = [member.key for member in by_age]
        self.without_vectors = [member.key for member in self.members if not member.vectors]

    def nearest(self, reading: "QueryEmbedding | None", weights: Mapping[str, float]) -> dict[int, tuple[float, int]]:
        """Of each document with vectors the part nearest to the question, whose words weigh so much: cosine, part."""
        keys = [member.key for member in self.members if member.vectors]
        if reading is None or not keys:
            return {}
        return dict(zip(keys, self.space.nearest(reading.pooled(_weigher(weights))), strict=True))

    @cached_property
    def space(self) -> "VectorSpace":
        from gateway.memory.embeddings.vectors import VectorSpace  # takes a while, the first time

        return VectorSpace([member.vectors for member in self.members if member.vectors])


class SearchScopes:
    """The narrow scopes looked at last, as long as nothing in them changes. Safe to use from several threads."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._scopes: OrderedDict[tuple[str, ...], tuple[Hashable, SearchScope]] = OrderedDict()
        self._changing = threading.Lock()

    def get(self, connection: Connection, tags: tuple[str, ...]) -> SearchScope | None:
        """Of the documents that carry every tag; None where there are too many to rank them all."""
        state = self._index.state(connection, tags)
        if state is None:
            return None
        known_state, scope = self._scopes.get(tags, (None, None))
        if scope is None or known_state != state:
            rows = self._index.members(connection, tags)
            scope = SearchScope(member for row in rows if (member := _member(row, tags)))
        with self._changing:
            self._scopes[tags] = state, scope
            self._scopes.move_to_end(tags)
            while sum(len(scope.members) for _, scope in self._scopes.values()) > _MOST_REMEMBERED:
                self._scopes.popitem(last=False)
        return scope


@dataclass(frozen=True, slots=True)
class KeywordSearch:
    """What the words of a question alone tell of a narrow scope: how much of them each document covers."""

    scope: SearchScope
    covered: Mapping[int, float]
    weights: Mapping[str, float]

    def ranked(self, question: Question) -> list[Match]:
        """Every document of the scope, best first; of equals the newest."""
        return _ranked(self.scope, self.covered, question, self.weights)


def look_up(
    connection: Connection, index: Index, scope: SearchScope, tags: tuple[str, ...], question: Question
) -> KeywordSearch:
    """
    Look the words up, while the model still reads the question.

    How much a word says is counted in the scope alone. Counted over the whole store, as full text indexes do it,
    strangers' documents would slow down and colour the search.
    """
    found = index.having(connection, tags, question.words)
    having = {word: [key for key in keys if key in scope.sizes] for word, keys in found.items()}
    total = len(scope.members)
    weights = {word: ranking.rarity(total, len(keys)) / ranking.rarity(total, 0) for word, keys in having.items()}
    return KeywordSearch(scope, ranking.coverage(scope.sizes, having.values()), weights)


def search_all(connection: Connection, index: Index, tags: tuple[str, ...], question: Question) -> list[Match]:
    """Of a wide scope, or of the whole store, the likeliest documents, ranked like a scope."""
    if not question.words:
        return []
    weights = dict.fromkeys(question.words, 1.0)
    near = None if question.reading is None else question.reading.pooled(_weigher(weights))
    rows = index.candidates(connection, tags, question.words, near)
    scores = {member: score for score, row in rows if (member := _member(row, tags))}
    best = max(scores.values(), default=0) or 1
    covered = {member.key: score / best for member, score in scores.items() if score}
    return _ranked(SearchScope(scores), covered, question, weights)


def _member(row: MemberRow, tags: tuple[str, ...]) -> _Member | None:
    own_tags, key, size, metadata, created_at, vectors = row
    if not carries(own_tags, tags):
        return None
    known = orjson.loads(metadata)
    call = known.get("call_id") or known.get("session_id")
    return _Member(key, size, call if isinstance(call, str) else key, created_at, vectors)


def _weigher(weights: Mapping[str, float]) -> Callable[[str], float]:
    """How much each word of a question, as the model writes it, adds to its meaning."""
    plain_weights = {without_accents(word): weight for word, weight in weights.items()}
    return lambda word: plain_weights.get(word, _COMMON_WORD)


def _ranked(
    scope: SearchScope, covered: Mapping[int, float], question: Question, weights: Mapping[str, float]
) -> list[Match]:
    near = scope.nearest(question.reading, weights)
    scores = [ranking.fused(covered.get(key, 0), near[key][0] if key in near else 0) for key in scope.sizes]
    lifted = dict(zip(scope.sizes, ranking.lifted(scores, scope.calls), strict=True))
    matches = [_match(key, covered, near) for key in scope.newest_first]
    return sorted(matches, key=lambda match: (not match.found, -lifted[match.key]))


def _match(key: int, covered: Mapping[int, float], near: Mapping[int, tuple[float, int]]) -> Match:
    cosine, part = near.get(key, (0, None))
    return Match(key, found=key in covered or cosine >= ranking.NEAR, part=part)
