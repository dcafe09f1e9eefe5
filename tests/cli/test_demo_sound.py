"""Which file `gateway demo` writes its sound to, and what is in it."""

import os
import stat
import wave
from pathlib import Path

import numpy as np
import pytest

from gateway.cli.demo_sound import save_sound, sound_path
from gateway.errors import SettingsError
from gateway.web.dashboard.recordings import StereoRecording

CALL = StereoRecording(b"\x00" * 800, b"\xff" * 800)


def stereo_samples(path):
    with wave.open(str(path)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (2, 2, 8000)
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").reshape(-1, 2)


def test_calls_follow_each_other_in_the_file(tmp_path):
    calls = [StereoRecording(b"\x00" * 800, b"\xff" * 800), StereoRecording(b"\xff" * 400, b"\x00" * 400)]
    text = save_sound(calls, tmp_path / "both.wav")
    samples = stereo_samples(tmp_path / "both.wav")
    assert text == f"Sound of both calls: {tmp_path / 'both.wav'} (0:01, caller left, agent right)."
    assert len(samples) == 800 + 8000 + 400
    assert np.flatnonzero(samples[:, 0]).tolist() == list(range(800))
    assert np.flatnonzero(samples[:, 1]).tolist() == list(range(8800, 9200))


def test_demo_replaces_its_own_file_only(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert sound_path(None) == Path("demo.wav")
    save_sound([CALL], Path("demo.wav"))
    assert sound_path(None) == Path("demo.wav")
    Path("demo.wav").write_bytes(CALL.wav(0, CALL.wav_bytes))  # another program's
    assert sound_path(None) == Path("demo-2.wav")
    Path("demo-2.wav").symlink_to("missing/elsewhere.wav")
    assert sound_path(None) == Path("demo-3.wav")


def test_chosen_file_is_replaced(tmp_path):
    (tmp_path / "mine.wav").write_bytes(b"mine")
    assert sound_path(tmp_path / "mine.wav") == tmp_path / "mine.wav"


def test_other_format_is_refused():
    with pytest.raises(SettingsError) as raised:
        sound_path(Path("demo.mp3"))
    assert str(raised.value) == "--wav is demo.mp3; the sound is saved as WAV, so end the name in .wav"


def test_unwritable_folder_gives_a_temporary_one(monkeypatch):
    monkeypatch.chdir("/proc/self")  # nobody can write there, the superuser included
    path = sound_path(None)
    assert path.name == "demo.wav" and path.is_absolute()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert save_sound([CALL], path).startswith(f"Sound of both calls: {path} (")
    path.unlink()
    os.rmdir(path.parent)


def test_unwritable_file_is_one_sentence(tmp_path):
    path = tmp_path / "folder.wav"
    path.mkdir()
    assert save_sound([CALL], path) == f"The sound could not be saved as {path}: is a directory."
