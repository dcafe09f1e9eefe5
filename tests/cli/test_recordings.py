"""`gateway recordings` from outside: what it prints, and how it exits."""

import shutil

import pytest

from gateway.cli.main import main
from tests.replay.calls import RECORDINGS


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RECORD_DIR", "recordings")
    (tmp_path / "recordings").mkdir()
    shutil.copy(RECORDINGS / "engine-refused.jsonl", tmp_path / "recordings" / "one.jsonl")
    return tmp_path / "recordings"


def new_key(capsys):
    assert main(["recordings", "key"]) == 0
    return capsys.readouterr().out.split()[-1]


def test_key_is_rotated_and_recordings_still_play(folder, monkeypatch, capsys):
    """The steps of docs/replay.md: a key, a second one before it, and the first one left out."""
    first, second = new_key(capsys), new_key(capsys)
    for keys in (first, f"{second}, {first}", second):
        monkeypatch.setenv("RECORD_KEY", keys)
        assert main(["recordings", "rotate"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "1 recording encrypted with the first key",
        "1 recording encrypted with the first key",
        "0 recordings encrypted with the first key",
    ]
    assert b"caller" not in (folder / "one.jsonl").read_bytes()
    assert main(["replay", "recordings/one.jsonl"]) == 0
    assert capsys.readouterr().out.endswith(" s call, as recorded\n")


def test_replay_without_the_key_is_one_line(monkeypatch, capsys):
    monkeypatch.setenv("RECORD_KEY", new_key(capsys))
    assert main(["recordings", "rotate"]) == 0
    monkeypatch.delenv("RECORD_KEY")
    assert main(["replay", "recordings/one.jsonl"]) == 2
    problem = "recordings/one.jsonl is encrypted; set RECORD_KEY to the key that it was recorded with"
    assert capsys.readouterr().err == f"gateway: {problem}\n"


def test_lost_key_is_named(monkeypatch, capsys):
    for exit_code in (0, 1):
        monkeypatch.setenv("RECORD_KEY", new_key(capsys))
        assert main(["recordings", "rotate"]) == exit_code
    problem = "recordings/one.jsonl is damaged, or encrypted with a key that RECORD_KEY does not name"
    assert capsys.readouterr().err == f"gateway: {problem}\n"


@pytest.mark.parametrize(
    "name, value, problem",
    [
        ("RECORD_KEY", "", "RECORD_KEY is not set; make a key with: gateway recordings key"),
        ("RECORD_DIR", "", "RECORD_DIR is not set; set it to the folder of the recordings"),
        (
            "RECORD_KEY",
            "secret",
            "RECORD_KEY is not a key, or several with commas between them; make one with: gateway recordings key",
        ),
    ],
)
def test_missing_setting_is_one_line(monkeypatch, capsys, name, value, problem):
    monkeypatch.setenv("RECORD_KEY", new_key(capsys))
    monkeypatch.setenv(name, value)
    assert main(["recordings", "rotate"]) == 2
    assert capsys.readouterr().err == f"gateway: {problem}\n"
