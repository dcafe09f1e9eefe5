"""Splits streamed text into sentences for a synthesizer, each as soon as it is complete."""

import re
from typing import Final

_END: Final = re.compile(r"[.!?…]+[\"'”’)\]]*(?=\s)|\n+")
_CLAUSE: Final = re.compile(r"[,;:–—](?=\s)")
_LONG: Final = 140
"""A sentence longer than this is split at a comma: its first audio takes as long as all of it."""
_NO_END: Final = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|St|Prof|No|vs|approx|apt)|\b[A-Z]|\b[ap]\.m)\.$", re.I)


class SentenceSplitter:
    """Splits one answer."""

    def __init__(self) -> None:
        self._rest = ""

    def feed(self, text: str) -> list[str]:
        """Add text. Returns the sentences that it completes."""
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
