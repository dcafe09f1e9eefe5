"""Distributes kills over lanes of every kind, which run in parallel."""

import asyncio
import random
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.all_points import POINTS
from tests.chaos.faulty_peers import CARRIERS
from tests.chaos.lane import DIALECTS, Job, Lane, LaneKind, Outcome, open_lane
from tests.chaos.node_kills import TWO_NODES

RANDOM = "random"
RANDOM_NODES = f"{TWO_NODES}random"


@dataclass(frozen=True)
class Matrix:
    """The results of a run. `problems` are those found after the last call."""

    outcomes: list[Outcome]
    problems: list[str]


Report = Callable[[Outcome], None]


def nodes_of(name: str) -> int:
    """How many gateways a point needs."""
    return POINTS[name].nodes if name in POINTS else 2 if name == RANDOM_NODES else 1


def kind_for(name: str, carrier: str, dialect: str) -> LaneKind:
    """The kind of lane that a point needs."""
    point = POINTS.get(name)
    llm, shim = (point.needs_llm, point.needs_faulty_libc) if point is not None else (False, False)
    return LaneKind(carrier, dialect, llm, nodes_of(name), shim)


async def run(
    jobs: Iterable[Job], *, parallel: int, report: Report = lambda outcome: None, logs: Path | None = None
) -> Matrix:
    """Run all jobs on lanes of every kind. `logs` is a folder for the logs of failed calls."""
    return await play_lanes(deal(jobs), parallel=parallel, report=report, logs=logs)


async def play_lanes(
    shares: Iterable[tuple[LaneKind, list[Job]]],
    *,
    parallel: int,
    report: Report = lambda outcome: None,
    logs: Path | None = None,
) -> Matrix:
    """Run a lane for each share, `parallel` at a time. After a failed call the rest of its share gets a new lane."""
    matrix = Matrix([], [])
    room = asyncio.Semaphore(parallel)

    async def play(kind: LaneKind, share: list[Job]) -> None:
        async with room:
            while share:
                with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
                    async with open_lane(kind, Path(folder)) as lane:
                        share = await _play_share(lane, share, matrix, report)
                if logs is not None and lane.outcomes and not lane.outcomes[-1].fine:
                    lane.write_logs(logs)

    async def guarded(kind: LaneKind, share: list[Job]) -> None:
        try:
            await play(kind, share)
        except Exception as error:  # the edge of a lane: it fails its share, not the run
            matrix.problems.append(f"{kind} broke: {error!r}")

    async with asyncio.TaskGroup() as group:
        for kind, share in shares:
            group.create_task(guarded(kind, share))
    return matrix


async def _play_share(lane: Lane, share: list[Job], matrix: Matrix, report: Report) -> list[Job]:
    """Returns the jobs that remain."""
    if any(job.point not in POINTS for job in share):
        await lane.measure()
    for number, job in enumerate(share, 1):
        outcome = await lane.play(job)
        matrix.outcomes.append(outcome)
        report(outcome)
        if not outcome.fine:
            return share[number:]
    matrix.problems.extend(await lane.audit())
    return []


def deal(jobs: Iterable[Job], *, most: int = 40) -> list[tuple[LaneKind, list[Job]]]:
    """Group jobs by the lane kind that their seed selects, in shares for one lane each."""
    shares: dict[LaneKind, list[Job]] = {}
    for job in jobs:
        rng = random.Random(f"lane {job.seed}")
        kind = kind_for(job.point, rng.choice(sorted(CARRIERS)), rng.choice(sorted(DIALECTS)))
        shares.setdefault(kind, []).append(job)
    return [(kind, share[i : i + most]) for kind, share in shares.items() for i in range(0, len(share), most)]
