"""
Redacts secrets in a transcript: card numbers, IBANs, passwords, PINs, one-time codes, keys, social security numbers.

A transcript has numbers as the caller spoke them, so a number here is a run of digits, spoken digits, or both, across
pauses and turns, in English, German, Spanish or French. Telephone and order numbers, dates, times and amounts stay. The
rules are the tables at the top.

Our own code: presidio-analyzer 2.2.366 finds no number that is spoken digit by digit, which is how callers give them.
"""

import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
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

_DIGITS: dict[str, str] = {
    **dict(zip("zero one two three four five six seven eight nine".split(), "0123456789", strict=True)),
    **{"oh": "0", "o": "0", "nought": "0", "niner": "9"},
    **dict(zip("null eins zwei drei vier fünf sechs sieben acht neun".split(), "0123456789", strict=True)),
    **{"zwo": "2", "fuenf": "5", "ein": "1", "eine": "1"},
    **dict(zip("cero uno dos tres cuatro cinco seis siete ocho nueve".split(), "0123456789", strict=True)),
    **dict(zip("zéro un deux trois quatre cinq six sept huit neuf".split(), "0123456789", strict=True)),
    **{"une": "1"},
}
_TEENS: dict[str, str] = {
    word: str(10 + n)
    for words in (
        "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen",
        "zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn achtzehn neunzehn",
        "diez once doce trece catorce quince dieciséis diecisiete dieciocho diecinueve veinte veintiuno veintidós "
        "veintitrés veinticuatro veinticinco veintiséis veintisiete veintiocho veintinueve",
        "dix onze douze treize quatorze quinze seize dix-sept dix-huit dix-neuf",
    )
    for n, word in enumerate(words.split())
}
_GERMAN_ONES: Final = "ein zwei drei vier fünf sechs sieben acht neun".split()
_GERMAN_TENS: Final = "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig".split()
_TEENS |= {
    f"{one}und{ten}": f"{t + 2}{o + 1}" for t, ten in enumerate(_GERMAN_TENS) for o, one in enumerate(_GERMAN_ONES)
}
# French counts on from 60 and 80.
_FRENCH_ONES: Final = "un deux trois quatre cinq six sept huit neuf".split()
_TEENS |= {f"quatre-vingt-{one}": f"8{o + 1}" for o, one in enumerate(_FRENCH_ONES)}
_TEENS |= {"quatre-vingts": "80", "quatre-vingt": "80", "soixante et onze": "71"}
_TEENS |= {
    f"{ten}-{word}": f"{digit}{o}"
    for ten, digit in (("soixante", 7), ("quatre-vingt", 9))
    for o, word in enumerate("dix onze douze treize quatorze quinze seize dix-sept dix-huit dix-neuf".split())
}
TENS: dict[str, str] = {
    word: str(2 + n) for n, word in enumerate("twenty thirty forty fifty sixty seventy eighty ninety".split())
}
TENS |= {ten: str(2 + n) for n, ten in enumerate(_GERMAN_TENS)}
TENS |= {ten: str(3 + n) for n, ten in enumerate("treinta cuarenta cincuenta sesenta setenta ochenta noventa".split())}
TENS |= {ten: str(2 + n) for n, ten in enumerate("vingt trente quarante cinquante soixante".split())}
REPEATS: Final = {
    **{"double": 2, "triple": 3, "treble": 3, "doppel": 2, "doppelte": 2, "doppelt": 2, "dreifach": 3, "doble": 2},
    **{"zwei mal die": 2, "zweimal die": 2, "drei mal die": 3, "dreimal die": 3, "zweimal": 2, "dreimal": 3},
    **{"dos veces el": 2, "tres veces el": 3, "deux fois le": 2, "trois fois le": 3},
}


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
_WORDS: Final = _word_pattern(_ALL_WORDS)
_FIRST_WORDS: Final = _word_pattern(word for word in _ALL_WORDS if word not in _INSIDE_ONLY)
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
_NUMBER: Final = re.compile(rf"[0-9]+|(?:{_WORDS})\b", re.IGNORECASE)
_GAP: Final = r"[\s,.\-–—]+(?:(?:uh|um|er|erm|ah|dash|hyphen|space)\b[\s,.\-–—]+)*"
_RUN: Final = re.compile(
    rf"(?<![\w+])(?:[0-9]+\b|(?:{_FIRST_WORDS})\b)(?:{_GAP}(?:[0-9]+\b|(?:{_WORDS})\b))*", re.IGNORECASE
)
# Between the parts of a secret also other fillers and corrections, in four languages.
_WIDE_GAP: Final = (
    r"[\s,.…/\-–—]+(?:(?:uh|um|er|erm|ah|eh|hm+|dash|hyphen|space|and|then|no|wait|sorry|i mean"
    r"|let me see|äh|ähm|öh|und|dann|nein"
    r"|moment|strich|entschuldigung|este|pues|y|luego|perdón|perdon|espere|guion|euh|et|puis|non"
    r"|pardon|attendez|tiret)\b"
    r"[\s,.…/\-–—]+)*"
)
_SECRET_RUN: Final = re.compile(
    rf"(?<![\w+])(?:[0-9]+\b|(?:{_FIRST_WORDS})\b)(?:{_WIDE_GAP}(?:[0-9]+\b|(?:{_WORDS})\b))*", re.IGNORECASE
)

_CARD_NETWORKS: Final = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})"  # Visa
    r"|5[1-5]\d{14}|2(?:22[1-9]|2[3-9]\d|[3-6]\d\d|7[01]\d|720)\d{12}"  # Mastercard
    r"|3[47]\d{13}"  # American Express
    r"|3(?:0[0-5]|[689]\d)\d{11}"  # Diners Club
    r"|35\d{14,17}"  # JCB
    r"|6(?:011|4[4-9]\d|5\d\d|2\d\d)\d{12,15}"  # Discover, UnionPay
    r"|(?:5[06-8]|6\d)\d{11,17}"  # Maestro
)
_CUE_REACH: Final = 80
# `(?<!\[)`: our own markers are no cues.
_CARD_CUE: Final = re.compile(
    r"(?<!\[)\b(?:card|visa|master ?card|amex|american express|discover|debit|\w*karte\w*|tarjeta|carte)\b",
    re.IGNORECASE,
)
_IBAN: Final = re.compile(r"\b[A-Z]{2}[ -]?\d\d(?:[ -]?[A-Z0-9]){11,30}\b", re.IGNORECASE)
_COUNTRY: Final = re.compile(r"(?<!\w)[A-Za-z][ .]{0,2}[A-Za-z][ .,]*$")
_SOCIAL_CUE: Final = re.compile(r"(?<!\[)\b(?:social(?: security)?(?: number)?|ssn)\b", re.IGNORECASE)
_SOCIAL_NUMBER: Final = re.compile(r"(?!000|666|9)\d{3}(?!00)\d\d(?!0000)\d{4}")

_LINK: Final = (
    r"(?:[\s:=,]+(?:is|was|it's|its|it|number|code|for|on|the|back|of|my|this|that|card|account|uh"
    r"|um|ist|lautet|die|der"
    r"|das|äh|ähm|von|für|es|son|el|la|de|del|mi|eh|est|c'est|le|du|ma|mon|euh|says|reads)\b)*[\s:=,]*$"
)
_PIN_NAME: Final = (
    r"(?:pin(?:[ -]?code| number|-nummer|[ -]?nummer)?|passcode|pass code|access code|(?:alarm|door"
    r"|gate|entry|safe) code"
    r"|geheimzahl|(?:tür|alarm|zugangs|tor)-?code|(?:código|codigo) (?:pin|secreto|de acceso|de la alarma|de la puerta)"
    r"|clave secreta|code (?:pin|secret|confidentiel|d'accès|de l'alarme|de la porte)|digicode)"
)
_ONE_TIME_NAME: Final = (
    r"(?:(?:one[- ]time|verification|confirmation|sms|log ?in|authentication|six[- ]digit"
    r"|activation) (?:code|password|number)"
    r"|(?:sms|bestätigungs|verifizierungs|einmal|freischalt|aktivierungs)-?(?:code|passwort)|m?tan"
    r"|(?:código|codigo) (?:de (?:verificación|verificacion|confirmación|confirmacion|activación"
    r"|activacion|un solo uso)|sms)"
    r"|code (?:de (?:vérification|confirmation|validation)|d'activation|à usage unique|sms|reçu par sms)"
    r"|(?:code|código|codigo)(?: \w+){0,4} (?:sent|texted|sms|geschickt|bekommen|llegado|enviado"
    r"|mandado|reçu|envoyé|recevoir)"
    r"(?: (?:you|me|him|her|us|just now|by text|by sms|per sms|por sms|par sms|aus der sms|haben|habe))*)"
)
_CVV_NAME: Final = (
    r"(?:cvv2?|cvc2?|cv2|c\.? ?v\.? ?v\.?|security code|card verification (?:code|number)"
    r"|(?:karten)?prüf(?:nummer|ziffer)|sicherheitscode|código de seguridad|codigo de seguridad|code de sécurité"
    r"|cryptogramme)"
)
_PASSWORD_NAME: Final = (
    r"(?:pass ?words?|pass ?phrase|passcode|passwort|kennwort|losungswort|contraseña|contrasena|palabra secreta|clave"
    r"|mot de passe)"
)
# A fast check; without a match nearby the slower patterns are not tried.
_NAMES_SECRET: Final = re.compile(
    r"pin|pass|code|c.{0,2}v|verification|wort|geheim|tan\b|prüf|c[oó]digo|contrase|clave|crypto", re.IGNORECASE
)
# Words directly before and directly after a number that is a secret.
_BEFORE_SECRET: Final = (
    (re.compile(rf"(?<!\[)\b{_CVV_NAME}{_LINK}", re.IGNORECASE), SECURITY_CODE),
    (re.compile(rf"(?<!\[)\b{_PIN_NAME}{_LINK}", re.IGNORECASE), PIN),
    (re.compile(rf"(?<!\[)\b{_ONE_TIME_NAME}{_LINK}", re.IGNORECASE), CODE),
    (re.compile(rf"(?<!\[)\b{_PASSWORD_NAME}{_LINK}", re.IGNORECASE), PASSWORD),
)
_AFTER_SECRET: Final = (
    (re.compile(rf"[\s,]+(?:is|was) (?:my|the|our) {_CVV_NAME}\b", re.IGNORECASE), SECURITY_CODE),
    (
        re.compile(
            rf"[\s,]+(?:is|was|ist|es|est) (?:my|the|our|mein|meine|die|mi|mon|le) {_PIN_NAME}\b", re.IGNORECASE
        ),
        PIN,
    ),
)

_NOT_A_PASSWORD: Final = (
    "abgelaufen demasiado die erronea expiré falsch faux geändert gesperrt incorrecta incorrect la "
    "le leider mala mauvais "
    "muy nicht no noch nueva obligatoire oublié pas perdu que trop vergessen weg zu "
    "a about again all already also always an and any at automatically because been being blocked broken but case "
    "changed changing compromised correct different easy empty expired expiring fine for forgotten from going "
    "gone good hacked hard how i if in incorrect invalid is it just kept known locked long lost missing my needed "
    "never new no not okay ok old on or out please private protected rejected required reset right safe secret "
    "secure sent short so something stored still that the there this to too unknown very weak what where which "
    "why working wrong yes you "
).split()
_GUARD: Final = rf"(?!(?:{'|'.join(_NOT_A_PASSWORD)})\b)"
_NEXT_THOUGHT: Final = (
    r"(?!(?:and|because|but|can|could|for|i|i'm|if|is|it|my|or|please|so|that|the|then|this|we|when|you)\b)"
)
_WORD: Final = r"[^\s\[\]]*[^\s\[\].,;!?\"”]"
_ASKING: Final = (
    r"(?:what|what's|tell|give|say|read|provide|enter|share|have|confirm|verify|wie|was|welche|nennen|sagen"
    r"|geben|lautet|cuál|cual|qué|dígame|digame|dime|diga|deme|quel|quelle|donnez|donner|dites|avez|auriez|tiene|puede)"
)
_NO_ANSWER: Final = (
    r"(?!(?:can|can't|could|did|do|don't|forgot|hello|hold|it's|let|moment|none|nope|one|sorry|sure"
    r"|thank|thanks|that's|uh"
    r"|um|wait|yeah)\b)"
)


@dataclass(frozen=True, slots=True)
class _RedactionRule:
    """A pattern whose group `secret` is replaced; tried only if the text holds a sign (lower case), else a digit."""

    marker: str
    pattern: re.Pattern[str]
    signs: tuple[str, ...] = ()


_RULES: Final = (
    _RedactionRule(KEY, re.compile(r"(?P<secret>-----BEGIN [A-Z ]*PRIVATE KEY-----[^\[\]\x1e]*)"), ("private key",)),
    _RedactionRule(KEY, re.compile(r"\b(?P<secret>eyJ[\w-]{5,}\.[\w-]{5,}(?:\.[\w-]*)?)"), ("eyj",)),
    _RedactionRule(KEY, re.compile(rf"\bbearer{_SPACE}+(?P<secret>[\w.~+/-]{{16,}}=*)", re.IGNORECASE), ("bearer",)),
    _RedactionRule(
        KEY,
        re.compile(r"\b(?P<secret>(?:sk|pk|rk)[-_](?:ant-|proj-|live_|test_)?[\w-]{16,})"),
        ("sk-", "sk_", "pk-", "pk_", "rk-", "rk_"),
    ),
    _RedactionRule(KEY, re.compile(r"\b(?P<secret>(?:AKIA|ASIA)[0-9A-Z]{16})\b"), ("akia", "asia")),
    _RedactionRule(
        KEY,
        re.compile(r"\b(?P<secret>(?:gh[pousr]_|github_pat_|glpat-|xai-|xox[abprs]-)[\w-]{10,})"),
        ("gh", "glpat-", "xai-", "xox"),
    ),
    _RedactionRule(KEY, re.compile(r"\b(?P<secret>AIza[\w-]{35})"), ("aiza",)),
    _RedactionRule(KEY, re.compile(r"(?<![\w-])(?P<secret>(?=\d*[a-f])(?=[a-f]*\d)[0-9a-f]{32,})\b", re.IGNORECASE)),
    _RedactionRule(
        KEY,
        re.compile(
            r"(?<![\w+/-])(?P<secret>(?=[^\s\d]*\d)(?=[^\sA-Z]*[A-Z])(?=[^\sa-z]*[a-z])[\w+/]{32,}={0,2})(?![\w+/-])",
            re.ASCII,
        ),
    ),
    _RedactionRule(
        KEY,
        re.compile(
            rf"\b(?:api|secret|access|auth|license){_SPACE}+(?:key|token){_SPACE}*(?:is|was|=|:){_SPACE}*"
            r"(?P<secret>(?=[^\s\d]*\d)[^\s\[\]]{5,}[^\s\[\].,;!?])",
            re.IGNORECASE,
        ),
        ("key", "token"),
    ),
    _RedactionRule(
        PASSWORD,
        re.compile(
            rf"(?<!\[)\b{_PASSWORD_NAME}(?: (?:for|to|on|of) [\w' ]{{1,30}}?)?"
            rf"(?:,?{_SPACE}+(?:is|was|ist|lautet|war|es|est|c['’]est)\b[:,]?{_SPACE}+|{_SPACE}*[:=]{_SPACE}*)"
            rf"(?:(?:uh|um|er),?{_SPACE}+)?[\"'“‘]?{_GUARD}"
            rf"(?P<secret>{_WORD}(?: {_NEXT_THOUGHT}{_WORD}){{0,9}})",
            re.IGNORECASE,
        ),
        ("pass", "wort", "contrase", "secreta", "clave"),
    ),
    _RedactionRule(
        PASSWORD,
        re.compile(
            rf"(?<![^\s\"'“‘]){_GUARD}(?!it's\b|here\b|that's\b)"
            rf"(?P<secret>{_WORD}) is (?:my|the|our) {_PASSWORD_NAME}\b",
            re.IGNORECASE,
        ),
        ("pass",),
    ),
)

# "What is the code?", but not an order code or a post code.
_PLAIN_CODE: Final = (
    r"(?:the|your|that|this|der|den|dieser|ihr|el|su|tu|ese|le|votre|ton|ce) (?:code|código|codigo)\b"
    r"(?! (?:postal|promo\w*|de (?:réduction|réservation|reserva|descuento|pedido|commande)|for the (?:order|booking)))"
)

# A turn after which the next one contains the secret: "What is your PIN?", "My password is".
_ASKS: Final = tuple(
    (
        re.compile(rf"(?<!\[)\b(?:{_ASKING}\b[^.?!\[\]]{{0,40}}\b{name}\b|{name}\s+(?:is|was)\W*$)", re.IGNORECASE),
        marker,
    )
    for name, marker in (
        (_CVV_NAME, SECURITY_CODE),
        (_PIN_NAME, PIN),
        (_PASSWORD_NAME, PASSWORD),
        (rf"(?:{_ONE_TIME_NAME}|{_PLAIN_CODE})", CODE),
    )
)
_SHORT_ANSWER: Final = re.compile(
    rf"\s*(?:(?:yes|yeah|sure|okay|ok|uh|um|so|it's|it is|that's|that is|is)\b[\s,.]*)*{_GUARD}{_NO_ANSWER}"
    rf"(?P<secret>{_WORD}(?:\s{_WORD}){{0,3}})[\s.,!]*",
    re.IGNORECASE,
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
    for rule in _RULES:
        if any(sign in lowered for sign in rule.signs) if rule.signs else has_digit:
            text = _cut(text, [(*match.span("secret"), rule.marker) for match in rule.pattern.finditer(text)])
    if has_digit:
        text = _cut(text, [finding for match in _IBAN.finditer(text) if (finding := _iban(match))])
    if not has_digit and not _may_name_number(text):
        return text
    return _cut(text, [finding for run in _SECRET_RUN.finditer(text) if (finding := _judge(text, run))])


def _may_name_number(text: str) -> bool:
    """Whether a word of the text can begin a number: a lookup, much faster than the search for `_SECRET_RUN`."""
    return not _NUMBER_STARTS.isdisjoint(re.findall(r"\w+", text.translate(_UNDOTTED).lower()))


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
    if len(digits) >= 13:
        return _card(text, run, pieces)
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
