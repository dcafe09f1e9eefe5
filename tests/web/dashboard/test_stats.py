"""Figures and plots."""

from datetime import UTC, datetime, timedelta

import pytest

from gateway.history.calls_table import CallsTable
from gateway.history.stores import open_local_store
from gateway.session import EndReason
from gateway.web.dashboard.charts import ticks
from gateway.web.dashboard.stats import PERIODS, StatsQuery, calls_plot, latency_plot
from tests.calls.aftermath import CALLER, a_session

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
    await a_call(store, 3, timings=[{"first_frame": value / 100} for value in range(1, 101)])
    await a_call(store, 2.5, end_reason=EndReason.FAILED, caller="+12025550188", receipt={"items": [{}]})
    vitals = await StatsQuery(CallsTable(store), now=lambda: NOW).of(PERIODS["day"])
    assert (vitals.calls, vitals.callers, vitals.returning, vitals.told, vitals.trouble) == (2, 2, 1, 1, 1)
    assert vitals.seconds == 120.0
    assert vitals.answers == [0.5, 0.9, 0.95, 0.99]
    busy = [
        (bucket.start.hour, bucket.calls, bucket.trouble, bucket.answer_half)
        for bucket in vitals.buckets
        if bucket.calls
    ]
    assert busy == [(9, 2, 1, 0.5)]


@pytest.mark.parametrize("period", PERIODS.values(), ids=PERIODS)
async def test_empty_periods_can_be_drawn(store, period):
    vitals = await StatsQuery(CallsTable(store), now=lambda: NOW).of(period)
    assert "0 calls" in calls_plot(vitals) and "no answer was measured" in latency_plot(vitals)


async def test_plots_tell_their_figures_in_words(store):
    await a_call(store, 1, timings=[{"first_frame": 0.84}])
    vitals = await StatsQuery(CallsTable(store), now=lambda: NOW).of(PERIODS["week"])
    assert "1 call in 7 days, 0 of them ended in trouble" in calls_plot(vitals)
    assert "half of all answers began within 840 ms" in latency_plot(vitals)


@pytest.mark.parametrize("most, expected", [(4, [0, 1, 2, 3, 4]), (7, [0, 2, 4, 6, 8]), (0.5, [0, 0.2, 0.4, 0.6])])
def test_ticks_are_round(most, expected):
    assert [round(tick, 6) for tick in ticks(most)] == expected


def test_nobody_is_named_in_figures():
    assert CALLER not in "".join(PERIODS)
