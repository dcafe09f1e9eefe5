"""Run the same load on the bare bridge and on the gateway alternately, and compare their CPU time."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gateway.bench.processes import COMPARISONS, Variant
from gateway.bench.results import Measurement, as_json, line

BRIDGE: Final = Variant("bare bridge", module="scripts.bare_bridge.bridge", document_seconds=0.0)
GATEWAY: Final = COMPARISONS["memory"][1]
"""With memory, call log and metrics. Without the embedding model, a separate process that would share the core."""


@dataclass(frozen=True)
class Comparison:
    """Rounds of two runs each, one after the other: other load on the machine affects both alike."""

    rounds: Sequence[tuple[Measurement, Measurement]]
    """The bridge, then the gateway."""

    @property
    def cpu_ms(self) -> tuple[float, float]:
        """Milliseconds per call and second of bridge and gateway, each the median of its runs."""
        bridge, gateway = (
            statistics.median(pair[which].cpu_ms_per_call_second for pair in self.rounds) for which in (0, 1)
        )
        return bridge, gateway

    @property
    def ratio(self) -> float:
        """The gateway's CPU time divided by the bridge's: the median over the rounds."""
        return statistics.median(
            gateway.cpu_ms_per_call_second / bridge.cpu_ms_per_call_second for bridge, gateway in self.rounds
        )

    @property
    def faultless(self) -> bool:
        """Whether every call came up and no frame was lost, in either program."""
        runs = [run for pair in self.rounds for run in pair]
        return all(run.connected == run.calls and run.frames.faultless for run in runs)


def compare(measure: Callable[[Variant], Measurement], *, rounds: int, progress: Callable[[str], None]) -> Comparison:
    pairs = []
    for number in range(1, rounds + 1):
        pair = measure(BRIDGE), measure(GATEWAY)
        pairs.append(pair)
        figures = " and ".join(f"{run.cpu_ms_per_call_second:.2f} ms ({run.variant})" for run in pair)
        notes = dict.fromkeys(note for run in pair for note in run.disturbances)
        progress("; ".join([f"round {number} of {rounds}: {figures}", *notes]))
    return Comparison(pairs)


def comparison_as_text(found: Comparison) -> str:
    first = found.rounds[0][0]
    bridge_ms, gateway_ms = found.cpu_ms
    return "\n".join(
        [
            f"{first.calls} calls at once for {first.seconds:g} s, {len(found.rounds)} rounds, medians",
            line("CPU per call, bare bridge", f"{bridge_ms:9.2f} ms a second"),
            line("CPU per call, gateway", f"{gateway_ms:9.2f} ms a second"),
            line("gateway to bare bridge", f"{found.ratio:9.2f} times"),
            *([] if found.faultless else ["note: calls did not come up, or frames were lost"]),
        ]
    )


def comparison_as_json(found: Comparison) -> dict[str, Any]:
    """As `gateway bench --json`, with the medians in `cpu_ms_per_call_second` and `ratio`."""
    bridge_ms, gateway_ms = found.cpu_ms
    runs = as_json([run for pair in found.rounds for run in pair])
    medians = {"bridge": round(bridge_ms, 2), "gateway": round(gateway_ms, 2)}
    return {**runs, "cpu_ms_per_call_second": medians, "ratio": round(found.ratio, 2)}
