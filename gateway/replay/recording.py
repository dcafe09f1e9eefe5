"""
Reads a recorded call. One JSON object per line, in the order in which the gateway saw the frames:

    {"t": 0.0, "note": "call", "content": {"format": 1, "carrier": …, "caller": …, "agent": {…}, …}}    always first
    {"t": 0.1, "from": "engine", "frame": {"type": "Welcome", …}}     a JSON frame; tokens are replaced by "…"
    {"t": 0.2, "from": "engine", "audio": "…"}                        audio from the engine, base64
    {"t": 0.2, "to": "carrier", "bytes": 160, "crc": 907060870}       audio the gateway sent on
    {"t": 0.3, "from": "carrier", "text": "…"}                        a frame that was not JSON

`t` is seconds since `start`; `start` itself holds the token and is left out. Notes about the whole call are "memory"
(past calls, facts and topics found in time for the first prompt), "late memory" (the same including what arrived during
the call), "ended" (the session with its turns) and "summary". Notes of a moment are "engine" (an attempt to connect to
it), "engine lost", "reply" (of the gateway to a language model request of the engine), "action" (of a tool or an
operator), "stream lost", and "stream" (another media stream of the same call). `gateway.calls.recorder` writes the
file; with a key, several lines are one encrypted line (`gateway.calls.recording_files`).
"""

import base64
import binascii
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

import orjson
from pydantic import TypeAdapter

from gateway.calls.recorder import FORMAT
from gateway.calls.recording_files import PLAIN, RecordingCipher
from gateway.engines.deepgram_codec import first_think
from gateway.errors import RecordingError
from gateway.finalization.summary.call_summary import CallSummary
from gateway.memory.facts import Fact
from gateway.memory.identity import only_person
from gateway.memory.pinned_topics import PinnedTopic
from gateway.memory.summary_parser import PastCall
from gateway.session import EndReason, VoiceSession
from gateway.simulate.frames import AudioFrame, Frame, JsonFrame, TextFrame
from gateway.telephony.machine_detection import AnsweredBy

Peer = Literal["carrier", "engine"]
Direction = Literal["from", "to"]
Fields = Mapping[str, Any]

_NO_RECORDING: Final = "not a recorded call; RECORD_DIR is where the gateway writes them"


@dataclass(frozen=True, slots=True)
class AudioChecksum:
    """Audio the gateway sent, as length and CRC-32."""

    size: int
    crc: int


Content = Frame | AudioChecksum

# A carrier's audio is inside its JSON frames; audio the gateway sent is recorded as a checksum.
_KINDS: Final[Mapping[tuple[Direction, Peer], tuple[type[Content], ...]]] = {
    ("from", "carrier"): (JsonFrame, TextFrame),
    ("from", "engine"): (JsonFrame, TextFrame, AudioFrame),
    ("to", "carrier"): (JsonFrame, TextFrame, AudioChecksum),
    ("to", "engine"): (JsonFrame, TextFrame, AudioChecksum),
}


@dataclass(frozen=True, slots=True)
class RecordedFrame:
    """One frame of the call. `line` is its line in the file."""

    line: int
    at: float
    direction: Direction
    peer: Peer
    content: Content


@dataclass(frozen=True, slots=True)
class RecordedNote:
    """Something that happened at one moment of the call, other than a frame."""

    line: int
    at: float
    name: str
    content: Fields


@dataclass(frozen=True, slots=True)
class RecordedEngine:
    """A voice engine of the call."""

    name: str = "deepgram"
    has_llm: bool = True


@dataclass(frozen=True, slots=True)
class CallHeader:
    """What is needed to place the call again. `caller` is empty for an anonymous caller."""

    carrier: str
    caller: str
    called: str
    session_id: str
    started_at: datetime
    agent: Fields
    engines: tuple[RecordedEngine, ...] = ()
    """In order of preference; none in recordings of earlier versions."""
    trust: str = "everything"
    """The trust level of the caller when the call began."""
    personas: Mapping[str, str] = field(default_factory=dict)
    longest_call: float = 0.0
    """Seconds; 0 for no limit."""
    identity: str = ""
    """The key of the caller's memory in the first prompt; empty if nothing was kept."""


@dataclass(frozen=True, slots=True)
class RecordedMemory:
    """What the gateway remembered of the caller."""

    calls: tuple[PastCall, ...] = ()
    facts: tuple[Fact, ...] = ()
    pins: tuple[PinnedTopic, ...] = ()


_MEMORY: Final = TypeAdapter(RecordedMemory)


@dataclass(frozen=True, slots=True)
class Recording:
    """One recorded call. `ended` and `summary` are None if the recording stops before them."""

    path: Path
    header: CallHeader
    steps: tuple[RecordedFrame | RecordedNote, ...]
    """All frames, and notes of a moment, in order."""
    memory: RecordedMemory = RecordedMemory()
    late_memory: Mapping[str, RecordedMemory] = field(default_factory=dict)
    """By identity: the memory including what reached the engine during the call."""
    ended: VoiceSession | None = None
    summary: CallSummary | None = None
    warning: str = ""

    @property
    def frames(self) -> tuple[RecordedFrame, ...]:
        return tuple(step for step in self.steps if isinstance(step, RecordedFrame))

    @property
    def seconds(self) -> float:
        return self.steps[-1].at if self.steps else 0.0

    @property
    def end_reason(self) -> EndReason | None:
        return self.ended.end_reason if self.ended is not None else None

    @property
    def identity(self) -> str:
        """The key of the caller's memory as of the end of the call: a function may have identified the caller."""
        return self.ended.caller if self.ended is not None else self.header.identity

    @property
    def stream_id(self) -> str:
        """The recorded stream's id, which the carrier repeats in later frames."""
        frames = (frame.content.fields for frame in self.frames if isinstance(frame.content, JsonFrame))
        ids = (frame.get("streamSid") or frame.get("stream_id") for frame in frames)
        return next((str(found) for found in ids if found), "stream")


def read(path: Path, cipher: RecordingCipher = PLAIN) -> Recording:
    """Read a file. RecordingError, with file and line, for anything that can't be played."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RecordingError(f"{path} can't be read: {error.strerror}") from None
    if not content:
        raise RecordingError(f"{path} is empty; RECORD_DIR is where the gateway writes recorded calls")
    lines = list(_lines(path, content, cipher))
    if not lines or lines[0][1].get("note") != "call":
        raise RecordingError(f"{path}, line 1: {_NO_RECORDING}")
    notes = _notes(path, lines)
    warning = "" if content.endswith(b"\n") else f"{path}: the last line is cut off and was left out"
    header = _header(path, lines[0][1].get("content"))
    steps = tuple(step for number, fields in lines if (step := _step(path, number, fields)) is not None)
    if not header.engines:
        header = replace(header, engines=(RecordedEngine(has_llm=_has_llm(header, steps)),))
    memory, ended = notes.get("memory", RecordedMemory()), notes.get("ended")
    if ended is not None and not any(map(_identified_as, steps)):  # earlier versions do not note it
        header = replace(header, identity=ended.caller)
    header = replace(header, identity=_first_identity(header, steps))
    if ended is not None:
        ended.known_name = ended.known_name or _remembered_name(lines, memory)
    return Recording(
        path=path,
        header=header,
        steps=steps,
        memory=memory,
        late_memory=_late_memory(header, steps),
        ended=ended,
        summary=notes.get("summary"),
        warning=warning if ended is not None else f"{path}: the recording is cut off before the end of the call",
    )


def _lines(path: Path, content: bytes, cipher: RecordingCipher) -> Iterator[tuple[int, dict[str, Any]]]:
    stored = content.splitlines(keepends=True)
    for number, line in enumerate(cipher.open(stored, path) if b"\n" in content else [content], 1):
        try:
            fields = orjson.loads(line)
        except orjson.JSONDecodeError:
            problem = f"not JSON, so {_NO_RECORDING}" if number == 1 else "not JSON"
            raise RecordingError(f"{path}, line {number}: {problem}") from None
        if not isinstance(fields, dict):
            raise RecordingError(f"{path}, line {number}: not a JSON object")
        yield number, fields


def _header(path: Path, content: Any) -> CallHeader:
    where = f"{path}, line 1"
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        found = content.get("format") if isinstance(content, dict) else None
        newer = isinstance(found, int) and found > FORMAT
        todo = "update this gateway" if newer else f"this gateway plays format {FORMAT}"
        raise RecordingError(f"{where}: format {found!r} is not known; {todo}")
    if content.get("turns_before"):
        raise RecordingError(f"{where}: it begins in the middle of a call that another node had first")
    if content.get("carrier") not in ("twilio", "telnyx", "softphone"):
        raise RecordingError(f"{where}: carrier {content.get('carrier')!r} is not known")
    try:
        for name in ("name", "prompt", "speak"):
            if name not in content["agent"]:
                raise KeyError(f"agent.{name}")
        return CallHeader(
            carrier=content["carrier"],
            caller=_text(content["caller"]),
            called=_text(content["called"]),
            session_id=_text(content["session"]),
            started_at=datetime.fromisoformat(content["started_at"]),
            agent=dict(content["agent"]),
            engines=tuple(RecordedEngine(**engine) for engine in content.get("engines", ())),
            trust=_text(content.get("trust", "everything")),
            personas=dict(content.get("personas", {})),
            longest_call=float(content.get("longest_call", 0)),
            identity=_text(content.get("identity", content["caller"])),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RecordingError(f"{where}: the call's header is incomplete: {error}") from None


def _has_llm(header: CallHeader, steps: Iterable[RecordedFrame | RecordedNote]) -> bool:
    """Whether the engine of an older recording had a language model: one without its own was given the gateway's."""
    for step in steps:
        match step:
            case RecordedFrame(content=JsonFrame({"type": "Settings"} as settings)):
                return bool(header.agent.get("has_brain")) or "endpoint" not in first_think(settings)
    return True


def _identified_as(step: RecordedFrame | RecordedNote) -> str:
    """The identity that a function has found out; empty if the step is something else."""
    match step:
        case RecordedNote(name="action", content={"do": "identify", "caller": str(caller)}):
            return caller
    return ""


def _first_identity(header: CallHeader, steps: Iterable[RecordedFrame | RecordedNote]) -> str:
    """That of the first prompt: a function may identify the caller before it leaves."""
    identity = header.identity
    for step in steps:
        match step:
            case RecordedFrame(content=JsonFrame({"type": "Settings"})):
                break
        identity = _identified_as(step) or identity
    return identity


def _late_memory(header: CallHeader, steps: Iterable[RecordedFrame | RecordedNote]) -> dict[str, RecordedMemory]:
    identity, late = header.identity, {}
    for step in steps:
        identity = _identified_as(step) or identity
        if isinstance(step, RecordedNote) and step.name == "late memory":
            late[identity] = _memory(step.content)
    return late


def _remembered_name(lines: Iterable[tuple[int, Fields]], memory: RecordedMemory) -> str:
    """The caller's name in recordings made before sessions kept it. Today's keep it once the caller has spoken."""
    if any(fields.get("note") == "ended" and "known_name" in fields["content"] for _, fields in lines):
        return ""
    return only_person([*(fact.person for fact in memory.facts), *(call.caller_name for call in memory.calls)])


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _notes(path: Path, lines: Sequence[tuple[int, Fields]]) -> dict[str, Any]:
    """The notes after the header, parsed; unknown notes are ignored."""
    notes: dict[str, Any] = {}
    for number, fields in lines[1:]:
        reader = _NOTES.get(str(fields.get("note", "")))
        try:
            # Each stream of a call notes its memory; the first note is that of the greeting.
            if reader is not None and not (fields["note"] == "memory" and "memory" in notes):
                notes[fields["note"]] = reader(fields["content"])
        except (KeyError, TypeError, ValueError, AttributeError):
            raise RecordingError(f"{path}, line {number}: the note {fields['note']!r} is incomplete") from None
    return notes


def _memory(content: Any) -> RecordedMemory:
    """Older recordings hold a list of past calls only."""
    return _MEMORY.validate_python(content if isinstance(content, dict) else {"calls": content})


_NOTES: Final[Mapping[str, Callable[[Any], Any]]] = {
    "memory": _memory,
    "late memory": _memory,
    "ended": VoiceSession.from_json,
    "summary": CallSummary.from_json,
}
_MOMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "engine": ("name",),
    "engine lost": ("reason", "refused"),
    "reply": ("said", "text"),
    "action": ("do",),
    "late memory": (),
    "stream lost": ("reason",),
    "stream": (),
}
"""The required fields of each note of a moment."""


def _step(path: Path, number: int, fields: Fields) -> RecordedFrame | RecordedNote | None:
    if "note" not in fields:
        return _frame(path, number, fields)
    if fields["note"] not in _MOMENTS:
        return None
    content = fields.get("content")
    missing = [name for name in _MOMENTS[fields["note"]] if not isinstance(content, dict) or name not in content]
    if missing or not isinstance(fields.get("t"), int | float):
        raise RecordingError(f"{path}, line {number}: the note {fields['note']!r} is incomplete")
    note = RecordedNote(number, fields["t"], fields["note"], dict(content or {}))
    match note.name, note.content:
        case "action", {"do": "end", **rest} if rest.get("reason") not in [*EndReason]:
            raise RecordingError(f"{path}, line {number}: this version knows no end reason {rest.get('reason')!r}")
        case "action", {"do": "answered by", **rest} if rest.get("report") not in [*AnsweredBy]:
            raise RecordingError(f"{path}, line {number}: this version knows no report {rest.get('report')!r}")
    return note


def _frame(path: Path, number: int, fields: Fields) -> RecordedFrame:
    direction: Direction = "from" if "from" in fields else "to"
    peer = fields.get(direction)
    try:
        if peer not in ("carrier", "engine"):
            raise ValueError("neither from nor to carrier or engine")
        content = _content(fields)
        if not isinstance(content, _KINDS[direction, peer]):
            raise ValueError(f"sound {direction} the {peer} is not recorded like this")
        return RecordedFrame(number, float(fields["t"]), direction, peer, content)
    except KeyError as missing:
        raise RecordingError(f"{path}, line {number}: it has no {missing}") from None
    except (TypeError, ValueError, binascii.Error) as error:
        raise RecordingError(f"{path}, line {number}: {error}") from None


def _content(fields: Fields) -> Content:
    match fields:
        case {"frame": dict(frame)}:
            return JsonFrame(frame)
        case {"audio": str(audio)}:
            return AudioFrame(base64.b64decode(audio, validate=True))
        case {"bytes": int(size), "crc": int(crc)}:
            return AudioChecksum(size, crc)
        case {"frame": value}:
            return TextFrame(orjson.dumps(value).decode())
        case {"text": str(text)}:
            return TextFrame(text)
        case _:
            raise ValueError("no frame, audio or text")
