"""
Answers by rules, without a language model: takes notes and quotes what it remembers. In English.

It gets the same input as a language model: the prompt with notes of earlier calls, the memory found for this turn, and
the conversation. It quotes notes, invents nothing, and says what it is.
"""

import itertools
import re
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Final

from gateway.llm.chat import ChatEvent, ChatRequest, Finished, Message, TextDelta, ToolCallDelta
from gateway.text.languages import cue, load_cues, word_list
from gateway.text.redaction import spoken_numbers

END_CALL: Final = "end_call"
WHAT_I_AM: Final = "I'm a scripted agent, with no language model behind me."
WHAT_I_DO: Final = "I take notes, and remember them when you call again."
UNKNOWN: Final = "I don't have a note about that. I've written your question down."
_NOTED: Final = ("Noted. What else?", "I've written that down. Anything else?", "Got it, that's in my notes. Go on.")
_MOST_QUOTES: Final = 2
_QUOTE_CHARACTERS: Final = 160


_FEWEST_DIGITS: Final = 3
_READ_BACK: Final = "Is that right?"

_SPEAKER: Final = re.compile(r"\b(Caller|Agent): ")
_EDGES: Final = " ;-…"
_HEADINGS: Final = re.compile(
    r"[#\s-]*(?:Topics Discussed|Key Decisions|Action Items|Important Facts|Context for Next Call)[#:\s-]*(?:\[ \] )?"
    r"|#+ *Voice Call Summary[^#*]*|\*\*(?:Session|Duration|Agent):\*\* *[^*#]*|\*\*Caller:\*\*[^)#*]*\)?|(?<!\w)\[ \] "
)
"""Headings and header lines of a summary, and the boxes of its action items."""
_BLOCK: Final = re.compile(r"<(call_notes|caller_facts|known)>\n(.*?)\n</\1>", re.DOTALL)
_LABEL: Final = re.compile(r"^(?:Context for this call|Open action items|Key decisions|Important facts|Topics): ")
_TITLE: Final = re.compile(r"^[^:.]{0,80}?(?:Summary|fact|Fact)[^:]*(?::\d\d [AP]M)?: ")


class ScriptedUpstream:
    """An `Upstream` without a model."""

    name = "script"
    model = "scripted"

    async def answer(self, request: ChatRequest, caller_key: str) -> AsyncGenerator[ChatEvent, None]:
        script = _Script(request)
        can_end = any(tool["function"]["name"] == END_CALL for tool in request.tools)
        if can_end and script.is_goodbye and not script.has_ended:
            yield ToolCallDelta(0, "end", END_CALL, "{}")
            yield Finished("tool_calls")
            return
        yield TextDelta(" ".join(script.sentences()))
        yield Finished("stop")

    async def warm(self) -> None:
        load_cues("scripted")

    async def close(self) -> None: ...


class _Script:
    """The answer to one request, from the notes of earlier calls in its prompt and its memory."""

    def __init__(self, request: ChatRequest) -> None:
        messages = request.messages
        self._said, answers, prompts = (
            [_text(message) for message in messages if message["role"] == role]
            for role in ("user", "assistant", "system")
        )
        self._last_words = self._said[-1] if self._said else ""
        self._last_answer = next(filter(None, reversed(answers)), "")  # a tool call has no text
        blocks = dict(_BLOCK.findall("\n".join([*prompts, request.memory])))
        self._facts, self._calls, self._found = (
            blocks.get(name, "").splitlines() for name in ("caller_facts", "call_notes", "known")
        )
        names = (fact.removeprefix("Is called ") for fact in self._facts if fact.startswith("Is called "))
        self._name = next((f", {name}" for name in names), "")
        self.is_goodbye = _means("goodbye", self._last_words)
        self.has_ended = messages[-1]["role"] == "tool"

    def sentences(self) -> Iterator[str]:
        said = self._last_words
        if not said:
            yield from self._opening()
        elif self.has_ended or self.is_goodbye:
            yield f"Thank you for calling{self._name}. Goodbye."
        elif _READ_BACK in self._last_answer and _means("yes", said):
            yield "Good, that's in my notes. Anything else?"
        elif _READ_BACK in self._last_answer and _means("no", said) and not _numbers(said):
            yield "I'm sorry. Please say it once more, slowly."
        elif _means("question", said) and _means("this_call", said):
            yield self._this_call()
        elif _means("last_time", said):
            yield self._last_time()
        elif _means("who", said):
            yield f"{WHAT_I_AM} {WHAT_I_DO}"
        elif _means("question", said):
            yield self._from_memory()
        elif numbers := _numbers(said):
            yield f"I heard {' and '.join(numbers)}. {_READ_BACK}"
        elif _means("thanks", said) and len(said.split()) < 5:
            yield "You're welcome. Anything else?"
        else:
            yield _NOTED[len(self._said) % len(_NOTED)]

    def _opening(self) -> Iterator[str]:
        """The greeting, with what the agent is and remembers inserted before its question."""
        statement, question = re.fullmatch(r"(.*?)([^.!?]*\?)?", self._last_answer, re.DOTALL).groups()  # type: ignore[union-attr]
        yield statement.strip()
        if quotes := self._last_call():
            yield f"Welcome back{self._name}."
            yield WHAT_I_AM
            yield f"Last time you said: {_joined(quotes)}"
        else:
            yield f"{WHAT_I_AM} {WHAT_I_DO}"
        yield (question or "How can I help you?").strip()

    def _this_call(self) -> str:
        said = [sentence for text in self._said[:-1] for sentence in _sentences(text)]
        stated = [sentence for sentence in said if len(sentence.split()) > 2 and not _means("question", sentence)]
        return f"You said: {_joined(stated, 3)}" if stated else "Nothing yet. Go ahead."

    def _last_time(self) -> str:
        if quotes := self._last_call():
            return f"You said: {_joined(quotes, 3)}"
        if self._facts:
            return f"I know this: {_joined([_second_person(fact) for fact in self._facts], 3)}"
        return "I have no notes of an earlier call with you."

    def _last_call(self) -> list[str]:
        """What the caller said in the newest call, which is the first in the notes."""
        newest = itertools.takewhile(lambda line: not line.startswith("Call of "), self._calls[1:])
        return list(dict.fromkeys(quote for line in newest for quote in _quotes(_LABEL.sub("", line))))

    def _from_memory(self) -> str:
        """The notes that share most words with the question, else memory found by meaning."""
        asked, wants_time = _words(self._last_words), _means("time_question", self._last_words)

        def fit(note: str) -> float:
            common = len(asked & _words(note))
            return common + (0.5 if wants_time and common and _means("time", note) else 0.0)

        earlier = [sentence for said in self._said[:-1] for sentence in _sentences(said)]
        found = [quote for line in self._found for quote in _quotes(_TITLE.sub("", line))]
        noted = [quote for line in self._calls if not line.startswith("Call of ") for quote in _quotes(line)]
        notes = dict.fromkeys([*reversed(earlier), *found, *map(_second_person, self._facts), *noted])
        fits = {note: fit(note) for note in notes if "?" not in note}
        best = [note for note in sorted(fits, key=lambda note: -fits[note]) if fits[note] >= 1.0]
        if best:
            return f"My notes say: {_joined(best, 1 if wants_time else _MOST_QUOTES)}"
        if self._found:
            return f"The nearest I have is this: {_joined(_quotes(_TITLE.sub('', self._found[0])), 1)}"
        return UNKNOWN


def _numbers(said: str) -> list[str]:
    """Each spoken number, digit by digit."""
    return [", ".join(found.digits) for found in spoken_numbers(said) if len(found.digits) >= _FEWEST_DIGITS]


# Texts


def _means(cue_name: str, text: str) -> bool:
    return cue("scripted", cue_name).search(text) is not None


def _text(message: Message) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""


def _quotes(line: str) -> list[str]:
    """The caller's words in a line of notes, and what stands there without a speaker; no headers."""
    note, *spoken = _SPEAKER.split(_HEADINGS.sub(" ", line))
    texts = [note, *(text for speaker, text in zip(spoken[::2], spoken[1::2], strict=True) if speaker == "Caller")]
    return [text.strip(_EDGES) for text in texts if text.strip(_EDGES)]


def _sentences(text: str) -> list[str]:
    return [sentence.strip() for sentence in re.split(r"(?<=[.!?])\s+", text) if sentence.strip()]


def _joined(quotes: Sequence[str], most: int = _MOST_QUOTES) -> str:
    short = (
        quote if len(quote) <= _QUOTE_CHARACTERS else quote[:_QUOTE_CHARACTERS].rsplit(" ", 1)[0] for quote in quotes
    )
    return " ".join(quote if quote[-1] in ".!?" else f"{quote}." for quote in list(short)[:most])


def _words(text: str) -> frozenset[str]:
    """The content words of a sentence, without common endings."""
    common = word_list("scripted", "common")
    words = (word for word in re.findall(r"[a-z0-9']+", text.lower()) if word not in common)
    return frozenset(re.sub(r"(?:'s|s|ed|ing)$", "", word) if len(word) > 4 else word for word in words)


def _second_person(fact: str) -> str:
    """A fact, addressed to the caller: "Prefers tea" becomes "You prefer tea"."""
    verb, _, rest = fact.partition(" ")
    forms = {"Is": "are", "Has": "have", "Was": "were"}
    if verb in forms:
        return f"You {forms[verb]} {rest}"
    return f"You {verb[0].lower()}{verb[1:-1] if verb.endswith('s') else verb[1:]} {rest}"
