"""
Answers by rules, without a language model: takes notes, quotes what it remembers and what the agent's documents say.

It gets the same input as a language model: the prompt with notes of earlier calls, the memory found for this turn, the
conversation, and the tools. It quotes, invents nothing, and says what it is. Its words are in the tables `scripted` of
`gateway/text/languages`.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from gateway.llm.chat import ChatEvent, ChatRequest, Finished, Message, TextDelta, ToolCallDelta
from gateway.llm.quotes import (
    ELSEWHERE,
    OWN_SHARE,
    SHARE,
    CallerMemory,
    is_private,
    is_secret,
    joined,
    passages,
    script_language,
    shortest,
)
from gateway.text import sensitive
from gateway.text.person_names import introduced_name
from gateway.text.sensitive import sentences

END_CALL: Final = "end_call"
TRANSFER_CALL: Final = "transfer_call"
SEARCH_KNOWLEDGE: Final = "search_knowledge"
MESSAGE_AGENT: Final = "message_agent"

_MOST_QUOTES: Final = 2
_MOST_OF_SECTION: Final = 3
_FEW_WORDS: Final = 4  # a caller who only names a transfer target
_SURE: Final = 2.0  # words in common with a request to do something, so that a quotation answers it
_OWN_LEAD: Final = 0.7  # by which a document must beat the notes where callers ask about themselves


@dataclass(frozen=True, slots=True)
class _Reply:
    """Words to say, or a tool to use."""

    text: str = ""
    tool: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)


class ScriptedUpstream:
    """An `Upstream` without a model."""

    name = "script"
    model = "scripted"

    def __init__(self, language: str = "en") -> None:
        self._language = language

    async def answer(self, request: ChatRequest, caller_key: str) -> AsyncGenerator[ChatEvent, None]:
        # Off the event loop: the patterns take some milliseconds for each turn of the call.
        reply = await asyncio.to_thread(lambda: _Script(request, self._language).reply())
        if reply.tool:
            yield ToolCallDelta(
                0, f"{reply.tool}-{len(request.messages)}", reply.tool, orjson.dumps(reply.arguments).decode()
            )
            yield Finished("tool_calls")
        else:
            yield TextDelta(reply.text)
            yield Finished("stop")

    async def warm(self) -> None:
        for load in (sensitive.load, lambda: script_language(self._language)):
            await asyncio.to_thread(load)

    async def close(self) -> None: ...


class _Script:
    """The answer to one request."""

    def __init__(self, request: ChatRequest, language: str) -> None:
        self._language = script_language(language)
        self._means = self._language.means
        self._messages = request.messages
        self._tools = {tool["function"]["name"]: tool["function"] for tool in request.tools}
        self._said, answers, prompts = (
            [_text(message) for message in request.messages if message["role"] == role]
            for role in ("user", "assistant", "system")
        )
        self._last_words = self._said[-1].strip() if self._said else ""
        self._last_answer = next(filter(None, reversed(answers)), "")  # a tool call has no text
        self._memory = CallerMemory("\n".join([*prompts, request.memory]), self._language)

    def reply(self) -> _Reply:
        if self._messages[-1]["role"] == "tool":
            return self._after_tool(*_tool_result(self._messages))
        if not self._said:
            return _Reply(self._opening())
        said = self._last_words
        if self._language.is_all("nothing", said):
            return self._say("take_your_time")
        if self._language.is_all("stop", said):
            return self._say("stopped")
        if self._means("repeat", said) and self._last_answer:
            return _Reply(self._last_answer)
        is_read_back = self._means("read_back", self._last_answer)
        if is_read_back and self._language.is_all("agreed", said):
            return self._say("confirmed")
        if self._means("goodbye", said) or self._wants_nothing_else(said):
            return self._goodbye()
        if is_read_back and (reply := self._confirmed(said)):
            return reply
        return self._corrected(said) or self._small_talk(said) or self._about_agent(said) or self._on_matter(said)

    # The parts of a conversation

    def _opening(self) -> str:
        """The greeting, with what the agent is and remembers inserted before its question."""
        parts = sentences(self._last_answer)
        question = parts.pop() if parts and parts[-1].endswith("?") else self._phrase("how_can_i_help")
        name = self._memory.name
        quotes = self._memory.last_call()
        if quotes or name:
            parts += [self._phrase("welcome_back", name=_address(name)), self._phrase("what_i_am")]
            parts += [self._phrase("last_time", quotes=joined(quotes, _MOST_QUOTES))] if quotes else []
        else:
            parts += [self._phrase("what_i_am"), self._phrase("what_i_do")]
        return " ".join([*parts, question])

    def _wants_nothing_else(self, said: str) -> bool:
        return self._means("anything_else", self._last_answer) and self._means("nothing_else", said)

    def _goodbye(self) -> _Reply:
        if END_CALL in self._tools:
            return _Reply(tool=END_CALL)
        return self._say("goodbye", name=_address(self._memory.name))

    def _confirmed(self, said: str) -> _Reply | None:
        """The reply to a yes or no to what was said back; None if the caller says something else."""
        if self._means("yes", said):
            rest = self._language.without("yes", said)
            return None if self._means("question", rest) else self._say("confirmed")
        if self._means("no", said) and not self._language.heard(said) and len(said.split()) <= 4:
            return self._say("once_more")
        return None

    def _corrected(self, said: str) -> _Reply | None:
        """ "No, Tuesday, not Monday": change what was said before, and say the result back."""
        if not self._language.is_correction(said) or self._means("question", said) or is_secret(said):
            return None
        sentence = self._language.correct(self._language.stated(self._said[:-1]), said)
        if not sentence:
            return None
        if self._means("ending", said):
            return self._say("changed", values=self._language.said_back(sentence, self._language.heard(sentence)))
        if self._means("exchange", said):
            return self._say("changed", values=sentence[:1].lower() + sentence[1:])
        values = [self._language.said_back(sentence, heard)] if (heard := self._language.heard(sentence)) else []
        values += self._language.counts(self._language.replaceable(said))
        if values:
            return self._say("changed", values=f" {self._phrase('and')} ".join(values))
        return self._say("changed", values=sentence[:1].lower() + sentence[1:])

    def _small_talk(self, said: str) -> _Reply | None:
        if self._means("here", said):
            return self._say("here")
        if self._means("wait", said) and len(said.split()) < 12 and not self._language.heard(said):
            return self._say("take_your_time")
        if self._means("how_are_you", said):
            return self._say("thanks_for_asking")
        if self._language.is_all("greeting", said):
            return self._say("hello", name=_address(self._memory.name))
        name = introduced_name(said)
        if name is not None and len(said.split()) <= len(name.text.split()) + 5:
            return self._say("hello", name=_address(name.text))
        if self._means("thanks", said) and len(said.split()) < 6 and not self._means("question", said):
            return self._say("welcome")
        if len(said.split()) <= 3 and self._means("yes", said):
            return self._say("go_ahead" if self._means("anything_else", self._last_answer) else "all_right")
        if len(said.split()) <= 3 and self._means("no", said):
            return self._say("all_right")
        return None

    def _about_agent(self, said: str) -> _Reply | None:
        """What it is, transfers to a person, messages, and insults."""
        if self._means("who", said):
            return _Reply(f"{self._phrase('what_i_am')} {self._phrase('what_i_do')}")
        if self._means("person_wanted", said) and not self._means("not_now", said):
            return self._transfer(said)
        if len(said.split()) <= _FEW_WORDS and self._targets(said):
            return self._transfer(said)
        if self._means("message", said) and len(said.split()) <= 12:
            return self._say("message")
        if self._means("message_wanted", self._last_answer) and not self._means("question", said):
            return self._take_message(said)
        if self._means("insult", said) and not self._language.heard(said):
            return self._say("insulted")
        return None

    def _on_matter(self, said: str) -> _Reply:
        is_question = self._means("question", said)
        is_action = self._means("action", said)
        if is_question and self._means("this_call", said):
            return self._this_call()
        if self._means("my_name", said) and self._memory.name:
            return self._say("your_name", name=self._memory.name)
        if is_question and self._means("last_time", said):
            return self._last_time()
        if is_question or is_action:
            return self._answer_question(said, is_action=is_action)
        if is_secret(said):
            return self._say("private")
        if heard := self._language.heard(said):
            return self._say("heard", values=self._language.said_back(said, heard))
        if is_private(said):
            return self._say("private")
        noted = self._language.say["noted"]
        return _Reply(noted[len(self._said) % len(noted)])

    # Questions

    def _this_call(self) -> _Reply:
        stated = self._language.stated(self._said[:-1])
        return self._say("you_said", quotes=joined(stated, 3)) if stated else self._say("nothing_said")

    def _last_time(self) -> _Reply:
        if quotes := self._memory.last_call():
            return self._say("you_said", quotes=joined(quotes, 3))
        if facts := self._memory.about_caller:
            return self._say("i_know", quotes=joined(facts, 3))
        return self._say("no_call")

    def _answer_question(self, said: str, *, is_action: bool) -> _Reply:
        """From documents, if the agent has any, and notes."""
        if SEARCH_KNOWLEDGE in self._tools:
            query = self._language.query(f"{self._question_before(said)} {said}".strip())
            return _Reply(tool=SEARCH_KNOWLEDGE, arguments={"query": query})
        return self._quoted(said, [], is_action=is_action)

    def _question_before(self, said: str) -> str:
        """The question or request that this one continues: "And on Monday?", "How many?", "When does it start?"."""
        if self._language.content(said) and not self._means("continued", said):
            return ""
        asked = [one for one in self._said[:-1] if self._means("question", one) or self._means("action", one)]
        return next(filter(self._language.content, reversed(asked)), "")

    def _noted(self, said: str) -> list[tuple[float, str]]:
        stated = list(reversed(self._language.stated(self._said[:-1])))
        notes = [(note, "") for note in [*stated, *self._memory.notes()]]
        share = OWN_SHARE if self._means("mine", said) else SHARE
        found = self._language.best(said, notes, share, before=self._question_before(said))
        found = found or self._language.best(said, notes, share)
        if self._language.is_about_visit(said) and not any(self._means("time", text) for _, text in found):
            times = [note for note in [*stated, *self._memory.last_call()] if self._means("time", note)]
            found = [(_SURE, note) for note in times] or found
        return found

    def _found(self, said: str, result: str) -> list[tuple[float, str]]:
        """The sentence of the documents that answers; a whole section if its heading is what is asked for."""
        before, candidates = self._question_before(said), passages(result)
        found = self._language.best(said, candidates, SHARE, before=before, elsewhere=ELSEWHERE)
        found = found or self._language.best(said, candidates, SHARE, elsewhere=ELSEWHERE)  # "What about breakfast?"
        if not found:
            return []
        score, best = found[0]
        heading = next(heading for text, heading in candidates if text == best)
        if not before and self._language.content(said) <= self._language.content(heading):
            return [(score, text) for text, above in candidates if above == heading]
        return found[:1]

    def _quoted(self, said: str, found: Sequence[tuple[float, str]], *, is_action: bool) -> _Reply:
        """The best of notes and documents. What the agent is asked to do, it can't."""
        noted = self._noted(said)
        top_note = noted[0][0] if noted else 0.0
        top_found = found[0][0] if found else 0.0
        is_note = bool(noted) and top_note + (_OWN_LEAD if self._means("mine", said) else 0) > top_found
        if found and not is_note and top_found >= (_SURE if is_action else 0.0):
            return self._say("found", quotes=joined([text for _, text in found], _MOST_OF_SECTION))
        if noted and not is_action:
            top = shortest([text for score, text in noted if score >= top_note])
            return self._say("my_notes", quotes=joined(top, 1 if self._means("time_question", said) else _MOST_QUOTES))
        if not is_action:
            return self._say("unknown")
        if heard := self._language.heard(said):
            values = self._phrase("heard", values=self._language.said_back(said, heard))
            return _Reply(f"{self._phrase('cannot_do')} {values}")
        return self._say("cannot_do")

    # Tools

    def _transfer(self, said: str) -> _Reply:
        if TRANSFER_CALL not in self._tools:
            return self._say("no_transfer")
        return _Reply(tool=TRANSFER_CALL, arguments={"to": (self._targets(said) or self._targets())[0]})

    def _targets(self, said: str | None = None) -> list[str]:
        """The configured targets of a transfer; those that these words name."""
        if TRANSFER_CALL not in self._tools:
            return []
        targets: list[str] = self._tools[TRANSFER_CALL]["parameters"]["properties"]["to"]["enum"]
        return [one for one in targets if said is None or re.sub(r"[_-]", " ", one).casefold() in said.casefold()]

    def _take_message(self, said: str) -> _Reply:
        if MESSAGE_AGENT in self._tools:
            return _Reply(tool=MESSAGE_AGENT, arguments={"message": said})
        return self._say("message_taken")

    def _after_tool(self, tool: str, result: str) -> _Reply:
        if tool == SEARCH_KNOWLEDGE:
            said = self._last_words
            return self._quoted(said, self._found(said, result), is_action=self._means("action", said))
        if tool == TRANSFER_CALL:
            return self._say("transferring" if '"ok"' in result else "not_transferred")
        if tool == MESSAGE_AGENT:
            return self._say("message_taken")
        return self._say("goodbye", name=_address(self._memory.name))

    # Words

    def _phrase(self, phrase_name: str, /, **values: str) -> str:
        phrase: str = self._language.say[phrase_name]
        return phrase.format(**values)

    def _say(self, phrase_name: str, /, **values: str) -> _Reply:
        return _Reply(self._phrase(phrase_name, **values))


def _tool_result(messages: Sequence[Message]) -> tuple[str, str]:
    """The tool whose result is the last message, and the result."""
    call_id = messages[-1].get("tool_call_id")
    names = (
        call["function"]["name"]
        for message in reversed(messages)
        for call in message.get("tool_calls") or ()
        if call["id"] == call_id
    )
    return next(names, END_CALL), _text(messages[-1])


def _text(message: Message) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""


def _address(name: str) -> str:
    return f", {name}" if name else ""
