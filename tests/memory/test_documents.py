from datetime import UTC, datetime

import pytest

from gateway.memory.stores.documents import parse_tags, parse_time


@pytest.mark.parametrize(
    "value, tags",
    [
        (None, ()),
        ("", ()),
        ("voice-session, deepclaw,, phone-call ", ("voice-session", "deepclaw", "phone-call")),
        (["b", " a ", "b", ""], ("b", "a")),
        (["one, two"], ("one, two",)),
    ],
)
def test_tags_from_text_or_list(value, tags):
    assert parse_tags(value) == tags


@pytest.mark.parametrize("value", [7, {"a": 1}, ["a", 7], True])
def test_other_tags_are_refused(value):
    with pytest.raises(ValueError) as raised:
        parse_tags(value)
    assert str(raised.value) == "tags must be a string or a list of strings"


@pytest.mark.parametrize("text", ["2026-02-06T23:15:00Z", "2026-02-06T23:15:00", "2026-02-07T00:15:00+01:00"])
def test_times_are_read_as_utc(text):
    assert parse_time(text) == datetime(2026, 2, 6, 23, 15, tzinfo=UTC)
    assert parse_time(text).tzinfo is UTC


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "0001-01-01T00:00:00+05:00"])
def test_other_times_are_refused(text):
    with pytest.raises(ValueError) as raised:
        parse_time(text)
    assert str(raised.value) == "not an ISO 8601 time"


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "0001-01-01T05:00:00+01:00"])
def test_times_for_no_time_are_refused(text):
    """Not every time zone can show them."""
    with pytest.raises(ValueError):
        parse_time(text)
