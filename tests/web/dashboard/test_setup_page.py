"""The set-up checklist, over HTTP and in both browsers."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import expect

from gateway.history.calls_table import CallsTable
from gateway.history.stores import open_local_store
from gateway.settings import Secret
from gateway.web.login_sessions import LoginLinks
from tests.calls.aftermath import a_session
from tests.fakes.accounts import TOKEN, FakeTwilioAccount
from tests.firefox import running_firefox
from tests.ports import free_port
from tests.stage import ADMIN, PATIENCE, Stage, make_carrier, staged, until_it
from tests.web.dashboard.browsers import Browsers, require_firefox
from tests.web.dashboard.test_browser import LOOKS, PICTURES

pytestmark = pytest.mark.asyncio(loop_scope="module")  # of the browser
SCREENS = LOOKS | {"phone-dark": {**LOOKS["phone"], "color_scheme": "dark"}}


def login(stage: Stage) -> str:
    return f"{stage.url}/login?code={LoginLinks(Secret(ADMIN)).make()}"


@contextlib.asynccontextmanager
async def an_empty_gateway(folder: Path) -> AsyncIterator[tuple[Stage, int]]:
    """With an account at Twilio, and a PUBLIC_URL at a port where nothing listens yet."""
    port = free_port()
    async with FakeTwilioAccount("+12025550100").running() as account:
        environ = {"PUBLIC_URL": f"http://127.0.0.1:{port}", **account.settings()}
        async with staged(folder, make_carrier("telnyx"), **environ) as stage:
            yield stage, port


@contextlib.asynccontextmanager
async def a_tunnel(port: int, target: str) -> AsyncIterator[None]:
    """Forwards connections to the gateway."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", int(target.rpartition(":")[2]))
        await asyncio.gather(pump(reader, back), pump(there, writer))

    server = await asyncio.start_server(forward, "127.0.0.1", port)
    try:
        yield
    finally:
        server.close()


async def end_a_call(folder: Path) -> None:
    store = await open_local_store(folder / "data")
    await CallsTable(store).write(a_session(), document_id="", summary_by="")
    await store.close()


async def test_empty_system_starts_with_the_steps(tmp_path: Path) -> None:
    async with an_empty_gateway(tmp_path) as (stage, _), httpx.AsyncClient(timeout=PATIENCE) as browser:
        assert (await browser.get(f"{stage.url}/setup")).headers["location"] == "/login"
        assert (await browser.get(f"{stage.url}/setup/steps")).status_code == 401
        await browser.get(login(stage))
        start = (await browser.get(f"{stage.url}/")).text
        assert 'id="setup"' in start and "checking" in start
        steps = (await browser.get(f"{stage.url}/setup/steps")).text
        assert "answers and accepts the key" in steps
        assert (
            "twilio numbers</bdi>: none leads here (+12025550100)<br><b>To do:</b> run: gateway setup twilio" in steps
        )
        assert "no gateway at http://127.0.0.1:" in steps and "cloudflared tunnel --url" in steps
        assert TOKEN not in steps and "dg-" not in steps
        docs = await browser.get(f"{stage.url}/setup/docs/twilio.md")
        assert docs.text.startswith("# Twilio") and docs.headers["content-type"] == "text/plain; charset=utf-8"
        assert (await browser.get(f"{stage.url}/setup/docs/security.md")).status_code == 404


async def test_number_without_public_url_is_not_done(tmp_path: Path) -> None:
    """With the key and the callers in place: nobody has looked where the number leads."""
    unreached = {"PUBLIC_URL": "", "ALLOWED_CALLERS": "+12025550143"}
    async with (
        FakeTwilioAccount("+12025550100").running() as account,
        staged(tmp_path, make_carrier("telnyx"), **unreached, **account.settings()) as stage,
        httpx.AsyncClient(timeout=PATIENCE) as browser,
    ):
        await browser.get(login(stage))
        steps = (await browser.get(f"{stage.url}/setup/steps")).text
    assert "answers and accepts the key" in steps and "callers</bdi>: 1 allowed" in steps
    assert re.search(r'Phone number <span class="badge open">to do</span>', steps)
    assert "twilio numbers</bdi>: PUBLIC_URL is missing, so the numbers were not checked<br><b>To do:</b> set" in steps


async def test_steps_leave_the_start_page_with_the_first_call(tmp_path: Path) -> None:
    await end_a_call(tmp_path)
    async with an_empty_gateway(tmp_path) as (stage, _), httpx.AsyncClient(timeout=PATIENCE) as browser:
        await browser.get(login(stage))
        assert 'id="setup"' not in (await browser.get(f"{stage.url}/")).text
        assert 'href="/setup"' in (await browser.get(f"{stage.url}/vitals")).text
        assert "The newest call</a>" in (await browser.get(f"{stage.url}/setup")).text


@pytest.mark.parametrize("look", SCREENS)
async def test_steps_in_chromium(browsers: Browsers, tmp_path: Path, look: str) -> None:
    """They change by themselves when the tunnel starts; nothing is wider than the screen; axe-core finds nothing."""
    async with (
        an_empty_gateway(tmp_path) as (stage, port),
        await (await browsers.open()).new_context(**SCREENS[look]) as context,
    ):
        page = await context.new_page()
        page.set_default_timeout(PATIENCE * 1000)
        problems: list[str] = []
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        await page.goto(login(stage))
        await expect(page.locator("#setup")).to_contain_text("no gateway at", timeout=PATIENCE * 1000)
        assert (await Axe().run(page)).response["violations"] == []
        assert not await page.evaluate("document.documentElement.scrollWidth > innerWidth")
        await page.screenshot(path=PICTURES / f"setup-{look}.png", full_page=True)
        async with a_tunnel(port, stage.url):
            await expect(page.locator("#setup")).to_contain_text("leads to this gateway", timeout=PATIENCE * 1000)
        assert problems == []


async def test_steps_in_firefox(tmp_path: Path) -> None:
    """The first call appears by itself."""
    require_firefox()
    async with an_empty_gateway(tmp_path) as (stage, _), running_firefox(tmp_path, {}) as firefox:
        await firefox.go(login(stage))

        async def shows(text: str) -> bool:
            return text in await firefox.run("document.getElementById('setup').textContent")

        await until_it(lambda: shows("no gateway at"))
        await firefox.picture(PICTURES / "setup-firefox.png")
        await end_a_call(tmp_path)
        await until_it(lambda: shows("The newest call"))
