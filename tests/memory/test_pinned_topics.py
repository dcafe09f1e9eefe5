from array import array
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.memory.facts import FactStore
from gateway.memory.memory_log import SCHEMA, LogEntry, Retention
from gateway.memory.pinned_topics import MOST_ITEMS, PinnedTopicStore, TopicName, TopicNote, project
from gateway.session import TrustLevel

NOON = datetime(2026, 2, 6, 12, 0, tzinfo=UTC)
ANA = ("maya", "+12025550101")
BEN = ("maya", "+12025550102")
TAGS = ("pinned-topic", "agent:maya", "caller:+12025550101")
SALE, MOVE = "Orlando sale", "Office move"


@dataclass
class Session:
    id: str
    started_at: datetime
    agent: str = "maya"
    caller: str = "+12025550101"
    trust: TrustLevel = TrustLevel.EVERYTHING


def session(name, days=0, who=ANA):
    return Session(f"voice-session:{name}", NOON + timedelta(days=days), *who)


def opened(ground):
    return ground.opened(schema=SCHEMA)


def is_current(document, not_before=None):
    """Whether a search shows the document, with or without a limit on its age."""
    retention, now = (Retention(1), not_before + timedelta(days=1)) if not_before else (Retention(), NOON)
    return retention.is_current(document, "maya", now)


@pytest.fixture
async def store(ground):
    async with opened(ground) as store:
        yield store


@pytest.fixture
def book(store):
    return PinnedTopicStore(store)


async def note(book, name, *notes, days=0, who=ANA):
    call = session(name, days, who)
    topics = [TopicNote(topic) if isinstance(topic, str) else topic for topic in notes]
    changed = await book.note(call, topics, call.started_at + timedelta(minutes=5))
    return [change for change in await book.history(*who) if changed and change.session_id == call.id]


async def titles(book, who=ANA, **options):
    return [pin.title for pin in await book.pinned(*who, **options)]


async def everything(store, book):
    """All that the book left, with documents by their origin instead of their id."""
    documents = await store.newest(tags=("pinned-topic",), limit=1000)
    stored = [
        (found.source_id, found.title, found.content, found.tags, found.created_at, found.metadata)
        for found in sorted(documents, key=lambda document: document.source_id)
    ]
    pins = {who: [replace(pin, id="") for pin in await book.pinned(*who, closed=True)] for who in (ANA, BEN)}
    return stored, pins, [await book.history(*who) for who in (ANA, BEN)], await book.topics(*ANA)


# Calls


async def test_topic_that_returns_is_pinned(book):
    (noted,) = await note(book, "one", TopicNote(SALE, "A house in Orlando", "Listed", ("Find a buyer",), turns=(1,)))
    assert (noted.op, noted.session_id, noted.before) == ("note", "voice-session:one", "")
    assert await titles(book) == []
    (change,) = await note(book, "two", TopicNote("The sale of the Orlando house", status="Offer", turns=(3,)), days=2)
    assert (change.op, change.before, change.after) == (
        "pin",
        "Orlando sale (open); Listed; Find a buyer",
        "Orlando sale (changed); Offer; Find a buyer",
    )
    (pin,) = await book.pinned(*ANA)
    assert (pin.title, pin.about, pin.status, pin.open_items) == (
        SALE,
        "A house in Orlando",
        "Offer",
        ("Find a buyer",),
    )
    assert (pin.state, pin.calls, pin.session_id, pin.turns) == ("changed", 2, "voice-session:two", (3,))
    assert (pin.since, pin.last_said_at) == (NOON, NOON + timedelta(days=2))
    assert [(event.text, event.session_id) for event in pin.history] == [
        ("Listed", "voice-session:one"),
        ("Offer", "voice-session:two"),
    ]


async def test_pin_is_a_document(store, book):
    await note(book, "one", TopicNote(SALE, status="Listed", open_items=("Find a buyer",)))
    await note(book, "two", TopicNote(SALE, "A house", "Offer"), days=1)
    (hit,) = await store.query("buyer", limit=5, tags=TAGS)
    document = hit.document
    assert (document.title, document.source, document.tags) == ("Pinned Topic — Orlando sale", "pinned-topic", TAGS)
    assert (document.source_id, document.created_at) == ("voice-session:one#topic-0", NOON)
    assert document.content == (
        "## Orlando sale\n\nA house\n**Status:** changed. Offer\n\n### Open Items\n- Find a buyer\n\n### History\n"
        "- 2026-02-06 open: Listed\n- 2026-02-07 changed: Offer\n"
    )
    assert [pin.id for pin in await book.pinned(*ANA)] == [document.id]


async def test_repeated_step_changes_nothing(store, book):
    await note(book, "one", SALE)
    assert len(await note(book, "two", SALE, MOVE, days=1)) == 2
    before = await everything(store, book)
    assert await note(book, "two", SALE, MOVE, days=1) == []
    assert await everything(store, book) == before


async def test_better_summary_replaces_the_first(book):
    await note(book, "one", SALE, MOVE)
    await note(book, "two", MOVE, days=1)
    await note(book, "one", TopicNote(SALE, status="Listed"))
    assert (await titles(book), [topic.title for topic in await book.topics(*ANA)]) == ([], [MOVE, SALE])


async def test_newest_call_counts_not_last_ended(book):
    await note(book, "one", SALE)
    await note(book, "newest", TopicNote(SALE, status="Offer"), days=2)
    await note(book, "late", TopicNote(SALE, status="Listed"), days=1)
    (pin,) = await book.pinned(*ANA)
    assert pin.status == "Offer"


async def test_closed_topic_is_not_listed(book):
    await note(book, "one", SALE)
    await note(book, "two", SALE, MOVE, days=1)
    (change,) = await note(book, "three", TopicNote(SALE, status="Sold", state="closed"), days=2)
    assert (change.op, await titles(book)) == ("close", [])
    (pin,) = await book.pinned(*ANA, closed=True)
    assert (pin.state, pin.status, pin.is_open) == ("closed", "Sold", False)


async def test_callers_and_agents_are_apart(book):
    await note(book, "one", SALE)
    for number, who in enumerate((BEN, ("otto", ANA[1]), BEN, ("otto", ANA[1]))):
        await note(book, f"other {number}", SALE, days=number, who=who)
    assert (await titles(book), await titles(book, BEN), await titles(book, ("otto", ANA[1]))) == ([], [SALE], [SALE])
    assert await titles(book, ("otto", BEN[1])) == []


async def test_given_meaning_joins_topics(store):
    async def embed(texts):
        return array("f", [1.0]).tobytes()

    book = PinnedTopicStore(store, embed=embed)
    await note(book, "one", "Money back")
    await note(book, "two", "Reimbursement", days=1)
    assert await titles(book) == ["Money back"]


async def test_last_spoken_of_comes_first(book):
    for days, title in enumerate((SALE, MOVE, MOVE, SALE)):
        await note(book, str(days), title, days=days)
    assert await titles(book) == [SALE, MOVE]
    assert await titles(book, limit=1) == [SALE]


# Operators


async def test_person_pins_changes_and_closes(book):
    pin = await book.pin(*ANA, " Orlando  sale ", about="A house", status="Listed", open_items=["Sign"], now=NOON)
    assert (pin.title, pin.state, pin.open_items, pin.session_id, pin.calls) == (SALE, "open", ("Sign",), "", 0)
    assert await book.pinned(*ANA) == [pin]
    later = await book.pin(*ANA, SALE, status="Offer", now=NOON + timedelta(days=1))
    assert (later.id, later.state, later.status, later.open_items) == (pin.id, "changed", "Offer", ("Sign",))
    closed = await book.pin(*ANA, SALE, status="Sold", closed=True, now=NOON + timedelta(days=2))
    assert (closed.state, await titles(book), await titles(book, closed=True)) == ("closed", [], [SALE])
    again = await book.pin(*ANA, SALE, now=NOON + timedelta(days=3))
    assert (again.state, again.status) == ("open", "Sold")


async def test_person_clears_what_is_empty_and_keeps_what_is_missing(book):
    await book.pin(*ANA, SALE, about="A house", status="Listed", open_items=["Sign"], now=NOON)
    kept = await book.pin(*ANA, SALE, about="A flat", now=NOON + timedelta(days=1))
    assert (kept.about, kept.status, kept.open_items) == ("A flat", "Listed", ("Sign",))
    cleared = await book.pin(*ANA, SALE, about=" ", status="", open_items=[], now=NOON + timedelta(days=2))
    assert (cleared.about, cleared.status, cleared.open_items) == ("", "", ())


async def test_manual_pin_joins_mentions_of_calls(book):
    await note(book, "one", TopicNote("The sale of the Orlando house", status="Listed"))
    pin = await book.pin(*ANA, SALE)
    assert (pin.title, pin.status, pin.calls) == (SALE, "Listed", 1)
    assert await titles(book) == [SALE]


async def test_unpinned_topic_stays_so(book):
    await note(book, "one", SALE)
    await note(book, "two", SALE, days=1)
    assert await book.unpin(*ANA, "the orlando sale", now=NOON + timedelta(days=2))
    await note(book, "three", SALE, days=3)
    assert (await titles(book, closed=True), await book.unpin(*ANA, SALE)) == ([], False)
    await book.pin(*ANA, SALE, now=NOON + timedelta(days=4))
    assert await titles(book) == [SALE]


async def test_unpinned_by_id_within_its_caller_alone(store, book):
    pin = await book.pin(*ANA, SALE)
    assert not await book.unpin(*BEN, pin.id)
    assert await book.unpin(*ANA, pin.id)
    assert await store.look(
        lambda connection: connection.execute("SELECT count(*) FROM memory_entries").fetchone()
    ) == (0,)


@pytest.mark.parametrize(
    "who, given, problem",
    [
        (("maya", ""), {}, "a pinned topic belongs to a caller with an agent; name both"),
        (("", "+12025550101"), {}, "a pinned topic belongs to a caller with an agent; name both"),
        (ANA, {"title": " "}, "a topic needs a title, and may have up to 8 open items with words in them"),
        (ANA, {"open_items": ["a"] * 9}, "a topic needs a title, and may have up to 8 open items with words in them"),
        (ANA, {"title": "x" * 81}, "a title may have at most 80 characters"),
        (ANA, {"status": "x" * 301}, "a status may have at most 300 characters"),
        (ANA, {"title": "a\udcff"}, "a title must have no control characters"),
    ],
)
async def test_pin_that_cannot_be_kept_is_refused(book, who, given, problem):
    with pytest.raises(ValueError) as raised:
        await book.pin(*who, **({"title": SALE} | given))
    assert str(raised.value) == problem


async def test_deleted_document_does_not_come_back(store, book):
    await note(book, "one", SALE)
    await note(book, "two", SALE, days=1)
    (pin,) = await book.pinned(*ANA)
    await store.delete(pin.id)
    assert await titles(book) == []
    await note(book, "three", SALE, MOVE, days=2)
    assert (await titles(book), len(await book.topics(*ANA))) == ([], 2)


# Removing


async def test_reverted_call_says_nothing_any_more(book):
    await note(book, "one", SALE)
    await note(book, "two", SALE, days=1)
    assert await book.revert("voice-session:two") == 1
    assert await note(book, "two", SALE, days=1) == []
    assert (await titles(book), [topic.calls for topic in await book.topics(*ANA)]) == ([], [1])


async def test_call_whose_facts_were_reverted_says_nothing(store, book):
    await FactStore(store).revert("voice-session:one")
    assert await note(book, "one", SALE) == []


async def test_forgetting_leaves_nothing(store, book):
    for number, who in enumerate((ANA, ANA, ("otto", ANA[1]), BEN, BEN)):
        await note(book, str(number), SALE, days=number, who=who)
    await book.pin(*ANA, MOVE)
    assert await book.forget("maya", ANA[1]) == 3
    assert await book.forget(None, ANA[1]) == 1
    assert (await book.topics(*ANA), await book.history("otto", ANA[1]), await titles(book, BEN)) == ([], [], [SALE])
    assert await note(book, "0", SALE) == []
    assert len(await store.newest(tags=("pinned-topic",), limit=9)) == 1


async def test_topic_still_spoken_of_keeps_its_history(book):
    for days in (0, 1, 60):
        await note(book, str(days), TopicNote(SALE, status=f"Day {days}"), days=days)
    await note(book, "old", MOVE)
    assert await book.expire(NOON + timedelta(days=30)) == 1
    (pin,) = await book.pinned(*ANA)
    assert [event.text for event in pin.history] == ["Day 0", "Day 1", "Day 60"]
    assert [topic.title for topic in await book.topics(*ANA)] == [SALE]


async def test_topic_without_mentions_expires(store, book):
    await note(book, "one", SALE)
    await note(book, "two", SALE, days=1)
    await book.unpin(*ANA, SALE, now=NOON + timedelta(days=2))
    await book.pin(*BEN, SALE, now=NOON)
    month = NOON + timedelta(days=30)
    assert (await titles(book, BEN, not_before=month), await titles(book, BEN)) == ([], [SALE])
    assert await book.expire(month) == 4
    assert (await book.topics(*ANA), await titles(book, BEN)) == ([], [])


async def test_old_topic_is_not_shown(store, book):
    await book.pin(*ANA, SALE, now=NOON)
    (document,) = await store.newest(tags=TAGS, limit=9)
    assert is_current(document) and is_current(document, NOON) and not is_current(document, NOON + timedelta(days=1))
    assert is_current(replace(document, source="note"), NOON + timedelta(days=1))


# Whatever was said

TITLES = st.sampled_from(
    [SALE, "The sale of the Orlando house", MOVE, "Boston sale", "Order 4711", "Order 4712", "Orlando", "Смета"]
)
NOTES = st.builds(
    TopicNote,
    TITLES,
    status=st.sampled_from(["", "Listed", "Offer"]),
    open_items=st.lists(st.sampled_from(["a", "b"]), max_size=2).map(tuple),
    state=st.sampled_from(["", "open", "closed"]),
    lists_all=st.booleans(),
)
CALLS = st.lists(
    st.tuples(st.integers(0, 5), st.lists(NOTES, max_size=3), st.sampled_from([ANA, BEN])), min_size=1, max_size=7
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=CALLS, data=st.data())
async def test_reverted_call_had_not_happened(ground, calls, data):
    """Whichever call is taken back, and whatever a person did: the rest is what it would be without it."""
    gone = data.draw(st.integers(0, len(calls) - 1))
    by_hand = data.draw(st.lists(st.tuples(TITLES, st.booleans()), max_size=2))
    async with opened(ground.another()) as store, opened(ground.another("without")) as without:
        for number, (days, notes, who) in enumerate(calls):
            await note(PinnedTopicStore(store), str(number), *notes, days=days, who=who)
            if number != gone:
                await note(PinnedTopicStore(without), str(number), *notes, days=days, who=who)
        await PinnedTopicStore(store).revert(f"voice-session:{gone}")
        for number, (title, unpins) in enumerate(by_hand):
            for book in (PinnedTopicStore(store), PinnedTopicStore(without)):
                moment = NOON + timedelta(days=3, minutes=number)
                await (book.unpin if unpins else book.pin)(*ANA, title, now=moment)
        assert _stripped(await everything(store, PinnedTopicStore(store))) == _stripped(
            await everything(without, PinnedTopicStore(without))
        )


def _stripped(stored):
    """Without the random names of what was done by hand."""
    documents, *rest = stored
    return sorted((document[1:] for document in documents), key=repr), rest


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    calls=st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), st.sampled_from(["Orlando sale", "Move of {}"])),
        min_size=1,
        max_size=12,
    )
)
async def test_topics_of_other_callers_stay_hidden(ground, calls):
    async with opened(ground.another()) as store:
        book = PinnedTopicStore(store)
        for number, (agent, caller, title) in enumerate(calls):
            topic = TopicNote(title.format(agent + caller), status=f"{agent}{caller}", open_items=(agent + caller,))
            await note(book, str(number), topic, days=number, who=(agent, caller))
        for agent in "ab":
            for caller in "xyz":
                pins = await book.pinned(agent, caller, closed=True)
                assert {pin.status for pin in pins} <= {agent + caller}
                assert {item for pin in pins for item in pin.open_items} <= {agent + caller}
                assert all(pin.calls >= 2 for pin in pins)


# The projection


def mention(call, title="Orlando sale", day=0, **given):
    moment = (NOON + timedelta(days=day)).isoformat()
    return LogEntry(f"voice-session:{call}", 0, moment, asdict(TopicNote(title, **given)), b"", moment)


def manual(title="Orlando sale", day=0, unpins=False):
    moment = (NOON + timedelta(days=day)).isoformat()
    content = {"title": title, "by_hand": True} | ({"unpins": True} if unpins else {})
    return LogEntry(f"by-hand:{day}", 0, moment, content, b"", moment)


def topics(*mentions):
    return project(mentions)[0]


def ops(*mentions):
    return [change.op for change in project(mentions)[1]]


def only(*mentions):
    (topic,) = topics(*mentions)
    return topic


def test_topic_of_two_calls_is_pinned():
    assert not only(mention("one")).is_pinned
    assert not only(mention("one"), mention("one")).is_pinned
    assert only(mention("one"), mention("two", "The sale of the Orlando house")).is_pinned
    assert ops(mention("one"), mention("two"), mention("three")) == ["note", "pin"]


def test_first_name_stays_unless_a_person_gives_another():
    first, second = mention("one"), mention("two", "The sale of the Orlando house")
    assert only(first, second).name.text == "Orlando sale"
    assert only(first, second, manual("Orlando house sale")).name.text == "Orlando house sale"


def test_status_goes_on_and_history_keeps_it():
    topic = only(
        mention("one", status="Listed", about="A house"),
        mention("two", status="Offer of 400", change="An offer came", day=2),
        mention("three", status="Offer of 400", day=3),
    )
    assert (topic.state, topic.status, topic.about) == ("changed", "Offer of 400", "A house")
    assert [(event.state, event.text, event.session_id, event.at) for event in topic.history] == [
        ("open", "Listed", "voice-session:one", NOON),
        ("changed", "An offer came", "voice-session:two", NOON + timedelta(days=2)),
    ]
    assert (topic.last.key, topic.history[-1].session_id) == (("voice-session:three", 0), "voice-session:two")


def test_open_items_are_added_or_replaced():
    added = only(mention("one", open_items=("a", "b")), mention("two", open_items=("b", "c")))
    assert added.open_items == ("a", "b", "c")
    replaced = only(mention("one", open_items=("a",)), mention("two", open_items=("c",), lists_all=True))
    assert replaced.open_items == ("c",)
    assert only(mention("one", open_items=("a",)), mention("two", lists_all=True)).open_items == ()
    many = only(*(mention(str(day), open_items=(str(day),), day=day) for day in range(12)))
    assert many.open_items == tuple(str(day) for day in range(12 - MOST_ITEMS, 12))


def test_end_closes_until_it_is_open_again():
    calls = [mention("one", open_items=("a",)), mention("two", status="Sold", state="closed")]
    topic = only(*calls)
    assert (topic.state, topic.status, topic.open_items) == ("closed", "Sold", ())
    still = only(*calls, mention("three", status="The party after the sale"))
    assert (still.state, still.status) == ("closed", "Sold")
    again = mention("three", status="Buyer withdrew", state="open")
    assert (only(*calls, again).state, only(*calls, again).status) == ("open", "Buyer withdrew")
    assert ops(*calls, mention("three"), again) == ["note", "close", "reopen"]


def test_person_pins_at_once_and_unpins_for_good():
    assert only(manual()).is_pinned
    unpin = manual(day=3, unpins=True)
    calls = [mention("one"), mention("two", day=1)]
    assert not only(*calls, unpin, mention("three", day=4), mention("four", day=5)).is_pinned
    assert only(*calls, unpin, manual(day=6)).is_pinned
    assert ops(*calls, unpin, manual(day=6)) == ["note", "pin", "unpin", "pin"]


def test_unpinning_what_is_gone_makes_nothing():
    assert project([manual(unpins=True)]) == ([], [])


def test_exact_name_comes_before_a_like_one():
    house, condo = mention("one", "Orlando house sale"), mention("two", "Orlando condo sale", day=1)
    assert len(topics(house, condo)) == 2
    first, second = topics(house, condo, mention("three", "Orlando condo sale", day=2))
    assert (len(first.calls), len(second.calls)) == (1, 2)


def test_vague_name_does_not_join_others():
    """Orlando is the sale, as it seems; a trip there is still something else."""
    found = topics(mention("one"), mention("two", "Orlando"), mention("three", "Orlando trip"))
    assert [topic.name.text for topic in found] == ["Orlando sale", "Orlando trip"]


# Names


def meaning(*numbers):
    return array("f", numbers).tobytes()


@pytest.mark.parametrize(
    "one, other",
    [
        ("Orlando sale", "orlando sale"),
        ("Orlando sale", "The sale of the Orlando house"),
        ("Orlando sale", "Selling the house in Orlando"),
        ("Kitchen renovation", "Remodelling the kitchen"),
        ("Roof repair", "Getting the roof fixed"),
        ("Order 4711", "The order with number 4711"),
        ("Смета", "смета"),
    ],
)
def test_same_topic_in_other_words(one, other):
    assert TopicName(one).is_same(TopicName(other)) and TopicName(other).is_same(TopicName(one))


@pytest.mark.parametrize(
    "one, other",
    [
        ("Orlando sale", "Boston sale"),
        ("Orlando sale", "Orlando trip"),
        ("Order 4711", "Order 4712"),
        ("Order 4711", "Bike order"),
        ("Kitchen renovation", "Bathroom renovation"),
        ("Blue bike repair", "Red bike repair"),
        ("Orlando sale", "Sale"),
        ("The", "A"),
    ],
)
def test_other_topic_stays_apart(one, other):
    assert not TopicName(one).is_same(TopicName(other)) and not TopicName(other).is_same(TopicName(one))


def test_meaning_joins_what_words_leave_open():
    one, other = "Orlando property sale", "Orlando condo sale"
    assert not TopicName(one).is_same(TopicName(other))
    assert TopicName(one, meaning(1, 0)).is_same(TopicName(other, meaning(0.8, 0.6)))
    assert not TopicName(one, meaning(1, 0)).is_same(TopicName(other, meaning(0.7, 0.71)))
    assert not TopicName(one, meaning(1, 0)).is_same(TopicName(other))


def test_meaning_alone_must_be_closer():
    near = meaning(0.8, 0.6)
    assert not TopicName("Refund", meaning(1, 0)).is_same(TopicName("Money back", near))
    assert TopicName("Refund", meaning(1, 0)).is_same(TopicName("Money back", meaning(0.9, 0.43)))


def test_numbers_part_what_means_the_same():
    assert not TopicName("Order 4711", meaning(1, 0)).is_same(TopicName("Order 4712", meaning(1, 0)))
