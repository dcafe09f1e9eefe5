"""The result of one run, as a table for people and as JSON."""

from dataclasses import asdict, dataclass
from typing import Any, Final

from gateway.bench.results import FrameCount, Spread, disturbances_of, faults, line, times

LIMIT_MS: Final = 3.0
"""Delay added to the first token at p99."""


@dataclass(frozen=True)
class LlmMeasurement:
    """One run with `turns` simultaneous LLM answers, each in its own call."""

    turns: int
    seconds: float
    answers: int
    """Requested through the gateway."""
    failed: int
    """Answers that did not arrive or did not carry the model's text."""
    left_out: int
    """Answers excluded from `through`: the machine was preempted while their first token was in flight."""
    direct: Spread
    """From the model's first token to the engine's socket, without the gateway."""
    through: Spread
    """The same, through the gateway."""
    cpu_ms_per_turn: float
    """CPU time beyond what the calls' audio takes."""
    frames: FrameCount
    """The calls' audio, both directions."""
    generator_lag: Spread
    core_taken: float
    ahead: bool
    """Whether the gateway and the load ran with real-time priority."""

    @property
    def added_ms(self) -> dict[str, float]:
        """Delay added by the gateway."""
        return {
            "p50": round(self.through.p50_ms - self.direct.p50_ms, 3),
            "p99": round(self.through.p99_ms - self.direct.p99_ms, 3),
            "max": round(self.through.max_ms - self.direct.max_ms, 3),
        }

    @property
    def held(self) -> bool:
        return not self.failed and bool(self.through.count) and self.added_ms["p99"] < LIMIT_MS

    @property
    def disturbances(self) -> list[str]:
        few = [f"only {self.through.count} answers were counted"] if self.left_out > self.through.count else []
        return [*few, *disturbances_of(self.generator_lag, self.core_taken)]


def as_json(run: LlmMeasurement) -> dict[str, Any]:
    verdict = {"held": run.held, "added_ms": run.added_ms, "disturbances": run.disturbances}
    return {"limit_ms": LIMIT_MS, **asdict(run), **verdict}


def as_text(run: LlmMeasurement) -> str:
    added = run.added_ms
    lines = [
        f"{run.turns} answers at once for {run.seconds:g} s, each in its own call, gateway on one core"
        + (", real-time priority" if run.ahead else ""),
        line("", f"{'p50':>9} {'p99':>12} {'max':>12}"),
        _three_times("first token, direct", run.direct.p50_ms, run.direct.p99_ms, run.direct.max_ms),
        _three_times("first token, through the gateway", run.through.p50_ms, run.through.p99_ms, run.through.max_ms),
        _three_times("added by the gateway", added["p50"], added["p99"], added["max"]),
        line("CPU per answer", f"{run.cpu_ms_per_turn:9.2f} ms"),
        line("answers", f"{run.answers:9} ({f'{run.failed} failed' if run.failed else 'all arrived'})"),
        line("left out", f"{run.left_out:9} (the machine was preempted)"),
        line("frames sent", f"{run.frames.sent:9} ({faults(run.frames)})"),
        times("load generator late by", run.generator_lag),
    ]
    return "\n".join([*lines, *(f"note: {text}" for text in run.disturbances)])


def _three_times(name: str, p50_ms: float, p99_ms: float, max_ms: float) -> str:
    return line(name, f"{p50_ms:9.2f} ms {p99_ms:9.2f} ms {max_ms:9.2f} ms")
