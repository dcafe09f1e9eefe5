from gateway.memory.topic_names import TopicName
from gateway.memory.topic_projection import MOST_OPEN_ITEMS, Mention, TopicNote, project


def mention(call, title="Orlando sale", day=0, **given):
    note = TopicNote(title, **given)
    return Mention((f"voice-session:{call}", 0), f"2026-02-{day + 1:02}", TopicName(title), note)


def manual(title="Orlando sale", day=0, unpins=False):
    moment = f"2026-02-{day + 1:02}"
    return Mention((f"by-hand:{day}", 0), moment, TopicName(title), TopicNote(title), is_manual=True, unpins=unpins)


def topics(*mentions):
    return project(mentions)[0]


def ops(*mentions):
    return [step.op for step in project(mentions)[1]]


def only(*mentions):
    (topic,) = topics(*mentions)
    return topic


def test_topic_of_two_calls_is_pinned():
    assert not only(mention("one")).is_pinned
    assert not only(mention("one"), mention("one")).is_pinned
    assert only(mention("one"), mention("two", "The sale of the Orlando house")).is_pinned
    assert ops(mention("one"), mention("two"), mention("three")) == ["note", "pin", "repeat"]


def test_first_name_stays_unless_a_person_gives_another():
    first, second = mention("one"), mention("two", "The sale of the Orlando house")
    assert only(first, second).title == "Orlando sale"
    assert only(first, second, manual("Orlando house sale")).title == "Orlando house sale"


def test_status_goes_on_and_history_keeps_it():
    topic = only(
        mention("one", status="Listed", about="A house"),
        mention("two", status="Offer of 400", change="An offer came", day=2),
        mention("three", status="Offer of 400", day=3),
    )
    assert (topic.state, topic.status, topic.about) == ("changed", "Offer of 400", "A house")
    assert [(event.state, event.text, event.session_id, event.at) for event in topic.history] == [
        ("open", "Listed", "voice-session:one", "2026-02-01"),
        ("changed", "An offer came", "voice-session:two", "2026-02-03"),
    ]
    assert (topic.last.key, topic.history[-1].session_id) == (("voice-session:three", 0), "voice-session:two")


def test_open_items_are_added_or_replaced():
    added = only(mention("one", open_items=("a", "b")), mention("two", open_items=("b", "c")))
    assert added.open_items == ("a", "b", "c")
    replaced = only(mention("one", open_items=("a",)), mention("two", open_items=("c",), lists_all=True))
    assert replaced.open_items == ("c",)
    assert only(mention("one", open_items=("a",)), mention("two", lists_all=True)).open_items == ()
    many = only(*(mention(str(day), open_items=(str(day),), day=day) for day in range(12)))
    assert many.open_items == tuple(str(day) for day in range(12 - MOST_OPEN_ITEMS, 12))


def test_end_closes_until_it_is_open_again():
    calls = [mention("one", open_items=("a",)), mention("two", status="Sold", state="closed")]
    topic = only(*calls)
    assert (topic.state, topic.status, topic.open_items) == ("closed", "Sold", ())
    still = only(*calls, mention("three", status="The party after the sale"))
    assert (still.state, still.status) == ("closed", "Sold")
    again = mention("three", status="Buyer withdrew", state="open")
    assert (only(*calls, again).state, only(*calls, again).status) == ("open", "Buyer withdrew")
    assert ops(*calls, mention("three"), again) == ["note", "close", "repeat", "reopen"]


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
    assert [topic.title for topic in found] == ["Orlando sale", "Orlando trip"]
