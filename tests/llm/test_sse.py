import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import LlmUnavailable
from gateway.llm.chat import MAX_RECORD_BYTES as MAX_BYTES
from gateway.llm.chat import SseParser, SseRecord

STREAM = (
    ": hello\r\n"
    "event: message_start\r\ndata: {}\r\n\r\n"
    "data: Señora ✂️\n\n"
    ": ping\n\n"
    "event: lost\n\n"
    "data:first\nid: 7\ndata:  second\n\n"
    "data\n\n"
    "data: [DONE]\n\n"
    "data: without its blank line\n"
).encode()
RECORDS = [
    SseRecord("message_start", b"{}"),
    SseRecord("", "Señora ✂️".encode()),
    SseRecord("", b"first\n second"),
    SseRecord("", b"[DONE]"),
]


def parse(pieces):
    parser = SseParser("xai")
    return [record for piece in pieces for record in parser.feed(piece)]


@given(st.lists(st.integers(0, len(STREAM))).map(sorted))
def test_any_split_gives_same_records(cuts):
    pieces = [STREAM[start:end] for start, end in zip([0, *cuts], [*cuts, len(STREAM)], strict=True)]
    assert parse(pieces) == RECORDS


def test_bytewise_split_gives_same_records():
    assert parse(STREAM[at : at + 1] for at in range(len(STREAM))) == RECORDS


def test_record_comes_with_its_last_byte():
    parser = SseParser("xai")
    assert parser.feed(b"data: now\n") == []
    assert parser.feed(b"\n") == [SseRecord("", b"now")]


@pytest.mark.parametrize("line", [b"x", b"data: x\n", b": x\n"], ids=["line", "record", "comments"])
def test_record_without_end_is_refused(line):
    with pytest.raises(LlmUnavailable, match="^xai sent a record of more than 1048576 bytes$"):
        parse([line * 10_000] * (MAX_BYTES // 10_000 + 1))


def test_long_stream_of_short_records_is_read():
    records = parse([b"data: " + b"x" * 1000 + b"\n\n"] * (MAX_BYTES // 1000 + 1))
    assert set(records) == {SseRecord("", b"x" * 1000)}
