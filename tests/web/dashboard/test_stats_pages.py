"""Statistics, plots and the health page."""

import time
from datetime import UTC, datetime, timedelta

import pytest

from gateway.history.calls_table import CallsTable
from gateway.history.stores import open_local_store
from gateway.response_time import ResponseTime
from gateway.session import EndReason
from gateway.web.dashboard.stats_pages import PERIODS, StatsQuery, calls_plot, latency_plot
from tests.calls.aftermath import CALLER, a_session
from tests.stage import make_carrier, staged
from tests.web.conftest import Visitor
from tests.web.dashboard.scenes import logged_in

NOW = datetime(2026, 2, 7, 12, tzinfo=UTC)


@pytest.fixture
async def store(tmp_path):
    store = await open_local_store(tmp_path)
    yield store
    await store.close()


async def a_call(store, hours, **fields):
    started_at = NOW - timedelta(hours=hours)
    fields = {"ended_at": started_at + timedelta(seconds=60), **fields}
    await CallsTable(store).write(a_session(started_at=started_at, **fields), document_id="", summary_by="")


async def test_figures_of_a_day(store):
    await a_call(store, 100)
    await a_call(store, 3, timings=[ResponseTime(first_frame=value / 100).as_json() for value in range(1, 101)])
    await a_call(store, 2.5, end_reason=EndReason.FAILED, caller="+12025550188", receipt={"items": [{}]})
    stats = await StatsQuery(CallsTable(store), now=lambda: NOW).of(PERIODS["day"])
    assert (stats.calls, stats.callers, stats.returning, stats.with_memory, stats.failed) == (2, 2, 1, 1, 1)
    assert stats.seconds == 120.0
    assert stats.response_times == [0.5, 0.9, 0.95, 0.99]
    busy = [(bucket.start.hour, bucket.calls, bucket.failed, bucket.median) for bucket in stats.buckets if bucket.calls]
    assert busy == [(9, 2, 1, 0.5)]


@pytest.mark.parametrize("period", PERIODS.values(), ids=PERIODS)
def test_steps_begin_at_whole_hours_and_days(period, monkeypatch):
    """Of the server's zone, also across a change of its clocks. The first begins exactly one period ago."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        now = datetime(2026, 11, 3, 12, 34, 56, tzinfo=UTC)
        first, *inner, end = period.edges(now)
        clocks = [edge.astimezone() for edge in inner]
    finally:
        monkeypatch.undo()
        time.tzset()
    assert (first, now <= end < now + period.step) == (now - period.length, True)
    hours = {"day": set(range(24)), "week": {0, 6, 12, 18}}.get(period.name, {0})
    assert {clock.hour for clock in clocks} == hours and {clock.minute for clock in clocks} == {0}
    assert [first, *inner, end] == sorted({first, *inner, end})
    assert len(inner) == -(-period.length // period.step)


@pytest.mark.parametrize("period", PERIODS.values(), ids=PERIODS)
async def test_empty_periods_can_be_drawn(store, period):
    stats = await StatsQuery(CallsTable(store), now=lambda: NOW).of(period)
    assert "0 calls" in calls_plot(stats) and "no response times measured" in latency_plot(stats)


async def test_plots_tell_their_figures_in_words(store):
    await a_call(store, 1, timings=[ResponseTime(first_frame=0.84).as_json()])
    stats = await StatsQuery(CallsTable(store), now=lambda: NOW).of(PERIODS["week"])
    assert "1 call in 7 days, 0 failed" in calls_plot(stats)
    assert "median response time 840 ms" in latency_plot(stats)
    assert ">0 s</text>" in latency_plot(stats) and ">0.5 s</text>" in latency_plot(stats)
    assert f"{NOW.astimezone():%-d %b %H:%M %Z}: 1 call; response time 840 ms median, 840 ms p95" in calls_plot(stats)


def test_nobody_is_named_in_figures():
    assert CALLER not in "".join(PERIODS)


@pytest.mark.parametrize("period", ["day", "week", "month", "quarter", "nonsense"])
async def test_every_period_has_its_plots(visitor: Visitor, period: str):
    page = await visitor.page(f"/vitals?period={period}")
    assert page.count('class="plot wide"') == page.count('class="plot narrow"') == 2
    assert "All calls are archived, summarised and stored." in page


async def test_page_shows_figures_and_state(visitor: Visitor):
    page = await visitor.page("/vitals?period=month")
    assert "Response time" in page and "median; " in page and " p95" in page and "caller hung up" in page
    assert "0 live calls" in page and "Voice engine: deepgram" in page


async def test_page_shows_each_of_several_engines(tmp_path):
    """One that works has no problem to show."""
    async with staged(tmp_path, make_carrier("twilio"), VOICE_ENGINE="deepgram,openai", OPENAI_API_KEY="key") as stage:
        async with logged_in(stage) as (http, _, _):
            page = (await http.get("/vitals")).text
    assert "Voice engine deepgram: <span>ok</span></li>" in page
    assert "Voice engine openai: <span>ok</span></li>" in page
