"""
What came out of a played call against what was recorded.

Sound is compared by its bytes between two messages, however it was cut into frames. Left out is what differs with every
call: stream ids, our address, dates and times, the session's id, the call's length.
"""

import difflib
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from gateway.finalization.document import archive_text, call_document, spoken_lines
from gateway.replay.checksum import crc32_of_both
from gateway.replay.expected import Remembered
from gateway.replay.player import GATEWAY_ENDS, SILENCE, Outcome
from gateway.replay.recording import (
    Content,
    Peer,
    RawText,
    RecordedMessage,
    RecordedSound,
    RecordedStep,
    Recording,
    SoundPrint,
)
from gateway.replay.sink import ReceivedRequest
from gateway.session import EndReason

NOTHING: Final = "nothing"
_VOLATILE_KEYS: Final = frozenset({"streamSid", "stream_id"})
_VOLATILE_PARTS: Final = frozenset({"endpoint"})  # our own address, and a token for one call
_EVERY_AGENTS: Final = frozenset({"end_call", "search_memory"})
_RESULTS: Final = frozenset({"content", "response"})
_MASKED: Final = "…"
# "Friday, 6 February 2026, 11:15 PM, 3 days ago", as prompts tell times.
_SPOKEN_TIME: Final = re.compile(
    r"\w+day, \d{1,2} \w+ \d{4}, \d{1,2}:\d\d [AP]M(?:, (?:earlier today|yesterday|\d+ (?:day|week|month|year)s ago))?"
)
_DOCUMENT_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d [AP]M")
_DOCUMENT_LINES: Final = re.compile(r"^(\*\*(?:Session|Duration):\*\*) .*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as recorded. `line` and `at` (seconds since `start`) are None where they mean nothing."""

    where: str
    expected: str
    came: str
    line: int | None = None
    at: float | None = None

    def __str__(self) -> str:
        place = ", ".join(
            part
            for part in (
                self.where,
                f"line {self.line}" if self.line is not None else "",
                f"{self.at:.3f} s" if self.at is not None else "",
            )
            if part
        )
        return f"{place}\n  expected: {_indented(self.expected)}\n  came:     {_indented(self.came)}"


def compare(recording: Recording, outcome: Outcome) -> list[Difference]:
    """
    Differences at the carrier, at the engine, and in who ended the call, in this order.

    Functions of the agent's own are not in a recording, and neither they nor their results are compared.
    """
    return [
        *_compare_carrier(recording, outcome),
        *_compare_engine_messages(recording, outcome),
        *_compare_engine_sound(recording, outcome),
        *_compare_end(recording, outcome),
    ]


def compare_remembered(recording: Recording, remembered: Remembered) -> list[Difference]:
    """Differences in what the call left behind; none where the recording stops before its summary."""
    if recording.ended is None or recording.summary is None:
        return []
    transcript = archive_text(spoken_lines(recording.ended.turns))
    document = call_document(recording.ended, recording.summary, None).content
    return [
        *_compare_texts("transcript", transcript, remembered.archive),
        *_compare_texts("document", _masked_document(document), _masked_document(remembered.document)),
    ]


# The carrier: sound, marks and clears in their order


@dataclass(frozen=True, slots=True)
class _Item:
    """A message, or the sound between two messages. Two are the same when their keys are."""

    key: str
    content: RecordedMessage | RawText | SoundPrint
    at: float
    line: int | None = None

    def __str__(self) -> str:
        return _described(self.content)


def _compare_carrier(recording: Recording, outcome: Outcome) -> Iterator[Difference]:
    expected = _items(_expected_steps(recording, "carrier"))
    came = _items(outcome.to_carrier)
    yield from _compare_items("to carrier", expected, came)


def _items(frames: Iterable[RecordedStep | ReceivedRequest], foreign: frozenset[str] = frozenset()) -> list[_Item]:
    items: list[_Item] = []
    for frame in frames:
        line = frame.line if isinstance(frame, RecordedStep) else None
        content = _comparable(frame.content, foreign)
        last = items[-1] if items else None
        if isinstance(content, SoundPrint) and last is not None and isinstance(last.content, SoundPrint):
            whole = _joined(last.content, content)
            items[-1] = _Item(_key(whole), whole, last.at, last.line)
        else:
            items.append(_Item(_key(content), content, frame.at, line))
    return items


def _comparable(content: Content, foreign: frozenset[str]) -> RecordedMessage | RawText | SoundPrint:
    match content:
        case RecordedSound(audio):
            return SoundPrint(len(audio), zlib.crc32(audio))
        case RecordedMessage(fields):
            lasting = {name: value for name, value in fields.items() if name not in _VOLATILE_KEYS}
            return RecordedMessage(_without_functions(_masked(lasting), foreign))
        case _:
            return content


def _joined(first: SoundPrint, second: SoundPrint) -> SoundPrint:
    return SoundPrint(first.size + second.size, crc32_of_both(first.crc, second.crc, second.size))


def _key(content: RecordedMessage | RawText | SoundPrint) -> str:
    match content:
        case RecordedMessage(fields):
            return orjson.dumps(fields, option=orjson.OPT_SORT_KEYS).decode()
        case RawText(text):
            return text
        case SoundPrint(size, crc):
            return f"{size} bytes, crc {crc}"


# The engine: messages, and sound on its own, for neither waits for the other


def _compare_engine_messages(recording: Recording, outcome: Outcome) -> Iterator[Difference]:
    foreign = recording.header.functions - _EVERY_AGENTS
    expected = [step for step in _expected_steps(recording, "engine") if not isinstance(step.content, SoundPrint)]
    came = [arrival for arrival in outcome.to_engine if not isinstance(arrival.content, RecordedSound)]
    yield from _compare_items("to engine", _items(expected, foreign), _items(came, foreign))


def _compare_engine_sound(recording: Recording, outcome: Outcome) -> Iterator[Difference]:
    prints = [(step, step.content) for step in _expected_steps(recording, "engine")]
    sounds = [(step, content) for step, content in prints if isinstance(content, SoundPrint)]
    silent = sum(content == SILENCE for _, content in sounds)
    came = b"".join(
        arrival.content.audio for arrival in outcome.to_engine if isinstance(arrival.content, RecordedSound)
    )
    position = 0
    for step, content in sounds:
        if content == SILENCE:
            continue
        piece = came[position : position + content.size]
        if zlib.crc32(piece) != content.crc:
            yield _sound_difference(step, content, piece)
            return  # what follows is shifted, or another call's
        position += len(piece)
    if position < len(came):
        yield Difference("sound to engine", "no more sound", f"{len(came) - position} more bytes")
    elif outcome.silent_frames < silent:
        yield Difference("sound to engine", f"{silent} frames of silence", f"{outcome.silent_frames}")


def _sound_difference(step: RecordedStep, content: SoundPrint, piece: bytes) -> Difference:
    came = _described(SoundPrint(len(piece), zlib.crc32(piece))) if piece else NOTHING
    return Difference("sound to engine", _described(content), came, step.line, step.at)


def _expected_steps(recording: Recording, peer: Peer) -> list[RecordedStep]:
    return [step for step in recording.steps if step.direction == "to" and step.peer == peer]


# The end


def _compare_end(recording: Recording, outcome: Outcome) -> Iterator[Difference]:
    expected = recording.end_reason in GATEWAY_ENDS
    if expected != outcome.gateway_hung_up and recording.end_reason in (*GATEWAY_ENDS, EndReason.CALLER_HUNG_UP):
        who = {True: "the gateway hangs up", False: "the caller hangs up"}
        yield Difference("end of call", who[expected], who[outcome.gateway_hung_up])


# Sequences


def _compare_items(where: str, expected: Sequence[_Item], came: Sequence[_Item]) -> Iterator[Difference]:
    matcher = difflib.SequenceMatcher(
        None, [item.key for item in expected], [item.key for item in came], autojunk=False
    )
    for kind, start, end, came_start, came_end in matcher.get_opcodes():
        if kind == "equal":
            continue
        pairs = _padded(expected[start:end], came[came_start:came_end])
        yield from (_item_difference(where, old, new) for old, new in pairs)


def _padded(old: Sequence[_Item], new: Sequence[_Item]) -> Iterator[tuple[_Item | None, _Item | None]]:
    for index in range(max(len(old), len(new))):
        yield old[index] if index < len(old) else None, new[index] if index < len(new) else None


def _item_difference(where: str, expected: _Item | None, came: _Item | None) -> Difference:
    line = expected.line if expected is not None else None
    at = expected.at if expected is not None else came.at if came is not None else None
    if expected is not None and came is not None and _same_kind(expected.content, came.content):
        name, old, new = _first_change(_fields(expected.content), _fields(came.content))
        return Difference(f"{where}, {_title(expected.content)}{name}", *_only_changes(old, new), line, at)
    return Difference(where, str(expected or NOTHING), str(came or NOTHING), line, at)


def _same_kind(expected: Content, came: Content) -> bool:
    both = isinstance(expected, RecordedMessage) and isinstance(came, RecordedMessage)
    return both and _title(expected) == _title(came)


def _fields(content: Content) -> Mapping[str, Any]:
    return content.fields if isinstance(content, RecordedMessage) else {}


def _title(content: Content) -> str:
    fields = _fields(content)
    return str(fields.get("type") or fields.get("event") or "message")


def _first_change(expected: Any, came: Any) -> tuple[str, str, str]:
    """Where two JSON values part, as a path, and both sides there."""
    if isinstance(expected, dict) and isinstance(came, dict):
        for name in (*expected, *(name for name in came if name not in expected)):
            if expected.get(name) != came.get(name):
                path, old, new = _first_change(expected.get(name), came.get(name))
                return f".{name}{path}", old, new
    return "", _plain(expected), _plain(came)


def _plain(value: Any) -> str:
    return NOTHING if value is None else value if isinstance(value, str) else orjson.dumps(value).decode()


# Texts


def _compare_texts(where: str, expected: str, came: str) -> Iterator[Difference]:
    if expected != came:
        yield Difference(where, *_only_changes(expected, came))


def _only_changes(expected: str, came: str) -> tuple[str, str]:
    """The lines of each text that the other does not have."""
    old, new = expected.splitlines(), came.splitlines()
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    changes = [code for code in matcher.get_opcodes() if code[0] != "equal"]
    gone = [line for _, start, end, _, _ in changes for line in old[start:end]]
    added = [line for _, _, _, start, end in changes for line in new[start:end]]
    return "\n".join(gone) or NOTHING, "\n".join(added) or NOTHING


def _indented(text: str) -> str:
    return text.replace("\n", "\n            ")


def _described(content: Content) -> str:
    match content:
        case SoundPrint(size, crc):
            return f"{size / 8000:.2f} s of sound ({size} bytes, crc {crc:08x})"
        case RecordedMessage(fields) if "mark" in fields:
            return f"mark {fields['mark'].get('name')}"
        case RecordedMessage(fields):
            return orjson.dumps(fields).decode() if len(fields) > 1 else _title(content)
        case RawText(text):
            return f"text {text!r}"
        case RecordedSound(audio):
            return f"{len(audio)} bytes of sound"


# What differs with every call


def _masked(value: Any) -> Any:
    return _mapped(value, lambda text: _SPOKEN_TIME.sub(_MASKED, text))


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    match value:
        case str():
            return change(value)
        case dict():
            return {name: _MASKED if name in _VOLATILE_PARTS else _mapped(part, change) for name, part in value.items()}
        case list():
            return [_mapped(part, change) for part in value]
        case _:
            return value


def _without_functions(value: Any, foreign: frozenset[str]) -> Any:
    """Without these functions where an agent is told of them, and without their results."""
    match value:
        case {"name": str(name), **rest} if name in foreign:
            return {"name": name, **{key: _MASKED if key in _RESULTS else part for key, part in rest.items()}}
        case {"functions": [*functions], **rest}:
            others = [function for function in functions if function.get("name") not in foreign]
            return {"functions": others, **_without_functions(rest, foreign)}
        case dict():
            return {key: _without_functions(part, foreign) for key, part in value.items()}
        case list():
            return [_without_functions(part, foreign) for part in value]
        case _:
            return value


def _masked_document(text: str) -> str:
    return _DOCUMENT_TIME.sub(_MASKED, _DOCUMENT_LINES.sub(rf"\1 {_MASKED}", text))
