"""The scripted agent: what it says to a request that a language model could get as well."""

from datetime import UTC, datetime

import pytest

from gateway.llm.chat import ChatRequest, Finished, TextDelta, ToolCallDelta
from gateway.llm.scripted import UNKNOWN, WHAT_I_AM, WHAT_I_DO, ScriptedUpstream, _quotes
from gateway.memory.recall import render, render_known
from gateway.memory.summary_parser import PastCall

END_CALL = {"type": "function", "function": {"name": "end_call", "parameters": {}}}
NOW = datetime(2026, 2, 6, 23, 15, tzinfo=UTC)
LAST_CALL = PastCall(
    session_id="voice-session:1",
    started_at=NOW,
    agent="maya",
    caller="+12025550143",
    caller_name="Anna",
    topics=("Caller: My road bike needs new brake pads.",),
    decisions=(),
    action_items=(),
    facts=(),
    context="Caller: My appointment is on Thursday at ten. Agent: Noted. Caller: I prefer a text message.",
)
FACTS = "<caller_facts>\nIs called Anna\nPrefers a text message\n</caller_facts>"
MEMORY = f"{FACTS}\n{render([LAST_CALL], now=NOW)}"


async def answer(*said, prompt="", known="", after_tool=False, last=""):
    """The events of an answer to a conversation: the agent's turns stand between the caller's."""
    messages = [{"role": "system", "content": prompt}]
    for text in said[:-1]:
        messages += [{"role": "user", "content": text}, {"role": "assistant", "content": last or "Noted."}]
    messages += [{"role": "user", "content": text} for text in said[-1:]]
    if after_tool:
        messages += [{"role": "tool", "tool_call_id": "1", "content": "ok"}]
    request = ChatRequest(tuple(messages), tools=(END_CALL,), memory=known)
    return [event async for event in ScriptedUpstream().answer(request, "")]


async def spoken(*said, **known):
    [words, finished] = await answer(*said, **known)
    assert finished == Finished("stop")
    assert isinstance(words, TextDelta)
    return words.text


async def opening(prompt):
    messages = (
        {"role": "system", "content": prompt},
        {"role": "assistant", "content": "This is Maya. How can I help you?"},
    )
    return (await anext(ScriptedUpstream().answer(ChatRequest(messages), ""))).text


async def test_it_says_what_it_is():
    assert await opening("") == f"This is Maya. {WHAT_I_AM} {WHAT_I_DO} How can I help you?"
    assert await spoken("Are you a robot?") == f"{WHAT_I_AM} {WHAT_I_DO}"


async def test_it_greets_with_what_the_last_call_left():
    quotes = "My appointment is on Thursday at ten. I prefer a text message."
    greeting = f"This is Maya. Welcome back, Anna. {WHAT_I_AM} Last time you said: {quotes} How can I help you?"
    assert await opening(MEMORY) == greeting


async def test_last_call_is_quoted():
    words = await spoken("What did we talk about last time?", prompt=MEMORY)
    assert words.startswith("You said: My appointment is on Thursday at ten.")
    assert await spoken("Do you remember me?") == "I have no notes of an earlier call with you."


@pytest.mark.parametrize(
    "question, note",
    [
        ("When is my appointment?", "My appointment is on Thursday at ten."),
        ("What did my bike need?", "My road bike needs new brake pads."),
        ("Tell me what kind of message I prefer.", "You prefer a text message. I prefer a text message."),
    ],
)
async def test_it_answers_from_its_notes(question, note):
    assert await spoken(question, prompt=MEMORY) == f"My notes say: {note}"


async def test_it_answers_from_what_the_search_found():
    known = render_known(["Voice Call Summary — 2026-02-06 11:15 PM: Caller: The cat is called Tom."], budget_tokens=99)
    assert await spoken("What is my pet's name?", known=known) == "The nearest I have is this: The cat is called Tom."


async def test_it_answers_from_this_call():
    assert await spoken("The door code is blue.", "What is the door code?") == "My notes say: The door code is blue."


async def test_it_does_not_pretend_to_know():
    assert await spoken("What is the capital of France?", prompt=MEMORY) == UNKNOWN


@pytest.mark.parametrize(
    "said, back",
    [
        ("My number is 472916.", "I heard 4, 7, 2, 9, 1, 6. Is that right?"),
        ("It is four, seven, oh.", "I heard 4, 7, 0. Is that right?"),
    ],
)
async def test_numbers_are_read_back(said, back):
    assert await spoken(said) == back


async def test_a_number_is_confirmed_or_said_again():
    asked = {"last": "I heard 4, 7, 0. Is that right?"}
    assert await spoken("4 7 0", "Yes, that is right.", **asked) == "Good, that's in my notes. Anything else?"
    assert await spoken("4 7 0", "No.", **asked) == "I'm sorry. Please say it once more, slowly."
    assert await spoken("4 7 0", "No, it is 4 7 1.", **asked) == "I heard 4, 7, 1. Is that right?"


async def test_it_takes_notes():
    assert await spoken("I would like to book a table.") == "I've written that down. Anything else?"
    assert await spoken("Thank you.") == "You're welcome. Anything else?"


async def test_it_hangs_up_politely():
    assert await answer("Thank you, good-bye.") == [ToolCallDelta(0, "end", "end_call", "{}"), Finished("tool_calls")]
    words = await spoken("Goodbye.", prompt=MEMORY, after_tool=True)
    assert words == "Thank you for calling, Anna. Goodbye."


def test_headings_of_a_summary_are_no_quotes():
    line = "Topics Discussed - Caller: It is on Friday. ### Key Decisions ### Important Facts - Caller: Yes."
    assert _quotes(line) == ["It is on Friday.", "Yes."]


async def test_this_call_is_summed_up():
    said = ("My road bike needs new brake pads.", "Okay.", "What did we just talk about?")
    assert await spoken(*said, prompt=MEMORY) == "You said: My road bike needs new brake pads."
    assert await spoken("What did we just talk about?") == "Nothing yet. Go ahead."


def test_header_of_a_document_is_no_quote():
    line = "## Voice Call Summary — 2026-02-06 11:15 PM **Session:** voice-session:1 **Caller:** Ana (+12025550143) "
    assert _quotes(line + "**Agent:** maya ### Action Items - [ ] Send the label") == ["Send the label"]
