"""The list of calls: what it shows and finds, and its export."""

import csv
import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO

import pytest

from gateway.finalization.summary.call_summary import CallSummary
from gateway.history.audit_log import AuditFilter, AuditLog
from gateway.history.calls_table import CallsTable
from gateway.session import EndReason
from gateway.settings import Secret
from tests.calls.aftermath import a_session
from tests.web.conftest import TOKEN, Visitor
from tests.web.dashboard.examples import keep

SUMMARY = CallSummary("Ana Ruiz", ("Brakes", "Tyres"), (), (), (), "", "test")


def rows(page: str) -> list[str]:
    return re.findall(r'class="whole" href="/calls/([0-9a-f-]{36})"', page)


async def test_list_shows_newest_first_and_pages_on(visitor: Visitor):
    first = await visitor.page("/calls")
    assert len(rows(first)) == 50 and rows(first)[0] == visitor.session.uuid and "61 calls" in first
    [older] = re.findall(r'rel="next" href="([^"]+)"', first)
    second = await visitor.page(older.replace("&amp;", "&"))
    assert len(rows(second)) == 11 and not set(rows(first)) & set(rows(second))


async def test_search_finds_words_numbers_and_ids(visitor: Visitor):
    async def found(words: str, **filters: str) -> list[str]:
        answer = await visitor.post("/calls/find", find=words, **filters)
        if answer.headers["location"].startswith("/calls/"):
            return [answer.headers["location"].removeprefix("/calls/")]
        return rows(await visitor.page(answer.headers["location"]))

    assert 0 < len(await found("squeaking chain")) < 20
    assert len(await found("novak")) == len(await found("+1 (202) 555-0175")) == len(await found("JÚLIA N")) == 5
    assert 0 < len(await found("555-0117")) < 10
    assert await found("nobody ever said zyzzyva") == []
    assert await found(visitor.session.uuid) == [visitor.session.uuid]
    assert await found(visitor.session.uuid[:9]) == [visitor.session.uuid]
    assert await found("squeaking chain", agent="leo") == []


async def test_filters_narrow_the_list(visitor: Visitor):
    trouble = a_session(end_reason=EndReason.ENGINE_LOST, agent="leo", started_at=datetime(2026, 3, 1, 12, tzinfo=UTC))
    await CallsTable(visitor.store).write(trouble, document_id="", summary_by="test")
    assert trouble.uuid in rows(await visitor.page("/calls?outcome=voice+engine+lost"))
    assert rows(await visitor.page("/calls?agent=leo")) == [trouble.uuid]
    assert rows(await visitor.page("/calls?since=2026-02-28&until=2026-03-02")) == [trouble.uuid]
    assert rows(await visitor.page("/calls?until=2026-02-01")) == []
    assert "61 calls" in await visitor.page("/calls?since=2026-03-03&until=nonsense")


async def test_name_of_another_call_is_shown(visitor: Visitor):
    nameless = a_session(caller="+12025550175", started_at=datetime.now(UTC))
    await CallsTable(visitor.store).write(nameless, document_id="", summary_by="")
    for path in ("/calls", "/", f"/calls/{nameless.uuid}"):
        assert "Julia Novak" in await visitor.page(path)


async def test_heading_names_everybody_of_a_shared_number(visitor: Visitor):
    """Not who made the first call of the list; and nobody, if the list has several callers."""
    await keep(visitor.store, a_session(started_at=datetime.now(UTC)), replace(SUMMARY, caller_name="Tom Becker"))
    address = (await visitor.caller_address()).rpartition("/")[2]
    for path, heading in ((f"/calls?of={address}", "from Tom Becker, Ana Ruiz"), ("/calls?agent=maya", "found")):
        [sub] = re.findall(r'<p class="sub">(.*?)</p>', await visitor.page(path))
        assert re.sub(r"<[^>]*>", "", sub).partition(" calls ")[2] == heading


async def test_name_that_is_also_a_word_is_found_in_summaries_too(visitor: Visitor):
    session = a_session(started_at=datetime.now(UTC))
    await keep(visitor.store, session, replace(SUMMARY, caller_name="Chain Weber"))
    named = await visitor.page((await visitor.post("/calls/find", find="chain")).headers["location"])
    assert rows(named)[0] == session.uuid
    [instead] = re.findall(r'<a href="([^"]+)">Search in summaries instead', named)
    found = rows(await visitor.page(instead.replace("&amp;", "&")))
    assert len(found) > 3 and set(found) - set(rows(named))


async def export(visitor: Visitor, path: str) -> str:
    answer = await visitor.get(path)
    assert answer.status_code == 200
    assert re.fullmatch(
        r'attachment; filename="calls-\d{4}-\d\d-\d\d\.(csv|json)"', answer.headers["content-disposition"]
    )
    return answer.text


async def test_export_has_every_call_of_the_list(visitor: Visitor):
    table = list(csv.DictReader(StringIO((await export(visitor, "/calls/export.csv")).removeprefix("\ufeff"))))
    calls = json.loads(await export(visitor, "/calls/export.json"))
    assert len(table) == len(calls) == 61
    assert [row["session"] for row in table] == [call["session"] for call in calls]
    [newest, *_], [row, *_] = calls, table
    assert (newest["session"], newest["name"], newest["caller"]) == (visitor.session.id, "Ana Ruiz", "+12025550143")
    assert (newest["recording_consent"], newest["median_response_seconds"]) == ("agreed", 1.08)
    assert newest["topics"] == ["New brake pads for a road bike", "Bringing it in this week"]
    assert row["topics"] == "New brake pads for a road bike; Bringing it in this week"
    began, ended = (datetime.fromisoformat(newest[name]) for name in ("started_at", "ended_at"))
    assert began.utcoffset() == timedelta(0) and abs((ended - began).total_seconds() - newest["seconds"]) <= 1


async def test_export_follows_the_filters(visitor: Visitor):
    page = await visitor.page((await visitor.post("/calls/find", find="novak", agent="maya")).headers["location"])
    [link] = re.findall(r'href="(/calls/export\.json[^"]*)"', page)
    calls = json.loads(await export(visitor, link.replace("&amp;", "&")))
    assert {call["name"] for call in calls} == {"Julia Novak"} and len(calls) == 5
    assert json.loads(await export(visitor, "/calls/export.json?agent=nobody")) == []
    assert (await export(visitor, "/calls/export.csv?agent=nobody")).count("\n") == 1
    page = await visitor.page((await visitor.post("/calls/find", find="squeaking chain")).headers["location"])
    [link] = re.findall(r'href="(/calls/export\.json[^"]*)"', page)
    found = json.loads(await export(visitor, link.replace("&amp;", "&")))
    assert [call["session"].removeprefix("voice-session:") for call in found] == rows(page)


async def test_export_is_read_in_batches(visitor: Visitor, monkeypatch: pytest.MonkeyPatch):
    whole = await export(visitor, "/calls/export.json")
    monkeypatch.setattr("gateway.web.dashboard.call_list._BATCH", 7)
    assert await export(visitor, "/calls/export.json") == whole


@pytest.mark.parametrize("words", ["=1+1", "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1"])
async def test_spreadsheet_runs_no_formula(visitor: Visitor, words: str):
    session = a_session(started_at=datetime.now(UTC))
    await keep(visitor.store, session, replace(SUMMARY, topics=(words,), context=words))
    text = (await export(visitor, "/calls/export.csv")).removeprefix("\ufeff")
    [row] = [row for row in csv.DictReader(StringIO(text)) if row["session"] == session.id]
    assert row["topics"].startswith("'") and row["context"].startswith("'")
    assert row["caller"] == session.caller  # a plus sign and digits are a number


async def test_export_is_audited_and_needs_a_login(visitor: Visitor):
    await visitor.get("/calls/export.csv?agent=maya")
    [entry] = await AuditLog(visitor.store, Secret(TOKEN)).page(AuditFilter(action="call.export"), limit=9)
    assert (entry.action, entry.item, entry.agent, entry.outcome) == ("call.export", "calls.csv", "maya", "done")
    visitor.http.cookies.clear()
    assert (await visitor.get("/calls/export.json")).status_code == 401
