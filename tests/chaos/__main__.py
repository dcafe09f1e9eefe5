"""`python -m tests.chaos`: the kill matrix, with a table of lost turns and duplicate documents."""

import argparse
import asyncio
import json
import logging
import random
import statistics
import sys
import time
from dataclasses import asdict
from pathlib import Path

from tests.chaos.all_points import POINTS
from tests.chaos.faulty_libc import COMPILER, MISSING
from tests.chaos.lane import Job, Outcome
from tests.chaos.runner import RANDOM, RANDOM_NODES, Matrix, nodes_of, run

NAMES = (*POINTS, RANDOM, RANDOM_NODES)
HEAD = ("point", "kills", "turns spoken", "turns kept", "documents", "seconds until whole", "until heard again")


def main() -> int:
    options = _options()
    rng = random.Random(options.seed)
    names = options.point or [name for name in _playable() if options.nodes in (None, nodes_of(name))]
    jobs = [Job(names[number % len(names)], rng.getrandbits(32)) for number in range(options.kills)]
    sys.stderr.write(f"seed {options.seed}, {len(jobs)} kills\n")
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # the fakes' servers: interrupted requests are expected
    began = time.monotonic()
    matrix = asyncio.run(run(jobs, parallel=options.parallel, report=_report, logs=options.logs))
    sys.stderr.write(f"\n{time.monotonic() - began:.0f} s\n\n")
    sys.stdout.write((_as_json(matrix) if options.json else table(matrix, names)) + "\n")
    return 0 if all(outcome.fine for outcome in matrix.outcomes) and not matrix.problems else 1


def _playable() -> list[str]:
    """All points that this machine supports."""
    if COMPILER:
        return list(NAMES)
    sys.stderr.write(f"{MISSING}\n")
    return [name for name in NAMES if name not in POINTS or not POINTS[name].needs_faulty_libc]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/chaos", description="Kill the gateway at every step of a call.")
    parser.add_argument("--kills", type=int, default=60, help="number of kills, distributed over the points (60)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32), help="repeats a run")
    parser.add_argument("--point", action="append", choices=NAMES, help="only this point; may be repeated")
    parser.add_argument("--nodes", type=int, choices=(1, 2), help="only points with this many gateways")
    parser.add_argument("--parallel", type=int, default=4, help="gateways at the same time (4)")
    parser.add_argument("--logs", type=Path, help="folder for the gateways' logs of failed calls")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args()


def _report(outcome: Outcome) -> None:
    """A dot per kill, a line per failure."""
    sys.stderr.write("." if outcome.fine else f"\n{outcome}\n")
    sys.stderr.flush()


def table(matrix: Matrix, names: list[str]) -> str:
    """One line per point and a total."""
    lines = [_line(name, [o for o in matrix.outcomes if o.point == name]) for name in names]
    lines = [HEAD, *(line for line in lines if line), *filter(None, [_line("all", matrix.outcomes)])]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    shown = ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    bad = [f"{outcome}" for outcome in matrix.outcomes if not outcome.whole]
    silent = [f"left in silence: {o.point} ({o.where})" for o in matrix.outcomes if o.silent]
    return "\n".join([*shown, "", *bad, *silent, *matrix.problems]).rstrip()


def _line(name: str, outcomes: list[Outcome]) -> tuple[str, ...] | None:
    if not outcomes:
        return None
    heard = [outcome.heard_after for outcome in outcomes if outcome.heard_after is not None]
    return (
        name,
        str(len(outcomes)),
        str(sum(outcome.words.due for outcome in outcomes)),
        str(sum(outcome.words.kept for outcome in outcomes)),
        _documents([outcome.documents for outcome in outcomes]),
        _median_and_worst([outcome.seconds for outcome in outcomes], decimals=1),
        _median_and_worst(heard, decimals=2),
    )


def _median_and_worst(seconds: list[float], *, decimals: int) -> str:
    return f"{statistics.median(seconds):.{decimals}f} / {max(seconds):.{decimals}f}" if seconds else "-"


def _documents(counts: list[int]) -> str:
    """Number of calls with one document, and counts of others if there are any."""
    others = {f"{number}×{counts.count(number)}" for number in set(counts) - {1}}
    return " ".join([str(counts.count(1)), *sorted(others)])


def _as_json(matrix: Matrix) -> str:
    outcomes = [asdict(outcome) | {"whole": outcome.whole} for outcome in matrix.outcomes]
    return json.dumps({"outcomes": outcomes, "problems": matrix.problems}, indent=2)


if __name__ == "__main__":
    sys.exit(main())
