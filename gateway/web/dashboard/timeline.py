"""
What was said in a call and who spoke when: as turns, as spans of time and as a picture.

A recording shows exactly when each side spoke. Without one, spans are estimated from the time of each transcript and
the usual speed of speech.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Final, Literal

from markupsafe import Markup

from gateway.history.call_log import turns_from_rows
from gateway.session import Speaker, Turn
from gateway.web.dashboard import charts
from gateway.web.dashboard.html import count, duration, milliseconds, percent

STAGE_NAMES: Final = {
    "transcript": "transcript",
    "llm_request": "LLM request",
    "first_token": "first token",
    "first_audio": "first audio",
    "first_frame": "first frame sent",
}
DEAD_AIR: Final = 3.0
"""Silence after which callers ask "are you there?"."""
SLOW_ANSWER: Final = 2.0
WORDS_PER_SECOND: Final = 2.7
_MIN_SPAN: Final = 0.3
_CUT_OFF: Final = " —"  # ends a turn in an archived transcript that was not heard to its end

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
    stages: Sequence[tuple[str, float]] = ()


# Turns


def logged_turns(events: Sequence[Mapping[str, Any]]) -> list[SpokenTurn]:
    """From the events of a call."""
    start = _answered_at(events)
    return [
        replace(spoken_turn(logged.turn, start), wait=logged.latency, stages=_stages(logged.stages))
        for logged in turns_from_rows(events)
    ]


def functions_of(events: Sequence[Mapping[str, Any]]) -> list[Stretch]:
    start = _answered_at(events)
    found = []
    for event in events:
        if event["event"] == "function_finished":
            end = max((datetime.fromisoformat(event["at"]) - start).total_seconds(), 0.0)
            label = event["function"] if event.get("ok", True) else f"{event['function']} failed"
            found.append(Stretch(max(end - (event.get("seconds") or 0.0), 0.0), end, label))
    return found


def spoken_turn(turn: Turn, started_at: datetime) -> SpokenTurn:
    who: Who = "caller" if turn.speaker is Speaker.CALLER else "agent"
    at = max((turn.at - started_at).total_seconds(), 0.0)
    return SpokenTurn(who, turn.text, at, turn.unheard, cut=not turn.heard)


def archived_turns(transcript: str) -> list[SpokenTurn]:
    """Without times and unheard words, which an archived transcript does not have."""
    turns = []
    for line in filter(None, transcript.splitlines()):
        speaker, _, text = line.partition(": ")
        who: Who = "caller" if speaker == "CALLER" else "agent"
        turns.append(SpokenTurn(who, text.removesuffix(_CUT_OFF), cut=text.endswith(_CUT_OFF)))
    return turns


def with_timings(turns: Sequence[SpokenTurn], timings: Sequence[Mapping[str, float | None]]) -> list[SpokenTurn]:
    """Add the response time to each answer, if there is one timing per caller turn."""
    asked = [index for index, turn in enumerate(turns) if turn.who == "caller"]
    timed = dict(zip(asked, timings, strict=True)) if len(asked) == len(timings) else {}
    shown = []
    for index, turn in enumerate(turns):
        timing = timed.get(index - 1, {}) if turn.who == "agent" else {}
        wait = timing.get("first_frame") or timing.get("first_audio")
        shown.append(replace(turn, wait=wait, stages=_stages(timing)))
    return shown


def _answered_at(events: Sequence[Mapping[str, Any]]) -> datetime:
    """This is also where the recording starts."""
    answered = (event["at"] for event in events if event["event"] == "answered")
    at = next(answered, events[0]["at"] if events else None)
    return datetime.fromisoformat(at) if at else datetime.min.replace(tzinfo=UTC)


def _stages(timing: Mapping[str, float | None]) -> list[tuple[str, float]]:
    return [(name, seconds) for stage, name in STAGE_NAMES.items() if (seconds := timing.get(stage)) is not None]


# Spans


def of_turns(turns: Sequence[SpokenTurn], seconds: float, functions: Sequence[Stretch] = ()) -> Timeline:
    """Estimate spans. A caller's text arrives at the end of the turn, the agent's at its start."""
    spans: list[Span] = []
    for turn in turns:
        if turn.at is None or not (turn.text or turn.unheard):
            continue
        length = max(len(turn.text.split()) / WORDS_PER_SECOND, _MIN_SPAN)
        start, end = (max(turn.at - length, 0.0), turn.at) if turn.who == "caller" else (turn.at, turn.at + length)
        span = Span(turn.who, start, max(end, start + _MIN_SPAN), turn.text, turn.cut)
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
    """The same call with spans from the recording. Each gets the words and cuts of the turn that overlaps most."""
    named = []
    for span in spans:
        same = [other for other in timeline.spans if other.who == span.who]
        overlaps = [min(span.end, other.end) - max(span.start, other.start) for other in same]
        if same:
            best = same[overlaps.index(max(overlaps))]
            span = replace(span, words=best.words, cut=best.cut and abs(best.end - span.end) < 1.5)
        named.append(span)
    return Timeline(max(seconds, timeline.seconds), named, _waits(named), timeline.functions, exact=True)


def _waits(spans: Sequence[Span]) -> list[Stretch]:
    """From the end of the caller's speech to the start of the agent's."""
    waits = []
    for before, after in pairwise(sorted(spans, key=lambda span: span.start)):
        if (before.who, after.who) == ("caller", "agent") and after.start > before.end:
            waits.append(Stretch(before.end, after.start, milliseconds(after.start - before.end)))
    return waits


# Drawing


def picture(timeline: Timeline) -> Markup:
    """A lane for the caller, a lane for the agent, and function calls below."""
    scale = (_WIDTH - _LEFT - 8) / (timeline.seconds or 1.0)

    def x(at: float) -> float:
        return _LEFT + at * scale

    drawn = []
    for at in charts.ticks(timeline.seconds, 8):
        if at <= timeline.seconds:
            drawn.append(charts.line(x(at), 18, x(at), _LANES["agent"] + 34))
            drawn.append(charts.text(x(at), 12, duration(at), "tick", "middle"))
    for silence in timeline.silences:
        width = (silence.end - silence.start) * scale
        drawn.append(charts.box(x(silence.start), 20, width, 78, "dead-air", _tip(silence, "dead air")))
    for who, y in _LANES.items():
        middle = y + _LANE_HEIGHT / 2
        drawn.append(charts.text(0, y + 18, who.capitalize(), "lane"))
        drawn.append(charts.line(_LEFT, middle, _WIDTH - 8, middle, "lane-line"))
    drawn += [_span(span, x(span.start), (span.end - span.start) * scale) for span in timeline.spans]
    drawn += [_wait(wait, x(wait.start), (wait.end - wait.start) * scale) for wait in timeline.waits]
    for use in timeline.functions:
        width = max((use.end - use.start) * scale, 8)
        mark = charts.box(x(use.start), _MARKS - 6, width, 12, "function", round_=6)
        label = charts.text(x(use.start) + width + 4, _MARKS + 4, use.label, "mark")
        drawn.append(charts.element("g", mark, label, _tip(use, use.label)))
    drawn += [_interruption(at, x(at)) for at in timeline.interruptions]
    drawn.append(charts.line(_LEFT, 14, _LEFT, _LANES["agent"] + 36, "cursor"))
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


def _tip(stretch: Stretch, what: str) -> Markup:
    return charts.element("title", f"{duration(stretch.start)}: {what}, {milliseconds(stretch.end - stretch.start)}")


def _span(span: Span, x: float, width: float) -> Markup:
    said = span.words if len(span.words) <= 140 else f"{span.words[:140]}…"
    tip = charts.element("title", f"{duration(span.start)} {span.who}{': ' if said else ''}{said}")
    shape = charts.box(x, _LANES[span.who], max(width, 2), _LANE_HEIGHT, span.who, round_=4)
    return charts.element("g", shape, tip, class_="span", data_at=f"{span.start:.2f}")


def _wait(wait: Stretch, x: float, width: float) -> Markup:
    """A line from the caller's lane to the agent's, with the response time."""
    slow = " slow" if wait.end - wait.start >= SLOW_ANSWER else ""
    top, bottom = _LANES["caller"] + _LANE_HEIGHT, _LANES["agent"]
    corners = [(x, top), (x + width, bottom), (x + width, bottom + 2), (x, top + 2)]
    bridge = charts.path(corners, f"wait{slow}", closed=True)
    words = charts.text(x + width / 2 + 6, (top + bottom) / 2 + 1, wait.label, f"wait-label{slow}")
    return charts.element("g", bridge, words, _tip(wait, "waiting for an answer"))


def _interruption(at: float, x: float) -> Markup:
    tip = charts.element("title", f"{duration(at)}: caller interrupts")
    bolt = charts.path([(x, 58), (x - 5, 49), (x + 5, 49)], "interruption", closed=True)
    return charts.element("g", charts.line(x, 52, x, _LANES["agent"] + _LANE_HEIGHT, "interruption-line"), bolt, tip)
