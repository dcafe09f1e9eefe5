"""Sentences out of text that comes in pieces, each as soon as it is complete: what a voice says in one breath."""

import re
from typing import Final

_END: Final = re.compile(r"[.!?…]+[\"'”’)\]]*(?=\s)|\n+")
_CLAUSE: Final = re.compile(r"[,;:–—](?=\s)")
_LONG: Final = 140
"""Characters without an end; from here on a comma will do. The caller waits for the first sound of all of them."""
_NO_END: Final = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|St|Prof|No|vs|approx|apt)|\b[A-Z]|\b[ap]\.m)\.$", re.I)


class SentenceSplitter:
    """Cuts one answer."""

    def __init__(self) -> None:
        self._rest = ""

    def feed(self, text: str) -> list[str]:
        self._rest += text
        complete = []
        while cut := self._next_cut():
            complete.append(self._rest[:cut].strip())
            self._rest = self._rest[cut:]
        return [sentence for sentence in complete if sentence]

    def finish(self) -> list[str]:
        rest, self._rest = self._rest.strip(), ""
        return [rest] if rest else []

    def _next_cut(self) -> int:
        for end in _END.finditer(self._rest):
            if not _NO_END.search(self._rest, 0, end.end()):
                return end.end()
        if len(self._rest) > _LONG and (clauses := list(_CLAUSE.finditer(self._rest))):
            return clauses[-1].end()
        return 0
