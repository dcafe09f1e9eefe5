"""Calls for a person: the list, one call in full, and latency percentiles."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from gateway.cli import tail_text
from gateway.cli.terminal import Cell, clock, count, duration, line, milliseconds, minute, one_line, short_id, table
from gateway.history.calls_table import STAGES

Row = Mapping[str, Any]

ALL_DONE: Final = "every call is archived, summarised and stored"

_BARS: Final = "▁▂▃▄▅▆▇█"
_STATES: Final = {"rests": "failed", "under way": "pending"}
"""Job states as the JSON names them, in words for a person."""


def call_list(rows: Sequence[Row]) -> Iterator[RenderableType]:
    """One row per call, then the jobs that are not done."""
    if rows:
        yield table([_row(row) for row in rows])
        yield ""
    unfinished = [row for row in rows if row["ending"] != "done"]
    for row in unfinished:
        yield from _unfinished(row)
    if not unfinished:
        yield ALL_DONE


def call_details(call: Row) -> Iterator[RenderableType]:
    yield line(call["session"], "bold")
    yield line(f"{minute(call['started_at'])}  {call['carrier']}  {call['caller']} with {call['agent']}")
    yield line(f"{duration(call['seconds'])}, {count(call['turns'], 'turn')}, {call['outcome']}")
    about = {name: call[name] for name in ("session", "caller", "agent", "carrier")}
    problem = [line(call["problem"], "red")] if call["problem"] else []
    sections: dict[str, list[RenderableType]] = {
        "Summary": [line(text) for text in call["summary"].splitlines()],
        "Transcript": [_turn(turn) for turn in call["transcript"]],
        "Response times": _timings(call["timings"]),
        "Context given at the start": [line(text) for text in call["receipt"].get("block", "").splitlines()],
        "Post-call processing": [*_steps(call["steps"]), *problem],
        "Events": [tail_text.line({**about, **event}) for event in call["timeline"]],
    }
    for title, lines in sections.items():
        if lines:
            yield ""
            yield Text(title, "bold")
            yield Padding(Group(*lines), (0, 0, 0, 2))


def latency(figures: Row) -> RenderableType:
    """A row per stage, with a sparkline of its median over time."""
    title = f"{count(figures['turns'], 'turn')} in {count(figures['calls'], 'call')} since {minute(figures['since'])}"
    if not figures["turns"]:
        return f"{title}: nothing measured"
    stages = {stage: figures["stages"][stage] for stage in STAGES if figures["stages"][stage]["turns"]}
    rows: list[Sequence[Cell]] = [
        (
            stage.replace("_", " "),
            str(found["turns"]),
            *(milliseconds(found[name]) for name in ("p50", "p90", "p99", "max")),
            sparkline(found["course"]),
        )
        for stage, found in stages.items()
    ]
    head = ("from end of speech to", "turns", "p50", "p90", "p99", "max", "median over time")
    return Group(title, "", table(rows, head=head))


def sparkline(values: Iterable[float | None]) -> Text:
    """One bar per value, scaled to the largest; a blank where the value is None."""
    given = list(values)
    largest = max((value for value in given if value is not None), default=0.0) or 1.0
    bars = (" " if value is None else _BARS[min(7, max(0, int(value / largest * 8)))] for value in given)
    return Text("".join(bars))


def _row(row: Row) -> tuple[str, ...]:
    return (
        short_id(row["session"]),
        minute(row["started_at"]),
        row["agent"],
        row["caller"],
        row["carrier"],
        duration(row["seconds"]),
        count(row["turns"], "turn"),
        row["outcome"],
        "" if row["ending"] == "done" else _STATES[row["ending"]],
    )


def _unfinished(row: Row) -> Iterator[RenderableType]:
    done = {
        "archived": row["archived"],
        "summarised": bool(row["summary_by"]),
        "stored": bool(row["document"]),
        "sent to the remote store": row["remote"],
    }
    yield line(f"{row['session']}  {minute(row['started_at'])}  {row['agent']}  {row['caller']}")
    yield "    " + ", ".join(f"{'' if is_done else 'not '}{step}" for step, is_done in done.items())
    problem = one_line(row["problem"])
    yield Text(f"    failed: {problem}", "red") if problem else Text("    pending", "dim")


def _turn(turn: Row) -> Text:
    text = Text(f"{clock(turn['at'])}  " if turn["at"] else "")
    text.append(f"{turn['speaker'].upper()}: {one_line(turn['text'])}")
    if turn["unheard"]:
        text.append(f" [not heard: {one_line(turn['unheard'])}]", "dim")
    if (latency := turn.get("latency")) is not None:
        text.append(f"  {milliseconds(latency)}", "dim")
    return text


def _timings(timings: Sequence[Mapping[str, float | None]]) -> list[RenderableType]:
    rows = [
        (str(number), *(milliseconds(timing.get(stage)) for stage in STAGES))
        for number, timing in enumerate(timings, 1)
    ]
    return [table(rows, head=("turn", *(stage.replace("_", " ") for stage in STAGES)))] if rows else []


def _steps(steps: Mapping[str, Mapping[str, str]]) -> list[RenderableType]:
    rows = [(name, step["state"], step["reason"]) for name, step in steps.items()]
    return [table(rows)] if rows else []
