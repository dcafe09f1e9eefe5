"""`gateway replay` from outside: what it prints, and how it exits."""

import json

import pytest

from gateway.cli.main import main
from tests.replay.calls import RECORDINGS, changed, with_other_words

CALL = RECORDINGS / "engine-refused.jsonl"


def test_equal_call_is_one_line(capsys):
    assert main(["replay", str(CALL)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"{CALL}: ")
    assert printed.endswith(" s call, as recorded\n")


def test_changed_call_shows_the_difference(tmp_path, capsys):
    path = changed("barge-in", tmp_path, with_other_words)
    assert main(["replay", str(path)]) == 1
    printed = capsys.readouterr().out
    assert "--- recorded\n+++ replayed\n@@ transcript @@\n" in printed
    assert "- AGENT: It is eighty dollars, and it takes two days.\n" in printed
    assert "+ AGENT: It is eighteen dollars, and it takes two days.\n" in printed


def test_json_tells_every_file(tmp_path, capsys):
    path = changed("barge-in", tmp_path, with_other_words)
    assert main(["replay", "--json", str(CALL), str(path)]) == 1
    reports = json.loads(capsys.readouterr().out)
    assert [(report["file"], report["equal"]) for report in reports] == [(str(CALL), True), (str(path), False)]
    assert {difference["where"] for difference in reports[1]["differences"]} == {"transcript", "document"}


def test_folder_is_played_file_by_file(tmp_path, capsys):
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_bytes(CALL.read_bytes())
    assert main(["replay", str(tmp_path)]) == 0
    files = [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert files == [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]


def test_other_files_are_played_beside_a_broken_one(tmp_path, capsys):
    (tmp_path / "a.jsonl").touch()
    (tmp_path / "b.jsonl").write_bytes(CALL.read_bytes())
    assert main(["replay", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"gateway: {tmp_path / 'a.jsonl'} is empty; ")
    assert printed.out.startswith(f"{tmp_path / 'b.jsonl'}: ")


def test_folder_without_recordings_is_one_line(tmp_path, capsys):
    assert main(["replay", str(tmp_path)]) == 2
    where = "RECORD_DIR is where the gateway writes them"
    assert capsys.readouterr().err == f"gateway: {tmp_path} has no recorded calls (*.jsonl); {where}\n"


def test_cut_recording_is_played_with_a_warning(tmp_path, capsys):
    path = tmp_path / "cut.jsonl"
    path.write_bytes(CALL.read_bytes() + b'{"t": 99')
    assert main(["replay", str(path)]) == 0
    assert capsys.readouterr().err == f"gateway: {path}: the last line is cut off and was left out\n"


def mistake(capsys, *arguments):
    """The one line that a mistake gets."""
    assert main(["replay", *map(str, arguments)]) == 2
    return capsys.readouterr().err


def test_missing_file_is_one_line(tmp_path, capsys):
    path = tmp_path / "none.jsonl"
    assert mistake(capsys, path) == f"gateway: {path} can't be read: No such file or directory\n"


def test_other_file_is_one_line(tmp_path, capsys):
    path = tmp_path / "notes.txt"
    path.write_text("Buy milk.\n")
    where = "RECORD_DIR is where the gateway writes them"
    assert mistake(capsys, path) == f"gateway: {path}, line 1: not JSON, so not a recorded call; {where}\n"


def test_engine_port_needs_a_gateway(capsys):
    said = mistake(capsys, CALL, "--engine-port", "9")
    assert said == "gateway: --engine-port is for a running gateway; give its address with --url\n"


def test_address_without_scheme_is_one_line(capsys):
    said = mistake(capsys, CALL, "--url", "localhost")
    assert said == "gateway: --url localhost is not an address; write it like http://127.0.0.1:8000\n"


def test_running_gateway_needs_twilio_keys(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TWILIO_AUTH_TOKEN", raising=False)
    said = mistake(capsys, CALL, "--url", "http://127.0.0.1:9")
    assert said.startswith("gateway: set TWILIO_ACCOUNT_SID and TWILIO_AUTH_TOKEN to those of the running gateway")


def test_unreachable_gateway_is_one_line(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TWILIO_ACCOUNT_SID", "AC1")
    monkeypatch.setenv("TWILIO_AUTH_TOKEN", "token")
    said = mistake(capsys, CALL, "--url", "http://127.0.0.1:9")
    assert (
        said == "gateway: no gateway answers at http://127.0.0.1:9 "
        "(connection refused); start it with `gateway serve`, or give its address with --url\n"
    )


def test_negative_speed_is_refused(capsys):
    with pytest.raises(SystemExit) as raised:
        main(["replay", str(CALL), "--speed", "-1"])
    assert raised.value.code == 2
    assert "'-1' is not a speed" in capsys.readouterr().err
