"""
Turns a language model's text into text that a voice can speak, while it streams in.

Markdown, tags and emoji are removed, lists and tables become sentences, addresses and symbols become words. The words
for symbols are data, one file per language. A decision depends on `WINDOW` characters at most, and waits for them only
while they can change it. So the result does not depend on the chunks, and the time is linear in the length.
"""

import html
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Final

from gateway.text.languages import load_language
from gateway.text.spoken_joiner import SentenceJoint, SpokenJoiner

WINDOW: Final = 200
"""The most characters that unfinished markup can hold back; then it is taken literally."""

_TOP_LEVEL_DOMAINS: Final = frozenset(
    "com org net edu gov int info biz io ai app dev cloud shop eu uk de at ch fr es it nl be pl se ca au jp mx".split()
)
# Tags in which models think or call tools; the content is not for the caller.
_HIDDEN_TAGS: Final = frozenset(
    "think thinking thought thoughts reasoning reflection scratchpad analysis script style"
    " tool_call tool_calls tool_use function function_call function_calls invoke".split()
)
_BREAKING_TAGS: Final = frozenset("br p div li tr ul ol table h1 h2 h3 h4 h5 h6".split())

_DASHES: Final = "–—―"
_BULLETS: Final = "•‣◦▪●■►"
_ARROWS: Final = "\u2190-\u21ff\u27f0-\u27ff"
# Emoji with their selectors, skin tones, flags and tags; pictographs, box drawing, trade marks; odd line ends.
_PICTURES: Final = (
    "\r\x0b\x0c\x1c-\x1f\x85\u2028\u2029©®™℠ℹ‼⁉〰〽㊗㊙\ufffc\ufffd"
    "\u20e3\u2300-\u23ff\u2500-\u27ef\u2b00-\u2bff\ufe00-\ufe0f\U0001f000-\U0001faff\U000e0000-\U000e0fff"
)
# Joins emoji; in Indic scripts it is part of a word.
_JOINER: Final = r"\u200d(?<![\u0900-\u0dff].)"
_UNSEEN: Final = "\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff"

_SCHEMES: Final = ("http://", "https://", "www.")
_LABEL: Final = r"[^\W_]+(?:-+[^\W_]+)*+"
_URL: Final = rf"(?i:https?://(?:www\.)?|www\.)(?:[^\s/?#@<>]*+@)?+(?P<host>{_LABEL}(?:\.{_LABEL})*+)?+"
_DOMAIN: Final = rf"{_LABEL}(?:\.{_LABEL})++"
_TARGET: Final = r"\((?:[^\s()]++|\([^\s()]*+\))*+(?:[ \t]++\"[^\"\n]*+\")?+[ \t]*\)"
_TARGET_BEGUN: Final = r"\((?:[^\s()]++|\([^\s()]*+\)?+)*+(?:[ \t]++(?:\"[^\"\n]*+\"?+[ \t]*)?)?+"
# A tag does not extend into the next sentence: "a <b and more. So" contains none.
_IN_TAG: Final = r"(?:[^<>\n.!?]|[.!?](?![ \t]))*+"

# At the start of a line
_BLOCK: Final = re.compile(
    r"(?P<indent>[ \t]+)"
    r"|(?P<quote>>(?!\d)[ \t]?)"
    r"|(?P<number>\d{1,3}[.)](?=[ \t]))"
    r"|(?P<fence>`{3,}(?=[^`\n]*(?:\n|\Z))|~{3,})"
    r"|(?P<item>(?:[-|:][-|: \t]{2,}+|(?:\*{3,}|_{3,}|={3,})[ \t]*)(?=\n|\Z)"  # a ruler
    rf"|(?:\#{{1,6}}|[-*+{_BULLETS}{_DASHES}]|\[[ xX]\])[ \t]"
    r"|\|)"
)
_UNFINISHED_BLOCK: Final = re.compile(
    rf"(?:>|[-|:][-|: \t]*|(?:\*+|_+|=+)[ \t]*|\#{{1,6}}|[+{_BULLETS}{_DASHES}]|\[[ xX]?\]?|\d{{1,3}}[.)]?|`{{1,2}}"
    r"|`{3,}[^`\n]*|~+)\Z"
)
# Within a line: first complete constructs; then, after the words and symbols of the language, single marks
_CONSTRUCT: Final = re.compile(
    r"(?P<newline>\n)"
    r"|(?P<entity>&(?:\#\d+|\#[xX][0-9a-fA-F]+|[A-Za-z]+\d*);)"
    r"|(?P<comment><!--)"
    r"|(?P<tag>(?<!`)</?(?P<name>[A-Za-z][\w:-]{0,60}+)"
    rf"(?:=[^\s<>]*+|[ \t](?=[^<>\n]*=){_IN_TAG})?+[ \t]*/?>|<\|[^<>|\n]*\|>)"
    rf"|(?P<link><(?:{_URL}[^\s<>]*|(?P<box>[\w.+-]++)@(?P<box_host>{_DOMAIN}))>)"
    rf"|(?P<mail>(?P<local>(?:\.[\w.+-]*+)?)@(?P<mail_host>{_DOMAIN}))"
    rf"|(?P<dotted>(?:\.{_LABEL})++)"
    r"|(?P<ellipsis>\.{2,}|…)"
    rf"|(?P<citation>\[(?:\^[\w-]+|(?P<number>[1-9]\d?))\](?P<source>{_TARGET})?+|【[^】\n]*】)"
    r"|(?P<key>(?<!\S)\*(?=\d{1,3}(?:[\s#.,;:!?)]|\Z)))"
    rf"|(?P<removed>!(?=\[)|\](?:{_TARGET}|\[[^\[\]\n]*\]))"
)
_MARK: Final = re.compile(
    r"(?P<stars>\*+)"
    r"|(?P<underscores>_+)"
    rf"|(?P<dash>(?P<line>-{{2,}}|[{_DASHES}-])[ \t]*)"
    r"|(?P<pipe>\|+)"
    rf"|(?P<removed>`+|\#{{2,}}|[!?](?<=[!?].)|\\[()\[\]]|[{_UNSEEN}]+)"
    r"|(?P<bracket>[\[\]])"
    r"|(?P<backslash>\\)"
    r"|(?P<dollar>\$+)"
    r"|(?P<tilde>~+)"
    rf"|(?P<pause>[{_BULLETS}{_ARROWS}])"
    rf"|(?P<picture>[{_PICTURES}]+|{_JOINER})"
    r"|(?P<as_is>.)",
    re.DOTALL,
)
_UNFINISHED: Final = (
    r"[*_~#$]+|\*\d{1,3}|\\|!|-+[ \t]*"
    rf"|[{_DASHES}][ \t]*"
    r"|\.[\w.@+-]*|@[\w.-]*|&\#?\w*;?|【[^】\n]*"
    rf"|\[(?:\^[\w-]*|\d{{0,2}})(?:\](?:{_TARGET_BEGUN})?)?"
    rf"|\](?:{_TARGET_BEGUN}|\[[^\[\]\n]*)?"
    rf"|<(?:[^\s<>]*|/?[A-Za-z][\w:-]*[ \t]{_IN_TAG}|\|[^<>|\n]*\|?)"
    r"|(?i:https?://|www\.)[^\s/?#<>]*"
)
# After a host: punctuation belongs to the URL only if more of the URL follows
_URL_POINTS: Final = r".,;:!?'\")*_~"
_URL_REST: Final = re.compile(rf"[{_URL_POINTS}]*[^\s{_URL_POINTS}<>\]|`]+")
_UNFINISHED_URL: Final = re.compile(rf"[{_URL_POINTS}]*\Z")
_URL_START: Final = re.compile(_URL)


@dataclass(frozen=True)
class LanguageRules:
    """
    The words of one language for text that can't be read aloud: the table `speech` of its file.

    The tables from `between_numbers` on give words for symbols, depending on both neighbours of the symbol. A symbol
    without a word stays unchanged, and so do addresses without `dot` and `at`, and ranges without `to`.
    """

    code_left_out: str = ""
    dot: str = ""
    at: str = ""
    to: str = ""
    abbreviations: Mapping[str, str] = field(default_factory=dict)
    between_numbers: Mapping[str, str] = field(default_factory=dict)
    before_number: Mapping[str, str] = field(default_factory=dict)
    after_number: Mapping[str, str] = field(default_factory=dict)
    before_word: Mapping[str, str] = field(default_factory=dict)
    alone: Mapping[str, str] = field(default_factory=dict)
    anywhere: Mapping[str, str] = field(default_factory=dict)

    def word_for(self, symbol: str, left: str, right: str) -> str | None:
        """The word for a symbol. `left` and `right` are its neighbours, including a space in between."""
        before, after = left[-1:], right[:1]
        numbers = left.strip().isdecimal() and right.strip(" \t")[:1].isdecimal()
        table: Mapping[str, str] = {}
        if numbers and before.isspace() == after.isspace():
            table = self.between_numbers
        elif after.isdecimal() and not before.isalnum():
            table = self.before_number
        elif before.isdecimal() and not after.isalnum():
            table = self.after_number
        elif after.isalpha() and not before.isalnum():
            table = self.before_word
        elif not before.strip() and (not after.strip() or after in ".,;:!?)"):
            table = self.alone
        return table.get(symbol, self.anywhere.get(symbol))

    def spoken_host(self, host: str) -> str:
        return host.replace(".", f" {self.dot} ") if self.dot else host

    @cached_property
    def symbols(self) -> Mapping[str, Sequence[str]]:
        """All symbols that have a word, by their first character, longest first."""
        numbers = {*self.between_numbers, *self.before_number, *self.after_number}
        symbols = sorted({*numbers, *self.before_word, *self.alone, *self.anywhere}, key=len, reverse=True)
        return {first: [symbol for symbol in symbols if symbol[0] == first] for first in {s[0] for s in symbols}}

    @cached_property
    def notable(self) -> re.Pattern[str]:
        """Finds the next place that may need a change."""
        symbols = "".join(re.escape(first) for first in self.symbols)
        words = (*_SCHEMES, *self.abbreviations)
        initials = "".join({initial for word in words for initial in (word[0].lower(), word[0].upper())})
        return re.compile(
            rf"[\n*_`~\[\]<>|#\\$&@…【{_DASHES}{_BULLETS}{_ARROWS}{_PICTURES}{_UNSEEN}{symbols}-]"
            rf"|{_JOINER}"
            r"|\.(?=[\w.]|\Z)"
            r"|[!?](?<=[!?].)"
            r"|!(?<![^\W_].)(?=\[|\Z)"
            # Each alternative starts with a set, so that the engine skips other characters quickly.
            rf"|[{initials}](?<![^\W_].)(?<=(?=(?i:{_any_of(words)}|(?:{_beginnings(words)})\Z)).)"
        )

    @cached_property
    def unfinished(self) -> re.Pattern[str]:
        """Matches at a notable place whose meaning depends on more text."""
        # The character after a symbol matters, and the next one too if that is a space.
        symbols = _beginnings(f"{symbol} " for same_start in self.symbols.values() for symbol in same_start)
        words = _beginnings((*_SCHEMES, *self.abbreviations))
        return re.compile(rf"(?:{_UNFINISHED}|(?:{symbols})[ \t]?|(?i:{words}))\Z")


@lru_cache(maxsize=64)
def load_rules(language: str) -> LanguageRules:
    """The rules for a language tag such as `en` or `de-AT`; for an unknown language, rules that only remove markup."""
    data = load_language(language)
    return LanguageRules(**data["speech"]) if data else LanguageRules()


def spoken(text: str, rules: LanguageRules) -> str:
    """Convert a whole text."""
    speech = SpokenText(rules)
    return speech.feed(text) + speech.finish()


class SpokenText:
    """The filter for one text. Feed it chunks as they arrive; each call returns what can be spoken so far."""

    def __init__(self, rules: LanguageRules) -> None:
        self._rules = rules
        self._speech = SpokenJoiner()
        # The last two processed characters, then the waiting ones.
        self._text = ""
        self._position = 0
        self._complete = False
        self._step: Callable[[], bool] = self._start_line
        self._resume_at = re.compile("")
        self._in_item = False
        self._in_emphasis = False
        self._in_formula = False

    def feed(self, chunk: str) -> str:
        self._text += chunk
        while self._position < len(self._text) and self._step():
            pass
        done = max(0, self._position - 2)
        self._text = self._text[done:]
        self._position -= done
        return self._speech.take()

    def finish(self) -> str:
        """End the text. Returns what was held back."""
        self._complete = True
        text = self.feed("")
        self._speech.finish()
        return text + self._speech.take()

    # Steps, by what is being read; each returns false if it has to wait for more text

    def _start_line(self) -> bool:
        if self._waits(_UNFINISHED_BLOCK):
            return False
        block = self._match(_BLOCK)
        if block is None:
            self._step = self._read_line
            return True
        self._position = block.end()
        if block.lastgroup in ("number", "fence", "item"):
            self._speech.begin_item()
            self._in_item = True
        match block.lastgroup:
            case "indent":
                self._speech.say("" if self._in_item else block[0])
            case "number":
                self._speech.say(f"{block[0][:-1]}.")
                self._step = self._read_line
            case "fence":
                self._speech.say(self._rules.code_left_out)
                mark, length = block[0][0], min(len(block[0]), 50)
                self._leave_out_until(rf"\n[ \t>]{{0,50}}{mark}{{{length},60}}[ \t]{{0,50}}(?=\n)")
        return True

    def _read_line(self) -> bool:
        notable = self._rules.notable.search(self._text, self._position)
        end = notable.start() if notable else len(self._text)
        self._speech.say(self._text[self._position : end])
        self._position = end
        if notable is None or self._waits(self._rules.unfinished):
            return False
        if construct := self._match(_CONSTRUCT):
            self._position = construct.end()
            self._say_construct(construct)
        elif not self._say_word() and not self._say_symbol() and (mark := self._match(_MARK)):
            self._position = mark.end()
            self._say_mark(mark)
        return True

    def _skip_url(self) -> bool:
        """After the host of a URL comes the part that is not spoken."""
        if self._waits(_UNFINISHED_URL):
            return False
        if rest := self._match(_URL_REST):
            self._position = rest.end()
        else:
            self._step = self._read_line
        return True

    def _leave_out(self) -> bool:
        """Skip code, hidden reasoning or a comment."""
        end = self._resume_at.search(self._text, self._position)
        if end is None:
            self._position = max(self._position, len(self._text) - WINDOW)
            return False
        self._position = end.end()
        self._step = self._read_line
        return True

    def _waits(self, unfinished: re.Pattern[str]) -> bool:
        if self._complete or len(self._text) - self._position >= WINDOW:
            return False
        return unfinished.match(self._text, self._position) is not None

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        return pattern.match(self._text, self._position, self._position + WINDOW)

    def _leave_out_until(self, end: str) -> None:
        self._resume_at = re.compile(end)  # `re` caches it
        self._step = self._leave_out

    # Words and symbols of the language

    def _say_word(self) -> bool:
        """Speak the URL or abbreviation that starts here, if any."""
        if not self._text[self._position].isalpha():
            return False
        if url := self._match(_URL_START):
            self._position = url.end()
            self._say_host(url["host"] or "", _after(url))
            return True
        for short, full in self._rules.abbreviations.items():
            if self._text[self._position : self._position + len(short)].lower() == short.lower():
                self._position += len(short)
                self._speech.say_apart(full)
                return True
        return False

    def _say_symbol(self) -> bool:
        for symbol in self._rules.symbols.get(self._text[self._position], ()):
            if self._text.startswith(symbol, self._position):
                end = self._position + len(symbol)
                word = self._rules.word_for(symbol, self._speech.left, self._text[end : end + 2])
                if word is not None:
                    self._position = end
                    self._speech.say_apart(word)
                    return True
        return False

    def _say_host(self, host: str, after: str) -> None:
        self._speech.say(self._rules.spoken_host(host))
        if after in ("/", "?", "#", ":"):
            self._step = self._skip_url

    def _say_mailbox(self, box: str, host: str) -> None:
        if self._rules.at:
            self._speech.say(self._rules.spoken_host(box))
            self._speech.say_apart(self._rules.at)
            self._speech.say(self._rules.spoken_host(host))
        else:
            self._speech.say(f"{box}@{host}")

    # Constructs: complete in themselves. One without a case is not spoken.

    def _say_construct(self, construct: re.Match[str]) -> None:
        match construct.lastgroup:
            case "newline":
                # A line that ends in bold is treated as a heading.
                bold = construct.string.endswith(("**", "__"), 0, construct.start())
                self._speech.end_line(full_stop=self._in_item or bold)
                self._in_item = self._in_emphasis = self._in_formula = False
                self._step = self._start_line
            case "entity":
                self._say_entity(construct)
            case "tag":
                self._pass_tag(construct)
            case "comment":
                self._speech.leave_out()
                self._leave_out_until("-->")
            case "link" if construct["box"]:
                self._say_mailbox(construct["box"], construct["box_host"])
            case "link":
                self._speech.say(self._rules.spoken_host(construct["host"] or ""))
            case "mail":
                # The part before the first dot of the mailbox has been spoken already.
                self._say_mailbox(construct["local"], construct["mail_host"])
            case "dotted" if construct[0].rpartition(".")[2] in _TOP_LEVEL_DOMAINS:
                self._say_host(construct[0], _after(construct))
            case "dotted":
                self._speech.say(construct[0])
            case "ellipsis":
                self._speech.pause(SentenceJoint.BREAK)
            # "[1]" after a word is a citation. On its own it may be a key to press.
            case "citation" if construct["number"] and not construct["source"] and not self._before.strip():
                self._position = construct.start() + 1
            case "citation":
                self._speech.leave_out()
            # The star of a telephone, as in `*67`.
            case "key" if word := self._rules.alone.get("*"):
                self._speech.say_apart(word)
            case "key":
                self._speech.say("*")

    def _say_entity(self, entity: re.Match[str]) -> None:
        character, after = html.unescape(entity[0]), _after(entity)
        if character == entity[0]:  # unknown entity
            character, after = entity[0][:1], entity[0][1:2]
            self._position = entity.start() + 1
        word = self._rules.word_for(character, self._speech.left, after)
        if word is not None:
            self._speech.say_apart(word)
        elif character == "&" or not self._rules.notable.search(character):
            self._speech.say(" " if character.isspace() else character)
        else:
            self._speech.leave_out()

    def _pass_tag(self, tag: re.Match[str]) -> None:
        name = (tag["name"] or "").lower()
        if name in _BREAKING_TAGS:
            self._speech.pause(SentenceJoint.BREAK)
        else:
            self._speech.leave_out()
        if name.rpartition(":")[2] in _HIDDEN_TAGS and not tag[0].startswith("</") and not tag[0].endswith("/>"):
            self._leave_out_until(rf"(?i)</{name}[ \t]{{0,50}}>")

    # Marks: their meaning depends on both sides. One without a case is not spoken.

    @property
    def _before(self) -> str:
        return self._speech.left[-1:]

    def _say_mark(self, mark: re.Match[str]) -> None:
        match mark.lastgroup:
            case "stars":
                self._say_stars(mark)
            case "underscores" if self._before.isalnum() and _after(mark).isalnum():
                self._speech.say(mark[0])
            case "dash":
                self._say_dash(mark)
            case "pipe":
                self._speech.pause(SentenceJoint.COMMA)
                self._in_item = True
            case "bracket" if self._before.isalnum() and _after(mark).isalnum():
                self._speech.say(" ")
            # Before a word it starts a formula command; in a path it stays.
            case "backslash" if self._before.strip() and _after(mark).isalnum():
                self._speech.say(mark[0])
            case "dollar":
                self._say_dollar(mark)
            case "tilde" if _after(mark).isdecimal() and mark[0] == "~":
                self._speech.say(mark[0])
            case "pause":
                self._speech.pause(SentenceJoint.COMMA)
            case "picture":
                self._speech.leave_out()
            case "as_is":
                self._speech.say(mark[0])

    def _say_stars(self, stars: re.Match[str]) -> None:
        """Emphasis is not spoken; a product is: `2*3`, `a*b`, `2**8`, `f(x)*(y+1)`."""
        before, after = self._before, _after(stars)
        factors = (before.isalnum() or before == ")") and (after.isalnum() or after == "(")
        powers = before.isdecimal() and after.isdecimal()
        # In scripts without spaces, emphasis marks stand between letters.
        single = stars[0] == "*" and (before + after).isascii()
        if (factors and not self._in_emphasis and (single or powers)) or (single and before == after == " "):
            self._speech.say(stars[0])
        else:
            self._in_emphasis = not self._in_emphasis and not after.isspace()

    def _say_dash(self, dash: re.Match[str]) -> None:
        """A hyphen or minus stays, an en dash may be a range, everything else is a pause."""
        line, after, left = dash["line"], _after(dash), self._speech.left
        spaced = dash[0] != line or not after.strip()
        numbers = left.strip().isdecimal() and after.isdecimal()
        if line == "-" and (numbers or self._before.strip() or not spaced):
            self._speech.say(dash[0])
        elif line == "–" and (numbers or (left.isalnum() and after.isalnum() and not spaced)):
            if self._rules.to:
                self._speech.say_apart(self._rules.to)
            else:
                self._speech.say(dash[0])
        elif line == "–" and after.isdecimal() and not spaced:
            self._speech.say("-")
        else:
            self._speech.pause(SentenceJoint.COMMA)

    def _say_dollar(self, dollar: re.Match[str]) -> None:
        """An amount stays; the marks around a formula are removed."""
        before, after = self._before, _after(dollar)
        opens = (after.isalpha() or after == "\\") and not before.isalnum()
        closes = self._in_formula and before.strip()
        if opens or closes or len(dollar[0]) > 1:
            self._in_formula = not self._in_formula
        else:
            self._speech.say(dollar[0])


def _after(token: re.Match[str]) -> str:
    """The character after it, as far as it has arrived."""
    return token.string[token.end() : min(token.end() + 1, token.endpos)]


def _any_of(texts: Iterable[str]) -> str:
    return "|".join(re.escape(text) for text in texts)


def _beginnings(texts: Iterable[str]) -> str:
    return _any_of(sorted({text[:length] for text in texts for length in range(1, len(text))}))
