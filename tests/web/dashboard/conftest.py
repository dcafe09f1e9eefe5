from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import async_playwright

from tests.web.dashboard.browsers import Browsers, require_chromium


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browsers() -> AsyncIterator[Browsers]:
    """Shared by the tests of a module, which run on one loop: a start takes a second of CPU."""
    require_chromium()
    async with async_playwright() as playwright:
        browsers = Browsers(playwright)
        yield browsers
        await browsers.close()
