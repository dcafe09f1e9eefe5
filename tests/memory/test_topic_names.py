from array import array

import pytest

from gateway.memory.topic_names import TopicName


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
