"""What the scripted agent can quote."""

import pytest

from gateway.llm.quotes import (
    SHARE,
    CallerMemory,
    distinct,
    joined,
    passages,
    quotes_of,
    script_language,
    second_person,
)

ENGLISH = script_language("en")
FOUND = """[shop.md > Shop > Opening hours]
We are open Monday to Friday from 9 am to 6 pm. We are closed on
Sundays.

[shop.md > Shop > Rental]
- City bikes cost 20 dollars a day.
- Helmets are free.

| bike | price |
| --- | --- |
| tandem | 50 dollars |"""


def test_headings_of_a_summary_are_no_quotes():
    line = "Topics Discussed - Caller: It is on Friday. ### Key Decisions ### Important Facts - Caller: Yes."
    assert quotes_of(line) == ["It is on Friday", "Yes"]


def test_header_of_a_document_is_no_quote():
    line = "## Voice Call Summary — 2026-02-06 11:15 PM **Session:** voice-session:1 **Caller:** Ana (+12025550143) "
    assert quotes_of(line + "**Agent:** maya ### Action Items - [ ] Send the label") == ["Send the label"]


@pytest.mark.parametrize(
    "said",
    [
        "Good morning, how are you today",
        "Can you hear me?",
        "Thank you very much indeed.",
        "Have a nice day, bye bye.",
        "That's all for today, thanks.",
        "Could you please ask Rosa to call?",
        "I'd like to speak to a person.",
        "Anna Becker (plus 12025550143)",
    ],
)
def test_questions_and_courtesies_are_no_notes(said):
    assert not ENGLISH.is_note(said)


@pytest.mark.parametrize(
    "said", ["I live in Ashton now.", "Will pick up the bike on Friday", "Ask Rosa to order the pads"]
)
def test_what_lasts_is_a_note(said):
    assert ENGLISH.is_note(said)


def test_corrections_are_applied():
    said = ["I'll come on Monday at ten.", "My code is 4 7 1.", "No, at eleven.", "Sorry, I meant 4 7 2."]
    assert ENGLISH.stated(said) == ["I'll come on Monday at eleven", "My code is 4 7 2"]
    assert ENGLISH.stated(["I'll be there tomorrow at three.", "Make that four."]) == ["I'll be there tomorrow at four"]


@pytest.mark.parametrize(
    "said, heard",
    [
        ("I was born in nineteen ninety nine.", ["1, 9, 9, 9"]),
        ("It was nineteen ninety nine.", ["19.99"]),
        ("My order number is forty two fifty.", ["4, 2, 5, 0"]),
        ("I'll be there at two thirty.", ["two thirty"]),
        ("It is a quarter to five.", ["a quarter to five"]),
        ("I have three dogs.", []),
    ],
)
def test_times_amounts_and_numbers_are_told_apart(said, heard):
    assert [one.spoken for one in ENGLISH.heard(said)] == heard


def test_passages_are_read_sentence_by_sentence():
    assert passages(FOUND) == [
        ("We are open Monday to Friday from 9 am to 6 pm.", "Opening hours"),
        ("We are closed on Sundays.", "Opening hours"),
        ("City bikes cost 20 dollars a day.", "Rental"),
        ("Helmets are free.", "Rental"),
        ("tandem, 50 dollars", "Rental bike, price"),
    ]
    assert passages("Nothing was found.") == []


@pytest.mark.parametrize(
    "question, answer",
    [
        ("Are you open on Sunday?", "We are closed on Sundays."),
        ("When do you close?", "We are open Monday to Friday from 9 am to 6 pm."),
        ("What does a tandem cost?", "tandem, 50 dollars"),
        ("Do you sell surfboards?", None),
        ("Do you have a loyalty card?", None),
    ],
)
def test_the_sentence_that_answers_is_chosen(question, answer):
    assert next((text for _, text in ENGLISH.best(question, passages(FOUND), SHARE)), None) == answer


def test_topics_are_not_what_was_said():
    notes = "Call of today\nContext for this call: Caller: I like tea a lot.\nTopics: A new email address"
    assert CallerMemory(f"<call_notes>\n{notes}\n</call_notes>", ENGLISH).last_call() == ["I like tea a lot"]


def test_open_items_come_before_what_was_said():
    notes = "Call of today\nContext for this call: Caller: I like tea a lot.\nOpen action items: Send the label to Anna"
    memory = CallerMemory(f"<call_notes>\n{notes}\n</call_notes>", ENGLISH)
    assert memory.last_call() == ["Send the label to Anna", "I like tea a lot"]


def test_the_same_is_quoted_once():
    assert distinct(["You will pick up the bike on Friday", "I will pick up the bike", "I pay cash"]) == [
        "You will pick up the bike on Friday",
        "I pay cash",
    ]
    assert joined(["One.", "Two!", "Three"], 2) == "One; Two"


@pytest.mark.parametrize(
    "fact, addressed",
    [
        ("Prefers tea", "You prefer tea"),
        ("Is a nurse", "You are a nurse"),
        ("Has two dogs", "You have two dogs"),
        ("Wishes to be called", "You wish to be called"),
        ("Carries an EpiPen", "You carry an EpiPen"),
        ("Will pay cash", "You will pay cash"),
        ("Does not drive", "You do not drive"),
    ],
)
def test_facts_are_addressed_to_the_caller(fact, addressed):
    assert second_person(fact) == addressed


def test_a_language_without_a_script_gets_english():
    assert script_language("pt") is not None
    assert script_language("pt").say == ENGLISH.say
