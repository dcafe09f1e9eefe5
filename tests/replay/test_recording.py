"""Recordings: what the recorder wrote is read back, and what can't be played is refused by file and line."""

import json
import zlib
from pathlib import Path

import pytest

from gateway.calls.recorder import RecordingDirectory
from gateway.errors import RecordingError
from gateway.replay.recording import AudioChecksum, RecordedEngine, RecordedNote, read
from gateway.session import EndReason
from gateway.simulate.frames import AudioFrame, JsonFrame, TextFrame
from tests.replay.calls import changed_recording

HEADER = {
    "format": 1,
    "carrier": "twilio",
    "caller": "+12025550143",
    "called": "+12025550100",
    "session": "voice-session:1",
    "started_at": "2026-02-06T23:15:00+00:00",
    "agent": {"name": "maya", "prompt": "You are Maya.", "speak": {}},
}
CALL = {"t": 0.0, "note": "call", "content": HEADER}


def written(folder: Path, *lines: object) -> Path:
    path = folder / "call.jsonl"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def problem(path: Path) -> str:
    with pytest.raises(RecordingError) as raised:
        read(path)
    return str(raised.value).replace(str(path), "FILE")


def test_what_was_recorded_is_read(tmp_path):
    room = RecordingDirectory(tmp_path)
    recorder = room.record("call")
    recorder.note("call", HEADER)
    recorder.from_engine(b'{"type":"Welcome"}')
    recorder.audio_from_engine(b"\x01\x02")
    recorder.to_carrier(b'{"event":"media","media":{"payload":"AQI="}}')
    recorder.from_carrier(b"not json")
    recorder.close()
    room.close()

    recording = read(tmp_path / "call.jsonl")

    assert [(step.line, step.direction, step.peer, step.content) for step in recording.frames] == [
        (2, "from", "engine", JsonFrame({"type": "Welcome"})),
        (3, "from", "engine", AudioFrame(b"\x01\x02")),
        (4, "to", "carrier", AudioChecksum(2, zlib.crc32(b"\x01\x02"))),
        (5, "from", "carrier", TextFrame("not json")),
    ]


def test_tokens_are_not_recorded(tmp_path):
    room = RecordingDirectory(tmp_path)
    recorder = room.record("call")
    recorder.note("call", HEADER)
    recorder.from_carrier(b'{"event":"start","start":{"customParameters":{"token":"very secret"}}}')
    recorder.close()
    room.close()
    assert "very secret" not in (tmp_path / "call.jsonl").read_text()


def test_shipped_call_tells_its_end():
    recording = read(Path(__file__).parent.parent / "recordings" / "goodbye.jsonl")
    assert recording.header.caller == "+12025550143"
    assert recording.end_reason is EndReason.AGENT_HUNG_UP
    assert recording.ended.turns[0].text == "Harbour Street Bicycles, this is Maya. How can I help you?"
    assert recording.summary.written_by == "extractive"


def test_cut_last_line_is_tolerated(tmp_path):
    path = written(tmp_path, CALL, {"t": 0.1, "to": "carrier", "frame": {"event": "clear"}})
    path.write_bytes(path.read_bytes() + b'{"t": 0.2, "to": "car')
    recording = read(path)
    assert len(recording.frames) == 1
    assert recording.warning == f"{path}: the recording is cut off before the end of the call"


def test_missing_file_is_named(tmp_path):
    assert problem(tmp_path / "none.jsonl") == "FILE can't be read: No such file or directory"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], "FILE is empty; RECORD_DIR is where the gateway writes recorded calls"),
        (["hello"], "FILE, line 1: not JSON, so not a recorded call; RECORD_DIR is where the gateway writes them"),
        ([[1]], "FILE, line 1: not a JSON object"),
        (
            [{"t": 0, "from": "carrier", "frame": {}}],
            "FILE, line 1: not a recorded call; RECORD_DIR is where the gateway writes them",
        ),
        (
            [{"note": "call", "content": {"format": 7}}],
            "FILE, line 1: format 7 is not known; update this gateway",
        ),
        ([{"note": "call", "content": HEADER | {"carrier": "pigeon"}}], "FILE, line 1: carrier 'pigeon' is not known"),
        (
            [{"note": "call", "content": HEADER | {"agent": {"name": "maya"}}}],
            "FILE, line 1: the call's header is incomplete: 'agent.prompt'",
        ),
        ([CALL, "{"], "FILE, line 2: not JSON"),
        ([CALL, {"to": "carrier", "frame": {}}], "FILE, line 2: it has no 't'"),
        ([CALL, {"t": 0, "to": "moon"}], "FILE, line 2: neither from nor to carrier or engine"),
        ([CALL, {"t": 0, "to": "carrier"}], "FILE, line 2: no frame, audio or text"),
        (
            [CALL, {"t": 0, "from": "carrier", "audio": "AQI="}],
            "FILE, line 2: sound from the carrier is not recorded like this",
        ),
        ([CALL, {"t": 0, "note": "ended", "content": {}}], "FILE, line 2: the note 'ended' is incomplete"),
        ([CALL, {"t": 0, "note": "reply", "content": {}}], "FILE, line 2: the note 'reply' is incomplete"),
        ([CALL, {"note": "stream", "content": {}}], "FILE, line 2: the note 'stream' is incomplete"),
        (
            [CALL, {"t": 0, "note": "action", "content": {"do": "end", "reason": "bored"}}],
            "FILE, line 2: this version knows no end reason 'bored'",
        ),
        (
            [CALL, {"t": 0, "note": "action", "content": {"do": "answered by", "report": 5, "message": ""}}],
            "FILE, line 2: this version knows no report 5",
        ),
        (
            [{"note": "call", "content": HEADER | {"engines": [{"speed": 1}]}}],
            "FILE, line 1: the call's header is incomplete: "
            "RecordedEngine.__init__() got an unexpected keyword argument 'speed'",
        ),
        (
            [{"note": "call", "content": HEADER | {"turns_before": 2}}],
            "FILE, line 1: it begins in the middle of a call that another node had first",
        ),
        (
            [CALL | {"content": CALL["content"] | {"called": 5}}],
            "FILE, line 1: the call's header is incomplete: 5 is not text",
        ),
    ],
)
def test_unplayable_file_names_its_line(tmp_path, lines, expected):
    assert problem(written(tmp_path, *lines)) == expected


def test_notes_of_a_moment_stand_between_frames(tmp_path):
    frame = {"t": 0.2, "to": "carrier", "frame": {"event": "clear"}}
    note = {"t": 0.1, "note": "action", "content": {"do": "say", "text": "Hello."}}
    recording = read(written(tmp_path, CALL, note, frame))
    assert recording.steps == (RecordedNote(2, 0.1, "action", {"do": "say", "text": "Hello."}), *recording.frames)
    assert len(recording.frames) == 1


@pytest.mark.parametrize(
    ("brain", "think", "has_llm"),
    [
        (False, {"endpoint": "…"}, False),
        (False, [{"endpoint": "…"}, {}], False),
        (True, {"endpoint": "…"}, True),
        (False, {}, True),
    ],
)
def test_older_recording_shows_whether_its_engine_had_a_model(tmp_path, brain, think, has_llm):
    header = HEADER | {"agent": HEADER["agent"] | {"has_brain": brain}}
    settings = {"t": 0, "to": "engine", "frame": {"type": "Settings", "agent": {"think": think}}}
    recording = read(written(tmp_path, {"note": "call", "content": header}, settings))
    assert recording.header.engines == (RecordedEngine("deepgram", has_llm),)


def test_unknown_note_is_left_out(tmp_path):
    recording = read(written(tmp_path, CALL, {"t": 0, "note": "weather", "content": "sunny"}))
    assert recording.frames == ()
    assert recording.ended is None


def test_older_recordings_have_the_identity_of_the_session(tmp_path):
    """Without `identity` in the header it is that of the ended call, and that of the number in one cut off before."""

    def older(line):
        if line.get("note") == "call":
            line["content"].pop("identity", None)
        if line.get("note") == "ended":
            line["content"]["caller"] = "sip_header:x-customer-id:8812"
        return line

    assert changed_recording("goodbye", tmp_path, older).header.identity == "sip_header:x-customer-id:8812"
    cut_off = changed_recording("goodbye", tmp_path, lambda line: None if line.get("note") == "ended" else older(line))
    assert cut_off.header.identity == cut_off.header.caller
