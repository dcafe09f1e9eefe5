"""
The dashboard in a real browser: Chromium, driven by Playwright.

Pictures of every page are left in build/screenshots, to be looked at.
"""

import contextlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import BrowserContext, Page, Route, expect

from gateway.finalization.summary.call_summary import CallSummary
from gateway.history.api_tokens import TokenScope, TokenTable
from gateway.history.stores import open_local_store
from gateway.session import Speaker, Turn, VoiceSession
from gateway.settings import Secret
from gateway.web.login_sessions import LoginLinks
from tests.calls.aftermath import a_session
from tests.stage import ADMIN, PATIENCE, Stage, make_carrier, staged, until, until_it
from tests.web.dashboard.browsers import Browsers
from tests.web.dashboard.examples import fill, keep
from tests.web.dashboard.test_call_pages import HOSTILE

PICTURES = Path("build/screenshots")
PICTURES.mkdir(parents=True, exist_ok=True)
LOOKS = {
    "light": {"color_scheme": "light", "viewport": {"width": 1280, "height": 860}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1280, "height": 860}},
    "phone": {"color_scheme": "light", "viewport": {"width": 390, "height": 844}},
}

PATIENCE_MS = PATIENCE * 1000
pytestmark = pytest.mark.asyncio(loop_scope="module")  # of the browser


@dataclass
class Tab:
    """One page of a browser, and whatever went wrong in it."""

    page: Page
    context: BrowserContext
    stage: Stage
    session: VoiceSession
    problems: list[str] = field(default_factory=list)

    async def open(self, path: str) -> None:
        await self.page.goto(self.stage.url + path)

    async def log_in(self) -> None:
        await self.open(f"/login?code={LoginLinks(Secret(ADMIN)).make()}")

    async def paths(self) -> dict[str, str]:
        await self.open(f"/calls/{self.session.uuid}")
        caller = await self.page.get_attribute("h1 a", "href")
        return {
            "live": "/",
            "calls": "/calls",
            "call": f"/calls/{self.session.uuid}",
            "callers": "/callers",
            "caller": caller,
            "phone": "/phone",
            "guest": "/phone/guest#token",
            "tokens": "/tokens",
            "health": "/vitals?period=month",
            "audit": "/audit",
            "problem": "/calls/unknown",
        }


@contextlib.asynccontextmanager
async def a_tab(
    browsers: Browsers, folder: Path, look: str = "light", *, calls: int = 24, **environ: str
) -> AsyncIterator[Tab]:
    """A gateway with some calls behind it, and a browser before it. Fails where the browser complains."""
    record_dir = folder / "recordings"
    session = await fill(folder / "data", folder / "archive", record_dir, now=datetime.now(UTC), calls=calls)
    async with (
        staged(
            folder, make_carrier("twilio"), RECORD_DIR=str(record_dir), RECORD_RETENTION_DAYS="0", **environ
        ) as stage,
        await (await browsers.open()).new_context(**LOOKS[look]) as context,
    ):
        page = await context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        expect.set_options(timeout=PATIENCE_MS)
        tab = Tab(page, context, stage, session)
        page.on("pageerror", lambda error: tab.problems.append(str(error)))
        page.on("dialog", lambda dialog: tab.problems.append(f"dialog {dialog.message}"))
        page.on("console", lambda message: tab.problems.append(message.text) if message.type == "error" else None)
        yield tab
        problems = [problem for problem in tab.problems if "404" not in problem]
        assert problems == []


async def make_tokens(data_dir: Path) -> None:
    store = await open_local_store(data_dir)
    table = TokenTable(store)
    await table.create(TokenScope.READ, label="Dashboards in Grafana, second floor")
    await table.create(TokenScope.MCP, label="Ana's assistant", agent="maya", caller="+12025550143", days=0)
    old, _ = await table.create(TokenScope.ADMIN)
    await table.revoke(old.id)
    await store.close()


@pytest.mark.parametrize("look", LOOKS)
async def test_every_page_can_be_used_by_everybody(browsers: Browsers, tmp_path: Path, look: str):
    """axe-core finds nothing, nothing is wider than the screen, and a picture is taken."""
    found, wide = {}, []
    async with a_tab(browsers, tmp_path, look) as tab:
        await tab.open("/login")
        found["login"] = (await Axe().run(tab.page)).response["violations"]
        await tab.page.screenshot(path=PICTURES / f"login-{look}.png")
        await tab.log_in()
        await make_tokens(tmp_path / "data")
        for name, path in (await tab.paths()).items():
            await tab.open(path)
            found[name] = (await Axe().run(tab.page)).response["violations"]
            if await tab.page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                wide.append(name)
            await tab.page.screenshot(path=PICTURES / f"{name}-{look}.png", full_page=True)
    assert {name: [(one["id"], one["nodes"][0]["html"]) for one in some] for name, some in found.items() if some} == {}
    assert wide == []


async def test_login_link_leaves_no_token_behind(browsers: Browsers, tmp_path: Path):
    async with a_tab(browsers, tmp_path, calls=12) as tab:
        await tab.log_in()
        assert tab.page.url == f"{tab.stage.url}/"
        assert await tab.page.evaluate("document.cookie") == ""
        assert ADMIN not in await tab.page.evaluate("performance.getEntriesByType('navigation')[0].name")
        assert ADMIN not in await tab.page.content()
        assert await tab.page.evaluate("document.referrer") == ""
        [cookie] = await tab.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")


async def test_used_link_leaves_no_code_behind_and_says_what_to_do(browsers: Browsers, tmp_path: Path):
    async with a_tab(browsers, tmp_path, calls=12) as tab:
        code = LoginLinks(Secret(ADMIN)).make()
        await tab.open(f"/login?code={code}")
        await tab.context.clear_cookies()
        await tab.open(f"/login?code={code}")
        await expect(tab.page.get_by_role("alert")).to_contain_text("This login link has been used or has expired.")
        await tab.page.wait_for_url(f"{tab.stage.url}/login")
        assert code not in await tab.page.content()
        tab.problems.clear()  # the console shows the status 401


async def test_token_is_created_and_revoked(browsers: Browsers, tmp_path: Path):
    async with a_tab(browsers, tmp_path, "phone", calls=12) as tab:
        page = tab.page
        await tab.log_in()
        await tab.open("/tokens")
        await page.get_by_label("Label").fill("Dashboards in Grafana, second floor")
        await page.get_by_role("button", name="Create token").click()
        await expect(page.get_by_label("New token", exact=True)).to_contain_text("vg_")
        violations = (await Axe().run(page)).response["violations"]
        assert [(one["id"], one["nodes"][0]["html"]) for one in violations] == []
        assert not await page.evaluate("document.documentElement.scrollWidth > innerWidth")
        await page.screenshot(path=PICTURES / "token-created-phone.png", full_page=True)
        await page.locator(".revoke summary").click()
        await page.get_by_label("I am sure.").check()
        await page.get_by_role("button", name="Revoke", exact=True).click()
        await expect(page.get_by_role("status")).to_have_text("Revoked.")
        await expect(page.locator(".badge.bad")).to_have_text("revoked")


async def test_link_on_another_site_logs_in_too(browsers: Browsers, tmp_path: Path):
    """Another name for the same machine is another site to a browser."""
    async with a_tab(browsers, tmp_path, calls=12) as tab:
        other = tab.stage.url.replace("127.0.0.1", "localhost")
        await tab.page.goto(f"{other}/login")
        await tab.page.evaluate(
            "url => { const a = document.createElement('a'); a.href = url; document.body.append(a); a.click() }",
            f"{tab.stage.url}/login?code={LoginLinks(Secret(ADMIN)).make()}",
        )
        await tab.page.wait_for_url(f"{tab.stage.url}/")
        await expect(tab.page.get_by_role("heading", name="Live", exact=True)).to_be_visible()


async def test_keyboard_is_enough(browsers: Browsers, tmp_path: Path):
    async with a_tab(browsers, tmp_path) as tab:
        page = tab.page
        await tab.open("/login")
        await page.keyboard.type(ADMIN)
        await page.keyboard.press("Enter")
        await page.wait_for_url(f"{tab.stage.url}/")
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.className") == "skip"
        await page.keyboard.type("gc")
        await page.wait_for_url("**/calls")
        await page.keyboard.press("/")
        await page.keyboard.type("squeaking chain")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/calls?find=*")
        await page.locator("a.whole").first.focus()
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/calls/*-*")
        await expect(page.locator("#summary + h3 + ul")).to_contain_text("squeaking chain")


async def test_fact_is_corrected_on_the_page(browsers: Browsers, tmp_path: Path):
    async with a_tab(browsers, tmp_path) as tab:
        await tab.log_in()
        await tab.open((await tab.paths())["caller"])
        fact = tab.page.locator(".facts li", has_text="Can't take calls at work")
        await fact.locator("summary").click()
        await fact.get_by_label("Correct this fact").fill("Takes calls after noon")
        await fact.get_by_role("button", name="Save").click()
        await expect(tab.page.get_by_role("status")).to_contain_text("Fact changed")
        await expect(tab.page.locator(".fact", has_text="Takes calls after noon")).to_have_count(1)


async def test_recording_plays_from_where_one_points(browsers: Browsers, tmp_path: Path):
    async with a_tab(browsers, tmp_path, calls=12) as tab:
        await tab.log_in()
        await tab.open(f"/calls/{tab.session.uuid}")
        await tab.page.locator(".timeline .span").nth(3).click()
        # Not `wait_for_function`: once it has to wait, it uses `eval`, which the page forbids.
        await until_it(lambda: tab.page.evaluate("document.getElementById('recording').duration > 30"))
        assert await tab.page.evaluate("document.getElementById('recording').currentTime > 3")
        await expect(tab.page.locator(".timeline-card")).to_have_class("card timeline-card playing")


async def test_hostile_words_do_nothing(browsers: Browsers, tmp_path: Path):
    async with a_tab(browsers, tmp_path, calls=12) as tab:
        store = await open_local_store(tmp_path / "data")
        for words in HOSTILE:
            turns = [Turn(Speaker.CALLER, words, datetime.now(UTC), words)]
            session = a_session(turns=turns, started_at=datetime.now(UTC), state={"note": words.replace("\x00", "")})
            await keep(store, session, CallSummary(words, (words,), (words,), (words,), (words,), words, words))
        await store.close()
        await tab.log_in()
        for path in ("/", "/calls", f"/calls/{session.uuid}", "/callers", "/vitals"):
            await tab.open(path)
        assert await tab.page.locator("img[src=x], [onerror], [onmouseover]").count() == 0


async def test_call_is_seen_as_it_is_spoken(browsers: Browsers, tmp_path: Path):
    async with a_tab(browsers, tmp_path, calls=12) as tab:
        await tab.log_in()
        await expect(tab.page.get_by_text("No live calls")).to_be_visible()
        call, conversation = await tab.stage.dial()
        card = tab.page.locator("article")
        await expect(card.get_by_role("heading")).to_have_text("+1 202-555-0143")
        await tab.stage.played(call, conversation)
        await conversation.user_says("Is <img src=x onerror=alert(1)> ready?")
        await expect(card.locator(".turn.caller .said")).to_have_text("Is <img src=x onerror=alert(1)> ready?")
        await tab.stage.answer(call, conversation, "It is ready.")
        answer = card.locator(".turn.agent").last
        await expect(answer.locator(".said")).to_have_text("It is ready.")
        await expect(answer.locator(".chip")).to_contain_text(re.compile(r"^[\d.]+ m?s$"))
        assert await card.locator("img").count() == 0
        await tab.page.reload()
        await expect(card.locator(".turn.caller .said")).to_have_text("Is <img src=x onerror=alert(1)> ready?")
        assert (await Axe().run(tab.page)).response["violations"] == []
        await tab.page.screenshot(path=PICTURES / "live-call.png", full_page=True)
        await call.hang_up()
        await expect(card.locator(".state")).to_have_text("caller hung up")
        await expect(card.get_by_role("link")).to_have_text("Summary saved: open the call")


async def test_page_outlives_an_error_of_a_proxy(browsers: Browsers, tmp_path: Path):
    """A browser gives an event source up for good then; the page does not."""
    failures = ["502"]

    async def proxy(route: Route) -> None:
        await (route.fulfill(status=502) if failures and failures.pop() else route.continue_())

    async with a_tab(browsers, tmp_path, calls=12) as tab:
        await tab.context.route("**/live/events*", proxy)
        await tab.log_in()
        await expect(tab.page.locator("#link")).to_contain_text("connection lost")
        await expect(tab.page.locator("#link")).to_have_text("")
        call, conversation = await tab.stage.dial()
        await expect(tab.page.locator("article")).to_have_count(1)
        await call.hang_up()
        tab.problems.clear()  # the browser tells of the error


async def test_operator_listens_in(browsers: Browsers, tmp_path: Path):
    async with a_tab(browsers, tmp_path, calls=12, LISTEN_IN="true") as tab:
        await tab.log_in()
        call, conversation = await tab.stage.dial()
        await tab.stage.played(call, conversation)
        listen = tab.page.locator("article .listen")
        async with tab.page.expect_request("**/listen.wav"):
            await listen.click()
        await expect(listen).to_have_text("Listening")
        assert (await Axe().run(tab.page)).response["violations"] == []
        await listen.click()
        await expect(listen).to_have_text("Listen in")
        await expect(listen).to_have_attribute("aria-pressed", "false")
        await listen.click()
        await call.hang_up()
        await expect(listen).to_be_disabled()


async def test_operator_speaks_and_ends_the_call(browsers: Browsers, tmp_path: Path):
    async with a_tab(browsers, tmp_path, calls=12) as tab:
        await tab.log_in()
        call, conversation = await tab.stage.dial()
        await tab.stage.played(call, conversation)
        card = tab.page.locator("article")
        await card.get_by_label("Make the agent say").fill("One moment, please.")
        await card.get_by_role("button", name="Say").click()
        [spoken] = await until(lambda: conversation.received("InjectAgentMessage"))
        assert spoken["message"] == "One moment, please."
        await card.get_by_role("button", name="End call").click()
        await card.get_by_role("button", name="Confirm: end call").click()
        await expect(card.locator(".state")).to_have_text("operator hung up")


async def test_levels_show_who_talks(browsers: Browsers, tmp_path: Path):
    async with a_tab(browsers, tmp_path, calls=12) as tab:
        await tab.log_in()
        call, conversation = await tab.stage.dial()
        await tab.stage.played(call, conversation)
        meter = tab.page.locator("article meter.caller")

        async def is_seen() -> bool:
            await call.speak(bytes([0x90]) * 160)
            return await meter.evaluate("meter => meter.value") > 0.5

        await until_it(is_seen)
        await call.hang_up()
