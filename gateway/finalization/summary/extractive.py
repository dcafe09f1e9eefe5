"""
Writes a summary without a model: the outcome of the call, sorted into the five sections by rules.

Nothing is invented. Items are sentences of the call after a speaker label, or reworded from "you" to "the caller", with
values that were corrected later brought up to date. A call with nothing to note has one sentence that says so.
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
from gateway.finalization.summary.outcomes import Outcome, Statement, find_outcome
from gateway.finalization.summary.spoken_values import OutcomeLanguage, spoken_language
from gateway.finalization.summary.topics import KnownTopic
from gateway.text.person_names import PersonName, answered_name, are_alike, fold, introduced_name, spelled_name
from gateway.text.plain_text import SpokenLine, trimmed
from gateway.text.sensitive import sentences

MAX_TOPICS: Final = 3
MAX_ITEMS_EACH: Final = 6
_TOPIC_WORDS: Final = 12
_FIRST_LINES: Final = 4
_CLAUSE_END: Final = re.compile(r"[.,;!?]| (?:and|from|to|i|und|von|y|de|et) ", re.IGNORECASE)
_AGREED: Final = ("done", "proposal", "offer")


def summarise(lines: Sequence[SpokenLine], known: Sequence[KnownTopic] = ()) -> CallSummary:
    """The five sections, facts and topics. `known` are topics of earlier calls."""
    language = spoken_language([line.text for line in lines])
    name = _caller_name(lines, language)
    outcome = find_outcome(lines, language, name)
    writer = _Writer(language)
    agreed = [one for one in outcome.chosen if one.speaker == "agent" and one.act in _AGREED]
    decided = agreed + writer.bare_decisions(outcome, {one.matter for one in agreed})
    promises = outcome.promises[-MAX_ITEMS_EACH:]
    context = writer.sentences(outcome.chosen or _main_points(outcome))
    open_items = [writer.item(one) for one in promises]
    return CallSummary(
        caller_name=name,
        topics=writer.topics(outcome),
        decisions=tuple(dict.fromkeys(writer.item(one) for one in decided))[:MAX_ITEMS_EACH],
        action_items=tuple(dict.fromkeys(open_items)),
        facts=(),
        context=trimmed(" ".join(context), MAX_CONTEXT_CHARACTERS) if context or open_items else "",
        written_by="extractive",
        caller_facts=fact_rules.extract(lines),
        running_topics=topic_rules.extract(lines, known),
    )


def _main_points(outcome: Outcome) -> list[Statement]:
    """For a call without values: what the caller wanted and what came of it."""
    wanted = [one for one in outcome.statements if one.speaker == "caller" and one.is_request][:1]
    came = [one for one in outcome.statements if one.speaker == "agent" and one.act in ("done", "failure")][-1:]
    return wanted + came


class _Writer:
    """Words statements as notes in one language."""

    def __init__(self, language: OutcomeLanguage) -> None:
        self._language = language

    def item(self, statement: Statement) -> str:
        return trimmed(self._worded(statement), MAX_ITEM_CHARACTERS)

    def sentences(self, statements: Iterable[Statement]) -> list[str]:
        """One sentence each; short answers that follow each other are one."""
        found: list[str] = []
        for is_answer, group in groupby(statements, lambda one: one.act == "answer"):
            texts = [self._worded(one).rstrip(".,;") for one in group]
            texts = ["; ".join(texts[:1] + [text[:1].lower() + text[1:] for text in texts[1:]])] if is_answer else texts
            found += [text if text.endswith(("?", "!")) else f"{text}." for text in texts]
        return found

    def bare_decisions(self, outcome: Outcome, stated: set[int]) -> list[Statement]:
        """Confirmations of matters whose values the caller alone stated."""
        done = {one.matter: one for one in outcome.statements if one.act == "done" and one.matter not in stated}
        return list(done.values())

    def topics(self, outcome: Outcome) -> tuple[str, ...]:
        """What the caller asked for, once for each matter."""
        first: dict[int, str] = {}
        for one in outcome.statements:
            if one.speaker == "caller" and one.is_request and not one.is_change and one.is_live:
                first.setdefault(one.matter, self._topic(one.text))
        return tuple(dict.fromkeys(topic for topic in first.values() if topic))[:MAX_TOPICS]

    def _topic(self, text: str) -> str:
        words = self._language.cue("topic_lead").sub("", text).rstrip("?.! ").split()[:_TOPIC_WORDS]
        topic = " ".join(words).removesuffix(" please").rstrip(",;")
        said = " ".join(value.text for value in self._language.values(topic))
        own = self._language.content_words(topic) - self._language.content_words(said)
        return _capitalised(topic) if " " in topic and own else ""

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
            clauses = _CLAUSE_END.split(language.cue("name_lead").sub("", text))[:2]
            names = [answered_name(one) for one in clauses if not spelled_name(one)]
            name = max(filter(None, names), key=lambda one: len(one.words), default=None)
            if name and len(name.words) > 2 and name.words[0] == name.words[-1]:  # "Bond, James Bond"
                name = PersonName.parse(" ".join(name.text.split()[1:]))
        elif name is None and not found and place < _FIRST_LINES:
            # "Hi. James Johnson. I would like to …", "Hello, I am Ben."
            led = [text[match.end() :] for match in language.cue("name_lead").finditer(text)]
            alone = [one for one in sentences(text) if one.istitle() and len(one.split()) > 1]
            name = next(filter(None, map(answered_name, (_CLAUSE_END.split(one)[0] for one in (*led, *alone)))), None)
        found, question = name.text if name else found, ""
        spelled = spelled_name(text)
        if spelled and found and are_alike(fold(spelled), fold(found.split()[-1])):
            found = " ".join([*found.split()[:-1], spelled])
    return trimmed(found if found != found.lower() else found.title(), MAX_NAME_CHARACTERS)
