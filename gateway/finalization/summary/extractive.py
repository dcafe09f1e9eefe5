"""
Writes a summary without a model: the outcome of the call, sorted into the five sections by rules.

Nothing is invented. Items are sentences of the call, those with "I" or "you" after their speaker, with values that were
corrected later brought up to date.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

from gateway.finalization.summary import fact_rules, topic_rules
from gateway.finalization.summary.call_summary import (
    MAX_CONTEXT_CHARACTERS,
    MAX_ITEM_CHARACTERS,
    MAX_NAME_CHARACTERS,
    CallSummary,
)
from gateway.finalization.summary.outcomes import CallOutcome, Statement, find_outcome
from gateway.finalization.summary.topics import KnownTopic
from gateway.text.person_names import (
    PersonName,
    answered_name,
    are_alike,
    fold,
    introduced_name,
    spelled_name,
    without_spelling,
)
from gateway.text.plain_text import SpokenLine, trimmed
from gateway.text.sensitive import sentences
from gateway.text.spoken_values import OutcomeLanguage, spoken_language

MAX_TOPICS: Final = 3
MAX_ITEMS_EACH: Final = 6
CONTEXT_SENTENCES: Final = 4
_LEAST_CONTENT: Final = 3
_TOPIC_WORDS: Final = 10
_FIRST_LINES: Final = 4
_OPENING_LINES: Final = 2
_CLAUSE_END: Final = re.compile(r"[.,;!?]| (?:and|from|to|i|und|von|y|de|et) ", re.IGNORECASE)
_FIRST_NAME: Final = re.compile(r"\b(?:first|given|christian) name|vorname|nombre de pila|prénom", re.IGNORECASE)
_FIRST_NAME_BESIDE: Final = (
    r"(?:\b(?i:first name|vorname|prénom|nombre de pila)(?:'s| is| ist| est)?,? |[.,] (?:It's|it's|Es|C'est) )"
    r"(?P<first>[A-ZÀ-Þ][a-zà-ÿ'-]+)(?=[.,!]|$)"
)
_OTHERS: Final = re.compile(
    r"\b(?:her|his|their|its|your|(?!(?:it|that|there|here|what|who|let)'s)\w+'s|ihr|sein|su|sa|son)\s*$", re.IGNORECASE
)
_BOOKED: Final = re.compile(r"under|auf|a nombre|au nom", re.IGNORECASE)
_CAPITALS: Final = re.compile(r"(?:(?:Mr|Mrs|Ms|Miss|Dr)\.? )?[A-ZÀ-Þ][\w'-]+(?: [A-ZÀ-Þ][\w'-]+){0,2}")
_NAME_CLAUSE: Final = re.compile(
    r"(?P<name>(?:(?:Mr|Mrs|Ms|Miss|Dr|Frau|Herr)\.? [A-ZÀ-Þ]|[A-ZÀ-Þ][\w'-]+ [A-ZÀ-Þ])[\w'-]+)"
    r"(?= from | von | de la | aus |$)(?<!Hotel|Place|treet|ation|pital|rport|nsion|House|otels)"
)
_TERMS: Final = {"time", "date", "weekday", "day", "money"}
_AGREED: Final = ("done", "proposal", "offer")


def summarise(lines: Sequence[SpokenLine], known: Sequence[KnownTopic] = ()) -> CallSummary:
    """The five sections, facts and topics. `known` are topics of earlier calls."""
    language = spoken_language([line.text for line in lines])
    name = _caller_name(lines, language)
    outcome = find_outcome(lines, language, name)
    writer = _Writer(language)
    points = _main_points(outcome, language)
    agreed = [one for one in points if one.speaker == "agent" and one.act in _AGREED]
    stated = {one.matter for one in agreed}
    # Confirmations of matters whose values the caller alone stated.
    bare = {one.matter: one for one in outcome.statements if one.act == "done" and one.matter not in stated}
    asides = [one for one in points if one.act == "statement" and not {value.kind for value in one.values} & _TERMS]
    asides = asides[: max(0, len(points) - CONTEXT_SENTENCES)]
    topics, promises = writer.topics(outcome), outcome.promises[-MAX_ITEMS_EACH:]
    context = " ".join(writer.sentences(one for one in points if one not in asides))
    return CallSummary(
        caller_name=name,
        topics=topics,
        decisions=writer.items([*agreed, *bare.values()]),
        action_items=writer.items(promises),
        facts=writer.items(asides),
        context=trimmed(context, MAX_CONTEXT_CHARACTERS),
        written_by="extractive",
        caller_facts=fact_rules.extract(lines),
        running_topics=topic_rules.extract(lines, known),
    )


def _main_points(outcome: CallOutcome, language: OutcomeLanguage) -> list[Statement]:
    """The chosen statements; with few of them, also what the caller said most about and what came of it."""
    if len(outcome.chosen) > 1:
        return outcome.chosen
    told = [one for one in outcome.statements if one.speaker == "caller" and one.act == "statement" and one.is_quotable]
    told = [one for one in told if len(language.content_words(one.text)) >= _LEAST_CONTENT]
    # A changed value is already in the statement that it updated.
    told = [one for one in told if one.is_request or not (one.is_change and one.values)]
    told.sort(key=lambda one: (one.is_request, not one.text.endswith("?"), len(one.text)), reverse=True)
    came = [one for one in outcome.statements if one.speaker == "agent" and one.act in ("done", "failure")][-1:]
    return [one for one in outcome.statements if one in outcome.chosen or one in told[:MAX_TOPICS] or one in came]


class _Writer:
    """Words statements as notes in one language."""

    def __init__(self, language: OutcomeLanguage) -> None:
        self._language = language

    def items(self, statements: Iterable[Statement]) -> tuple[str, ...]:
        worded = (trimmed(self._worded(one), MAX_ITEM_CHARACTERS) for one in statements)
        return tuple(dict.fromkeys(worded))[:MAX_ITEMS_EACH]

    def sentences(self, statements: Iterable[Statement]) -> list[str]:
        """One sentence each; short answers that follow each other are one."""
        found: list[str] = []
        for is_answer, group in groupby(statements, lambda one: one.act == "answer"):
            texts = [self._worded(one).rstrip(".,;") for one in group]
            texts = ["; ".join(texts)] if is_answer else texts
            found += [text if text.endswith(("?", "!")) else f"{text}." for text in texts]
        return list({text.casefold(): text for text in found}.values())

    def topics(self, outcome: CallOutcome) -> tuple[str, ...]:
        """What the caller asked for, once for each matter; else what they said first, or what they wanted to know."""
        said = [
            one
            for one in outcome.statements
            if one.speaker == "caller"
            and one.is_quotable
            and (one.is_request or not one.is_change)
            and one.act in ("statement", "question")
        ]
        first: dict[int, str] = {}
        for one in sorted(said, key=lambda one: (not one.is_request, not one.is_request and one.text.endswith("?"))):
            if not one.refused and (topic := self._topic(one.text)):
                first.setdefault(one.matter, topic)
        return tuple(dict.fromkeys(first[matter] for matter in sorted(first)))[:MAX_TOPICS]

    def _topic(self, text: str) -> str:
        words = self._language.cue("topic_lead").sub("", text).rstrip("?.! ").split()
        kept = words[:_TOPIC_WORDS]
        if len(words) > len(kept):  # not in the middle of a clause
            ends = [number for number, word in enumerate(kept, 1) if number > 2 and word.endswith((",", ";"))]
            kept = kept[: ends[-1]] if ends else kept
        topic = " ".join(kept).removesuffix(" please").rstrip(",;")
        said = " ".join(value.text for value in self._language.values(topic) if value.kind != "count")
        own = self._language.content_words(topic) - self._language.content_words(said)
        return _capitalised(topic) if " " in topic and len(own) > 1 else ""

    def _worded(self, statement: Statement) -> str:
        """A sentence with "I" or "you" after its speaker, others as they are."""
        text = _capitalised(statement.text)
        if statement.act == "answer" or not self._language.cue("personal").search(text):
            return text
        return f"{statement.speaker.capitalize()}: {text}"


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def _caller_name(lines: Sequence[SpokenLine], language: OutcomeLanguage) -> str:
    """The name that the caller gave; the last one counts, since it may be a correction."""
    found = question = ""
    for place, line in enumerate(lines):
        if line.speaker == "agent":
            question = line.text
            continue
        text = language.without_opening(language.without_fillers(line.text))
        name = introduced_name(text)
        if name is None and language.cue("name_question").search(question):
            name = _asked_name(text, question, found, language)
        elif name is None and not found and (place < _FIRST_LINES or "?" not in question):
            name = _opening_name(text, language, place)
        found, question = _full_name(name, text) if name else found, ""
        spelled = spelled_name(text)
        if spelled and found and are_alike(fold(spelled), fold(found.split()[-1])):
            found = " ".join([*found.split()[:-1], spelled])
    return trimmed(found if found != found.lower() else found.title(), MAX_NAME_CHARACTERS)


def _asked_name(text: str, question: str, found: str, language: OutcomeLanguage) -> PersonName | None:
    """The name in an answer. A first name that is asked for separately joins the surname."""
    clauses = _CLAUSE_END.split(language.cue("name_lead").sub("", without_spelling(text)))[:2]
    names = [answered_name(one, is_sure=True) for one in clauses]
    name = max(filter(None, names), key=lambda one: len(one.words), default=None)
    if name and len(name.words) > 2 and name.words[0] == name.words[-1]:  # "Bond, James Bond"
        name = PersonName.parse(" ".join(name.text.split()[1:]))
    if name and found and len(name.words) == 1 and " " not in found and _FIRST_NAME.search(question):
        name = PersonName.parse(f"{name.text} {found}")
    return name


def _opening_name(text: str, language: OutcomeLanguage, place: int) -> PersonName | None:
    """ "Hi. James Johnson. I would like to …", "Hello, I am Ben.", "It's under Fitch", "Hi Beth, Dominic Salter"."""
    leads = [lead for lead in language.cue("name_lead").finditer(text) if not _OTHERS.search(text[: lead.start()])]
    led = [_CLAUSE_END.split(text[lead.end() :])[0] for lead in leads if place < _FIRST_LINES]
    led += [names[0] for lead in leads if _BOOKED.match(lead[0]) and (names := _CAPITALS.match(text, lead.end()))]
    alone = [one for one in sentences(text) if one.istitle() and re.fullmatch(r"[^\W\d_]+( [^\W\d_]+)+\.?", one)]
    if place < _OPENING_LINES:
        clauses = [clause.strip() for clause in re.split("[,.]", text)[:2]]
        alone += [match["name"] for clause in clauses if (match := _NAME_CLAUSE.match(clause))]
    has_capitals = re.search(r"\b[A-ZÀ-Þ][a-zà-ÿ]", text) is not None
    given = [one for one in (*alone, *led) if one[:1].isupper() or not has_capitals]
    return next(filter(None, map(answered_name, given)), None)


def _full_name(name: PersonName, text: str) -> str:
    """A surname together with the first name beside it: "Marlow, Henrietta Marlow", "Costello. It's Brigid."."""
    if len(name.words) > 1:
        return name.text
    surname = re.escape(name.text.split()[-1])
    if whole := re.search(rf"\b{surname}[,.]? ((?:(?!{surname})[A-ZÀ-Þ][\w'-]+ ){{1,2}}{surname})\b", text):
        return whole[1]
    titled = rf"{surname}\. (?P<first>[A-ZÀ-Þ][a-zà-ÿ'-]+)(?=[.!]|$)"  # "It's Mr Pettifer. Stanley."
    beside = re.search(rf"\b{surname}\b.{{0,40}}?{_FIRST_NAME_BESIDE}", text)
    beside = beside or (re.search(titled, text) if name.is_titled else None)
    return f"{beside['first']} {name.text.split()[-1]}" if beside else name.text
