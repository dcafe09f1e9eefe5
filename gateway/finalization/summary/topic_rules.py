"""
Extracts topics without a model: matters that a caller names, by rules: the table `topics` of `en.toml`.

A matter is a noun such as "sale" with distinctive words: "the Orlando sale", "the sale of the house", "order number
4711". A single mention does not make a topic yet; a topic is pinned when another call mentions it. In doubt a rule does
not match.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from gateway.finalization.summary.topics import (
    MAX_OPEN_ITEMS,
    MAX_TEXT_CHARACTERS,
    MAX_TITLE_CHARACTERS,
    KnownTopic,
    keep_topics,
)
from gateway.memory.pinned_topics import TopicNote
from gateway.text.languages import cue, language_table, load_cues, word_list
from gateway.text.plain_text import SpokenLine, singular, trimmed
from gateway.text.spoken_values import outcome_language

_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+")
_NEWS: Final = {"date", "weekday", "day", "time", "money"}


@lru_cache(maxsize=1)
def _phrases() -> tuple[re.Pattern[str], ...]:
    """How a matter is named."""
    table = language_table("en", "topics")
    matter = rf"(?:{'|'.join(sorted(word_list('topics', 'matters'), key=len, reverse=True))})s?"
    return tuple(
        re.compile(phrase.format(matter=matter, **table["parts"]), re.IGNORECASE) for phrase in table["phrases"]
    )


def load() -> None:
    """Compile the patterns ahead of the first call."""
    _phrases()
    load_cues("topics")


@dataclass(frozen=True, slots=True)
class _Named:
    """A matter named in a sentence, and its position."""

    title: str
    start: int
    end: int


@dataclass(slots=True)
class _Matter:
    """What a call has said about a matter so far."""

    title: str
    turns: set[int] = field(default_factory=set)
    status: str = ""
    items: list[str] = field(default_factory=list)
    is_closed: bool = False

    def note(self) -> TopicNote:
        items = () if self.is_closed else tuple(dict.fromkeys(self.items))[:MAX_OPEN_ITEMS]
        return TopicNote(
            self.title,
            status=self.status,
            open_items=items,
            state="closed" if self.is_closed else "open" if items else "",
            turns=tuple(sorted(self.turns)),
        )


def extract(lines: Sequence[SpokenLine], known: Sequence[KnownTopic] = ()) -> tuple[TopicNote, ...]:
    """The matters that the caller named, in spoken order; `known` ones also by part of their name."""
    reader = _Reader([topic.title for topic in known])
    for turn, line in enumerate(lines):
        text = " ".join(line.text.split())
        if line.speaker == "caller":
            reader.read_caller(text, turn)
        else:
            reader.read_agent(text)
    return keep_topics([matter.note() for matter in reader.matters], lines)


class _Reader:
    """
    Reads a call line by line. `_current` is what the call is about, until the caller turns to something else.

    A matter's status is the last news of it, by the caller or the agent; the sentence that names it is none if it only
    announces or asks.
    """

    def __init__(self, known: Sequence[str]) -> None:
        self.matters: list[_Matter] = []
        self._known = known
        self._language = outcome_language("en")
        self._current: _Matter | None = None
        self._just_spoken_of = False

    def read_caller(self, text: str, turn: int) -> None:
        self._just_spoken_of = False
        if cue("topics", "other_subject").search(text):
            self._current = None
        for sentence in _SENTENCE_END.split(text):
            named = list(_named(sentence, self._known))
            for name in named:
                self._current, self._just_spoken_of = self._matter(name.title), True
                self._mention(self._current, sentence, turn, ends=_ends(sentence, name))
            if not named and self._current is not None:
                self._continue(self._current, "Caller", sentence)
                self._just_spoken_of = self._just_spoken_of or _is_statement(sentence)

    def read_agent(self, text: str) -> None:
        """A promise of the agent right after the caller spoke of a matter belongs to it, as does later news."""
        if self._current is None:
            return
        for sentence in _SENTENCE_END.split(text):
            if self._just_spoken_of or not _is_action(sentence):
                self._continue(self._current, "Agent", sentence)

    def _mention(self, matter: _Matter, sentence: str, turn: int, *, ends: bool) -> None:
        matter.turns.add(turn)
        matter.is_closed = ends or matter.is_closed
        is_news = ends or not (cue("topics", "announced").search(sentence) or _is_action(sentence))
        if not sentence.endswith("?") and (is_news or not matter.status):
            matter.status = _quoted("Caller", sentence)
        if _is_action(sentence):
            matter.items.append(_quoted("Caller", sentence))

    def _continue(self, matter: _Matter, speaker: str, sentence: str) -> None:
        is_caller = speaker == "Caller"
        if cue("topics", "it_ended").match(sentence) and not cue("topics", "unsure").search(sentence):
            matter.is_closed, matter.status = True, _quoted(speaker, sentence)
        elif _is_action(sentence, by_agent=not is_caller):
            matter.items.append(_quoted(speaker, sentence))
        elif _is_statement(sentence) and (
            self._is_news(sentence)
            or is_caller
            and self._just_spoken_of
            and cue("topics", "announced").search(matter.status)
        ):
            matter.status = _quoted(speaker, sentence)

    def _is_news(self, sentence: str) -> bool:
        """Whether a sentence says what has happened, or a time or an amount."""
        outcome = self._language.cue
        if outcome("courtesy").search(sentence):
            return False
        kinds = {value.kind for value in self._language.values(sentence)}
        return bool(kinds & _NEWS or outcome("completion").search(sentence))

    def _matter(self, title: str) -> _Matter:
        """The matter of this name, or of one with the same words plus or minus some."""
        if (matter := next((matter for matter in self.matters if _is_same(title, matter.title)), None)) is None:
            self.matters.append(matter := _Matter(title))
        return matter


def _named(sentence: str, known: Sequence[str]) -> Iterator[_Named]:
    """The matters named in a sentence; known ones under their known name."""
    found: list[_Named] = []
    for pattern in _phrases():
        for match in pattern.finditer(sentence):
            title, end = _title(match)
            if title and not any(match.start() < other.end and other.start < end for other in found):
                known_as = next((other for other in known if _is_same(title, other)), title)
                found.append(_Named(known_as, match.start(), end))
    titles = {name.title for name in found}
    yield from sorted(found, key=lambda name: name.start)
    for title in known:
        if title not in titles and (place := _place(sentence, title)):
            yield _Named(title, *place)


def _title(match: re.Match[str]) -> tuple[str, int]:
    """A matter's name and its end in the sentence; empty without a distinctive word."""
    parts = match.groupdict()
    if parts.get("code"):
        return _worded([singular(parts["own"] or parts["any"]), parts["code"]]), match.end()
    if parts.get("rest"):
        words = _until_common(parts["rest"].split())
        end = match.start("rest") + len(" ".join(words))
        return (_worded([*words, singular(parts["matter"])]) if words else ""), end
    ahead = list(reversed(_until_common(list(reversed(parts["ahead"].split())))))
    return (_worded([*ahead, singular(parts["noun"])]) if ahead else ""), match.end()


def _until_common(words: Iterable[str]) -> list[str]:
    taken: list[str] = []
    for word in words:
        if re.sub(r"['’]s$", "", word.casefold()) in word_list("topics", "common"):
            break
        taken.append(word)
    return taken


def _is_same(title: str, other: str) -> bool:
    """Whether one title has all words of the other, and the other has a distinctive word."""
    fewer, more = sorted((_words(title), _words(other)), key=len)
    return fewer <= more and not fewer <= word_list("topics", "matters")


def _place(sentence: str, title: str) -> tuple[int, int] | None:
    """
    The position of all distinctive words of a known topic in a sentence: a name, as in "Orlando is sold".

    A name has a capital. The first word always has one, so it counts only if the sentence goes on about a matter.
    """
    own = _words(title) - word_list("topics", "matters")
    names = (match for match in re.finditer(r"[^\W_]+", sentence) if match[0][0].isupper() or match[0].isdigit())
    spans = {singular(name[0].casefold()): name.span() for name in names}
    if not own or not own <= spans.keys():
        return None
    start, end = min(spans[word][0] for word in own), max(spans[word][1] for word in own)
    return (start, end) if start > 0 or cue("topics", "ended_after").match(sentence, end) else None


def _ends(sentence: str, name: _Named) -> bool:
    """Whether a sentence says that a matter has ended."""
    if cue("topics", "unsure").search(sentence):
        return False
    return bool(
        cue("topics", "ended_after").match(sentence, name.end)
        or cue("topics", "ended_ahead").search(sentence[: name.start])
    )


def _is_action(sentence: str, *, by_agent: bool = False) -> bool:
    return (
        bool(cue("topics", "action").search(sentence))
        and len(sentence.split()) > 2
        and not (by_agent and sentence.endswith("?"))
    )


def _is_statement(sentence: str) -> bool:
    return len(sentence.split()) > 3 and not sentence.endswith("?")


def _quoted(speaker: str, sentence: str) -> str:
    return trimmed(f"{speaker}: {sentence}", MAX_TEXT_CHARACTERS)


def _worded(words: Sequence[str]) -> str:
    title = trimmed(" ".join(words), MAX_TITLE_CHARACTERS)
    return title[:1].upper() + title[1:]


def _words(title: str) -> frozenset[str]:
    return frozenset(singular(word) for word in re.findall(r"[^\W_]+", title.casefold())) - word_list(
        "topics", "common"
    )
