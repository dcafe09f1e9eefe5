"""What all platforms share. The tests of each platform have whole messages."""

from datetime import UTC, datetime, timedelta

import pytest

from gateway.errors import RemoteProtocolError
from gateway.session import Speaker
from gateway.telephony.hosted import (
    add_turn,
    conversation_id,
    prompt_variables,
    read_number,
    read_object,
    read_table,
    read_tables,
    read_text,
)

NOON = datetime(2026, 2, 6, 12, tzinfo=UTC)


@pytest.mark.parametrize("given", ["", "../etc/passwd", "a/b", "x" * 129, "conv 1", None, 7, "conv\n"])
def test_malformed_id_is_refused(given):
    with pytest.raises(RemoteProtocolError, match="^vapi sent a malformed conversation id$"):
        conversation_id(given, "vapi")


def test_plain_id_is_accepted():
    for given in ("conv_1", "019a5193-90ae-7fff-b06b-d09a3312294a", "x" * 128):
        assert conversation_id(given, "vapi") == given


def test_turns_keep_their_order():
    turns = []
    for said, seconds in (("One.", 5), (" Two. ", 5), ("  ", 6), ("Three.", 2)):
        add_turn(turns, Speaker.CALLER, said, NOON + timedelta(seconds=seconds))
    assert [turn.text for turn in turns] == ["One.", "Two.", "Three."]
    times = [turn.at for turn in turns]
    assert times == sorted(set(times))


def test_variables_hold_no_template():
    variables = prompt_variables("Likes {{secret}} {% if x %}\x00 tea\n", "Ana")
    assert variables == {"memory": "Likes { {secret} } { % if x %} tea\n", "caller_name": "Ana"}


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff"])
def test_what_is_no_object_is_refused(body):
    with pytest.raises(RemoteProtocolError):
        read_object(body, "vapi")


def test_value_of_another_type_counts_as_missing():
    given = {"table": [], "list": {"a": 1}, "mixed": [1, {"a": 1}, None]}
    assert read_table(given, "table") == {} and read_tables(given, "list") == []
    assert read_tables(given, "mixed") == [{"a": 1}]
    assert (read_text(7), read_text(" x ")) == ("", "x")
    assert [read_number(value) for value in (True, "1", -1, 1e300, None, 2)] == [0, 0, 0, 0, 0, 2]
