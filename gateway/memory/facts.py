"""Durable facts about callers: what they said about themselves, and the calls it came from."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any, Final, Literal, Protocol

import orjson

from gateway.memory.identity import same_person
from gateway.memory.memory_log import (
    CallerScope,
    EntryKey,
    LogChange,
    LogEntry,
    MemoryLog,
    NewEntry,
    by_trust,
    delete_undo,
)
from gateway.memory.stores.database import Connection
from gateway.memory.stores.documents import NewDocument, time_text
from gateway.memory.summary_parser import SESSION_PREFIX, without_fact
from gateway.session import TrustLevel, VoiceSession
from gateway.text.languages import LANGUAGES, language_table
from gateway.text.person_names import folded_name
from gateway.text.plain_text import unaccented

SOURCE: Final = "caller-fact"
MOST_CONFIDENCE: Final = 0.99
SAME: Final = 0.6
"""The share of common words from which two facts are about the same thing."""
HALF: Final = 0.5
"""The same where all of at least two words are common."""

_PLACES: Final = ("home", "work", "job", "car")
"""Attributes that a move, a new job or a new car replaces, in whatever words."""
_ENDINGS: Final = "erinnen innen erin euse eurs eur iere ier ers er ing ies es ed en in s e n a o y".split()
_LEAST_STEM: Final = 4
_PREFERENCES: Final = ("prefers ", "prefiere ", "préfère ", "bevorzugt ")
_TO_BE_CALLED: Final = re.compile(
    r"\bto be (?:called|rung|phoned)(?: back)?\b(?= (?:in|on|at|before|after|between|during|only)\b)"
)

Relation = Literal["repeat", "refinement", "correction", "contradiction"]
FactRelation = Literal["new", "repeats", "replaces"]
FactType = Literal["identity", "preference", "identifier", "commitment", "need", "constraint"]


@dataclass(frozen=True, slots=True)
class CallerFact:
    """
    A lasting fact extracted from a call, as a sentence without its subject: "Prefers mornings".

    `confidence` is 0 to 1. `turns` are the lines of the call's transcript that support it, counted from 0. `known` is
    the text of an earlier fact that it repeats or replaces, according to the model that extracted it.
    """

    text: str
    type: FactType
    confidence: float
    turns: tuple[int, ...]
    relation: FactRelation = "new"
    known: str = ""

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "CallerFact":
        return cls(**{**stored, "turns": tuple(stored["turns"])})


@dataclass(frozen=True, slots=True)
class Fact:
    """
    A fact about a caller; `id` is its document's.

    `session_id` and `turns` name the call and the lines where it was first said. `superseded_by` is the id of the fact
    that replaced it; `instead_of` is the text that this one contradicts. `person` is the owner where several people
    share a number; empty if no name was given. Recordings of calls contain these fields under these names.
    """

    id: str
    text: str
    type: str
    confidence: float
    session_id: str
    turns: tuple[int, ...]
    said_at: datetime
    last_said_at: datetime
    superseded_by: str = ""
    instead_of: str = ""
    person: str = ""
    trust: TrustLevel = TrustLevel.EVERYTHING
    """Of the call that taught it; below `EVERYTHING` it is unverified."""


@dataclass(slots=True)
class ActiveFact:
    """A fact under construction: `first` introduced it, `reading` is its fullest statement."""

    first: LogEntry
    reading: "StatementReading"
    person: str
    confidence: float
    last_said_at: str
    superseded_by: "ActiveFact | None" = None
    instead_of: str = ""
    keys: list[EntryKey] = field(default_factory=list)

    @property
    def text(self) -> str:
        return self.reading.text

    @property
    def session_id(self) -> str:
        return self.first.session_id

    @property
    def current(self) -> "ActiveFact":
        """The fact that holds in place of this one."""
        fact = self
        while fact.superseded_by is not None:
            fact = fact.superseded_by
        return fact

    @property
    def source_id(self) -> str:
        return f"{self.first.session_id}#fact-{self.first.position}"

    @property
    def trust(self) -> TrustLevel:
        return self.first.trust

    def describe(self) -> str:
        """One line for the list of changes."""
        mark = ", unverified" if self.trust.mark else ""
        return f"{self.text} ({self.confidence * 100:.0f}% confidence{mark})"


def labelled(text: str) -> str:
    """A fact, or a text with facts in its lines, as people read it in a list: a name has a label."""
    return re.sub(r"^((?:- )?)Is called (?=\S)", r"\1Name: ", text, flags=re.MULTILINE)


def unlabelled(text: str) -> str:
    """The fact that a person has typed, as it is stored."""
    return re.sub(r"^Name: *(?=\S)", "Is called ", text)


def stated_name(text: str) -> str:
    """The caller's name, if that is what a fact states; else empty."""
    attribute, value = _attribute(_normalised(text))
    words = text.split()
    endings = (" ".join(words[start:]) for start in range(len(words)))
    found = next((ending for ending in endings if _normalised(ending) == value), "")
    return found.strip(" .,;:!") if attribute == "name" else ""


def meaning(text: str) -> frozenset[str]:
    """The words of a text that carry meaning, as facts are compared."""
    return frozenset(filter(None, map(_word, re.findall(r"[^\W_]+", _normalised(text)))))


def is_choice(word: str) -> bool:
    """Whether a word is one of a few that exclude each other, such as a weekday."""
    return word in _vocabulary().choices


class _StatedFact(Protocol):
    @property
    def text(self) -> str: ...
    @property
    def session_id(self) -> str: ...
    @property
    def person(self) -> str: ...
    @property
    def trust(self) -> TrustLevel: ...


def corrected_names(fact: _StatedFact, current: _StatedFact) -> tuple[str, ...]:
    """
    The names of the caller in a fact that the `current` one, which may be the same, corrects. Pure.

    Callers and operators correct names. One that only a less trusted call gave is not corrected: it may be another
    person's.
    """
    before, name = stated_name(fact.text), stated_name(current.text)
    is_corrected = current is not fact or not fact.session_id.startswith(SESSION_PREFIX)
    if not (before and name and is_corrected and fact.trust >= current.trust):
        return ()
    return tuple(old_name for old_name in dict.fromkeys((fact.person, before)) if old_name not in ("", name))


def project(entries: Sequence[LogEntry]) -> tuple[list[ActiveFact], list[LogChange]]:
    """
    The facts that the entries of one caller add up to, and the effect of each entry. Pure.

    Repeats gain confidence, refinements the fuller text too; corrections replace all facts that they exclude. A more
    trusted call that repeats a fact confirms it: the fact is its own then. Statements of less trusted calls add facts,
    and change none of the others.
    """
    facts: list[ActiveFact] = []
    changes: dict[int, LogChange] = {}
    for level, statements in by_trust(entries):
        people = list(_people(statements, [fact.person for fact in facts]))
        for entry, person in zip(statements, people, strict=True):
            if entry.trust == level:
                changes[id(entry)] = _add(facts, entry, person)
    return facts, [changes[id(entry)] for entry in entries]


def _add(facts: list[ActiveFact], entry: LogEntry, person: str) -> LogChange:
    """Apply a statement to the facts of its trust level and those above."""
    reading = StatementReading.of(entry.content["text"], entry.content["type"])
    confidence = entry.content["confidence"]
    active = [fact for fact in reversed(facts) if fact.superseded_by is None]
    related = [
        (kind, fact)
        for fact in active
        if (kind := relation(fact.reading, reading) or _claimed_relation(fact.reading, reading, entry.content))
    ]
    # Repeats first, then refinements, then the newest.
    related.sort(key=lambda found: (found[0] != "repeat", found[0] != "refinement"))
    above = [
        (kind, fact)
        for kind, fact in related
        if fact.trust > entry.trust and kind != "refinement" and same_person(fact.person, person)
    ]
    related = [(kind, fact) for kind, fact in related if fact.trust == entry.trust and fact.person == person]
    kind, old = (above or related or [(None, None)])[0]
    before = old.describe() if old else ""
    if old and above and kind == "repeat":
        fact, op = old, "repeat"
    elif old and not above and kind in ("repeat", "refinement"):
        doubt = (1 - old.confidence) * (1 - confidence)
        old.confidence = max(old.confidence, round(min(1 - doubt, MOST_CONFIDENCE), 4))
        old.last_said_at = entry.started_at
        old.reading = reading if kind == "refinement" else old.reading
        fact, op = old, "strengthen"
    else:
        fact = ActiveFact(entry, reading, person, confidence, entry.started_at)
        fact.superseded_by = old if above else None
        fact.instead_of = old.text if old and not above and kind == "contradiction" else ""
        op = "refuse" if above else "supersede" if old else "add"
        for _, excluded in related if not above else ():
            excluded.superseded_by = fact
        facts.append(fact)
    fact.keys.append(entry.key)
    return LogChange(op, entry.session_id, before, fact.describe(), datetime.fromisoformat(entry.logged_at))


def _people(entries: Sequence[LogEntry], spellings: Iterable[str] = ()) -> Iterator[str]:
    """
    The person each statement belongs to: the last one named, under the first spelling of that name.

    Statements before the first name belong to the first person named. `spellings` are preferred to the first one.
    """
    names = [entry.content.get("person", "") for entry in entries]
    known = {name: name for name in filter(None, spellings)}
    person = next(filter(None, names), "")
    for entry, given in zip(entries, names, strict=True):
        owner = next((known[name] for name in known if same_person(name, given)), given) if given else person
        known.setdefault(owner, owner)
        if name := stated_name(entry.content["text"]):  # a new name of theirs
            known.setdefault(name, owner)
        if entry.session_id.startswith(SESSION_PREFIX):  # an operator's correction is no sign of who spoke last
            person = owner
        yield owner


class FactStore(MemoryLog[ActiveFact]):
    """The facts about all callers."""

    source = SOURCE

    async def learn(
        self, session: VoiceSession, facts: Sequence[CallerFact], now: datetime, *, speakers: Sequence[str] = ()
    ) -> bool:
        """
        Store the facts that a session contributed. Returns whether that changed anything.

        `speakers` are the names of the people who spoke each line, as far as they gave one. Other facts of the same
        session, from a better extraction, replace its first ones.
        """
        entries = []
        for fact in facts:
            person = next((speakers[turn] for turn in fact.turns if turn < len(speakers)), "")
            content = asdict(fact) | ({"person": person} if person else {})
            if not fact.known:
                del content["relation"], content["known"]
            entries.append(NewEntry(content))
        return await self.replace_session(session, entries, now)

    async def correct(self, agent: str, caller: str, fact_id: str, text: str, *, by: str, now: datetime) -> bool:
        """
        Replace a fact by an operator's text, or delete it where the text is empty. Returns whether it exists.

        `by` is stored in place of a session id.
        """
        scope = self._scope(agent, caller)

        def work(connection: Connection) -> bool:
            fact = next((fact for fact in self._stored(connection, scope, _fact) if fact.id == fact_id), None)
            delete = "DELETE FROM documents WHERE id = ? AND source = ? AND tags = ?"
            connection.execute(delete, (fact_id, *scope.documents))
            delete_undo(connection, caller, agent)
            if fact and text:
                correction = {"text": text, "type": fact.type, "confidence": 1.0, "turns": ()}
                person = fact.person or stated_name(fact.text)
                correction |= {"person": person} if person else {}
                self._append(connection, scope, by, now, [NewEntry(correction)], now)
            self._rebuild(connection, scope)
            return fact is not None

        return await self._store.run(work)

    async def known(
        self, agent: str, caller: str, limit: int, *, not_before: datetime | None = None, superseded: bool = False
    ) -> list[Fact]:
        """The facts about a caller since `not_before`, last said first, those of one call by confidence."""
        scope = self._scope(agent, caller)
        facts = await self._store.look(lambda connection: self._stored(connection, scope, _fact))
        in_time = [fact for fact in facts if not_before is None or fact.last_said_at >= not_before]
        visible = [fact for fact in in_time if superseded or not fact.superseded_by]
        return sorted(visible, key=lambda fact: (fact.last_said_at, fact.confidence), reverse=True)[:limit]

    async def find_corrected_names(self) -> int:
        """
        List the names that were corrected before this list existed. Returns the number of callers.

        Repeating it does no harm.
        """
        query = """SELECT DISTINCT e.agent, e.caller, d.content
            FROM memory_entries e JOIN documents d ON d.id = e.document_id
            WHERE e.source = ? AND (d.metadata LIKE ? OR e.session_id NOT LIKE ?) AND NOT EXISTS (
                SELECT 1 FROM corrected_names c WHERE c.agent = e.agent AND c.caller = e.caller)"""
        rows = await self._store.fetch(query, self.source, '%"superseded_by"%', f"{SESSION_PREFIX}%")
        scopes = {self._scope(agent, caller) for agent, caller, text in rows if stated_name(text)}
        for scope in scopes:  # one transaction per caller, so that live calls do not wait long
            await self._store.run(partial(self._rebuild, scope=scope))
        return len(scopes)

    def _caller_forgotten(self, connection: Connection, agent: str | None, caller: str) -> None:
        statement = "DELETE FROM corrected_names WHERE caller = ? AND coalesce(agent = ?, true)"
        connection.execute(statement, (caller, agent))

    def _rebuild(self, connection: Connection, scope: CallerScope) -> tuple[Sequence[ActiveFact], dict[str, str]]:
        facts, ids = super()._rebuild(connection, scope)
        self._strike(connection, [key for fact in facts if fact.superseded_by is not None for key in fact.keys])
        owner = (scope.agent, scope.caller)
        connection.execute("DELETE FROM corrected_names WHERE agent = ? AND caller = ?", owner)
        corrected = {old_name: fact.current for fact in facts for old_name in corrected_names(fact, fact.current)}
        for old_name, fact in corrected.items():
            name = stated_name(fact.text)
            row = (*owner, old_name, name, folded_name(name), int(fact.trust))
            connection.execute("INSERT INTO corrected_names VALUES (?, ?, ?, ?, ?, ?)", row)
        return facts, ids

    def _project(self, entries: Sequence[LogEntry]) -> tuple[list[ActiveFact], list[LogChange]]:
        return project(entries)

    def _document(self, item: ActiveFact, scope: CallerScope, ids: Mapping[str, str]) -> NewDocument:
        first = item.first
        said_at = datetime.fromisoformat(first.started_at)
        metadata = {
            "session": first.session_id,
            "call_id": first.session_id.removeprefix(SESSION_PREFIX),
            "type": item.first.content["type"],
            "confidence": item.confidence,
            "turns": list(first.content["turns"]),
            "last_said_at": item.last_said_at,
            "status": "superseded" if item.superseded_by else "active",
        }
        optional = {
            "superseded_by": ids.get(item.superseded_by.source_id, "") if item.superseded_by else "",
            "instead_of": item.instead_of,
            "person": item.person,
            **item.trust.mark,
        }
        return NewDocument(
            title=f"Caller Fact — {said_at:%Y-%m-%d}",
            content=item.text,
            source=SOURCE,
            tags=scope.tags,
            created_at=said_at,
            metadata=metadata | {name: value for name, value in optional.items() if value},
            source_id=item.source_id,
        )

    def _entries_deleted(self, connection: Connection, keys: Sequence[EntryKey]) -> None:
        """The documents of these calls list their facts. Those in the remote store have to be sent again."""
        self._strike(connection, keys)
        sessions = {(session_id,) for session_id, _ in keys}
        connection.executemany("INSERT INTO remote_updates VALUES (?) ON CONFLICT DO NOTHING", sessions)

    def _strike(self, connection: Connection, keys: Iterable[EntryKey]) -> None:
        """Delete these statements from the important facts of their calls' documents."""
        stated = "SELECT content FROM memory_entries WHERE source = ? AND session_id = ? AND position = ?"
        document = "SELECT id, content FROM documents WHERE source_id = ? AND source_id <> ''"
        change = "UPDATE documents SET content = ?, updated_at = ? WHERE id = ?"
        for session_id, position in keys:
            entry = connection.execute(stated, (self.source, session_id, position)).fetchone()
            found = connection.execute(document, (session_id,)).fetchone()
            if entry and found and (content := without_fact(found[1], orjson.loads(entry[0])["text"])) != found[1]:
                connection.execute(change, (content, time_text(datetime.now(UTC)), found[0]))

    def _expired(self, entries: Sequence[LogEntry], before: str) -> list[LogEntry]:
        return [entry for entry in entries if entry.started_at < before]


def _fact(document_id: str, content: str, created_at: datetime, metadata: dict[str, Any]) -> Fact:
    times = created_at, datetime.fromisoformat(metadata["last_said_at"])
    first_said = metadata["session"], tuple(metadata["turns"])
    optional = {name: metadata.get(name, "") for name in ("superseded_by", "instead_of", "person")}
    trust = TrustLevel.of(metadata.get("trust"))
    return Fact(
        document_id, content, metadata["type"], metadata["confidence"], *first_said, *times, **optional, trust=trust
    )


# How two facts about one caller relate. A fact is read as a claim: whose it is, what is claimed, its value, whether it
# is denied, and whether it holds for a time only. Two claims about the same thing with different values exclude each
# other. The vocabulary is the table `claims` of each language; a fact is compared with the words of all of them. In
# doubt both facts are kept.


class _Vocabulary:
    """The words of all languages."""

    def __init__(self) -> None:
        tables: list[dict[str, Any]] = [language_table(language, "claims") for language in LANGUAGES]

        def words(name: str) -> Iterator[str]:
            return (word for table in tables for word in table[name].split())

        def groups(name: str) -> Iterator[tuple[str, str]]:
            return ((word, group) for table in tables for group, words in table[name].items() for word in words.split())

        def any_of(name: str) -> re.Pattern[str]:
            return re.compile(rf"\b(?:{'|'.join(table[name] for table in tables)})\b")

        self.attributes = [(name, re.compile(rule)) for table in tables for name, rule in table["attributes"]]
        self.fillers = frozenset(words("fillers"))
        self.synonyms = dict(groups("synonyms"))
        self.choices = {_stem(word): category for word, category in groups("choices")}
        """The category of each word that excludes the others of its category."""
        self.several = frozenset(map(_stem, words("several")))
        """What a caller can have several of: a second value does not replace the first."""
        self.people = frozenset(map(_stem, words("people")))
        self.negative, self.temporary, self.comparison = map(any_of, ("negative", "temporary", "comparison"))
        self.additional, self.single = map(any_of, ("additional", "single"))
        """Marks of a further value beside the known one, and of the only one: "another", "favourite"."""


_vocabulary: Final = lru_cache(maxsize=1)(_Vocabulary)


@dataclass(frozen=True, slots=True)
class StatementReading:
    """A fact prepared for comparison."""

    text: str
    attribute: str
    """What is claimed, if it is a known attribute, with `words` as its value; else empty."""
    words: tuple[str, ...]
    """The words that carry meaning, in their order."""
    word_set: frozenset[str]
    categories: frozenset[str]
    """Of the words that are choices or numbers."""
    joined: frozenset[tuple[str, str]]
    """Pairs of words with nothing in between: a "dog sitter" is not a dog."""
    is_negative: bool
    is_temporary: bool
    is_additional: bool
    is_single: bool

    @classmethod
    def of(cls, text: str, type_: str) -> "StatementReading":
        vocabulary = _vocabulary()
        whole = _normalised(text)
        shortened = vocabulary.comparison.split(whole)[0].strip() or whole
        shortened = vocabulary.additional.sub(" ", shortened).strip() or shortened
        attribute, value = _attribute(shortened)
        read = [_word(word) for word in re.findall(r"[^\W_]+", value)]
        words = tuple(dict.fromkeys(word for word in read if word))
        joined = frozenset((one, two) for one, two in zip(read, read[1:], strict=False) if one and two)
        is_temporary = type_ != "commitment" and bool(vocabulary.temporary.search(whole))
        marks = (vocabulary.negative, vocabulary.additional, vocabulary.single)
        is_negative, is_additional, is_single = (bool(mark.search(whole)) for mark in marks)
        sets = frozenset(words), frozenset(filter(None, map(_category, words)))
        return cls(text, attribute, words, *sets, joined, is_negative, is_temporary, is_additional, is_single)


def relation(old: StatementReading, new: StatementReading) -> Relation | None:
    """How `new` relates to `old`; None if both can be true."""
    if old.is_temporary != new.is_temporary or not (old.words and new.words) or _is_unrelated(old, new):
        return None
    if old.attribute != new.attribute:
        return _across_attributes(old, new)
    if old.is_negative != new.is_negative:
        one, other = old.word_set, new.word_set
        # One says of a thing what the other denies of it.
        return "contradiction" if one <= other or other <= one or _overlap(old, new) >= SAME else None
    if _is_contained(new, old):
        return "repeat"
    if _is_contained(old, new):
        return "refinement"
    return _of_values(old, new)


def _is_unrelated(old: StatementReading, new: StatementReading) -> bool:
    """
    Whether no rule can relate them. Of a caller's hundreds of facts nearly all pairs are such.

    Without a common word, only values of one attribute exclude each other, and choices of one category.
    """
    if not old.word_set.isdisjoint(new.word_set):
        return False
    return old.attribute != new.attribute or not (old.attribute or old.categories & new.categories)


def _claimed_relation(old: StatementReading, new: StatementReading, content: Mapping[str, Any]) -> Relation | None:
    """
    The relation that the model claims, where the rules see none and nothing speaks against it.

    A careless model must not merge a brother with a sister, or replace a name by a dog.
    """
    if content.get("known", "").casefold() != old.text.casefold() or old.is_temporary or new.is_temporary:
        return None
    people = _vocabulary().people.intersection
    if people(old.words) != people(new.words) or old.attribute not in ("", new.attribute, *_PLACES):
        return None
    common = old.word_set & new.word_set
    if content.get("relation") == "repeats":
        return "repeat" if common and old.is_negative == new.is_negative else None
    return "correction" if common or old.attribute in _PLACES else None


def _across_attributes(old: StatementReading, new: StatementReading) -> Relation | None:
    """How claims relate that are worded as different attributes: "is a cook", "works as a cook"."""
    if "name" in (old.attribute, new.attribute):
        return None
    one, other = old.word_set, new.word_set
    if old.is_negative == new.is_negative:
        if one == other or other < one and len(other) > 1:
            return "repeat"
        return "refinement" if one < other and len(one) > 1 else None
    # "Lives in Leeds", "Does not live in Leeds any more": the verb is a word of its own where it is denied.
    return "contradiction" if (one <= other or other <= one) and abs(len(one) - len(other)) < 2 else None


def _is_contained(part: StatementReading, whole: StatementReading) -> bool:
    """Whether `whole` says all that `part` says, of the same thing."""
    if not part.word_set <= whole.word_set:
        return False
    if _overlap(part, whole) >= (SAME if len(part.words) == 1 else HALF) or part.attribute or part.is_negative:
        return True
    compound = any(one in part.words and two not in part.words for one, two in whole.joined)
    return part.words[0] == whole.words[0] and not compound


def _of_values(old: StatementReading, new: StatementReading) -> Relation | None:
    """How two claims relate of which none contains the other. A part of a claim about something else is no value."""
    vocabulary = _vocabulary()
    gone = [word for word in old.words if word not in new.words]
    come = [word for word in new.words if word not in old.words]
    common = [word for word in new.words if word in old.words]
    people = vocabulary.people.intersection
    if new.is_additional:
        return None
    if old.is_single and new.is_single and gone and come and common:
        return "correction"
    if not (gone and come) or people(old.words[:1]) != people(new.words[:1]):
        return None
    if new.is_negative or (not old.attribute and vocabulary.several.intersection(common) and _stem("number") in common):
        return None
    # The categories of which each claim has another choice. Numbers are such a category.
    changed = ({_category(word) for word in gone} & {_category(word) for word in come}) - {""}
    if changed and all(any(_category(word) not in changed for word in words) for words in (gone, come)):
        if changed != {"number"}:
            # Two differences, such as an employer and the days: two facts.
            return None
    elif changed:
        # The claims must be the same but for choices, with no words of their own beside them.
        one, other = (
            {word for word in reading.words if word not in vocabulary.choices and not word.isdigit()}
            for reading in (old, new)
        )
        if one <= other or other <= one:
            return "correction" if changed == {"number"} else "contradiction"
        return None
    if old.attribute:
        return None if old.attribute in vocabulary.several else "correction"
    if vocabulary.several.intersection(common) or not common:
        return None
    if _is_value(old, gone) and _is_value(new, come):
        return "correction"
    return "correction" if _is_modifier(old, gone, common) and _is_modifier(new, come, common) else None


def _is_value(reading: StatementReading, words: list[str]) -> bool:
    """Whether these words are the value of a claim and not its subject: they follow on at least one common word."""
    first, last = reading.words.index(words[0]), reading.words.index(words[-1])
    is_at_end = last == len(reading.words) - 1
    return first >= 1 and (is_at_end or first > 1) and last - first < len(words)


def _is_modifier(reading: StatementReading, words: list[str], common: list[str]) -> bool:
    """Whether the only different word qualifies a common one: "prefers a double room", "shops at the Hove branch"."""
    if len(words) > 1 or not any((words[0], word) in reading.joined for word in common):
        return False
    return reading.words.index(words[0]) > 0 or reading.text.casefold().startswith(_PREFERENCES)


def _category(word: str) -> str:
    return _vocabulary().choices.get(word, "number" if len(word) < 3 and word.isdigit() else "")


def _overlap(old: StatementReading, new: StatementReading) -> float:
    return len(old.word_set & new.word_set) / len(old.word_set | new.word_set)


def _attribute(text: str) -> tuple[str, str]:
    """What a fact claims, and its value; a fact of no known attribute is all value."""
    for name, pattern in _vocabulary().attributes:
        if match := pattern.fullmatch(text):
            kind = _stem(match.groupdict().get("kind") or "")
            return f"{kind} {name}".strip(), match["value"]
    return "", text


def _normalised(text: str) -> str:
    """Lower case, without accents and apostrophes, each number in one piece."""
    text = re.sub(r"(?<=ca)n['’]t\b", "n not", re.sub(r"(?<=\d)[\s().-]+(?=\d)", "", text).casefold())
    text = re.sub(r"n['’]t\b", " not", text)
    text = _TO_BE_CALLED.sub("calls", text)
    return " ".join(re.sub(r"['’.,;:!]+(?:\s|$)|['’,;]", " ", unaccented(text)).split())


def _word(word: str) -> str:
    """A word as it is compared; empty if it carries no meaning."""
    vocabulary = _vocabulary()
    if word in vocabulary.fillers:
        return ""
    if word.isdigit():
        return word[-10:]  # phone numbers come with and without the country code
    common = vocabulary.synonyms.get(word) or vocabulary.synonyms.get(word.removesuffix("s"), word)
    return common if common.isdigit() else _stem(common)


def _stem(word: str) -> str:
    """A word without its endings, of at least four letters, so that "teaches" and "teacher" are one."""
    if len(word) == _LEAST_STEM:
        return word[:-1] if word.endswith("s") and not word.endswith("ss") else word
    fitting = (ending for ending in _ENDINGS if word.endswith(ending) and len(word) - len(ending) >= _LEAST_STEM)
    ending = next(fitting, "")
    return _stem(word.removesuffix(ending)) if ending else word
