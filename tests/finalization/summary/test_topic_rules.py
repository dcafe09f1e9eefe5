import pytest

from gateway.finalization.summary.topic_rules import extract
from gateway.finalization.summary.topics import KnownTopic
from gateway.memory.pinned_topics import TopicNote
from gateway.text.plain_text import SpokenLine


def said(*texts):
    """What was said, the agent's lines with an A: ahead."""
    return [SpokenLine("agent", text[3:]) if text.startswith("A: ") else SpokenLine("caller", text) for text in texts]


def titles(*texts, known=()):
    return [note.title for note in extract(said(*texts), [KnownTopic(title) for title in known])]


def state(*texts, known=()):
    (note,) = extract(said(*texts), [KnownTopic(title) for title in known])
    return note.state


@pytest.mark.parametrize(
    "text, title",
    [
        ("I'm calling about the Orlando sale.", "Orlando sale"),
        ("any news on the orlando sale", "Orlando sale"),
        ("It's about the sale of the Orlando house.", "Orlando house sale"),
        ("Our trip to Boston is on Friday.", "Boston trip"),
        ("The guy from the insurance claim called.", "Insurance claim"),
        ("My order 47110 has not come.", "Order 47110"),
        ("It is order number A-17.", "Order A-17"),
        ("How are my kitchen repairs going?", "Kitchen repair"),
    ],
)
def test_named_matter_is_found(text, title):
    assert titles(text) == [title]


@pytest.mark.parametrize(
    "text",
    [
        "Hello, how are you this fine morning?",
        "I want to change my order.",
        "My last order was late, and my new order too.",
        "I would like to order 120 chairs.",
        "The offer for next week is good.",
        "Can I move my appointment to Friday?",
        "I had a great weekend in Orlando.",
        "My cancer treatment case is open.",
    ],
)
def test_nothing_is_made_up(text):
    assert titles(text) == []


def test_agent_names_nothing():
    assert titles("A: Is it about the Orlando sale?", "Yes.") == []


def test_status_and_open_items_are_what_was_said():
    lines = said(
        "I'm calling about the Orlando sale. We have an offer. Can you call the buyer back?",
        "A: Of course. I will call the buyer tomorrow. Anything else?",
        "No.",
        "A: I will wait then.",
    )
    assert extract(lines) == (
        TopicNote(
            "Orlando sale",
            status="Caller: We have an offer.",
            open_items=("Caller: Can you call the buyer back?", "Agent: I will call the buyer tomorrow."),
            state="open",
            turns=(0,),
        ),
    )


@pytest.mark.parametrize(
    "text",
    [
        "The Orlando sale is done.",
        "So the Orlando sale has been cancelled, thanks.",
        "The Orlando sale fell through.",
        "We finally closed the Orlando sale.",
        "About the Orlando sale. It's all settled now.",
        "The sale in Orlando went through!",
    ],
)
def test_end_is_heard(text):
    assert state(text) == "closed"


@pytest.mark.parametrize(
    "text",
    [
        "The Orlando sale is not done.",
        "Is the Orlando sale done?",
        "When the Orlando sale is done we move.",
        "The Orlando sale will be done soon.",
        "I think the Orlando sale is done.",
        "The Orlando sale is over budget.",
        "We sold the car, and the Orlando sale goes on.",
        "The Orlando sale isn't settled.",
    ],
)
def test_end_is_not_guessed(text):
    assert state(text) == ""


def test_ended_matter_has_nothing_open():
    (note,) = extract(said("The Orlando sale is done. Please send me the papers."))
    assert (note.state, note.open_items) == ("closed", ())


def test_known_topic_keeps_its_name():
    known = ["Orlando sale", "Kitchen renovation"]
    assert titles("The sale of the Orlando house drags on.", known=known) == ["Orlando sale"]
    assert titles("There is a new buyer for Orlando.", known=known) == ["Orlando sale"]
    assert state("Orlando is sold.", known=known) == "closed"
    assert titles("I cooked in Boston, in a kitchen.", "Kitchen work is fun.", known=known) == []


def test_vague_known_topic_takes_in_nothing():
    assert titles("My bike order is late.", known=["New order", "The first one", "Order"]) == ["Bike order"]


def test_one_matter_is_noted_once():
    assert titles("The Orlando house sale.", "The Orlando sale again.", "Our trip to Boston.") == [
        "Orlando house sale",
        "Boston trip",
    ]


@pytest.mark.parametrize(
    "texts",
    [
        ("The March invoice was paid yesterday.",),
        ("Our kitchen renovation is finished.",),
        ("My order 47110 has arrived, thanks.",),
        ("The order 4711 arrived this morning.",),
        ("I'm calling about my order 47110.", "A: One moment.", "Oh wait, sorry. It has arrived."),
        ("Any news on the insurance claim?", "A: Yes. It has been settled."),
        ("We've paid the March invoice.",),
    ],
)
def test_paid_finished_and_arrived_matters_are_closed(texts):
    assert state(*texts) == "closed"


@pytest.mark.parametrize(
    "texts",
    [("My order 47110 arrived broken.",), ("The March invoice was paid twice, I want money back.",)],
)
def test_broken_arrival_closes_nothing(texts):
    assert state(*texts) == ""


@pytest.mark.parametrize(
    ("texts", "status"),
    [
        (
            ("I'm calling about the Orlando sale.", "A: The buyer has signed, we meet on Friday.", "Great."),
            "Agent: The buyer has signed, we meet on Friday.",
        ),
        (
            ("Please check my order 47110.", "A: Let me see.", "It was due on Monday."),
            "Caller: It was due on Monday.",
        ),
        (
            ("The Boston trip is on May 3rd.", "A: Noted.", "By the way, my car was sold on Monday."),
            "Caller: The Boston trip is on May 3rd.",
        ),
    ],
)
def test_status_is_the_news(texts, status):
    (note,) = extract(said(*texts))
    assert note.status == status
