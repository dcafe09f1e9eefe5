"""
Who spoke when in a call, as spans of time and as a picture.

A recording shows exactly when each side spoke. Without one, spans are estimated from the time of each transcript and
the usual speed of speech.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final, Literal

from markupsafe import Markup

from gateway.web.dashboard import charts
from gateway.web.dashboard.humanize import count, duration, milliseconds, percent

DEAD_AIR: Final = 3.0
"""Silence after which callers ask "are you there?"."""
SLOW_ANSWER: Final = 2.0
WORDS_PER_SECOND: Final = 2.7
_MIN_SPAN: Final = 0.3

_WIDTH: Final = 1000.0
_LEFT: Final = 64.0
_LANES: Final = {"caller": 26.0, "agent": 66.0}
_LANE_HEIGHT: Final = 26.0
_MARKS: Final = 112.0
_HEIGHT: Final = 128.0

Who = Literal["caller", "agent"]


@dataclass(frozen=True)
class Span:
    """One side speaks. `cut`: it was interrupted, and a part was not heard."""

    who: Who
    start: float
    end: float
    words: str = ""
    cut: bool = False


@dataclass(frozen=True)
class Stretch:
    """A labelled interval: waiting for an answer, dead air, a function call."""

    start: float
    end: float
    label: str = ""


@dataclass(frozen=True)
class Timeline:
    """Times are seconds since the call was answered."""

    seconds: float
    spans: Sequence[Span] = ()
    waits: Sequence[Stretch] = ()
    functions: Sequence[Stretch] = ()
    exact: bool = False
    """Measured from the recording, not estimated."""

    @property
    def silences(self) -> list[Stretch]:
        """Dead air between turns and at the end."""
        edges: list[tuple[float, float]] = [(0.0, 0.0)]
        for span in sorted(self.spans, key=lambda span: span.start):
            edges.append((span.start, max(span.end, edges[-1][1])))
        edges.append((self.seconds, self.seconds))
        return [Stretch(end, start) for (_, end), (start, _) in pairwise(edges) if start - end >= DEAD_AIR]

    @property
    def interruptions(self) -> list[float]:
        return [span.end for span in self.spans if span.cut]

    def share(self, who: Who) -> float:
        """The share of the call in which one side spoke."""
        spoken = sum(span.end - span.start for span in self.spans if span.who == who)
        return min(spoken / self.seconds, 1.0) if self.seconds else 0.0

    @property
    def description(self) -> str:
        """The picture in one sentence."""
        parts = [
            f"caller speaks {percent(self.share('caller'))} of the time, agent {percent(self.share('agent'))}",
            count(len(self.interruptions), "interruption") if self.interruptions else "no interruptions",
        ]
        if self.waits:
            longest = max(self.waits, key=lambda wait: wait.end - wait.start)
            parts.append(f"longest response time {milliseconds(longest.end - longest.start)}")
        if silences := self.silences:
            parts.append(count(len(silences), "period of dead air", "periods of dead air"))
        if self.functions:
            parts.append(count(len(self.functions), "function call"))
        return f"{duration(self.seconds)} long: {', '.join(parts)}"


@dataclass(frozen=True)
class SpokenTurn:
    """A turn as pages show it: its text, when it was transcribed, and what was not heard of it."""

    who: Who
    text: str
    at: float | None = None
    unheard: str = ""
    cut: bool = False
    wait: float | None = None
    """Response time in seconds."""
    stages: Sequence[tuple[str, float]] = field(default=())


def of_turns(turns: Sequence[SpokenTurn], seconds: float, functions: Sequence[Stretch] = ()) -> Timeline:
    """Estimate spans. A caller's text arrives at the end of the turn, the agent's at its start."""
    raw = [_raw_span(turn) for turn in turns if turn.at is not None and (turn.text or turn.unheard)]
    spans: list[Span] = []
    for span in raw:
        if spans and span.start < spans[-1].end:
            before = spans[-1]
            if before.cut:
                spans[-1] = replace(before, end=max(before.start + _MIN_SPAN, min(before.end, span.start + _MIN_SPAN)))
            elif span.who == "caller":
                span = replace(span, start=max(min(before.end, span.end - _MIN_SPAN), before.start))
            else:
                spans[-1] = replace(before, end=max(span.start, before.start))
        spans.append(span)
    length = max([seconds, *(span.end for span in spans[-1:])])
    return Timeline(length, spans, _waits(spans), functions)


def with_recording(timeline: Timeline, spans: Sequence[Span], seconds: float) -> Timeline:
    """The same call with spans from the recording. Each gets the words and cuts of its turn."""
    named = [_named(span, timeline.spans) for span in spans]
    return Timeline(max(seconds, timeline.seconds), named, _waits(named), timeline.functions, exact=True)


def picture(timeline: Timeline) -> Markup:
    """A lane for the caller, a lane for the agent, and function calls below."""
    scale = (_WIDTH - _LEFT - 8) / (timeline.seconds or 1.0)

    def x(at: float) -> float:
        return _LEFT + at * scale

    drawn = [
        *_axis(timeline.seconds, x),
        *(
            charts.box(x(s.start), 20, (s.end - s.start) * scale, 78, "dead-air", _tip(s, "dead air"))
            for s in timeline.silences
        ),
        charts.text(0, _LANES["caller"] + 18, "Caller", "lane"),
        charts.text(0, _LANES["agent"] + 18, "Agent", "lane"),
        *(_lane_line(y) for y in _LANES.values()),
        *(_span(span, x(span.start), (span.end - span.start) * scale) for span in timeline.spans),
        *(_wait(wait, x(wait.start), (wait.end - wait.start) * scale) for wait in timeline.waits),
        *(_function(use, x(use.start), (use.end - use.start) * scale) for use in timeline.functions),
        *(_interruption(at, x(at)) for at in timeline.interruptions),
        charts.line(_LEFT, 14, _LEFT, _LANES["agent"] + 36, "cursor"),
    ]
    height = _HEIGHT if timeline.functions else _MARKS - 6
    return charts.picture(_WIDTH, height, timeline.description, *drawn, class_="timeline")


def waves(peaks: Sequence[Sequence[float]], label: str) -> Markup:
    """Waveforms of caller and agent on the timeline's scale. `peaks` are loudness from 0 to 1."""
    drawn = [charts.line(_LEFT, 0, _LEFT, 72, "cursor")]
    for channel, who, middle in zip(peaks, _LANES, (19.0, 53.0), strict=True):
        step = (_WIDTH - _LEFT - 8) / max(len(channel), 1)
        upper = [(_LEFT + index * step, middle - 0.5 - 16 * peak) for index, peak in enumerate(channel)]
        lower = [(x, 2 * middle - y) for x, y in reversed(upper)]
        drawn.append(charts.path([*upper, *lower], f"wave {who}", closed=True))
    return charts.picture(_WIDTH, 72, label, *drawn, class_="waves")


# Spans


def _raw_span(turn: SpokenTurn) -> Span:
    at, length = turn.at or 0.0, max(len(turn.text.split()) / WORDS_PER_SECOND, _MIN_SPAN)
    start, end = (max(at - length, 0.0), at) if turn.who == "caller" else (at, at + length)
    return Span(turn.who, start, max(end, start + _MIN_SPAN), turn.text, turn.cut)


def _waits(spans: Sequence[Span]) -> list[Stretch]:
    """From the end of the caller's speech to the start of the agent's."""
    waits = []
    for before, after in pairwise(sorted(spans, key=lambda span: span.start)):
        if (before.who, after.who) == ("caller", "agent") and after.start > before.end:
            waits.append(Stretch(before.end, after.start, milliseconds(after.start - before.end)))
    return waits


def _named(span: Span, spoken: Iterable[Span]) -> Span:
    """With the words of the turn that overlaps most."""

    def overlap(other: Span) -> float:
        return min(span.end, other.end) - max(span.start, other.start)

    same = [other for other in spoken if other.who == span.who]
    best = max(same, key=overlap, default=None)
    if best is None:
        return span
    is_last = best.cut and abs(best.end - span.end) < 1.5
    return replace(span, words=best.words, cut=is_last)


# Drawing


def _axis(seconds: float, x: Callable[[float], float]) -> list[Markup]:
    drawn = []
    for at in charts.ticks(seconds, 8):
        if at <= seconds:
            drawn += [
                charts.line(x(at), 18, x(at), _LANES["agent"] + 34),
                charts.text(x(at), 12, duration(at), "tick", "middle"),
            ]
    return drawn


def _lane_line(y: float) -> Markup:
    return charts.line(_LEFT, y + _LANE_HEIGHT / 2, _WIDTH - 8, y + _LANE_HEIGHT / 2, "lane-line")


def _tip(stretch: Stretch, what: str) -> Markup:
    return charts.element("title", f"{duration(stretch.start)}: {what}, {milliseconds(stretch.end - stretch.start)}")


def _span(span: Span, x: float, width: float) -> Markup:
    said = span.words if len(span.words) <= 140 else f"{span.words[:140]}…"
    tip = charts.element("title", f"{duration(span.start)} {span.who}{': ' if said else ''}{said}")
    y = _LANES[span.who]
    return charts.element(
        "g",
        charts.box(x, y, max(width, 2), _LANE_HEIGHT, span.who, round_=4),
        tip,
        class_="span",
        data_at=f"{span.start:.2f}",
    )


def _wait(wait: Stretch, x: float, width: float) -> Markup:
    """A line from the caller's lane to the agent's, with the response time."""
    length = wait.end - wait.start
    slow = " slow" if length >= SLOW_ANSWER else ""
    top, bottom = _LANES["caller"] + _LANE_HEIGHT, _LANES["agent"]
    bridge = charts.path(
        [(x, top), (x + width, bottom), (x + width, bottom + 2), (x, top + 2)], f"wait{slow}", closed=True
    )
    words = charts.text(x + width / 2 + 6, (top + bottom) / 2 + 1, wait.label, f"wait-label{slow}")
    return charts.element("g", bridge, words, _tip(wait, "waiting for an answer"))


def _function(use: Stretch, x: float, width: float) -> Markup:
    mark = charts.box(x, _MARKS - 6, max(width, 8), 12, "function", round_=6)
    return charts.element(
        "g", mark, charts.text(x + max(width, 8) + 4, _MARKS + 4, use.label, "mark"), _tip(use, use.label)
    )


def _interruption(at: float, x: float) -> Markup:
    tip = charts.element("title", f"{duration(at)}: caller interrupts")
    bolt = charts.path([(x, 58), (x - 5, 49), (x + 5, 49)], "interruption", closed=True)
    return charts.element("g", charts.line(x, 52, x, _LANES["agent"] + _LANE_HEIGHT, "interruption-line"), bolt, tip)
