"""`gateway` from outside: a mistake is one line on stderr and exit code 2."""

import importlib
import os
import re
import shlex
import subprocess
import sys

import pytest

from gateway.cli.main import COMMANDS, MODULES, main


def refusal(capsys, *arguments):
    """The error line for these arguments."""
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    out, err = capsys.readouterr()
    assert (raised.value.code, out, err.count("\n")) == (2, "", 1)
    return err


def test_unknown_command_is_one_line(capsys):
    assert refusal(capsys, "zzz") == "gateway: 'zzz' is unknown; see gateway --help\n"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["sessons"], "gateway: 'sessons' is unknown; did you mean sessions? See gateway --help\n"),
        (["login"], "gateway: 'login' is unknown; did you mean login-link? See gateway --help\n"),
        (["memory", "forgt"], "gateway memory: 'forgt' is unknown; did you mean forget? See gateway memory --help\n"),
        (
            ["latency", "--jsn"],
            "gateway latency: unrecognized arguments: --jsn; did you mean --json? See gateway latency --help\n",
        ),
        (["--versoin"], "gateway: unrecognized arguments: --versoin; did you mean --version? See gateway --help\n"),
        (["version"], "gateway: 'version' is unknown; did you mean --version? See gateway --help\n"),
        (["-V"], "gateway: unrecognized arguments: -V; see gateway --help\n"),
    ],
)
def test_misspelt_word_is_corrected(capsys, given, said):
    assert refusal(capsys, *given) == said


def test_no_command_prints_the_help(capsys):
    with pytest.raises(SystemExit) as raised:
        main([])
    assert raised.value.code == 0
    assert capsys.readouterr().out.startswith("usage: gateway ")


def test_each_command_has_one_line_of_help(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([])
    shown = capsys.readouterr().out.partition("  COMMAND\n")[2]
    assert [tuple(line.split(maxsplit=1)) for line in shown.splitlines()] == [*COMMANDS.items()]


@pytest.mark.parametrize(
    ("words", "usage"),
    [([], "gateway [-h]"), (["tail"], "gateway tail "), (["memory", "show"], "gateway memory show ")],
)
def test_help_is_a_command_too(capsys, words, usage):
    with pytest.raises(SystemExit) as raised:
        main(["help", *words])
    assert raised.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: {usage}")


@pytest.mark.parametrize("command", [["serve"], ["demo"], ["replay", "call.jsonl"], ["bench"]])
def test_unknown_option_is_one_line(capsys, command):
    said = refusal(capsys, *command, "--colour")
    name = f"gateway {command[0]}"
    assert said == f"{name}: unrecognized arguments: --colour; see {name} --help\n"


def test_missing_argument_names_its_command(capsys):
    assert refusal(capsys, "replay") == "gateway replay: FILE is missing; see gateway replay --help\n"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["token"], "gateway token: ACTION is missing; use create, list or revoke; see gateway token --help\n"),
        (["setup"], "gateway setup: carrier is missing; use twilio, telnyx or elevenlabs; see gateway setup --help\n"),
        (["memory", "pin"], "gateway memory pin: CALLER, TITLE are missing; see gateway memory pin --help\n"),
        (
            ["completion", "tcsh"],
            "gateway completion: 'tcsh' is unknown; use bash, zsh or fish; see gateway completion --help\n",
        ),
        (["bench", "--engine", "x"], "gateway bench: --engine is 'x'; use local or openai; see gateway bench --help\n"),
        (["audit", "--limit", "x"], "gateway audit: --limit is 'x'; use a whole number; see gateway audit --help\n"),
    ],
)
def test_mistake_says_what_can_be_used(capsys, given, said):
    assert refusal(capsys, *given) == said


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
    command = "import sys; from gateway.cli.main import COMMANDS, main; sys.exit(main(['serve', '--port', '0']))"
    environ = {**os.environ, "DATA_DIR": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", command], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert ran.returncode == 2
    assert ran.stderr == f"gateway: can't open {tmp_path}/gateway.db: file is not a database\n"


@pytest.mark.parametrize(
    ("redirect", "said"),
    [(">/dev/full", "gateway: No space left on device; free up disk space\n"), (">&-", ""), (">&- 2>&-", "")],
)
def test_output_that_cannot_be_written_is_no_traceback(tmp_path, redirect, said):
    code = "import sys; from gateway.cli.main import main; sys.exit(main(['doctor', '--json']))"
    command = f"{shlex.join([sys.executable, '-c', code])} {redirect}"
    environ = {**os.environ, "DATA_DIR": str(tmp_path), "LOG_LEVEL": "loud"}
    ran = subprocess.run(["sh", "-c", command], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (2, said)


def test_version_is_name_and_number(capsys):
    with pytest.raises(SystemExit) as raised:
        main(["--version"])
    out, err = capsys.readouterr()
    assert (raised.value.code, err) == (0, "")
    assert re.fullmatch(r"voice-gateway \d+\.\d+\.\d+\n", out)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_description(capsys, command):
    with pytest.raises(SystemExit) as raised:
        main([command, "--help"])
    out, _ = capsys.readouterr()
    assert raised.value.code == 0
    assert out.startswith(f"usage: gateway {command} ")
    assert importlib.import_module(f"gateway.cli.{MODULES.get(command, command)}").DESCRIPTION.split()[0] in out


def test_only_the_chosen_command_is_imported():
    """All of them take a second to import."""
    code = "import sys; from gateway.cli import main\ntry: main.main(['--version'])\nexcept SystemExit: pass\n"
    code += "print([name for name in ('rich', 'httpx', 'starlette', 'gateway.app') if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "[]"


def test_interrupt_during_the_import_is_silent(tmp_path):
    """Ctrl-C while a command's modules are loaded, which takes a second."""
    code = "import sys; from gateway.cli import main\n"
    code += "def interrupt(name): raise KeyboardInterrupt\nmain.importlib.import_module = interrupt\n"
    ran = subprocess.run([sys.executable, "-c", f"{code}sys.exit(main.main(['demo']))"], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "")
