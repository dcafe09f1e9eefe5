"""start.sh and the scripts, in a fresh clone whose installer is a stand-in that notes when it is asked."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPTS = ["start.sh", "scripts/install", "scripts/check", "scripts/lint", "scripts/test", ".ci/run"]

FAKE_UV = f"""#!/bin/sh
echo "$@" >>"$(dirname "$0")/asked"
mkdir -p .venv/bin
ln -sf '{shutil.which("true")}' .venv/bin/python
ln -sf '{Path(sys.executable).parent}/gateway' .venv/bin/gateway
"""
OLD_PYTHON = """#!/bin/sh
[ "$1" = --version ] && echo "Python 3.9.2"
"""
NEEDS_PYTHON = "Python 3.11 or newer is needed, but python3 is"
SYNC = "sync --python python3 --quiet --frozen --inexact"


@dataclass
class Clone:
    """What git gives of the scripts, in a folder of its own, and a PATH with nothing else on it than it needs."""

    folder: Path
    tools: Path

    def start(self, *arguments: str, cwd: Path = Path("/")) -> "subprocess.CompletedProcess[str]":
        return self._run("start.sh", *arguments, cwd=cwd)

    def install(self, *arguments: str) -> int:
        return self._run("scripts/install", *arguments).returncode

    def check_wheel(self) -> "subprocess.CompletedProcess[str]":
        return self._run("scripts/check-wheel")

    def asked_to_install(self) -> list[str]:
        asked = self.tools / "asked"
        return asked.read_text().splitlines() if asked.exists() else []

    def _run(self, script: str, *arguments: str, cwd: Path = Path("/")) -> "subprocess.CompletedProcess[str]":
        environ = {"PATH": str(self.tools), "LC_ALL": "C.UTF-8", "PYENV_ROOT": str(self.tools)}
        command = [str(self.folder / script), *arguments]
        return subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=60)

    def provide(self, name: str, script: str) -> None:
        tool = self.tools / name
        tool.unlink(missing_ok=True)
        tool.write_text(script)
        tool.chmod(0o755)


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    clone = Clone(tmp_path / "clone", tmp_path / "tools")
    clone.tools.mkdir()
    for name in ["start.sh", "scripts/install", "pyproject.toml", "uv.lock"]:
        (clone.folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, clone.folder / name)
    for name in [
        "sh",
        "cat",
        "chmod",
        "cksum",
        "date",
        "dirname",
        "ln",
        "mkdir",
        "mktemp",
        "rm",
        "sed",
        "sleep",
        "tail",
    ]:
        (clone.tools / name).symlink_to(shutil.which(name) or name)
    (clone.tools / "python3").symlink_to(sys.executable)
    clone.provide("uv", FAKE_UV)
    return clone


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_is_sound_and_executable(name):
    assert os.access(ROOT / name, os.X_OK)
    assert subprocess.run(["sh", "-n", str(ROOT / name)]).returncode == 0


def test_first_start_installs_once(clone):
    assert clone.start("--help").returncode == 0
    assert clone.start("--help").stderr == ""
    assert clone.asked_to_install() == [f"{SYNC} --no-dev --extra mcp --extra pdf --extra vectors --extra local"]


@pytest.mark.parametrize("line", ["DEEPGRAM_API_KEY=abc", "PORT=1\nDEEPGRAM_API_KEY=abc\nHOST=::1\n"])
def test_local_engine_is_left_out_beside_a_key(clone, line):
    (clone.folder / ".env").write_text(line)
    started = clone.start("--help")
    assert clone.asked_to_install() == [f"{SYNC} --no-dev --extra mcp --extra pdf --extra vectors"]
    assert started.stderr.startswith("installing into .venv, once\ninstalled in ")


LOCAL = [
    "DEEPGRAM_API_KEY=\n",
    'DEEPGRAM_API_KEY=""\n',
    "DEEPGRAM_API_KEY = \r\n",
    "#DEEPGRAM_API_KEY=abc\n",
    "MY_DEEPGRAM_API_KEY=abc\n",
    "DEEPGRAM_API_KEY=abc\nVOICE_ENGINE=local\n",
    "DEEPGRAM_API_KEY=abc\nVOICE_ENGINE=deepgram,local\n",
]


@pytest.mark.parametrize("line", LOCAL)
def test_local_engine_comes_along_without_a_key_or_by_choice(clone, line):
    (clone.folder / ".env").write_text(line)
    started = clone.start("--help")
    assert clone.asked_to_install()[0].endswith("--extra local")
    assert "for the voice engine that needs no account" in started.stderr


@pytest.mark.parametrize(
    ("arguments", "comes"), [(["demo"], True), (["demo", "--play"], True), (["demo", "--recorded"], False)]
)
def test_local_engine_comes_along_for_the_demo(clone, arguments, comes):
    (clone.folder / ".env").write_text("DEEPGRAM_API_KEY=abc\n")
    clone.start(*arguments, "--help")
    assert clone.asked_to_install()[0].endswith("--extra local") is comes


def test_local_engine_comes_along_for_an_agent(clone):
    (clone.folder / ".env").write_text("DEEPGRAM_API_KEY=abc\n")
    (clone.folder / "gateway.toml").write_text('[agents.sam]\nengine = ["deepgram", "local"]\n')
    clone.start("--help")
    assert clone.asked_to_install()[0].endswith("--extra local")


@pytest.mark.parametrize(
    ("line", "extra"),
    [
        ("REDIS_URL=redis://127.0.0.1/0\n", "redis"),
        ("export REDIS_URL = 'redis://127.0.0.1/0'\n", "redis"),
        ("DATABASE_URL=postgresql://127.0.0.1/x\n", "postgres"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318\n", "otel"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://127.0.0.1:4318/v1/traces\n", "otel"),
    ],
)
def test_settings_bring_their_extra(clone, line, extra):
    (clone.folder / ".env").write_text(line)
    clone.start("--help")
    assert f"--extra {extra} " in clone.asked_to_install()[0] + " "
    (clone.folder / ".env").write_text(f"#{line}")
    clone.start("--help")
    assert len(clone.asked_to_install()) == 1


def test_workers_bring_their_extra(clone):
    clone.start("--help")
    clone.start("serve", "--workers", "none")
    assert "--extra workers" in clone.asked_to_install()[1]
    clone.start("serve", "--workers", "none")
    clone.start("--help")
    assert len(clone.asked_to_install()) == 2


def test_memory_by_words_needs_no_model(clone):
    (clone.folder / ".env").write_text("MEMORY_VECTORS=false\n")
    clone.start("--help")
    assert "vectors" not in clone.asked_to_install()[0]


def test_a_key_that_comes_later_installs_nothing(clone):
    clone.start("--help")
    (clone.folder / ".env").write_text("DEEPGRAM_API_KEY=abc\n")
    clone.start("--help")
    assert len(clone.asked_to_install()) == 1


def test_changed_lock_installs_again(clone):
    clone.install()
    with (clone.folder / "uv.lock").open("a") as lock:
        lock.write("# newer\n")
    clone.install()
    assert len(clone.asked_to_install()) == 2


def test_moved_folder_installs_again(clone):
    clone.install()
    clone.folder = clone.folder.rename(clone.folder.with_name("elsewhere"))
    clone.install()
    assert len(clone.asked_to_install()) == 2


def test_tests_need_more_than_start(clone):
    clone.install("--no-dev")
    clone.install()
    clone.install("--no-dev")
    assert clone.asked_to_install() == [f"{SYNC} --no-dev", SYNC]


def test_first_start_says_how_to_type_just_gateway(clone):
    hint = clone.start("--version").stderr.splitlines()[-1].partition("to type just gateway: ")[2]
    typed = subprocess.run(["sh", "-c", f"{hint}; gateway --version"], capture_output=True, text=True, timeout=60)
    assert typed.stdout.startswith("voice-gateway ")
    assert f'"{clone.folder}/.venv/bin:' in hint


def test_hints_name_the_script_as_it_was_typed(clone):
    clone.install("--no-dev")
    typed = [str(clone.folder / "start.sh"), "doctr"]
    assert clone.start("doctr").stderr.endswith(f"See {typed[0]} --help\n")
    plain = subprocess.run(["sh", "start.sh", "doctr"], cwd=clone.folder, capture_output=True, text=True, timeout=60)
    assert plain.stderr.endswith("See ./start.sh --help\n")


def test_files_are_those_of_the_folder_where_it_was_typed(clone, tmp_path):
    clone.install("--no-dev")
    elsewhere = tmp_path / "my calls"
    elsewhere.mkdir()
    missing = clone.start("replay", "call.jsonl", cwd=elsewhere).stderr
    assert missing.splitlines()[-1].startswith(f"gateway: {elsewhere}/call.jsonl ")
    assert clone.start("init", "my bot", cwd=elsewhere).returncode == 0
    assert (elsewhere / "my bot/gateway.toml").is_file()
    assert not (clone.folder / "my bot").exists()


def test_settings_are_those_beside_the_script(clone, tmp_path):
    clone.install("--no-dev")
    (clone.folder / ".env").write_text("PORT=99999\n")
    (tmp_path / ".env").write_text("PORT=88888\n")
    assert clone.start(cwd=tmp_path).stderr.splitlines()[-1].startswith("gateway: PORT is 99999; ")


def test_installer_is_quiet_unless_it_fails(clone):
    clone.provide("uv", FAKE_UV + "echo 'Resolved 85 packages'\n")
    assert "Resolved" not in clone.start("--version").stderr
    shutil.rmtree(clone.folder / ".venv")
    clone.provide("uv", "#!/bin/sh\necho 'no space left on device' >&2\nexit 1\n")
    failed = clone.start("--version")
    assert failed.returncode == 1
    assert failed.stderr.endswith("no space left on device\ninstalling failed, see above; then start again\n")


def test_weights_stay_without_the_library_beside_them(clone):
    package = clone.folder / ".venv/lib/python3.11/site-packages/moonshine_voice"
    (package / "assets").mkdir(parents=True)
    (package / "libmoonshine.so").touch()
    clone.install("--no-dev")
    assert [path.name for path in package.iterdir()] == ["assets"]


def test_failed_install_is_not_kept(clone):
    clone.provide("uv", FAKE_UV + "exit 1\n")
    assert clone.install() == 1
    assert clone.install() == 1
    assert len(clone.asked_to_install()) == 2


NOTING_UV = """#!/bin/sh
[ "$1" = venv ] || exit 0
echo "$4" >>"$(dirname "$0")/pythons"
mkdir -p "$5/bin"
for name in gateway voice-gateway python; do
    printf '#!/bin/sh\\necho "%s $*" >>"%s/ran"\\nmkdir -p shop\\n' $name "$(dirname "$0")" >"$5/bin/$name"
    chmod +x "$5/bin/$name"
done
"""


def test_wheel_is_checked_with_every_python_found(clone):
    """On the PATH, and of pyenv, whose shims fail for versions that are not chosen."""
    shutil.copy(ROOT / "scripts/check-wheel", clone.folder / "scripts")
    clone.install()
    clone.provide("uv", NOTING_UV)
    clone.provide("python3.11", '#!/bin/sh\n[ -z "$2" ] || echo /usr/bin/python3.11\n')
    clone.provide("python3.12", "#!/bin/sh\nexit 127\n")
    for version in ("3.10.13", "3.12.1", "3.13.0"):
        path = clone.tools / "versions" / version / "bin"
        path.mkdir(parents=True)
        clone.provide(f"versions/{version}/bin/python", f'#!/bin/sh\n[ -z "$2" ] || echo /pyenv/{version}\n')
    assert clone.check_wheel().returncode == 0
    assert (clone.tools / "pythons").read_text().split() == ["/usr/bin/python3.11", "/pyenv/3.12.1", "/pyenv/3.13.0"]
    ran = (clone.tools / "ran").read_text().splitlines()
    assert ran.count("gateway --version") == ran.count("voice-gateway --version") == 3


def test_no_argument_serves(clone):
    (clone.folder / ".env").write_text("PORT=99999\n")
    started = clone.start()
    assert started.returncode == 2
    assert started.stderr.splitlines()[-1] == "gateway: PORT is 99999; use a number from 0 to 65535"


def test_wrong_argument_gets_one_line(clone):
    clone.install()
    started = clone.start("serve", "--port", "eight")
    assert (started.returncode, started.stdout) == (2, "")
    assert started.stderr == "gateway: PORT is 'eight'; use a whole number, 0 or more\n"


def test_old_python_gets_one_line(clone):
    clone.provide("python3", OLD_PYTHON)
    started = clone.start()
    assert started.returncode == 2
    assert started.stderr == f"{NEEDS_PYTHON} Python 3.9.2; install it and start again\n"


def test_missing_python_gets_one_line(clone):
    (clone.tools / "python3").unlink()
    started = clone.start()
    assert started.returncode == 2
    assert started.stderr == f"{NEEDS_PYTHON} missing; install it and start again\n"
