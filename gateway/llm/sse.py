"""An incremental parser for server-sent events: bytes in, records out. No I/O."""

from typing import Final, NamedTuple

from gateway.errors import LlmUnavailable

MAX_BYTES: Final = 1 << 20
"""Records have a few hundred bytes; a longer one is an error of the server."""


class SseRecord(NamedTuple):
    """One event: its name ("" for none) and its data, UTF-8 as received."""

    event: str
    data: bytes


class SseParser:
    """
    Parses one response: `feed` returns the records that the new bytes complete.

    Lines end in LF or CRLF (the standard also allows CR alone, which no server sends). Comments and unknown fields are
    skipped. A record without its closing blank line is dropped, as the standard says.
    """

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self._event = ""
        self._data: list[bytes] = []
        self._line: list[bytes] = []  # pieces of an unfinished line
        self._size = 0  # of the record so far

    def feed(self, data: bytes) -> list[SseRecord]:
        """Raises LlmUnavailable for a record that is too long."""
        *ends, rest = data.split(b"\n")
        records = []
        for end in ends:
            self._hold(end)
            line = b"".join(self._line).removesuffix(b"\r")
            self._line.clear()
            if line:
                self._take(line)
            elif record := self._complete():
                records.append(record)
        if rest:
            self._hold(rest)
        return records

    def _hold(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > MAX_BYTES:
            raise LlmUnavailable(f"{self._peer} sent a record of more than {MAX_BYTES} bytes")
        self._line.append(piece)

    def _take(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        elif name == b"event":
            self._event = value.removeprefix(b" ").decode(errors="replace")

    def _complete(self) -> SseRecord | None:
        record = SseRecord(self._event, b"\n".join(self._data))
        self._event, self._size = "", 0
        self._data.clear()
        return record if record.data else None
