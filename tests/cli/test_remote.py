"""A running gateway, as commands reach it."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from gateway.cli.remote import Remote, parse_time
from gateway.errors import SettingsError
from gateway.invocation import command
from gateway.settings import Secret, Settings
from gateway.simulate.gateway_under_test import serve_on_loopback

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
    (tmp_path / "admin-token").write_text("kept-by-the-first-start\n")
    settings = Settings(data_dir=tmp_path)
    assert Remote.of(settings).token == Secret("kept-by-the-first-start")
    with pytest.raises(SettingsError, match="no admin token; set GATEWAY_ADMIN_TOKEN"):
        Remote.of(settings, "https://voice.example.com")


def test_unreadable_token_is_named(tmp_path: Path) -> None:
    (tmp_path / "admin-token").write_bytes(b"\xff")
    with pytest.raises(SettingsError, match="admin-token is not text; delete it, and a new one is made"):
        Remote.of(Settings(data_dir=tmp_path))


def test_folder_without_a_gateway_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as raised:
        Remote.of(Settings(data_dir=tmp_path))
    how = f"start one with `{command('serve')}`, or give its address with --url"
    assert str(raised.value) == f"no gateway has been started with DATA_DIR={tmp_path}; {how}"


async def complaint(answer: Response) -> str:
    """The error about a server that answers like this, with its address as URL."""
    app = Starlette(routes=[Route("/v1/sessions", lambda request: answer)])
    async with serve_on_loopback(app, lifespan="off") as url:
        with pytest.raises(SettingsError) as raised:
            await asyncio.to_thread(Remote(url, TOKEN).get, "/v1/sessions")
    return str(raised.value).replace(url, "URL")


@pytest.mark.parametrize(
    "answer",
    [RedirectResponse("/login"), JSONResponse({}, 301), HTMLResponse("<h1>It works!</h1>"), HTMLResponse("none", 404)],
)
async def test_another_server_is_no_gateway(answer: Response) -> None:
    assert await complaint(answer) == "what answers at URL is not a gateway; give the gateway's address with --url"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [(JSONResponse({"detail": "no such\ncall"}, 404), "no such call"), (HTMLResponse("down", 502), "no reason given")],
)
async def test_refusal_is_given_with_its_reason(answer: Response, reason: str) -> None:
    assert await complaint(answer) == f"URL answered {answer.status_code}: {reason}"


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("10m", 600), ("2h", 7200), ("3d", 259_200)])
def test_time_may_be_an_age(text: str, seconds: int) -> None:
    assert abs(datetime.now(UTC) - timedelta(seconds=seconds) - parse_time(text)) < timedelta(seconds=5)


def test_time_may_be_a_date() -> None:
    assert parse_time("2026-02-06T23:15:00+01:00") == datetime(2026, 2, 6, 22, 15, tzinfo=UTC)


@pytest.mark.parametrize("text", ["", "yesterday", "5w", "2026-02-30", "9999999d"])
def test_other_words_are_no_time(text: str) -> None:
    with pytest.raises(SettingsError, match="is not a valid time"):
        parse_time(text)
