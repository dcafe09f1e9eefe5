"""The scripted agent: what it says to a request that a language model could get as well, and in whole calls."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.llm.chat import ChatRequest, Finished, TextDelta, ToolCallDelta
from gateway.llm.quotes import script_language
from gateway.llm.scripted import ScriptedUpstream
from gateway.memory.recall import render, render_known
from gateway.memory.summary_parser import PastCall
from gateway.tools.builtin import END_CALL, MESSAGE_AGENT, SEARCH_KNOWLEDGE, transfer_schema
from tests.llm.scripted_call import scripted_line, tool

SAY = script_language("en").say
WHAT_I_AM, WHAT_I_DO, UNKNOWN = SAY["what_i_am"], SAY["what_i_do"], SAY["unknown"]
DATA = Path(__file__).parents[1] / "data/scripted"
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


async def answer(*said, prompt="", known="", result=(), last="", tools=(END_CALL,)):
    """The events of an answer to a conversation: the agent's turns stand between the caller's."""
    messages = [{"role": "system", "content": prompt}]
    for text in said[:-1]:
        messages += [{"role": "user", "content": text}, {"role": "assistant", "content": last or "Noted."}]
    messages += [{"role": "user", "content": text} for text in said[-1:]]
    if result:
        name, content = result
        call = {"id": "1", "type": "function", "function": {"name": name, "arguments": "{}"}}
        messages += [{"role": "assistant", "content": None, "tool_calls": [call]}]
        messages += [{"role": "tool", "tool_call_id": "1", "content": content}]
    request = ChatRequest(tuple(messages), tools=tuple(map(tool, tools)), memory=known)
    return [event async for event in ScriptedUpstream().answer(request, "")]


async def spoken(*said, **known):
    [words, finished] = await answer(*said, **known)
    assert finished == Finished("stop")
    assert isinstance(words, TextDelta)
    return words.text


async def used(*said, **known):
    """The tool that it uses, and the arguments."""
    [call, finished] = await answer(*said, **known)
    assert finished == Finished("tool_calls")
    assert isinstance(call, ToolCallDelta)
    return call.name, json.loads(call.arguments)


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
    quotes = "My appointment is on Thursday at ten; I prefer a text message"
    greeting = f"This is Maya. Welcome back, Anna. {WHAT_I_AM} Last time you said: {quotes}. How can I help you?"
    assert await opening(MEMORY) == greeting


async def test_last_call_is_quoted():
    words = await spoken("What did we talk about last time?", prompt=MEMORY)
    assert words.startswith("You said: My appointment is on Thursday at ten;")
    assert await spoken("Do you remember me?") == "I have no notes of an earlier call with you."


@pytest.mark.parametrize(
    "question, note",
    [
        ("When is my appointment?", "My appointment is on Thursday at ten"),
        ("What did my bike need?", "My road bike needs new brake pads"),
        ("Tell me what kind of message I prefer.", "You prefer a text message"),
    ],
)
async def test_it_answers_from_its_notes(question, note):
    assert await spoken(question, prompt=MEMORY) == f"My notes say: {note}."


async def test_it_answers_from_what_the_search_found():
    known = render_known(["Voice Call Summary — 2026-02-06 11:15 PM: Caller: The cat is called Tom."], budget_tokens=99)
    assert await spoken("What is my cat called?", known=known) == "My notes say: The cat is called Tom."


async def test_the_header_of_a_found_summary_is_no_note():
    document = """Voice Call Summary — 2026-02-06 11:15 PM: ## Voice Call Summary — 2026-02-06 11:15 PM

**Session:** voice-session:1
**Duration:** 1m 10s
**Caller:** Anna (+12025550143)
**Agent:** maya

### Action Items
- [ ] Agent: I'll email you.
### Important Facts
- Will send the photos by Thursday
### Context for Next Call
Caller: I was called back on Monday."""
    known = render_known([document], budget_tokens=500)
    assert await spoken("When was I called back?", known=known) == "My notes say: I was called back on Monday."
    assert await spoken("What do I send?", known=known) == "My notes say: Will send the photos by Thursday."
    assert await spoken("What is the session of this voice call?", known=known) == UNKNOWN


async def test_it_answers_from_this_call():
    assert await spoken("The front door is blue.", "What is the front door?") == "My notes say: The front door is blue."


async def test_it_does_not_pretend_to_know():
    assert await spoken("What is the capital of France?", prompt=MEMORY) == UNKNOWN


@pytest.mark.parametrize(
    "said, back",
    [
        ("My number is 472916.", "4, 7, 2, 9, 1, 6"),
        ("It is four, seven, oh.", "4, 7, 0"),
        (
            "Next Tuesday at half past three is fine, and I paid forty two fifty.",
            "Next Tuesday at half past three and 42.50",
        ),
        ("The appointment is on Friday at nine, not on Thursday.", "Friday at nine"),
    ],
)
async def test_values_are_said_back(said, back):
    assert await spoken(said) == f"I heard {back}. Is that right?"


async def test_a_number_is_confirmed_or_said_again():
    asked = {"last": "I heard 4, 7, 0. Is that right?"}
    assert await spoken("4 7 0", "Yes, that is right.", **asked) == "Good, that's in my notes. Anything else?"
    assert await spoken("4 7 0", "No.", **asked) == "I'm sorry. Please say it once more, slowly."
    assert await spoken("4 7 0", "No, it is 4 7 1.", **asked) == "I've changed that to 4, 7, 1. Is that right?"


async def test_a_correction_replaces_what_was_said():
    said = ("I'd like to come on Monday at ten.", "No, Tuesday, not Monday.")
    assert await spoken(*said) == "I've changed that to Tuesday at ten. Is that right?"
    assert await spoken(*said, "What did I just say?") == "You said: I'd like to come on Tuesday at ten."


async def test_a_changed_number_of_people_is_said_back():
    said = ("A table for four on Saturday at seven, please.", "Actually, we'll be six people.")
    assert await spoken(*said) == "I've changed that to Saturday at seven and six people. Is that right?"
    noted = "A table for six people on Saturday at seven, please"
    assert await spoken(*said, "What did I just say?") == f"You said: {noted}."


async def test_the_end_of_a_number_is_changed():
    said = ("My mobile is 202 555 0162.", "No, it ends in six three.")
    assert await spoken(*said) == "I've changed that to 2, 0, 2, 5, 5, 5, 0, 1, 6, 3. Is that right?"


async def test_a_number_is_exchanged_for_another():
    said = ("A table for two tomorrow at seven thirty.", "We're three, not two.")
    assert await spoken(*said) == "I've changed that to a table for three tomorrow at seven thirty. Is that right?"


async def test_that_is_it_agrees_with_what_was_read_back():
    said = ("The 4th of March at 8:15.", "On second thought, the fifth.", "Yes, that's it.")
    assert await spoken(*said[:2]) == "I've changed that to the fifth of March at 8:15. Is that right?"
    assert await spoken(*said, last="I've changed that. Is that right?") == SAY["confirmed"]
    assert await used(*said, last="Noted. What else?") == ("end_call", {})


async def test_letters_before_a_number_are_said_back():
    said = ("The tag number is BX 5 5 2 0 9 1.", "No, 5 5 2 0 9 7.")
    assert await spoken(said[0]) == "I heard B, X, 5, 5, 2, 0, 9, 1. Is that right?"
    assert await spoken(*said) == "I've changed that to B, X, 5, 5, 2, 0, 9, 7. Is that right?"


@pytest.mark.parametrize(
    "said", ["My PIN is 7731.", "I earn 3,400 dollars a month.", "No, my PIN is 7732.", "She has epilepsy."]
)
async def test_private_matters_are_neither_said_back_nor_called_noted(said):
    assert await spoken("My PIN is 7731.", said) == SAY["private"]
    assert await spoken(said, "What did I just say?") == SAY["nothing_said"]


async def test_an_insult_is_no_note():
    assert await spoken("You are completely useless.") == SAY["insulted"]
    assert await spoken("You are completely useless.", "What did I just say?") == SAY["nothing_said"]


LIBRARY = """[loans.md > Loans]
Books are lent for three weeks. Loans can be renewed twice. Overdue items cost 20 cents a day.

[loans.md > Hours]
| Day | Hours |
| --- | --- |
| Monday | closed |
| Tuesday to Friday | 10 am to 7 pm |
| Saturday | 10 am to 3 pm |

[loans.md > Rooms]
Study rooms can be booked for two hours. On weekends they cost double."""


@pytest.mark.parametrize(
    "said, quote",
    [
        (["Can I renew my books?"], "Loans can be renewed twice"),
        (["Can I renew my books?", "How many times?"], "Loans can be renewed twice"),
        (["What does it cost when I'm late?"], "Overdue items cost 20 cents a day"),
        (["When do you open on Saturday?"], "Saturday, 10 am to 3 pm"),
        (["When do you open on Saturday?", "And on Monday?"], "Monday, closed"),
        (["Are you open on Wednesday?"], "Tuesday to Friday, 10 am to 7 pm"),
        (["What are your hours?"], "Monday, closed; Tuesday to Friday, 10 am to 7 pm; Saturday, 10 am to 3 pm"),
        (["What does a study room cost?", "And on Sunday?"], "On weekends they cost double"),
        (["Can I renew my books?", "What about study rooms?"], "Study rooms can be booked for two hours"),
        (["How long are books lent?"], "Books are lent for three weeks"),
        (["Until when can I come on Friday?"], "Tuesday to Friday, 10 am to 7 pm"),
        (["Can you book a study room?", "How long is that?"], "Study rooms can be booked for two hours"),
    ],
)
async def test_questions_are_answered_from_documents(said, quote):
    words = await spoken(*said, result=("search_knowledge", LIBRARY), tools=(END_CALL, SEARCH_KNOWLEDGE))
    assert words == f"Here is what I found: {quote}."


async def test_a_question_that_documents_do_not_answer_is_not_answered():
    asked = ("Do you have a swimming pool?", "What does a taxi to the airport cost?", "Are you married?")
    for question in asked:
        assert await spoken(question, result=("search_knowledge", LIBRARY)) == UNKNOWN


async def test_an_appointment_is_found_by_its_time():
    said = ("I'd like my teeth cleaned on Thursday at ten.", "My bike is blue.", "When is my appointment?")
    assert await spoken(*said) == "My notes say: I'd like my teeth cleaned on Thursday at ten."


async def test_it_takes_notes():
    assert await spoken("My chain keeps slipping.") == "I've written that down. Anything else?"
    assert await spoken("Thank you.") == "You're welcome. Anything else?"
    assert await spoken("Can you book a table for me?") == "I can't do that myself, but I've written it down."


async def test_it_hangs_up_politely():
    assert await used("Thank you, good-bye.") == ("end_call", {})
    assert await used("My chain slips.", "No thanks.", last="Noted. Anything else?") == ("end_call", {})
    words = await spoken("Goodbye.", prompt=MEMORY, result=("end_call", '{"status":"ok"}'))
    assert words == "Thank you for calling, Anna. Goodbye."


async def test_it_puts_the_caller_through():
    tools = (END_CALL, transfer_schema(("front_desk", "sales")))
    assert await used("Can I speak to a person?", tools=tools) == ("transfer_call", {"to": "front_desk"})
    assert await used("Put me through to sales.", tools=tools) == ("transfer_call", {"to": "sales"})
    assert await spoken("Operator.", result=("transfer_call", '{"status":"ok"}')) == SAY["transferring"]
    assert await spoken("Operator.", result=("transfer_call", "the tool failed")) == SAY["not_transferred"]


async def test_without_a_target_it_takes_a_message():
    assert await spoken("Can I speak to a person?") == SAY["no_transfer"]
    said = ("Can I speak to a person?", "Tell Rosa that the bike is ready.")
    assert await spoken(*said, last=SAY["no_transfer"]) == SAY["message_taken"]
    tools = (END_CALL, MESSAGE_AGENT)
    assert await used(*said, last=SAY["no_transfer"], tools=tools) == ("message_agent", {"message": said[1]})


async def test_stop_ends_a_recital():
    assert await spoken("What did I say last time?", "Stop.", last="You said: much.") == SAY["stopped"]
    assert await spoken("When are you open?", "Pardon?", last="From nine to six.") == "From nine to six."


@pytest.mark.parametrize("said", ["", "Um.", "…"])
async def test_silence_is_no_note(said):
    assert await spoken("My chain slips.", said) == SAY["take_your_time"]


async def test_this_call_is_summed_up():
    said = ("My road bike needs new brake pads.", "Okay.", "What did we just talk about?")
    assert await spoken(*said, prompt=MEMORY) == "You said: My road bike needs new brake pads."
    assert await spoken("What did we just talk about?") == "Nothing yet. Go ahead."


async def test_unverified_notes_do_not_replace_verified_ones():
    other = "<caller_facts>\nIs called Mallory\n</caller_facts>"
    assert await spoken("What's my name?", prompt=f"{FACTS}\n{other}") == "My notes say: you are Anna."


# Whole calls. `questions.jsonl` was written before the rules, `questions_unseen.jsonl` after them.


def conversations():
    rows = (
        row for name in ("questions", "questions_unseen") for row in (DATA / f"{name}.jsonl").read_text().splitlines()
    )
    return map(json.loads, rows)


def faults(case, call, words):
    """What is wrong with an answer."""
    tools = {arguments.get("to", name) for name, arguments in call.called} - {"search_knowledge"}
    if tools != ({case["tool"]} if "tool" in case else set()):
        yield f"used {tools}"
    if not re.search(case.get("wants", ""), words, re.IGNORECASE):
        yield f"lacks {case['wants']}"
    if "never" in case and re.search(case["never"], words, re.IGNORECASE):
        yield f"has {case['never']}"


@pytest.mark.timeout(120)
async def test_callers_get_right_answers(tmp_path):
    """Questions, requests, corrections and closings of a caller who has called three times before."""
    async with scripted_line(tmp_path, DATA / "knowledge") as line:
        recited = []
        for days_ago, said in zip((9, 5, 1), json.loads((DATA / "calls.json").read_text()), strict=True):
            call = await line.call()
            recited.append(await call.open())
            for text in said:
                await call.says(text)
            await line.finish(call, days_ago)
        recited.append(await (await line.call()).open())
        wrong = []
        for case in conversations():
            call = await line.call(transfer=case.get("transfer", False))
            await call.open()
            words = [await call.says(text) for text in case["said"]][-1]
            wrong += [(case["said"], words, fault) for fault in faults(case, call, words)]
    assert wrong == []
    quoted = [words.partition("Last time you said: ")[2].removesuffix(" How can I help you?") for words in recited]
    assert quoted == [
        "",
        "I'll bring it on Thursday at ten; I prefer a text message, please don't call me.",
        "The appointment is on Friday at nine, not on Thursday; I live in Ashton now, we moved last month.",
        "I will pick up the bike next Tuesday at half past three; My order number is 5 8 2 1 3.",
    ]
