"""
Extracts facts without a model: lasting statements of callers about themselves, in English, German, Spanish and French.

The rules are the table `statements` of each language. In doubt a rule does not match: questions, quotes, passing
remarks, and statements with an "if" or a "maybe" are ignored.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from gateway.finalization.summary.facts import MAX_FACT_CHARACTERS, keep_facts, statement_part
from gateway.memory.facts import CallerFact, FactType
from gateway.text.languages import LANGUAGES, language_table, load_cues
from gateway.text.plain_text import SpokenLine
from gateway.text.spoken_values import LEAST_DIGITS, SpokenValue, spoken_language

_CODE: Final = r"(?=[\w-]*\d)[a-z\d][a-z\d-]{2,}(?: (?=[\w-]*\d)[a-z\d-]+)*|\d+(?: \d+)+"
_PHONE: Final = r"\+?\(?\d[\d ().-]{5,18}\d"
_EMAIL: Final = r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"
_WORDS: Final = r"[^.;:!?]{1,140}?"
_QUOTES: Final = re.compile(r"[\"“”„«»]")
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+")
_CLAUSE_END: Final = re.compile(r"[,;:]")
_BEFORE_VOWEL: Final = re.compile(r"(?<=^Has )a (?=[aeio])")
_ARTICLE: Final = re.compile(r"^(?:A|An|The) ")
_DANGLING: Final = re.compile(r" (?:now|here|instead|at last|again|jetzt|ahora|maintenant)$")


@dataclass(frozen=True, slots=True)
class _FactRule:
    """A pattern for a statement, and the fact it makes: the named groups fill the template."""

    type: FactType
    confidence: float
    pattern: re.Pattern[str]
    template: str


@dataclass(frozen=True, slots=True)
class _Language:
    """The rules of a language. A sentence with something of `not_meant`, or `ahead` of a statement, states nothing."""

    rules: tuple[_FactRule, ...]
    answers: tuple[tuple[re.Pattern[str], _FactRule], ...]
    """What the agent asks, and the rule for the answer."""
    renames: tuple[_FactRule, ...]
    """Statements that correct the caller's known name."""
    fillers: re.Pattern[str]
    not_meant: re.Pattern[str]
    ahead: re.Pattern[str]
    third_person: Mapping[str, str]
    verb_endings: tuple[tuple[str, str], ...]
    function_words: frozenset[str]
    others: re.Pattern[str]
    """Words for other people, whose address or number this is."""

    def verb(self, word: str) -> str:
        """A verb in the third person, perhaps with its object."""
        word, space, rest = word.partition(" ")
        return self._conjugated(word) + space + rest

    def _conjugated(self, word: str) -> str:
        if known := self.third_person.get(word.lower()):
            return known
        ending, other = next(pair for pair in self.verb_endings if re.search(pair[0], word))
        return re.sub(ending, other, word, count=1)

    def reported(self, words: str) -> str:
        """Words as they are said of another person: "my coffee" is "their coffee"."""
        others = (self.third_person.get(word.lower(), word) if word.islower() else word for word in words.split())
        return _DANGLING.sub("", " ".join(filter(None, others)).strip(" -"))


@lru_cache(maxsize=1)
def _languages() -> tuple[_Language, ...]:
    return tuple(
        _language(language_table(name, "statements"), language_table(name, "outcomes")["function_words"].split())
        for name in LANGUAGES
    )


def _language(table: dict[str, Any], function_words: Iterable[str]) -> _Language:
    end = rf"(?=,(?! (?:as|with|in|on|at|number|número) )|[;:!?]|\.(?:\s|$)|$|\s+(?:{table['end']})\b)"
    # Some recognisers write no capitals: then a name is one word, and the sentence ends there or goes on.
    not_a_name = rf"(?!(?i:{table['not_a_name']})\b)"
    capital = rf"{not_a_name}(?-i:[A-ZÀ-Þ][\w'-]+(?: [A-ZÀ-Þ][\w'-]+){{0,2}})"
    small = rf"{not_a_name}(?-i:[a-zß-ÿ]{{2,}})(?=[.,!]|$| (?:{table['after_name']})\b)"
    parts = {
        "end": end,
        "words": _WORDS,
        "thing": rf"(?!(?:{table['not_a_thing']})\b){_WORDS}{end}",
        "not_a_thing": f"(?:{table['not_a_thing']})",
        "name": rf"(?P<name>{capital}|{small})",
        "capital_name": rf"(?P<name>{capital})",
        "code": rf"(?P<code>{_CODE})",
        "phone": rf"(?P<phone>{_PHONE})",
        "email": rf"(?P<email>{_EMAIL})",
        "street": rf"(?P<street>{table['street']})",
        "role": f"(?:{table['role']})",
        "person": f"(?:{table['person']})",
        "owned": table["owned"],
    }

    def compiled(type_: FactType, confidence: float, rule: str, template: str) -> _FactRule:
        pattern = re.compile(rf"(?<!\w)(?:{rule.format(**parts)})", re.IGNORECASE)
        return _FactRule(type_, confidence, pattern, template)

    return _Language(
        rules=tuple(compiled(*rule) for rule in table["rules"]),
        answers=tuple((re.compile(asked, re.IGNORECASE), compiled(*rule)) for asked, *rule in table["answers"]),
        renames=tuple(compiled("identity", 0.95, rule, table["rename"]) for rule in table["renames"]),
        fillers=re.compile(table["fillers"], re.IGNORECASE),
        not_meant=re.compile(rf"\?\s*$|\b(?:{table['passing']}|{table['doubt']})\b|{table['question']}", re.IGNORECASE),
        ahead=re.compile(rf"\b(?:{table['ahead']})\b", re.IGNORECASE),
        third_person=table["third"],
        verb_endings=tuple((ending, other) for ending, other in table["endings"]),
        function_words=frozenset(function_words),
        others=re.compile(rf"\b(?:{table['others']})\b", re.IGNORECASE),
    )


def load() -> None:
    """Compile the rules ahead of the first call."""
    _languages()
    load_cues("facts")


def extract(lines: Sequence[SpokenLine]) -> tuple[CallerFact, ...]:
    """What the caller stated plainly, at most five facts in spoken order; usually none."""
    language = spoken_language([line.text for line in lines])
    found: list[CallerFact] = []
    question = ""
    for turn, line in enumerate(_corrected(lines)):
        text = " ".join(line.text.replace("’", "'").split())
        if line.speaker == "agent":
            question = text if "?" in text else ""
            continue
        if question:
            found += _answered(question, language.corrected(text), turn)
        for sentence in _SENTENCE_END.split(text):
            found += _stated(language.corrected(sentence), turn)
        question = ""
    return keep_facts(found, lines)


def _corrected(lines: Sequence[SpokenLine]) -> list[SpokenLine]:
    """
    The lines with the numbers and addresses that the caller corrected later: "No, 202 555 0163".

    What the scripted agent says that it has changed counts, too.
    """
    language = spoken_language([line.text for line in lines])
    corrected = list(lines)
    for turn, line in enumerate(lines):
        is_read_back = "heard" in language.table and language.cue("heard").search(line.text)
        if not language.cue("change").search(line.text) or line.speaker == "agent" and not is_read_back:
            continue
        for new in language.values(line.text):
            for place in reversed(range(turn)):
                said = corrected[place].text
                old = next((one for one in language.values(said) if _is_another(one, new)), None)
                if old and corrected[place].speaker == "caller":
                    said = said[: old.start] + language.in_place_of(old.text, new.text) + said[old.end :]
                    corrected[place] = replace(corrected[place], text=said)
                    break
    return corrected


def _is_another(old: SpokenValue, new: SpokenValue) -> bool:
    """Whether a value is a number as long as another one, or an address in the same street."""
    if old.kind != new.kind or old.equals(new):
        return False
    if new.kind == "code":
        return len(old.digits) == len(new.digits) >= LEAST_DIGITS
    shared = set(old.key.split()) & set(new.key.split())
    return new.kind == "name" and bool(old.digits and new.digits and shared)


def _answered(question: str, answer: str, turn: int) -> Iterator[CallerFact]:
    """What a short answer states: "What's the address?" "14 Mossbank Terrace"."""
    for language in _possible_languages(question, slack=0)[:1]:
        for asked, rule in language.answers:
            if asked.search(question) and (match := rule.pattern.search(answer)):
                if not language.others.search(answer[: match.start()]):
                    yield CallerFact(_worded(rule, match, language), rule.type, rule.confidence, (turn,))


def _stated(sentence: str, turn: int) -> Iterator[CallerFact]:
    if _QUOTES.search(sentence):
        return
    whole, sentence = sentence, statement_part(sentence)
    for language in _possible_languages(sentence):
        for rename in language.renames:
            if match := rename.pattern.search(whole):
                text = _worded(rename, match, language)
                yield CallerFact(text, rename.type, rename.confidence, (turn,), relation="replaces")
        spoken = " ".join(language.fillers.sub(" ", sentence).split()).strip(" ,")
        if language.not_meant.search(spoken):
            continue
        taken: list[tuple[int, int]] = []
        for rule in language.rules:
            match = rule.pattern.search(spoken)
            if match is None or language.ahead.search(_CLAUSE_END.split(spoken[: match.start()])[-1]):
                continue
            if any(match.start() < end and start < match.end() for start, end in taken):
                continue
            taken.append(match.span())
            text = _worded(rule, match, language)
            if len(text) <= MAX_FACT_CHARACTERS:
                yield CallerFact(text, rule.type, rule.confidence, (turn,))


def _possible_languages(sentence: str, *, slack: int = 1) -> list[_Language]:
    """
    The languages with the most function words in the sentence, or `slack` fewer. Counting costs less than patterns.
    """
    words = re.findall(r"\w+", sentence.casefold())
    counts = [sum(word in language.function_words for word in words) for language in _languages()]
    return [language for language, count in zip(_languages(), counts, strict=True) if count >= max(counts) - slack]


def _worded(rule: _FactRule, match: re.Match[str], language: _Language) -> str:
    """The fact in the third person; a name gets its capital."""
    parts = {}
    for name, value in match.groupdict(default="").items():
        if name in ("name", "street"):
            value = value.strip(" ,.")
            parts[name] = value[:1].upper() + value[1:]
        elif name == "verb":
            parts[name] = language.verb(value.lower())
        else:
            lead = " " if value.startswith((" ", ",")) else ""
            value = _ARTICLE.sub(lambda article: article[0].lower(), value)
            parts[name] = lead + language.reported(value.strip(" ,"))
    text = _BEFORE_VOWEL.sub("an ", " ".join(rule.template.format(**parts).split()))
    return text[:1].upper() + text[1:]
