"""Many kills: dealt out to lanes of every kind, which run side by side."""

import asyncio
import random
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.catalogue import POINTS
from tests.chaos.lane import DIALECTS, Job, Lane, LaneKind, Outcome, open_lane
from tests.chaos.node_kills import TWO_NODES
from tests.chaos.outside import CARRIERS

RANDOM = "random"
RANDOM_NODES = f"{TWO_NODES}random"


@dataclass(frozen=True)
class Matrix:
    """Everything that came of a run. `problems` are what was found when all was over."""

    outcomes: list[Outcome]
    problems: list[str]


Tell = Callable[[Outcome], None]


def nodes_of(name: str) -> int:
    """How many gateways a point needs."""
    return POINTS[name].nodes if name in POINTS else 2 if name == RANDOM_NODES else 1


def kind_for(name: str, carrier: str, dialect: str) -> LaneKind:
    """The lane in which a point can be played."""
    point = POINTS.get(name)
    llm, shim = (point.needs_llm, point.needs_shim) if point is not None else (False, False)
    return LaneKind(carrier, dialect, llm, nodes_of(name), shim)


async def run(
    jobs: Iterable[Job], *, parallel: int, tell: Tell = lambda outcome: None, logs: Path | None = None
) -> Matrix:
    """Play all jobs, dealt out to lanes of every kind. `logs` is where gateways' logs go when a call is not whole."""
    return await play_lanes(deal(jobs), parallel=parallel, tell=tell, logs=logs)


async def play_lanes(
    shares: Iterable[tuple[LaneKind, list[Job]]],
    *,
    parallel: int,
    tell: Tell = lambda outcome: None,
    logs: Path | None = None,
) -> Matrix:
    """A lane for each share, so many at a time. After a call that went wrong the rest gets a new one."""
    matrix = Matrix([], [])
    room = asyncio.Semaphore(parallel)

    async def play(kind: LaneKind, share: list[Job]) -> None:
        async with room:
            while share:
                with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
                    async with open_lane(kind, Path(folder)) as lane:
                        share = await _play_share(lane, share, matrix, tell)
                if logs is not None and lane.outcomes and not lane.outcomes[-1].fine:
                    lane.write_logs(logs)

    async def guarded(kind: LaneKind, share: list[Job]) -> None:
        try:
            await play(kind, share)
        except Exception as error:  # the edge of a lane: it costs its share, not the run
            matrix.problems.append(f"{kind} broke: {error!r}")

    async with asyncio.TaskGroup() as group:
        for kind, share in shares:
            group.create_task(guarded(kind, share))
    return matrix


async def _play_share(lane: Lane, share: list[Job], matrix: Matrix, tell: Tell) -> list[Job]:
    """Returns what is left to be played."""
    if any(job.point not in POINTS for job in share):
        await lane.measure()
    for number, job in enumerate(share, 1):
        outcome = await lane.play(job)
        matrix.outcomes.append(outcome)
        tell(outcome)
        if not outcome.fine:
            return share[number:]
    matrix.problems.extend(await lane.audit())
    return []


def deal(jobs: Iterable[Job], *, most: int = 40) -> list[tuple[LaneKind, list[Job]]]:
    """Jobs by the kind of lane that their seed picks, in shares that one lane can play."""
    shares: dict[LaneKind, list[Job]] = {}
    for job in jobs:
        dice = random.Random(f"lane {job.seed}")
        kind = kind_for(job.point, dice.choice(sorted(CARRIERS)), dice.choice(sorted(DIALECTS)))
        shares.setdefault(kind, []).append(job)
    return [(kind, share[i : i + most]) for kind, share in shares.items() for i in range(0, len(share), most)]
