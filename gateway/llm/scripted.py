"""
Answers by rules, without a language model: takes notes and quotes what it remembers. In English.

It gets the same input as a language model: the prompt with notes of earlier calls, the memory found for this turn, and
the conversation. It quotes notes, invents nothing, and says what it is.
"""

import re
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.llm.chat import ChatEvent, ChatRequest, Finished, Message, TextDelta, ToolCallDelta
from gateway.text.redaction import spoken_numbers

END_CALL: Final = "end_call"
WHAT_I_AM: Final = "I'm a scripted agent, with no language model behind me."
WHAT_I_DO: Final = "I take notes, and remember them when you call again."
UNKNOWN: Final = "I don't have a note about that. I've written your question down."
_NOTED: Final = ("Noted. What else?", "I've written that down. Anything else?", "Got it, that's in my notes. Go on.")
_MOST_QUOTES: Final = 2
_QUOTE_CHARACTERS: Final = 160


def _any_of(*phrases: str) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(phrases)})\b", re.IGNORECASE)


_GOODBYE: Final = _any_of("good ?bye", "bye", "that(?:'s| is| will be) (?:all|it|everything)", "hang up", "see you")
_THANKS: Final = _any_of("thanks", "thank you")
_YES: Final = re.compile(r"^(?:yes|yeah|yep|right|correct|exactly|that's right)\b", re.IGNORECASE)
_NO: Final = re.compile(r"^(?:no|nope|wrong|that's wrong|not quite)\b", re.IGNORECASE)
_WHO: Final = _any_of("who are you", "what are you", "are you (?:a|an|real|human)", "(?:a|the) (?:robot|bot|machine)")
_LAST_TIME: Final = _any_of(
    "what did (?:we|i) (?:talk|speak|say|tell|discuss|call)",
    "(?:do|did) you remember",
    "last (?:time|call|conversation)",
    "what do you (?:know|remember|have)",
    "remember me",
    "my notes",
)
_QUESTION: Final = re.compile(
    r"\?\s*$|^(?:and |so |well,? |but |please,? )*(?:when|what|where|who|whose|which|why|how|is|are|was|were|do|does"
    r"|did|can|could|will|would|have|has|had|tell me)\b",
    re.IGNORECASE,
)
_TIME_QUESTION: Final = re.compile(r"\b(?:when|what (?:time|day|date)|which day)\b", re.IGNORECASE)
_TIME: Final = _any_of(
    "(?:mon|tues|wednes|thurs|fri|satur|sun)day",
    "tomorrow|today|tonight|noon|midnight|morning|afternoon|evening|o'clock|half[- ]past|quarter",
    "january|february|march|april|may|june|july|august|september|october|november|december",
    r"\d{1,2}(?::\d\d)?",
)
_FEWEST_DIGITS: Final = 3
_READ_BACK: Final = "Is that right?"

_COMMON: Final = frozenset(
    "a about again am an and any are at be been can could did do does for from had has have how i if in is it it's its "
    "just know me my need of on or our please remember said say so some tell that the their them then there they this "
    "time to told up us was we were what when where which who will with would you your supposed".split()
)
_SPEAKER: Final = re.compile(r"\b(Caller|Agent): ")
_EDGES: Final = " ;-…"
_HEADINGS: Final = re.compile(
    r"(?:[#\s-]*(?:Topics Discussed|Key Decisions|Action Items|Important Facts|Context for Next Call))+[#\s-]*$"
)
"""Headings of a summary at the end of a quote."""
_BLOCK: Final = re.compile(r"<(call_notes|caller_facts|known)>\n(.*?)\n</\1>", re.DOTALL)
_LABEL: Final = re.compile(r"^(?:Context for this call|Open action items|Key decisions|Important facts|Topics): ")
_TITLE: Final = re.compile(r"^[^:.]{0,80}?(?:Summary|fact|Fact)[^:]*(?::\d\d [AP]M)?: ")


class ScriptedUpstream:
    """An `Upstream` without a model."""

    name = "script"
    model = "scripted"

    async def answer(self, request: ChatRequest, caller_key: str) -> AsyncGenerator[ChatEvent, None]:
        turn = _Turn.of(request)
        if turn.wants_to_end and not turn.has_ended:
            yield ToolCallDelta(0, "end", END_CALL, "{}")
            yield Finished("tool_calls")
            return
        yield TextDelta(" ".join(_spoken(turn)))
        yield Finished("stop")

    async def warm(self) -> None:
        pass

    async def close(self) -> None:
        pass


@dataclass(frozen=True)
class _Notes:
    """The notes of earlier calls in a prompt."""

    facts: tuple[str, ...]
    calls: tuple[str, ...]
    """The lines of the notes, newest call first."""
    found: tuple[str, ...]
    """Memory found for this turn, best first."""

    @classmethod
    def read(cls, prompt: str, memory: str) -> "_Notes":
        blocks = {name: tuple(text.splitlines()) for name, text in _BLOCK.findall(f"{prompt}\n{memory}")}
        return cls(blocks.get("caller_facts", ()), blocks.get("call_notes", ()), blocks.get("known", ()))

    @property
    def name(self) -> str:
        called = (fact.removeprefix("Is called ") for fact in self.facts if fact.startswith("Is called "))
        return next(called, "")

    def last_call(self) -> list[str]:
        """What the caller said in the newest call, according to the notes."""
        lines: list[str] = []
        for line in self.calls[1:]:
            if line.startswith("Call of "):
                break
            lines += _quotes(_LABEL.sub("", line))
        return list(dict.fromkeys(lines))

    def everything(self) -> list[str]:
        """Everything that may answer a question; memory found for it comes first."""
        found = [quote for line in self.found for quote in _quotes(_TITLE.sub("", line))]
        noted = [quote for line in self.calls if not line.startswith("Call of ") for quote in _quotes(line)]
        return list(dict.fromkeys([*found, *map(_second_person, self.facts), *noted]))


@dataclass(frozen=True)
class _Turn:
    """The parts of a request that the rules use."""

    said: str
    """The caller's last words; empty before the first."""
    earlier: tuple[str, ...]
    last_answer: str
    greeting: str
    """The configured greeting, before anything was said."""
    notes: _Notes
    can_end: bool
    has_ended: bool
    number: int

    @classmethod
    def of(cls, request: ChatRequest) -> "_Turn":
        messages = request.messages
        said = [_text(message) for message in messages if message["role"] == "user"]
        answers = [_text(message) for message in messages if message["role"] == "assistant" and _text(message)]
        prompt = "\n".join(_text(message) for message in messages if message["role"] == "system")
        return cls(
            said=said[-1] if said else "",
            earlier=tuple(said[:-1]),
            last_answer=answers[-1] if answers else "",
            greeting=_text(messages[-1]) if messages[-1]["role"] == "assistant" and not said else "",
            notes=_Notes.read(prompt, request.memory),
            can_end=any(tool["function"]["name"] == END_CALL for tool in request.tools),
            has_ended=messages[-1]["role"] == "tool",
            number=len(said),
        )

    @property
    def wants_to_end(self) -> bool:
        return self.can_end and bool(_GOODBYE.search(self.said))


def _spoken(turn: _Turn) -> Iterator[str]:
    """The answer, sentence by sentence."""
    if not turn.said:
        yield from _opening(turn)
    elif turn.has_ended or _GOODBYE.search(turn.said):
        name = turn.notes.name
        yield f"Thank you for calling{f', {name}' if name else ''}. Goodbye."
    elif _READ_BACK in turn.last_answer and (answer := _confirmed(turn.said)):
        yield answer
    elif _LAST_TIME.search(turn.said):
        yield from _last_time(turn.notes)
    elif _WHO.search(turn.said):
        yield f"{WHAT_I_AM} {WHAT_I_DO}"
    elif _QUESTION.search(turn.said):
        yield from _from_memory(turn)
    elif numbers := _numbers(turn.said):
        yield f"I heard {' and '.join(numbers)}. {_READ_BACK}"
    elif _THANKS.search(turn.said) and len(turn.said.split()) < 5:
        yield "You're welcome. Anything else?"
    else:
        yield _NOTED[turn.number % len(_NOTED)]


def _opening(turn: _Turn) -> Iterator[str]:
    """The greeting, with what the agent is and remembers inserted before its question."""
    statement, question = re.fullmatch(r"(.*?)([^.!?]*\?)?", turn.greeting, re.DOTALL).groups()  # type: ignore[union-attr]
    yield statement.strip()
    if quotes := turn.notes.last_call():
        yield f"Welcome back{f', {turn.notes.name}' if turn.notes.name else ''}."
        yield WHAT_I_AM
        yield f"Last time you said: {_joined(quotes)}"
    else:
        yield f"{WHAT_I_AM} {WHAT_I_DO}"
    yield (question or "How can I help you?").strip()


def _confirmed(said: str) -> str:
    if _YES.search(said):
        return "Good, that's in my notes. Anything else?"
    return "I'm sorry. Please say it once more, slowly." if _NO.search(said) and not _numbers(said) else ""


def _last_time(notes: _Notes) -> Iterator[str]:
    if quotes := notes.last_call():
        yield f"You said: {_joined(quotes, 3)}"
    elif notes.facts:
        yield f"I know this: {_joined([_second_person(fact) for fact in notes.facts], 3)}"
    else:
        yield "I have no notes of an earlier call with you."


def _from_memory(turn: _Turn) -> Iterator[str]:
    """The notes that share most words with the question, else memory found by meaning."""
    earlier = [sentence for said in turn.earlier for sentence in _sentences(said)]
    candidates = list(dict.fromkeys([*reversed(earlier), *turn.notes.everything()]))
    asked = _words(turn.said)
    wants_time = bool(_TIME_QUESTION.search(turn.said))
    ranked = sorted(
        ((_fit(note, asked, wants_time), -place, note) for place, note in enumerate(candidates) if "?" not in note),
        reverse=True,
    )
    best = [note for fit, _, note in ranked if fit >= 1.0]
    if best:
        yield f"My notes say: {_joined(best, 1 if wants_time else _MOST_QUOTES)}"
    elif turn.notes.found:
        yield f"The nearest I have is this: {_joined(_quotes(_TITLE.sub('', turn.notes.found[0])), 1)}"
    else:
        yield UNKNOWN


def _fit(note: str, asked: frozenset[str], wants_time: bool) -> float:
    common = len(asked & _words(note))
    return common + (0.5 if wants_time and common and _TIME.search(note) else 0.0)


def _numbers(said: str) -> list[str]:
    """Each spoken number, digit by digit."""
    return [", ".join(found.digits) for found in spoken_numbers(said) if len(found.digits) >= _FEWEST_DIGITS]


# Texts


def _text(message: Message) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""


def _quotes(line: str) -> list[str]:
    """The caller's words in a line of notes; a line without speakers is a note itself."""
    parts = _SPEAKER.split(line)
    if len(parts) == 1:
        return [line.strip()] if line.strip() else []
    spoken = zip(parts[1::2], (_HEADINGS.sub("", part) for part in parts[2::2]), strict=True)
    return [text.strip(_EDGES) for speaker, text in spoken if speaker == "Caller" and text.strip(_EDGES)]


def _sentences(text: str) -> list[str]:
    return [sentence.strip() for sentence in re.split(r"(?<=[.!?])\s+", text) if sentence.strip()]


def _joined(quotes: Sequence[str], most: int = _MOST_QUOTES) -> str:
    short = (
        quote if len(quote) <= _QUOTE_CHARACTERS else quote[:_QUOTE_CHARACTERS].rsplit(" ", 1)[0] for quote in quotes
    )
    return " ".join(quote if quote[-1] in ".!?" else f"{quote}." for quote in list(short)[:most])


def _words(text: str) -> frozenset[str]:
    """The content words of a sentence, without common endings."""
    words = (word for word in re.findall(r"[a-z0-9']+", text.lower()) if word not in _COMMON)
    return frozenset(re.sub(r"(?:'s|s|ed|ing)$", "", word) if len(word) > 4 else word for word in words)


def _second_person(fact: str) -> str:
    """A fact, addressed to the caller: "Prefers tea" becomes "You prefer tea"."""
    verb, _, rest = fact.partition(" ")
    forms = {"Is": "are", "Has": "have", "Was": "were"}
    if verb in forms:
        return f"You {forms[verb]} {rest}"
    return f"You {verb[0].lower()}{verb[1:-1] if verb.endswith('s') else verb[1:]} {rest}"
