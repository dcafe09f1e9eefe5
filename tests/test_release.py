"""A release, made in a copy of the checkout."""

import hashlib
import json
import os
import subprocess
import tomllib
import zipfile
from datetime import date
from pathlib import Path

import pytest

from scripts.release import ReleaseError, check_version, has_buildx, main, released_changelog

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone with the files as they are now."""
    folder = tmp_path_factory.mktemp("release") / "checkout"
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    for name in listed:
        if (source := ROOT / name).is_file() and not name.startswith("tests/"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(source.read_bytes())
            (folder / name).chmod(source.stat().st_mode)
    for command in (
        ["init", "--quiet", "--initial-branch=main"],
        ["config", "user.name", "test"],
        ["config", "user.email", "test@example.com"],
        ["add", "--all"],
        ["commit", "--quiet", "--message", "All"],
    ):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout


def test_release_has_everything(checkout, capfd):
    assert main(["0.9.0", "--no-image"], root=checkout) == 0
    folder = checkout / "dist" / "0.9.0"
    names = {path.name for path in folder.iterdir()}
    wheel, bill = "voice_gateway-0.9.0-py3-none-any.whl", "voice-gateway-0.9.0.cdx.json"
    assert names == {wheel, "voice_gateway-0.9.0.tar.gz", bill, "SHA256SUMS"}
    assert json.loads((folder / bill).read_text())["metadata"]["component"]["version"] == "0.9.0"
    sums = dict(reversed(line.split("  ")) for line in (folder / "SHA256SUMS").read_text().splitlines())
    assert sums == {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names - {"SHA256SUMS"}}
    with zipfile.ZipFile(folder / wheel) as opened:
        inside = opened.namelist()
        fields = opened.read("voice_gateway-0.9.0.dist-info/METADATA").decode()
    assert not [name for name in inside if name.partition("/")[0] not in ("gateway", "voice_gateway-0.9.0.dist-info")]
    assert "Version: 0.9.0" in fields and "License-Expression: MIT" in fields and "Requires-Python: >=3.11" in fields

    assert git(checkout, "status", "--porcelain") == ""
    assert git(checkout, "tag").split() == ["v0.9.0"]
    assert git(checkout, "log", "-1", "--format=%s").strip() == "Release 0.9.0"
    assert tomllib.loads((checkout / "pyproject.toml").read_text())["project"]["version"] == "0.9.0"
    [locked] = [
        one
        for one in tomllib.loads((checkout / "uv.lock").read_text())["package"]
        if "virtual" in one["source"] or "editable" in one["source"]
    ]
    assert locked["version"] == "0.9.0"
    changes = (checkout / "CHANGELOG.md").read_text()
    assert f"## Unreleased\n\n## 0.9.0 - {date.today().isoformat()}\n\n### Added" in changes
    assert "docker buildx build --platform linux/amd64,linux/arm64" in capfd.readouterr().err

    assert main(["0.9.0", "--no-image"], root=checkout) == 2
    assert capfd.readouterr().err == "release: the tag v0.9.0 exists already\n"
    (checkout / "README.md").write_text("changed")
    assert main(["0.9.1", "--no-image"], root=checkout) == 2
    assert capfd.readouterr().err == "release: there are uncommitted changes; commit or remove them first\n"


@pytest.mark.parametrize("step", ["uv", "scripts/sbom", "docker", "git commit"])
def test_failed_release_changes_nothing(step, checkout, tmp_path, monkeypatch, capfd):
    folder, programs = tmp_path / "checkout", tmp_path / "programs"
    subprocess.run(["git", "clone", "--quiet", str(checkout), str(folder)], check=True)
    git(folder, "reset", "--hard", git(folder, "rev-list", "--max-parents=0", "HEAD").strip())
    version = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["version"]
    files = {
        "uv": programs / "uv",
        "scripts/sbom": folder / "scripts" / "sbom",
        "docker": programs / "docker",
        "git commit": folder / ".git" / "hooks" / "pre-commit",
    }
    programs.mkdir()
    _program(programs / "docker", "exit 0")
    _program(files[step], '[ "$2" = version ]' if step == "docker" else "exit 1")
    for command in (["config", "user.name", "test"], ["config", "user.email", "test@example.com"], ["add", "--all"]):
        git(folder, *command)
    git(folder, "commit", "--allow-empty", "--no-verify", "--message", "With the program that fails")
    before = git(folder, "rev-parse", "HEAD")
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    assert main(["0.9.7"], root=folder) == 2
    assert f"release: {step}" in capfd.readouterr().err
    assert git(folder, "rev-parse", "HEAD") == before
    assert (git(folder, "status", "--porcelain"), git(folder, "tag", "--list", "v0.9.7")) == ("", "")
    assert not (folder / "dist" / "0.9.7").exists()
    assert tomllib.loads((folder / "pyproject.toml").read_text())["project"]["version"] == version


@pytest.mark.parametrize(("script", "found"), [("exit 0", True), ("exit 1", False)])
def test_docker_without_buildx_makes_no_image(script, found, tmp_path, monkeypatch):
    _program(tmp_path / "docker", script)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert has_buildx() is found


def _program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("version", "problem"),
    [("0.2", "'0.2' is not a version; give three numbers, such as 0.2.0"), ("0.0.9", "0.0.9 is older than 0.1.0")],
)
def test_wrong_versions_are_refused(version, problem):
    with pytest.raises(ReleaseError) as raised:
        check_version(version, "0.1.0")
    assert str(raised.value) == problem


def test_empty_changelog_is_refused():
    with pytest.raises(ReleaseError) as raised:
        released_changelog("# Changelog\n\n## Unreleased\n\n## 0.1.0 - 2026-11-01\n", "0.2.0", date(2026, 11, 18))
    assert str(raised.value) == "CHANGELOG.md has nothing under Unreleased"
