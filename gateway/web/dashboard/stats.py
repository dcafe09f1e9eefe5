"""How the gateway does, in figures and plots: how many calls, how fast the answers, what went wrong, who comes back."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from markupsafe import Markup

from gateway.history.calls_table import CallsTable, LatencyBucket, percentiles
from gateway.session import EndReason
from gateway.web.dashboard import charts
from gateway.web.dashboard.humanize import count, milliseconds

TROUBLE: Final = frozenset(
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
"""Ways for a call to end that nobody wanted."""

_STAGE_WORDS: Final = {
    "transcript": "the caller's words are known",
    "llm_request": "the language model is asked",
    "first_token": "its first word",
    "first_audio": "the first sound of the answer",
    "first_frame": "the answer is on the line",
}

_RANKS: Final = (50, 90, 95, 99)
_WIDTH: Final = 640.0
_HEIGHT: Final = 200.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 58.0, 632.0, 12.0, 172.0


@dataclass(frozen=True)
class Period:
    """How far back, and in what steps."""

    name: str
    words: str
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
    trouble: int
    answer_half: float | None
    """Half of all answers began within so many seconds."""
    answer_most: float | None
    """95 of 100 did."""


@dataclass(frozen=True)
class CallStats:
    """Figures of one period."""

    period: Period
    calls: int
    callers: int
    returning: int
    """Callers who had called before, in this period or earlier."""
    told: int
    """Calls whose agent was told something of earlier ones."""
    seconds: float
    outcomes: Sequence[tuple[str, int]]
    trouble: int
    stages: Sequence[tuple[str, Sequence[float]]]
    """Each stage with its percentiles 50, 90, 95 and 99, in seconds."""
    buckets: Sequence[Bucket]

    @property
    def answers(self) -> Sequence[float]:
        """Percentiles of what callers wait for; empty without a measured turn."""
        return next((figures for name, figures in reversed(self.stages) if figures), ())


class StatsQuery:
    """Works figures out. Raises StoreUnavailable."""

    def __init__(self, lines: CallsTable, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._lines = lines
        self._now = now

    async def of(self, period: Period) -> CallStats:
        first = self._now().astimezone(UTC) - period.length
        begins = [(first + step * period.step).isoformat() for step in range(period.steps)]
        measured = await self._lines.latency_buckets(begins)
        callers, returning = await self._lines.callers_since(first.isoformat())
        return await asyncio.to_thread(_vitals, measured, period, first, callers, returning)


def _vitals(
    measured: Sequence[LatencyBucket], period: Period, first: datetime, callers: int, returning: int
) -> CallStats:
    outcomes: Counter[str] = Counter()
    for some in measured:
        outcomes[some.outcome] += some.calls
    steps = range(period.steps)
    return CallStats(
        period=period,
        calls=outcomes.total(),
        callers=callers,
        returning=returning,
        told=sum(some.with_memory for some in measured),
        seconds=sum(some.seconds for some in measured),
        outcomes=outcomes.most_common(),
        trouble=_trouble(measured),
        stages=[(words, percentiles(measured, stage, _RANKS)) for stage, words in _STAGE_WORDS.items()],
        buckets=[_bucket(first + step * period.step, [m for m in measured if m.step == step]) for step in steps],
    )


def _bucket(start: datetime, measured: Sequence[LatencyBucket]) -> Bucket:
    answers = percentiles(measured, "first_frame", _RANKS)
    half, most = (answers[0], answers[2]) if answers else (None, None)
    return Bucket(start, sum(some.calls for some in measured), _trouble(measured), half, most)


def _trouble(measured: Sequence[LatencyBucket]) -> int:
    return sum(some.calls for some in measured if some.outcome in TROUBLE)


# Plots


def calls_plot(vitals: CallStats) -> Markup:
    """Bars: calls of each step, those that ended in trouble at the foot."""
    most = max((bucket.calls for bucket in vitals.buckets), default=0)
    axis = charts.ticks(max(most, 4))
    scale = (_BOTTOM - _TOP) / axis[-1]
    width = (_RIGHT - _LEFT) / len(vitals.buckets)
    drawn = _grid(axis, scale, lambda value: f"{value:,.0f}") + _times(vitals)
    for place, bucket in enumerate(vitals.buckets):
        x, tip = _LEFT + place * width, charts.element("title", _told(bucket, vitals.period))
        bars = [
            charts.box(x + 1, _BOTTOM - bucket.calls * scale, width - 2, bucket.calls * scale, "bar", round_=1.5),
            charts.box(x + 1, _BOTTOM - bucket.trouble * scale, width - 2, bucket.trouble * scale, "bar trouble"),
        ]
        drawn.append(charts.element("g", charts.box(x, _TOP, width, _BOTTOM - _TOP, "hover"), *bars, tip))
    words = f"{count(vitals.calls, 'call')} in {vitals.period.words}, {vitals.trouble} of them ended in trouble"
    return charts.picture(_WIDTH, _HEIGHT, words, *drawn, class_="plot")


def latency_plot(vitals: CallStats) -> Markup:
    """Lines: half of the answers, and 95 of 100, began within so long."""
    most = max((bucket.answer_most or 0.0 for bucket in vitals.buckets), default=0.0)
    axis = charts.ticks(max(most, 0.5))
    scale = (_BOTTOM - _TOP) / axis[-1]
    width = (_RIGHT - _LEFT) / len(vitals.buckets)
    drawn = _grid(axis, scale, milliseconds) + _times(vitals)
    for name, value_of in _CURVES.items():
        points = [
            (_LEFT + (place + 0.5) * width, _BOTTOM - value * scale)
            for place, bucket in enumerate(vitals.buckets)
            if (value := value_of(bucket)) is not None
        ]
        drawn += [charts.path(points, f"curve {name}")] if len(points) > 1 else []
        drawn += [charts.element("circle", cx=x, cy=y, r=2.5, class_=f"dot {name}") for x, y in points]
    for place, bucket in enumerate(vitals.buckets):
        tip = charts.element("title", _told(bucket, vitals.period))
        drawn.append(charts.box(_LEFT + place * width, _TOP, width, _BOTTOM - _TOP, "hover", tip))
    figures = vitals.answers
    words = f"half of all answers began within {milliseconds(figures[0])}" if figures else "no answer was measured"
    return charts.picture(_WIDTH, _HEIGHT, words, *drawn, class_="plot")


_CURVES: Final[Mapping[str, Callable[[Bucket], float | None]]] = {
    "most": lambda bucket: bucket.answer_most,
    "half": lambda bucket: bucket.answer_half,
}


def share_bar(share: float, label: str) -> Markup:
    """A thin bar, filled to `share` of its length."""
    filled = charts.box(0, 0, 100 * min(max(share, 0.0), 1.0), 6, "filled")
    return charts.picture(100, 6, label, charts.box(0, 0, 100, 6, "whole"), filled, class_="share", stretched=True)


def _grid(axis: Sequence[float], scale: float, words: Callable[[float], str]) -> list[Markup]:
    return [
        drawn
        for value in axis
        for y in (_BOTTOM - value * scale,)
        for drawn in (charts.line(_LEFT, y, _RIGHT, y), charts.text(_LEFT - 6, y + 4, words(value), "tick", "end"))
    ]


def _times(vitals: CallStats) -> list[Markup]:
    """A label under every sixth or so of the steps."""
    buckets = vitals.buckets
    width, stride = (_RIGHT - _LEFT) / len(buckets), max(len(buckets) // 6, 1)
    pattern = "%H:%M" if vitals.period.step < timedelta(hours=6) else "%-d %b"
    return [
        charts.text(
            _LEFT + (place + 0.5) * width, _BOTTOM + 18, f"{bucket.start.astimezone():{pattern}}", "tick", "middle"
        )
        for place, bucket in enumerate(buckets)
        if place % stride == stride // 2
    ]


def _told(bucket: Bucket, period: Period) -> str:
    until = (bucket.start + period.step).astimezone()
    when = f"{bucket.start.astimezone():%-d %b %H:%M} to {until:%-d %b %H:%M}"
    trouble = f", {bucket.trouble} in trouble" if bucket.trouble else ""
    speed = f"; answers: half within {milliseconds(bucket.answer_half)}, 95 % within {milliseconds(bucket.answer_most)}"
    return f"{when}: {count(bucket.calls, 'call')}{trouble}{speed if bucket.answer_half is not None else ''}"
