"""Calls as text for a person: a list, one call whole, and how long answers took."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from gateway.cli.remote import Paint, columns, one_line
from gateway.cli.tail_text import line
from gateway.history.calls_table import STAGES

Row = Mapping[str, Any]

_BARS: Final = "▁▂▃▄▅▆▇█"
ALL_DONE: Final = "every call is archived, summarised and stored"


def table(rows: Sequence[Row], paint: Paint) -> str:
    """One line a call, and what is not done of which."""
    unfinished = [row for row in rows if row["ending"] != "done"]
    open_ones = "\n".join(_open_ending(row, paint) for row in unfinished) or ALL_DONE
    return "\n\n".join(filter(None, [columns([_row(row) for row in rows]) if rows else "", open_ones]))


def whole(call: Row, paint: Paint) -> str:
    """Everything about one call."""
    head = [
        paint(call["session"], "bold"),
        f"{_minute(call['started_at'])}  {call['carrier']}  {one_line(call['caller'])} with {call['agent']}",
        f"{_duration(call['seconds'])}, {call['turns']} turns, {call['outcome']}",
    ]
    about = {"session": call["session"], "caller": call["caller"], "agent": call["agent"], "carrier": call["carrier"]}
    sections = {
        "what was said": [_turn(turn, paint) for turn in call["transcript"]],
        "how long answers took": _timings(call["timings"]),
        "what the agent was told": [one_line(text) for text in call["receipt"].get("block", "").splitlines()],
        "its ending": [*_steps(call["steps"]), *([paint(one_line(call["problem"]), "red")] if call["problem"] else [])],
        "what happened": [line({**about, **event}, paint) for event in call["timeline"]],
    }
    texts = [_section(paint(name, "bold"), lines) for name, lines in sections.items() if lines]
    return "\n\n".join(["\n".join(head), *texts])


def _section(title: str, lines: Iterable[str]) -> str:
    return "\n".join([title, *(f"  {one}" for one in lines)])


def latency(figures: Row) -> str:
    """A row for each stage, with its course over time."""
    title = f"{figures['turns']} turns of {figures['calls']} calls since {_minute(figures['since'])}"
    if not figures["turns"]:
        return f"{title}: nothing to measure"
    head = ("from the end of speech to", "turns", "p50", "p90", "p99", "max", "course of the median")
    stages = {stage: figures["stages"][stage] for stage in STAGES if figures["stages"][stage]["turns"]}
    rows = [
        (
            stage.replace("_", " "),
            str(found["turns"]),
            *(_ms(found[name]) for name in ("p50", "p90", "p99", "max")),
            sparkline(found["course"]),
        )
        for stage, found in stages.items()
    ]
    return f"{title}\n\n{columns([head, *rows])}"


def sparkline(values: Iterable[float | None]) -> str:
    """A bar for each value from 0 to the largest; a gap where there is none."""
    given = list(values)
    largest = max((value for value in given if value is not None), default=0.0) or 1.0
    return "".join(" " if value is None else _BARS[min(7, max(0, int(value / largest * 8)))] for value in given)


def _row(row: Row) -> tuple[str, ...]:
    return (
        row["session"].removeprefix("voice-session:")[:8],
        _minute(row["started_at"]),
        row["agent"],
        one_line(row["caller"]),
        row["carrier"],
        _duration(row["seconds"]),
        f"{row['turns']} turns",
        row["outcome"],
        "" if row["ending"] == "done" else row["ending"],
    )


def _open_ending(row: Row, paint: Paint) -> str:
    done = {
        "archived": row["archived"],
        "summarised": bool(row["summary_by"]),
        "stored": bool(row["document"]),
        "stored remotely": row["remote"],
    }
    state = ", ".join(f"{'' if is_done else 'not '}{step}" for step, is_done in done.items())
    head = f"{row['session']}  {row['started_at'][:16]}  {row['agent']}  {one_line(row['caller'])}"
    return f"{head}\n    {state}\n    {paint(one_line(row['problem']), 'red') or 'under way'}"


def _turn(turn: Row, paint: Paint) -> str:
    at = f"{datetime.fromisoformat(turn['at']).astimezone():%H:%M:%S}  " if turn["at"] else ""
    spoken = f"{turn['speaker'].upper()}: {one_line(turn['text'])}"
    unheard = paint(f" [not heard: {one_line(turn['unheard'])}]", "dim") if turn["unheard"] else ""
    latency = turn.get("latency")
    return f"{at}{spoken}{unheard}{paint(f'  {_ms(latency)}', 'dim') if latency is not None else ''}"


def _timings(timings: Sequence[Mapping[str, float | None]]) -> list[str]:
    if not timings:
        return []
    rows = [tuple(_ms(timing.get(stage)) for stage in STAGES) for timing in timings]
    head = tuple(stage.replace("_", " ") for stage in STAGES)
    return columns([("turn", *head), *((str(number), *row) for number, row in enumerate(rows, 1))]).splitlines()


def _steps(steps: Mapping[str, Mapping[str, str]]) -> list[str]:
    rows = [(name, step["state"], one_line(step["reason"])) for name, step in steps.items()]
    return columns(rows).splitlines() if rows else []


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.0f} ms"


def _minute(moment: str) -> str:
    return f"{datetime.fromisoformat(moment).astimezone():%Y-%m-%d %H:%M}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"
