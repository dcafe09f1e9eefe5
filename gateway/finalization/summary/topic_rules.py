"""
Extracts topics without a model: matters that a caller names, by the English rules below.

A matter is a noun such as "sale" with distinctive words: "the Orlando sale", "the sale of the house", "order number
4711". A single mention does not make a topic yet; a topic is pinned when another call mentions it. In doubt a rule does
not match.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from gateway.finalization.summary.spoken_values import outcome_language
from gateway.finalization.summary.topics import (
    MAX_OPEN_ITEMS,
    MAX_TEXT_CHARACTERS,
    MAX_TITLE_CHARACTERS,
    KnownTopic,
    keep_topics,
)
from gateway.memory.pinned_topics import TopicNote
from gateway.text.plain_text import SpokenLine, trimmed

# Apostrophes come straight or curly, or not at all.
_S: Final = "['’]?"
_MATTERS: Final = frozenset(
    """application audit booking campaign case claim complaint construction contract conversion deal delivery deposit
    dispute event installation invoice launch lawsuit lease listing loan migration mortgage move offer order party
    payment permit project purchase quote refund remodel renovation repair replacement reservation sale shipment
    subscription ticket transfer trip upgrade visa warranty wedding""".split()
)
_MATTER: Final = rf"(?:{'|'.join(sorted(_MATTERS, key=len, reverse=True))})s?"
_WHOSE: Final = r"(?:the|my|our|this|that)"
_WORD: Final = r"[^\W\d_][\w'’-]*"
_PHRASES: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # "my order 4711", "order number 4711"
        rf"\b(?:{_WHOSE} (?P<own>{_MATTER})|(?P<any>{_MATTER}) (?:number|id|code)(?: is)?) #?"
        r"(?P<code>(?=[\w-]*\d)[a-z\d][a-z\d-]{2,})\b",
        # "the sale of the Orlando house", "the trip to Boston"
        rf"\b{_WHOSE} (?P<matter>{_MATTER}) (?:of|for|in|to|with|from) (?:{_WHOSE} )?"
        rf"(?P<rest>{_WORD}(?: {_WORD}){{0,2}})",
        # "the Orlando sale"
        rf"\b{_WHOSE} (?P<ahead>(?:{_WORD} ){{1,3}}?)(?P<noun>{_MATTER})\b",
    )
)
# Words that join others or go with any matter: none of them is distinctive.
_COMMON: Final = frozenset(
    """a about actual after afternoon again all also amazing an and another any are as ask asked at awesome back be
    because been before best better big biggest both but by call called came can come comes cool could current day
    did do does done down each earlier early ended ends entire evening every failed fails fallen favorite favourite
    fell few final finally first for friday from get gets go goes going gone good got great greatest had happened
    happens has have he her here him his how i if in into is it its just keeps kept kind know large last late later
    latest like little long looks lot lots lovely made main makes many may me might monday month more morning most
    much must my need needs new next nice night no not now of off old on one only or other our out over own please
    previous quick really recent right said same saturday say says second seems several she should small so some
    special started starts still stopped stops such sunday takes tell than that the their them then there these they
    thing this those through thursday time to today told tomorrow tonight took tuesday under up upcoming us usual
    very want wants was we wednesday week went were what whatever when where which while who whole why will with
    worked works worse worst would wrong year yesterday you your""".split()
)
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+")
# Sentences that only announce the next one.
_ANNOUNCED: Final = re.compile(
    rf"\b(?:call|calling|called|phoning|ringing|it{_S}s|this is)(?: \w+)? (?:about|regarding|because of)\b",
    re.IGNORECASE,
)
_ACTION: Final = re.compile(
    rf"\b(?:please|i will|i{_S}ll|we will|we['’]ll|(?:can|could|would|will) you|(?:need|needs|have|has) to|remind me"
    r"|make sure|follow up|get back to|call (?:me|you|us) back|waiting for|wait for)\b",
    re.IGNORECASE,
)
_DONE: Final = (
    r"(?:now |all |finally |already |completely |officially )*"
    r"(?:done|sold|finished|completed?|cancell?ed|closed|settled|resolved|sorted(?: out)?|wrapped up|called off|off"
    r"|over|paid(?: off| for)?|delivered|repaired|fixed|signed|refunded|shipped back)"
    r"(?=[.,;!]|$| (?:and|now|since|yesterday|today|last|this|on|at|by|for|in|thanks)\b)"
)
_CAME: Final = (
    r"(?:(?:has|have|['’]s)(?: finally| now| already| just)* )?"
    r"(?:arrived|(?:gone|went|fell|fallen|come|came) through|been delivered)"
    r"(?=[.,;!]|$| (?:and|now|yesterday|today|last|this|on|at|in|by|safely|fine|thanks)\b)"
)
_IS: Final = rf"(?:is|are|was|were|has been|have been|got|{_S}s)"
_ENDED_AFTER: Final = re.compile(rf"\s*(?:{_IS} {_DONE}|{_CAME})", re.IGNORECASE)
_ENDED_AHEAD: Final = re.compile(
    r"\b(?:i|we|they|you)(?:['’]ve| have)?(?: finally| already| just)*"
    r" (?:closed|finished|completed|cancell?ed|settled|called off|sold|wrapped up|paid|received|signed) $",
    re.IGNORECASE,
)
_IT_ENDED: Final = re.compile(
    r"(?:so |and |now |well,? |yes,? |good news,? )*(?:it|that|this|they|everything)"
    rf"(?:(?:{_S}s| is| was| are| were| has been| have been|{_S}s been) {_DONE}| ?{_CAME})",
    re.IGNORECASE,
)
_OTHER_SUBJECT: Final = re.compile(
    r"\b(?:another (?:thing|question|matter)|something else|one more thing|by the way|besides|i also|also need)\b",
    re.IGNORECASE,
)
_NEWS: Final = {"date", "weekday", "day", "time", "money"}
_UNSURE: Final = re.compile(
    r"\?\s*$|[\"“”„«»]|n['’]t\b|\b(?:if|when|once|until|unless|not|never|no|will|would|should|could|might|may|almost"
    r"|nearly|hope|hopefully|want|wants|wish|need|needs|about to|going to|think|guess|maybe|perhaps|soon|suppose)\b",
    re.IGNORECASE,
)


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
        if _OTHER_SUBJECT.search(text):
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
        is_news = ends or not (_ANNOUNCED.search(sentence) or _is_action(sentence))
        if not sentence.endswith("?") and (is_news or not matter.status):
            matter.status = _quoted("Caller", sentence)
        if _is_action(sentence):
            matter.items.append(_quoted("Caller", sentence))

    def _continue(self, matter: _Matter, speaker: str, sentence: str) -> None:
        is_caller = speaker == "Caller"
        if _IT_ENDED.match(sentence) and not _UNSURE.search(sentence):
            matter.is_closed, matter.status = True, _quoted(speaker, sentence)
        elif _is_action(sentence, by_agent=not is_caller):
            matter.items.append(_quoted(speaker, sentence))
        elif _is_statement(sentence) and (
            self._is_news(sentence) or is_caller and self._just_spoken_of and _ANNOUNCED.search(matter.status)
        ):
            matter.status = _quoted(speaker, sentence)

    def _is_news(self, sentence: str) -> bool:
        """Whether a sentence says what has happened, or a time or an amount."""
        cue = self._language.cue
        if cue("courtesy").search(sentence):
            return False
        kinds = {value.kind for value in self._language.values(sentence)}
        return bool(kinds & _NEWS or cue("completion").search(sentence))

    def _matter(self, title: str) -> _Matter:
        """The matter of this name, or of one with the same words plus or minus some."""
        if (matter := next((matter for matter in self.matters if _is_same(title, matter.title)), None)) is None:
            self.matters.append(matter := _Matter(title))
        return matter


def _named(sentence: str, known: Sequence[str]) -> Iterator[_Named]:
    """The matters named in a sentence; known ones under their known name."""
    found: list[_Named] = []
    for pattern in _PHRASES:
        for match in pattern.finditer(sentence):
            title, end = _title(match)
            if title and not any(match.start() < other.end and other.start < end for other in found):
                found.append(_Named(_known_as(title, known), match.start(), end))
    titles = {name.title for name in found}
    yield from sorted(found, key=lambda name: name.start)
    for title in known:
        if title not in titles and (place := _place(sentence, title)):
            yield _Named(title, *place)


def _title(match: re.Match[str]) -> tuple[str, int]:
    """A matter's name and its end in the sentence; empty without a distinctive word."""
    parts = match.groupdict()
    if parts.get("code"):
        return _worded([_singular(parts["own"] or parts["any"]), parts["code"]]), match.end()
    if parts.get("rest"):
        words = _until_common(parts["rest"].split())
        end = match.start("rest") + len(" ".join(words))
        return (_worded([*words, _singular(parts["matter"])]) if words else ""), end
    ahead = list(reversed(_until_common(list(reversed(parts["ahead"].split())))))
    return (_worded([*ahead, _singular(parts["noun"])]) if ahead else ""), match.end()


def _until_common(words: Iterable[str]) -> list[str]:
    taken: list[str] = []
    for word in words:
        if re.sub(r"['’]s$", "", word.casefold()) in _COMMON:
            break
        taken.append(word)
    return taken


def _known_as(title: str, known: Sequence[str]) -> str:
    return next((other for other in known if _is_same(title, other)), title)


def _is_same(title: str, other: str) -> bool:
    """Whether one title has all words of the other, and the other has a distinctive word."""
    fewer, more = sorted((_words(title), _words(other)), key=len)
    return fewer <= more and not fewer <= _MATTERS


def _place(sentence: str, title: str) -> tuple[int, int] | None:
    """
    The position of all distinctive words of a known topic in a sentence: a name, as in "Orlando is sold".

    A name has a capital. The first word always has one, so it counts only if the sentence goes on about a matter.
    """
    own = _words(title) - _MATTERS
    names = (match for match in re.finditer(r"[^\W_]+", sentence) if match[0][0].isupper() or match[0].isdigit())
    spans = {_singular(name[0].casefold()): name.span() for name in names}
    if not own or not own <= spans.keys():
        return None
    start, end = min(spans[word][0] for word in own), max(spans[word][1] for word in own)
    return (start, end) if start > 0 or _ENDED_AFTER.match(sentence, end) else None


def _ends(sentence: str, name: _Named) -> bool:
    """Whether a sentence says that a matter has ended."""
    if _UNSURE.search(sentence):
        return False
    return bool(_ENDED_AFTER.match(sentence, name.end) or _ENDED_AHEAD.search(sentence[: name.start]))


def _is_action(sentence: str, *, by_agent: bool = False) -> bool:
    return bool(_ACTION.search(sentence)) and len(sentence.split()) > 2 and not (by_agent and sentence.endswith("?"))


def _is_statement(sentence: str) -> bool:
    return len(sentence.split()) > 3 and not sentence.endswith("?")


def _quoted(speaker: str, sentence: str) -> str:
    return trimmed(f"{speaker}: {sentence}", MAX_TEXT_CHARACTERS)


def _worded(words: Sequence[str]) -> str:
    title = trimmed(" ".join(words), MAX_TITLE_CHARACTERS)
    return title[:1].upper() + title[1:]


def _words(title: str) -> frozenset[str]:
    return frozenset(_singular(word) for word in re.findall(r"[^\W_]+", title.casefold())) - _COMMON


def _singular(word: str) -> str:
    if len(word) < 4 or not word.endswith("s") or word.endswith("ss"):
        return word
    return word[:-3] + "y" if word.endswith("ies") else word[:-1]
