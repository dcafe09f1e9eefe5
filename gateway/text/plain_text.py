"""Lines of a transcript, and text made plain: no accents, no markup, no control characters, a limited length."""

import re
import unicodedata
from dataclasses import dataclass
from typing import Final, Literal

_BULLET: Final = re.compile(r"^(?:[#>*+•–—-]+\s+|#+|\d{1,2}[.)]\s+|\[[ xX]?\]\s+)+")
_LINK: Final = re.compile(r"!?\[([^\]\[]*)\]\([^()\s]*\)")
_EMPHASIS: Final = re.compile(r"[*`]+|(?<!\w)_+(?=\w)|(?<=\w)_+(?!\w)|~~|__")
_INVISIBLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\ufeff\ud800-\udfff]+")
_JOINERS: Final = {0x200C: None, 0x200D: None}
"""Emoji and some scripts need them."""


@dataclass(frozen=True, slots=True)
class SpokenLine:
    """One turn of a call."""

    speaker: Literal["caller", "agent"]
    text: str
    by_operator: bool = False
    """Whether the agent said what an operator had typed."""


def unaccented(text: str) -> str:
    """The text without accents, in compatibility form: "ﬁancé" becomes "fiance"."""
    if text.isascii():
        return text
    return "".join(sign for sign in unicodedata.normalize("NFKD", text) if not unicodedata.combining(sign))


def without_accents(text: str) -> str:
    """The text without accents, as search indexes and BERT have it: other forms of a letter, such as "ﬁ", stay."""
    decomposed = unicodedata.normalize("NFD", text)
    return "".join(character for character in decomposed if unicodedata.category(character) != "Mn")


def plain(line: str) -> str:
    """One line without control characters and Markdown; redaction markers such as "[card number removed]" stay."""
    line = " ".join(_INVISIBLE.sub(" ", line).split())
    line = _EMPHASIS.sub("", _LINK.sub(r"\1", _BULLET.sub("", line)))
    return _BULLET.sub("", " ".join(line.split())).strip()


def is_plain_line(text: str) -> bool:
    """Whether it has no line ends, control characters or other invisible ones."""
    return text.translate(_JOINERS).isprintable()


def trimmed(text: str, max_characters: int) -> str:
    """The text, cut after a whole word if it is too long."""
    if len(text) <= max_characters:
        return text
    cut = text[: max_characters - 1]
    return cut[: cut.rfind(" ") if " " in cut[max_characters // 2 :] else None].rstrip(" ,;:") + "…"


def singular(word: str) -> str:
    """An English noun in lower case without its plural ending."""
    if len(word) < 4 or not word.endswith("s") or word.endswith("ss"):
        return word
    return word[:-3] + "y" if word.endswith("ies") else word[:-1]
