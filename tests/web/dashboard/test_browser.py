"""
The dashboard in real browsers: Chromium, driven by Playwright, and Firefox where it may differ.

Pictures of every page are left in build/screenshots, to be looked at.
"""

import asyncio
import contextlib
import itertools
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import axe_playwright_python
import httpx
import orjson
import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, BrowserContext, Page, Route, expect

from gateway.finalization.summary.call_summary import CallSummary
from gateway.history.api_tokens import TokenScope, TokenTable
from gateway.history.stores import open_local_store
from gateway.session import Speaker, Turn, VoiceSession
from gateway.settings import Secret
from gateway.text.figures import duration, milliseconds
from gateway.web.login_sessions import LoginLinks
from tests.calls.aftermath import a_session
from tests.firefox import running_firefox
from tests.stage import ADMIN, PATIENCE, SOUND, Stage, make_carrier, staged, until, until_it
from tests.web.dashboard.browsers import Browsers, require_firefox
from tests.web.dashboard.examples import fill, keep
from tests.web.dashboard.scenes import (
    CONFLICT,
    CREATE_TOKEN,
    PREVIEW,
    edit_agent,
    finished_call,
    live_call,
    logged_in,
)
from tests.web.dashboard.test_agent_pages import UNUSUAL
from tests.web.dashboard.test_call_pages import HOSTILE
from tests.web.dashboard.worst_cases import fill_long_call

PICTURES = Path("build/screenshots")
PICTURES.mkdir(parents=True, exist_ok=True)
LOOKS = {
    "light": {"color_scheme": "light", "viewport": {"width": 1280, "height": 860}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1280, "height": 860}},
    "phone": {"color_scheme": "light", "viewport": {"width": 390, "height": 844}},
}

AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
CHECK = """
async () => {
  const wide = document.documentElement.scrollWidth > innerWidth ? ["wider than the screen"] : [];
  const { violations } = await axe.run(document, { resultTypes: ["violations"] });
  return [...wide, ...violations.map(({ id, nodes }) => `${id}: ${nodes[0].html}`)];
}
"""
"""With axe-core in the page: what somebody can't use."""
OVERLAPS = """() => [...document.querySelectorAll("header *, main *")].filter((one) => {
  const parent = one.closest("td, li, p, section, button, header")?.getBoundingClientRect();
  return parent?.width && !one.closest("svg, .unseen") && one.getBoundingClientRect().right > parent.right + 1;
}).map((one) => one.outerHTML.slice(0, 200))"""
"""What is wider than the header, cell, paragraph or card that it is in."""
THEMES = ("light", "dark")
SIZES = {"desktop": {"width": 1280, "height": 860}, "phone": {"width": 390, "height": 844}}
HAS_CHANGED = (
    "document.readyState === 'complete' && !document.documentElement.dataset.before && !!document.querySelector('%s')"
)
Found = dict[str, list[str]]
"""The problems of each page."""

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
        return every_page(self.session, await self.page.get_attribute("h1 a", "href") or "")


def every_page(session: VoiceSession, caller: str) -> dict[str, str]:
    """Their paths; `caller` is the one of the caller's page."""
    return {
        "live": "/",
        "calls": "/calls",
        "call": f"/calls/{session.uuid}",
        "callers": "/callers",
        "caller": caller,
        "agents": "/agents",
        "agent": "/agents/maya",
        "phone": "/phone",
        "guest": "/phone/guest#token",
        "tokens": "/tokens",
        "health": "/vitals?period=month",
        "audit": "/audit",
        "setup": "/setup",
        "problem": "/calls/unknown",
    }


@contextlib.asynccontextmanager
async def a_tab(
    browsers: Browsers, folder: Path, look: str = "light", *, calls: int = 24, timezone_id: str = "UTC", **environ: str
) -> AsyncIterator[Tab]:
    """A gateway with some calls behind it, and a browser before it. Fails where the browser complains."""
    record_dir = folder / "recordings"
    session = await fill(folder / "data", folder / "archive", record_dir, now=datetime.now(UTC), calls=calls)
    async with (
        staged(
            folder, make_carrier("twilio"), RECORD_DIR=str(record_dir), RECORD_RETENTION_DAYS="0", **environ
        ) as stage,
        await (await browsers.open()).new_context(**LOOKS[look], timezone_id=timezone_id) as context,
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


@dataclass
class Scene:
    """A page at a path, after a script behind it; `until` is in the page when it is there."""

    path: str
    script: str = ""
    until: str = "h1"


def scenes(session: VoiceSession, caller: str, spoken: str) -> dict[str, Scene]:
    """Every page of a gateway with two live calls; `caller` and `spoken` are paths."""
    return {
        **{name: Scene(path) for name, path in every_page(session, caller).items()},
        "call-with-operator": Scene(spoken),
        "call-without-recording": Scene("/calls?outcome=agent+hung+up", follow("tbody a.whole"), "#timeline"),
        "agent-version": Scene("/agents/maya", follow("#history + ol > :last-child a"), "#restore"),
        "agent-preview": Scene("/agents/maya", PREVIEW, "#preview"),
        "conflict": Scene("/agents/maya", CONFLICT, "#changes"),
        "token-created": Scene("/tokens", CREATE_TOKEN, "#created"),
        "no-calls": Scene("/calls?agent=nobody"),
        "wrong-method": Scene("/callers/x/forget"),
    }


EMPTY = {
    name: Scene(path)
    for name, path in {
        "empty-live": "/",
        "empty-calls": "/calls",
        "empty-callers": "/callers",
        "empty-tokens": "/tokens",
        "empty-health": "/vitals",
        "empty-audit": "/audit",
        "empty-agent": "/agents/maya",
        "empty-phone": "/phone",
    }.items()
}
STRANGE = {"login": Scene("/login"), "stranger": Scene("/unknown")}


def follow(selector: str) -> str:
    """A script that opens a link."""
    return f"document.querySelector('{selector}').click()"


@contextlib.asynccontextmanager
async def a_stage_with_scenes(folder: Path) -> AsyncIterator[tuple[Stage, dict[str, Scene]]]:
    """A gateway with a live call in it, and its pages."""
    recordings = folder / "recordings"
    session = await fill(folder / "data", folder / "archive", recordings, now=datetime.now(UTC), calls=24)
    environ = {"RECORD_DIR": str(recordings), "RECORD_RETENTION_DAYS": "0", "LISTEN_IN": "true"}
    async with staged(folder, make_carrier("twilio"), **environ) as stage:
        await make_tokens(folder / "data")
        spoken = await finished_call(stage)
        await edit_agent(stage)
        async with logged_in(stage) as (http, _, _):
            [caller] = re.findall(r'<h1><a href="([^"]+)"', (await http.get(f"/calls/{session.uuid}")).text)
        call = await live_call(stage)
        yield stage, scenes(session, caller, spoken)
        await call.hang_up()


async def check_in_chromium(browser: Browser, stage: Stage, shown: Mapping[str, Scene], *, login: bool = True) -> Found:
    """In both themes, on a desktop and on a phone."""
    found: Found = {}
    async with await browser.new_context() as context:
        page = await context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        if login:
            await page.goto(f"{stage.url}/login?code={LoginLinks(Secret(ADMIN)).make()}")
        for name, scene in shown.items():
            await page.goto(stage.url + scene.path)
            if scene.script:
                await page.evaluate(f"() => {{ {scene.script} }}")
            await page.locator(scene.until).first.wait_for()
            await page.wait_for_load_state()
            await page.evaluate(AXE)
            for theme, (size, width) in itertools.product(THEMES, SIZES.items()):
                await page.emulate_media(color_scheme=theme)
                await page.set_viewport_size(width)
                found[f"{name}-{theme}-{size}"] = await page.evaluate(CHECK)
    return found


def problems_in(found: Found) -> Found:
    return {name: problems for name, problems in found.items() if problems}


async def test_every_page_can_be_used_by_everybody(browsers: Browsers, tmp_path: Path):
    """axe-core finds nothing in either theme, on a desktop or a phone, and nothing is wider than the screen."""
    async with a_stage_with_scenes(tmp_path) as (stage, shown):
        browser = await browsers.open()
        strangers = check_in_chromium(browser, stage, STRANGE, login=False)
        found = await asyncio.gather(check_in_chromium(browser, stage, shown), strangers)
    assert [problems_in(one) for one in found] == [{}, {}]


async def test_empty_pages_can_be_used_by_everybody(browsers: Browsers, tmp_path: Path):
    """Of a system without calls; and the page that a link on another site leads to."""
    async with staged(tmp_path, make_carrier("twilio")) as stage:
        link = f"{stage.url}/login?code={LoginLinks(Secret(ADMIN)).make()}"
        async with httpx.AsyncClient() as other_site:
            welcome = (await other_site.get(link, headers={"Sec-Fetch-Site": "cross-site"})).text
        assert 'http-equiv="refresh"' in welcome
        browser = await browsers.open()
        found = await check_in_chromium(browser, stage, EMPTY)
        async with await browser.new_context() as context:
            page = await context.new_page()
            stays = welcome.replace('http-equiv="refresh"', "")
            await page.route("**/welcome", lambda route: route.fulfill(body=stays, content_type="text/html"))
            await page.goto(f"{stage.url}/welcome")
            await page.evaluate(AXE)
            found["welcome"] = await page.evaluate(CHECK)
    assert problems_in(found) == {}


async def test_every_page_can_be_used_by_everybody_in_firefox(tmp_path: Path):
    """On a desktop and on a phone: axe-core finds nothing, and nothing is wider than the screen."""
    require_firefox()
    found: Found = {}
    preferences = {"layout.css.prefers-color-scheme.content-override": 1}
    async with a_stage_with_scenes(tmp_path) as (stage, shown), running_firefox(tmp_path, preferences) as firefox:

        async def check(name: str, scene: Scene) -> None:
            await firefox.go(stage.url + scene.path)
            if scene.script:
                await firefox.run("delete window.axe; document.documentElement.dataset.before = 1")
                await firefox.run(f"(() => {{ {scene.script} }})()")
                await until_it(lambda: firefox.run(HAS_CHANGED % scene.until))
            await firefox.run(AXE)
            for size, viewport in SIZES.items():
                await firefox.resize(viewport["width"], viewport["height"])
                found[f"{name}-{size}"] = orjson.loads(await firefox.run(f"({CHECK})().then(JSON.stringify)"))

        for name, scene in STRANGE.items():
            await check(name, scene)
        await firefox.go(f"{stage.url}/login?code={LoginLinks(Secret(ADMIN)).make()}")
        for name, scene in shown.items():
            await check(name, scene)
    assert problems_in(found) == {}


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
        await page.clock.set_fixed_time(datetime.now(UTC))  # a slow machine may take seconds between two keys
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


async def test_theme_is_chosen_and_remembered(browsers: Browsers, tmp_path: Path):
    """It overrides the system's theme on every page, before the page is drawn."""
    async with a_tab(browsers, tmp_path, calls=12) as tab:
        page = tab.page

        async def background() -> str:
            return await page.evaluate("getComputedStyle(document.body).backgroundColor")

        await tab.log_in()
        light = await background()
        button = page.get_by_role("button", name="Theme:")
        for theme in ("system", "light", "dark"):
            await expect(button).to_have_attribute("aria-label", f"Theme: {theme}")
            if theme != "dark":
                await button.press("Enter")
        dark = await background()
        assert (light, dark) == ("rgb(245, 246, 248)", "rgb(13, 16, 21)")
        await tab.open("/calls")
        assert await background() == dark
        first = "document.querySelector('head script[src*=theme]').matches(':not([defer]):has(~ link[rel=stylesheet])')"
        assert await page.evaluate(first)
        assert (await Axe().run(page)).response["violations"] == []
        await page.get_by_role("button", name="Log out").click()
        await page.wait_for_url("**/login")
        assert await background() == dark


async def test_question_mark_lists_keys_that_work(browsers: Browsers, tmp_path: Path):
    async with a_tab(browsers, tmp_path, calls=12) as tab:
        page = tab.page
        await tab.log_in()
        await tab.open("/calls")
        await page.keyboard.press("?")
        dialog = page.get_by_role("dialog", name="Keyboard shortcuts")
        await expect(dialog).to_be_visible()
        assert (await Axe().run(page)).response["violations"] == []
        keys = {
            (await row.locator("dd").inner_text()): await row.locator("kbd").all_inner_texts()
            for row in await dialog.locator("dl > div").all()
        }
        await page.keyboard.press("Escape")
        await expect(dialog).to_be_hidden()
        await page.keyboard.press(keys.pop("Search")[0])
        await expect(page.get_by_role("searchbox")).to_be_focused()
        await page.get_by_role("button", name="Keyboard shortcuts").click()
        await expect(dialog).to_be_visible()
        assert (keys.pop("Show these shortcuts"), keys.pop("Close this list")) == (["?"], ["Esc"])
        assert {"Live", "Calls", "Callers", "Phone", "Health"} <= keys.keys()
        await page.clock.set_fixed_time(datetime.now(UTC))  # a slow machine may take seconds between two keys
        for name, (leader, key) in keys.items():
            await page.wait_for_load_state()  # the script that listens is deferred
            await page.keyboard.type(leader + key)
            await expect(page.locator(".tab[aria-current]")).to_have_text(name)


async def test_space_plays_the_recording(browsers: Browsers, tmp_path: Path):
    async with a_tab(browsers, tmp_path, calls=12) as tab:
        await tab.log_in()
        await tab.open(f"/calls/{tab.session.uuid}")
        assert "0:35" in await tab.page.locator("#recording-label").inner_text()
        await expect(tab.page.get_by_role("button", name="Play")).to_be_visible()
        await expect(tab.page.locator("#recording")).to_be_hidden()  # it would say 0:00
        await tab.page.keyboard.press("Space")
        await expect(tab.page.locator("#recording")).to_be_visible()
        await until_it(lambda: tab.page.evaluate("document.getElementById('recording').currentTime > 0.1"))
        await tab.page.keyboard.press("Space")
        assert await tab.page.evaluate("document.getElementById('recording').paused")


async def test_transcript_comes_first_on_a_phone(browsers: Browsers, tmp_path: Path):
    """And the button to call is on the first screen."""
    async with a_tab(browsers, tmp_path, "phone", calls=12) as tab:
        await tab.log_in()
        await tab.open("/phone")
        transcript = await tab.page.get_by_role("heading", name="Transcript").bounding_box()
        button = await tab.page.get_by_role("button", name="Call", exact=True).bounding_box()
        assert transcript is not None and button is not None
        assert transcript["y"] < button["y"] < 700


async def test_browsers_send_back_what_an_agents_page_shows(browsers: Browsers, tmp_path: Path):
    """Also in Firefox."""
    require_firefox()
    prompt, toml = tmp_path / "data" / "prompts" / "maya.md", tmp_path / "gateway.toml"
    prompt.parent.mkdir(parents=True)
    prompt.write_bytes(UNUSUAL.encode() + b"\0\r\n")
    toml.write_text(
        '[agents.maya]\ngreeting = "\\n\\nHi!\\r\\n&amp;\\u0000 "\ntransfer_to = {"a=b" = "+12025550177"}\n'
    )
    written = prompt.read_bytes(), toml.read_bytes()
    save = "document.querySelector('[formaction$=save]').click()"
    async with a_tab(browsers, tmp_path) as tab, running_firefox(tmp_path, {}) as firefox:
        await tab.log_in()
        await tab.open("/agents/maya")
        await tab.page.evaluate(save)
        await expect(tab.page.get_by_text("No changes to save.")).to_be_visible()
        await firefox.go(f"{tab.stage.url}/login?code={LoginLinks(Secret(ADMIN)).make()}")
        await firefox.go(f"{tab.stage.url}/agents/maya")
        await firefox.run(save)

        async def has_answered() -> bool:
            return await firefox.run("location.search") == "?done=same"

        await until_it(has_answered)
        assert (prompt.read_bytes(), toml.read_bytes()) == written


@pytest.mark.parametrize("look", ["light", "phone"])
async def test_text_in_charts_can_be_read(browsers: Browsers, tmp_path: Path, look: str):
    async with a_tab(browsers, tmp_path, look, calls=12) as tab:
        await tab.log_in()
        for path in ("/vitals?period=month", f"/calls/{tab.session.uuid}"):
            await tab.open(path)
            heights = await tab.page.evaluate(
                """[...document.querySelectorAll('svg text')].filter(text => text.getClientRects().length)
                    .map(text => parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a)"""
            )
            assert len(heights) > 4 and min(heights) >= 10.5


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


async def test_page_that_is_loaded_during_an_answer_shows_all_of_it(browsers: Browsers, tmp_path: Path):
    """Its response time and its second sentence come when its first sentence is on the page."""
    async with a_tab(browsers, tmp_path, calls=12) as tab:
        await tab.log_in()
        call, conversation = await tab.stage.dial()
        await tab.stage.played(call, conversation)
        await tab.stage.spoken(call, conversation)
        await conversation.user_says("Is it ready?")
        await conversation.send_conversation_text("assistant", "It is.")
        answer = tab.page.locator("article .turn.agent").last

        async def is_shown() -> bool:
            await tab.page.reload()
            return await answer.locator(".said").text_content() == "It is."

        await until_it(is_shown)
        await expect(answer.locator(".chip")).to_have_count(0)
        await conversation.send_audio(SOUND * 20)
        await expect(answer.locator(".chip")).to_contain_text(re.compile(r"^[\d.]+ m?s$"))
        await conversation.send_conversation_text("assistant", "You can come today.")
        await expect(answer.locator(".said")).to_have_text("It is. You can come today.")


async def test_figures_are_rounded_as_by_the_gateway(browsers: Browsers, tmp_path: Path):
    """A live page shows them before the gateway does."""
    figures = [number / 10_000 for number in range(0, 30_000, 5)]
    async with a_tab(browsers, tmp_path) as tab:
        await tab.log_in()
        shown = await tab.page.evaluate("(figures) => figures.map((one) => [milliseconds(one), clock(one)])", figures)
    assert shown == [[milliseconds(one), duration(one)] for one in figures]


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


@pytest.mark.parametrize("width", [1280, 768, 390])
async def test_long_names_break_no_layout(browsers: Browsers, tmp_path: Path, width: int):
    """Nothing is wider than the screen or covers the next column, on a desktop, a tablet or a phone."""
    async with a_tab(browsers, tmp_path, calls=12) as tab:
        store = await open_local_store(tmp_path / "data")
        names = "Ann" * 40, "\u05e9\u05e8\u05d4 \u05db\u05d4\u05df"
        for number, name in enumerate(names):
            caller = f"integration_attribute:user_identity:{number}{'7' * 60}"
            session = a_session(caller=caller, started_at=datetime.now(UTC))
            await keep(store, session, CallSummary(name, ("W" * 180,), (), (), (), name, name))
        await store.close()
        await tab.page.set_viewport_size({"width": width, "height": 860})
        await tab.log_in()
        for path in ("/", "/callers", "/calls", f"/calls/{session.uuid}"):
            await tab.open(path)
            assert await tab.page.evaluate(OVERLAPS) == []
        await tab.page.click("h1 a")
        await tab.page.get_by_text("Forget", exact=True).click()
        assert await tab.page.evaluate(OVERLAPS) == []


@pytest.mark.parametrize("look", ["light", "phone"])
async def test_navigation_covers_nothing_that_has_the_focus(browsers: Browsers, tmp_path: Path, look: str):
    covered = """() => {
      const { left, width, top, height } = document.activeElement.getBoundingClientRect();
      return !document.activeElement.contains(document.elementFromPoint(left + width / 2, top + height / 2));
    }"""
    async with a_tab(browsers, tmp_path, look, calls=24) as tab:
        await tab.log_in()
        await tab.open("/callers")
        await tab.page.get_by_role("button", name="Search").focus()
        for key in ("Tab", "Shift+Tab"):
            for _ in range(13):
                await tab.page.keyboard.press(key)
                assert not await tab.page.evaluate(covered)


async def test_call_is_seen_as_it_is_spoken(browsers: Browsers, tmp_path: Path):
    async with a_tab(browsers, tmp_path, calls=12) as tab:
        await tab.log_in()
        await expect(tab.page.get_by_text("No live calls")).to_be_visible()
        call, conversation = await tab.stage.dial()
        card = tab.page.locator("article")
        await expect(card.get_by_role("heading")).to_have_text("Ana Ruiz")
        await expect(card.locator(".number")).to_have_text("+1 202-555-0143")
        await tab.stage.played(call, conversation)
        await tab.stage.spoken(call, conversation)
        await conversation.user_says("Is <img src=x onerror=alert(1)> ready?")
        await expect(card.locator(".turn.caller .said")).to_have_text("Is <img src=x onerror=alert(1)> ready?")
        # A function between the text of an answer and its audio: the response time comes after the text.
        await conversation.send_conversation_text("assistant", "It is ready.")
        await conversation.call_functions([{"name": "search_memory", "arguments": '{"query": "bike"}'}])
        await conversation.send_audio(SOUND * 20)
        await conversation.agent_audio_done()
        await tab.stage.played(call, conversation)
        answer = card.locator(".turn.agent").last
        await expect(answer.locator(".said")).to_have_text("It is ready.")
        await expect(answer.locator(".chip")).to_contain_text(re.compile(r"^[\d.]+ m?s$"))
        shown = await answer.locator(".chip").text_content()
        assert await card.locator("img").count() == 0
        await tab.page.reload()
        await expect(card.locator(".turn.caller .said")).to_have_text("Is <img src=x onerror=alert(1)> ready?")
        await expect(answer.locator(".chip")).to_have_text(str(shown))
        assert (await Axe().run(tab.page)).response["violations"] == []
        await tab.page.screenshot(path=PICTURES / "live-call.png", full_page=True)
        await call.hang_up()
        await expect(card.locator(".state")).to_have_text("caller hung up")
        await expect(card.get_by_role("link")).to_have_text("Summary saved: open the call")
        await card.get_by_role("link").click()
        await expect(tab.page.locator(".chip")).to_have_text(str(shown))


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
        tab.problems.clear()  # the browser reports the error


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
        await conversation.agent_says("One moment, please.")
        await expect(card.locator(".turn.operator .by b")).to_have_text("Operator")
        await tab.page.reload()
        await expect(card.locator(".turn.operator .said")).to_have_text("One moment, please.")
        await card.get_by_role("button", name="End call").click()
        await card.get_by_role("button", name="Confirm: end call").click()
        await expect(card.locator(".state")).to_have_text("operator hung up")


async def test_problem_of_the_engine_is_in_plain_words(browsers: Browsers, tmp_path: Path):
    async with a_tab(browsers, tmp_path, calls=12) as tab:
        await tab.log_in()
        call, conversation = await tab.stage.dial()
        await tab.stage.played(call, conversation)
        for code, words in (
            ("SLOW_THINK_REQUEST", "the language model is slow"),
            ("SOME_OTHER_CODE", "some other code"),
        ):
            await conversation.warn(code)
            await expect(tab.page.locator("article .event").last).to_have_text(f"Voice engine warning: {words}")
        await call.hang_up()


async def test_address_of_a_turn_finds_its_page(browsers: Browsers, tmp_path: Path):
    async with a_tab(browsers, tmp_path, calls=12) as tab:
        long = await fill_long_call(tmp_path / "data", tmp_path / "recordings", turns=100, now=datetime.now(UTC))
        await tab.log_in()
        await tab.open(f"/calls/{long.uuid}#turn-90")
        await expect(tab.page.locator("#turn-90")).to_contain_text(long.turns[89].text)
        await tab.page.locator("svg .spans.caller").click(position={"x": 2, "y": 5})
        await until_it(lambda: tab.page.evaluate("document.getElementById('recording').currentTime > 1"))


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


async def test_times_are_those_of_the_browser(browsers: Browsers, tmp_path: Path):
    """With their zone, wherever the server is: in lists and texts, the title, the plots and the search by day."""
    async with a_tab(browsers, tmp_path, timezone_id="Asia/Kathmandu") as tab:
        await tab.log_in()
        started = tab.session.started_at.astimezone(timezone(timedelta(hours=5, minutes=45)))
        day, clock = f"{started:%a %-d %b %Y}", f"{started:%H:%M} GMT+5:45"
        await tab.open(f"/calls/{tab.session.uuid}")
        await expect(tab.page.locator(".sub time")).to_have_text(f"{day}, {clock}")
        await expect(tab.page).to_have_title(f"Call on {day}, {clock} · Voice Gateway")
        await tab.open("/calls")
        row = tab.page.locator(f"a[href='/calls/{tab.session.uuid}'] time")
        await expect(row.locator("b")).to_have_text(clock)
        await expect(row.locator("span")).to_have_text(day)
        for since, is_found in ((started, 1), (started + timedelta(days=1), 0)):
            await tab.page.get_by_label("From").fill(f"{since:%Y-%m-%d}")
            await tab.page.get_by_role("button", name="Search").click()
            await expect(row).to_have_count(is_found)
        await tab.open("/vitals?period=day")
        tip = tab.page.locator("rect.hover > title").last
        await expect(tip).to_have_text(re.compile(r"^\d+ \w+ \d\d:\d\d to \d+ \w+ \d\d:\d\d GMT\+5:45: "))
        await expect(tab.page.locator("text[data-form='zone']").first).to_have_text("GMT+5:45")
        minutes = {tick[-2:] for tick in await tab.page.locator("text[data-form='hour']").all_text_contents()}
        assert minutes == {(await tip.text_content() or "").split(" ")[2][-2:]}
