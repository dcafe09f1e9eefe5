"""`python -m tests.chaos`: the kill matrix, with a table of what was left of the calls."""

import argparse
import asyncio
import json
import logging
import random
import statistics
import sys
import time
from dataclasses import asdict

from tests.chaos.points import POINTS
from tests.chaos.runner import RANDOM, Job, Matrix, Outcome, run

HEAD = ("point", "kills", "turns spoken", "turns kept", "own", "remote", "seconds until whole")


def main() -> int:
    options = _options()
    dice = random.Random(options.seed)
    names = options.point or [*POINTS, RANDOM]
    jobs = [Job(names[number % len(names)], dice.getrandbits(32)) for number in range(options.kills)]
    sys.stderr.write(f"seed {options.seed}, {len(jobs)} kills\n")
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # the simulators': a request cut off is what we want
    began = time.monotonic()
    matrix = asyncio.run(run(jobs, parallel=options.parallel, tell=_tell))
    sys.stderr.write(f"\n{time.monotonic() - began:.0f} s\n\n")
    sys.stdout.write((_as_json(matrix) if options.json else table(matrix, names)) + "\n")
    return 0 if all(outcome.whole for outcome in matrix.outcomes) and not matrix.problems else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/chaos", description="Kill the gateway, and see what is left.")
    parser.add_argument("--kills", type=int, default=60, help="how many; dealt out to the points in turn")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32), help="to repeat a run")
    parser.add_argument("--point", action="append", choices=[*POINTS, RANDOM], help="only this one; may be repeated")
    parser.add_argument("--parallel", type=int, default=4, help="gateways at a time")
    parser.add_argument("--json", action="store_true", help="for machines")
    return parser.parse_args()


def _tell(outcome: Outcome) -> None:
    """One mark a kill, one line for what went wrong."""
    sys.stderr.write("." if outcome.whole and not outcome.silent else f"\n{outcome}\n")
    sys.stderr.flush()


def table(matrix: Matrix, names: list[str]) -> str:
    """A line for each point, and one for all."""
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
    seconds = [outcome.seconds for outcome in outcomes]
    return (
        name,
        str(len(outcomes)),
        str(sum(outcome.words.due for outcome in outcomes)),
        str(sum(outcome.words.kept for outcome in outcomes)),
        _documents([outcome.own for outcome in outcomes]),
        _documents([outcome.remote for outcome in outcomes]),
        f"{statistics.median(seconds):.1f} / {max(seconds):.1f}",
    )


def _documents(counts: list[int]) -> str:
    """How many calls have one document; how many have none or too many where there are such."""
    others = {f"{number}×{counts.count(number)}" for number in set(counts) - {1}}
    return " ".join([str(counts.count(1)), *sorted(others)])


def _as_json(matrix: Matrix) -> str:
    outcomes = [asdict(outcome) | {"whole": outcome.whole} for outcome in matrix.outcomes]
    return json.dumps({"outcomes": outcomes, "problems": matrix.problems}, indent=2)


if __name__ == "__main__":
    sys.exit(main())
