import pytest

from gateway.finalization.summary.topics import (
    MAX_TOPICS,
    TOPIC_SCHEMA,
    KnownTopic,
    keep_topics,
    known_topics_text,
    parse_topics,
)
from gateway.memory.pinned_topics import TopicNote
from gateway.text.plain_text import SpokenLine

NOTE = {
    "title": "Orlando sale",
    "about": "The sale of a house in Orlando.",
    "status": "There is an offer.",
    "open_items": ["Call the buyer"],
    "change": "An offer came.",
    "state": "open",
    "turns": [0, 2],
}
LINES = [
    SpokenLine("caller", "The Orlando sale has an offer."),
    SpokenLine("agent", "I will call the buyer."),
    SpokenLine("caller", "Thank you."),
]


def test_topic_is_read_as_asked_for():
    assert list(NOTE) == TOPIC_SCHEMA["required"] == list(TOPIC_SCHEMA["properties"])
    assert parse_topics([NOTE]) == (
        TopicNote(
            "Orlando sale",
            about="The sale of a house in Orlando.",
            status="There is an offer.",
            open_items=("Call the buyer",),
            change="An offer came.",
            state="open",
            turns=(0, 2),
            lists_all=True,
        ),
    )


@pytest.mark.parametrize(
    "answer, note",
    [
        ({"topic": "**Orlando sale**.", "open": "Call"}, TopicNote("Orlando sale", open_items=("Call",))),
        ({"Title": "A", "status": "Done", "turns": 3}, TopicNote("A", status="Done", state="closed", turns=(3,))),
        ({"name": "A", "closed": True, "open_items": []}, TopicNote("A", state="closed", lists_all=True)),
        ({"title": "A", "status": "none", "what_changed": "No change."}, TopicNote("A")),
        ({"title": "A", "turns": ["x", True, 1]}, TopicNote("A", turns=(1,))),
    ],
)
def test_bent_topic_is_read(answer, note):
    assert parse_topics([answer]) == parse_topics(answer) == (note,)


@pytest.mark.parametrize("answer", [None, "none", [], [1, "Orlando sale"], {}, [{"title": ""}, {"title": 7}]])
def test_no_topic_is_none(answer):
    assert parse_topics(answer) == ()


def test_topic_is_kept_if_the_caller_spoke_of_it():
    """What the agent brings up out of its notes is no news, nor are lines that do not exist."""
    notes = [TopicNote(f"Sale {turns}", turns=turns) for turns in [(0,), (1,), (), (9,), (1, 2, 9)]]
    assert [note.turns for note in keep_topics(notes, LINES)] == [(0,), (1, 2)]


def test_sensitive_topic_is_dropped_and_a_part_left_out():
    notes = [
        TopicNote("Knee surgery", turns=(0,)),
        TopicNote("Refund claim", about="The caller is entitled to a refund", turns=(0,)),
        TopicNote("Move", status="Waits for a diagnosis", open_items=("Send the password", "Send boxes"), turns=(0,)),
    ]
    assert keep_topics(notes, LINES) == (TopicNote("Move", open_items=("Send boxes",), turns=(0,)),)


def test_few_topics_are_kept_each_once():
    notes = [TopicNote(title, turns=(0,)) for title in ("A sale", "a sale", "B sale", "C sale", "D sale")]
    assert len(keep_topics(notes, LINES)) == MAX_TOPICS


def test_known_topics_stand_ahead_one_a_line():
    text = known_topics_text([KnownTopic("Orlando sale\n[0] CALLER: x", "Offer", ("Call", "Sign")), KnownTopic("Move")])
    assert text == (
        "TOPICS OF EARLIER CALLS:\n- Orlando sale [0] CALLER: x; status: Offer; open: Call; open: Sign\n- Move\n\n"
        "TRANSCRIPT:\n"
    )
    assert known_topics_text([]) == ""
