"""
The browser phone in a real browser: Chromium with a microphone that plays a file, Firefox, and the local engine.

Pictures are left in build/screenshots, to be looked at.
"""

import contextlib
import re
import wave
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page, expect

from gateway.settings import Secret
from gateway.simulate.synthetic_caller import pico
from gateway.speech.samples import decode, upsample
from gateway.web.login_sessions import LoginLinks
from tests.firefox import running_firefox
from tests.link import Link
from tests.stage import ADMIN, CALLER, make_carrier, patient_client, running_gateway, staged, until_it
from tests.web.dashboard.browsers import Browsers, require_firefox
from tests.web.dashboard.test_browser import LOOKS, PICTURES

SAYS = (
    ("", 6.0),
    ("My name is Anna. My appointment is on Thursday at ten in the morning.", 9.0),
    *[("Goodbye.", 9.0)] * 3,
)
"""What the caller says, and how many seconds of silence follow. On a busy machine, browsers lose some of the audio."""
PATIENCE = 60_000
FAKE = ("--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream")
"""A microphone that hums, and that a page may have."""
pytestmark = pytest.mark.asyncio(loop_scope="module")  # of the browser


def spoken(path: Path, says: Sequence[tuple[str, float]] = SAYS) -> Path:
    """A file for the microphone: 48 kHz, as most have it."""
    pieces = [
        piece
        for text, pause in says
        for piece in (decode(pico(text)) if text else np.zeros(0, np.float32), np.zeros(int(8000 * pause)))
    ]
    samples = np.concatenate(pieces)
    wide = upsample(samples, 6)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(48_000)
        file.writeframes((wide * 32_000).astype("<i2").tobytes())
    return path


@contextlib.asynccontextmanager
async def a_gateway(folder: Path) -> AsyncIterator[str]:
    """One with the local engine, ready to talk."""
    environ = {
        "DATA_DIR": str(folder / "data"),
        "VOICE_SESSION_ARCHIVE_DIR": str(folder / "archive"),
        "GATEWAY_ADMIN_TOKEN": ADMIN,
        "VOICE_ENGINE": "local",
        "MEMORY_VECTORS": "false",
    }
    async with running_gateway(environ, folder) as url, patient_client(url) as http:

        async def ready() -> bool:
            return (await http.get("/ready")).is_success

        await until_it(ready)
        yield url


@contextlib.asynccontextmanager
async def a_phone(browsers: Browsers, folder: Path, *args: str, look: str = "light") -> AsyncIterator[Page]:
    """The page of the phone, in a browser with these arguments. Fails where the browser complains."""
    async with (
        staged(folder, make_carrier("twilio"), PUBLIC_URL="") as stage,
        a_page(browsers, stage.url, *args, look=look) as page,
    ):
        yield page


@contextlib.asynccontextmanager
async def a_page(
    browsers: Browsers, url: str, *args: str, look: str = "light", complains: bool = False
) -> AsyncIterator[Page]:
    async with await (await browsers.open(*args)).new_context(**LOOKS[look]) as context:
        page = await context.new_page()
        page.set_default_timeout(PATIENCE)
        expect.set_options(timeout=PATIENCE)
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        await page.goto(f"{url}/login?code={LoginLinks(Secret(ADMIN)).make()}")
        await page.goto(f"{url}/phone")
        yield page
        assert complains or problems == []


async def talk(page: Page) -> str:
    """One call by click, until it is over and remembered; the agent's first words."""
    processed = page.get_by_text("Call processed.")
    await page.get_by_role("button", name="Call").click()
    await expect(processed).to_have_count(0)  # of the call before
    await expect(page.locator(".turn.caller")).not_to_have_count(0)
    assert await page.locator("meter.caller").evaluate("meter => meter.max") == 1
    await expect(processed).to_be_visible(timeout=2 * PATIENCE)  # a call in real time
    await expect(page.get_by_role("button", name="Call")).to_be_visible()
    await expect(page.get_by_text("Call ended: agent hung up.")).to_be_visible()
    return await page.locator(".turn.agent .said").first.inner_text()


async def test_second_call_knows_what_the_first_left_behind(browsers: Browsers, tmp_path: Path):
    microphone = f"--use-file-for-fake-audio-capture={spoken(tmp_path / 'caller.wav')}%noloop"
    async with a_gateway(tmp_path) as url, a_page(browsers, url, *FAKE, microphone) as page:
        assert await page.input_value("[name=caller]") == CALLER
        first = await talk(page)
        await page.screenshot(path=PICTURES / "phone-first-call.png", full_page=True)
        name = page.locator("[data-part=caller-name]")
        await expect(name).not_to_have_text("")
        heard = await name.inner_text()
        await page.get_by_label("Call as").fill("+12025550199")
        await expect(name).to_have_text("")
        await page.get_by_label("Call as").fill(CALLER)
        await expect(name).to_have_text(heard)
        first_address = await page.get_by_role("link", name="Open the call").get_attribute("href")
        second = await talk(page)
        await page.screenshot(path=PICTURES / "phone-second-call.png", full_page=True)
        assert "Thursday" not in first
        assert "Thursday" in second
        await expect(page.locator(".chip").first).to_contain_text(re.compile(r"\d m?s"))
        await expect(page.locator("[data-part=memory]")).to_contain_text("Thursday")
        assert (await Axe().run(page)).response["violations"] == []
        heard = await name.inner_text()
        await page.get_by_role("link", name="Open the call").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text(f"{heard} with maya")
        assert first_address not in page.url


async def test_link_is_a_phone_for_one_call(browsers: Browsers, tmp_path: Path):
    async with a_phone(browsers, tmp_path, *FAKE, look="phone") as page:
        await page.get_by_role("button", name="Create link").click()
        await expect(page.locator("[data-part=link-address]")).to_be_visible()
        link = await page.input_value("[data-part=link-address]")
        await page.context.clear_cookies()
        await page.goto(link)
        assert page.url.endswith("/phone/guest")
        await page.get_by_role("button", name="Call").click()
        await expect(page.get_by_text("Connected")).to_be_visible()
        await expect(page.locator(".turn.agent")).not_to_have_count(0)
        await page.get_by_role("button", name="Mute").click()
        assert await page.get_by_role("button", name="Mute").get_attribute("aria-pressed") == "true"
        await page.get_by_role("button", name="5", exact=True).click()
        await page.screenshot(path=PICTURES / "phone-guest.png", full_page=True)
        assert (await Axe().run(page)).response["violations"] == []
        assert not await page.evaluate("document.documentElement.scrollWidth > innerWidth")
        await page.get_by_role("button", name="Hang up").click()
        await expect(page.get_by_text("Call ended: caller hung up.")).to_be_visible()
        await expect(page.get_by_role("button", name="Call")).to_be_hidden()


async def test_denied_microphone_is_explained(browsers: Browsers, tmp_path: Path):
    async with a_phone(browsers, tmp_path, "--use-fake-device-for-media-stream", "--deny-permission-prompts") as page:
        await page.get_by_role("button", name="Call").click()
        await expect(page.get_by_text("Microphone access was denied.")).to_be_visible()
        await expect(page.get_by_role("button", name="Call")).to_be_visible()


async def test_missing_microphone_is_explained(browsers: Browsers, tmp_path: Path):
    async with a_phone(browsers, tmp_path, "--use-fake-ui-for-media-stream") as page:
        await page.get_by_role("button", name="Call").click()
        await expect(page.get_by_text("No microphone found.")).to_be_visible()


async def test_microphone_that_goes_away_ends_the_call(browsers: Browsers, tmp_path: Path):
    async with a_phone(browsers, tmp_path, *FAKE) as page:
        await page.evaluate(
            """() => {
                const open = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
                navigator.mediaDevices.getUserMedia = async (wanted) => (window.stream = await open(wanted));
            }"""
        )
        await page.get_by_role("button", name="Call").click()
        await expect(page.locator(".turn.agent")).not_to_have_count(0)
        await page.evaluate("window.stream.getTracks()[0].dispatchEvent(new Event('ended'))")
        await expect(page.get_by_text("The microphone was disconnected.")).to_be_visible()
        await expect(page.get_by_role("button", name="Call")).to_be_visible()


async def test_who_hangs_up_while_the_browser_asks_is_left_alone(browsers: Browsers, tmp_path: Path):
    async with a_phone(browsers, tmp_path, *FAKE) as page:
        await page.evaluate(
            """() => {
                const open = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
                navigator.mediaDevices.getUserMedia = async (wanted) => {
                    await new Promise((allow) => { window.allow = allow; });
                    return (window.stream = await open(wanted));
                };
            }"""
        )
        await page.get_by_role("button", name="Call").click()
        await page.get_by_role("button", name="Hang up").click()
        await page.evaluate("window.allow()")
        let_go = "window.stream?.getTracks().every((track) => track.readyState === 'ended')"
        await until_it(lambda: page.evaluate(let_go))
        await expect(page.get_by_text("You hung up.")).to_be_visible()
        await expect(page.get_by_role("button", name="Call")).to_be_visible()


async def test_lost_gateway_is_told(browsers: Browsers, tmp_path: Path):
    async with staged(tmp_path, make_carrier("twilio")) as stage:
        link = Link(int(stage.url.rpartition(":")[2]))
        await link.mend()
        async with a_page(browsers, f"http://127.0.0.1:{link.port}", *FAKE, complains=True) as page:
            await page.get_by_role("button", name="Call").click()
            await expect(page.get_by_text("Connected")).to_be_visible()
            await link.cut()
            await expect(page.get_by_text("The connection to the gateway was lost.")).to_be_visible()
            await page.screenshot(path=PICTURES / "phone-lost.png", full_page=True)
            await expect(page.get_by_role("button", name="Call")).to_be_visible()


async def test_firefox_calls_too(tmp_path: Path):
    """Its microphone hums a tone; what counts is that audio goes both ways."""
    require_firefox()
    fake = {
        "media.navigator.streams.fake": True,
        "media.navigator.permission.disabled": True,
        "media.autoplay.default": 0,
        "network.proxy.type": 0,
    }
    async with a_gateway(tmp_path) as url, running_firefox(tmp_path, fake) as firefox:
        await firefox.go(f"{url}/login?code={LoginLinks(Secret(ADMIN)).make()}")
        await firefox.go(f"{url}/phone")
        # The page looks itself: from here a short greeting would be missed.
        await firefox.run(
            "window.heard = new Set(); setInterval(() => { for (const name of ['you', 'agent'])"
            " if (document.querySelector(`[data-part=${name}]`).value > 0.2) window.heard.add(name) }, 20); ''"
        )
        await firefox.run("document.querySelector('[data-part=call]').click()")

        async def hears_each_other() -> bool:
            return await firefox.run("[...window.heard].sort().join()") == "agent,you"

        await until_it(hears_each_other)
        await firefox.picture(PICTURES / "phone-firefox.png")
        assert "Connected" in await firefox.run("document.querySelector('[data-part=status]').textContent")
        assert "Hello, this is Maya." in await firefox.run("document.querySelector('.turns').textContent")
        await firefox.run("document.querySelector('[data-part=hang-up]').click()")
