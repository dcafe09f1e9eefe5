"""Recordings as sound."""

import base64
from datetime import UTC, datetime, timedelta

import orjson
import pytest
from cryptography.fernet import Fernet

from gateway.audio import SILENCE_BYTE, linear_to_mulaw
from gateway.calls.recording_files import RecordingCipher
from gateway.errors import RecordingError
from gateway.settings import Secret
from gateway.web.dashboard.recordings import RecordingCache, read_recording
from tests.web.dashboard.examples import BARGE_IN, RECORDED

LOUD = bytes([linear_to_mulaw(8000), linear_to_mulaw(-8000)]) * 80


def written(path, *records):
    path.write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records))
    return path


def heard(at, audio=LOUD):
    payload = base64.b64encode(audio).decode()
    return {"t": at, "from": "carrier", "frame": {"event": "media", "media": {"payload": payload}}}


def spoken(at, audio=LOUD):
    return {"t": at, "from": "engine", "audio": base64.b64encode(audio).decode()}


def test_frames_lie_where_they_were_heard(tmp_path):
    sound = read_recording(written(tmp_path / "a.jsonl", heard(0.5)))
    assert sound.caller == bytes([SILENCE_BYTE]) * 4000 + LOUD
    assert sound.agent == bytes([SILENCE_BYTE]) * 4160


def test_answer_queues_until_it_is_cleared(tmp_path):
    """The engine sends two seconds at once; after one of them the caller interrupts."""
    clear = {"t": 2.0, "to": "carrier", "frame": {"event": "clear"}}
    sound = read_recording(written(tmp_path / "a.jsonl", spoken(1.0, LOUD * 100), clear, heard(3.0)))
    [agent] = [span for span in sound.spans if span.who == "agent"]
    assert (agent.start, agent.end) == (1.0, 2.0)


def test_short_pauses_are_part_of_speech(tmp_path):
    frames = [heard(at / 50) for at in (*range(0, 10), *range(20, 30), *range(100, 110), 150)]
    sound = read_recording(written(tmp_path / "a.jsonl", *frames))
    assert [(span.start, span.end) for span in sound.spans] == [(0.0, 0.6), (2.0, 2.2)]


def test_peaks_tell_loud_from_silent(tmp_path):
    sound = read_recording(written(tmp_path / "a.jsonl", heard(0.0, LOUD * 50), spoken(1.0, LOUD * 50)))
    caller, agent = sound.peaks(10)
    assert [peak > 0.5 for peak in caller] == [True] * 5 + [False] * 5
    assert [peak > 0.5 for peak in agent] == [False] * 5 + [True] * 5


@pytest.mark.parametrize(
    "content", [b"", b"not json\n", b"[1]\n", b'{"t": "x"}\n', b'{"t": 1, "from": "engine", "audio": "?"}\n']
)
def test_broken_file_is_no_sound(tmp_path, content):
    (tmp_path / "a.jsonl").write_bytes(content)
    sound = read_recording(tmp_path / "a.jsonl")
    assert sound is None or not sound.spans


def test_half_written_line_is_left_out(tmp_path):
    path = written(tmp_path / "a.jsonl", heard(0.0))
    path.write_bytes(path.read_bytes() + b'{"t": 0.1, "from"')
    assert read_recording(path).caller == LOUD


@pytest.mark.parametrize("path", [RECORDED, BARGE_IN])
def test_real_recordings_have_two_voices(path):
    sound = read_recording(path)
    assert {span.who for span in sound.spans} == {"caller", "agent"}
    assert sound.ended is not None


def test_shelf_forgets_what_was_deleted(tmp_path):
    written(tmp_path / "a.jsonl", heard(0.0))
    shelf = RecordingCache(tmp_path)
    assert shelf.load("a") is shelf.load("a") is not None
    (tmp_path / "a.jsonl").unlink()
    assert shelf.load("a") is None and RecordingCache(None).load("a") is None


def test_encrypted_recording_sounds_the_same(tmp_path):
    key = Secret(Fernet.generate_key().decode())
    plain = read_recording(RECORDED)
    path = tmp_path / "a.jsonl"
    path.write_bytes(RecordingCipher(key).seal(RECORDED.read_bytes()))
    assert RecordingCache(tmp_path, RecordingCipher(key)).load("a") == plain
    with pytest.raises(RecordingError, match="a.jsonl is encrypted; set RECORD_KEY"):
        RecordingCache(tmp_path).load("a")


def test_recordings_are_past_retention_after_days(tmp_path):
    now = datetime.now(UTC)
    shelf = RecordingCache(tmp_path, retention_days=7)
    assert shelf.is_past_retention((now - timedelta(days=8)).isoformat())
    assert not shelf.is_past_retention((now - timedelta(days=6)).isoformat())
    assert not RecordingCache(tmp_path, retention_days=0).is_past_retention("2020-01-01T00:00:00+00:00")
    assert not RecordingCache(None, retention_days=7).is_past_retention("2020-01-01T00:00:00+00:00")
