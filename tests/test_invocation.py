"""Hints work as typed, however the program was started."""

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.cli.main import COMMANDS, build_parser
from gateway.invocation import FOLDER_VARIABLE, VARIABLE, command, command_in, installation, program, typed_path

PACKAGE = Path(__file__).parent.parent / "gateway"
HINT = re.compile(rf"(?:`|: |then |run )gateway (?:{'|'.join(COMMANDS)})\b")


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "bin" / "gateway"
    path.parent.mkdir()
    path.touch(mode=0o755)
    return path


def test_start_script_is_named_as_typed():
    assert program(".venv/bin/gateway", {VARIABLE: "./start.sh"}, Path("/x/.venv")) == "./start.sh"
    assert program(".venv/bin/gateway", {VARIABLE: "/my tools/start.sh"}, Path("/x")) == "'/my tools/start.sh'"


def test_script_on_the_path_needs_no_folder(script):
    environ = {"PATH": f"/nowhere:{script.parent}"}
    assert program(str(script), environ, script.parent.parent) == "gateway"


def test_script_elsewhere_keeps_its_folder(script):
    assert program(str(script), {"PATH": "/nowhere"}, script.parent.parent) == str(script)
    assert program(".venv/bin/gateway", {}, Path("/x/.venv")) == ".venv/bin/gateway"


def test_runners_are_named(script):
    environ = {"PATH": str(script.parent)}
    assert program(str(script), environ, Path("/h/.cache/uv/archive-v0/k3")) == "uvx voice-gateway"
    assert program(str(script), environ, Path("/h/.cache/pipx/5f")) == "pipx run voice-gateway"
    assert program(str(script), environ, Path("/h/.local/share/pipx/venvs/voice-gateway")) == "gateway"


def test_other_starters_get_the_plain_name():
    assert program("/usr/lib/pytest/__main__.py", {}, Path("/x")) == "gateway"
    assert (command("sessions"), command()) == ("gateway sessions", "gateway")


def test_command_for_another_folder_works_there(tmp_path):
    """With a space in the folder's name and the program at a relative path."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/gateway").symlink_to(Path(sys.executable).with_name("gateway"))
    made = subprocess.run(["bin/gateway", "init", "my bot"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    typed = made.stdout.splitlines()[-1].removeprefix("Next: ")
    assert typed == f"cd 'my bot' && {tmp_path}/bin/gateway serve"
    served = subprocess.run(["sh", "-c", f"{typed} --port x"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert served.stderr == "gateway: PORT is 'x'; use a whole number, 0 or more\n"


def test_start_script_is_not_named_for_other_folders(tmp_path, monkeypatch):
    """It would use the configuration beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, "./start.sh")
    own = f"{sys.prefix}/bin/gateway"
    assert command_in(tmp_path / "shop", "serve") == f"cd {tmp_path}/shop && {own} serve"
    monkeypatch.setenv(FOLDER_VARIABLE, "/")
    assert command_in(Path("/"), "serve") == f"{own} serve"


def test_files_are_relative_to_the_folder_of_the_user(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert typed_path("call.wav") == Path("call.wav")
    monkeypatch.setenv(FOLDER_VARIABLE, "/srv")
    assert (typed_path("call.wav"), typed_path("/x.wav")) == (Path("/srv/call.wav"), Path("/x.wav"))


def test_extras_are_installed_as_the_program_was(tmp_path, monkeypatch):
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "install").touch()
    assert installation("redis", tmp_path / "gateway", Path("/x")) == (
        f"{tmp_path}/scripts/install --no-dev --extra redis"
    )
    monkeypatch.chdir(tmp_path)
    assert installation("redis", tmp_path / "gateway", Path("/x")) == "scripts/install --no-dev --extra redis"
    installed = {
        "/h/.cache/uv/archive-v0/k3": "uvx --from 'voice-gateway[redis]' voice-gateway",
        "/h/.local/share/uv/tools/voice-gateway": "uv tool install 'voice-gateway[redis]'",
        "/h/.local/share/pipx/venvs/voice-gateway": "pipx install --force 'voice-gateway[redis]'",
        "/srv/venv": "VIRTUAL_ENV=/srv/venv uv pip install 'voice-gateway[redis]'",
    }
    assert {place: installation("redis", Path(place) / "lib", Path(place)) for place in installed} == installed


def test_extras_are_installed_with_the_pip_of_the_environment(tmp_path, monkeypatch):
    pip = tmp_path / "venv" / "bin" / "pip"
    pip.parent.mkdir(parents=True)
    pip.touch(mode=0o755)
    place = tmp_path / "venv"
    assert installation("redis", place / "lib", place) == f"{pip} install 'voice-gateway[redis]'"
    monkeypatch.setenv("PATH", str(pip.parent), prepend=os.pathsep)
    assert installation("redis", place / "lib", place) == "pip install 'voice-gateway[redis]'"


def trees():
    return [(path, ast.parse(path.read_text(encoding="utf-8"))) for path in sorted(PACKAGE.rglob("*.py"))]


def docstrings(tree):
    nodes = (node.value for node in ast.walk(tree) if isinstance(node, ast.Expr))
    return {node for node in nodes if isinstance(node, ast.Constant)}


def test_hints_know_how_the_program_was_started():
    """Messages name commands only through `invocation.command`."""
    found = []
    for path, tree in trees():
        texts = {node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
        found += [f"{path.name}: {node.value}" for node in texts - docstrings(tree) if HINT.search(node.value)]
    assert found == []


def hinted_commands():
    for path, tree in trees():
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        for call in calls if "gateway.invocation import" in path.read_text(encoding="utf-8") else ():
            if ast.unparse(call.func) in ("command", "public_command"):
                parts = getattr(call.args[0], "values", call.args)
                yield "".join(part.value if isinstance(part, ast.Constant) else "twilio" for part in parts)


def test_hinted_commands_can_be_parsed(capsys):
    hinted = set(hinted_commands())
    assert len(hinted) > 8
    parser = build_parser(COMMANDS)
    for text in hinted:
        try:
            parser.parse_args(shlex.split(text))
        except SystemExit as ended:
            assert ended.code == 0, f"{text}: {capsys.readouterr().err}"  # 0: --help
