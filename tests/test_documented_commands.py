"""
Every command in the sh blocks of README and docs is run here, or named below with the reason and the test that runs it.

Those that are run here have a real gateway with two calls of one caller.
"""

import asyncio
import os
import re
import runpy
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gateway.cli.main import main
from gateway.settings import NAMES, load
from tests.stage import ADMIN, make_carrier, staged
from tests.test_docs import ROOT, TEXTS, shell_blocks, without_code

ELSEWHERE = {
    # Other programs, accounts, a network
    r"cloudflared |claude ": "another program, which needs a network",
    r"openclaw ": "another program; scripts/openclaw-check runs it",
    r"docker ": "needs Docker; tests/test_deploy.py checks the files",
    r"git pull ": "needs a remote repository",
    r"scripts/(audit|pin-images)": "needs a network",
    r"(\./start\.sh|gateway) setup ": "needs an account; tests/cli/test_setup.py, tests/cli/test_setup_elevenlabs.py",
    r"gateway import ": "needs an account; tests/cli/test_import_calls.py",
    r"gateway memory rebuild .*anthropic": "needs an account; tests/cli/test_memory.py",
    r"gateway memory rebuild .*--undo": "needs a rebuild before it; tests/cli/test_memory.py",
    r"gateway webhook test": "needs WEBHOOK_URL; tests/cli/test_webhook.py",
    # Servers, sound and long measurements
    r"([A-Z_]+=\S+ |cd shop && )?(\./start\.sh|gateway serve)( serve .*)?$": "serves; tests/test_start.py",
    r"\./start\.sh demo": "two whole calls; tests/cli/test_demo.py",
    r"\./start\.sh call ": "needs a microphone or a WAV file; tests/cli/test_call.py",
    r"(GATEWAY_ADMIN_TOKEN=… )?gateway tail": "runs until stopped; tests/cli/test_tail.py",
    r"curl -N ": "runs until stopped; tests/test_monitoring.py",
    r"\./start\.sh bench": "minutes of load; tests/cli/test_bench.py",
    r"gateway memory (show|forget) integration_attribute": "needs a website; tests/web/test_widget.py",
    # Development
    r"\./scripts/test": "runs this test",
    r"\./scripts/(check|lint)$": "part of ./scripts/test; tests/test_start.py",
    r"\./scripts/chaos ": "minutes of kills; tests/test_chaos.py",
    r"\./scripts/check-wheel$": "minutes; tests/test_start.py runs it with a stand-in for uv",
    r"scripts/install ": "needs a network; tests/test_start.py",
    r"scripts/sbom ": "tests/test_dependencies.py",
    r"\.venv/bin/python scripts/(node-clients|openclaw-check)": "needs a network; its --help is run below",
    r"\.venv/bin/python scripts/fuzz": "minutes, and Linux; tests/test_fuzz.py",
    r"\.venv/bin/python -m scripts\.release": "tests/test_release.py",
    r"\.venv/bin/python -m scripts\.(bare_bridge|llm_bench|speech_bench)": "minutes; its --help is run below",
}
"""Commands by pattern: why they are not run here, and the tests that run them."""

DESTRUCTIVE = r"gateway memory (revert|forget) "
"""Run last: other commands need what they delete."""


def commands() -> list[str]:
    """Without comments, settings and repetitions."""
    lines = [_without_comment(line) for path in TEXTS for block in shell_blocks(path) for line in block]
    return list(dict.fromkeys(line for line in lines if line and not re.fullmatch(r"[A-Z_]+=\S*", line)))


def _without_comment(line: str) -> str:
    return re.sub(r"(^|\s+)#(\s.*|$)", "", line).strip()


def reason(command: str) -> str:
    return next((why for pattern, why in ELSEWHERE.items() if re.match(pattern, command)), "")


def test_every_reason_is_needed_and_names_tests_that_exist():
    unused = [pattern for pattern in ELSEWHERE if not any(re.match(pattern, command) for command in commands())]
    named = {name for why in ELSEWHERE.values() for name in re.findall(r"tests/[\w/]+\.py", why)}
    assert unused == []
    assert [name for name in named if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_settings_in_the_docs_are_taken(path, tmp_path):
    lines = [_without_comment(line) for block in shell_blocks(path) for line in block]
    for name, value in (line.split("=", 1) for line in lines if re.fullmatch(r"[A-Z_]+=\S+", line)):
        assert name in {*NAMES, "BASE", "KEY"}, name
        if "…" not in value and name in NAMES:
            keys = dict.fromkeys(("DEEPGRAM_API_KEY", "OPENAI_API_KEY"), "key")
            assert load({**keys, name: value}, tmp_path)


def documented_scripts() -> dict[str, set[str]]:
    """Our scripts in shell blocks and in `code`, with the options that are given there."""
    found: dict[str, set[str]] = {}
    for path in TEXTS:
        code = re.findall(r"`([^`\n]+)`", without_code(path.read_text(encoding="utf-8")))
        for command in [*code, *(_without_comment(line) for block in shell_blocks(path) for line in block)]:
            words = re.match(r"(?:\S*python |\./)?(scripts/[\w-]+|-m scripts\.\w+)(?=\s|$)(.*)", command)
            if words:
                found.setdefault(words[1], set()).update(re.findall(r"(?<!\S)--[\w-]+", words[2]))
    return found


SHELL_OPTIONS = {"scripts/install": {"--no-dev", "--extra"}}
"""Shell scripts with options: those that their first lines name."""
WITHOUT_HELP = {"scripts/fuzz"}
"""It needs an extra of its own for --help too."""


@pytest.mark.parametrize("script", sorted(documented_scripts()))
def test_scripts_in_the_docs_have_the_options(script, monkeypatch, capsys):
    options, path = documented_scripts()[script], script
    if script.startswith("-m "):
        path = script.removeprefix("-m ").replace(".", "/")
        path += "/__main__.py" if (ROOT / path).is_dir() else ".py"
    else:
        assert os.access(ROOT / script, os.X_OK), f"{script} can't be run"
        text = (ROOT / script).read_text(encoding="utf-8")
        if text.startswith("#!/bin/sh") and "python -m tests." not in text or script in WITHOUT_HELP:
            assert options <= SHELL_OPTIONS.get(script, set())
            assert all(option in text for option in options)
            return
        if started := re.search(r"python -m (tests\.\w+)", text):
            path = f"{started[1].replace('.', '/')}/__main__.py"
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    monkeypatch.setattr(sys, "path", [str(ROOT / "scripts"), *sys.path])
    with pytest.raises(SystemExit) as ended:  # in this process, which has imported nearly everything
        runpy.run_path(str(ROOT / path), run_name="__main__")
    assert not ended.value.code
    assert options <= set(re.findall(r"--[\w-]+", capsys.readouterr().out))


async def test_commands_in_the_docs_work_as_written(tmp_path, monkeypatch):
    """Placeholders are replaced: addresses, tokens, session ids."""
    folder = tmp_path / "folder"
    run = sorted(
        (command for command in commands() if not reason(command)),
        key=lambda command: bool(re.match(DESTRUCTIVE, command)),
    )
    (folder / "tests/recordings").mkdir(parents=True)
    shutil.copy(ROOT / ".env.example", folder)
    agent = '[agents.maya]\nprompt = "prompts/maya.md"\nnumbers = ["+12025550100"]\n'
    (folder / "gateway.toml").write_text(agent, encoding="utf-8")
    environ = {"DATA_DIR": str(folder / "data"), "RECORD_DIR": str(folder / "recordings")}
    async with staged(folder, make_carrier("twilio"), **environ) as stage:
        for words in ("My name is Ana Lopez. I sell a house in Orlando.", "I prefer mornings."):
            call, conversation = await stage.dial()
            await conversation.user_says(words)
            await call.hang_up()
            await stage.idle()
        session = (await stage.http.get("/v1/sessions")).json()[0]["session"].removeprefix("voice-session:")
        monkeypatch.chdir(folder)
        address = urlsplit(stage.url)
        settings = {**environ, "HOST": address.hostname, "PORT": str(address.port), "GATEWAY_ADMIN_TOKEN": ADMIN}
        settings["VOICE_SESSION_ARCHIVE_DIR"] = str(stage.archive_dir)
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        (folder / "data/admin-token").write_text(ADMIN)
        wrong = {}
        for command in run:
            code, output = await asyncio.to_thread(_run, _filled(command, stage.url, session), folder)
            if code and not (code == 1 and command.endswith(" doctor")):  # this machine may deserve a warning
                wrong[command] = f"exit {code}: {output[-300:]}"
    assert stat.S_IMODE((folder / ".env").stat().st_mode) == 0o600  # it is for keys
    assert len(run) > 35
    assert wrong == {}


def _filled(command: str, url: str, session: str) -> str:
    replaced = {
        "vg_…": ADMIN,
        "$BASE": url,
        "http://127.0.0.1:8000": url,
        "$KEY": ADMIN,
        "{uuid}": session,
        "3f2a9c1e": session[:8],
        "curl ": "curl --silent --show-error --fail-with-body ",
    }
    for placeholder, value in replaced.items():
        command = command.replace(placeholder, value)
    return command


def _run(command: str, folder: Path) -> tuple[int, str]:
    """The exit code and the output. Our own commands run in this process, as `main` would be called."""
    if own := re.fullmatch(r"(?:[A-Z_]+=\S* )*(?:gateway|\./start\.sh) (.*)", command):
        try:
            return main(shlex.split(own[1])), ""
        except SystemExit as exited:
            return int(exited.code or 0), ""
    done = subprocess.run(["sh", "-c", command], cwd=folder, capture_output=True, text=True, timeout=60, env=os.environ)
    return done.returncode, done.stdout + done.stderr
