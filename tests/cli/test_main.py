"""`gateway` from outside: a mistake is one line on stderr and exit code 2."""

import importlib
import os
import re
import subprocess
import sys

import pytest

from gateway.cli.main import COMMANDS, MODULES, main


def refusal(capsys, *arguments):
    """The one line that arguments nobody understands get."""
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    out, err = capsys.readouterr()
    assert (raised.value.code, out, err.count("\n")) == (2, "", 1)
    return err


def test_unknown_command_is_one_line(capsys):
    said = refusal(capsys, "zzz")
    assert said.startswith("gateway: argument COMMAND: invalid choice: 'zzz' (choose from ")
    assert said.endswith("; see gateway --help\n")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["sessons"], "gateway: 'sessons' is unknown; did you mean sessions? See gateway --help\n"),
        (["memory", "forgt"], "gateway memory: 'forgt' is unknown; did you mean forget? See gateway memory --help\n"),
        (
            ["latency", "--jsn"],
            "gateway: unrecognized arguments: --jsn; did you mean --json? See gateway --help\n",
        ),
    ],
)
def test_misspelt_word_is_corrected(capsys, given, said):
    assert refusal(capsys, *given) == said


def test_no_command_prints_the_help(capsys):
    with pytest.raises(SystemExit) as raised:
        main([])
    assert raised.value.code == 0
    assert capsys.readouterr().out.startswith("usage: gateway ")


@pytest.mark.parametrize(("shell", "check"), [("bash", "_shtab_gateway"), ("zsh", "#compdef gateway")])
def test_completion_knows_commands_and_options(capsys, shell, check):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert check in script
    assert all(word in script for word in ("login-link", "--verify"))


def test_bash_completes_a_command(capsys, tmp_path):
    assert main(["completion", "bash"]) == 0
    (tmp_path / "gateway.bash").write_text(capsys.readouterr().out)
    ask = (
        f"source {tmp_path}/gateway.bash; COMP_WORDS=(gateway sess); COMP_CWORD=1; "
        "_shtab_gateway gateway sess gateway; echo ${COMPREPLY[@]}"
    )
    found = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["sessions"]


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
    command = "import sys; from gateway.cli.main import COMMANDS, main; sys.exit(main(['serve', '--port', '0']))"
    environ = {**os.environ, "DATA_DIR": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", command], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert ran.returncode == 2
    assert ran.stderr == f"gateway: can't open {tmp_path}/gateway.db: file is not a database\n"


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
