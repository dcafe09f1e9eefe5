"""
Names that callers give, and whether two names are one person's.

Recognised speech spells a name differently each time, and people use nicknames, titles or a surname alone. Two names
are compared by their words: equal, nicknames of each other (`names.toml`), homophones, or alike in spelling and sound.
"""

import enum
import functools
import re
import tomllib
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from importlib import resources
from typing import Any, Final

from gateway.text.languages import LANGUAGES
from gateway.text.plain_text import unaccented

_PARTICLES: Final = frozenset("van von der den de del della di da la le du al el bin ben ter zu dos das".split())
_NAME_WORD: Final = r"(?:(?:[^\W\d_]|dr|mr|mrs|ms|prof|sr|sra|mme|st)\.(?= \w)|[^\W\d_]+(?:['’-][^\W\d_]+)*)"
_NOUN_ENDINGS: Final = ("ung", "heit", "keit", "schaft", "nummer", "tion", "dienst", "service", "termin")
_ORIGINS: Final = tuple("ian ish ese ien ienne ais aise ain aine nol nola ense ano ana".split())
"""Endings of nationalities: "I'm Australian" gives no name. Some first names have them too: Brian, Alain, Diana."""
_WEAK: Final = frozenset({"i'm", "i am", "it's", "soy", "je suis", "c'est", "ich bin"})
"""Phrases that other things than names follow."""
_ANSWER_OPENING: Final = re.compile(
    r"^(?:(?:yes|yeah|sure|of course|okay|um+|uh+|it's|it is|that's|that would be|ja|klar|das ist|si|claro|es|oui"
    r"|bien sur|c'est)[,.]? )+",
    re.IGNORECASE,
)
_SPELLED: Final = re.compile(
    r"(?<![\w'’])(?:(?:[^\W\d_a-z][ -]){2,}[^\W\d_a-z]|([a-z])[ -](?!\1)(?:[a-z][ -]){2,}[a-z])(?![\w'’])"
)
"""Three letters or more. "I I I" and small letters are often a false start, so that four of those are needed."""
_BASE_LETTERS: Final = str.maketrans({"æ": "ae", "œ": "oe", "ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th"})
"""Of letters that are not a plain one with an accent."""
_WRITTEN_OUT: Final = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ø": "oe", "å": "aa"})
_LETTER_PAIR: Final = re.compile(r"([ao])e|(a)a|(?<![aeoq])(u)e")
"""What may stand for ä, ö, å or ü. The "ue" in "Bauer" and "Enrique" does not."""
_SHORT_WORD: Final = 3
_CONTRACTIONS: Final = ("'s", "'d", "'ll", "'ve", "'re", "'m", "n't")
_ALIKE: Final = 0.55
_UNLIKE: Final = 0.4
"""A first name and a surname that are both less alike than this were not misheard."""
_SHORT_ALIKE: Final = 0.7
_SHORT: Final = 4


class NameMatch(enum.Enum):
    """Whether a name that was given belongs to the person who is known."""

    SAME = "same"
    OTHER = "other"
    UNSURE = "unsure"


@dataclass(frozen=True, slots=True)
class PersonName:
    """A name as it was given, its words in lower case without accents and titles, and the gender a title implies."""

    text: str
    words: tuple[str, ...]
    gender: str = ""

    @classmethod
    def parse(cls, text: str) -> "PersonName":
        titles = _data().titles
        words: list[str] = []
        kept: list[str] = []
        gender = ""
        for word in text.split():
            folded = fold(word).strip(".,")
            if folded in titles and not words:
                gender = gender or titles[folded]
                continue
            if folded:
                words.append(folded)
                kept.append(word.strip(".,"))
        # The title with a surname alone shows who of a couple it is.
        whole = text.strip() if len(words) == 1 and gender in ("male", "female") else " ".join(kept) or text.strip()
        return cls(whole, tuple(words), gender)

    @property
    def is_titled(self) -> bool:
        return bool(self.gender)


def fold(text: str) -> str:
    """Lower case, no accents, plain apostrophes."""
    return unaccented(text.replace("’", "'").casefold().translate(_BASE_LETTERS))


def folded_words(name: str) -> tuple[str, ...]:
    """The words of a name in lower case without accents."""
    return tuple(re.findall(r"[^\W_]+(?:'[^\W_]+)*", fold(name)))


def folded_name(name: str) -> str:
    """The same in one text with a space before each word, so that a search finds the beginnings of words."""
    return "".join(f" {word}" for word in folded_words(name))


def searched_words(text: str) -> tuple[tuple[str, ...], ...]:
    """
    For each word of a search, the beginnings of words of a `folded_name` that match it.

    "Mueller" and "Müller" find each other. A short word without its second letters ends with a space, as the whole
    word: "Baer" finds "Bär", but "Joe" does not find "John".
    """
    written_out = unicodedata.normalize("NFC", text).casefold().translate(_WRITTEN_OUT)
    return tuple(map(_spellings, folded_words(text), folded_words(written_out)))


def _spellings(word: str, written_out: str) -> tuple[str, ...]:
    if word != written_out:
        return word, written_out
    plain = _LETTER_PAIR.sub(lambda match: match[match.lastindex or 0], word)
    if plain == word:
        return (word,)
    return word, plain if len(plain) > _SHORT_WORD else f"{plain} "


def load() -> None:
    """Read the data file ahead of the first call."""
    _data()


def introduced_name(text: str) -> PersonName | None:
    """The name by which a caller introduces themselves in these words; the last one where they correct it."""
    text = unicodedata.normalize("NFC", text)
    spoken = _spoken(text)
    found: tuple[int, PersonName] | None = None
    for phrase in _data().introductions.possible_in(spoken):
        for match in phrase.pattern.finditer(spoken.folded):
            has_capitals = any(character.isupper() for character in text)
            words = _name_words(text[slice(*match.span("name"))], has_capitals=has_capitals, is_sure=not phrase.is_weak)
            name = PersonName.parse(" ".join(words)) if words else None
            start = match.start("name")
            if name is None or not name.words or found is not None and start < found[0]:
                continue
            # Of two names at one place the longer one counts.
            if found is None or start > found[0] or len(name.words) >= len(found[1].words):
                found = start, name
    return _corrected(text, found) if found is not None else None


def answered_name(text: str, *, is_sure: bool = False) -> PersonName | None:
    """
    The name in a short answer to "what is your name?"; None if the answer is not just a name.

    `is_sure`: the question was about a name, so that "Bastian" is not taken for a nationality.
    """
    if introduced := introduced_name(text):
        return introduced
    words = _ANSWER_OPENING.sub("", " ".join(text.split())).rstrip(".!?,").split()
    has_capitals = any(word[:1].isupper() for word in words)
    name = _name_words(" ".join(words), has_capitals=has_capitals, is_sure=is_sure)
    return PersonName.parse(" ".join(name)) if name and len(words) <= len(name) + 2 else None


def relation_to_known(text: str) -> str:
    """How the caller says that they are not the person who usually calls: "his wife"; empty if they do not say so."""
    spoken = _spoken(unicodedata.normalize("NFC", text))
    for phrase in _data().relations.possible_in(spoken):
        if match := phrase.pattern.search(spoken.folded):
            named = _data().relatives[phrase.language].search(match.group())
            return named.group() if named else "someone else"
    return ""


def resolve(known: str, given: str, *, is_relative: bool = False) -> str:
    """
    The name of the person on the line: `known` from earlier calls, `given` in this one.

    A name that is merely unfamiliar is taken for a misheard one, unless the caller says that they are someone else.
    """
    if not known or not given:
        return given or known
    first, second = PersonName.parse(known), PersonName.parse(given)
    match compare(first, second):
        case NameMatch.SAME:
            return second.text if len(second.words) > len(first.words) else known
        case NameMatch.UNSURE if not is_relative:
            return known
    return given


def spelled_name(text: str) -> str:
    """A name that was spelled letter by letter ("T H A N D I", "B-Y-R-N-E", "b y r n e"); empty if none was."""
    match = _SPELLED.search(text)
    return re.sub(r"[ -]", "", match.group()).capitalize() if match else ""


def without_spelling(text: str) -> str:
    """The text without a name that is spelled letter by letter."""
    return " ".join(_SPELLED.sub("", text).split())


def is_no_name(name: PersonName) -> bool:
    """Whether this is a word for a role, such as "customer", or another word that is no name."""
    return set(name.words) <= _data().not_names


def compare(known: PersonName, given: PersonName) -> NameMatch:
    """Whether `given` is the person called `known`."""
    if not known.words or not given.words:
        return NameMatch.UNSURE
    genders = {known.gender, given.gender}
    if genders == {"male", "female"}:
        return NameMatch.OTHER
    if len(known.words) > 1 and len(given.words) > 1:
        return _compare_full(known.words, given.words)
    single, others = (known, given) if len(known.words) == 1 else (given, known)
    if single.is_titled and len(others.words) == 1 and not others.is_titled:
        return NameMatch.SAME if are_alike(single.words[0], others.words[0]) else NameMatch.UNSURE
    if any(are_alike(single.words[0], word) for word in others.words):
        return NameMatch.SAME
    return NameMatch.OTHER if _are_pair(single.words[0], others.words[0]) else NameMatch.UNSURE


def are_alike(first: str, second: str) -> bool:
    """Whether two words may be one name: equal, nickname, homophone, or spelled as it sounds."""
    if first == second:
        return True
    if _share(_data().nicknames, first, second) or _share(_data().homophones, first, second):
        return not _share(_data().pairs, first, second)
    if _are_pair(first, second) or first[0] in "aeiou" and second[0] not in "aeiouh":
        return False
    sound = _sound(first)
    if sound != _sound(second):
        return False
    limit = _SHORT_ALIKE if min(len(first), len(second)) <= _SHORT else _UNLIKE if len(sound) >= _SHORT else _ALIKE
    return _ratio(first, second) >= limit


def _compare_full(known: Sequence[str], given: Sequence[str]) -> NameMatch:
    first, last = are_alike(known[0], given[0]), are_alike(known[-1], given[-1])
    if last and not first:  # "Kate Lynn Moore" for Caitlin Moore
        first = are_alike("".join(known[:-1]), "".join(given[:-1]))
    if first and last:
        return NameMatch.SAME
    if last and not first:
        return NameMatch.OTHER  # a relative: the surname is shared, the first name is not
    if not first and not last and max(_ratio(known[0], given[0]), _ratio(known[-1], given[-1])) < _UNLIKE:
        return NameMatch.OTHER
    return NameMatch.UNSURE


def _ratio(first: str, second: str) -> float:
    return SequenceMatcher(None, first, second).ratio()


def _are_pair(first: str, second: str) -> bool:
    """Two people's names of which one is the other's female or male form: Paul and Paula."""
    if _share(_data().pairs, first, second):
        return True
    short, long = sorted((first, second), key=len)
    return len(short) > 2 and long in (f"{short}a", f"{short[:-1]}a", f"{short}ine", f"{short}ette", f"{short}ina")


def _share(groups: Mapping[str, frozenset[int]], first: str, second: str) -> bool:
    return bool(groups.get(first, frozenset()) & groups.get(second, frozenset()))


_SOUNDS: Final = {"sch": "s", "sz": "s", "sh": "s", "cz": "s", "ph": "f", "th": "t", "kh": "k", "ck": "k"}
_SOFT_G: Final = re.compile(r"^ge?(?=[eiy])")
_SOUNDS_OF_LETTERS: Final = str.maketrans("cqzvwjx", "kksffys")


def _sound(word: str) -> str:
    """The consonants of a name as they sound, in order."""
    for spelling, sound in _SOUNDS.items():
        word = word.replace(spelling, sound)
    word = _SOFT_G.sub("j", word)
    word = word.translate(_SOUNDS_OF_LETTERS)
    first, rest = ("a" if word[0] in "aeiouh" else word[0]), re.sub(r"[aeiouyh'-]", "", word[1:])
    return re.sub(r"(.)\1+", r"\1", re.sub(r"d$", "t", first + rest))


# Reading a name from words


def _name_words(text: str, *, has_capitals: bool, is_sure: bool = False) -> list[str]:
    """The words at the beginning of `text` that make up a name. `is_sure`: it is no nationality or the like."""
    data = _data()
    found: list[str] = []
    for word in text.split():
        folded = fold(word).strip(".,")
        if folded in data.titles and not [one for one in found if fold(one).strip(".") not in data.titles]:
            found.append(word)
        elif folded in _PARTICLES and found:
            found.append(word)
        elif not data.not_names.isdisjoint((folded, folded.removesuffix("'s"))) or folded.endswith(_NOUN_ENDINGS):
            break
        elif folded.endswith(_CONTRACTIONS):  # "this is Derek's daughter", "We'd like"
            break
        elif not (is_sure or found or data.is_known(folded)) and _is_other_word(word, folded):
            break
        elif found and folded == fold(found[-1]) and not word[:1].isupper():
            continue  # "this is robert robert kim"
        elif (
            word[:1].isupper()
            or not has_capitals
            and (not found or folded in data.nicknames or len(found) < 2 or folded == fold(found[0]))
        ):
            found.append(word)
        else:
            break
    while found and fold(found[-1]) in _PARTICLES and not (len(found) == 1 and found[0][:1].isupper()):
        found.pop()
    return found


def _is_other_word(word: str, folded: str) -> bool:
    """Whether a word after "I'm" is a nationality, or says what the caller does: "i'm coming by car"."""
    return len(folded) > 4 and (folded.endswith(_ORIGINS) or folded.endswith("ing") and word.islower())


def _corrected(text: str, found: tuple[int, PersonName]) -> PersonName:
    """ "Eva Byrne? No, Aoife": a name right after a correction replaces the first name."""
    start, name = found
    after = text[start + len(name.text) :]
    match = re.match(rf"[?.,!\s]*(?i:no|sorry|i mean|nein|nicht|perdon|non),? ({_NAME_WORD})", after)
    if match and match.group(1)[:1].isupper() and fold(match.group(1)) not in _data().not_names:
        corrected = PersonName.parse(match.group(1))
        return PersonName(corrected.text, (*corrected.words, *name.words[1:]), name.gender)
    return name


class _SameLength(dict[int, str]):
    """A table for `str.translate` that folds each character to one character, so that positions stay the same."""

    def __missing__(self, code: int) -> str:
        self[code] = folded = fold(chr(code))[:1] or chr(code)
        return folded


_SAME_LENGTH: Final = _SameLength()


@dataclass(frozen=True, slots=True)
class _Spoken:
    """A turn, folded to the same length, and its words."""

    folded: str
    words: frozenset[str]


@functools.lru_cache(maxsize=8)  # a turn is searched for a name and for a relation
def _spoken(text: str) -> _Spoken:
    folded = text.translate(_SAME_LENGTH)
    return _Spoken(folded, frozenset(re.findall(r"\w+", folded)))


# Data


@dataclass(frozen=True)
class _Phrase:
    """A pattern of a language, compiled when it is first needed, and its place in the table."""

    language: str
    expression: str
    place: int
    is_weak: bool

    @functools.cached_property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(self.expression)


class _Phrases:
    """Phrases by a word that each needs: most turns hold few of these words, and a lookup costs less than a search."""

    def __init__(self) -> None:
        self._by_word: dict[str, list[_Phrase]] = {}
        self._size = 0

    def add(self, language: str, expression: str, words: Iterable[str], *, is_weak: bool = False) -> None:
        """A text must hold one of the words to match the expression; of a word with hyphens the first part counts."""
        phrase = _Phrase(language, expression, self._size, is_weak)
        self._size += 1
        for word in words:
            self._by_word.setdefault(re.findall(r"\w+", word.translate(_SAME_LENGTH))[0], []).append(phrase)

    def possible_in(self, spoken: _Spoken) -> list[_Phrase]:
        """In the order of the table."""
        found = [phrase for word in spoken.words & self._by_word.keys() for phrase in self._by_word[word]]
        return sorted(set(found), key=lambda phrase: phrase.place) if len(found) > 1 else found


@dataclass(frozen=True)
class _Data:
    titles: Mapping[str, str]
    nicknames: Mapping[str, frozenset[int]]
    homophones: Mapping[str, frozenset[int]]
    pairs: Mapping[str, frozenset[int]]
    not_names: frozenset[str]
    first_names: frozenset[str]
    introductions: _Phrases
    relations: _Phrases
    relatives: Mapping[str, re.Pattern[str]]

    def is_known(self, word: str) -> bool:
        return word in self.first_names or any(word in group for group in (self.nicknames, self.homophones, self.pairs))


@functools.cache
def _data() -> _Data:
    raw = tomllib.loads((resources.files("gateway.text") / "names.toml").read_text(encoding="utf-8"))
    return _Data(
        titles={fold(title): gender for gender, titles in raw["titles"].items() for title in titles},
        nicknames=_groups(line for lines in raw["nicknames"].values() for line in lines),
        homophones=_groups(raw["homophones"]["all"]),
        pairs=_groups(raw["pairs"]["all"]),
        not_names=frozenset(raw["not_names"]["all"]),
        first_names=frozenset(raw["like_nationalities"]["all"].split()),
        introductions=_introductions(raw),
        relations=_relations(raw),
        relatives={
            code: re.compile(rf"\b{_any_of(raw['possessives'][code])} {_any_of(raw['relations'][code])}\b")
            for code in LANGUAGES
        },
    )


def _groups(lines: Iterable[str]) -> dict[str, frozenset[int]]:
    found: dict[str, set[int]] = {}
    for number, line in enumerate(lines):
        for name in line.split():
            found.setdefault(fold(name), set()).add(number)
    return {name: frozenset(numbers) for name, numbers in found.items()}


def _introductions(raw: Mapping[str, Any]) -> _Phrases:
    phrases = _Phrases()
    for code in LANGUAGES:
        for phrase in raw["introductions"][code]:
            is_weak = phrase.removesuffix(" NAME") in _WEAK
            phrases.add(code, _introduction(phrase), [_longest_word(phrase)], is_weak=is_weak)
        # "this is her son Tobias speaking", "Derek's daughter, Holly", "la hija de Luis, Carla"
        relation, name = _any_of(raw["relations"][code]), rf"(?P<name>{_NAME_WORD}(?: {_NAME_WORD})?)"
        owner = rf"(?:{_any_of(raw['possessives'][code])}|\w+'s)"
        phrases.add(code, rf"\b{owner} {relation},? {name}", raw["relations"][code])
        if code != "en":
            phrases.add(code, rf"\b{relation} (?:de |von |d')\w+(?: \w+)?, {name}", raw["relations"][code])
    return phrases


def _longest_word(phrase: str) -> str:
    """The longest word apart from placeholders."""
    words: list[str] = re.findall(r"\w+", re.sub("NAME|REL|POSS|WHO", "", phrase))
    return max(words, key=len)


def _any_of(words: Iterable[str]) -> str:
    return "(?:" + "|".join(sorted(map(re.escape, words), key=len, reverse=True)) + ")"


def _introduction(phrase: str) -> str:
    name = rf"{_NAME_WORD}(?: {_NAME_WORD}){{0,3}}"
    before, after = (part.strip().translate(_SAME_LENGTH) for part in phrase.split("NAME"))
    if not before:  # a name in front stands at the beginning of a sentence
        start = r"(?:^|[.!?,;]\s*|\b(?:hello|hi|hey|hallo|hola|bonjour|allo)[, ]+)"
        return rf"{start}(?P<name>{name}?),? {re.escape(after)}\b"
    if not after and before in ("it's", "c'est"):  # "my boss, it's Tom" gives another's name
        greeting = r"(?:(?:hello|hi|hey|yes|yeah|oh|ah|bonjour|allo|oui|salut|rebonjour)[, ]+)*"
        return rf"(?:^|[.!?;]\s*){greeting}{re.escape(before)},? (?P<name>{name})"
    if after:
        return rf"\b{re.escape(before)} (?P<name>{name}?),? {re.escape(after)}\b"
    return rf"\b{re.escape(before)},? (?P<name>{name})"


def _relations(raw: Mapping[str, Any]) -> _Phrases:
    phrases = _Phrases()
    for code in LANGUAGES:
        relation, possessive = _any_of(raw["relations"][code]), _any_of(raw["possessives"][code])
        for phrase in raw["relation_phrases"][code]:
            # "Eric Storm, Erica's father", "Mr Adeyemi speaking, her husband": only right after a name that was given
            given = r"(?:^|[.!?] )[^.?!,]*(?:, ?[^.?!,]*)?"
            start = given + r", \w+" if phrase.startswith("'s") else given if phrase.startswith(",") else r"(?<!\w)"
            body = re.escape(phrase).replace("REL", relation).replace("POSS", possessive).replace(r"\ ", " ")
            body = body.replace("WHO", r"(?!(?:my|our|mi|mein|mon|ma) )\w+(?: \w+){0,2}?")
            words = raw["relations"][code] if "REL" in phrase else [_longest_word(phrase)]
            phrases.add(code, start + body + r"\b", words)
    return phrases
