"""`gateway completion`: what the shells make of its scripts."""

import itertools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.cli.main import main


@pytest.mark.parametrize(
    ("shell", "check"),
    [("bash", "_shtab_gateway"), ("zsh", "#compdef gateway"), ("fish", "complete -c gateway")],
)
def test_script_knows_commands_and_options(capsys, shell, check):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert check in script
    assert all(word in script for word in ("login-link", "verify", "gateway sessions 2>/dev/null"))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_help_says_how_to_install_it(capsys, tmp_path, shell):
    """What it prints, typed in a home without any folder, writes the script."""
    with pytest.raises(SystemExit):
        main(["completion", "--help"])
    _, _, said = capsys.readouterr().out.partition(f"\n{shell}:\n")
    lines = list(itertools.takewhile(bool, said.splitlines()))
    environ = {**os.environ, "HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-ec", "\n".join(lines)], env=environ, check=True)
    [place] = re.findall(rf"^  gateway completion {shell} > ~/(\S+)$", "\n".join(lines), re.MULTILINE)
    assert len((tmp_path / place).read_text()) > 1000


LISTS = """#!/bin/sh
case "$*" in
    sessions) printf 'call      time\n3f2a91c0  2026\n7d3ee116  2026\n\nevery call is stored\n' ;;
    "memory list") printf 'caller\nAnna Brown +12025550143\n+12025550188\n' ;;
esac
"""


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["sess"], ["sessions"]),
        (["memory", "forg"], ["forget"]),
        (["sessions", "3"], ["3f2a91c0"]),
        (["memory", "show", ""], ["+12025550143", "+12025550188"]),
        (["replay", "gateway.b"], ["gateway.bash"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
    ],
)
def test_bash_completes_commands_sessions_and_callers(capsys, tmp_path, words, completed):
    assert main(["completion", "bash"]) == 0
    (tmp_path / "gateway.bash").write_text(capsys.readouterr().out)
    (tmp_path / "gateway").write_text(LISTS)
    (tmp_path / "gateway").chmod(0o755)
    line = shlex.join(["gateway", *words])
    last = shlex.quote(words[-1])
    ask = (
        f"source {tmp_path}/gateway.bash; COMP_WORDS=({line}); COMP_CWORD={len(words)}; "
        f"_shtab_gateway gateway {last} gateway; echo ${{COMPREPLY[@]}}"
    )
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    run = {"capture_output": True, "text": True, "check": True, "env": environ, "cwd": tmp_path}
    found = subprocess.run(["bash", "-c", ask], **run)
    assert found.stdout.split() == completed


def test_zsh_asks_for_values_when_they_are_completed(capsys):
    """Anything else than a function's name would run while the script is loaded, for every argument."""
    assert main(["completion", "zsh"]) == 0
    asking = [line for line in capsys.readouterr().out.splitlines() if "$(gateway " in line]
    assert sorted(line.partition("()")[0] for line in asking) == ["_gateway_callers", "_gateway_sessions"]
