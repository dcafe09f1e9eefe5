"""No page is larger than 100 KB, however much there is to show, and everything can be reached."""

import re
from datetime import UTC, datetime
from pathlib import Path

import httpx

from gateway.finalization.archive import Archive
from gateway.finalization.document import archive_text, spoken_lines
from gateway.history.call_log import FILE_NAME, erase_calls
from tests.web.conftest import ORIGIN, TOKEN, Visitor
from tests.web.dashboard.worst_cases import (
    CALLER,
    a_busy_live_page,
    fill_long_call,
    fill_memory,
    fill_tokens,
    live_sessions,
)

MAX_BYTES = 100_000


async def page_of(visitor: Visitor, path: str) -> str:
    page = await visitor.page(path)
    assert len(page.encode()) <= MAX_BYTES, f"{path}: {len(page.encode())} bytes"
    return page


async def every_page(visitor: Visitor, path: str) -> list[str]:
    """Of a list: the one at this path, and those that follow."""
    pages = [await page_of(visitor, path)]
    while following := re.findall(r'rel="next" href="([^"]+)"', pages[-1]):
        pages.append(await page_of(visitor, following[0].replace("&amp;", "&")))
    return pages


async def test_crowd_of_live_calls_has_cards_and_rows(stranger: Visitor, tmp_path: Path):
    sessions = live_sessions(200)
    async with a_busy_live_page(tmp_path / "data", TOKEN, sessions) as app:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=ORIGIN) as http:
            await http.post("/login", data={"token": TOKEN})
            page = (await http.get("/")).text
            oldest = (await http.get(f"/?call={sessions[0].uuid}")).text
    assert len(page.encode()) <= MAX_BYTES and len(oldest.encode()) <= MAX_BYTES
    assert page.count('<article class="card live" data-session="voice') == 0
    shown = re.findall(r'<article class="card live( compact)?" data-session="([0-9a-f-]{36})"', page)
    assert [uuid for _, uuid in shown] == [session.uuid for session in sessions[: -len(shown) - 1 : -1]]
    assert [bool(compact) for compact, _ in shown] == [False] * 10 + [True] * 50
    assert "200 live calls" in page and 'data-unseen="140"' in page and "140 more calls" in page
    assert re.findall(r'<article class="card live" data-session="([0-9a-f-]{36})"', oldest)[0] == sessions[0].uuid
    assert sessions[0].turns[-1].text in oldest


async def test_few_live_calls_have_more_turns(stranger: Visitor, tmp_path: Path):
    sessions = live_sessions(4, turns=20)
    async with a_busy_live_page(tmp_path / "data", TOKEN, sessions) as app:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=ORIGIN) as http:
            await http.post("/login", data={"token": TOKEN})
            page = (await http.get("/")).text
    assert page.count('<li class="turn ') == 4 * 12 and "compact" not in page.partition("<template")[0]


async def test_long_call_is_shown_in_parts(visitor: Visitor, tmp_path: Path):
    session = await fill_long_call(tmp_path / "data", tmp_path / "recordings", turns=400, now=datetime.now(UTC))
    path = f"/calls/{session.uuid}"
    first = await page_of(visitor, path)
    starts = [int(number) for number in re.findall(r'href="\?turn=(\d+)#transcript"', first)]
    assert starts == list(range(1, 401, 40))
    for page, start in ((first, 1), (await page_of(visitor, f"{path}?turn={starts[-1]}"), starts[-1])):
        shown = [int(number) for number in re.findall(r'id="turn-(\d+)"', page)]
        assert shown == list(range(start, start + 40))
    page = await page_of(visitor, f"{path}?turn=234")
    assert 'id="turn-234"' in page and session.turns[233].text in page
    # What has a tooltip in the timeline is what the page shows.
    details = {float(at) for at in re.findall(r'class="span" data-at="([\d.]+)"', page)}
    shown = [float(at) for at in re.findall(r'id="turn-\d+" data-at="([\d.]+)"', page)]
    assert shown[0] <= min(details) and max(details) < shown[-1] + 6
    assert 'class="spans caller"' in page and 'class="spans agent"' in page


async def test_long_call_without_times_is_shown_in_parts(visitor: Visitor, tmp_path: Path):
    """Its events have expired: its turns come from the archive, its sound from the recording."""
    session = await fill_long_call(tmp_path / "data", tmp_path / "recordings", turns=400, now=datetime.now(UTC))
    erase_calls(tmp_path / "data" / FILE_NAME, [session.id])
    await Archive(tmp_path / "archive", retention_days=0).write(session.uuid, archive_text(spoken_lines(session.turns)))
    page = await page_of(visitor, f"/calls/{session.uuid}")
    assert page.count('<li class="turn ') == 40 and 'class="spans caller"' in page


async def test_much_memory_is_shown_in_parts(visitor: Visitor, tmp_path: Path):
    now = datetime.now(UTC)
    await fill_long_call(tmp_path / "data", tmp_path / "recordings", turns=2, now=now)
    known = await fill_memory(tmp_path / "data", facts=120, pins=40, state=100, now=now)
    found = await visitor.post("/callers/find", find=CALLER)
    [caller] = re.findall(r'class="whole" href="(/callers/[\w-]+)"', await visitor.page(found.headers["location"]))
    page = await page_of(visitor, caller)
    assert (
        f"Show all {known} facts" in page
        and known > 100
        and "Show all 40 topics" in page
        and "Show all 100 values" in page
    )
    facts = re.findall(r'id="fact-\d+">([^<]+)<', "".join(await every_page(visitor, f"{caller}?list=facts")))
    assert len(facts) == len(set(facts)) == known
    pins = "".join(await every_page(visitor, f"{caller}?list=pins"))
    assert {f"Bike {number}" for number in range(40)} == set(re.findall(r'name="title" value="([^"]+)"', pins))
    keys = re.findall(r"<code>(order_\d+)</code>", "".join(await every_page(visitor, f"{caller}?list=state")))
    assert len(keys) == len(set(keys)) == 100
    assert len(await every_page(visitor, f"{caller}?list=changes")) > 1


async def test_many_tokens_are_shown_in_parts(visitor: Visitor, tmp_path: Path):
    await fill_tokens(tmp_path / "data", 300)
    pages = await every_page(visitor, "/tokens")
    assert len(set(re.findall(r"<code>(vg_[0-9a-f]{8})</code>", "".join(pages)))) == 300
    assert "300 tokens for programs" in pages[0]
