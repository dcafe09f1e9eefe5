"""
The WordPiece tokenizer of uncased BERT models.

`bert_vocab.txt` beside this file is the vocabulary of bert-base-uncased (google-research/bert, Apache-2.0), which
MiniLM uses too. The rules are those of BERT's tokenization.py. The `tokenizers` package does the same with 41 MB of
dependencies.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Final

_VOCABULARY: Final = Path(__file__).with_name("bert_vocab.txt")
_LONGEST_WORD: Final = 100  # characters; a longer word is unknown to BERT
# Every ASCII character but letters and digits is a word of its own, whatever its Unicode category.
_WORDS: Final = re.compile(r"[!-/:-@\[-`{-~]|[^\s!-/:-@\[-`{-~]+")
_CHINESE: Final = re.compile("([\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f])")


class WordPiece:
    """The tokenizer. Reads its vocabulary for the first text."""

    def encode(self, text: str, most: int) -> list[tuple[str, int]]:
        """The pieces of `text`, at most `most`, as (word, number); the markers at both ends have an empty word."""
        inner = ((word, number) for word in _words(text) for number in self._pieces(word))
        return [("", self._numbers["[CLS]"]), *islice(inner, most - 2), ("", self._numbers["[SEP]"])]

    @cached_property
    def _numbers(self) -> dict[str, int]:
        tokens = _VOCABULARY.read_text(encoding="utf-8").split("\n")
        return {token: number for number, token in enumerate(tokens)}

    def _pieces(self, word: str) -> list[int]:
        """The longest known piece, then the longest that continues it, and so on."""
        pieces: list[int] = []
        start = 0
        while start < len(word):
            mark = "##" if start else ""
            ends = range(len(word), start, -1)
            end = next((end for end in ends if mark + word[start:end] in self._numbers), None)
            if end is None or len(word) > _LONGEST_WORD:
                return [self._numbers["[UNK]"]]
            pieces.append(self._numbers[mark + word[start:end]])
            start = end
        return pieces


def without_accents(text: str) -> str:
    decomposed = unicodedata.normalize("NFD", text)
    return "".join(character for character in decomposed if unicodedata.category(character) != "Mn")


def _words(text: str) -> Iterator[str]:
    """Words and punctuation marks, in lower case and without accents."""
    spaced = _CHINESE.sub(r" \1 ", "".join(filter(_is_printable, text)))
    for word in _WORDS.findall(without_accents(spaced.lower())):
        yield from _split_at_punctuation(word)


def _is_printable(character: str) -> bool:
    return character in "\t\n\r" or (character != "\ufffd" and unicodedata.category(character) not in ("Cc", "Cf"))


def _split_at_punctuation(word: str) -> Iterator[str]:
    start = 0
    for place, character in enumerate(word):
        if unicodedata.category(character)[0] == "P":
            yield from filter(None, (word[start:place], character))
            start = place + 1
    yield from filter(None, (word[start:],))
