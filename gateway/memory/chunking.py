"""What of a text is looked at by itself, and what of it is shown."""

import re
from collections.abc import Sequence
from typing import Final

_SHORT_TEXT: Final = 240  # characters; such a text is one part
_SHORTEST_PART: Final = 30
_LONGEST_PART: Final = 500
_MOST_PARTS: Final = 250
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+|\n+")
_SNIPPET_CHARACTERS: Final = 500


def parts(text: str) -> list[str]:
    """
    About the sentences of `text`, as they stand there: each gets a vector, since that of a page is about nothing.

    There is one at least. The end of a very long text is left out.
    """
    if len(text) <= _SHORT_TEXT:
        return [text]
    found: list[str] = []
    start = 0
    for end in [*(match.end() for match in _SENTENCE_END.finditer(text)), len(text)]:
        if end - start >= _SHORTEST_PART or end == len(text):
            found += [text[place : min(place + _LONGEST_PART, end)] for place in range(start, end, _LONGEST_PART)]
            start = end
    return [part for part in map(str.strip, found) if part][:_MOST_PARTS] or [""]


def snippet(content: str, words: Sequence[str], part: int | None) -> str:
    """At most 500 characters of `content`: from that part of it on, or those where most of the words stand."""
    if len(content) <= _SNIPPET_CHARACTERS:
        return content.strip()
    start = _place_of_words(content, words) if part is None else content.find(parts(content)[part])
    return content[start : start + _SNIPPET_CHARACTERS].strip()


def _place_of_words(content: str, words: Sequence[str]) -> int:
    pattern = re.compile(rf"\b(?:{'|'.join(words)})", re.IGNORECASE)
    places = [match.start() for match in pattern.finditer(content)] if words else []
    if not places:
        return 0
    best = max(places, key=lambda start: sum(start <= place < start + _SNIPPET_CHARACTERS for place in places))
    line = content.rfind("\n", 0, best) + 1
    return line if best - line <= 100 else best
