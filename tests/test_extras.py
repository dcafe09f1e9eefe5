"""Optional parts: pyproject.toml has them, and a missing one is one line."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gateway import extras
from gateway.errors import SettingsError

PYPROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("extra", extras.PACKAGES)
def test_every_extra_is_one_of_the_package(extra):
    assert extra in PYPROJECT["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", extras.PACKAGES)
def test_tests_have_every_extra(extra):
    assert extras.is_installed(extra)


def test_missing_extra_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", None)  # as if it were not installed
    assert not extras.is_installed("workers")
    with pytest.raises(SettingsError) as raised:
        extras.require("redis", "REDIS_URL is set")
    assert str(raised.value) == (
        f"REDIS_URL is set but the extra redis is not installed; run: {extras.how_to_install('redis')}"
    )


def test_portaudio_is_installed_with_the_package_manager_that_is_here(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert extras.how_to_install_portaudio() == "see https://portaudio.com"
    (tmp_path / "dnf").touch(mode=0o755)
    assert extras.how_to_install_portaudio() == "sudo dnf install portaudio"


def test_server_loads_no_optional_package():
    """The core does without them: each is imported where it is used."""
    optional = sorted({package.partition(".")[0] for packages in extras.PACKAGES.values() for package in packages})
    code = f"import sys, gateway.cli.main, gateway.app; print([name for name in {optional} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert loaded.stdout == "[]\n"
