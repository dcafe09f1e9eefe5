"""
The widget in Chromium, on a page of another origin with a strict content security policy.

Pictures are left in build/screenshots, to be looked at.
"""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page, expect
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from gateway.simulate.gateway_under_test import serve_on_loopback
from tests.firefox import running_firefox
from tests.stage import Stage, make_carrier, staged, until, until_it
from tests.web.dashboard.browsers import Browsers, require_firefox
from tests.web.dashboard.test_browser import LOOKS, PICTURES
from tests.web.dashboard.test_phone_browser import FAKE, PATIENCE

PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Shop</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<script src="{gateway}/widget.js" data-token-url="/voice-token" data-agent="maya" data-transcript async></script>
</head><body><main><h1>The bike shop</h1><p>Repairs while you wait.</p></main></body></html>"""


pytestmark = pytest.mark.asyncio(loop_scope="module")  # of the browser


@dataclass
class Shop:
    """The website: its page, and its server, which asks the gateway for tokens."""

    stage: Stage
    url: str = ""
    user: dict[str, str] = field(default_factory=lambda: {"user_identity": "anna@42", "name": "Anna Lopez"})
    status: int = 201
    used: str = ""
    """A token that was used before, to be given out again."""

    async def page(self, request: Request) -> Response:
        socket = self.stage.url.replace("http", "ws")
        policy = f"default-src 'none'; script-src {self.stage.url}; connect-src 'self' {self.stage.url} {socket}"
        return HTMLResponse(PAGE.format(gateway=self.stage.url), headers={"Content-Security-Policy": policy})

    async def token(self, request: Request) -> Response:
        about = {**await request.json(), "origin": self.url, **self.user}
        answer: httpx.Response = await self.stage.http.post("/v1/widget/tokens", json=about)
        given = answer.json()
        if self.used:
            given["token"] = self.used
        return JSONResponse(given, self.status)

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/", self.page), Route("/voice-token", self.token, methods=["POST"])])


@contextlib.asynccontextmanager
async def a_shop(
    browsers: Browsers, folder: Path, *args: str, **look: object
) -> AsyncIterator[tuple[Shop, Page, list[str]]]:
    """The website in a browser, and what the browser complains about."""
    async with (
        staged(folder, make_carrier("twilio")) as stage,
        serve_on_loopback((shop := Shop(stage)).app()) as shop.url,
        await (await browsers.open(*args)).new_context(**look) as context,
    ):
        page = await context.new_page()
        page.set_default_timeout(PATIENCE)
        expect.set_options(timeout=PATIENCE)
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        await page.goto(shop.url)
        yield shop, page, problems


async def call(shop: Shop, page: Page, name: str) -> object:
    """Press the button; the engine's side of the call, once the browser is connected."""
    await page.get_by_role("button", name=name).click()
    conversation = await shop.stage.engine.next_conversation()
    await conversation.configured()
    await expect(page.get_by_role("status")).to_have_text("Connected")
    return conversation


async def is_accessible(page: Page) -> bool:
    problems = (await Axe().run(page)).response["violations"]
    assert problems == [], problems
    return not await page.evaluate("document.documentElement.scrollWidth > innerWidth")


async def test_user_of_a_strict_page_is_remembered(browsers: Browsers, tmp_path: Path) -> None:
    async with a_shop(browsers, tmp_path, *FAKE, **LOOKS["light"]) as (shop, page, problems):
        await expect(page.get_by_role("button", name="Talk to us")).to_be_visible()
        assert await is_accessible(page)
        await page.screenshot(path=PICTURES / "widget-button.png")
        first = await call(shop, page, "Talk to us")
        assert first.prompt.endswith("The caller is logged in to the website as Anna Lopez.")
        await until(lambda: first.heard.strip(b"\xff"))  # the microphone beeps
        await first.user_says("I prefer walnuts.")
        await first.agent_says("Noted. Your bike will be ready on Thursday at ten.")
        await expect(page.get_by_text("I prefer walnuts.")).to_be_visible()
        await expect(page.get_by_text("Your bike will be ready")).to_be_visible()
        await page.get_by_role("button", name="Mute").click()
        await expect(page.get_by_role("button", name="Mute")).to_have_attribute("aria-pressed", "true")
        await expect(page.get_by_role("status")).to_have_text("Connected, muted")
        await page.get_by_role("button", name="Mute").click()
        for look, options in LOOKS.items():
            await page.emulate_media(color_scheme=options["color_scheme"])
            await page.set_viewport_size(options["viewport"])
            assert await is_accessible(page)
            await page.screenshot(path=PICTURES / f"widget-call-{look}.png")
        await page.get_by_role("button", name="Hang up").click()
        await expect(page.get_by_role("status")).to_have_text("The call has ended.")
        await expect(page.get_by_role("button", name="Call again")).to_be_focused()
        assert await is_accessible(page)
        await page.screenshot(path=PICTURES / "widget-ended.png")
        await shop.stage.idle()
        second = await call(shop, page, "Call again")
        assert "walnuts" in second.prompt
        await page.keyboard.press("Enter")  # the focus is on "Hang up"
        await expect(page.get_by_role("status")).to_have_text("The call has ended.")
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("button", name="Talk to us")).to_be_focused()
        assert problems == []


async def test_what_went_wrong_is_in_plain_words(browsers: Browsers, tmp_path: Path) -> None:
    async with a_shop(browsers, tmp_path, *FAKE, **LOOKS["phone"]) as (shop, page, _):
        status = page.get_by_role("status")
        shop.used = (await shop.stage.http.post("/v1/widget/tokens", json={"origin": shop.url})).json()["token"]
        given = {"data": {"token": shop.used}, "headers": {"Origin": shop.url}}
        assert (await shop.stage.http.post("/widget/call", **given)).status_code == 201
        await page.get_by_role("button", name="Talk to us").click()
        await expect(status).to_have_text("The call could not be started. Reload the page, then call again.")
        await page.screenshot(path=PICTURES / "widget-refused.png")
        shop.status = 429
        await page.get_by_role("button", name="Call again").click()
        await expect(status).to_have_text("All lines are busy. Try again in a moment.")
        shop.status, shop.used = 503, ""
        await page.get_by_role("button", name="Call again").click()
        await expect(status).to_have_text("Calls are not possible right now. Try again later.")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (
            ("--use-fake-device-for-media-stream", "--deny-permission-prompts"),
            "This page is not allowed to use your microphone.",
        ),
        (("--use-fake-ui-for-media-stream",), "No microphone found."),
    ],
)
async def test_widget_without_a_microphone_says_so(
    browsers: Browsers, tmp_path: Path, args: tuple[str, ...], words: str
) -> None:
    async with a_shop(browsers, tmp_path, *args) as (_, page, problems):
        await page.get_by_role("button", name="Talk to us").click()
        await expect(page.get_by_role("status")).to_contain_text(words)
        assert problems == []


async def test_widget_calls_in_firefox_too(tmp_path: Path) -> None:
    """The same policy is enough there."""
    require_firefox()
    fake = {
        "media.navigator.streams.fake": True,
        "media.navigator.permission.disabled": True,
        "media.autoplay.default": 0,
        "network.proxy.type": 0,
    }
    async with (
        staged(tmp_path, make_carrier("twilio")) as stage,
        serve_on_loopback((shop := Shop(stage)).app()) as shop.url,
        running_firefox(tmp_path, fake) as firefox,
    ):
        await firefox.go(shop.url)

        async def has_button() -> bool:
            return await firefox.run("String(document.querySelector('voice-widget') !== null)") == "true"

        await until_it(has_button)
        await firefox.run("document.querySelector('voice-widget').shadowRoot.querySelector('.launch').click()")
        conversation = await stage.engine.next_conversation()
        await conversation.configured()
        await until(lambda: conversation.heard.strip(b"\xff"))
        await firefox.picture(PICTURES / "widget-firefox.png")
