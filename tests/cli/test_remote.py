"""A running gateway, as commands reach it."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.cli.remote import Remote, parse_time
from gateway.errors import SettingsError
from gateway.settings import Secret, Settings

TOKEN = Secret("token")


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:8000"), ("0.0.0.0", "http://127.0.0.1:8000"), ("::1", "http://[::1]:8000")],
)
def test_address_comes_from_the_settings(host: str, url: str) -> None:
    assert Remote.of(Settings(host=host, gateway_admin_token=TOKEN)).url == url


def test_given_address_is_used_without_its_slash() -> None:
    remote = Remote.of(Settings(gateway_admin_token=TOKEN), "https://voice.example.com/")
    assert remote.url == "https://voice.example.com"
    assert remote.headers == {"Authorization": "Bearer token"}


def test_token_of_another_gateway_must_be_given(tmp_path: Path) -> None:
    (tmp_path / "admin-token").write_text("kept\n")
    settings = Settings(data_dir=tmp_path)
    assert Remote.of(settings).token == Secret("kept")
    with pytest.raises(SettingsError, match="no admin token; set GATEWAY_ADMIN_TOKEN"):
        Remote.of(settings, "https://voice.example.com")


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("10m", 600), ("2h", 7200), ("3d", 259_200)])
def test_time_may_be_an_age(text: str, seconds: int) -> None:
    assert abs(datetime.now(UTC) - timedelta(seconds=seconds) - parse_time(text)) < timedelta(seconds=5)


def test_time_may_be_a_date() -> None:
    assert parse_time("2026-02-06T23:15:00+01:00") == datetime(2026, 2, 6, 22, 15, tzinfo=UTC)


@pytest.mark.parametrize("text", ["", "yesterday", "5w", "2026-02-30", "9999999d"])
def test_other_words_are_no_time(text: str) -> None:
    with pytest.raises(SettingsError, match="is not a valid time"):
        parse_time(text)
