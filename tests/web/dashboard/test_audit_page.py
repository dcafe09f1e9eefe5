"""The page of the audit log: what it shows, its filters, its size with many entries."""

import re

from gateway.history.audit_log import AuditAction, AuditLog, AuditNote, AuditOutcome
from gateway.settings import Secret
from gateway.web.dashboard.audit_page import LABELS, PAGE_ROWS
from tests.web.conftest import TOKEN, Visitor
from tests.web.dashboard.examples import fill_audit_log

ANA = "+12025550143"


async def write(visitor: Visitor, *notes: AuditNote) -> None:
    audit = AuditLog(visitor.store, Secret(TOKEN))
    for note in notes:
        await audit.write(note)


def rows(page: str) -> list[str]:
    """The action and the outcome of each row."""
    row = r'<td class="who">[^<]* <code class="faint">([^<]*)</code></td>.*?<span class="badge[^>]*>([^<]*)</span>'
    cells = re.findall(row, page, re.DOTALL)
    return [f"{action} {outcome}" for action, outcome in cells]


def test_every_action_has_a_label() -> None:
    assert set(LABELS) == set(AuditAction)


async def test_page_needs_a_login(stranger: Visitor):
    answer = await stranger.get("/audit")
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")


async def test_entries_are_newest_first(visitor: Visitor):
    erased = AuditNote(AuditAction.CALLER_ERASE, "caller", AuditOutcome.INCOMPLETE, "maya", caller=ANA)
    listened = AuditNote(AuditAction.CALL_LISTEN, "tok_1", session="voice-session:3f2a9c1e-0", address="192.0.2.7")
    await write(visitor, erased, listened)
    page = await visitor.page("/audit")
    assert rows(page) == ["call.listen done", "caller.erase incomplete", "login done"]
    assert "<span>caller …0143</span><span>agent maya</span>" in page
    assert '<a href="/calls/3f2a9c1e-0">call 3f2a9c1e</a>' in page and "192.0.2.7" in page
    assert "3 entries" in page and ANA[1:] not in page


async def test_filters(visitor: Visitor):
    await write(
        visitor, AuditNote(AuditAction.FACT_ERASE, "cli:ada", caller=ANA), AuditNote(AuditAction.CALL_DIAL, "t1")
    )

    async def found(**form: str) -> list[str]:
        address = (await visitor.post("/audit/find", **form)).headers["location"]
        assert ANA[1:] not in address
        return rows(await visitor.page(address))

    assert await found(caller="+1 202 555 0143") == ["fact.erase done"]
    assert await found(action="fact") == ["fact.erase done"]
    assert await found(actor="t1") == ["call.dial done"]
    assert await found(until="2020-01-01") == []
    assert len(await found(since="2020-01-01", until="not a day")) == 3
    assert "No entries found" in await visitor.page("/audit?action=pin")


async def test_hostile_text_is_escaped(visitor: Visitor):
    await write(visitor, AuditNote(AuditAction.CALL_DIAL, "<b>actor</b>", agent='"><script>', item="<i>"))
    page = await visitor.page("/audit?below=nothing&actor=%3Cscript%3E")
    assert "<script>" not in page.replace('<script src="/static/', "")
    assert "&lt;b&gt;actor" in await visitor.page("/audit")


async def test_page_with_many_entries_is_small(visitor: Visitor):
    """scripts/page-bench measures how long it takes."""
    await visitor.store.run(lambda connection: fill_audit_log(connection, 10_000))
    page = await visitor.page("/audit")
    assert len(page) < 100_000
    assert len(rows(page)) == PAGE_ROWS
    [older] = re.findall(r'rel="next" href="([^"]*)"', page)
    following = await visitor.page(older)
    assert len(rows(following)) == PAGE_ROWS and '<a class="button" href="/audit">Newest</a>' in following
    assert not set(re.findall(r"login:\w{8}", page)) & set(re.findall(r"login:\w{8}", following))
