"""The health page for people: calls, response times, failures, repeat callers. Machines read `/health`."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.finalization.job_table import JobTable
from gateway.history.calls_table import CallRowFilter, CallsTable, TimeStep, percentiles, stage_seconds
from gateway.history.stores import Stores
from gateway.session import EndReason
from gateway.web.dashboard import charts
from gateway.web.dashboard.html import count, milliseconds
from gateway.web.dashboard.timeline import STAGE_NAMES
from gateway.web.login import LoginGuard
from gateway.web.login_sessions import LoginSession

FAILURES: Final = frozenset(
    {
        EndReason.STREAM_LOST,
        EndReason.ENGINE_LOST,
        EndReason.ENGINE_REFUSED,
        EndReason.MEDIA_SILENT,
        EndReason.CARRIER_STALLED,
        EndReason.GATEWAY_DIED,
        EndReason.FAILED,
    }
)
"""Outcomes that count as failed calls."""

_MAX_PENDING: Final = 20
_RANKS: Final = (50, 90, 95, 99)
_WIDTH: Final = 640.0
_HEIGHT: Final = 200.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 58.0, 632.0, 12.0, 172.0


@dataclass(frozen=True)
class Period:
    """How far back, and the width of a step."""

    name: str
    label: str
    length: timedelta
    step: timedelta

    @property
    def steps(self) -> int:
        return -(-self.length // self.step)


PERIODS: Final = {
    period.name: period
    for period in (
        Period("day", "24 hours", timedelta(days=1), timedelta(hours=1)),
        Period("week", "7 days", timedelta(days=7), timedelta(hours=6)),
        Period("month", "30 days", timedelta(days=30), timedelta(days=1)),
        Period("quarter", "90 days", timedelta(days=90), timedelta(days=3)),
    )
}


@dataclass(frozen=True)
class Bucket:
    """The calls of one step."""

    start: datetime
    calls: int
    failed: int
    median: float | None
    """Response time in seconds."""
    p95: float | None


@dataclass(frozen=True)
class CallStats:
    """Figures of one period."""

    period: Period
    calls: int
    callers: int
    returning: int
    """Callers who had called before, in this period or earlier."""
    with_memory: int
    """Calls whose prompt contained memory of earlier ones."""
    seconds: float
    outcomes: Sequence[tuple[str, int]]
    failed: int
    stages: Sequence[tuple[str, Sequence[float]]]
    """The percentiles 50, 90, 95 and 99 of each stage, in seconds."""
    buckets: Sequence[Bucket]

    @property
    def response_times(self) -> Sequence[float]:
        """Percentiles of the whole response time; empty without a measured turn."""
        return next((figures for name, figures in reversed(self.stages) if figures), ())


class StatsQuery:
    """Raises StoreUnavailable."""

    def __init__(self, rows: CallsTable, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._rows = rows
        self._now = now

    async def of(self, period: Period) -> CallStats:
        first = self._now().astimezone(UTC) - period.length
        starts = [first + step * period.step for step in range(period.steps)]
        begins = [start.isoformat() for start in starts]
        steps = await self._rows.time_steps(begins, CallRowFilter(since=begins[0]))
        callers, returning = await self._rows.callers_since(begins[0])
        stages, buckets = await asyncio.to_thread(_measure, starts, steps)
        outcomes = sum((step.outcomes for step in steps), Counter[str]())
        return CallStats(
            period=period,
            calls=outcomes.total(),
            callers=callers,
            returning=returning,
            with_memory=sum(step.with_memory for step in steps),
            seconds=sum(step.seconds for step in steps),
            outcomes=outcomes.most_common(),
            failed=sum(bucket.failed for bucket in buckets),
            stages=stages,
            buckets=buckets,
        )


def _measure(
    starts: Sequence[datetime], steps: Sequence[TimeStep]
) -> tuple[list[tuple[str, list[float]]], list[Bucket]]:
    """The percentiles of each stage, and the figures of each step."""
    latencies = b"".join(step.latencies for step in steps)
    stages = [(name, percentiles(stage_seconds(latencies, stage), _RANKS)) for stage, name in STAGE_NAMES.items()]
    buckets = []
    for start, step in zip(starts, steps, strict=True):
        failed = sum(calls for outcome, calls in step.outcomes.items() if outcome in FAILURES)
        answers = percentiles(stage_seconds(step.latencies, "first_frame"), _RANKS)
        median, p95 = (answers[0], answers[2]) if answers else (None, None)
        buckets.append(Bucket(start, step.outcomes.total(), failed, median, p95))
    return stages, buckets


# Plots


def calls_plot(stats: CallStats) -> Markup:
    """Bars: calls per step, with failed calls at the bottom."""
    most = max((bucket.calls for bucket in stats.buckets), default=0)
    axis = charts.ticks(max(most, 4))
    scale = (_BOTTOM - _TOP) / axis[-1]
    width = (_RIGHT - _LEFT) / len(stats.buckets)
    drawn = _grid(axis, scale, lambda value: f"{value:,.0f}") + _times(stats)
    for place, bucket in enumerate(stats.buckets):
        x, tip = _LEFT + place * width, charts.element("title", _tooltip(bucket, stats.period))
        bars = [
            charts.box(x + 1, _BOTTOM - bucket.calls * scale, width - 2, bucket.calls * scale, "bar", round_=1.5),
            charts.box(x + 1, _BOTTOM - bucket.failed * scale, width - 2, bucket.failed * scale, "bar failed"),
        ]
        drawn.append(charts.element("g", charts.box(x, _TOP, width, _BOTTOM - _TOP, "hover"), *bars, tip))
    label = f"{count(stats.calls, 'call')} in {stats.period.label}, {stats.failed} failed"
    return charts.picture(_WIDTH, _HEIGHT, label, *drawn, class_="plot")


def latency_plot(stats: CallStats) -> Markup:
    """Lines: median and 95th percentile of the response time."""
    most = max((bucket.p95 or 0.0 for bucket in stats.buckets), default=0.0)
    axis = charts.ticks(max(most, 0.5))
    scale = (_BOTTOM - _TOP) / axis[-1]
    width = (_RIGHT - _LEFT) / len(stats.buckets)
    drawn = _grid(axis, scale, milliseconds) + _times(stats)
    for name, value_of in _CURVES.items():
        points = [
            (_LEFT + (place + 0.5) * width, _BOTTOM - value * scale)
            for place, bucket in enumerate(stats.buckets)
            if (value := value_of(bucket)) is not None
        ]
        drawn += [charts.path(points, f"curve {name}")] if len(points) > 1 else []
        drawn += [charts.element("circle", cx=x, cy=y, r=2.5, class_=f"dot {name}") for x, y in points]
    for place, bucket in enumerate(stats.buckets):
        tip = charts.element("title", _tooltip(bucket, stats.period))
        drawn.append(charts.box(_LEFT + place * width, _TOP, width, _BOTTOM - _TOP, "hover", tip))
    figures = stats.response_times
    label = f"median response time {milliseconds(figures[0])}" if figures else "no response times measured"
    return charts.picture(_WIDTH, _HEIGHT, label, *drawn, class_="plot")


_CURVES: Final[Mapping[str, Callable[[Bucket], float | None]]] = {
    "p95": lambda bucket: bucket.p95,
    "p50": lambda bucket: bucket.median,
}


def share_bar(share: float, label: str) -> Markup:
    """A thin bar, filled to `share`."""
    filled = charts.box(0, 0, 100 * min(max(share, 0.0), 1.0), 6, "filled")
    return charts.picture(100, 6, label, charts.box(0, 0, 100, 6, "whole"), filled, class_="share", stretched=True)


def _grid(axis: Sequence[float], scale: float, label: Callable[[float], str]) -> list[Markup]:
    return [
        drawn
        for value in axis
        for y in (_BOTTOM - value * scale,)
        for drawn in (charts.line(_LEFT, y, _RIGHT, y), charts.text(_LEFT - 6, y + 4, label(value), "tick", "end"))
    ]


def _times(stats: CallStats) -> list[Markup]:
    """About six labels under the plot."""
    buckets = stats.buckets
    width, stride = (_RIGHT - _LEFT) / len(buckets), max(len(buckets) // 6, 1)
    pattern = "%H:%M" if stats.period.step < timedelta(hours=6) else "%-d %b"
    return [
        charts.text(
            _LEFT + (place + 0.5) * width, _BOTTOM + 18, f"{bucket.start.astimezone():{pattern}}", "tick", "middle"
        )
        for place, bucket in enumerate(buckets)
        if place % stride == stride // 2
    ]


def _tooltip(bucket: Bucket, period: Period) -> str:
    until = (bucket.start + period.step).astimezone()
    when = f"{bucket.start.astimezone():%-d %b %H:%M} to {until:%-d %b %H:%M}"
    failed = f", {bucket.failed} failed" if bucket.failed else ""
    speed = f"; response time {milliseconds(bucket.median)} median, {milliseconds(bucket.p95)} p95"
    return f"{when}: {count(bucket.calls, 'call')}{failed}{speed if bucket.median is not None else ''}"


# Page


class StatsPages:
    """`state` returns the content of `/health`."""

    def __init__(self, guard: LoginGuard, stores: Stores, state: Callable[[], dict[str, Any]]) -> None:
        self._guard = guard
        self._query = StatsQuery(CallsTable(stores.memory))
        self._jobs = JobTable(stores.local)
        self._state = state

    def routes(self) -> list[Route]:
        return [Route("/vitals", self._guard.page(self._show))]

    async def _show(self, request: Request, session: LoginSession) -> Response:
        period = PERIODS.get(request.query_params.get("period", ""), PERIODS["week"])
        stats = await self._query.of(period)
        calls, latency = await asyncio.to_thread(lambda: (calls_plot(stats), latency_plot(stats)))
        return await self._guard.html(
            "stats.html",
            session,
            here="vitals",
            stats=stats,
            periods=PERIODS.values(),
            calls_plot=calls,
            latency_plot=latency,
            share_bar=share_bar,
            failures=FAILURES,
            state=self._state(),
            pending=await self._jobs.waiting(_MAX_PENDING),
        )
