"""
What was said in a call and who spoke when: as turns, as spans of time and as a picture.

A recording shows exactly when each side spoke. Without one, spans are estimated from the time of each transcript and
the usual speed of speech.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Final, Literal

from markupsafe import Markup

from gateway.finalization.document import archived_lines
from gateway.history.call_log import turns_from_rows
from gateway.response_time import SLOW_SECONDS, ResponseTime
from gateway.session import Speaker, Turn
from gateway.text.figures import count, duration, milliseconds
from gateway.web.dashboard import charts
from gateway.web.dashboard.call_notes import CallNote, notes_of
from gateway.web.dashboard.html import percent

DEAD_AIR: Final = 3.0
"""Silence after which callers ask "are you there?"."""
PAGE_TURNS: Final = 40
PAGE_BYTES: Final = 16_000
MAX_SHOWN: Final = 4000
"""Characters of the arguments of a function call, and of its result."""
WORDS_PER_SECOND: Final = 2.7
_MIN_SPAN: Final = 0.3
_CUT_OFF: Final = " —"  # ends a turn in an archived transcript that was not heard to its end

_WIDTH: Final = 1000.0
_LEFT: Final = 64.0
_LANES: Final = {"caller": 26.0, "agent": 66.0}
_LANE_HEIGHT: Final = 26.0
_MARKS: Final = 112.0
_HEIGHT: Final = 128.0
_LETTER: Final = 6.6
"""The width of a letter of a label, or a little more."""
_TICKS: Final = 8
_TICK_SECONDS: Final = (*(1, 2, 5, 10, 15, 30), *(60, 120, 300, 600, 900, 1800), *(3600, 7200))
"""Distances of ticks that people count in."""

Who = Literal["caller", "agent"]


@dataclass(frozen=True)
class Span:
    """One side speaks. `cut`: it was interrupted, and a part was not heard."""

    who: Who
    start: float
    end: float
    words: str = ""
    cut: bool = False
    by_operator: bool = False
    """The agent's voice says what an operator had typed."""

    @property
    def speaker(self) -> str:
        """caller, agent or operator."""
        return "operator" if self.by_operator else self.who


@dataclass(frozen=True)
class Stretch:
    """A labelled interval: dead air, a function call."""

    start: float
    end: float
    label: str = ""


@dataclass(frozen=True)
class Wait:
    """The response time of the answer that starts at `end`."""

    end: float
    response: ResponseTime

    @property
    def seconds(self) -> float:
        return self.response.first_frame or 0.0

    @property
    def label(self) -> str:
        return f"{milliseconds(self.seconds)}{'*' if self.response.counted_from.note else ''}"


@dataclass(frozen=True)
class FunctionUse(Stretch):
    """A function call of the agent. Without words if none may be kept."""

    arguments: str = ""
    result: str = ""


@dataclass(frozen=True)
class Timeline:
    """Times are seconds since the call was answered."""

    seconds: float
    spans: Sequence[Span] = ()
    waits: Sequence[Wait] = ()
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

    @property
    def has_operator(self) -> bool:
        return any(span.by_operator for span in self.spans)

    def share(self, speaker: str) -> float:
        """The share of the call in which the caller, the agent or an operator spoke."""
        spoken = sum(span.end - span.start for span in self.spans if span.speaker == speaker)
        return min(spoken / self.seconds, 1.0) if self.seconds else 0.0

    @property
    def description(self) -> str:
        """The picture in one sentence."""
        parts = [
            f"caller speaks {percent(self.share('caller'))} of the time, agent {percent(self.share('agent'))}",
            *([f"operator {percent(self.share('operator'))}"] if self.has_operator else []),
            count(len(self.interruptions), "interruption") if self.interruptions else "no interruptions",
        ]
        if measured := [wait.seconds for wait in self.waits if not wait.response.counted_from.note]:
            parts.append(f"longest response time {milliseconds(max(measured))}")
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
    response: ResponseTime | None = None
    by_operator: bool = False
    functions: Sequence[FunctionUse] = ()
    """What the agent called before it said this."""

    @property
    def size(self) -> int:
        """The bytes of its text on a page."""
        texts = [self.text, self.unheard]
        for use in self.functions:
            texts += [use.arguments[:MAX_SHOWN], use.result[:MAX_SHOWN]]
        return sum(len(text.encode()) for text in texts)


# Turns


def pages(turns: Sequence[SpokenTurn]) -> list[range]:
    """The turns that a page shows at once: a certain number, fewer if they are long."""
    found, start, size = [], 0, 0
    for place, turn in enumerate(turns):
        size += turn.size
        if place > start and (place - start == PAGE_TURNS or size > PAGE_BYTES):
            found.append(range(start, place))
            start, size = place, turn.size
    return [*found, range(start, len(turns))]


def logged_turns(events: Sequence[Mapping[str, Any]]) -> list[SpokenTurn]:
    """From the events of a call."""
    start = _answered_at(events)
    return [replace(spoken_turn(logged.turn, start), response=logged.response) for logged in turns_from_rows(events)]


def functions_of(events: Sequence[Mapping[str, Any]]) -> list[FunctionUse]:
    found = []
    for event, end in zip(events, _seconds_after_answer(events), strict=True):
        if event["event"] == "function_finished":
            label = event["function"] if event.get("ok", True) else f"{event['function']} failed"
            if label == "end_call":
                label = "Agent ended the call"
            words = event.get("arguments", ""), event.get("result", "")
            found.append(FunctionUse(max(end - (event.get("seconds") or 0.0), 0.0), end, label, *words))
    return found


def with_functions(turns: Sequence[SpokenTurn], functions: Sequence[FunctionUse]) -> list[SpokenTurn]:
    """Each function with the answer that followed it; the last answer has those after it, such as hanging up."""
    shown = list(turns)
    answers = [place for place, turn in enumerate(turns) if turn.who == "agent" and turn.at is not None]
    for use in functions if answers else ():
        place = next((place for place in answers if (turns[place].at or 0.0) >= use.end), answers[-1])
        shown[place] = replace(shown[place], functions=[*shown[place].functions, use])
    return shown


def spoken_turn(turn: Turn, started_at: datetime) -> SpokenTurn:
    who: Who = "caller" if turn.speaker is Speaker.CALLER else "agent"
    at = max((turn.at - started_at).total_seconds(), 0.0)
    return SpokenTurn(who, turn.text, at, turn.unheard, cut=not turn.heard, by_operator=turn.by_operator)


def archived_turns(transcript: str) -> list[SpokenTurn]:
    """Without times and unheard words, which an archived transcript does not have."""
    return [
        SpokenTurn(
            line.speaker,
            line.text.removesuffix(_CUT_OFF),
            cut=line.text.endswith(_CUT_OFF),
            by_operator=line.by_operator,
        )
        for line in archived_lines(transcript)
    ]


def with_timings(turns: Sequence[SpokenTurn], timings: Sequence[Mapping[str, Any]]) -> list[SpokenTurn]:
    """Add the response time to each answer, if there is one timing per caller turn."""
    asked = [index for index, turn in enumerate(turns) if turn.who == "caller"]
    timed = dict(zip(asked, timings, strict=True)) if len(asked) == len(timings) else {}
    shown = []
    for index, turn in enumerate(turns):
        timing = timed.get(index - 1) if turn.who == "agent" else None
        response = ResponseTime.from_json(timing) if timing and timing["first_frame"] is not None else None
        shown.append(replace(turn, response=response))
    return shown


def noted(turns: Sequence[SpokenTurn], events: Sequence[Mapping[str, Any]]) -> dict[int, list[CallNote]]:
    """By the place of the turn that follows, what happened; after the last turn, by the number of turns."""
    found: dict[int, list[CallNote]] = {}
    for note in notes_of(events, _seconds_after_answer(events)):
        later = (place for place, turn in enumerate(turns) if turn.at is not None and turn.at > note.at)
        found.setdefault(next(later, len(turns)), []).append(note)
    return found


def _seconds_after_answer(events: Sequence[Mapping[str, Any]]) -> list[float]:
    start = _answered_at(events)
    return [max((datetime.fromisoformat(event["at"]) - start).total_seconds(), 0.0) for event in events]


def _answered_at(events: Sequence[Mapping[str, Any]]) -> datetime:
    """This is also where the recording starts."""
    answered = (event["at"] for event in events if event["event"] == "answered")
    at = next(answered, events[0]["at"] if events else None)
    return datetime.fromisoformat(at) if at else datetime.min.replace(tzinfo=UTC)


# Spans


def of_turns(turns: Sequence[SpokenTurn], seconds: float, functions: Sequence[Stretch] = ()) -> Timeline:
    """Estimate spans. A caller's text arrives at the end of the turn, the agent's at its start."""
    spans: list[Span] = []
    waits: list[Wait] = []
    for turn in turns:
        if turn.at is None or not (turn.text or turn.unheard):
            continue
        length = max(len(turn.text.split()) / WORDS_PER_SECOND, _MIN_SPAN)
        start, end = (max(turn.at - length, 0.0), turn.at) if turn.who == "caller" else (turn.at, turn.at + length)
        span = Span(turn.who, start, max(end, start + _MIN_SPAN), turn.text, turn.cut, turn.by_operator)
        if spans and span.start < spans[-1].end:
            before = spans[-1]
            if before.cut:
                spans[-1] = replace(before, end=max(before.start + _MIN_SPAN, min(before.end, span.start + _MIN_SPAN)))
            elif span.who == "caller":
                span = replace(span, start=max(min(before.end, span.end - _MIN_SPAN), before.start))
            else:
                spans[-1] = replace(before, end=max(span.start, before.start))
        elif turn.response and spans and spans[-1].who == "caller":  # the text came later than the last sound
            spans[-1] = _ending_at(spans[-1], span.start - (turn.response.first_frame or 0.0))
        if turn.response:
            waits.append(Wait(span.start, turn.response))
        spans.append(span)
    length = max([seconds, *(span.end for span in spans[-1:])])
    return Timeline(length, spans, waits, functions)


def _ending_at(span: Span, end: float) -> Span:
    earlier = max(span.end - end, 0.0)
    return replace(span, start=max(span.start - earlier, 0.0), end=max(span.end - earlier, _MIN_SPAN))


def with_recording(timeline: Timeline, spans: Sequence[Span], seconds: float) -> Timeline:
    """The same call with spans from the recording. Each gets the words and cuts of the turn that overlaps most."""
    named, waits = [], {wait.end: wait for wait in timeline.waits}
    for span in spans:
        same = [other for other in timeline.spans if other.who == span.who]
        overlaps = [min(span.end, other.end) - max(span.start, other.start) for other in same]
        if same:
            best = same[overlaps.index(max(overlaps))]
            cut = best.cut and abs(best.end - span.end) < 1.5
            span = replace(span, words=best.words, cut=cut, by_operator=best.by_operator)
            if span.who == "agent" and (wait := waits.get(best.start)) and wait.end == best.start:
                waits[best.start] = replace(wait, end=span.start)  # the answer begins there
        named.append(span)
    return Timeline(max(seconds, timeline.seconds), named, list(waits.values()), timeline.functions, exact=True)


def with_starts(turns: Sequence[SpokenTurn], drawn: Timeline) -> list[SpokenTurn]:
    """Caller turns at the start of their sound instead of the arrival of their text, if there is a recording."""
    if not drawn.exact:
        return list(turns)
    shown, before = [], 0.0
    for turn in turns:
        if turn.who == "caller" and turn.at is not None:
            heard = (span.start for span in drawn.spans if span.who == "caller" and span.words == turn.text)
            start = next((start for start in heard if before <= start < turn.at), turn.at)
            before, turn = turn.at, replace(turn, at=start)
        shown.append(turn)
    return shown


# Drawing


def picture(timeline: Timeline, detailed: tuple[float, float] = (-math.inf, math.inf)) -> Markup:
    """
    A lane for the caller, a lane for the agent, and function calls below.

    What begins outside of the `detailed` seconds has neither text nor a tooltip.
    """
    since, before = detailed
    scale = (_WIDTH - _LEFT - 8) / (timeline.seconds or 1.0)

    def x(at: float) -> float:
        return _LEFT + at * scale

    drawn = []
    for at in _ticks(timeline.seconds):
        drawn.append(charts.line(x(at), 18, x(at), _LANES["agent"] + 34))
        label = duration(at)
        fits = x(at) + _LETTER * len(label) / 2 <= _WIDTH
        drawn.append(charts.text(x(at), 12, label, "tick", "middle" if fits else "end"))
    drawn += _outlines(timeline, detailed, x)
    for silence in timeline.silences:
        if not since <= silence.start < before:
            continue
        width = (silence.end - silence.start) * scale
        drawn.append(charts.box(x(silence.start), 20, width, 78, "dead-air", _tip(silence, "dead air")))
    for who, y in _LANES.items():
        middle = y + _LANE_HEIGHT / 2
        drawn.append(charts.text(0, y + 18, who.capitalize(), "lane"))
        drawn.append(charts.line(_LEFT, middle, _WIDTH - 8, middle, "lane-line"))
    spans = [span for span in timeline.spans if since <= span.start < before]
    drawn += [_span(span, x(span.start), (span.end - span.start) * scale) for span in spans]
    drawn += _waits([wait for wait in timeline.waits if since <= wait.end < before], x)
    drawn += _functions([use for use in timeline.functions if since <= use.start < before], x)
    drawn += [_interruption(span.end, x(span.end)) for span in spans if span.cut]
    drawn.append(charts.line(_LEFT, 14, _LEFT, _LANES["agent"] + 36, "cursor"))
    height = _HEIGHT if timeline.functions else _MARKS - 6
    return charts.picture(_WIDTH, height, timeline.description, *drawn, class_="timeline")


def _ticks(seconds: float) -> range:
    step = next((step for step in _TICK_SECONDS if step * _TICKS >= seconds), 4 * _TICK_SECONDS[-1])
    return range(0, math.floor(seconds) + 1, step)


class _Labels:
    """The places in a line that have something in them. A label without room is left out: each has a tooltip too."""

    def __init__(self, taken: Iterable[tuple[float, float]] = ()) -> None:
        self._taken = list(taken)

    def has_room(self, left: float, words: str) -> bool:
        """Takes the room, if there is any."""
        right = left + _LETTER * len(words)
        is_free = right <= _WIDTH and all(right <= start or end <= left for start, end in self._taken)
        if is_free:
            self._taken.append((left, right))
        return is_free


def _outlines(timeline: Timeline, detailed: tuple[float, float], x: Callable[[float], float]) -> Iterator[Markup]:
    """Everything that has no details, as one path of each kind."""

    def path(found: Iterable[tuple[float, float]], y: float, height: float, class_: str) -> Iterator[Markup]:
        since, before = detailed
        if edges := [(x(start), x(end)) for start, end in found if not since <= start < before]:
            yield charts.boxes(edges, y, height, class_)

    yield from path(((one.start, one.end) for one in timeline.silences), 20, 78, "dead-air")
    for speaker, who in (("caller", "caller"), ("agent", "agent"), ("operator", "agent")):
        spoken = ((span.start, span.end) for span in timeline.spans if span.speaker == speaker)
        yield from path(spoken, _LANES[who], _LANE_HEIGHT, f"spans {speaker}")
    cuts = ((span.end, span.end) for span in timeline.spans if span.cut)
    yield from path(cuts, 52, _LANES["agent"] + _LANE_HEIGHT - 52, "interruption")
    yield from path(((use.start, use.end) for use in timeline.functions), _MARKS - 6, 12, "function")


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
    tip = charts.element("title", f"{duration(span.start)} {span.speaker}{': ' if said else ''}{said}")
    shape = charts.box(x, _LANES[span.who], max(width, 2), _LANE_HEIGHT, span.speaker, round_=4)
    return charts.element("g", shape, tip, class_="span", data_at=f"{span.start:.2f}")


def _waits(waits: Sequence[Wait], x: Callable[[float], float]) -> Iterator[Markup]:
    """Lines from the caller's lane to the agent's, with the response time; where there is no room, of the longest."""
    labels = _Labels()
    top, bottom = _LANES["caller"] + _LANE_HEIGHT, _LANES["agent"]
    for wait in sorted(waits, key=lambda wait: wait.seconds, reverse=True):
        left, right = max(x(wait.end - wait.seconds), _LEFT), x(wait.end)
        slow = " slow" if wait.seconds >= SLOW_SECONDS else ""
        corners = [(left, top), (right, bottom), (right, bottom + 2), (left, top + 2)]
        shapes = [charts.path(corners, f"wait{slow}", closed=True)]
        if labels.has_room(middle := (left + right) / 2 + 6, wait.label):
            shapes.append(charts.text(middle, (top + bottom) / 2 + 1, wait.label, f"wait-label{slow}"))
        note = wait.response.counted_from.note
        tip = f"{duration(wait.end)}: response time {milliseconds(wait.seconds)}{note and f', {note}'}"
        yield charts.element("g", *shapes, charts.element("title", tip))


def _functions(functions: Sequence[Stretch], x: Callable[[float], float]) -> Iterator[Markup]:
    edges = [(x(use.start), max(x(use.end), x(use.start) + 8)) for use in functions]
    labels = _Labels(edges)
    for use, (left, right) in zip(functions, edges, strict=True):
        shapes = [charts.box(left, _MARKS - 6, right - left, 12, "function", round_=6)]
        if labels.has_room(right + 4, use.label):
            shapes.append(charts.text(right + 4, _MARKS + 4, use.label, "mark"))
        yield charts.element("g", *shapes, _tip(use, use.label))


def _interruption(at: float, x: float) -> Markup:
    tip = charts.element("title", f"{duration(at)}: caller interrupts")
    bolt = charts.path([(x, 58), (x - 5, 49), (x + 5, 49)], "interruption", closed=True)
    return charts.element("g", charts.line(x, 52, x, _LANES["agent"] + _LANE_HEIGHT, "interruption-line"), bolt, tip)
