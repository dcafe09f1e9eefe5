"""A missing browser is a skipped test at home and a failed one in CI."""

import pytest

from tests.web.dashboard import browsers

MESSAGE = "chromium is missing; run scripts/browser as root, or: apt-get install chromium"


@pytest.fixture(autouse=True)
def no_chromium(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browsers, "CHROMIUM", None)


def test_missing_browser_fails_in_ci(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception) as raised:
        browsers.require_chromium()
    assert (str(raised.value), raised.value.pytrace) == (MESSAGE, False)


def test_missing_browser_is_skipped_at_home(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception) as raised:
        browsers.require_chromium()
    assert str(raised.value) == MESSAGE
