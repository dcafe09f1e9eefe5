import base64
import stat
import threading
import zlib

import orjson
import pytest

from gateway.calls.recorder import FORMAT, RecordingDirectory

AUDIO = bytes(range(160))


@pytest.fixture
def recordings(tmp_path):
    recordings = RecordingDirectory(tmp_path / "calls")
    yield recordings
    recordings.close()


def written(recordings, recorder):
    """The lines of the recording, without their times."""
    recordings.close()
    lines = [orjson.loads(line) for line in recorder.path.read_bytes().splitlines()]
    return [{name: value for name, value in line.items() if name != "t"} for line in lines]


def frame(**fields):
    return orjson.dumps(fields)


# What is written


def test_notes_are_written(recordings):
    recorder = recordings.record("one")
    recorder.note("call", {"format": FORMAT, "agent": {"numbers": frozenset({"b", "a"})}})
    assert written(recordings, recorder) == [
        {"note": "call", "content": {"format": 1, "agent": {"numbers": ["a", "b"]}}},
    ]


def test_discarded_recording_is_gone(recordings):
    recorder = recordings.record("one")
    recorder.note("call", {})
    recorder.discard()
    recorder.note("ended", {})
    recordings.close()
    assert not recorder.path.exists()


def test_frames_are_written_as_json(recordings):
    recorder = recordings.record("one")
    recorder.from_carrier(frame(event="dtmf", dtmf={"digit": "1"}))
    recorder.to_carrier(frame(event="clear"))
    recorder.from_engine(frame(type="Welcome"))
    recorder.to_engine(frame(type="KeepAlive"))
    assert written(recordings, recorder) == [
        {"from": "carrier", "frame": {"event": "dtmf", "dtmf": {"digit": "1"}}},
        {"to": "carrier", "frame": {"event": "clear"}},
        {"from": "engine", "frame": {"type": "Welcome"}},
        {"to": "engine", "frame": {"type": "KeepAlive"}},
    ]


def test_received_audio_is_recorded_whole(recordings):
    recorder = recordings.record("one")
    payload = base64.b64encode(AUDIO).decode()
    recorder.from_carrier(frame(event="media", media={"payload": payload}))
    recorder.audio_from_engine(AUDIO)
    assert written(recordings, recorder) == [
        {"from": "carrier", "frame": {"event": "media", "media": {"payload": payload}}},
        {"from": "engine", "audio": payload},
    ]


def test_sent_audio_is_recorded_as_a_checksum(recordings):
    recorder = recordings.record("one")
    recorder.to_carrier(frame(event="media", media={"payload": base64.b64encode(AUDIO).decode()}))
    recorder.audio_to_engine(AUDIO)
    checksum = {"bytes": 160, "crc": zlib.crc32(AUDIO)}
    assert written(recordings, recorder) == [{"to": "carrier", **checksum}, {"to": "engine", **checksum}]


@pytest.mark.parametrize("data, text", [(b"{not json", "{not json"), (b"\xff", "�"), (b"", "")])
def test_frame_that_is_not_json_is_text(recordings, data, text):
    recorder = recordings.record("one")
    recorder.from_carrier(data)
    assert written(recordings, recorder) == [{"from": "carrier", "text": text}]


def test_secrets_are_left_out(recordings):
    recorder = recordings.record("one")
    recorder.from_carrier(
        frame(event="start", start={"customParameters": {"Token": "hunter2"}, "x-telnyx-streaming-auth-token": "h2"})
    )
    recorder.to_engine(frame(agent={"think": [{"endpoint": {"url": "u", "headers": {"authorization": "hunter2"}}}]}))
    recorder.note("call", ({"authorization": "hunter2"},))
    start, settings, note = written(recordings, recorder)
    assert start["frame"]["start"] == {"customParameters": {"Token": "…"}, "x-telnyx-streaming-auth-token": "…"}
    assert settings["frame"]["agent"]["think"] == [{"endpoint": {"url": "u", "headers": "…"}}]
    assert note["content"] == [{"authorization": "…"}]


def test_times_count_from_the_start(recordings):
    recorder = recordings.record("one")
    recorder.note("first", 1)
    recorder.note("second", 2)
    recordings.close()
    first, second = (orjson.loads(line)["t"] for line in recorder.path.read_bytes().splitlines())
    assert 0 <= first <= second < 30


# Files


def test_folder_and_file_are_private(recordings, tmp_path):
    recorder = recordings.record("one")
    recorder.note("call", {})
    recordings.close()
    assert recorder.path == tmp_path / "calls" / "one.jsonl"
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (recorder.path.parent, recorder.path)]
    assert modes == [0o700, 0o600]


def test_calls_do_not_mix(recordings):
    first, second = recordings.record("one"), recordings.record("two")
    first.note("call", 1)
    second.note("call", 2)
    first.close()
    second.note("ended", 2)
    assert written(recordings, second) == [{"note": "call", "content": 2}, {"note": "ended", "content": 2}]
    assert written(recordings, first) == [{"note": "call", "content": 1}]


def test_broken_recording_does_not_end_the_others(recordings, caplog):
    first, second = recordings.record("no such folder/one"), recordings.record("two")
    for recorder in (first, second, first, second):
        recorder.note("call", 1)
    assert written(recordings, second) == [{"note": "call", "content": 1}] * 2
    (record,) = caplog.records
    assert (record.getMessage(), record.file) == ("recording given up", "one.jsonl")


def test_closing_writes_what_is_queued(recordings):
    recorder = recordings.record("one")
    for number in range(5000):
        recorder.note("call", number)
    assert [line["content"] for line in written(recordings, recorder)] == list(range(5000))


def test_empty_recording_leaves_no_file(recordings):
    recorder = recordings.record("one")
    recorder.close()
    recordings.close()
    assert not recorder.path.exists()


def test_no_folder_means_no_recording():
    before = threading.active_count()
    recordings = RecordingDirectory(None)
    recorder = recordings.record("one")
    recorder.from_carrier(b"")
    recorder.note("call", {})
    recorder.close()
    assert threading.active_count() == before
    recordings.close()


# Until the caller agrees


def test_held_recording_is_written_when_it_starts(recordings):
    recorder = recordings.record("one", held=True)
    recorder.note("call", 1)
    assert not list(recorder.path.parent.iterdir())
    recorder.start()
    recorder.note("ended", 2)
    assert written(recordings, recorder) == [{"note": "call", "content": 1}, {"note": "ended", "content": 2}]


@pytest.mark.parametrize("end", ["close", "discard"])
def test_held_recording_leaves_nothing(recordings, end):
    recorder = recordings.record("one", held=True)
    recorder.note("call", 1)
    getattr(recorder, end)()
    recorder.start()
    recorder.note("ended", 2)
    recorder.close()
    recordings.close()
    assert not list(recorder.path.parent.iterdir())
