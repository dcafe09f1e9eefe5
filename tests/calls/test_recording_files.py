import os
import stat
import threading
from datetime import UTC, datetime, timedelta

import orjson
import pytest
from cryptography.fernet import Fernet

from gateway.calls.recorder import RecordingDirectory
from gateway.calls.recording_files import PLAIN, RecordingCipher, delete_old, header, rotate
from gateway.errors import RecordingError
from gateway.settings import Secret

NOW = datetime(2026, 2, 6, 23, 15, tzinfo=UTC)
WORDS = b"the caller's words"


def a_key():
    return Fernet.generate_key().decode()


def cipher(*keys):
    return RecordingCipher(Secret(",".join(keys)))


@pytest.fixture
def key():
    return a_key()


def recorded(folder, cipher=PLAIN, name="one", *, started_at=NOW, frames=100):
    """A recording with a header, frames of caller audio and an end. Returns its path."""
    recordings = RecordingDirectory(folder, cipher)
    recorder = recordings.record(name)
    recorder.note("call", {"format": 1, "caller": "+12025550143", "started_at": started_at.isoformat()})
    for number in range(frames):
        recorder.from_carrier(orjson.dumps({"event": "media", "number": number, "media": {"payload": "AAAA"}}))
    recorder.note("ended", WORDS.decode())
    recorder.close()
    recordings.close()
    return recorder.path


def contents(path, cipher):
    return [orjson.loads(line) for line in cipher.lines(path)]


# Encryption


def test_nothing_is_readable_without_the_key(tmp_path, key):
    path = recorded(tmp_path, cipher(key))
    stored = path.read_bytes()
    assert b"+12025550143" not in stored and WORDS not in stored and b"media" not in stored
    with pytest.raises(RecordingError) as raised:
        list(PLAIN.lines(path))
    assert str(raised.value) == f"{path} is encrypted; set RECORD_KEY to the key that it was recorded with"


def test_encrypted_lines_are_the_same_as_plain_ones(tmp_path, key):
    plain = contents(recorded(tmp_path / "plain"), PLAIN)
    encrypted = contents(recorded(tmp_path / "encrypted", cipher(key)), cipher(key))
    assert [line | {"t": 0} for line in encrypted] == [line | {"t": 0} for line in plain]
    assert len(plain) == 102


def test_wrong_key_is_one_line(tmp_path, key):
    path, other = recorded(tmp_path, cipher(key)), a_key()
    with pytest.raises(RecordingError) as raised:
        list(cipher(other).lines(path))
    assert str(raised.value) == f"{path} is damaged, or encrypted with a key that RECORD_KEY does not name"
    assert other not in str(raised.value)


def test_changed_recording_is_refused(tmp_path, key):
    path = recorded(tmp_path, cipher(key))
    stored = bytearray(path.read_bytes())
    stored[60] ^= 1
    path.write_bytes(stored)
    with pytest.raises(RecordingError):
        list(cipher(key).lines(path))


def test_frames_of_a_second_are_one_token(tmp_path, key):
    path = recorded(tmp_path, cipher(key), frames=1000)
    assert path.read_bytes().count(b"\n") < 20  # one for each note, and a few for the time that the test takes
    assert len(contents(path, cipher(key))) == 1002


def test_killed_process_leaves_a_readable_recording(tmp_path, key):
    path = recorded(tmp_path, cipher(key))
    path.write_bytes(path.read_bytes()[:-20])
    [first, *_] = contents(path, cipher(key))
    assert first["content"]["caller"] == "+12025550143"


def test_header_is_read_alone(tmp_path, key):
    path = recorded(tmp_path, cipher(key))
    assert header(path, cipher(key))["started_at"] == NOW.isoformat()
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(ValueError):
        header(tmp_path / "empty.jsonl", PLAIN)


# Rotation


def test_all_recordings_get_the_first_key(tmp_path, key):
    new = a_key()
    paths = [recorded(tmp_path, name="plain"), recorded(tmp_path, cipher(key), name="old")]
    before = [contents(path, cipher(key)) for path in paths]
    result = rotate(tmp_path, cipher(new, key))
    assert (result.encrypted, result.live, result.failed) == (2, 0, ())
    assert [contents(path, cipher(new)) for path in paths] == before
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o600}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old.jsonl", "plain.jsonl"]


def test_second_rotation_changes_nothing(tmp_path, key):
    path = recorded(tmp_path, cipher(key))
    before = path.read_bytes()
    assert rotate(tmp_path, cipher(key, a_key())).encrypted == 0
    assert path.read_bytes() == before


def test_rotation_names_recordings_of_a_lost_key(tmp_path, key):
    path = recorded(tmp_path, cipher(a_key()))
    before = path.read_bytes()
    [problem] = rotate(tmp_path, cipher(key)).failed
    assert problem.startswith(f"{path} is damaged, or encrypted with a key")
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1


def test_rotation_leaves_live_recordings(tmp_path, key):
    recordings = RecordingDirectory(tmp_path)
    recorder = recordings.record("live")
    recorder.note("call", {})
    recordings.record("other").discard()  # deleted when all that came before is written
    written = threading.Event()
    while not recorder.path.is_file() or not recorder.path.stat().st_size:
        written.wait(0.005)
    assert rotate(tmp_path, cipher(key)).live == 1
    recorder.note("ended", {})
    recordings.close()
    assert len(contents(recorder.path, PLAIN)) == 2
    assert rotate(tmp_path, cipher(key)).encrypted == 1


def test_rest_of_a_killed_rotation_is_removed(tmp_path, key):
    recorded(tmp_path, cipher(key))
    (tmp_path / "one.new.jsonl").write_bytes(b"half")
    rotate(tmp_path, cipher(key))
    assert [path.name for path in tmp_path.iterdir()] == ["one.jsonl"]


# Retention


def test_age_is_that_of_the_call(tmp_path, key):
    """A restored backup has a new file time, and the recording of an old call all the same."""
    old = recorded(tmp_path, cipher(key), "old", started_at=NOW - timedelta(days=8))
    new = recorded(tmp_path, name="new")
    os.utime(new, (0, 0))
    assert delete_old(tmp_path, cipher(key), NOW - timedelta(days=7)) == 1
    assert not old.exists() and new.exists()


def test_unreadable_recording_has_the_age_of_its_file(tmp_path, key):
    locked = recorded(tmp_path, cipher(a_key()), "locked")
    (tmp_path / "empty.jsonl").touch()
    assert delete_old(tmp_path, cipher(key), NOW) == 0
    for path in tmp_path.iterdir():
        os.utime(path, (0, 0))
    assert delete_old(tmp_path, cipher(key), NOW) == 2
    assert not locked.exists()


def test_nodes_of_one_folder_delete_together(tmp_path):
    for number in range(200):
        (tmp_path / f"{number}.jsonl").write_bytes(b'{"content":{"started_at":"2026-01-01T00:00:00+00:00"}}\n')
    (tmp_path / "gone.jsonl").symlink_to("deleted")  # listed, and not there when it is opened
    deleted = []
    nodes = [threading.Thread(target=lambda: deleted.append(delete_old(tmp_path, PLAIN, NOW))) for _ in range(4)]
    for node in nodes:
        node.start()
    for node in nodes:
        node.join()
    assert sum(deleted) == 200 and len(deleted) == 4
    assert [path.name for path in tmp_path.iterdir()] == ["gone.jsonl"]
