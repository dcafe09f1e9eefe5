from datetime import UTC, datetime

import pytest

from gateway.memory.stores.documents import Document
from gateway.memory.summary_parser import NAME_FROM_EARLIER_CALL, PastCall, belongs_to, read_call

START = datetime(2026, 2, 6, 23, 15, tzinfo=UTC)
CALLER = "+12025550101"
CONTENT = """## Voice Call Summary — 2026-02-06 11:15 PM

**Session:** voice-session:3f2a
**Duration:** 4m 22s
**Caller:** Ana (+12025550101)
**Agent:** maya

### Topics Discussed
- The kettle
* Delivery

### Key Decisions
- Blue, not red

### Action Items
- [ ] Call back on Monday
- [x] Send the invoice

### Important Facts
None.

### Context for Next Call
Ana waits for the kettle.
She prefers mornings.
"""


def document(content=CONTENT, *, tags=(), source_id=""):
    return Document("d1", "", content, "voice-call", tags, START, START, {}, source_id)


def test_whole_call_is_read():
    assert read_call(document()) == PastCall(
        session_id="voice-session:3f2a",
        started_at=START,
        caller_name="Ana",
        caller=CALLER,
        agent="maya",
        topics=("The kettle", "Delivery"),
        decisions=("Blue, not red",),
        action_items=("Call back on Monday",),
        facts=(),
        context="Ana waits for the kettle. She prefers mornings.",
    )


@pytest.mark.parametrize(
    "line, name, number",
    [
        ("(+12025550101)", "", CALLER),
        ("+12025550101", "", CALLER),
        ("Ana (at work) (+12025550101)", "Ana (at work)", CALLER),
        ("Ana", "Ana", ""),
    ],
)
def test_caller_line_has_several_forms(line, name, number):
    call = read_call(document(CONTENT.replace("Ana (+12025550101)", line)))
    assert (call.caller_name, call.caller) == (name, number)


def test_cut_text_keeps_what_is_there():
    call = read_call(document(CONTENT[: CONTENT.index("red")]))
    assert (call.topics, call.decisions, call.context) == (("The kettle", "Delivery"), ("Blue, not",), "")


def test_lost_line_breaks_are_survived():
    call = read_call(document(" ".join(CONTENT.split())))
    assert (call.session_id, call.caller, call.agent) == ("voice-session:3f2a", CALLER, "maya")
    assert call.context == "Ana waits for the kettle. She prefers mornings."


def test_piece_is_known_by_its_source():
    piece = document(
        "### Action Items\n- Call back", tags=("agent:maya", f"caller:{CALLER}"), source_id="voice-session:1"
    )
    call = read_call(piece)
    assert (call.session_id, call.agent, call.caller) == ("voice-session:1", "maya", CALLER)
    assert call.action_items == ("Call back",)


@pytest.mark.parametrize("content", ["", "A recipe for cake", "**Session:** voice-session:3f2a"])
def test_other_documents_are_no_calls(content):
    assert read_call(document(content)) is None


@pytest.mark.parametrize(
    "tags, ours",
    [
        (("agent:maya", f"caller:{CALLER}", "voice-session"), True),
        (("agent:sam", f"caller:{CALLER}"), False),
        (("agent:maya", "caller:+12025550102"), False),
        ((f"caller:{CALLER}",), False),
        (("agent:maya", f"caller:{CALLER}", "caller:+12025550102"), False),
    ],
)
def test_tags_say_whose_call(tags, ours):
    assert belongs_to(document(tags=tags), "maya", CALLER) is ours


def test_header_says_whose_call():
    assert belongs_to(document(), "maya", CALLER) is True
    assert belongs_to(document(), "sam", CALLER) is False
    assert belongs_to(document(), "maya", "+12025550102") is False


@pytest.mark.parametrize(
    "content",
    [
        "",
        "## Voice Call Summary\n**Caller:** Ana (+12025550101)",
        "## Voice Call Summary\n### Important Facts\n**Caller:** Ana (+12025550101)\n**Agent:** maya",
        "so he said\n**Caller:** Ana (+12025550101)\n**Agent:** maya",
    ],
)
def test_words_in_the_text_prove_nothing(content):
    assert belongs_to(document(content), "maya", CALLER) is None


def test_first_header_line_counts():
    content = CONTENT.replace("**Agent:** maya", "**Agent:** maya\n**Caller:** Ben (+12025550102)\n**Agent:** sam")
    assert belongs_to(document(content), "maya", CALLER) is True


def test_name_of_an_earlier_call_is_no_evidence():
    """It is shown in the document, but the call that gave it may be reverted."""
    metadata = {NAME_FROM_EARLIER_CALL: True}
    call = read_call(Document("1", "", CONTENT, "voice-call", (), START, START, metadata))
    assert call is not None and call.caller_name == ""
