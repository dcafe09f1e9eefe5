"""`gateway init`: what it writes is what `gateway serve` reads."""

import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gateway.agents import AgentDirectory
from gateway.cli.main import main
from gateway.settings import load
from gateway.tools.executor import load_modules

ROOT = Path(__file__).parents[2]


async def test_folder_is_a_whole_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "shop"
    assert main(["init", str(folder)]) == 0
    names = ["gateway.toml", "prompts/maya.md", "functions.py", ".env"]
    lines = [f"wrote  {folder / name}" for name in names]
    assert capsys.readouterr().out == "\n".join([*lines, "", f"Next: cd {folder} && gateway serve", ""])
    assert stat.S_IMODE((folder / ".env").stat().st_mode) == 0o600
    settings = load({}, folder)
    assert (settings.data_dir, settings.voice_session_archive_dir) == (Path("data"), Path("data/archive"))
    assert settings.gateway_admin_token is not None
    agents = AgentDirectory(settings.agents, settings.folder)
    assert [agent.name for agent in agents] == ["maya"]
    assert "{{memory}}" in (folder / "prompts/maya.md").read_text()
    module = await load_modules(agents)["maya"].current()
    assert list(module.tools) == ["opening_hours"]


def test_every_folder_gets_a_token_of_its_own(tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert main(["init", str(tmp_path / name)]) == 0
    assert (tmp_path / "one/.env").read_text() != (tmp_path / "two/.env").read_text()


def test_what_exists_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gateway.toml").write_text("[agents.otto]\n")
    assert main(["init"]) == 0
    assert (tmp_path / "gateway.toml").read_text() == "[agents.otto]\n"
    said = capsys.readouterr().out
    assert said.startswith("kept   gateway.toml\nwrote  prompts/maya.md\n")
    assert said.endswith("\nNext: gateway serve\n")


def test_folder_that_cannot_be_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["init", str(tmp_path / "file")]) == 2
    assert capsys.readouterr() == ("", f"gateway: {tmp_path / 'file'} is not a folder; choose another folder\n")
    (tmp_path / "gateway.toml").mkdir()
    assert main(["init", str(tmp_path)]) == 2
    path = tmp_path / "gateway.toml"
    assert capsys.readouterr() == ("", f"gateway: {path} is not a file; choose another folder\n")


def test_half_of_a_file_is_not_left_behind(tmp_path: Path) -> None:
    """On a full disk. The next run would keep it."""
    code = "import resource, sys; from gateway.cli.main import main\n"
    code += "resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500)); sys.exit(main(['init', 'shop']))"
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    said = "gateway: shop/prompts/maya.md can't be written: File too large; choose another folder\n"
    assert (ran.returncode, ran.stderr) == (2, said)
    assert not (tmp_path / "shop/prompts/maya.md").exists()
    assert main(["init", str(tmp_path / "shop")]) == 0
    assert "{{memory}}" in (tmp_path / "shop/prompts/maya.md").read_text()


def test_wheel_has_the_prompts_in_its_package() -> None:
    """`find_text` looks there; a top-level `prompts` would be a package of every program on the machine."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included["prompts"] == "gateway/prompts"
    assert all(place == f"gateway/{name}" and (ROOT / name).exists() for name, place in included.items())
