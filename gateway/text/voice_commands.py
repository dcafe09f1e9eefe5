"""
Spoken commands about memory ("forget that"), recognised without a language model.

A command is a whole sentence, one of the phrases in `languages/*.toml`; the same words within another sentence are
ignored. A destructive command is confirmed first, and only a plain yes as the next answer carries it out.
"""

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from gateway.text.languages import any_of, load_language, spaced, words

CONFIRM_SECONDS: Final = 30.0
"""How long a confirmation can be answered."""
_DEFAULT_LANGUAGE: Final = "en"
_SENTENCE_END: Final = re.compile(r"[.!?;:…]+")
_LONGEST_ANSWER: Final = 1000
"""Characters. What follows is not the answer to a question, and would take long to examine."""
_OPENING_CLAUSES: Final = 4
"""The number of clauses in which "off the record" is recognised: the beginning of a sentence."""


class VoiceCommandKind(enum.StrEnum):
    """What the caller asks for."""

    TELL_KNOWN = "tell_known"
    """Read out what is stored about them, as far as their trust level allows."""
    FORGET_THAT = "forget_that"
    """Forget what they said just before, in this call."""
    FORGET_EVERYTHING = "forget_everything"
    """Erase everything stored about them."""
    OFF_RECORD = "off_record"
    """Store nothing from this turn on, including the turn itself."""
    ON_RECORD = "on_record"
    SET_PIN = "set_pin"
    """Give them a PIN: the digits that follow."""


_CONFIRMED: Final = frozenset(
    {VoiceCommandKind.FORGET_THAT, VoiceCommandKind.FORGET_EVERYTHING, VoiceCommandKind.SET_PIN}
)


class CommandStep(enum.Enum):
    """What to do about a command now."""

    ASK = enum.auto()
    """Ask for confirmation."""
    DO = enum.auto()
    DROP = enum.auto()
    """The caller said no."""


@dataclass(frozen=True, slots=True)
class VoiceCommand:
    """A command, what to do about it, and the replies to choose from."""

    kind: VoiceCommandKind
    step: CommandStep
    say: str
    """The question, or the confirmation that it was done. For TELL_KNOWN the facts follow."""
    nothing: str
    """The reply if nothing is stored."""
    failed: str
    """The reply if it is not allowed, or failed."""


class VoiceCommands:
    """Recognises the commands of one call. `name` is the agent's; unknown languages are treated as English."""

    def __init__(self, language: str = _DEFAULT_LANGUAGE, *, name: str = "") -> None:
        self._phrases = _load(language, " ".join(words(name)))
        self._asked: VoiceCommandKind | None = None
        self._asked_at = 0.0

    def heard(self, text: str, now: float) -> VoiceCommand | None:
        """The command in one turn of the caller, or None."""
        spoken = spaced(text)
        if self._phrases.filler.fullmatch(spoken):
            return None
        # Only the next turn can confirm a command: a later yes answers something else.
        asked, self._asked = self._asked, None
        if asked is not None and now - self._asked_at <= CONFIRM_SECONDS:
            if self._phrases.yes.fullmatch(spoken):
                return self._command(asked, CommandStep.DO)
            if self._phrases.no.match(spoken):
                return self._command(asked, CommandStep.DROP)
        kind = self._phrases.kind(text)
        if kind is None:
            return None
        if kind not in _CONFIRMED:
            return self._command(kind, CommandStep.DO)
        self._asked, self._asked_at = kind, now
        return self._command(kind, CommandStep.ASK)

    def may_be_meant(self, text: str, now: float) -> bool:
        """Whether `heard` would recognise a command in this text, which may be incomplete."""
        asked, asked_at = self._asked, self._asked_at
        found = self.heard(text, now)
        self._asked, self._asked_at = asked, asked_at
        return found is not None

    def sets_pin(self, text: str) -> bool:
        """Whether the caller sets a PIN, in any sentence: the digits may be in the next one."""
        return self._phrases.sets_pin(text)

    def is_bare(self, text: str) -> bool:
        """Whether the turn consists of the command alone."""
        return all(self._phrases.filler.fullmatch(spaced(sentence)) for sentence in _sentences(text)[:-1])

    def _command(self, kind: VoiceCommandKind, step: CommandStep) -> VoiceCommand:
        common = self._phrases.rules
        texts = common[kind]
        says = {CommandStep.ASK: texts.get("ask", ""), CommandStep.DO: texts["done"], CommandStep.DROP: common["kept"]}
        return VoiceCommand(kind, step, says[step], texts["nothing"], common["failed"])


# Consent to a recording


@dataclass(frozen=True, slots=True)
class ConsentAnswer:
    """A clear yes or no. `goes_on`: the caller said something else after it."""

    is_yes: bool
    goes_on: bool = False


def consent_texts(language: str) -> Mapping[str, str]:
    """The question (`ask`), and the replies to a yes (`agreed`) and to anything else (`refused`)."""
    texts: Mapping[str, str] = _rules(language)["consent"]
    return texts


def consent_answer(text: str, language: str) -> ConsentAnswer | None:
    """
    What the caller answers to the question whether the call may be recorded; None if that is unclear.

    Only a whole sentence is a yes. A sentence that begins with a no is one, whatever follows, also after a yes.
    """
    phrases = _load(language, "")
    sentences = [spaced(sentence) for sentence in _sentences(text[:_LONGEST_ANSWER])]
    answers = [sentence for sentence in sentences if not phrases.filler.fullmatch(sentence)] or sentences
    if any(phrases.refuses.match(sentence) and not phrases.agrees.fullmatch(sentence) for sentence in answers):
        return ConsentAnswer(False)
    if answers and phrases.agrees.fullmatch(answers[0]):
        return ConsentAnswer(True, goes_on=not all(map(phrases.agrees.fullmatch, answers)))
    return None


@dataclass(frozen=True, slots=True)
class _Phrases:
    """One language: its patterns, which match the output of `spaced`, and its texts."""

    commands: Mapping[VoiceCommandKind, re.Pattern[str]]
    yes: re.Pattern[str]
    no: re.Pattern[str]
    filler: re.Pattern[str]
    """Words that are no answer."""
    agrees: re.Pattern[str]
    refuses: re.Pattern[str]
    rules: Mapping[str, Any]
    """The table of the language, which contains the replies."""

    def kind(self, text: str) -> VoiceCommandKind | None:
        """The command in the last sentence. One followed by more, as in "Forget that. Make it two.", is none."""
        sentences = _sentences(text)
        if self.sets_pin(text):
            return VoiceCommandKind.SET_PIN
        off_record = self.commands[VoiceCommandKind.OFF_RECORD]
        for sentence in sentences:
            # Also before a comma, as in "Off the record, I have never liked it": the rest must not be stored either.
            clauses = sentence.split(",")[:_OPENING_CLAUSES]
            openings = (" ".join(clauses[: end + 1]) for end in range(len(clauses)))
            if any(off_record.fullmatch(spaced(opening)) for opening in openings):
                return VoiceCommandKind.OFF_RECORD
        last = spaced(sentences[-1]) if sentences else ""
        return next((kind for kind, pattern in self.commands.items() if pattern.fullmatch(last)), None)

    def sets_pin(self, text: str) -> bool:
        pattern = self.commands[VoiceCommandKind.SET_PIN]
        return any(pattern.match(spaced(sentence)) for sentence in _sentences(text))


def _rules(language: str) -> Mapping[str, Any]:
    data = load_language(language) or load_language(_DEFAULT_LANGUAGE)
    assert data is not None
    rules: Mapping[str, Any] = data["voice_commands"]
    return rules


@lru_cache(maxsize=64)
def _load(language: str, name: str) -> _Phrases:
    rules = _rules(language)
    consent = rules["consent"]
    names = [name] if name else []
    # Bounded, so that endless repetitions by a caller can't keep the regular expression busy.
    before = f"(?:{any_of([*rules['before'], *names])}){{0,6}}"
    after = f"(?:{any_of([*rules['after'], *names])}){{0,4}}"
    phrases = {kind: any_of(rules[kind]["phrases"]) for kind in VoiceCommandKind}
    return _Phrases(
        commands={kind: re.compile(f"{before}(?:{phrase}){after}") for kind, phrase in phrases.items()},
        yes=re.compile(f"{before}(?:{any_of(rules['yes'])}){{1,4}}{after}"),
        no=re.compile(f"{before}(?:{any_of(rules['no'])})"),
        filler=re.compile(before),
        agrees=re.compile(f"{before}(?:{any_of([*rules['yes'], *consent['yes']])}){{1,4}}{after}"),
        refuses=re.compile(f"{before}(?:{any_of([*rules['no'], *consent['no']])})"),
        rules=rules,
    )


def _sentences(text: str) -> list[str]:
    return [sentence for sentence in _SENTENCE_END.split(text) if spaced(sentence)]
