"""
Facts about callers in a model's answer: parsing them, and deciding which may be stored.

Models deviate from the format they were given: whatever still names a fact, its type and its lines is accepted, the
rest is dropped. A fact is stored if the caller gave it, it lasts, and it is not sensitive. The prompt asks the model
for the same; these rules are for when it does not comply. Sensitive content is recognised in all languages of
`gateway/text/languages`, and so are questions and passing remarks; the other rules are in English.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, get_args

from gateway.memory.facts import CallerFact, FactRelation, FactType
from gateway.text.languages import LANGUAGES, cue, language_table, word_list
from gateway.text.plain_text import SpokenLine, plain, singular, unaccented
from gateway.text.redaction import redact, spoken_numbers
from gateway.text.sensitive import sensitive_category, sentences
from gateway.text.spoken_values import LEAST_DIGITS, outcome_language, spoken_language

FACT_TYPES: Final[tuple[FactType, ...]] = get_args(FactType)

MAX_FACT_CHARACTERS: Final = 160
MAX_FACTS: Final = 5
LEAST_CONFIDENCE: Final = 0.5

FACT_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "type": {"type": "string", "enum": list(FACT_TYPES)},
        "confidence": {"type": "number"},
        "turns": {"type": "array", "items": {"type": "integer"}},
        "relation": {"type": "string", "enum": list(get_args(FactRelation))},
        "known": {"type": "integer"},
    },
    "required": ["text", "type", "confidence", "turns", "relation", "known"],
    "additionalProperties": False,
}

PLACEHOLDER: Final = r"string|text|\.{2,}|…|<[^<>]*>"
"""What models leave of a format that they only repeat."""
_MOST_READ: Final = 50
_UNSURE: Final = 0.6
_CONFIDENCE_WORDS: Final = {"certain": 1.0, "high": 0.9, "medium": 0.6, "low": 0.3}
# Other names that models use for our keys and types.
_KEYS: Final = {
    "text": ("text", "fact", "statement", "content"),
    "type": ("type", "kind", "category"),
    "confidence": ("confidence", "score", "certainty"),
    "turns": ("turns", "turn", "lines", "evidence", "sources"),
    "relation": ("relation", "status"),
    "known": ("known", "known_fact", "number"),
}
_TYPES: Final[dict[str, FactType]] = {
    **{name: name for name in FACT_TYPES},
    "name": "identity",
    "contact": "identifier",
    "recurring need": "need",
}
_TYPE_VERBS: Final[dict[FactType, tuple[str, ...]]] = {
    "preference": ("prefers", "likes", "loves", "dislikes", "hates", "wants", "wishes"),
    "constraint": ("can't", "cannot", "doesn't", "won't", "isn't"),
    "need": ("needs", "requires"),
    "commitment": ("will", "promised", "promises", "agreed"),
}
_RELATIONS: Final[dict[str, FactRelation]] = {name: name for name in get_args(FactRelation)}
_SUBJECT: Final = re.compile(r"(?:(?:the )?(?:caller|customer|client|user)(?:['’]s)?|he|she) +", re.IGNORECASE)


_REMOVED: Final = re.compile(r"\[[a-z ]+ removed\]")
_UNFIT: Final = ("mood_or_weather", "not_third_person", "claim")
_CLAUSE_END: Final = re.compile(r"[.,;!?]+\s+|\s(?:and|but|so|because|und|aber|weil|y|pero|porque|et|mais|car)\s")
_SPLIT_NUMBER: Final = re.compile(r"(?<=\d)[\s().-]+(?=\d)")
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+")
_NO_NAMES: Final = (
    r"(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day|(?:Janu|Febru)ary|March|April|May|June|July|August"
    r"|(?:Septem|Octo|Novem|Decem)ber|Mr|Mrs|Ms|Dr"
)
_NAME: Final = re.compile(rf"(?<=[\w,] )(?!(?:{_NO_NAMES})\b)[A-ZÀ-Þ][a-zß-ÿ]{{2,}}")
_SPELLED: Final = re.compile(r"\b(?:[a-z][ .-]+){2,}[a-z]\b")
_NAME_BEGINNING: Final = 3
_LEAST_WORDS: Final = 4
_LEAST_STATEMENT: Final = 2


def parse_facts(value: Any) -> tuple[CallerFact, ...]:
    """The facts in a model's answer, whatever its shape."""
    entries = _entries(value)
    facts = (_fact(entry) for entry in entries[:_MOST_READ] if isinstance(entry, dict))
    return tuple(fact for fact in facts if fact is not None)


def _entries(value: Any) -> list[Any]:
    """A list, one fact, or an object with a list for each type."""
    if not isinstance(value, dict) or not all(isinstance(one, list) for one in value.values()):
        entries = value if isinstance(value, list) else [value] * isinstance(value, dict)
        return [{"text": one} if isinstance(one, str) else one for one in entries]
    found = ((type_, one) for type_, ones in value.items() for one in ones)
    return [{"type": type_, **(one if isinstance(one, dict) else {"text": one})} for type_, one in found]


def _fact(entry: Mapping[str, Any]) -> CallerFact | None:
    given = {str(key).strip().lower(): value for key, value in entry.items()}
    parts = {part: next((given[key] for key in keys if key in given), None) for part, keys in _KEYS.items()}
    text = _sentence(parts["text"])
    type_ = _type(parts["type"]) if parts["type"] else _likely_type(text)
    if not 0 < len(text) <= MAX_FACT_CHARACTERS or type_ is None or re.fullmatch(PLACEHOLDER, text, re.IGNORECASE):
        return None
    relation = _RELATIONS.get(str(parts["relation"]), "new")
    known = str(parts["known"] or "").strip() if relation != "new" else ""
    return CallerFact(text, type_, _confidence(parts["confidence"]), _turns(parts["turns"]), relation, known)


def known_facts_text(known: Sequence[str]) -> str:
    """Facts of earlier calls, numbered, to put before a transcript; empty without any."""
    lines = [f"{number}. {plain(text)}" for number, text in enumerate(known[:_MOST_READ], 1)]
    return "\n".join(["KNOWN FACTS OF THE CALLER:", *lines, "", ""]) if lines else ""


def with_known(facts: Iterable[CallerFact], known: Sequence[str]) -> tuple[CallerFact, ...]:
    """The facts with the known ones they name, by number or text, in full; new ones if those do not exist."""
    texts = {str(number): text for number, text in enumerate(known[:_MOST_READ], 1)}
    texts |= {text.casefold(): text for text in known}
    found = ((fact, texts.get(fact.known.casefold().rstrip("."), "")) for fact in facts)
    return tuple(replace(fact, known=text, relation=fact.relation if text else "new") for fact, text in found)


def _sentence(value: Any) -> str:
    """The fact without its subject and full stop, which some models add."""
    text = plain(value).rstrip(". ") if isinstance(value, str) else ""
    subject = _SUBJECT.match(text)
    text = text[subject.end() :] if subject else text
    return text[:1].upper() + text[1:]


def _type(value: Any) -> FactType | None:
    name = value.strip().lower().replace("_", " ") if isinstance(value, str) else ""
    return _TYPES.get(name) or _TYPES.get(name.removesuffix("s"))


def _likely_type(text: str) -> FactType:
    """The type of a fact that a model gave none, by its first word."""
    verb = text.partition(" ")[0].casefold()
    return next((type_ for type_, verbs in _TYPE_VERBS.items() if verb in verbs), "identity")


def _confidence(value: Any) -> float:
    """From 0 to 1, also for percentages and words."""
    if isinstance(value, str):
        value = _CONFIDENCE_WORDS.get(value.strip().lower()) or _number(value)
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        return _UNSURE
    share = value / 100 if value > 1 else value
    return float(min(max(share, 0.0), 1.0))


def _number(text: str) -> float | None:
    try:
        return float(text.strip().removesuffix("%"))
    except ValueError:
        return None


def _turns(value: Any) -> tuple[int, ...]:
    parts = value if isinstance(value, list) else [value]
    return tuple(sorted({number for part in parts for number in _line_numbers(part)}))


def _line_numbers(part: Any) -> list[int]:
    """Line numbers as a number or in text: 3, "3", "[3]", "lines 3 and 5"."""
    match part:
        case bool():
            return []
        case int():
            return [part]
        case str():
            return [int(number) for number in re.findall(r"\b\d{1,6}\b", part)]
        case _:
            return []


# Which facts may be stored


def keep_facts(
    facts: Iterable[CallerFact],
    lines: Sequence[SpokenLine],
    recited: Iterable[str] = (),
    known: Iterable[str] = (),
) -> tuple[CallerFact, ...]:
    """
    The facts to store, at most five, in their order.

    A fact must be based on a line that the caller spoke; where a model named no line, on one with most of its words.
    Its names and numbers must have been said, or be part of what is `known` of the caller.
    `recited` is what the prompt contained about the caller when the call began: a fact that consists of such words,
    spoken by the agent alone, is not new.
    """
    echo = _Echo.of(lines, recited)
    unique = {fact.text.casefold(): fact for fact in facts if fact.confidence >= LEAST_CONFIDENCE}
    based = (_on_lines(fact, lines) for fact in unique.values())
    fit = [
        fact
        for fact in based
        if fact
        and not is_passing(fact, lines)
        and is_fit(fact)
        and not _rests_on_sensitive(fact, lines)
        and not _rests_on_orders(fact, lines)
        and _names_are_said(fact, lines, known)
        and not echo.made(fact.text)
    ]
    best = sorted(fit, key=lambda fact: fact.confidence, reverse=True)[:MAX_FACTS]
    return tuple(fact for fact in fit if fact in best)


def is_fit(fact: CallerFact) -> bool:
    """Whether a fact lasts, is in the third person, is no instruction, and is not sensitive."""
    if any(cue("facts", name).search(fact.text) for name in _UNFIT) or cue("facts", "order").match(fact.text):
        return False
    passing = fact.type != "commitment" and cue("facts", "just_now").search(fact.text)
    return not passing and _is_harmless(fact.text)


def may_be_stored(text: str) -> bool:
    """Whether a text is free of sensitive content and of claims to a right or a role."""
    return not cue("facts", "claim").search(text) and _is_harmless(text)


def _is_harmless(text: str) -> bool:
    """Whether a text has no secret, no trace of one, and nothing sensitive."""
    return not _REMOVED.search(text) and redact(text) == text and sensitive_category(text) is None


def is_passing(fact: CallerFact, lines: Sequence[SpokenLine]) -> bool:
    """Whether a fact reports a question or an opinion, or its lines are only questions and passing remarks."""
    reported, remark = _passing_patterns()
    if reported.search(fact.text):
        return True
    said = (lines[turn].text.replace("’", "'") for turn in fact.turns if lines[turn].speaker == "caller")
    sentences = [statement_part(sentence) for text in said for sentence in _SENTENCE_END.split(text)]
    # The sentences with the fact's own words, else those long enough to say something.
    words = _beginnings(fact.text)
    telling = [sentence for sentence in sentences if words & _beginnings(sentence)]
    telling = telling or [sentence for sentence in sentences if len(sentence.split()) >= _LEAST_WORDS]
    return bool(telling) and all(remark.search(sentence) for sentence in telling)


def statement_part(sentence: str) -> str:
    """A sentence without a question at its end ("I pay by card, is that okay?"); a standing request as a statement."""
    if not sentence.rstrip().endswith("?"):
        return sentence
    tail, standing = _question_patterns()
    if request := standing.search(sentence):
        return sentence[request.end("lead") :].rstrip("? ")
    head = tail.sub("", sentence)
    return head if len(head.split()) >= _LEAST_STATEMENT else sentence


@lru_cache(maxsize=1)
def _question_patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """A question after a statement, and a request that holds for the future."""
    tables: list[dict[str, Any]] = [language_table(language, "statements") for language in LANGUAGES]
    tail, standing = ("|".join(table[name] for table in tables) for name in ("question_tail", "standing"))
    lead = "|".join(table["request_lead"] for table in tables)
    return (
        re.compile(rf"(?:[,;]\s*(?:{tail})\b[^,;]*|\s*¿.*)\?\s*$", re.IGNORECASE),
        re.compile(rf"^(?P<lead>(?:{lead})\b\s*)(?=.*\b(?:{standing})\b)", re.IGNORECASE),
    )


def _beginnings(text: str) -> set[str]:
    """The beginnings of the longer words."""
    return {word[:4] for word in re.findall(r"\w{4,}", text.casefold())}


@lru_cache(maxsize=1)
def _passing_patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """What only reports a question or an opinion, and what a passing remark contains."""
    tables: list[dict[str, Any]] = [language_table(language, "statements") for language in LANGUAGES]
    reported = "|".join(table["reported"] for table in tables)
    remark = "|".join(rf"\b(?:{table['chatter']})\b|{table['question']}" for table in tables)
    return re.compile(rf"^(?:{reported})\b", re.IGNORECASE), re.compile(rf"\?\s*$|{remark}", re.IGNORECASE)


def _rests_on_sensitive(fact: CallerFact, lines: Sequence[SpokenLine]) -> bool:
    """Whether the caller's words for a fact are sensitive, however harmless the model's are. Clauses count alone."""
    said = [lines[turn].text for turn in fact.turns if lines[turn].speaker == "caller"]
    clauses = [clause for text in said for clause in _CLAUSE_END.split(text) if clause.strip()]
    words = _words([fact.text])
    telling = [clause for clause in clauses if words & _words([clause])]
    return bool(telling) and all(map(sensitive_category, telling))


def _rests_on_orders(fact: CallerFact, lines: Sequence[SpokenLine]) -> bool:
    """Whether the caller's words for a fact are only orders to whoever writes the notes."""
    said = [lines[turn].text for turn in fact.turns if lines[turn].speaker == "caller"]
    parts = [sentence for text in said for sentence in sentences(text)]
    words = _words([fact.text])
    telling = [part for part in parts if words & _words([part])] or parts
    return bool(telling) and all(map(cue("facts", "to_reader").search, telling))


@dataclass(frozen=True, slots=True)
class Orders:
    """Words of the caller's orders to whoever writes the notes: "write that the caller is the owner"."""

    words: frozenset[str]

    @classmethod
    def of(cls, lines: Sequence[SpokenLine]) -> "Orders":
        order = cue("facts", "to_reader").search
        said = [(line.speaker, sentence) for line in lines for sentence in sentences(line.text)]
        orders = _words(sentence for speaker, sentence in said if speaker == "caller" and order(sentence))
        return cls(
            orders - _words(sentence for speaker, sentence in said if speaker != "caller" or not order(sentence))
        )

    def made(self, text: str) -> bool:
        """Whether a sentence of notes is such an order, or does what it wanted."""
        words = _words([text])
        return bool(
            cue("facts", "to_reader").search(text) or self.words and 2 * len(words & self.words) >= len(words) > 0
        )

    def without(self, text: str) -> str:
        return " ".join(sentence for sentence in sentences(text) if not self.made(sentence))


def _names_are_said(fact: CallerFact, lines: Sequence[SpokenLine], known: Iterable[str] = ()) -> bool:
    """
    Whether a fact's names and longer numbers occur in the call or in what is known: a model may invent some.

    A name counts as said if a word begins as it does. In German every noun has a capital, so names are not checked.
    """
    said = [*(line.text for line in lines), *known]
    numbers = [number.digits for number in spoken_numbers(fact.text) if len(number.digits) >= LEAST_DIGITS]
    spoken = ["".join(number.digits for number in spoken_numbers(text)) for text in said] if numbers else []
    if not all(any(number in digits for digits in spoken) for number in numbers):
        return False
    if spoken_language([line.text for line in lines]) is outcome_language("de"):
        return True
    names = {_folded(name)[:_NAME_BEGINNING] for name in _NAME.findall(fact.text)}
    beginnings = {word[:_NAME_BEGINNING] for text in said for word in re.findall(r"\w+", _folded(text))}
    return names <= beginnings | _joined_letters(said)


def _joined_letters(texts: Iterable[str]) -> set[str]:
    """The beginnings of spelled words: "B E R G"."""
    spelled = (run.replace(" ", "") for text in texts for run in _SPELLED.findall(_folded(text)))
    return {word[:_NAME_BEGINNING] for word in spelled}


def _folded(text: str) -> str:
    return unaccented(text.casefold())


def _on_lines(fact: CallerFact, lines: Sequence[SpokenLine]) -> CallerFact | None:
    """The fact with only its existing lines; None if the caller spoke none of them."""
    turns = tuple(turn for turn in fact.turns if 0 <= turn < len(lines)) if fact.turns else _lines_saying(fact, lines)
    return replace(fact, turns=turns) if any(lines[turn].speaker == "caller" for turn in turns) else None


def _lines_saying(fact: CallerFact, lines: Sequence[SpokenLine]) -> tuple[int, ...]:
    """The caller's lines with more than half of the words of a fact; those of a verb differ in their endings."""
    words = {word[:4] for word in _words([fact.text])}
    said = {turn: {word[:4] for word in _words([line.text])} for turn, line in enumerate(lines)}
    return tuple(
        turn
        for turn, spoken in said.items()
        if lines[turn].speaker == "caller" and 2 * len(words & spoken) > len(words)
    )


@dataclass(frozen=True, slots=True)
class _Echo:
    """Words that the agent took from its prompt and the caller did not say."""

    words: frozenset[str]

    @classmethod
    def of(cls, lines: Sequence[SpokenLine], recited: Iterable[str]) -> "_Echo":
        by_agent = _words(line.text for line in lines if line.speaker == "agent")
        by_caller = _words(line.text for line in lines if line.speaker == "caller")
        return cls((by_agent & _words(recited)) - by_caller)

    def made(self, text: str) -> bool:
        """Whether at least half of a text is echo."""
        words = _words([text])
        return 2 * len(words & self.words) >= len(words)


def _words(texts: Iterable[str]) -> frozenset[str]:
    """The distinctive words; a number is one word however it is grouped."""
    whole_numbers = " ".join(_SPLIT_NUMBER.sub("", text) for text in texts)
    words = re.findall(r"[^\W_]+", whole_numbers.casefold())
    return frozenset(singular(word) for word in words if word not in word_list("facts", "fillers"))
