"""
Redacts secrets in a transcript: card numbers, IBANs, passwords, PINs, one-time codes, keys, social security numbers.

A transcript has numbers as the caller spoke them, so a number here is a run of digits, spoken digits, or both, across
pauses and turns, in English, German, Spanish or French. Telephone and order numbers, dates, times and amounts stay. The
words of each language are in `redaction.toml`.

Our own code: presidio-analyzer 2.2.366 finds no number that is spoken digit by digit, which is how callers give them.
"""

import itertools
import re
import tomllib
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Final

from gateway.text.plain_text import SpokenLine, unaccented

ACCOUNT: Final = "[account number removed]"
CARD: Final = "[card number removed]"
CODE: Final = "[code removed]"
KEY: Final = "[key removed]"
PASSWORD: Final = "[password removed]"
PIN: Final = "[pin removed]"
SECURITY_CODE: Final = "[security code removed]"
SOCIAL_SECURITY: Final = "[social security number removed]"

# Between two turns of one speaker. It counts as white space, so a number can continue across it.
_TURN: Final = "\x1e"
_SPACE: Final = r"[^\S\x1e]"

_CUE_REACH: Final = 80
# Read and compiled on import, so that no turn of a call waits for it.
_TABLES: Final = tomllib.loads((resources.files("gateway.text") / "redaction.toml").read_text(encoding="utf-8"))


def _any_of(*tables: str) -> str:
    """A pattern for the phrases of these tables in all languages."""
    phrases = (phrase for table in tables for of_language in _TABLES[table].values() for phrase in of_language)
    return f"(?:{'|'.join(phrases)})".replace("\n", "")


def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


# Numbers in words

_DIGITS: dict[str, str] = {}
_TEENS: dict[str, str] = {}
TENS: dict[str, str] = {}
REPEATS: dict[str, int] = {}
for _table in _TABLES["numbers"].values():
    _DIGITS |= {word: str(digit) for digit, word in enumerate(_table["digits"].split())}
    _DIGITS |= {word: str(digit) for word, digit in _table["other"].items()}
    _TEENS |= {word: str(number) for number, word in enumerate(_table["from_ten"].split(), 10)}
    TENS |= {word: str(tens) for word, tens in _table["tens"].items()}
    REPEATS |= _table["repeats"]
_GERMAN, _FRENCH = _TABLES["numbers"]["de"], _TABLES["numbers"]["fr"]
for _ten, _tens in _GERMAN["tens"].items():
    _TEENS |= {f"{one}und{_ten}": f"{_tens}{digit}" for digit, one in enumerate(_GERMAN["ones"].split(), 1)}
# French counts on from 60 and 80.
_TEENS |= {f"quatre-vingt-{one}": f"8{digit}" for digit, one in enumerate(_FRENCH["digits"].split()) if digit}
_TEENS |= {"quatre-vingts": "80", "quatre-vingt": "80", "soixante et onze": "71"}
for _ten, _tens in (("soixante", 7), ("quatre-vingt", 9)):
    _TEENS |= {f"{_ten}-{word}": f"{_tens}{digit}" for digit, word in enumerate(_FRENCH["from_ten"].split())}

_SPELLINGS: Final = {"é": "é e", "ó": "ó o", "ü": "ü ue u", "ö": "ö oe o", "ß": "ß ss"}


def _word_pattern(words: Iterable[str]) -> str:
    """Matches any of the words, with or without accents; a hyphen may be a space."""
    plain = {letter: f"(?:{'|'.join(others.split())})" for letter, others in _SPELLINGS.items()} | {"-": "[ -]"}
    spelled = ("".join(plain.get(letter, letter) for letter in word) for word in sorted(words, key=len, reverse=True))
    return "|".join(spelled)


def _spelling(word: str) -> str:
    """One spelling for all that `_word_pattern` matches."""
    return unaccented(word.lower().replace("ß", "ss").replace("-", " "))


# Words that mean something else too; they continue a number and do not begin one.
_INSIDE_ONLY: Final = frozenset({"ein", "eine", "un", "une", "uno", "once", "seize", "elf"})
_ALL_WORDS: Final = {**_DIGITS, **_TEENS, **TENS, **REPEATS}
_FIRST: Final = rf"(?:[0-9]+\b|(?:{_word_pattern(word for word in _ALL_WORDS if word not in _INSIDE_ONLY)})\b)"
_NEXT: Final = rf"(?:[0-9]+\b|(?:{_word_pattern(_ALL_WORDS)})\b)"
# The first words of these, in every spelling. To a pattern that ignores case, the letters of `_UNDOTTED` are an i.
_NUMBER_STARTS: Final = frozenset(
    "".join(letters)
    for first in {re.split("[ -]", word)[0] for word in _ALL_WORDS}
    for letters in itertools.product(*(_SPELLINGS.get(letter, letter).split() for letter in first))
)
_UNDOTTED: Final = str.maketrans("\u0130\u0131", "ii")
_DIGIT: Final = re.compile(r"\d")
_DIGITS |= {_spelling(word): value for word, value in _DIGITS.items()}
_TEENS |= {_spelling(word): value for word, value in _TEENS.items()}
TENS |= {_spelling(word): value for word, value in TENS.items()}
_NUMBER: Final = _compiled(rf"[0-9]+|(?:{_word_pattern(_ALL_WORDS)})\b")
_GAP: Final = rf"[\s,.\-–—]+(?:{_any_of('number_fillers')}\b[\s,.\-–—]+)*"
_RUN: Final = _compiled(rf"(?<![\w+]){_FIRST}(?:{_GAP}{_NEXT})*")
_WIDE_GAP: Final = rf"[\s,.…/\-–—]+(?:{_any_of('number_fillers', 'secret_fillers')}\b[\s,.…/\-–—]+)*"
_SECRET_RUN: Final = _compiled(rf"(?<![\w+]){_FIRST}(?:{_WIDE_GAP}{_NEXT})*")

# Numbers that are secrets by their form

_CARD_NETWORKS: Final = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})"  # Visa
    r"|5[1-5]\d{14}|2(?:22[1-9]|2[3-9]\d|[3-6]\d\d|7[01]\d|720)\d{12}"  # Mastercard
    r"|3[47]\d{13}"  # American Express
    r"|3(?:0[0-5]|[689]\d)\d{11}"  # Diners Club
    r"|35\d{14,17}"  # JCB
    r"|6(?:011|4[4-9]\d|5\d\d|2\d\d)\d{12,15}"  # Discover, UnionPay
    r"|(?:5[06-8]|6\d)\d{11,17}"  # Maestro
)
_IBAN: Final = _compiled(r"\b[A-Z]{2}[ -]?\d\d(?:[ -]?[A-Z0-9]){11,30}\b")
_COUNTRY: Final = re.compile(r"(?<!\w)[A-Za-z][ .]{0,2}[A-Za-z][ .,]*$")
_SOCIAL_NUMBER: Final = re.compile(r"(?!000|666|9)\d{3}(?!00)\d\d(?!0000)\d{4}")

# Words around secrets. `(?<!\[)`: our own markers are no cues.

_CARD_CUE: Final = _compiled(rf"(?<!\[)\b{_any_of('card')}\b")
_SOCIAL_CUE: Final = _compiled(rf"(?<!\[)\b{_any_of('social_security')}\b")
_NAMES_SECRET: Final = _compiled(_any_of("names_secret"))
_LINK: Final = rf"(?:[\s:=,]+{_any_of('link')}\b)*[\s:=,]*$"
_CVV_NAME, _PIN_NAME, _PASSWORD_NAME = _any_of("security_code"), _any_of("pin"), _any_of("password")
_BEFORE_SECRET: Final = tuple(
    (_compiled(rf"(?<!\[)\b{name}{_LINK}"), marker)
    for name, marker in (
        (_CVV_NAME, SECURITY_CODE),
        (_PIN_NAME, PIN),
        (_any_of("one_time_code"), CODE),
        (_PASSWORD_NAME, PASSWORD),
    )
)
_AFTER_SECRET: Final = (
    (_compiled(rf"[\s,]+(?:is|was) (?:my|the|our) {_CVV_NAME}\b"), SECURITY_CODE),
    (_compiled(rf"[\s,]+(?:is|was|ist|es|est) (?:my|the|our|mein|meine|die|mi|mon|le) {_PIN_NAME}\b"), PIN),
)
# A turn after which the next one contains the secret: "What is your PIN?", "My password is".
_ASKS: Final = tuple(
    (_compiled(rf"(?<!\[)\b(?:{_any_of('asking')}\b[^.?!\[\]]{{0,40}}\b{name}\b|{name}\s+(?:is|was)\W*$)"), marker)
    for name, marker in (
        (_CVV_NAME, SECURITY_CODE),
        (_PIN_NAME, PIN),
        (_PASSWORD_NAME, PASSWORD),
        (_any_of("one_time_code", "plain_code"), CODE),
    )
)
_GUARD: Final = rf"(?!{_any_of('not_a_password')}\b)"
_WORD: Final = r"[^\s\[\]]*[^\s\[\].,;!?\"”]"
_SHORT_ANSWER: Final = _compiled(
    rf"\s*(?:(?:yes|yeah|sure|okay|ok|uh|um|so|it's|it is|that's|that is|is)\b[\s,.]*)*{_GUARD}"
    rf"(?!{_any_of('no_answer')}\b)(?P<secret>{_WORD}(?:\s{_WORD}){{0,3}})[\s.,!]*"
)


@dataclass(frozen=True, slots=True)
class _RedactionRule:
    """A pattern whose group `secret` is replaced; tried only if the text holds a sign (lower case), else a digit."""

    marker: str
    pattern: re.Pattern[str]
    signs: tuple[str, ...]


_RULES: Final = (
    *(
        _RedactionRule(KEY, re.compile(key["pattern"].replace("\n", "")), tuple(key["signs"]))
        for key in _TABLES["keys"]
    ),
    _RedactionRule(
        PASSWORD,
        _compiled(
            rf"(?<!\[)\b{_PASSWORD_NAME}(?: (?:for|to|on|of) [\w' ]{{1,30}}?)?"
            rf"(?:,?{_SPACE}+(?:is|was|ist|lautet|war|es|est|c['’]est)\b[:,]?{_SPACE}+|{_SPACE}*[:=]{_SPACE}*)"
            rf"(?:(?:uh|um|er),?{_SPACE}+)?[\"'“‘]?{_GUARD}"
            rf"(?P<secret>{_WORD}(?: (?!{_any_of('next_thought')}\b){_WORD}){{0,9}})"
        ),
        ("pass", "wort", "contrase", "secreta", "clave"),
    ),
    _RedactionRule(
        PASSWORD,
        _compiled(
            rf"(?<![^\s\"'“‘]){_GUARD}(?!it's\b|here\b|that's\b)"
            rf"(?P<secret>{_WORD}) is (?:my|the|our) {_PASSWORD_NAME}\b"
        ),
        ("pass",),
    ),
)


@dataclass(frozen=True, slots=True)
class SpokenNumber:
    """A number in a text, in words or digits, and its position."""

    digits: str
    start: int
    end: int


_Finding = tuple[int, int, str]  # start, end, marker


def redact(text: str) -> str:
    """The text without secrets. Idempotent."""
    text = _normalised(text)
    while (cleaned := _redact_once(text)) != text:
        text = cleaned
    return text


def spoken_numbers(text: str) -> list[SpokenNumber]:
    """Every number in a text: "four seven oh" is 470, as is "4-70"."""
    return [SpokenNumber(_digits_of(run), run.start(), run.end()) for run in _RUN.finditer(text)]


def redact_lines(lines: Sequence[SpokenLine], unheard: Sequence[str] = ()) -> list[SpokenLine]:
    """
    A whole call without secrets, including those spoken over several turns or requested by the other side.

    `unheard` has the rest of each line that was interrupted: a caller may answer a question before its end.
    """
    cleaned = list(lines)
    asked = [f"{line.text} {rest}" for line, rest in zip(lines, unheard or [""] * len(lines), strict=True)]
    for speaker in ("caller", "agent"):
        places = [place for place, line in enumerate(lines) if line.speaker == speaker]
        joined = _TURN.join(lines[place].text.replace(_TURN, " ") for place in places)
        for place, text in zip(places, redact(joined).split(_TURN), strict=False):
            cleaned[place] = replace(lines[place], text=text)
    for place in range(1, len(lines)):
        text = _redact_answer(asked[place - 1], cleaned[place].text)
        # "What is the code?" "One moment." "Take your time." "4 8 1 5"
        if place >= 3 and text == cleaned[place].text and _is_pause(lines[place - 2 : place]):
            text = _redact_answer(asked[place - 3], text)
        cleaned[place] = replace(cleaned[place], text=text)
    return cleaned


def _is_pause(lines: Sequence[SpokenLine]) -> bool:
    return all(
        len(line.text.split()) <= 8 and not any(len(number.digits) > 2 for number in spoken_numbers(line.text))
        for line in lines
    )


def _normalised(text: str) -> str:
    """The text with letters and digits of other widths and styles as usual ones. Keeps its length."""
    if text.isascii():
        return text
    plain = ((letter, unicodedata.normalize("NFKC", letter)) for letter in text)
    return "".join(
        usual if len(usual) == 1 and usual.isascii() and usual.isalnum() else letter for letter, usual in plain
    )


def _redact_once(text: str) -> str:
    lowered = text.lower()
    has_digit = _DIGIT.search(text) is not None
    if has_digit:  # first, because a password may take only a part of it
        text = _cut(text, list(_with_whole_numbers(text, _ibans(text))))
    for rule in _RULES:
        if any(sign in lowered for sign in rule.signs) if rule.signs else has_digit:
            secrets = [(*match.span("secret"), rule.marker) for match in rule.pattern.finditer(text)]
            text = _cut(text, list(_with_whole_numbers(text, secrets)))
    if not has_digit and not _may_name_number(text):
        return text
    return _cut(text, [finding for run in _SECRET_RUN.finditer(text) if (finding := _judge(text, run))])


def _may_name_number(text: str) -> bool:
    """Whether a word of the text can begin a number: a lookup, much faster than the search for `_SECRET_RUN`."""
    return not _NUMBER_STARTS.isdisjoint(re.findall(r"\w+", text.translate(_UNDOTTED).lower()))


def _with_whole_numbers(text: str, findings: Sequence[_Finding]) -> Iterator[_Finding]:
    """The findings, each extended to the end of a number that it begins. The rest of a card number is no card."""
    runs = _SECRET_RUN.finditer(text) if findings else iter(())
    run, last_end = next(runs, None), 0
    for start, end, marker in findings:
        while run is not None and run.end() <= end:
            run = next(runs, None)
        if run is not None and run.start() < end:
            end = run.end()
        if start >= last_end:
            yield start, end, marker
            last_end = end


def _ibans(text: str) -> list[_Finding]:
    """
    Every IBAN, also behind words that look like the start of another one: "my 20 euro to DE89…".

    One in a hundred of those passes the check. What overlaps is one finding.
    """
    findings: list[_Finding] = []
    at = 0
    while match := _IBAN.search(text, at):
        at = match.start() + 1
        if (finding := _iban(match)) is not None:
            start, end, marker = finding
            if findings and start < findings[-1][1]:
                first, last_end, _ = findings.pop()
                start, end = first, max(end, last_end)
            findings.append((start, end, marker))
    return findings


def _iban(match: re.Match[str]) -> _Finding | None:
    """The longest beginning of a match that is an IBAN; words may follow it."""
    ends = (match.start() + end.end() for end in re.finditer(r"[^\W_](?![^\W_])|(?<=\w)\b", match[0]))
    return next(
        (
            (match.start(), end, ACCOUNT)
            for end in sorted(ends, reverse=True)
            if _is_iban(match.string[match.start() : end])
        ),
        None,
    )


def _is_iban(text: str) -> bool:
    """Whether a text is an International Bank Account Number: ISO 13616, check digits modulo 97."""
    letters = re.sub(r"[^0-9A-Z]", "", text.upper())
    if not 15 <= len(letters) <= 34:
        return False
    return int("".join(str(int(letter, 36)) for letter in letters[4:] + letters[:4])) % 97 == 1


def _redact_answer(question: str, answer: str) -> str:
    """Redact the answer to a question for a secret."""
    if not _NAMES_SECRET.search(question):
        return answer
    marker = next((marker for pattern, marker in _ASKS if pattern.search(question)), None)
    if marker is None:
        return answer
    codes = [(*run.span(), marker) for run in _SECRET_RUN.finditer(answer) if 3 <= len(_digits_of(run)) <= 12]
    if not codes and marker == PASSWORD and (match := _SHORT_ANSWER.fullmatch(answer)):
        codes = [(*match.span("secret"), marker)]
    return _cut(answer, codes)


def _cut(text: str, findings: Sequence[_Finding]) -> str:
    for start, end, marker in reversed(findings):
        turns = text.count(_TURN, start, end) + 1
        text = text[:start] + _TURN.join([marker] * turns) + text[end:]
    return text


def _judge(text: str, run: re.Match[str]) -> _Finding | None:
    """Classify a run of numbers by its digits and the words around it."""
    pieces = list(_pieces(run))
    digits = "".join(piece.digits for piece in pieces)
    if len(digits) < 3:
        return None
    if (country := _COUNTRY.search(text, max(0, run.start() - 6), run.start())) and _is_iban(country[0] + digits):
        return country.start(), run.end(), ACCOUNT
    if len(digits) >= 13 and (card := _card(text, run, pieces)):
        return card
    before = text[max(0, run.start() - _CUE_REACH) : run.start()]
    if _is_social_security(digits, pieces, before):
        return (*run.span(), SOCIAL_SECURITY)
    marker = _marker_by_name(text, run, before)
    return (*run.span(), marker) if marker else None


def _marker_by_name(text: str, run: re.Match[str], before: str) -> str | None:
    """The marker for a number that the words next to it call a secret."""
    if _NAMES_SECRET.search(before):
        for cue, marker in _BEFORE_SECRET:
            if cue.search(before):
                return marker
    return next((marker for cue, marker in _AFTER_SECRET if cue.match(text, run.end())), None)


def _card(text: str, run: re.Match[str], pieces: Sequence[SpokenNumber]) -> _Finding | None:
    """A card number, and what directly follows it: expiry date, security code."""
    for first in range(len(pieces)):
        if _starts_card(pieces[first : first + 19]):
            return pieces[first].start, run.end(), CARD
    digits = "".join(piece.digits for piece in pieces)
    # A correction in between adds digits.
    if not 13 <= len(digits) <= 26:
        return None
    # Recognisers mishear digits, so what is called a card number counts as one even if the check digit is wrong.
    called_card = _CARD_CUE.search(text, max(0, run.start() - _CUE_REACH), run.start())
    if called_card or (len(digits) <= 19 and digits[0] in "23456" and _passes_luhn(digits)):
        return (*run.span(), CARD)
    return None


def _starts_card(pieces: Sequence[SpokenNumber]) -> bool:
    """Whether the first pieces are a number of a known card network with a valid check digit."""
    heads: set[str] = set()
    head = ""
    for piece in pieces:
        head += piece.digits
        if len(head) > 19:
            break
        heads.add(head)
    return any(_CARD_NETWORKS.fullmatch(head) and _passes_luhn(head) for head in heads if len(head) >= 13)


def _passes_luhn(digits: str) -> bool:
    doubled = (sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2])
    return (sum(map(int, digits[-1::-2])) + sum(doubled)) % 10 == 0


def _is_social_security(digits: str, pieces: Sequence[SpokenNumber], before: str) -> bool:
    if not _SOCIAL_NUMBER.fullmatch(digits):
        return False
    return [len(piece.digits) for piece in pieces] == [3, 2, 4] or bool(_SOCIAL_CUE.search(before))


def _digits_of(run: re.Match[str]) -> str:
    return "".join(piece.digits for piece in _pieces(run))


def _pieces(run: re.Match[str]) -> Iterator[SpokenNumber]:
    """The numbers of a run: "double four" is 44, "forty one" is 41, "oh" is 0."""
    words = [
        (_spelling(match[0]), run.start() + match.start(), run.start() + match.end())
        for match in _NUMBER.finditer(run[0])
    ]
    at = 0
    while at < len(words):
        word, start, end = words[at]
        following = words[at + 1] if at + 1 < len(words) else ("", 0, end)
        value = _DIGITS.get(following[0], following[0])
        if word in REPEATS and len(value) == 1:
            yield SpokenNumber(value * REPEATS[word], start, following[2])
            at += 2
        elif word in TENS and following[0] in _DIGITS and value != "0":
            yield SpokenNumber(TENS[word] + value, start, following[2])
            at += 2
        else:
            yield SpokenNumber(digits_of(word), start, end)
            at += 1


def digits_of(word: str) -> str:
    """The digits of a number word, or of a number; else empty."""
    if word in TENS:
        return TENS[word] + "0"
    return _DIGITS.get(word) or _TEENS.get(word) or (word if word.isdigit() else "")
