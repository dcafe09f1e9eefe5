"""The browsers on this machine. Without one its tests are skipped; in CI they fail and say what to install."""

import os
import shutil

import pytest
from playwright.async_api import Browser, Playwright

from tests.firefox import FIREFOX, PULSEAUDIO
from tests.stage import PATIENCE

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


class Browsers:
    """Running Chromium browsers, one for each set of arguments. Tests open their own contexts in them."""

    def __init__(self, playwright: Playwright) -> None:
        self._playwright = playwright
        self._running: dict[tuple[str, ...], Browser] = {}

    async def open(self, *args: str) -> Browser:
        if args not in self._running:
            self._running[args] = await self._playwright.chromium.launch(
                executable_path=CHROMIUM, args=["--no-sandbox", *args], timeout=PATIENCE * 1000
            )
        return self._running[args]

    async def close(self) -> None:
        for browser in self._running.values():
            await browser.close()
