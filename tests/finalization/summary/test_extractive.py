import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.finalization.summary.call_summary import CallSummary
from gateway.finalization.summary.extractive import summarise
from gateway.memory.facts import CallerFact
from gateway.memory.pinned_topics import TopicNote
from gateway.text.plain_text import SpokenLine

CALL = [
    SpokenLine("agent", "Thank you for calling Acme, this is Maya. How can I help you?"),
    SpokenLine("caller", "Um, hi, my name is Ana Diaz. I'm calling about my order A12 that arrived broken."),
    SpokenLine("agent", "I'm sorry to hear that."),
    SpokenLine("caller", "Yeah, well, two of the six glasses were in pieces when I opened the box. Okay."),
    SpokenLine("agent", "We can send new ones on Friday the 14th or refund 24 dollars."),
    SpokenLine("caller", "Let's take the new glasses. I work until five, so the afternoon is bad."),
    SpokenLine("agent", "Agreed, new glasses on Friday morning. I will send you the label by email."),
    SpokenLine("caller", "Please call me back if it gets late. Thanks, have a nice day."),
    SpokenLine("agent", "You're welcome. Goodbye!"),
]


def said_by(speaker, *texts):
    return [SpokenLine(speaker, text) for text in texts]


def test_call_is_sorted_into_sections():
    assert summarise(CALL) == CallSummary(
        caller_name="Ana Diaz",
        topics=("My order A12 that arrived broken",),
        decisions=("New glasses on Friday morning.",),
        action_items=("Agent: I will send you the label by email.", "Caller: Please call me back if it gets late."),
        facts=(),
        context=(
            "Caller: I'm calling about my order A12 that arrived broken. Caller: Two of the six glasses were in pieces"
            " when I opened the box. New glasses on Friday morning."
        ),
        written_by="extractive",
        caller_facts=(
            CallerFact("Is called Ana Diaz", "identity", 0.95, (1,)),
            CallerFact("Works until five", "constraint", 0.8, (5,)),
        ),
        running_topics=(
            TopicNote(
                "Order A12",
                status="Agent: Agreed, new glasses on Friday morning.",
                open_items=(
                    "Agent: I will send you the label by email.",
                    "Caller: Please call me back if it gets late.",
                ),
                state="open",
                turns=(1,),
            ),
        ),
    )


def _calls():
    with (Path(__file__).parent / "outcome_calls.toml").open("rb") as file:
        return tomllib.load(file)["call"]


@pytest.mark.parametrize("call", _calls(), ids=lambda call: call["title"])
def test_outcome_is_in_the_notes(call):
    said = [line.split(": ", 1) for line in call["turns"].strip().splitlines()]
    summary = summarise([SpokenLine({"A": "agent", "C": "caller"}[who], text) for who, text in said])
    notes = "\n".join([*summary.decisions, *summary.action_items, *summary.facts, summary.context]).casefold()
    assert summary.caller_name == call["name"]
    assert [value for value in call["current"] if value.casefold() not in notes] == []
    assert [text for text in call.get("in_context", ()) if text.casefold() not in summary.context.casefold()] == []
    assert [value for value in call["stale"] if value.casefold() in f"{notes} {summary.topics}".casefold()] == []
    assert [item for item in call["open"] if item.casefold() not in " ".join(summary.action_items).casefold()] == []
    assert len(notes.split()) < 0.95 * len(call["turns"].split())


def test_small_talk_leaves_nothing():
    lines = [*said_by("agent", "Hello, how are you today?"), *said_by("caller", "Uh, fine, thanks. Good bye then!")]
    assert summarise(lines) == CallSummary("", (), (), (), (), "", "extractive")


def test_long_topic_ends_with_a_clause():
    said = "My road bike needs new brake pads, and I would like to bring it in this week."
    assert summarise(said_by("caller", said)).topics == ("My road bike needs new brake pads",)


def test_concern_after_greeting_is_kept():
    summary = summarise(said_by("caller", "good morning I wanted to ask about my order A12 it has not arrived"))
    assert summary.topics == ("Ask about my order A12 it has not arrived",)
    assert summary.context == "Caller: I wanted to ask about my order A12 it has not arrived."


def test_repeated_sentence_appears_once():
    lines = said_by("caller", "My order is number 4471.", "my order is number 4471.")
    assert summarise(lines).context == "Caller: My order is number 4471."


def test_unanswered_question_is_no_decision():
    lines = said_by("agent", "Shall I book the table for Friday?")
    assert summarise(lines).decisions == ()


def test_long_sentence_is_cut():
    (item,) = summarise(said_by("caller", "I will send " + "word " * 200)).action_items
    assert len(item) <= 300 and item.endswith("word…")


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("Hi, my name is Ana.", "Ana"),
        ("my name's María José O'Neill, hello", "María José O'Neill"),
        ("Hello, this is Ana Diaz calling about a bill.", "Ana Diaz"),
        ("my name is ana and I have a question", "Ana"),
        ("My name is Anne. No, my name is Ana.", "Ana"),
        ("my name is spelled wrong on the bill", ""),
        ("This is Monday's order.", ""),
        ("I'm tired of calling.", ""),
    ],
)
def test_name_comes_from_plain_statement(said, name):
    assert summarise(said_by("caller", said)).caller_name == name


def test_later_statement_of_name_counts():
    assert summarise(said_by("caller", "My name is Anne.", "No, my name is Ana.")).caller_name == "Ana"


def test_agents_name_is_not_callers():
    assert summarise(said_by("agent", "Hello, my name is Maya.")).caller_name == ""


WORDS = st.sampled_from("um I will book a table for 4 on Friday please send it? yes. Let's my name is Ana !".split())
LINES = st.lists(
    st.builds(
        SpokenLine,
        st.sampled_from(["caller", "agent"]),
        st.one_of(st.text(), st.lists(WORDS, max_size=120).map(" ".join)),
    ),
    max_size=12,
)


@given(LINES)
def test_every_word_was_said(lines):
    """But for the speakers, and the words for what was asked ("amount: 12 dollars")."""
    summary = summarise(lines)
    words = set(re.findall(r"\w+", " ".join(line.text for line in lines).casefold()))
    items = [*summary.topics, *summary.decisions, *summary.action_items, *summary.facts, summary.context]
    noted = set(re.findall(r"\w+", " ".join(items).casefold()))
    assert noted - words <= {"caller", "agent", "amount", "where", "when", "for"}
    assert len(summary.context) <= 1200


@pytest.mark.parametrize(
    ("turns", "name"),
    [
        (["A: Front desk.", "C: It's booked under Marlow, Henrietta Marlow."], "Henrietta Marlow"),
        (["A: What name is it under?", "C: Marlow. First name Henrietta."], "Henrietta Marlow"),
        (["A: And your surname?", "C: Marlow.", "A: And your first name?", "C: Henrietta."], "Henrietta Marlow"),
        (["A: Lettings.", "C: Hello, Mrs Okafor from number twelve. The lift is stuck."], "Mrs Okafor"),
        (["A: Guten Tag, Praxis Lang.", "C: Guten Tag, Petra Vogt mein Name. Ich brauche einen Termin."], "Petra Vogt"),
        (["A: Hello.", "C: I want to send a cake to my aunt. Her name is Rosalind Vance and she lives in Hove."], ""),
        (["A: Hello.", "C: My son's name is Otto and he needs a tutor."], ""),
        (["A: Hotel desk.", "C: Hello. I have a booking under Fitch for the 3rd of May."], "Fitch"),
        (["A: And the name?", "C: Costello, as in Abbott and. It's Brigid."], "Brigid Costello"),
        (["A: Energy line.", "C: Tabitha Crane. I've had a bill for 412 and that can't be right."], "Tabitha Crane"),
        (
            ["A: Nursery, Beth speaking.", "C: Hi Beth, Dominic Salter, Aisha's dad. She won't be in on Friday."],
            "Dominic Salter",
        ),
        (["A: Meals line.", "C: Hello, is that the dinner people? It's Mr Pettifer. Stanley."], "Stanley Pettifer"),
        (["A: What's the name?", "C: Bastian."], "Bastian"),
        (["A: Cab line.", "C: I need a taxi to Victoria Station please."], ""),
        (["A: Hello.", "C: Is Doctor Singh in today? I'd like to see him."], ""),
        (
            ["A: Service desk, Omar.", "C: Morning Omar, Judith Sand from the Leeds office. My monitor is black."],
            "Judith Sand",
        ),
        (["A: Hello.", "C: Good Morning. Black Friday deals still on?"], ""),
        (["A: Hello.", "C: Bernd Klausen. Ich bin umgezogen, ich wohne jetzt in Bremen."], "Bernd Klausen"),
    ],
)
def test_name_is_the_callers_in_full(turns, name):
    lines = [SpokenLine("agent" if turn.startswith("A") else "caller", turn[3:]) for turn in turns]
    assert summarise(lines).caller_name == name
