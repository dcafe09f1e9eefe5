"""
Values in a spoken sentence: times, days, amounts, counts, names. The patterns are the table `outcomes` of a language.

A value has a slot. Two different values of one slot exclude each other ("at 7 pm", "at 8 pm"), values of different
slots do not ("from Leeds", "to York").
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

from gateway.text.languages import LANGUAGES, language_table
from gateway.text.plain_text import unaccented
from gateway.text.redaction import spoken_numbers

_CAPITALISED: Final = r"[A-ZÀ-Þ][\w'’&-]*[\w]\.?(?=\s[A-ZÀ-Þ])|[A-ZÀ-Þ][\w'’&-]*[\w]|[A-ZÀ-Þ]\.?(?=\s[A-ZÀ-Þ])"
_JOINED: Final = r"(?: (?:(?:of|the|and|de|la|del|du|von|der|&|-) ){0,2})"
_NAME: Final = re.compile(
    rf"(?<![\w'’])(?:\d+(?:st|nd|rd|th)? )?(?:{_CAPITALISED})(?:{_JOINED}(?:(?:{_CAPITALISED})|\d+(?=[ ,.]|$)))*"
    r"|(?<=['‘“\"])[A-ZÀ-Þ][^'’”\"]{1,40}(?=['’”\"])"
)
_CODE: Final = re.compile(r"(?<![\w$£€.,:])[#+]?[a-z]*\d[\w-]{2,}(?:[ -]\d[\w-]*)*", re.IGNORECASE)
LETTERS_AHEAD: Final = re.compile(r"(?<![\w'])(?![IA] )(?:[A-Z]{1,3}|[A-Z](?: [A-Z]){1,2})[ -]?(?=\d|$)")
"""Letters of a number, right before its digits: "BX 417"."""
LEAST_DIGITS: Final = 5
"""The least digits of a number that is told from others by them."""
_DAYS: Final = ("date", "weekday", "day")
"""Ways to name a day. "Friday" and "the 8th" may be the same one."""


@dataclass(frozen=True, slots=True)
class SpokenValue:
    """A value, its kind and role in the sentence, and its position. `key` is the same for other spellings."""

    kind: str
    role: str
    key: str
    text: str
    start: int
    end: int
    is_range_end: bool = False
    """Of "Monday to Wednesday", the later one."""

    @property
    def slot(self) -> tuple[str, str]:
        """Values of one slot exclude each other. A name or number without a role excludes nothing."""
        if self.kind in _DAYS:
            return "day", self.role
        own = self.digits if self.kind == "code" and len(self.digits) >= LEAST_DIGITS else self.key
        return self.kind, self.role if self.role or self.kind not in ("name", "code") else own

    @property
    def digits(self) -> str:
        return re.sub(r"\D", "", self.key)

    def equals(self, other: "SpokenValue") -> bool:
        """Whether both mean the same, as far as both say it: "10:45" and "10:45 am", "the 9th" and "March 9th"."""
        if self.kind != other.kind:
            return False
        if self.kind in ("time", "date"):
            mine, theirs = self.key.split("|"), other.key.split("|")
            return all(a == b or not a or not b for a, b in zip(mine, theirs, strict=True))
        if self.kind == "code" and len(self.digits) >= LEAST_DIGITS:
            return self.slot == other.slot
        fewer, more = sorted((set(self.key.split()), set(other.key.split())), key=len)
        return self.key == other.key or self.kind == "name" and fewer <= more


class OutcomeLanguage:
    """The patterns of one language. `cue(name)` is a compiled cue of its table."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self.table = table
        self._plain_words = frozenset(f"{table['plain_words']} {table['function_words']}".split())
        numbers = table["numbers"].split()
        self._numbers = {word: str(number) for number, word in enumerate(numbers)}
        self._tens = {word: str(10 * number) for number, word in enumerate(table["tens"].split(), 2)}
        self._ordinals = {word: str(number) for number, word in enumerate(table["ordinals"].split(), 1)}
        self._months = table["months"].split()
        spelled = "|".join(sorted([*numbers, *self._tens], key=len, reverse=True))
        spoken = f"{spelled}|{table['hundreds']}"
        ordinal = "|".join(sorted(self._ordinals, key=len, reverse=True))
        parts = {
            "n": rf"(?:\d{{1,2}}|(?:{spelled})(?:[ -](?:{spelled}))?)",
            "amount": rf"(?:\d[\d,.]*\d|\d|(?:a |{spoken})(?:[ -](?:{spoken}))*)",
            "ordinal": rf"(?:\d{{1,2}}(?:{table['ordinal_ending']})|(?:(?:{'|'.join(self._tens)})[ -])?(?:{ordinal}))",
            "month": f"(?:{'|'.join(self._months)})",
            "weekday": f"(?:{table['weekdays']})",
        }
        self._patterns = [
            (kind, re.compile(rf"(?<!\w)(?:{pattern.format(**parts)})(?!\w)", re.IGNORECASE))
            for kind, pattern in table["values"]
        ]
        self._roles = [
            (frozenset(kinds.split()), role, re.compile(rf"\b(?:{pattern})\W*$", re.IGNORECASE))
            for kinds, role, pattern in table["roles"]
        ]
        self._number = re.compile(rf"(?<![\w-])(?:\d+|(?:{spelled})(?:[ -](?:{spelled}))?)(?![\w-])", re.IGNORECASE)
        self._same_counted = {word: group.split()[0] for group in table["same_counted"] for word in group.split()}
        self._correction = re.compile(rf"[\s,.…—-]*\b(?:{table['correction']})\b[\s,.:…—-]*", re.IGNORECASE)
        self._fillers = re.compile(rf"(?<![\w'’])(?:{table['fillers']})(?![\w'’])[,.]?\s*", re.IGNORECASE)

    @lru_cache(maxsize=64)  # noqa: B019 — languages live as long as the process
    def cue(self, name: str) -> re.Pattern[str]:
        return re.compile(self.table[name], re.IGNORECASE)

    def cleaned(self, sentence: str) -> str:
        """Without fillers, words said twice, and values that were corrected in the same breath."""
        return " ".join(self.corrected(self.without_fillers(sentence)).split()).strip(" ,")

    def without_fillers(self, sentence: str) -> str:
        """Without fillers and small words said twice; digits are often said twice."""
        words = self._fillers.sub("", sentence.replace("’", "'")).split()
        repeated = (
            word == last and word.casefold() in self._plain_words - self._numbers.keys()
            for last, word in pairwise(words)
        )
        return " ".join(words[:1] + [word for word, again in zip(words[1:], repeated, strict=True) if not again])

    def without_opening(self, sentence: str) -> str:
        """Without "okay", "hello" and the like at the beginning."""
        opening = self.cue("opening").match(sentence)
        return sentence[opening.end() :] if opening else sentence

    def content_words(self, text: str) -> set[str]:
        return set(re.findall(r"[\w']+", text.casefold())) - self._plain_words

    def values(self, sentence: str) -> list[SpokenValue]:
        """The values of a sentence in their order; the longest where several begin."""
        return list(self._values(sentence))

    @lru_cache(maxsize=16)  # noqa: B019 — as above; a sentence is read several times in a row
    def _values(self, sentence: str) -> tuple[SpokenValue, ...]:
        found: list[SpokenValue] = []
        for kind, start, end, key in self._candidates(sentence):
            if end > start and not any(start < other.end and other.start < end for other in found):
                fit = (role for kinds, role, cue in self._roles if kind in kinds and cue.search(sentence[:start]))
                role = key.partition(":")[0] if kind == "count" else next(fit, "")
                found.append(SpokenValue(kind, role, key, sentence[start:end], start, end))
        return tuple(self._with_ranges(sentence, sorted(found, key=lambda value: value.start)))

    def _with_ranges(self, sentence: str, values: list[SpokenValue]) -> list[SpokenValue]:
        """In "Friday the 12th to Sunday the 14th" the later days have the role "end", so that both parts are kept."""
        is_end = False
        for place, (one, two) in enumerate(pairwise(values), 1):
            between = sentence[one.end : two.start]
            is_joined = one.slot[0] == two.slot[0] and one.kind in (*_DAYS, "time")
            if is_joined and self.cue("range").fullmatch(between):
                is_end = True
            elif not (is_joined and is_end and between.strip(" ,") in ("", "the")):
                is_end = False
            if is_end:
                values[place] = replace(two, role="end", is_range_end=True)
        return values

    def _candidates(self, sentence: str) -> Iterator[tuple[str, int, int, str]]:
        for kind, pattern in self._patterns:
            for match in pattern.finditer(sentence):
                yield kind, match.start(), match.end(), self._key(kind, match)
        for match in _NAME.finditer(sentence):
            start, end = self._name_span(sentence, match)
            words = re.findall(r"[^\W_]+", unaccented(sentence[start:end].casefold()))
            if any(len(word) > 1 for word in words):
                is_code = not words[0].isdigit() and any(word.isdigit() for word in words)  # "PX 48213"
                yield "code" if is_code else "name", start, end, " ".join(words)
        for match in _CODE.finditer(sentence):
            yield "code", *match.span(), re.sub(r"\W", "", match[0].casefold())
        for number in spoken_numbers(sentence):
            if len(number.digits) >= LEAST_DIGITS:
                letters = LETTERS_AHEAD.search(sentence, 0, number.start)
                yield "code", letters.start() if letters else number.start, number.end, number.digits

    def _name_span(self, sentence: str, match: re.Match[str]) -> tuple[int, int]:
        """A run of capitals without common words at its ends; the first word of a sentence has a capital anyway."""
        start, end = match.span()
        not_names = self.cue("not_a_name")
        while start < end and (common := not_names.match(sentence, start, end)):
            start = common.end() + len(sentence[common.end() : end]) - len(sentence[common.end() : end].lstrip())
        is_first = not sentence[:start].strip(" '\"") or sentence[:start].rstrip().endswith((".", "!", "?", ":"))
        if is_first and " " not in sentence[start:end]:
            return start, start
        return start, end

    def _key(self, kind: str, match: re.Match[str]) -> str:
        parts = {name: text.casefold() for name, text in match.groupdict().items() if text}
        if kind == "count":
            noun = parts.get("noun", "")
            noun = (
                self._same_counted.get(noun, noun.removesuffix("s"))
                if noun
                else self.table["same_counted"][0].split()[0]
            )
            return f"{noun}:{self.number(parts['count'])}"
        if kind == "time":
            return self._time_key(parts, match[0].casefold())
        if kind == "date":
            month = next((str(n) for n, month in enumerate(self._months, 1) if month in parts.get("in", "")), "")
            return f"{month}|{self.number(parts['day'])}"
        if kind == "money":
            return re.sub(r"\D|(?<=\.)0+$", "", parts["sum"]) or self.number(parts["sum"])
        return unaccented(match[0].casefold())

    def _time_key(self, parts: Mapping[str, str], text: str) -> str:
        hour = int(self.number(parts["hour"]) or 0) if "hour" in parts else 12
        minute = int(self.number(parts.get("minute") or parts.get("minute2") or "0") or 0)
        if self.cue("half_past").search(text):
            minute = 30
        if "quarter_past" in parts or "past" in parts:
            minute = 15 if "quarter_past" in parts else int(self.number(parts["minutes"]))
        if "quarter_to" in parts or "before" in parts:
            hour, minute = hour - 1 or 12, 45 if "quarter_to" in parts else 60 - int(self.number(parts["minutes"]))
        later = self.cue("after_noon").search(text)
        earlier = self.cue("before_noon").search(text)
        half = "pm" if later or hour > 12 else "am" if earlier else ""
        return f"{hour % 12}:{minute:02}|{half}"

    def in_place_of(self, old: str, new: str) -> str:
        """
        The words for a new value where an old one stood.

        "Six people" after "a table for four" is "a table for six people", "472" after "BX 471" is "BX 472".
        """
        new = re.sub(r"(?<=\b\d), (?=\d\b)", " ", new)  # the script says digits one by one
        if (letters := LETTERS_AHEAD.match(old)) and new[:1].isdigit():
            return letters[0] + new
        if (month := self.cue("month_part").search(old)) and not self.cue("month_part").search(new):
            is_day = self.number(new.casefold().removeprefix("the ")).isdigit()
            return f"{new} {month[0]}" if is_day and old.endswith(month[0]) else new
        was, now = self._number.search(old), self._number.search(new)
        return old[: was.start()] + new[now.start() :] if was and now and was.end() == len(old) else new

    def number(self, words: str) -> str:
        """Digits for a number in digits or words; the words if it is none."""
        if digits := re.match(r"\d+", words):
            return str(int(digits[0]))
        total = 0
        for word in re.split(r"[ -]", words):
            value = self._numbers.get(word) or self._tens.get(word) or self._ordinals.get(word)
            if value is None:
                return words
            total += int(value)
        return str(total)

    def corrected(self, sentence: str) -> str:
        """ "On Tuesday, no, Wednesday" is "on Wednesday"."""
        for cue in self._correction.finditer(sentence):
            values = self.values(sentence)
            wrong = next((value for value in reversed(values) if 0 <= cue.start() - value.end <= 5), None)
            right = next((value for value in values if 0 <= value.start - cue.end() <= 12), None)
            if wrong is None or right is None:
                digits = re.search(r"\b\d+$", sentence[: cue.start()])
                if digits and re.match(r"\d", sentence[cue.end() :]):
                    return self.corrected(sentence[: digits.start()] + sentence[cue.end() :])
                continue
            if wrong.kind == right.kind or wrong.slot[0] == right.slot[0] == "day":
                month = self.cue("month_part").search(wrong.text) if wrong.kind == right.kind == "date" else None
                rest = sentence[right.end :]
                needs_month = month and not self.cue("month_part").search(right.text)
                text = f"{right.text} {month[0]}" if month and needs_month else right.text
                return self.corrected(sentence[: wrong.start] + text + rest)
        return sentence


def load() -> None:
    """Compile the English patterns ahead of the first call."""
    language = outcome_language("en")
    for name, pattern in language.table.items():
        if isinstance(pattern, str):
            language.cue(name)


@lru_cache(maxsize=len(LANGUAGES))
def outcome_language(name: str) -> OutcomeLanguage:
    return OutcomeLanguage(language_table(name, "outcomes"))


def spoken_language(texts: Sequence[str]) -> OutcomeLanguage:
    """The language whose function words the texts use most."""
    words = [word for text in texts for word in re.findall(r"\w+", text.casefold())]

    def uses(name: str) -> int:
        function_words = language_table(name, "outcomes")["function_words"].split()
        return sum(map(words.count, function_words))

    return outcome_language(max(LANGUAGES, key=uses))
