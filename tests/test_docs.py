"""The documents say what the program does: a setting, command or path that they miss fails here."""

import re
import subprocess
from pathlib import Path

import pytest

from gateway.agents import AgentDirectory
from gateway.app import create_app
from gateway.cli.main import COMMANDS
from gateway.settings import NAMES, Secret, Settings, load

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
ENV_EXAMPLE = (ROOT / ".env.example").read_text(encoding="utf-8")


def settings_table() -> dict[str, str]:
    """Name and default of each row in README's settings."""
    section = README.partition("\n## Settings\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `([A-Z_]+)` \| (.*?) \|", section, re.MULTILINE))


def default_text(name: str) -> str:
    """A setting's default as a person would write it; empty where there is none."""
    value = getattr(Settings(), name.lower())
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None or value == frozenset() else str(value)


def tracked_files() -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listing.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_readme_lists_every_setting():
    assert list(settings_table()) == list(NAMES)


def test_readme_tells_defaults_in_force():
    table = settings_table()
    wrong = [name for name in NAMES if (text := default_text(name)) and table[name] != f"`{text}`"]
    assert wrong == []


def test_readme_names_every_command():
    commands = [command.__name__.rpartition(".")[2] for command in COMMANDS]
    assert [name for name in commands if f"| `gateway {name}" not in README] == []


async def test_readme_names_every_path(tmp_path):
    settings = Settings(data_dir=tmp_path, folder=ROOT, voice_session_archive_dir=tmp_path, allowed_callers=frozenset())
    app = create_app(settings)
    async with app.router.lifespan_context(app):
        # What stands behind a page is reached from that page.
        paths = {
            route.path
            for route in app.routes
            if not route.path.startswith(("/calls/", "/callers/", "/live/", "/phone/", "/static/"))
        }
    assert sorted(path for path in paths if f"{path}`" not in README) == []


def test_env_example_lists_every_setting():
    names = re.findall(r"^#?([A-Z_]+)=", ENV_EXAMPLE, re.MULTILINE)
    assert sorted(names) == sorted(NAMES)


def test_env_example_holds_the_defaults(tmp_path):
    uncommented = re.sub(r"^#([A-Z_]+=)", r"\1", ENV_EXAMPLE, flags=re.MULTILINE)
    (tmp_path / ".env").write_text(uncommented, encoding="utf-8")
    assert load({}, tmp_path) == Settings(folder=tmp_path)
    assert [name for name in NAMES if f"\n#{name}={default_text(name)}\n" not in ENV_EXAMPLE] == []


def test_untouched_env_example_sets_nothing(tmp_path):
    (tmp_path / ".env").write_text(ENV_EXAMPLE, encoding="utf-8")
    assert load({"XAI_API_KEY": "k"}, tmp_path) == Settings(folder=tmp_path, xai_api_key=Secret("k"))


def test_agents_example_can_be_used(tmp_path):
    (tmp_path / "gateway.toml").write_text((ROOT / "gateway.toml.example").read_text(encoding="utf-8"))
    agents = AgentDirectory(load({}, tmp_path).agents, ROOT)
    assert [agent.name for agent in agents] == ["maya", "maya-evening"]
    assert agents.answering("+12025550102").name == "maya-evening"


def test_changelog_begins_with_unreleased():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)$", changelog, re.MULTILINE)[0] == "Unreleased"


@pytest.mark.parametrize("name", ["README.md", ".env.example", "gateway.toml.example"])
def test_example_numbers_belong_to_nobody(name):
    numbers = re.findall(r"\+\d[\d ()-]{6,}\d", (ROOT / name).read_text(encoding="utf-8"))
    assert [number for number in numbers if not re.fullmatch(r"\+1 ?202 ?555 ?01\d\d", number)] == []


def test_lock_names_public_hosts_only():
    lock = (ROOT / "uv.lock").read_text(encoding="utf-8")
    assert set(re.findall(r"\w+://([^/\"]+)", lock)) == {"pypi.org", "files.pythonhosted.org"}
    assert set(re.findall(r"source = \{ (\w+) =", lock)) == {"registry", "editable"}


def test_no_file_names_somebodys_folder():
    somebodys = re.compile(rb"/(?:home|root|Users|work)/[\w.]")
    assert [path.name for path in tracked_files() if somebodys.search(path.read_bytes())] == []
