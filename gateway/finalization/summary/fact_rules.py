"""
Extracts facts without a model: plain statements of callers about themselves, by the English rules below.

In doubt a rule does not match: questions, quotes, and statements with an "if" or a "maybe" are ignored.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.finalization.summary.facts import MAX_FACT_CHARACTERS, keep_facts
from gateway.memory.facts import CallerFact, FactType
from gateway.text.plain_text import SpokenLine

# Apostrophes come straight or curly, or not at all.
_S: Final = "['’]?"
_NOT_A_NAME: Final = (
    r"(?!(?i:a|an|the|not|on|in|under|also|still|back|later|again|when|if|at|for|right|important|irrelevant|private"
    r"|wrong|spelled|misspelled|spelt|(?:mon|tues|wednes|thurs|fri|satur|sun)day|tomorrow|today|tonight|dr|mr|mrs|ms)\b)"
)
_NAME: Final = rf"{_NOT_A_NAME}(?-i:[A-Z][\w'’-]+(?: [A-Z][\w'’-]+){{0,2}})"
# Some recognisers write no capitals: then a name is one word, and the sentence ends there or goes on about the call.
_SMALL_NAME: Final = rf"{_NOT_A_NAME}(?-i:[a-z]{{2,}})(?=[.,!]|$| (?:and|calling|speaking)\b)"
_CODE: Final = r"(?=[\w-]*\d)[a-z\d][a-z\d-]{2,}(?: (?=[\w-]*\d)[a-z\d-]+)*"
_PHONE: Final = r"\+?\(?\d[\d ().-]{5,18}\d"
_EMAIL: Final = r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"
_NOT_A_THING: Final = (
    r"(?!(?:not|to not|no|it|that|this|these|those|them|him|her|he|she|you|your|both|neither|either|none|one"
    r"|the (?:one|first|second|third|last|other|latter|former))\b)"
)
_WORDS: Final = r"[^,.;:!?]{1,140}?"
# The start of the next thought.
_END: Final = (
    r"(?=[,;:!?]|\.(?:\s|$)|$|\s+(?:but|because|cause|so|since|though|and (?:i|my|we|can|could|please|then)"
    r"|thanks|thank you|please|you know|i mean|i think|i guess)\b)"
)
_THING: Final = _NOT_A_THING + _WORDS + _END


@dataclass(frozen=True, slots=True)
class _FactRule:
    """A pattern for a statement, and the fact it makes: the named groups fill the template."""

    pattern: re.Pattern[str]
    template: str
    type: FactType
    confidence: float


def _rule(pattern: str, template: str, type_: FactType, confidence: float) -> _FactRule:
    return _FactRule(re.compile(rf"\b{pattern}", re.IGNORECASE), template, type_, confidence)


_RULES: Final = (
    _rule(rf"my name(?:{_S}s| is) (?P<name>{_NAME}|{_SMALL_NAME})", "Is called {name}", "identity", 0.95),
    _rule(
        rf"(?:this is|it{_S}s|i am|i{_S}m) (?P<name>{_NAME}),? (?:calling|speaking)",
        "Is called {name}",
        "identity",
        0.9,
    ),
    _rule(rf"call me (?P<name>{_NAME})(?=[.,!]|$)", "Wants to be called {name}", "identity", 0.9),
    _rule(rf"i live (?P<where>(?:in|at|on|near) {_THING})", "Lives {where}", "identity", 0.85),
    _rule(rf"i work (?P<where>(?:at|for|as) {_THING})", "Works {where}", "identity", 0.8),
    _rule(rf"i prefer (?P<thing>{_THING})", "Prefers {thing}", "preference", 0.9),
    _rule(
        r"my (?P<kind>(?:customer|client|account|member|membership|loyalty|policy|contract|order|booking|reservation"
        rf"|reference|ticket|case|invoice) (?:number|id|code)) is (?P<code>{_CODE})",
        "Has {kind} {code}",
        "identifier",
        0.9,
    ),
    _rule(
        rf"my (?P<kind>(?:phone|telephone|mobile|cell|work|home|office)(?: phone)? number) is (?P<number>{_PHONE})",
        "Has {kind} {number}",
        "identifier",
        0.9,
    ),
    _rule(
        rf"(?:call|reach|ring|text|get) me(?: back)? (?:on|at) (?P<number>{_PHONE})",
        "Can be reached on {number}",
        "identifier",
        0.9,
    ),
    _rule(rf"my e-?mail(?: address)? is (?P<email>{_EMAIL})", "Has email address {email}", "identifier", 0.9),
    _rule(r"i only speak (?P<language>[a-z]+)(?=[.,!]|$)", "Speaks only {language}", "constraint", 0.85),
    _rule(
        rf"i(?:{_S}m| am) only (?P<when>(?:available|free|reachable|at home) {_THING})",
        "Is only {when}",
        "constraint",
        0.85,
    ),
    _rule(
        rf"i (?:can{_S}t|cannot) (?P<what>(?:take|answer|receive)(?: any| phone)* (?:calls|deliveries|messages|parcels"
        rf"|the phone) {_WORDS}){_END}",
        "Can't {what}",
        "constraint",
        0.8,
    ),
    _rule(
        rf"(?:don{_S}t|do not|never) (?P<what>call|text|email) me (?P<when>(?:before|after|at|on|during) {_THING})",
        "Does not want a {what} {when}",
        "constraint",
        0.9,
    ),
    _rule(rf"i need (?P<what>{_NOT_A_THING}{_WORDS} every {_THING})", "Needs {what}", "need", 0.85),
    _rule(
        rf"i(?:{_S}ll| will) (?P<what>(?:call|phone|ring)(?: you)? back {_THING}"
        rf"|(?:send|bring|pay|email|return|drop off|pick up)(?: you)? {_THING})",
        "Will {what}",
        "commitment",
        0.7,
    ),
)

_IS_CALLED: Final = re.compile(r"(?:Is|Wants to be) called (.+)")

# Other people's words, or nothing certain: before the statement in its clause, or anywhere in its sentence.
_NOT_MEANT_AHEAD: Final = re.compile(
    r"\b(?:if|whether|unless|when|said|says|saying|told|tell|asked|wrote|think|thought|used to|not|wish)\b",
    re.IGNORECASE,
)
_NOT_MEANT: Final = re.compile(
    r"\?\s*$|[\"“”„«»]|\b(?:maybe|perhaps|might|not sure|don['’]?t know|for example|kidding|joking|pretend)\b"
    r"|\b(?:he|she|they|it|who|somebody|someone|the \w+|my \w+) (?:said|says|told|tells|wrote|writes|asked|was like)\b",
    re.IGNORECASE,
)
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+")
_CLAUSE_END: Final = re.compile(r"[,;:]")
_THIRD_PERSON: Final = (
    (re.compile(r"\b(?:my|our)\b", re.IGNORECASE), "their"),
    (re.compile(r"\bme\b", re.IGNORECASE), "them"),
    (re.compile(r"^(\w+) you\b", re.IGNORECASE), r"\1"),  # "send you the form"
    (re.compile(r"\byour\b", re.IGNORECASE), "the"),
)


def extract(lines: Sequence[SpokenLine]) -> tuple[CallerFact, ...]:
    """What the caller stated plainly, at most five facts in spoken order; usually none."""
    found = [
        fact
        for turn, line in enumerate(lines)
        if line.speaker == "caller"
        for sentence in _SENTENCE_END.split(" ".join(line.text.split()))
        for fact in _stated(sentence, turn)
    ]
    return keep_facts(found, lines)


def stated_name(text: str) -> str:
    """The name that the caller gives as their own, or an empty text."""
    for sentence in _SENTENCE_END.split(" ".join(text.split())):
        for fact in _stated(sentence, 0):
            if name := _IS_CALLED.fullmatch(fact.text):
                return name[1]
    return ""


def _stated(sentence: str, turn: int) -> Iterator[CallerFact]:
    if _NOT_MEANT.search(sentence):
        return
    for rule in _RULES:
        match = rule.pattern.search(sentence)
        if match is None or _NOT_MEANT_AHEAD.search(_clause_ahead(sentence, match)):
            continue
        text = rule.template.format(**{name: _worded(name, value) for name, value in match.groupdict().items()})
        if len(text) <= MAX_FACT_CHARACTERS:
            yield CallerFact(text, rule.type, rule.confidence, (turn,))


def _clause_ahead(sentence: str, match: re.Match[str]) -> str:
    return _CLAUSE_END.split(sentence[: match.start()])[-1]


def _worded(name: str, value: str) -> str:
    """What fills a template: a name with its capital, all else in the third person."""
    if name == "name":
        return value[:1].upper() + value[1:]
    for pattern, other in _THIRD_PERSON:
        value = pattern.sub(other, value)
    return value.strip(" -")
