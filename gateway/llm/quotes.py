"""
What the scripted agent can quote: notes of earlier calls, what the caller said in this one, passages of documents.

Quotes are chosen by the words that they share with a question. Only what lasts is a note: no question, greeting or
closing is ever quoted.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final

from gateway.text.languages import LANGUAGES, language_table, load_language
from gateway.text.plain_text import trimmed
from gateway.text.redaction import redact, spoken_numbers
from gateway.text.sensitive import sensitive_category, sentences
from gateway.text.spoken_values import LETTERS_AHEAD, OutcomeLanguage, outcome_language

_QUOTE_CHARACTERS: Final = 200
_FEWEST_DIGITS: Final = 3
_LEAST_WORDS: Final = 3
_HEADING_WORTH: Final = 0.7  # of a word in the heading above a sentence
_KIND_WORTH: Final = 0.5  # of a time where a time is asked for, or of a price
_LIGHT_WORTH: Final = 0.5  # of a verb that says little, such as "bring"
_RARE_WORTH: Final = 0.1  # of a word that no other candidate has, so that it decides between equals
SHARE: Final = 0.6
"""The least share of the words of a question in a quotation that answers it."""
OWN_SHARE: Final = 0.5
"""The same for notes, where callers ask about themselves."""
ELSEWHERE: Final = 0.5
"""What a word of a question weighs if only another passage has it: the question is about the documents' subject."""
_GAP: Final = 12  # characters between two values that are said back together: "next Tuesday at half past three"
_CONFIRMED: Final = {"time": "time", "date": "day", "weekday": "day", "day": "day", "money": "amount"}

_COUNT: Final = "count "  # and what is counted
_ONE_DIGIT: Final = 9
_SECRETS: Final = ("account", "credential", "one_time_code", "identity_number")
_NO_NOTES: Final = "question not_a_note repeat here wait who person_wanted message goodbye insult".split()
_SPEAKER: Final = re.compile(r"\b(Caller|Agent): ")
_EDGES: Final = " ;,.-…"
_HEADINGS: Final = re.compile(
    r"[#\s-]*(?:Topics Discussed|Key Decisions|Action Items|Important Facts|Context for Next Call)[#:\s-]*(?:\[ \] )?"
    r"|(?:[#\s]*Voice Call Summary[^#*]*?)?\**Session:\**.{1,120}?\**Caller:\**[^()]{0,90}\([^)]*\)"
    r"(?: \**Agent:\** \S+)?"
    r"|(?<!\w)\[ \] "
)
"""Headings and the header of a summary, and the boxes of its action items."""
_ITEM: Final = re.compile(r"\n| - (?=(?:Caller|Agent): |[A-Z])")
_BLOCK: Final = re.compile(r"<(call_notes|caller_facts|pinned_topics|known)>\n(.*?)\n</\1>", re.DOTALL)
_LABEL: Final = re.compile(
    r"^(?:Context for this call|Open action items|Key decisions|Important facts|Topics|Still to be done for [^:]+): "
)
_TOPICS: Final = "Topics: "
_URGENT: Final = ("Open action items", "Key decisions", "Still to be done for")
_TITLE: Final = re.compile(r"^[^:.]{0,80}?(?:Summary|fact|Fact)[^:]*(?::\d\d [AP]M)?: ")
_NUMBER_OF_CALLER: Final = re.compile(r"\((?:\+|plus )\d{7,}\)")
_PASSAGE: Final = re.compile(r"^\[([^\]\n]+)\]\n", re.MULTILINE)
_LIST_ITEM: Final = re.compile(r"^\s*(?:[-*+•]|\d+[.)])\s+", re.MULTILINE)
_TABLE: Final = re.compile(r"^\s*\|?(.*?)\|?\s*$")


@dataclass(frozen=True)
class Heard:
    """A time, day, amount or number in a caller's words. `spoken` is how it is said back."""

    kind: str
    spoken: str
    start: int
    end: int


class ScriptLanguage:
    """What the script understands and says in one language, from its table `scripted`."""

    def __init__(self, name: str) -> None:
        table: Mapping[str, Any] = language_table(name, "scripted")
        self.say: Mapping[str, Any] = table["say"]
        self.values: OutcomeLanguage = outcome_language(name)
        self._cues = {cue: re.compile(pattern, re.IGNORECASE) for cue, pattern in table["cues"].items()}
        self._cues["insult"] = self.values.cue("insult")
        self._common = frozenset(table["common"].split())
        self._phrases = [(re.compile(phrase, re.IGNORECASE), word) for phrase, word in table["phrases"]]
        self._week: list[str] = table["week"].split()
        days = "|".join(self._week)
        self._days = re.compile(rf"\b({days})s?(?: (?:{table['until']}) | ?[-–] ?)({days})s?\b", re.IGNORECASE)
        self._groups = {_stem(group.split()[0]): group for group in table["same"]}
        self._same = {_stem(word): first for first, group in self._groups.items() for word in group.split()}
        self._light, self._visits = (self.content(table[words]) for words in ("light", "visits"))

    def means(self, cue: str, text: str) -> bool:
        return self._cues[cue].search(text) is not None

    def is_all(self, cue: str, text: str) -> bool:
        return self._cues[cue].fullmatch(text.strip()) is not None

    def without(self, cue: str, text: str) -> str:
        return self._cues[cue].sub("", text, count=1)

    def content(self, text: str) -> frozenset[str]:
        """The words that a text is about, each in one form for all that mean the same."""
        for phrase, word in self._phrases:
            text = phrase.sub(f" {word} ", text)
        text = self._days.sub(lambda days: " ".join(self._from_day_to_day(*days.groups())), text)
        words = (word for word in re.findall(r"[^\W_]+(?:'[^\W_]+)?", text.casefold()) if word not in self._common)
        return frozenset(self._same.get(stem, stem) for stem in map(_stem, words))

    def _from_day_to_day(self, first: str, last: str) -> list[str]:
        start, end = self._week.index(first.casefold()), self._week.index(last.casefold())
        return (self._week * 2)[start : end + 1 + len(self._week) * (end < start)]

    def query(self, question: str) -> str:
        """The question, and words that its answer may have instead of its own."""
        return " ".join(
            [question, *(self._groups[word] for word in sorted(self.content(question) & self._groups.keys()))]
        )

    def heard(self, text: str) -> list[Heard]:
        """The times, days and amounts as they were said, and other numbers digit by digit."""
        found = [
            Heard(_CONFIRMED[value.kind], value.text, value.start, value.end)
            for value in self.values.values(text)
            if value.kind in _CONFIRMED
        ]
        is_number = self.means("number_wanted", text)
        if not is_number and self.means("amount_wanted", text):
            found += [one for one in self._amounts(text) if not _overlaps(one, found)]
        for number in spoken_numbers(text):
            letters = match[0] if (match := LETTERS_AHEAD.search(text, 0, number.start)) else ""
            spoken = ", ".join([*re.findall("[A-Z]", letters), *number.digits])
            one = Heard("number", spoken, number.start - len(letters), number.end)
            if len(number.digits) >= _FEWEST_DIGITS and (is_number or not _overlaps(one, found)):
                found = [*(other for other in found if not _overlaps(other, [one])), one]
        found = [one for one in found if not self.means("refused", text[: one.start])]
        return sorted(found, key=lambda one: one.start)

    def _amounts(self, text: str) -> Iterator[Heard]:
        """ "Forty two fifty", without a currency, and 42.50."""
        for match in self._cues["amount"].finditer(text):
            parts = match.groupdict()
            spoken = match[0]
            # "One thirty" may be 130, too.
            if parts.get("whole") and int(whole := self.values.number(parts["whole"].lower())) > _ONE_DIGIT:
                spoken = f"{whole}.{self.values.number(parts['cents'].lower())}"
            yield Heard("amount", spoken, match.start(), match.end())

    def said_back(self, text: str, heard: Sequence[Heard]) -> str:
        """ "Next Tuesday at half past three": adjacent values stay together."""
        parts: list[str] = []
        last: Heard | None = None
        for one in heard:
            gap = text[last.end : one.start] if last is not None else ""
            belong = last is not None and (
                {last.kind, one.kind} == {"day", "time"} or last.kind == one.kind and gap == " "
            )
            if belong and len(gap) <= _GAP and "." not in gap:
                parts[-1] += gap + one.spoken
            else:
                parts.append(one.spoken)
            last = one
        return f" {self.say['and']} ".join(parts)

    def is_correction(self, text: str) -> bool:
        return self.means("correction", text) or self.means("exchange", text)

    def is_note(self, text: str) -> bool:
        """Whether a sentence is worth remembering: no question, greeting, closing, or order to the agent."""
        if len(text.split()) < _LEAST_WORDS or "?" in text or _NUMBER_OF_CALLER.search(text):
            return False
        return not self.is_all("stop", text) and not any(self.means(cue, text) for cue in _NO_NOTES)

    def as_note(self, sentence: str) -> str:
        """What is worth remembering of a sentence: "Call me on Friday" of "Can you call me on Friday?"; else ""."""
        sentence = sentence.strip(_EDGES)
        lead = self._cues["request"].match(sentence)
        if lead and sentence.endswith("?") and self.means("action", sentence):
            sentence = sentence[lead.end() :].rstrip(f"?{_EDGES}")
            sentence = sentence[:1].upper() + sentence[1:]
        return sentence if self.is_note(sentence) else ""

    def stated(self, said: Iterable[str]) -> list[str]:
        """What the caller stated, sentence by sentence, with later corrections applied. Nothing private."""
        stated: list[str] = []
        for text in said:
            if self.is_correction(text) and self.correct(stated, text):
                continue
            whole = (self.values.corrected(sentence) for sentence in sentences(text) if not is_private(sentence))
            stated += filter(None, map(self.as_note, whole))
        return stated

    def correct(self, stated: list[str], text: str) -> str:
        """Replace the last values of the same kind by those of a correction. Returns the new sentence; "" for none."""
        if changed := self._exchange(stated, text) or self._change_end(stated, text):
            return changed
        for new in self.replaceable(text):
            for place in reversed(range(len(stated))):
                sentence = stated[place]
                old = [one for one in self.replaceable(sentence) if one.kind == new.kind]
                if old:
                    start, end = old[-1].start, old[-1].end
                    words = self.values.in_place_of(sentence[start:end], text[new.start : new.end])
                    stated[place] = changed = f"{sentence[:start]}{words}{sentence[end:]}"
                    break
        return changed

    def _exchange(self, stated: list[str], text: str) -> str:
        """ "Three, not two": put a number in the place of the last such one."""
        if (numbers := self._cues["exchange"].search(text)) is None:
            return ""
        old = self.values.number(numbers["old"].casefold())
        for place in reversed(range(len(stated))):
            for word in re.finditer(r"\w+", stated[place]):
                if self.values.number(word[0].casefold()) == old:
                    stated[place] = stated[place][: word.start()] + numbers["new"] + stated[place][word.end() :]
                    return stated[place]
        return ""

    def _change_end(self, stated: list[str], text: str) -> str:
        """ "It ends in six three": change the last digits of the last number."""
        if (ending := self._cues["ending"].search(text)) is None:
            return ""
        digits = next((number.digits for number in spoken_numbers(text) if number.start == ending.end()), "")
        for place in reversed(range(len(stated))):
            for old in reversed(spoken_numbers(stated[place])):
                if digits and len(old.digits) > len(digits):
                    new = " ".join(old.digits[: -len(digits)] + digits)
                    stated[place] = stated[place][: old.start] + new + stated[place][old.end :]
                    return stated[place]
        return ""

    def counts(self, heard: Iterable[Heard]) -> list[str]:
        return [one.spoken for one in heard if one.kind.startswith(_COUNT)]

    def replaceable(self, text: str) -> list[Heard]:
        """What a correction may replace: besides values also names, numbers of people and the like."""
        heard = self.heard(text)
        values = [one for one in self.values.values(text) if one.kind in ("name", "count")]
        values = [one for one in values if not self.means("refused", text[: one.start])]
        kinds = [one.kind if one.kind == "name" else f"{_COUNT}{one.role}" for one in values]
        found = [Heard(kind, one.text, one.start, one.end) for kind, one in zip(kinds, values, strict=True)]
        if not heard and not found and (last := re.search(r"[^\W_]+(?=\W*$)", text)):
            if self.values.number(last[0].casefold()).isdigit():  # "make that four"
                return [Heard("time", last[0], *last.span())]
        return sorted([*heard, *(one for one in found if not _overlaps(one, heard))], key=lambda one: one.start)

    def best(
        self,
        question: str,
        candidates: Iterable[tuple[str, str]],
        least_share: float,
        *,
        before: str = "",
        elsewhere: float = 1.0,
    ) -> list[tuple[float, str]]:
        """
        The candidates (a text, and the heading above it) that answer a question, the best first, with scores.

        `before` is the question before, which "and on Monday?" continues. `elsewhere`: what a word weighs that only
        another candidate has.
        """
        own_words = self.content(question)
        asked = own_words | self.content(before)
        worth = {word: _LIGHT_WORTH if word in self._light else 1.0 for word in asked}
        wants_time, wants_price = self.means("time_question", question), self.means("price_question", question)
        contents = [(text, self.content(text), self.content(heading)) for text, heading in candidates]
        uses = Counter(word for _, words, above in contents for word in (words | above) & asked)
        found: list[tuple[float, str]] = []
        for text, words, heading in contents:
            own, above = asked & words, asked & heading - words
            if not own and not above or own_words and not own_words & (own | above):
                continue
            score = sum(worth[word] for word in own) + _HEADING_WORTH * sum(worth[word] for word in above)
            missing = sum(worth[word] * (elsewhere if word in uses else 1.0) for word in asked - own - above)
            if score < least_share * (sum(worth[word] for word in own | above) + missing):
                continue
            fits = wants_time and self.means("time", text) or wants_price and self.means("price", text)
            score += _KIND_WORTH * fits
            score += _RARE_WORTH * (sum(1 / uses[word] for word in own) + len(own & heading))
            found.append((score, text))
        return sorted(found, key=lambda one: -one[0])

    def is_about_visit(self, question: str) -> bool:
        """Whether a question asks when an appointment is, and names nothing else that notes could have."""
        asked = self.content(question)
        return bool(asked) and asked <= self._visits and self.means("time_question", question)


@lru_cache(maxsize=len(LANGUAGES))
def script_language(tag: str) -> ScriptLanguage:
    """The language of a tag such as `de-AT`; English for one that the script does not speak."""
    return ScriptLanguage(tag if "scripted" in (load_language(tag) or {}) else "en")


class CallerMemory:
    """What a prompt says about the caller. The first block of each kind holds what is certain; only that is used."""

    def __init__(self, prompt: str, language: ScriptLanguage) -> None:
        self._language = language
        blocks: dict[str, list[str]] = {}
        for name, block in _BLOCK.findall(prompt):
            blocks.setdefault(name, block.splitlines())
        self.facts = blocks.get("caller_facts", [])
        self._calls = blocks.get("call_notes", [])
        self._topics = blocks.get("pinned_topics", [])
        self._found = blocks.get("known", [])

    @cached_property
    def name(self) -> str:
        names = (fact.removeprefix("Is called ") for fact in self.facts if fact.startswith("Is called "))
        return next(names, "")

    @property
    def about_caller(self) -> list[str]:
        """The facts, addressed to the caller."""
        return [second_person(fact) for fact in self.facts if not fact.startswith("Is called ")]

    def last_call(self) -> list[str]:
        """What was said in the newest call: first what is open or was decided, with times before all else."""
        newest: list[str] = []
        for line in self._calls[1:]:
            if line.startswith("Call of "):
                break
            if not line.startswith(_TOPICS):
                newest.append(line)
        urgent = [line for line in newest if line.startswith(_URGENT)]
        quotes = self._notes([*urgent, *newest])
        return sorted(quotes, key=lambda quote: not self._language.means("time", quote))

    def notes(self) -> list[str]:
        """All that can be quoted, what was found for this turn first."""
        found = [_TITLE.sub("", line) for line in self._found]
        known = {fact: second_person(fact) for fact in self.facts}
        calls = [line for line in self._calls if not line.startswith("Call of ")]
        quotes = self._notes([*found, *self._topics, *calls])
        return distinct([known.get(quote, quote) for quote in [*quotes[:1], *known.values(), *quotes[1:]]])

    def _notes(self, lines: Iterable[str]) -> list[str]:
        quotes = (quote for line in lines for quote in quotes_of(_LABEL.sub("", line)))
        return distinct(filter(None, map(self._language.as_note, quotes)))


# Texts


def quotes_of(line: str) -> list[str]:
    """The caller's sentences in a line of notes, and those without a speaker; no headers."""
    texts: list[str] = []
    for item in _ITEM.split(_HEADINGS.sub("\n", line)):
        note, *spoken = _SPEAKER.split(item)
        texts += [note, *(text for speaker, text in zip(spoken[::2], spoken[1::2], strict=True) if speaker == "Caller")]
    parts = (part for text in texts for piece in text.split("; ") for part in sentences(piece))
    return [part.strip(_EDGES) for part in parts if part.strip(_EDGES)]


def passages(result: str) -> list[tuple[str, str]]:
    """The sentences of a search in documents, each with the heading above it."""
    _, *parts = _PASSAGE.split(result)
    found: list[tuple[str, str]] = []
    for title, text in zip(parts[::2], parts[1::2], strict=True):
        heading = title.rpartition(" > ")[2]
        items = _LIST_ITEM.sub("\n\n", text)
        for paragraph in re.split(r"\n\s*\n", items):
            rows, above = [" ".join(paragraph.split())], heading
            if "|" in paragraph:
                rows = [_row(row) for row in paragraph.splitlines()]
                if len(rows) > 1 and not rows[1]:  # below the names of the columns stands a line of hyphens
                    above = f"{heading} {rows[0]}"
                    rows = rows[2:]
            found += [(sentence.strip(), above) for row in rows for sentence in sentences(row)]
    return found


def _row(row: str) -> str:
    """A row of a table as text, empty for one without letters and figures."""
    cells = [cell.strip() for cell in _TABLE.sub(r"\1", row).split("|")]
    return ", ".join(cell for cell in cells if cell.strip("-: "))


def is_secret(text: str) -> bool:
    """Whether a text has a card number, a password, a salary or the like, which is not even said back."""
    return redact(text) != text or sensitive_category(text) in _SECRETS


def is_private(text: str) -> bool:
    """Whether notes leave out a text, because it is secret or sensitive."""
    return redact(text) != text or sensitive_category(text) is not None


def joined(quotes: Iterable[str], most: int) -> str:
    """One sentence without its full stop, so that it can be recognised as a quotation as a whole."""
    short = (trimmed(" ".join(quote.split()), _QUOTE_CHARACTERS).rstrip(" .!;") for quote in quotes)
    return "; ".join([quote for quote in short if quote][:most])


def distinct(quotes: Iterable[str]) -> list[str]:
    """Without those whose words are all in an earlier one."""
    kept: list[tuple[frozenset[str], str]] = []
    for quote in quotes:
        words = _words(quote)
        if words and not any(words <= other for other, _ in kept):
            kept.append((words, quote))
    return [quote for _, quote in kept]


def shortest(quotes: Sequence[str]) -> list[str]:
    """Without those that have all words of another one."""
    return [quote for quote in quotes if not any(_words(other) < _words(quote) for other in quotes)]


def _words(quote: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", quote.casefold())) - {"i", "you", "ll", "will", "caller"}


def second_person(fact: str) -> str:
    """A fact, addressed to the caller: "Prefers tea" becomes "You prefer tea"."""
    verb, _, rest = fact.partition(" ")
    forms = {"Is": "are", "Has": "have", "Was": "were", "Does": "do", "Doesn't": "don't", "Isn't": "aren't"}
    base = forms.get(verb) or re.sub(r"(?<=[osxh])es$|(?<=[^s'])s$", "", re.sub(r"ies$", "y", verb)).lower()
    return f"You {base} {rest}".strip()


def _overlaps(one: Heard, others: Iterable[Heard]) -> bool:
    return any(one.start < other.end and other.start < one.end for other in others)


def _stem(word: str) -> str:
    """A word without common endings."""
    word = re.sub(r"'s$|(?<=\w{3})s$", "", word)
    return re.sub(r"(?:ed|ing|ie|e|y)$", "", word) if len(word) > 3 else word
