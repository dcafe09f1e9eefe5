"""
Searching a store: by words through its index, by meaning through stored vectors.

A query ranks only the documents of its scope, so its cost depends on the size of the scope, not of the store.
"""

import re
import threading
from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import orjson

from gateway.memory.stores import ranking
from gateway.memory.stores.database import Connection, Index, MemberRow
from gateway.memory.summary_parser import SESSION_PREFIX
from gateway.text.plain_text import without_accents

if TYPE_CHECKING:
    from gateway.memory.embeddings.vectors import QueryEmbedding, VectorSpace

_MOST_WORDS: Final = 64
_MOST_QUERY_CHARACTERS: Final = 2000  # Remem's own clients cut here
_MOST_CACHED: Final = 20_000  # documents in cached scopes, about 30 MB of vectors
_COMMON_WORD: Final = 0.1  # the weight of a stop word or a punctuation mark in a question; the rarest word has 1

SHORT_TEXT: Final = 240
"""Characters. A shorter text is one part."""
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
    id: str
    tags: frozenset[str]
    size: int
    call: Hashable
    """The call that it is about."""
    created_at: str
    last_said_on: date
    vectors: bytes | None

    @classmethod
    def read(cls, row: MemberRow) -> "_Member":
        tags, key, document_id, size, metadata, created_at, vectors = row
        known = orjson.loads(metadata)
        call = known.get("call_id") or known.get("session_id")
        call = call.removeprefix(SESSION_PREFIX) if isinstance(call, str) else key
        try:
            last_said_on = date.fromisoformat(str(known.get("last_said_at", created_at))[:10])
        except ValueError:  # clients of the document API store what they like
            last_said_on = date.fromisoformat(created_at[:10])
        return cls(key, document_id, frozenset(orjson.loads(tags)), size, call, created_at, last_said_on, vectors)


class SearchScope:
    """Documents with all of `tags`, in the order they were stored: every one, or the candidates of a query."""

    def __init__(
        self,
        rows: Iterable[MemberRow],
        tags: tuple[str, ...],
        options: ranking.RankingOptions,
        *,
        is_whole: bool = True,
    ) -> None:
        self.tags = tags
        self._options = options
        self._is_whole = is_whole
        found = (member for member in map(_Member.read, rows) if member.tags.issuperset(tags))
        self.members = sorted(found, key=lambda member: member.key)
        self.sizes = {member.key: member.size for member in self.members}
        self.beside: dict[int, list[int]] = {}
        for left, right in pairwise(self.members):
            if left.call == right.call:
                self.beside.setdefault(left.key, []).append(right.key)
                self.beside.setdefault(right.key, []).append(left.key)
        self.without_vectors = [member.key for member in self.members if not member.vectors]
        self._embedded = [member.key for member in self.members if member.vectors]
        # The age counts from the newest document: after a long silence, the last call is still the most recent one.
        newest = max((member.last_said_on for member in self.members), default=date.min)
        ages = [(newest - member.last_said_on).days for member in self.members]
        self._freshness = [ranking.freshness(age, options.half_life_days) for age in ages]

    @cached_property
    def space(self) -> "VectorSpace":
        from gateway.memory.embeddings.vectors import VectorSpace  # numpy takes a while to import

        vectors = [member.vectors for member in self.members if member.vectors]
        return VectorSpace(vectors, have_common=self._is_whole)

    def ranked(self, words: "WordMatches", question: Question, tags: Iterable[str]) -> list[Match]:
        """The documents with all of `tags`, best first; among equals the newest."""
        meaning, near = self._options.meaning, dict[int, tuple[float, int]]()
        if question.reading is not None and self._embedded:
            nearest = self.space.nearest(question.reading.pooled(words.weigh))
            near = dict(zip(self._embedded, nearest, strict=True))
        cosines = [near[key][0] if key in near else None for key in self.sizes]
        covered = [words.covered.get(key, 0) for key in self.sizes]
        fused = [ranking.fused(*measures, meaning=meaning) for measures in zip(covered, cosines, strict=True)]
        if asked := ranking.asked_date(question.text):
            days = (date.fromisoformat(member.created_at[:10]) for member in self.members)
            fused = [score + asked.fit(day) for score, day in zip(fused, days, strict=True)]
        calls, long = [member.call for member in self.members], [size > SHORT_TEXT for size in self.sizes.values()]
        scores = dict(zip(self.sizes, ranking.lifted(fused, calls, long=long), strict=True))
        if not asked:
            for key, freshness in zip(self.sizes, self._freshness, strict=True):
                scores[key] += ranking.RECENT * freshness
        shown = [member for member in self.members if member.tags.issuperset(tags)]
        best = max(shown, key=lambda member: scores[member.key], default=None)
        if best is not None and best.key in near:
            alike = self.space.like(self._embedded.index(best.key), part=near[best.key][1])
            for key, cosine in zip(self._embedded, alike, strict=True):
                scores[key] += ranking.LIKE_BEST * cosine
        matches = []
        for member in sorted(shown, key=lambda member: (member.created_at, member.key), reverse=True):
            cosine, part = near.get(member.key, (-1.0, None))
            found = member.key in words.found or part is not None and cosine >= self._options.near
            matches.append(Match(member.key, found, part))
        return sorted(matches, key=lambda match: (not match.found, -scores[match.key]))

    def related(self, words: "WordMatches", ids: Collection[str]) -> dict[str, float]:
        """How near each document is to some of them and to the words of a text, weighted by its age; by id."""
        alike: dict[int, float] = {}
        for place, member in enumerate(member for member in self.members if member.vectors):
            if member.id in ids:
                for key, cosine in zip(self._embedded, self.space.like(place), strict=True):
                    alike[key] = max(alike.get(key, 0), cosine)
        covered = [0 if member.id in ids else words.covered.get(member.key, 0) for member in self.members]
        most = max(covered, default=0) or 1
        return {
            member.id: freshness * ranking.related(share / most, alike.get(member.key), meaning=self._options.meaning)
            for member, share, freshness in zip(self.members, covered, self._freshness, strict=True)
        }


class SearchScopes:
    """A cache of the narrow scopes used last, each valid until a document in it changes. Thread-safe."""

    def __init__(self, index: Index, options: ranking.RankingOptions) -> None:
        self._index = index
        self.options = options
        self._scopes: OrderedDict[tuple[str, ...], tuple[Hashable, SearchScope]] = OrderedDict()
        self._changing = threading.Lock()

    def get(self, connection: Connection, tags: tuple[str, ...]) -> SearchScope | None:
        """
        The narrow scope in which to rank the documents with all of `tags`; None if it is wide.

        For a caller, it holds everything about this caller (with this agent, if `tags` name one): the facts of a call
        show that its summary is wanted, and the other way round.
        """
        people = tuple(tag for tag in tags if tag.startswith(("caller:", "agent:")))
        about_caller = any(tag.startswith("caller:") for tag in people)
        scope = self._get(connection, people) if about_caller else None
        return scope or self._get(connection, tags)

    def _get(self, connection: Connection, tags: tuple[str, ...]) -> SearchScope | None:
        state = self._index.state(connection, tags)
        if state is None:
            return None
        known_state, scope = self._scopes.get(tags, (None, None))
        if scope is None or known_state != state:
            scope = SearchScope(self._index.members(connection, tags), tags, self.options)
        with self._changing:
            self._scopes[tags] = state, scope
            self._scopes.move_to_end(tags)
            while sum(len(scope.members) for _, scope in self._scopes.values()) > _MOST_CACHED:
                self._scopes.popitem(last=False)
        return scope


@dataclass(frozen=True, slots=True)
class WordMatches:
    """How much of a question's words each document covers, and the documents that contain any."""

    covered: Mapping[int, float]
    found: Collection[int]
    weights: Mapping[str, float]

    def weigh(self, word: str) -> float:
        """The weight of a word of the question, spelled as the model spells it."""
        return self.weights.get(word, _COMMON_WORD)


def look_up(connection: Connection, index: Index, scope: SearchScope, question: Question) -> WordMatches:
    """
    Search a narrow scope by words. Runs while the model still embeds the question.

    The rarity of a word is counted within the scope. Counted over the whole store, as full-text indexes do it, other
    callers' documents would slow the search down and influence its result.
    """
    every = index.having(connection, scope.tags, question.words)
    having = {word: [key for key in keys if key in scope.sizes] for word, keys in every.items()}
    total = len(scope.members)
    rarest = ranking.rarity(total, 0)
    weights = {without_accents(word): ranking.rarity(total, len(keys)) / rarest for word, keys in having.items()}
    covered = ranking.coverage(scope.sizes, scope.beside, having.values())
    return WordMatches(covered, set().union(*having.values()), weights)


def search_all(
    connection: Connection, index: Index, tags: tuple[str, ...], question: Question, options: ranking.RankingOptions
) -> list[Match]:
    """The likeliest documents of a wide scope, or of the whole store, ranked like a narrow scope."""
    if not question.words:
        return []
    weights = {without_accents(word): 1.0 for word in question.words}
    words = WordMatches({}, (), weights)
    near = None if question.reading is None else question.reading.pooled(words.weigh)
    rows = list(index.candidates(connection, tags, question.words, near))
    scope = SearchScope((row for _, row in rows), tags, options, is_whole=False)
    scores = {row[1]: score for score, row in rows if score}
    best = max(scores.values(), default=1)
    covered = {key: score / best for key, score in scores.items()}
    return [match for match in scope.ranked(WordMatches(covered, covered, weights), question, tags) if match.found]


# Parts of a text


def parts(text: str) -> list[str]:
    """
    Split a text into parts of about a sentence, one at least. Each gets a vector: one vector for a page is too vague.

    The end of a very long text is left out.
    """
    if len(text) <= SHORT_TEXT:
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
