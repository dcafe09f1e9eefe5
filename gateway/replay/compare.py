"""
Compares a played call with its recording.

Audio is compared byte for byte between two messages, regardless of how it was cut into frames. Values that differ with
every call are left out: stream ids, the gateway's URL, dates and times, the session id, the duration of the call.
"""

import difflib
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, Final

import orjson

from gateway.finalization.document import archive_text, call_document, redact_turns, spoken_lines
from gateway.memory.identity import only_person
from gateway.replay.player import GATEWAY_ENDS, SILENCE, Outcome, StoredCall
from gateway.replay.recording import AudioChecksum, Content, RecordedFrame, Recording
from gateway.session import EndReason
from gateway.simulate.frames import AudioFrame, JsonFrame, ReceivedFrame, TextFrame

NOTHING: Final = "nothing"
_MASKED: Final = "…"
_BUILT_IN_FUNCTIONS: Final = frozenset({"end_call", "search_memory"})
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
        line = f", line {self.line}" if self.line is not None else ""
        time = f", {self.at:.3f} s" if self.at is not None else ""
        expected, came = (text.replace("\n", "\n            ") for text in (self.expected, self.came))
        return f"{self.where}{line}{time}\n  expected: {expected}\n  actual:   {came}"


def compare(recording: Recording, outcome: Outcome) -> list[Difference]:
    """
    Differences at the carrier, at the engine, and in who ended the call, in this order.

    The agent's own functions and their results are not compared: a recording does not contain their code.
    """
    sent = [frame for frame in recording.frames if frame.direction == "to"]
    to_engine = [frame for frame in sent if frame.peer == "engine"]
    # The engine's messages and audio are compared separately, because neither waits for the other.
    messages = [frame for frame in to_engine if not isinstance(frame.content, AudioChecksum)]
    came = [frame for frame in outcome.to_engine if not isinstance(frame.content, AudioFrame)]
    if recording.header.agent.get("has_brain"):
        came = list(_without_fetched_replies(recording, came))
    foreign = recording.header.functions - _BUILT_IN_FUNCTIONS
    differences = [
        *_compare_items("to carrier", _items(frame for frame in sent if frame.peer == "carrier"), outcome.to_carrier),
        *_compare_items("to engine", _items(messages, foreign), came, foreign),
        *_compare_engine_audio(to_engine, outcome),
    ]
    gateway_ends = recording.end_reason in GATEWAY_ENDS
    if gateway_ends != outcome.gateway_hung_up and (gateway_ends or recording.end_reason is EndReason.CALLER_HUNG_UP):
        who = {True: "the gateway hangs up", False: "the caller hangs up"}
        differences.append(Difference("end of call", who[gateway_ends], who[outcome.gateway_hung_up]))
    return differences


def _without_fetched_replies(recording: Recording, came: Iterable[ReceivedFrame]) -> Iterator[ReceivedFrame]:
    """
    The messages to the engine without replies of the gateway that the recorded engine got in another way.

    It had asked for an answer of the agent's own language model. The simulated engine asks for none, so the gateway
    injects its reply.
    """
    fields = [frame.content.fields for frame in recording.frames if isinstance(frame.content, JsonFrame)]
    said = " ".join(str(one.get("content")) for one in fields if one.get("role") == "assistant")
    injected = [one.get("message") for one in fields if one.get("type") == "InjectAgentMessage"]
    for frame in came:
        given = frame.content.fields if isinstance(frame.content, JsonFrame) else {}
        message = given.get("message")
        if given.get("type") != "InjectAgentMessage" or message in injected or str(message) not in said:
            yield frame


def compare_stored(recording: Recording, stored: StoredCall) -> list[Difference]:
    """Differences in archive and document. Empty if the recording stops before its summary."""
    ended, memory = recording.ended, recording.memory
    if ended is None or recording.summary is None:
        return []
    # Recordings made before sessions kept the caller's known name have it in their memory.
    names = [*(fact.person for fact in memory.facts), *(call.caller_name for call in memory.calls)]
    session = replace(ended, known_name=ended.known_name or only_person(names))
    pairs = {
        "transcript": (archive_text(spoken_lines(redact_turns(ended.turns))), stored.archive),
        "document": (
            _masked_document(call_document(session, recording.summary, None).content),
            _masked_document(stored.document),
        ),
    }
    return [Difference(where, *_only_changes(old, new)) for where, (old, new) in pairs.items() if old != new]


# Messages, and the audio between them


@dataclass(frozen=True, slots=True)
class _Item:
    """A message, or the audio between two messages. Items with equal keys are equal."""

    key: str
    content: JsonFrame | TextFrame | AudioChecksum
    at: float
    line: int | None = None

    @property
    def title(self) -> str:
        """The kind of a JSON message."""
        fields = self.content.fields if isinstance(self.content, JsonFrame) else {}
        return str(fields.get("type") or fields.get("event") or "message")

    def __str__(self) -> str:
        match self.content:
            case AudioChecksum(size, crc):
                return f"{size / 8000:.2f} s of audio ({size} bytes, crc {crc:08x})"
            case JsonFrame(fields) if "mark" in fields:
                return f"mark {fields['mark'].get('name')}"
            case JsonFrame(fields):
                return orjson.dumps(fields).decode() if len(fields) > 1 else self.title
            case TextFrame(text):
                return f"text {text!r}"


def _items(frames: Iterable[RecordedFrame | ReceivedFrame], foreign: frozenset[str] = frozenset()) -> list[_Item]:
    items: list[_Item] = []
    for frame in frames:
        item = _item(frame.content, frame.at, frame.line if isinstance(frame, RecordedFrame) else None, foreign)
        last = items[-1] if items else None
        if isinstance(item.content, AudioChecksum) and last is not None and isinstance(last.content, AudioChecksum):
            items[-1] = _item(joined(last.content, item.content), last.at, last.line, foreign)
        else:
            items.append(item)
    return items


def _item(content: Content, at: float, line: int | None, foreign: frozenset[str]) -> _Item:
    match content:
        case JsonFrame(fields):
            lasting = _lasting(fields, foreign)
            return _Item(orjson.dumps(lasting, option=orjson.OPT_SORT_KEYS).decode(), JsonFrame(lasting), at, line)
        case TextFrame(text):
            return _Item(text, content, at, line)
        case AudioFrame(audio):
            content = AudioChecksum(len(audio), zlib.crc32(audio))
    return _Item(f"{content.size} bytes, crc {content.crc}", content, at, line)


def joined(first: AudioChecksum, second: AudioChecksum) -> AudioChecksum:
    """The checksum of two pieces of audio in a row. Works without the audio because CRC-32 is affine in its input."""
    zeros = bytes(second.size)
    crc = zlib.crc32(zeros, first.crc) ^ zlib.crc32(zeros) ^ second.crc
    return AudioChecksum(first.size + second.size, crc)


def _compare_items(
    where: str, expected: Sequence[_Item], frames: Iterable[ReceivedFrame], foreign: frozenset[str] = frozenset()
) -> Iterator[Difference]:
    came = _items(frames, foreign)
    keys, came_keys = ([item.key for item in items] for items in (expected, came))
    matcher = difflib.SequenceMatcher(None, keys, came_keys, autojunk=False)
    for kind, start, end, came_start, came_end in matcher.get_opcodes():
        if kind == "equal":
            continue
        for old, new in zip_longest(expected[start:end], came[came_start:came_end]):
            line, at = (old.line, old.at) if old is not None else (None, new.at)
            match (old and old.content, new and new.content):
                case JsonFrame(before), JsonFrame(after) if old.title == new.title:
                    name, *values = _first_change(before, after)
                    yield Difference(f"{where}, {old.title}{name}", *_only_changes(*values), line, at)
                case _:
                    yield Difference(where, str(old or NOTHING), str(new or NOTHING), line, at)


def _first_change(expected: Any, came: Any) -> tuple[str, str, str]:
    """The path of the first difference between two JSON values, and both values there."""
    if isinstance(expected, dict) and isinstance(came, dict):
        for name in (*expected, *(name for name in came if name not in expected)):
            if expected.get(name) != came.get(name):
                path, old, new = _first_change(expected.get(name), came.get(name))
                return f".{name}{path}", old, new
    return "", _plain(expected), _plain(came)


def _plain(value: Any) -> str:
    return NOTHING if value is None else value if isinstance(value, str) else orjson.dumps(value).decode()


def _only_changes(expected: str, came: str) -> tuple[str, str]:
    """The lines of each text that the other lacks."""
    old, new = expected.splitlines(), came.splitlines()
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    changes = [code for code in matcher.get_opcodes() if code[0] != "equal"]
    gone = [line for _, start, end, _, _ in changes for line in old[start:end]]
    added = [line for _, _, _, start, end in changes for line in new[start:end]]
    return "\n".join(gone) or NOTHING, "\n".join(added) or NOTHING


def _compare_engine_audio(expected: Sequence[RecordedFrame], outcome: Outcome) -> Iterator[Difference]:
    where, silent, position = "audio to engine", 0, 0
    came = b"".join(frame.content.audio for frame in outcome.to_engine if isinstance(frame.content, AudioFrame))
    for frame in expected:
        if frame.content == SILENCE:
            silent += 1
        elif isinstance(frame.content, AudioChecksum):
            piece = came[position : position + frame.content.size]
            if zlib.crc32(piece) != frame.content.crc:
                old, new = (str(_item(one, 0.0, None, frozenset())) for one in (frame.content, AudioFrame(piece)))
                yield Difference(where, old, new if piece else NOTHING, frame.line, frame.at)
                return  # everything after it is shifted
            position += len(piece)
    if position < len(came):
        yield Difference(where, "no more audio", f"{len(came) - position} more bytes")
    elif outcome.silent_frames < silent:
        yield Difference(where, f"{silent} frames of silence", f"{outcome.silent_frames}")


# Values that differ with every call


def _lasting(value: Any, foreign: frozenset[str]) -> Any:
    """JSON without stream ids, URL, tokens and times, without these functions of the agent and their results."""
    match value:
        case str():
            return _SPOKEN_TIME.sub(_MASKED, value)
        case list():
            return [_lasting(part, foreign) for part in value]
        case dict():
            masked = {"endpoint"}  # the gateway's URL and a token for one call
            if str(value.get("name")) in foreign:
                masked |= {"content", "response"}
            lasting = {key: part for key, part in value.items() if key not in ("streamSid", "stream_id")}
            if isinstance(functions := value.get("functions"), list):
                lasting["functions"] = [function for function in functions if function.get("name") not in foreign]
            return {key: _MASKED if key in masked else _lasting(part, foreign) for key, part in lasting.items()}
        case _:
            return value


def _masked_document(text: str) -> str:
    return _DOCUMENT_TIME.sub(_MASKED, _DOCUMENT_LINES.sub(rf"\1 {_MASKED}", text))
