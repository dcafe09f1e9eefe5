"""
Compares a played call with its recording.

Audio is compared byte for byte between two messages, regardless of how it was cut into frames. Values that differ with
every call are left out: stream ids, the gateway's URL, dates and times, the session id, the duration of the call.
"""

import difflib
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from gateway.finalization.document import archive_text, call_document, redact_turns, spoken_lines
from gateway.memory.identity import only_person
from gateway.replay.expected import StoredCall
from gateway.replay.player import GATEWAY_ENDS, SILENCE, Outcome
from gateway.replay.recording import (
    AudioChecksum,
    Content,
    Peer,
    RecordedFrame,
    Recording,
)
from gateway.session import EndReason, VoiceSession
from gateway.simulate.frames import AudioFrame, JsonFrame, ReceivedFrame, TextFrame

NOTHING: Final = "nothing"
_VOLATILE_KEYS: Final = frozenset({"streamSid", "stream_id"})
_VOLATILE_PARTS: Final = frozenset({"endpoint"})  # the gateway's URL and a token for one call
_BUILT_IN_FUNCTIONS: Final = frozenset({"end_call", "search_memory"})
_RESULTS: Final = frozenset({"content", "response"})
_MASKED: Final = "…"
# "Friday, 6 February 2026, 11:15 PM, 3 days ago": the format of times in prompts.
_SPOKEN_TIME: Final = re.compile(
    r"\w+day, \d{1,2} \w+ \d{4}, \d{1,2}:\d\d [AP]M(?:, (?:earlier today|yesterday|\d+ (?:day|week|month|year)s ago))?"
)
_DOCUMENT_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d [AP]M")
_DOCUMENT_LINES: Final = re.compile(r"^(\*\*(?:Session|Duration):\*\*) .*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Difference:
    """One deviation from the recording. `line` and `at` (seconds since `start`) are None if they do not apply."""

    where: str
    expected: str
    came: str  # the name in `gateway replay --json`
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
        return f"{place}\n  expected: {_indented(self.expected)}\n  actual:   {_indented(self.came)}"


def compare(recording: Recording, outcome: Outcome) -> list[Difference]:
    """
    Differences at the carrier, at the engine, and in who ended the call, in this order.

    The agent's own functions and their results are not compared: a recording does not contain their code.
    """
    return [
        *_compare_carrier(recording, outcome),
        *_compare_engine_messages(recording, outcome),
        *_compare_engine_audio(recording, outcome),
        *_compare_end(recording, outcome),
    ]


def compare_stored(recording: Recording, stored: StoredCall) -> list[Difference]:
    """Differences in archive and document. Empty if the recording stops before its summary."""
    if recording.ended is None or recording.summary is None:
        return []
    transcript = archive_text(spoken_lines(redact_turns(recording.ended.turns)))
    document = call_document(_with_known_name(recording.ended, recording), recording.summary, None).content
    return [
        *_compare_texts("transcript", transcript, stored.archive),
        *_compare_texts("document", _masked_document(document), _masked_document(stored.document)),
    ]


def _with_known_name(ended: VoiceSession, recording: Recording) -> VoiceSession:
    """The session at its end. Recordings made before sessions kept the caller's known name have it in their memory."""
    memory = recording.memory
    names = [*(fact.person for fact in memory.facts), *(call.caller_name for call in memory.calls)]
    return replace(ended, known_name=ended.known_name or only_person(names))


# The carrier: audio, marks and clears in their order


@dataclass(frozen=True, slots=True)
class _Item:
    """A message, or the audio between two messages. Items with equal keys are equal."""

    key: str
    content: JsonFrame | TextFrame | AudioChecksum
    at: float
    line: int | None = None

    def __str__(self) -> str:
        return _described(self.content)


def _compare_carrier(recording: Recording, outcome: Outcome) -> Iterator[Difference]:
    expected = _items(_expected_frames(recording, "carrier"))
    actual = _items(outcome.to_carrier)
    yield from _compare_items("to carrier", expected, actual)


def _items(frames: Iterable[RecordedFrame | ReceivedFrame], foreign: frozenset[str] = frozenset()) -> list[_Item]:
    items: list[_Item] = []
    for frame in frames:
        line = frame.line if isinstance(frame, RecordedFrame) else None
        content = _comparable(frame.content, foreign)
        last = items[-1] if items else None
        if isinstance(content, AudioChecksum) and last is not None and isinstance(last.content, AudioChecksum):
            whole = joined(last.content, content)
            items[-1] = _Item(_key(whole), whole, last.at, last.line)
        else:
            items.append(_Item(_key(content), content, frame.at, line))
    return items


def _comparable(content: Content, foreign: frozenset[str]) -> JsonFrame | TextFrame | AudioChecksum:
    match content:
        case AudioFrame(audio):
            return AudioChecksum(len(audio), zlib.crc32(audio))
        case JsonFrame(fields):
            lasting = {name: value for name, value in fields.items() if name not in _VOLATILE_KEYS}
            return JsonFrame(_without_functions(_masked(lasting), foreign))
        case _:
            return content


def joined(first: AudioChecksum, second: AudioChecksum) -> AudioChecksum:
    """The checksum of two pieces of audio in a row. Works without the audio because CRC-32 is affine in its input."""
    zeros = bytes(second.size)
    crc = zlib.crc32(zeros, first.crc) ^ zlib.crc32(zeros) ^ second.crc
    return AudioChecksum(first.size + second.size, crc)


def _key(content: JsonFrame | TextFrame | AudioChecksum) -> str:
    match content:
        case JsonFrame(fields):
            return orjson.dumps(fields, option=orjson.OPT_SORT_KEYS).decode()
        case TextFrame(text):
            return text
        case AudioChecksum(size, crc):
            return f"{size} bytes, crc {crc}"


# The engine: messages and audio separately, because neither waits for the other


def _compare_engine_messages(recording: Recording, outcome: Outcome) -> Iterator[Difference]:
    foreign = recording.header.functions - _BUILT_IN_FUNCTIONS
    expected = [
        frame for frame in _expected_frames(recording, "engine") if not isinstance(frame.content, AudioChecksum)
    ]
    actual = [frame for frame in outcome.to_engine if not isinstance(frame.content, AudioFrame)]
    yield from _compare_items("to engine", _items(expected, foreign), _items(actual, foreign))


def _compare_engine_audio(recording: Recording, outcome: Outcome) -> Iterator[Difference]:
    prints = [(frame, frame.content) for frame in _expected_frames(recording, "engine")]
    sounds = [(frame, content) for frame, content in prints if isinstance(content, AudioChecksum)]
    silent = sum(content == SILENCE for _, content in sounds)
    actual = b"".join(frame.content.audio for frame in outcome.to_engine if isinstance(frame.content, AudioFrame))
    position = 0
    for frame, content in sounds:
        if content == SILENCE:
            continue
        piece = actual[position : position + content.size]
        if zlib.crc32(piece) != content.crc:
            yield _audio_difference(frame, content, piece)
            return  # everything after it is shifted
        position += len(piece)
    if position < len(actual):
        yield Difference("audio to engine", "no more audio", f"{len(actual) - position} more bytes")
    elif outcome.silent_frames < silent:
        yield Difference("audio to engine", f"{silent} frames of silence", f"{outcome.silent_frames}")


def _audio_difference(frame: RecordedFrame, content: AudioChecksum, piece: bytes) -> Difference:
    actual = _described(AudioChecksum(len(piece), zlib.crc32(piece))) if piece else NOTHING
    return Difference("audio to engine", _described(content), actual, frame.line, frame.at)


def _expected_frames(recording: Recording, peer: Peer) -> list[RecordedFrame]:
    return [frame for frame in recording.frames if frame.direction == "to" and frame.peer == peer]


# The end


def _compare_end(recording: Recording, outcome: Outcome) -> Iterator[Difference]:
    expected = recording.end_reason in GATEWAY_ENDS
    if expected != outcome.gateway_hung_up and recording.end_reason in (*GATEWAY_ENDS, EndReason.CALLER_HUNG_UP):
        who = {True: "the gateway hangs up", False: "the caller hangs up"}
        yield Difference("end of call", who[expected], who[outcome.gateway_hung_up])


# Sequences


def _compare_items(where: str, expected: Sequence[_Item], actual: Sequence[_Item]) -> Iterator[Difference]:
    matcher = difflib.SequenceMatcher(
        None, [item.key for item in expected], [item.key for item in actual], autojunk=False
    )
    for kind, start, end, actual_start, actual_end in matcher.get_opcodes():
        if kind == "equal":
            continue
        pairs = _padded(expected[start:end], actual[actual_start:actual_end])
        yield from (_item_difference(where, old, new) for old, new in pairs)


def _padded(old: Sequence[_Item], new: Sequence[_Item]) -> Iterator[tuple[_Item | None, _Item | None]]:
    for index in range(max(len(old), len(new))):
        yield old[index] if index < len(old) else None, new[index] if index < len(new) else None


def _item_difference(where: str, expected: _Item | None, actual: _Item | None) -> Difference:
    line = expected.line if expected is not None else None
    at = expected.at if expected is not None else actual.at if actual is not None else None
    if expected is not None and actual is not None and _same_kind(expected.content, actual.content):
        name, old, new = _first_change(_fields(expected.content), _fields(actual.content))
        return Difference(f"{where}, {_title(expected.content)}{name}", *_only_changes(old, new), line, at)
    return Difference(where, str(expected or NOTHING), str(actual or NOTHING), line, at)


def _same_kind(expected: Content, actual: Content) -> bool:
    both = isinstance(expected, JsonFrame) and isinstance(actual, JsonFrame)
    return both and _title(expected) == _title(actual)


def _fields(content: Content) -> Mapping[str, Any]:
    return content.fields if isinstance(content, JsonFrame) else {}


def _title(content: Content) -> str:
    fields = _fields(content)
    return str(fields.get("type") or fields.get("event") or "message")


def _first_change(expected: Any, actual: Any) -> tuple[str, str, str]:
    """The path of the first difference between two JSON values, and both values there."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for name in (*expected, *(name for name in actual if name not in expected)):
            if expected.get(name) != actual.get(name):
                path, old, new = _first_change(expected.get(name), actual.get(name))
                return f".{name}{path}", old, new
    return "", _plain(expected), _plain(actual)


def _plain(value: Any) -> str:
    return NOTHING if value is None else value if isinstance(value, str) else orjson.dumps(value).decode()


# Texts


def _compare_texts(where: str, expected: str, actual: str) -> Iterator[Difference]:
    if expected != actual:
        yield Difference(where, *_only_changes(expected, actual))


def _only_changes(expected: str, actual: str) -> tuple[str, str]:
    """The lines of each text that the other lacks."""
    old, new = expected.splitlines(), actual.splitlines()
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    changes = [code for code in matcher.get_opcodes() if code[0] != "equal"]
    gone = [line for _, start, end, _, _ in changes for line in old[start:end]]
    added = [line for _, _, _, start, end in changes for line in new[start:end]]
    return "\n".join(gone) or NOTHING, "\n".join(added) or NOTHING


def _indented(text: str) -> str:
    return text.replace("\n", "\n            ")


def _described(content: Content) -> str:
    match content:
        case AudioChecksum(size, crc):
            return f"{size / 8000:.2f} s of audio ({size} bytes, crc {crc:08x})"
        case JsonFrame(fields) if "mark" in fields:
            return f"mark {fields['mark'].get('name')}"
        case JsonFrame(fields):
            return orjson.dumps(fields).decode() if len(fields) > 1 else _title(content)
        case TextFrame(text):
            return f"text {text!r}"
        case AudioFrame(audio):
            return f"{len(audio)} bytes of audio"


# Values that differ with every call


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
    """Remove these functions from the agent's settings, and their results."""
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
