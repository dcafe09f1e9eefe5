"""
What the bench prints: a table for people, one JSON object for machines.

The object has `limit_ms`, `calls_sustained` (null unless searched for), `measurements` and, for a comparison, `ratio`:
how many times as much `cpu`, `memory`, `delay_up_p99` and `delay_down_p99` the second measurement has. A measurement:

- the load: `variant`, `calls`, `connected`, `replaced`, `seconds`, `turns_per_second` (of each side)
- times, each with `count`, `p50_ms`, `p99_ms`, `max_ms`: `delay_up` (caller to engine), `delay_down`,
  `start_to_settings`, `hangup_to_document`, `words_to_watcher`
- what it cost: `cpu_ms_per_call_second`, `memory_kib_per_call`, `disk_kib_per_second`
- the verdict: `sustained`, `frames` (`sent`, `lost`, `reordered`, `changed`)
- what may have spoilt it: `generator_lag` (times), `core_taken` (a share), `disturbances` (both in words)

The object of `--brain`, about the first word of an answer:

- the load: `turns` (at once), `seconds`, `answers` (asked for through the gateway), `failed`, and
  `left_out` of `answers`, as the machine was taken away meanwhile
- times from the language model until the engine can read it: `direct` and `through` the gateway; `added_ms` (`p50`,
  `p99`, `max`) is the difference
- what it cost: `cpu_ms_per_turn`
- the verdict: `limit_ms`, `held`, and `frames`, `generator_lag`, `core_taken`, `disturbances` as above; `ahead` tells
  whether the gateway and its load went before everything else on their cores, which takes a right to real-time priority
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from gateway.bench.frame_stamps import FrameCount
from gateway.bench.measures import BRAIN_LIMIT_MS, LIMIT_MS, BrainMeasurement, Measurement, Spread
from gateway.bench.runner import Search

_NAME_WIDTH = 34


def as_json(measurements: Sequence[Measurement], *, calls_sustained: int | None = None) -> dict[str, Any]:
    """See the module's docstring."""
    return {
        "limit_ms": LIMIT_MS,
        "calls_sustained": calls_sustained,
        "measurements": [
            {**asdict(run), "sustained": run.sustained, "disturbances": run.disturbances} for run in measurements
        ],
    }


def comparison_as_json(first: Measurement, second: Measurement) -> dict[str, Any]:
    return as_json([first, second]) | {"ratio": ratios(first, second)}


def ratios(first: Measurement, second: Measurement) -> dict[str, float]:
    """How many times as much the second takes."""
    pairs = {
        "cpu": (first.cpu_ms_per_call_second, second.cpu_ms_per_call_second),
        "memory": (first.memory_kib_per_call, second.memory_kib_per_call),
        "delay_up_p99": (first.delay_up.p99_ms, second.delay_up.p99_ms),
        "delay_down_p99": (first.delay_down.p99_ms, second.delay_down.p99_ms),
    }
    return {name: round(more / one, 2) if one else 0.0 for name, (one, more) in pairs.items()}


def search_as_text(found: Search) -> str:
    if found.best is None:
        return "\n".join(["calls sustained                   none", "", run_as_text(found.steps[-1])])
    failed = min((step.calls for step in found.steps if not step.sustained), default=0)
    blame = [step for step in found.steps if step.calls == failed and step.disturbed]
    least = " or more: the load generator or the machine was the limit" if blame else ""
    headline = _line("calls sustained", f"{found.best.calls}{least}")
    return "\n".join(
        [headline, _line("", f"p99 added delay under {LIMIT_MS:.0f} ms, no frame lost"), "", run_as_text(found.best)]
    )


def run_as_text(run: Measurement) -> str:
    """The table of one run."""
    frames = run.frames
    lines = [
        f"{run.calls} calls at once for {run.seconds:g} s ({run.variant}), gateway on one core",
        f"{run.replaced} of them ended meanwhile, and their callers rang again",
        _line("", f"{'p50':>9} {'p99':>12}"),
        _times("added delay, caller to engine", run.delay_up),
        _times("added delay, engine to caller", run.delay_down),
        _times("start to Settings", run.start_to_settings),
        _times("hangup to document", run.hangup_to_document),
        *([_times("words to whoever watches", run.words_to_watcher)] if run.words_to_watcher.count else []),
        _line("CPU per call", f"{run.cpu_ms_per_call_second:9.2f} ms a second"),
        _line("memory per call", f"{run.memory_kib_per_call:9.1f} KiB"),
        _line(
            "turns of each side",
            f"{run.turns_per_second:9.1f} a second, {run.disk_kib_per_second:.1f} KiB a second to disk",
        ),
        _line("frames sent", f"{frames.sent:9} ({_faults(frames)})"),
        _times("load generator late by", run.generator_lag),
    ]
    if run.connected != run.calls:
        lines.append(_line("calls that came up", f"{run.connected:9} of {run.calls}"))
    return "\n".join([*lines, *(f"note: {text}" for text in run.disturbances)])


def comparison_as_text(first: Measurement, second: Measurement) -> str:
    ratio = ratios(first, second)
    lines = [
        f"{second.variant} to {first.variant}",
        _line("CPU per call", f"{ratio['cpu']:9.2f} times"),
        _line("memory per call", f"{ratio['memory']:9.2f} times"),
        _line("p99 delay, caller to engine", f"{ratio['delay_up_p99']:9.2f} times"),
        _line("p99 delay, engine to caller", f"{ratio['delay_down_p99']:9.2f} times"),
    ]
    return "\n\n".join([run_as_text(first), run_as_text(second), "\n".join(lines)])


def brain_as_json(run: BrainMeasurement) -> dict[str, Any]:
    """See the module's docstring."""
    verdict = {"held": run.held, "added_ms": run.added_ms, "disturbances": run.disturbances}
    return {"limit_ms": BRAIN_LIMIT_MS, **asdict(run), **verdict}


def brain_as_text(run: BrainMeasurement) -> str:
    added = run.added_ms
    lines = [
        f"{run.turns} answers at once for {run.seconds:g} s, each in a call of its own, gateway on one core"
        + (", ahead of all else there" if run.ahead else ""),
        _line("", f"{'p50':>9} {'p99':>12} {'max':>12}"),
        _three_times("first word, past the gateway", run.direct.p50_ms, run.direct.p99_ms, run.direct.max_ms),
        _three_times("first word, through the gateway", run.through.p50_ms, run.through.p99_ms, run.through.max_ms),
        _three_times("added by the gateway", added["p50"], added["p99"], added["max"]),
        _line("CPU per answer", f"{run.cpu_ms_per_turn:9.2f} ms"),
        _line("answers", f"{run.answers:9} ({f'{run.failed} failed' if run.failed else 'every one came'})"),
        _line("left out", f"{run.left_out:9} (the machine was taken away meanwhile)"),
        _line("frames sent", f"{run.frames.sent:9} ({_faults(run.frames)})"),
        _times("load generator late by", run.generator_lag),
    ]
    return "\n".join([*lines, *(f"note: {text}" for text in run.disturbances)])


def _line(name: str, value: str) -> str:
    return f"{name:{_NAME_WIDTH}}{value}"


def _times(name: str, spread: Spread) -> str:
    if not spread.count:
        return _line(name, "not measured")
    return _line(name, f"{spread.p50_ms:9.2f} ms {spread.p99_ms:9.2f} ms")


def _three_times(name: str, p50_ms: float, p99_ms: float, max_ms: float) -> str:
    return _line(name, f"{p50_ms:9.2f} ms {p99_ms:9.2f} ms {max_ms:9.2f} ms")


def _faults(frames: FrameCount) -> str:
    if frames.faultless:
        return "every one arrived once, in order, unchanged"
    return f"{frames.lost} lost, {frames.reordered} out of order, {frames.changed} changed"
