"""
Which facts may be kept of a caller: those the caller gave, of a kind that lasts and that nobody minds being noted.

A model is asked to obey the same rules; these are for when it does not. They are the tables at the top, in English:
a fact in another language is judged by the lines it rests on, and by numbers and keys in it.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gateway.finalization.summary.call_summary import SpokenLine
from gateway.memory.facts import CallerFact
from gateway.text.redaction import redact

MAX_FACTS: Final = 5
LEAST_CONFIDENCE: Final = 0.5


def _any_of(*phrases: str) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(phrases)})\b", re.IGNORECASE)


_HEALTH: Final = _any_of(
    r"allerg\w+|anxi\w+|asthma\w*|autis\w+|blood (?:pressure|sugar|type)|cancer|c(?:o)?eliac|chemo\w*|covid|dement\w+",
    r"depress\w+|diabet\w+|diagnos\w+|disab\w+|diseases?|epilep\w+|heart (?:attack|condition|disease|surgery)",
    r"hiv|hospitals?|hospitali[sz]ed|ill|illness\w*|infect\w+|injur\w+|insulin|medic(?:al|ation|ations|ines?)|mental(?:ly)?|migraines?",
    r"pregnan\w+|prescri\w+|psych\w+|rehab\w*|sick\w*|strokes?|surger\w+|symptoms?|therap\w+|vaccin\w+|wheelchairs?",
)
_SECRETS: Final = _any_of(
    r"api keys?|pass ?(?:code|phrase|port|word)s?|pin|cvv2?|cvc2?|one[- ]time (?:code|password)",
    r"security (?:code|question|answer|number)|(?:credit|debit|bank) cards?|cards? (?:number|details|ending)",
    r"bank (?:account|details)|iban|sort code|routing number|social security|ssn|national insurance|tax (?:id|number)",
    r"driv(?:er['’]?s|ing) licen[cs]e|identity (?:card|number)",
)
_PRIVATE: Final = _any_of(
    r"religio\w+|muslim|christian|catholic|jewish|hindu|buddhist|atheist|politic\w+|votes?|voted|trade union",
    r"gay|lesbian|bisexual|transgender|sexual\w*|ethnic\w*|arrest\w*|convict\w*|criminal\w*",
)
_REMOVED: Final = re.compile(r"\[[a-z ]+ removed\]")
_SENSITIVE: Final = (_HEALTH, _SECRETS, _PRIVATE, _REMOVED)

_MOOD_OR_WEATHER: Final = _any_of(
    r"(?:is|was|feels?|felt|seems?|seemed|sounds?|sounded|gets?|got)(?: \w+)? (?:angry|annoyed|bored|calm|confused"
    r"|disappointed|excited|friendly|frustrated|glad|grateful|happy|impatient|in a (?:hurry|good mood|bad mood)|nervous"
    r"|pleased|polite|rude|sad|stressed|thankful|tired|unhappy|upset|worried)",
    r"weather|raining|snowing|sunny",
)
_JUST_NOW: Final = _any_of(
    r"today|tonight|right now|at the moment|just now|currently|this (?:morning|afternoon|evening)"
)
_NOT_THIRD_PERSON: Final = _any_of(r"i|i['’]m|my|me|mine|we|our|you|your|yours")
# Nobody becomes entitled to anything by saying so, and memory gives no orders.
_CLAIM: Final = _any_of(
    r"(?:is|was|has been|are)(?: \w+)? (?:verified|authenticated|authori[sz]ed|approved|entitled|exempt|admin\w*)",
    r"(?:agent|assistant|ai|bot|model)s? (?:must|should|shall|may|can|will|has to|have to|is to|are to|needs? to)",
    r"system prompt|(?:previous|prior|these|those|all|earlier) (?:instructions|rules)",
)
_ORDER: Final = re.compile(
    r"(?:please|ignore|disregard|forget|pretend|act|say|tell|remember|respond|reply|answer|reveal|give|grant|offer|let"
    r"|transfer|send|call|make|treat|use|do not|don['’]t|from now on|(?:always|never) (?!\w+s\b)\w+)\b",
    re.IGNORECASE,
)
_UNFIT: Final = (*_SENSITIVE, _MOOD_OR_WEATHER, _NOT_THIRD_PERSON, _CLAIM)

_SPLIT_NUMBER: Final = re.compile(r"(?<=\d)[\s().-]+(?=\d)")
# They stand in a fact whatever it is about.
_FILLERS: Final = frozenset(
    """a an and are as at be been by call called caller can could customer do does for from get gets had has have he her
    him his in is it its just like likes may must need needs no not of on only or per prefer prefers shall she should so
    than that the their them they this to use uses want wants was were will with would""".split()
)


def kept(
    facts: Iterable[CallerFact], lines: Sequence[SpokenLine], recited: Iterable[str] = ()
) -> tuple[CallerFact, ...]:
    """
    The facts worth keeping, at most five, in their order.

    `recited` is what the agent knew of the caller when the call began. Its own words are no news: a fact must rest on
    a line of the caller's, and not be made of what the agent recited.
    """
    echo = _Echo.of(lines, recited)
    unique = {fact.text.casefold(): fact for fact in facts if fact.confidence >= LEAST_CONFIDENCE}
    based = (_on_lines(fact, lines) for fact in unique.values())
    fit = [fact for fact in based if fact and is_fit(fact) and not echo.made(fact.text)]
    best = sorted(fit, key=lambda fact: fact.confidence, reverse=True)[:MAX_FACTS]
    return tuple(fact for fact in fit if fact in best)


def is_fit(fact: CallerFact) -> bool:
    """Whether it lasts, is in the third person, gives no orders and holds nothing sensitive."""
    if any(pattern.search(fact.text) for pattern in _UNFIT) or _ORDER.match(fact.text):
        return False
    passing = fact.type != "commitment" and _JUST_NOW.search(fact.text)
    return not passing and redact(fact.text) == fact.text


def may_be_noted(text: str) -> bool:
    """Whether it holds nothing sensitive, and no claim to a right or a role."""
    return not any(pattern.search(text) for pattern in (*_SENSITIVE, _CLAIM)) and redact(text) == text


def _on_lines(fact: CallerFact, lines: Sequence[SpokenLine]) -> CallerFact | None:
    """The fact with those of its lines that exist; None if the caller spoke none of them."""
    turns = tuple(turn for turn in fact.turns if 0 <= turn < len(lines))
    return replace(fact, turns=turns) if any(lines[turn].speaker == "caller" for turn in turns) else None


@dataclass(frozen=True, slots=True)
class _Echo:
    """Words that the agent said out of memory, and the caller did not say at all."""

    words: frozenset[str]

    @classmethod
    def of(cls, lines: Sequence[SpokenLine], recited: Iterable[str]) -> "_Echo":
        by_agent = _words(line.text for line in lines if line.speaker == "agent")
        by_caller = _words(line.text for line in lines if line.speaker == "caller")
        return cls((by_agent & _words(recited)) - by_caller)

    def made(self, text: str) -> bool:
        """Whether half of what a fact says is echo, or it says nothing."""
        words = _words([text])
        return 2 * len(words & self.words) >= len(words)


def _words(texts: Iterable[str]) -> frozenset[str]:
    """The words that carry something; a number is one word however it was grouped."""
    whole_numbers = " ".join(_SPLIT_NUMBER.sub("", text) for text in texts)
    words = re.findall(r"[^\W_]+", whole_numbers.casefold())
    return frozenset(_singular(word) for word in words if word not in _FILLERS)


def _singular(word: str) -> str:
    if len(word) < 4 or not word.endswith("s") or word.endswith("ss"):
        return word
    return word[:-3] + "y" if word.endswith("ies") else word[:-1]
