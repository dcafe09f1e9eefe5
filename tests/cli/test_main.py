"""`gateway` from outside: a mistake is one line on stderr and exit code 2."""

import os
import subprocess
import sys

import pytest

from gateway.cli.main import main


def refusal(capsys, *arguments):
    """The one line that arguments nobody understands get."""
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    out, err = capsys.readouterr()
    assert (raised.value.code, out, err.count("\n")) == (2, "", 1)
    return err


def test_unknown_command_is_one_line(capsys):
    said = refusal(capsys, "sing")
    assert said.startswith("gateway: argument COMMAND: invalid choice: 'sing' (choose from ")
    assert said.endswith("; see gateway --help\n")


def test_missing_command_is_one_line(capsys):
    said = refusal(capsys)
    assert said == "gateway: the following arguments are required: COMMAND; see gateway --help\n"


@pytest.mark.parametrize("command", [["serve"], ["demo"], ["replay", "call.jsonl"], ["bench"]])
def test_unknown_option_is_one_line(capsys, command):
    said = refusal(capsys, *command, "--colour")
    assert said == "gateway: unrecognized arguments: --colour; see gateway --help\n"


def test_missing_argument_names_its_command(capsys):
    said = refusal(capsys, "replay")
    assert said == "gateway replay: the following arguments are required: FILE; see gateway replay --help\n"


def test_wrong_setting_is_one_line(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["serve", "--port", "eight"]) == 2
    assert capsys.readouterr() == ("", "gateway: PORT is 'eight'; use a whole number, 0 or more\n")


def test_help_is_no_mistake(capsys):
    with pytest.raises(SystemExit) as raised:
        main(["--help"])
    out, err = capsys.readouterr()
    assert (raised.value.code, err) == (0, "")
    assert out.startswith("usage: gateway ")


def test_broken_store_is_one_line(tmp_path):
    (tmp_path / "gateway.db").write_bytes(b"this is no database, whatever its name says" * 100)
    command = "import sys; from gateway.cli.main import main; sys.exit(main(['serve', '--port', '0']))"
    environ = {**os.environ, "DATA_DIR": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", command], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert ran.returncode == 2
    assert ran.stderr == f"gateway: can't open {tmp_path}/gateway.db: file is not a database\n"
