"""The browsers on this machine. Without one its tests are skipped; in CI they fail and say what to install."""

import os
import shutil

import pytest

from tests.firefox import FIREFOX, PULSEAUDIO

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def require_chromium() -> None:
    _require(CHROMIUM, "chromium")


def require_firefox() -> None:
    _require(FIREFOX, "firefox-esr")
    _require(PULSEAUDIO, "pulseaudio")


def _require(program: str | None, package: str) -> None:
    if program is not None:
        return
    message = f"{package} is missing; run scripts/browser as root, or: apt-get install {package}"
    if os.environ.get("CI"):
        pytest.fail(message, pytrace=False)
    pytest.skip(message)
