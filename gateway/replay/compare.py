"""
Compares a played call with its recording, turn by turn.

Audio is compared byte for byte between two messages, regardless of how it was cut into frames. Values that differ with
every call are left out: stream ids, the gateway's URL, dates and times, the session id, the duration of the call.
"""

import difflib
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from gateway.audio import BYTES_PER_SECOND, FRAME_BYTES
from gateway.finalization.document import archive_text, call_document, redact_turns, spoken_lines
from gateway.finalization.summary.call_summary import CallSummary
from gateway.memory.summary_parser import without_fact
from gateway.replay.player import GATEWAY_ENDS, SILENCE, Outcome, StoredCall
from gateway.replay.recording import AudioChecksum, Content, RecordedFrame, RecordedNote, Recording
from gateway.session import EndReason
from gateway.simulate.frames import AudioFrame, JsonFrame, ReceivedFrame, TextFrame

NOTHING: Final = "nothing"
CONTEXT: Final = 2
"""Unchanged lines that are shown around a changed one."""
_AFTER_HANGUP: Final = 1.0
"""Seconds of caller audio that may still be on their way when the gateway hangs up."""
_MASKED: Final = "…"
# "Friday, 6 February 2026, 11:15 PM, 3 days ago": the format of times in prompts.
_SPOKEN_TIME: Final = re.compile(
    r"\w+day, \d{1,2} \w+ \d{4}, \d{1,2}:\d\d [AP]M(?:, (?:earlier today|yesterday|\d+ (?:day|week|month|year)s ago))?"
)
_DOCUMENT_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d [AP]M")
_DOCUMENT_LINES: Final = re.compile(r"^(\*\*(?:Session|Duration):\*\*) .*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Difference:
    """
    One deviation from the recording. `line` and `at` (seconds since `start`) are None if they do not apply.

    `expected` and `came` are texts of one or more lines; lines that both have are context.
    """

    where: str
    expected: str
    came: str  # the name in `gateway replay --json`
    line: int | None = None
    at: float | None = None
    turn: str = ""
    """The last words before it, and who said them."""
    before: tuple[str, ...] = ()
    """What was the same before it, and after it."""
    after: tuple[str, ...] = ()

    @property
    def diff(self) -> Iterator[str]:
        """Lines of a unified diff: "-" was recorded, "+" came instead, "@@" says where."""
        place = ", ".join(
            filter(None, [self.where, f"line {self.line}" if self.line else "", f"{self.at:.1f} s" if self.at else ""])
        )
        yield f"@@ {place} @@{f' after {self.turn}' if self.turn else ''}"
        yield from (f"  {line}" for line in self.before)
        old, new = ([] if text == NOTHING else text.splitlines() for text in (self.expected, self.came))
        for number, group in enumerate(_grouped(old, new)):
            if number:
                yield "  …"
            yield from group
        yield from (f"  {line}" for line in self.after)

    def __str__(self) -> str:
        return "\n".join(self.diff)


def _grouped(old: Sequence[str], new: Sequence[str]) -> Iterator[list[str]]:
    """Changed lines with their context, as difflib groups them."""
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for group in matcher.get_grouped_opcodes(CONTEXT):
        lines: list[str] = []
        for kind, start, end, came_start, came_end in group:
            if kind == "equal":
                lines += [f"  {line}" for line in old[start:end]]
            else:
                lines += [f"- {line}" for line in old[start:end]]
                lines += [f"+ {line}" for line in new[came_start:came_end]]
        yield lines


def compare(recording: Recording, outcome: Outcome) -> list[Difference]:
    """Differences at the carrier, at the engine, in the gateway's own replies, and in who ended the call."""
    sent = [frame for frame in recording.frames if frame.direction == "to"]
    to_engine = [frame for frame in sent if frame.peer == "engine"]
    # The engine's messages and audio are compared separately, because neither waits for the other.
    messages = [frame for frame in to_engine if not isinstance(frame.content, AudioChecksum)]
    came = [frame for frame in outcome.to_engine if not isinstance(frame.content, AudioFrame)]
    replies = [step.content for step in recording.steps if isinstance(step, RecordedNote) and step.name == "reply"]
    if recording.header.agent.get("has_brain") and not replies:
        came = list(_without_fetched_replies(recording, came))
    comparer = _Comparer(recording)
    differences = [
        *comparer.compare("to the carrier", [frame for frame in sent if frame.peer == "carrier"], outcome.to_carrier),
        *comparer.compare("to the engine", messages, came),
        *_compare_engine_audio(to_engine, outcome, rest=_rest(recording)),
    ]
    for reply, text in zip(replies, outcome.replies, strict=False):
        if reply["text"] != text:
            differences.append(Difference(f"reply to “{reply['said']}”", reply["text"], text or NOTHING))
    gateway_ends = recording.end_reason in GATEWAY_ENDS
    if gateway_ends != outcome.gateway_hung_up and (gateway_ends or recording.end_reason is EndReason.CALLER_HUNG_UP):
        who = {True: "the gateway hangs up", False: "the caller hangs up"}
        differences.append(Difference("end of the call", who[gateway_ends], who[outcome.gateway_hung_up]))
    return differences


def _without_fetched_replies(recording: Recording, came: Iterable[ReceivedFrame]) -> Iterator[ReceivedFrame]:
    """
    The messages to the engine, without the gateway's replies that the recorded engine had fetched.

    For recordings of earlier versions, which do not note requests to the agent's own language model: the simulated
    engine makes none, so the gateway injects its reply.
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
    """Differences in archive and document, as far as the recording has them: some calls leave no document."""
    ended = recording.ended
    if ended is None:
        return []
    pairs = {"transcript": (archive_text(spoken_lines(redact_turns(ended.turns))), stored.archive)}
    if recording.summary is not None:
        pairs["document"] = (
            _masked_document(call_document(ended, recording.summary, None).content),
            _masked_document(_recorded_part(stored.document, recording.summary)),
        )
    return [Difference(where, old, new or NOTHING) for where, (old, new) in pairs.items() if old != new]


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
            case AudioChecksum(size, _):
                return _seconds(size)
            case JsonFrame(fields) if "mark" in fields:
                return f"mark {fields['mark'].get('name')}"
            case JsonFrame(fields):
                titles = (f"type: {self.title}", f"event: {self.title}")
                return "\n".join([self.title, *(f"  {line}" for line in _lines(fields) if line not in titles)])
            case TextFrame(text):
                return f"text {text!r}"


def _lines(value: Any, name: str = "") -> Iterator[str]:
    """A JSON value as indented lines, without brackets and quotes. Lines of a text stay lines."""
    match value:
        case dict() if value:
            if name:
                yield f"{name}:"
            for key, part in value.items():
                yield from (f"{'  ' if name else ''}{line}" for line in _lines(part, str(key)))
        case list() if any(isinstance(part, dict | list) for part in value):
            for number, part in enumerate(value, 1):
                label = part.get("name") if isinstance(part, dict) else None
                yield from _lines(part, f"{name} {label or number}".strip())
        case str() if "\n" in value:
            yield f"{name}:"
            yield from (f"  {line}" for line in value.splitlines())
        case str():
            yield f"{name}: {value}" if name else value
        case _:
            text = orjson.dumps(value).decode()
            yield f"{name}: {text}" if name else text


def _items(frames: Iterable[RecordedFrame | ReceivedFrame]) -> list[_Item]:
    items: list[_Item] = []
    for frame in frames:
        item = _item(frame.content, frame.at, frame.line if isinstance(frame, RecordedFrame) else None)
        last = items[-1] if items else None
        if isinstance(item.content, AudioChecksum) and last is not None and isinstance(last.content, AudioChecksum):
            items[-1] = _item(joined(last.content, item.content), last.at, last.line)
        else:
            items.append(item)
    return items


def _item(content: Content, at: float, line: int | None) -> _Item:
    match content:
        case JsonFrame(fields):
            lasting = _lasting(fields)
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


class _Comparer:
    """Compares what one peer received. A difference is placed after the turn in which it came."""

    def __init__(self, recording: Recording) -> None:
        self._is_complete = recording.ended is not None
        self._turns = [(frame.at, turn) for frame in recording.frames if (turn := _spoken(frame))]

    def compare(
        self, where: str, recorded: Iterable[RecordedFrame], frames: Iterable[ReceivedFrame]
    ) -> Iterator[Difference]:
        expected, came = _items(recorded), _items(frames)
        keys, came_keys = ([item.key for item in items] for items in (expected, came))
        matcher = difflib.SequenceMatcher(None, keys, came_keys, autojunk=False)
        for kind, start, end, came_start, came_end in matcher.get_opcodes():
            old, new = expected[start:end], came[came_start:came_end]
            if kind == "equal" or (end == len(expected) and not self._is_complete and _goes_on(old, new)):
                continue
            first = (old or new)[0]
            yield Difference(
                where,
                _text(old),
                _text(new, other_than=old),
                old[0].line if old else None,
                first.at,
                next((turn for at, turn in reversed(self._turns) if at <= first.at), ""),
                tuple(str(item).partition("\n")[0] for item in expected[max(start - CONTEXT, 0) : start]),
                tuple(str(item).partition("\n")[0] for item in expected[end : end + CONTEXT]),
            )


def _text(items: Sequence[_Item], other_than: Sequence[_Item] = ()) -> str:
    """One item after the other. Audio that differs from `other_than` in nothing but its sound is marked."""
    known = {str(item) for item in other_than if isinstance(item.content, AudioChecksum)}
    texts = [f"{item} that sounds different" if str(item) in known else str(item) for item in items]
    return "\n".join(texts) or NOTHING


def _goes_on(old: Sequence[_Item], new: Sequence[_Item]) -> bool:
    """Whether this is more of the call than a recording has that was cut off."""
    match [item.content for item in old], [item.content for item in new[:1]]:
        case [], _:
            return True
        case [AudioChecksum(size)], [AudioChecksum(came_size)]:
            return came_size > size
    return False


def _spoken(frame: RecordedFrame) -> str:
    """What was said, if the frame is the text of a turn."""
    match frame:
        case RecordedFrame(
            direction="from", content=JsonFrame({"type": "ConversationText", "content": str(text)} as f)
        ):
            short = text if len(text) <= 50 else f"{text[:49].rstrip()}…"
            return f"{'CALLER' if f.get('role') == 'user' else 'AGENT'}: {short}" if text else ""
    return ""


def _rest(recording: Recording) -> float:
    """
    The bytes of caller audio at the end that are not compared: the gateway had hung up, or the recording was cut off.
    """
    if recording.ended is None:
        return math.inf  # the recording was cut off
    return _AFTER_HANGUP * BYTES_PER_SECOND if recording.end_reason in GATEWAY_ENDS else 0


def _compare_engine_audio(expected: Sequence[RecordedFrame], outcome: Outcome, *, rest: float) -> Iterator[Difference]:
    where, position = "caller's audio to the engine", 0
    came = b"".join(frame.content.audio for frame in outcome.to_engine if isinstance(frame.content, AudioFrame))
    recorded = [frame for frame in expected if isinstance(frame.content, AudioChecksum) and frame.content != SILENCE]
    size = sum(frame.content.size for frame in recorded if isinstance(frame.content, AudioChecksum))
    for frame in recorded:
        assert isinstance(frame.content, AudioChecksum)
        piece = came[position : position + frame.content.size]
        if zlib.crc32(piece) != frame.content.crc:
            if len(piece) == frame.content.size:
                yield Difference(
                    where, f"the recorded audio goes on after {_seconds(position)}", "other audio", frame.line, frame.at
                )
            elif size - position > rest:
                yield Difference(where, _seconds(size), _seconds(position), frame.line, frame.at)
            return  # everything after it is shifted
        position += len(piece)
    silent = sum(frame.content == SILENCE for frame in expected)
    if len(came) - position > rest:
        yield Difference(where, _seconds(position), _seconds(len(came)))
    elif silent - outcome.silent_frames > rest / FRAME_BYTES:
        yield Difference(where, f"{silent} frames of silence", f"{outcome.silent_frames} frames of silence")


def _seconds(size: int) -> str:
    return f"{size / BYTES_PER_SECOND:.2f} s of audio"


# Values that differ with every call


def _lasting(value: Any) -> Any:
    """JSON without stream ids, URL, tokens and times. Functions are sorted: their order has no meaning."""
    match value:
        case str():
            return _SPOKEN_TIME.sub(_MASKED, value)
        case list():
            return [_lasting(part) for part in value]
        case dict():
            lasting = {key: part for key, part in value.items() if key not in ("streamSid", "stream_id")}
            if isinstance(functions := value.get("functions"), list):
                lasting["functions"] = sorted(functions, key=lambda function: str(function.get("name")))
            # the endpoint is the gateway's URL and a token for one call
            return {key: _MASKED if key == "endpoint" else _lasting(part) for key, part in lasting.items()}
        case _:
            return value


def _recorded_part(document: str, summary: CallSummary) -> str:
    """Recordings of earlier versions have no lasting facts; then the document is compared without them."""
    facts = document.partition("### Important Facts\n")[2].partition("\n###")[0].splitlines()
    for fact in facts if not summary.caller_facts else ():
        if fact.removeprefix("- ") not in summary.facts:
            document = without_fact(document, fact.removeprefix("- "))
    return document


def _masked_document(text: str) -> str:
    return _DOCUMENT_TIME.sub(_MASKED, _DOCUMENT_LINES.sub(rf"\1 {_MASKED}", text))
