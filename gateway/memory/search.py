"""
Searching a store: by words through its index, by meaning through stored vectors.

A query ranks only the documents of its scope, so its cost depends on the size of the scope, not of the store.
"""

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import orjson

from gateway.memory import ranking
from gateway.memory.database import Connection, Index, MemberRow
from gateway.memory.documents import carries
from gateway.memory.embeddings.wordpiece import without_accents

if TYPE_CHECKING:
    from gateway.memory.embeddings.vectors import QueryEmbedding, VectorSpace

_MOST_WORDS: Final = 64
_MOST_QUERY_CHARACTERS: Final = 2000  # Remem's own clients cut here
_MOST_CACHED: Final = 20_000  # documents in cached scopes, about 30 MB of vectors
_COMMON_WORD: Final = 0.1  # the weight of a stop word or a punctuation mark in a question; the rarest word has 1

_SHORT_TEXT: Final = 240  # characters; a shorter text is one part
_SHORTEST_PART: Final = 30
_LONGEST_PART: Final = 500
_MOST_PARTS: Final = 250
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+|\n+")
_SNIPPET_CHARACTERS: Final = 500

# Words of nearly every document: costly to look up, and useless for ranking.
_STOP_WORDS: Final = frozenset(
    """a an and are as at be been but by can could did do does for from had has have he her him his how i if in is it
    its me my of on or our s she so t that the their them they this to was we were what when where which who whom
    whose why will with would you your""".split()
)


@dataclass(frozen=True, slots=True)
class Question:
    """A query. `reading` is None where there is no model: then words alone decide."""

    text: str
    reading: "QueryEmbedding | None" = None

    @property
    def words(self) -> list[str]:
        """The words to look for. Plain words only, so that nothing in a query acts as search syntax."""
        words = dict.fromkeys(re.findall(r"[^\W_]+", self.text[:_MOST_QUERY_CHARACTERS].lower()))
        return ([word for word in words if word not in _STOP_WORDS] or list(words))[:_MOST_WORDS]


@dataclass(frozen=True, slots=True)
class Match:
    """A document, by its key. One that is not `found` is in the scope but does not match."""

    key: int
    found: bool
    part: int | None
    """The part of its text that is nearest to the question; None without vectors."""


@dataclass(frozen=True, slots=True)
class _Member:
    """A document of a scope."""

    key: int
    size: int
    call: Hashable
    """The call that it is about."""
    created_at: str
    vectors: bytes | None


class SearchScope:
    """Some documents, in the order they were stored."""

    def __init__(self, members: Iterable[_Member]) -> None:
        self.members = sorted(members, key=lambda member: member.key)
        self.sizes = {member.key: member.size for member in self.members}
        self.calls = [member.call for member in self.members]
        by_age = sorted(self.members, key=lambda member: (member.created_at, member.key), reverse=True)
        self.newest_first = [member.key for member in by_age]
        self.without_vectors = [member.key for member in self.members if not member.vectors]

    def nearest(self, reading: "QueryEmbedding | None", weights: Mapping[str, float]) -> dict[int, tuple[float, int]]:
        """For each document with vectors, the cosine and number of the part nearest to the weighted question."""
        keys = [member.key for member in self.members if member.vectors]
        if reading is None or not keys:
            return {}
        return dict(zip(keys, self.space.nearest(reading.pooled(_weigher(weights))), strict=True))

    @cached_property
    def space(self) -> "VectorSpace":
        from gateway.memory.embeddings.vectors import VectorSpace  # numpy takes a while to import

        return VectorSpace([member.vectors for member in self.members if member.vectors])


class SearchScopes:
    """A cache of the narrow scopes used last, each valid until a document in it changes. Thread-safe."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._scopes: OrderedDict[tuple[str, ...], tuple[Hashable, SearchScope]] = OrderedDict()
        self._changing = threading.Lock()

    def get(self, connection: Connection, tags: tuple[str, ...]) -> SearchScope | None:
        """The documents with every tag; None for a wide scope."""
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
            while sum(len(scope.members) for _, scope in self._scopes.values()) > _MOST_CACHED:
                self._scopes.popitem(last=False)
        return scope


@dataclass(frozen=True, slots=True)
class KeywordSearch:
    """The result of a search by words in a narrow scope: how much of the question each document covers."""

    scope: SearchScope
    covered: Mapping[int, float]
    weights: Mapping[str, float]

    def ranked(self, question: Question) -> list[Match]:
        """Every document of the scope, best first; among equals the newest."""
        return _ranked(self.scope, self.covered, question, self.weights)


def look_up(
    connection: Connection, index: Index, scope: SearchScope, tags: tuple[str, ...], question: Question
) -> KeywordSearch:
    """
    Search by words. Runs while the model still embeds the question.

    The rarity of a word is counted within the scope. Counted over the whole store, as full-text indexes do it, other
    callers' documents would slow the search down and influence its result.
    """
    found = index.having(connection, tags, question.words)
    having = {word: [key for key in keys if key in scope.sizes] for word, keys in found.items()}
    total = len(scope.members)
    weights = {word: ranking.rarity(total, len(keys)) / ranking.rarity(total, 0) for word, keys in having.items()}
    return KeywordSearch(scope, ranking.coverage(scope.sizes, having.values()), weights)


def search_all(connection: Connection, index: Index, tags: tuple[str, ...], question: Question) -> list[Match]:
    """The likeliest documents of a wide scope, or of the whole store, ranked like a narrow scope."""
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
    """The weight of each word of a question, spelled as the model spells it."""
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


# Parts of a text


def parts(text: str) -> list[str]:
    """
    Split a text into parts of about a sentence, one at least. Each gets a vector: one vector for a page is too vague.

    The end of a very long text is left out.
    """
    if len(text) <= _SHORT_TEXT:
        return [text]
    found: list[str] = []
    start = 0
    for end in [*(match.end() for match in _SENTENCE_END.finditer(text)), len(text)]:
        if end - start >= _SHORTEST_PART or end == len(text):
            found += [text[place : min(place + _LONGEST_PART, end)] for place in range(start, end, _LONGEST_PART)]
            start = end
    return [part for part in map(str.strip, found) if part][:_MOST_PARTS] or [""]


def snippet(content: str, words: Sequence[str], part: int | None) -> str:
    """At most 500 characters of `content`: from the given part on, or where most of the words are."""
    if len(content) <= _SNIPPET_CHARACTERS:
        return content.strip()
    start = _place_of_words(content, words) if part is None else content.find(parts(content)[part])
    return content[start : start + _SNIPPET_CHARACTERS].strip()


def _place_of_words(content: str, words: Sequence[str]) -> int:
    pattern = re.compile(rf"\b(?:{'|'.join(words)})", re.IGNORECASE)
    places = [match.start() for match in pattern.finditer(content)] if words else []
    if not places:
        return 0
    best = max(places, key=lambda start: sum(start <= place < start + _SNIPPET_CHARACTERS for place in places))
    line = content.rfind("\n", 0, best) + 1
    return line if best - line <= 100 else best
