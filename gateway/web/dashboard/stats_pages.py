"""The health page for people: calls, response times, failures, repeat callers. Machines read `/health`."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from itertools import pairwise
from typing import Any, Final

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.finalization.job_table import JobTable
from gateway.history.calls_table import CallRowFilter, CallsTable, TimeStep, percentiles, stage_seconds
from gateway.history.stores import Stores
from gateway.response_time import STAGE_NAMES
from gateway.session import FAILURES
from gateway.text.figures import count, milliseconds
from gateway.web.dashboard import charts
from gateway.web.login import LoginGuard
from gateway.web.login_sessions import LoginSession

_MAX_PENDING: Final = 20
_RANKS: Final = (50, 90, 95, 99)


@dataclass(frozen=True)
class PlotSize:
    """A plot is drawn for each width of screen: text in a picture that is scaled down can't be read."""

    name: str
    width: float
    height: float
    labels: int
    """Of the time axis, about."""
    left: float = 58.0
    top: float = 12.0

    @property
    def right(self) -> float:
        return self.width - 8

    @property
    def bottom(self) -> float:
        return self.height - 28


WIDE: Final = PlotSize("wide", 640, 200, labels=6)
NARROW: Final = PlotSize("narrow", 330, 200, labels=3, left=48)


@dataclass(frozen=True)
class Period:
    """How far back, and the width of a step."""

    name: str
    label: str
    length: timedelta
    step: timedelta

    def edges(self, now: datetime) -> list[datetime]:
        """
        Where its steps begin, and the end of the last one.

        The first begins exactly one period ago, so that the figures are those of `gateway latency`; the others begin
        at whole hours and days of the server's zone.
        """
        first, midnight = now - self.length, datetime.combine(now.astimezone(), time()) + timedelta(days=1)
        steps = range(self.length // self.step + timedelta(days=1) // self.step + 1)
        edges = {(midnight - step * self.step).astimezone(UTC) for step in steps}  # of the wall clock
        return [first, *sorted(edge for edge in edges if first < edge < now + self.step)]


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
    end: datetime
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
    """The percentiles 50, 90, 95 and 99 of each stage, in seconds from the caller's last voiced frame."""
    answers: int
    """With a response time."""
    elsewhere: Sequence[float]
    """The same percentiles of the times that are counted from elsewhere; empty without such."""
    others: int
    """Answers whose time is counted from elsewhere."""
    buckets: Sequence[Bucket]

    @property
    def response_times(self) -> Sequence[float]:
        """Percentiles of the response time; empty without a measured answer."""
        return self.stages[-1][1]


class StatsQuery:
    """Raises StoreUnavailable."""

    def __init__(self, rows: CallsTable, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._rows = rows
        self._now = now

    async def of(self, period: Period) -> CallStats:
        edges = period.edges(self._now().astimezone(UTC))
        begins = [start.isoformat() for start in edges[:-1]]
        steps = await self._rows.time_steps(begins, CallRowFilter(since=begins[0]))
        callers, returning = await self._rows.callers_since(begins[0])
        figures = await asyncio.to_thread(_measure, edges, steps)
        outcomes = sum((step.outcomes for step in steps), Counter[str]())
        return CallStats(
            period=period,
            calls=outcomes.total(),
            callers=callers,
            returning=returning,
            with_memory=sum(step.with_memory for step in steps),
            seconds=sum(step.seconds for step in steps),
            outcomes=outcomes.most_common(),
            failed=sum(bucket.failed for bucket in figures["buckets"]),
            **figures,
        )


def _measure(edges: Sequence[datetime], steps: Sequence[TimeStep]) -> dict[str, Any]:
    """The fields of CallStats that are computed from response times, and `buckets`."""
    import numpy as np

    answers = np.vstack([step.answers for step in steps])
    elsewhere = stage_seconds(answers, "first_frame", measured=False)
    buckets = []
    for (start, end), step in zip(pairwise(edges), steps, strict=True):
        failed = sum(calls for outcome, calls in step.outcomes.items() if outcome in FAILURES)
        found = percentiles(stage_seconds(step.answers, "first_frame"), _RANKS)
        median, p95 = (found[0], found[2]) if found else (None, None)
        buckets.append(Bucket(start, end, step.outcomes.total(), failed, median, p95))
    return {
        "stages": [(name, percentiles(stage_seconds(answers, stage), _RANKS)) for stage, name in STAGE_NAMES.items()],
        "answers": stage_seconds(answers, "first_frame").size,
        "elsewhere": percentiles(elsewhere, _RANKS),
        "others": elsewhere.size,
        "buckets": buckets,
    }


# Plots


def calls_plot(stats: CallStats, size: PlotSize = WIDE) -> Markup:
    """Bars: calls per step, with failed calls at the bottom."""
    most = max((bucket.calls for bucket in stats.buckets), default=0)
    axis = charts.ticks(max(most, 4))
    scale = (size.bottom - size.top) / axis[-1]
    width = (size.right - size.left) / len(stats.buckets)
    drawn = _grid(axis, scale, size, lambda value: f"{value:,.0f}") + _times(stats, size)
    for place, bucket in enumerate(stats.buckets):
        x, tip = size.left + place * width, _tooltip(bucket)
        bars = [
            charts.box(x + 1, size.bottom - bucket.calls * scale, width - 2, bucket.calls * scale, "bar", round_=1.5),
            charts.box(x + 1, size.bottom - bucket.failed * scale, width - 2, bucket.failed * scale, "bar failed"),
        ]
        drawn.append(charts.element("g", charts.box(x, size.top, width, size.bottom - size.top, "hover"), *bars, tip))
    label = f"{count(stats.calls, 'call')} in {stats.period.label}, {stats.failed} failed"
    return charts.picture(size.width, size.height, label, *drawn, class_=f"plot {size.name}")


def latency_plot(stats: CallStats, size: PlotSize = WIDE) -> Markup:
    """Lines: median and 95th percentile of the response time."""
    most = max((bucket.p95 or 0.0 for bucket in stats.buckets), default=0.0)
    axis = charts.ticks(max(most, 0.5))
    scale = (size.bottom - size.top) / axis[-1]
    width = (size.right - size.left) / len(stats.buckets)
    drawn = _grid(axis, scale, size, _seconds) + _times(stats, size)
    for name, value_of in _CURVES.items():
        points = [
            (size.left + (place + 0.5) * width, size.bottom - value * scale)
            for place, bucket in enumerate(stats.buckets)
            if (value := value_of(bucket)) is not None
        ]
        drawn += [charts.path(points, f"curve {name}")] if len(points) > 1 else []
        drawn += [charts.element("circle", cx=x, cy=y, r=2.5, class_=f"dot {name}") for x, y in points]
    for place, bucket in enumerate(stats.buckets):
        tip = _tooltip(bucket)
        drawn.append(charts.box(size.left + place * width, size.top, width, size.bottom - size.top, "hover", tip))
    figures = stats.response_times
    label = f"median response time {milliseconds(figures[0])}" if figures else "no response times measured"
    return charts.picture(size.width, size.height, label, *drawn, class_=f"plot {size.name}")


_CURVES: Final[Mapping[str, Callable[[Bucket], float | None]]] = {
    "p95": lambda bucket: bucket.p95,
    "p50": lambda bucket: bucket.median,
}


def share_bar(share: float, label: str) -> Markup:
    """A thin bar, filled to `share`."""
    filled = charts.box(0, 0, 100 * min(max(share, 0.0), 1.0), 6, "filled")
    return charts.picture(100, 6, label, charts.box(0, 0, 100, 6, "whole"), filled, class_="share", stretched=True)


def _grid(axis: Sequence[float], scale: float, size: PlotSize, label: Callable[[float], str]) -> list[Markup]:
    return [
        drawn
        for value in axis
        for y in (size.bottom - value * scale,)
        for drawn in (
            charts.line(size.left, y, size.right, y),
            charts.text(size.left - 6, y + 4, label(value), "tick", "end"),
        )
    ]


def _seconds(value: float) -> str:
    return f"{value:g} s"


def _times(stats: CallStats, size: PlotSize) -> list[Markup]:
    """Labels under the plot, before them their zone."""
    buckets = stats.buckets
    width, stride = (size.right - size.left) / len(buckets), max(len(buckets) // size.labels, 1)
    form, pattern = ("hour", "%H:%M") if stats.period.step < timedelta(hours=6) else ("date", "%-d %b")
    labels = [
        _time(bucket.start, form, pattern, size.left + (place + 0.5) * width, size)
        for place, bucket in enumerate(buckets)
        if place % stride == stride // 2
    ]
    return [_time(buckets[-1].start, "zone", "%Z", size.left - 6, size, anchor="end"), *labels]


def _time(at: datetime, form: str, pattern: str, x: float, size: PlotSize, *, anchor: str = "middle") -> Markup:
    """In the server's zone; `times.js` shows it in the browser's."""
    place: dict[str, Any] = {"x": x, "y": size.bottom + 18, "class_": "tick", "text_anchor": anchor}
    return charts.element("text", f"{at.astimezone():{pattern}}", **place, data_time=at.isoformat(), data_form=form)


def _tooltip(bucket: Bucket) -> Markup:
    since, until = bucket.start.astimezone(), bucket.end.astimezone()
    when = f"{since:%-d %b %H:%M} to {until:%-d %b %H:%M %Z}"
    failed = f", {bucket.failed} failed" if bucket.failed else ""
    speed = f"; response time {milliseconds(bucket.median)} median, {milliseconds(bucket.p95)} p95"
    text = f": {count(bucket.calls, 'call')}{failed}{speed if bucket.median is not None else ''}"
    times = {"data_since": since.isoformat(), "data_until": until.isoformat(), "data_text": text}
    return charts.element("title", f"{when}{text}", **times)


# Page


class StatsPages:
    """`state` returns the content of `/health`."""

    def __init__(self, guard: LoginGuard, stores: Stores, state: Callable[[], dict[str, Any]]) -> None:
        self._guard = guard
        self._rows = CallsTable(stores.memory)
        self._query = StatsQuery(self._rows)
        self._jobs = JobTable(stores.local)
        self._state = state

    def routes(self) -> list[Route]:
        return [Route("/vitals", self._guard.page(self._show))]

    async def _show(self, request: Request, session: LoginSession) -> Response:
        period = PERIODS.get(request.query_params.get("period", ""), PERIODS["week"])
        stats = await self._query.of(period)
        pending = await self._jobs.unfinished(limit=_MAX_PENDING)
        draw = (calls_plot, latency_plot)
        plots = await asyncio.to_thread(lambda: [[plot(stats, size) for size in (WIDE, NARROW)] for plot in draw])
        return await self._guard.html(
            "stats.html",
            session,
            here="vitals",
            stats=stats,
            periods=PERIODS.values(),
            calls_plots=plots[0],
            latency_plots=plots[1],
            share_bar=share_bar,
            failures=FAILURES,
            state=self._state(),
            pending=pending,
            names=await self._rows.names_of_callers(job.session.caller for job in pending),
        )
