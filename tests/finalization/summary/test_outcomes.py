"""What a call agreed on: which values are current, and which sentences state them."""

from gateway.finalization.summary.outcomes import find_outcome
from gateway.text.plain_text import SpokenLine
from gateway.text.spoken_values import outcome_language


def outcome(*turns, name=""):
    """The agent speaks first, then caller and agent take turns."""
    lines = [SpokenLine("caller" if turn % 2 else "agent", text) for turn, text in enumerate(turns)]
    return find_outcome(lines, outcome_language("en"), name)


def chosen(*turns, name=""):
    return [statement.text for statement in outcome(*turns, name=name).chosen]


def test_late_change_brings_the_readback_up_to_date():
    assert chosen(
        "Hello.",
        "A table for 2 on Friday at 7 pm, please.",
        "Please confirm: a table for 2 on Friday at 7 pm.",
        "Actually, could you make that 8 pm instead?",
        "Of course. It's booked.",
        "Thanks.",
    ) == ["a table for 2 on Friday at 8 pm"]


def test_quotations_of_the_scripted_agent_are_not_statements():
    texts = chosen(
        "Welcome back, Anna. Last time you said: I'll bring it on Thursday at ten; I paid 40 dollars. How can I help?",
        "When are you open?",
        "Here is what I found: We are open from 9 am to 6 pm.",
        "I'll pick up the bike on Friday at half past three.",
        "I heard Friday at half past three. Is that right?",
        "Yes.",
    )
    assert texts == ["I'll pick up the bike on Friday at half past three."]


def test_refused_day_replaces_no_agreed_one():
    texts = chosen(
        "Hello.",
        "Can we move my appointment to Thursday at ten fifteen?",
        "Of course. Thursday at ten fifteen is fine.",
        "Great, my daughter has piano on Tuesdays, so never on Tuesdays please.",
    )
    assert "Thursday at ten fifteen" in " ".join(texts)


def test_declined_offer_is_gone():
    texts = chosen(
        "Hello.",
        "I need a dentist in Petaluma.",
        "How about Dr. Oscar Vane?",
        "Find me someone else.",
        "There is Dr. Ruth Bell, on March 3rd at 2 pm.",
        "Yes, book that.",
        "Your appointment with Dr. Ruth Bell is booked.",
        "Bye.",
    )
    assert "Vane" not in " ".join(texts)
    assert "Ruth Bell, on March 3rd at 2 pm" in " ".join(texts)


def test_second_booking_leaves_the_first_alone():
    texts = chosen(
        "Hello.",
        "I'd like a room on Monday at the Plaza.",
        "Your room at the Plaza is booked for Monday.",
        "I also need a taxi on Tuesday at 9 am.",
        "A taxi is booked for Tuesday at 9 am.",
        "Bye.",
    )
    assert "Monday" in " ".join(texts) and "Tuesday" in " ".join(texts)


def test_short_answer_carries_what_was_asked():
    assert chosen(
        "Hello.", "I want to pay a bill.", "What is the company name?", "Fossil Gas.", "And how many bills?", "3"
    )[:2] == ["company name: Fossil Gas", "3 bills"]


def test_chat_between_question_and_answer_is_skipped():
    texts = chosen("Hi.", "I'd like a car.", "What day?", "Sorry, my dog is barking.", "No rush.", "On Friday at 3 pm.")
    assert texts == ["On Friday at 3 pm."]


def test_promise_kept_in_the_call_is_not_open():
    promises = outcome(
        "Hello.",
        "Could you send me the invoice for March?",
        "I'll send you the invoice now. I have sent you the invoice for March.",
        "Great. I'll pay it on Friday.",
    ).promises
    assert [one.text for one in promises] == ["I'll pay it on Friday."]
