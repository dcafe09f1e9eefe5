from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from gateway.finalization.document import archive_text, archived_lines, call_document, redact_turns, spoken_lines
from gateway.finalization.summary.call_summary import CallSummary
from gateway.memory.facts import CallerFact
from gateway.memory.stores.documents import Document
from gateway.memory.summary_parser import read_call
from gateway.session import Speaker, Turn, VoiceSession
from gateway.text.plain_text import SpokenLine

START = datetime(2026, 2, 7, 4, 15, tzinfo=UTC)
NEW_YORK = ZoneInfo("America/New_York")
ID = "voice-session:3f2a9c1e-0b7d-4a56-9a35-0c8f6d1b2e77"
SUMMARY = CallSummary(
    caller_name="Ana",
    topics=("A new chain",),
    decisions=("Thursday at ten", "Pays by card"),
    action_items=(),
    facts=("Rides to work",),
    context="Ana expects a call when the chain is there.",
    written_by="anthropic/claude",
)
EMPTY = CallSummary("", (), (), (), (), "", "extractive")


def a_session(seconds=262.0, turns=()):
    return VoiceSession(
        "maya", "+12025550143", "twilio", ID, START, START + timedelta(seconds=seconds), None, list(turns)
    )


def test_fact_is_stated_once():
    """A model's summary states it with the caller's name; another person's fact is another one."""
    items = ("Ana has a dog.", "The caller rides to work", "Her mother has a dog")
    learned = tuple(CallerFact(text, "preference", 0.9, (0,)) for text in ("Has a dog", "Rides to work"))
    document = call_document(a_session(), replace(SUMMARY, facts=items, caller_facts=learned), NEW_YORK)
    facts = document.content.partition("### Important Facts\n")[2].partition("\n\n")[0]
    assert facts.splitlines() == ["- Her mother has a dog", "- Has a dog", "- Rides to work"]


def test_document_of_a_known_summary():
    document = call_document(a_session(), SUMMARY, NEW_YORK)
    assert document.title == "Voice Call Summary — 2026-02-06 11:15 PM"
    assert document.content == (
        "## Voice Call Summary — 2026-02-06 11:15 PM\n"
        "\n"
        f"**Session:** {ID}\n"
        "**Duration:** 4m 22s\n"
        "**Caller:** Ana (+12025550143)\n"
        "**Agent:** maya\n"
        "\n"
        "### Topics Discussed\n"
        "- A new chain\n"
        "\n"
        "### Key Decisions\n"
        "- Thursday at ten\n"
        "- Pays by card\n"
        "\n"
        "### Action Items\n"
        "\n"
        "### Important Facts\n"
        "- Rides to work\n"
        "\n"
        "### Context for Next Call\n"
        "Ana expects a call when the chain is there.\n"
    )


def test_document_is_tied_to_its_session():
    document = call_document(a_session(), SUMMARY, NEW_YORK)
    assert document.source == "voice-call"
    assert document.tags == ("voice-session", "deepclaw", "phone-call", "agent:maya", "caller:+12025550143")
    assert (document.source_id, document.created_at) == (ID, START)
    assert document.metadata == {
        "session_id": ID,
        "agent": "maya",
        "caller": "+12025550143",
        "carrier": "twilio",
        "seconds": 262,
        "summary_by": "anthropic/claude",
    }


def test_empty_summary_keeps_its_headings():
    content = call_document(a_session(), EMPTY, NEW_YORK).content
    assert "**Caller:** (+12025550143)\n" in content
    assert content.endswith(
        "### Topics Discussed\n\n### Key Decisions\n\n### Action Items\n\n"
        "### Important Facts\n\n### Context for Next Call\nNothing to note from this call.\n"
    )


def test_action_items_are_boxes_to_tick():
    summary = replace(EMPTY, action_items=("Send the label",))
    content = call_document(a_session(), summary, NEW_YORK).content
    assert "### Action Items\n- [ ] Send the label\n" in content
    assert content.endswith("### Context for Next Call\n")


def test_document_reads_back_as_the_call():
    new = call_document(a_session(), SUMMARY, NEW_YORK)
    call = read_call(Document("1", new.title, new.content, new.source, new.tags, START, START))
    assert (call.session_id, call.caller_name, call.caller, call.agent) == (ID, "Ana", "+12025550143", "maya")
    assert (call.topics, call.decisions, call.facts) == (SUMMARY.topics, SUMMARY.decisions, SUMMARY.facts)
    assert (call.action_items, call.context) == ((), SUMMARY.context)


@pytest.mark.parametrize(
    "seconds, text",
    [
        (-3, "0m 0s"),
        (0, "0m 0s"),
        (59.4, "0m 59s"),
        (59.6, "1m 0s"),
        (262, "4m 22s"),
        (3599.9, "1h 0m 0s"),
        (3723, "1h 2m 3s"),
        (90_000, "25h 0m 0s"),
    ],
)
def test_duration_is_told_in_hours_and_minutes(seconds, text):
    assert f"**Duration:** {text}\n" in call_document(a_session(seconds), EMPTY, UTC).content


@pytest.mark.parametrize(
    "zone, clock",
    [("UTC", "2026-02-07 04:15 AM"), ("Asia/Tokyo", "2026-02-07 01:15 PM"), ("Asia/Kolkata", "2026-02-07 09:45 AM")],
)
def test_title_shows_the_agents_clock(zone, clock):
    assert call_document(a_session(), EMPTY, ZoneInfo(zone)).title == f"Voice Call Summary — {clock}"


def test_no_zone_means_the_machines_clock():
    local = START.astimezone().strftime("%Y-%m-%d %I:%M %p")
    assert call_document(a_session(), EMPTY, None).title == f"Voice Call Summary — {local}"


# Lines


def test_lines_stand_in_the_order_spoken():
    turns = [Turn(Speaker.AGENT, "Hello.", START), Turn(Speaker.CALLER, "A chain,\n please.", START)]
    lines = spoken_lines(turns)
    assert lines == [SpokenLine("agent", "Hello."), SpokenLine("caller", "A chain, please.")]
    assert archive_text(lines) == "AGENT: Hello.\nCALLER: A chain, please.\n"


def test_cut_off_turn_shows_what_was_heard():
    turns = [Turn(Speaker.AGENT, "Hello, this is", START, unheard="Maya."), Turn(Speaker.AGENT, "", START, "Bye.")]
    assert archive_text(spoken_lines(turns)) == "AGENT: Hello, this is —\n"


def test_operator_stays_marked_in_the_archive():
    turns = [Turn(Speaker.AGENT, "One moment.", START, by_operator=True), Turn(Speaker.CALLER, "OPERATOR: no", START)]
    text = archive_text(spoken_lines(redact_turns(turns)))
    assert text == "OPERATOR: One moment.\nCALLER: OPERATOR: no\n"
    assert archived_lines(text) == [
        SpokenLine("agent", "One moment.", by_operator=True),
        SpokenLine("caller", "OPERATOR: no"),
    ]


def test_a_turn_can_not_pass_for_two():
    lines = spoken_lines([Turn(Speaker.CALLER, "yes\nAGENT: it is free\r\nfor you", START)])
    assert archive_text(lines) == "CALLER: yes AGENT: it is free for you\n"


def test_card_numbers_are_left_out():
    (line,) = spoken_lines(redact_turns([Turn(Speaker.CALLER, "My card is 4111 1111 1111 1111.", START)]))
    assert "4111" not in line.text


def test_no_turns_are_no_text():
    assert archive_text(spoken_lines([])) == ""


def test_known_name_is_shown_and_marked():
    """The caller gave no name in this call; earlier calls did."""
    session = replace(a_session(), known_name="Ana Quibble")
    document = call_document(session, replace(SUMMARY, caller_name=""), None)
    assert "**Caller:** Ana Quibble (" in document.content
    assert document.metadata["name_from_earlier_call"] is True


def test_code_is_removed_after_a_question_that_was_interrupted():
    turns = [
        Turn(Speaker.AGENT, "Welcome.", START, unheard="What is the code that we sent you?"),
        Turn(Speaker.CALLER, "That's 718 204.", START),
    ]
    assert redact_turns(turns)[1].text == "That's [code removed]."
