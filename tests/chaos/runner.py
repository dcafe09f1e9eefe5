"""
Plays calls against gateways that get killed, and looks at what is left.

A lane is one gateway with its own carrier, engine, store and folder; it plays one call after the other, and the
process that comes up after one kill answers the next call. Several lanes run side by side.
"""

import asyncio
import contextlib
import os
import random
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from tests.chaos.call import ScriptedCall
from tests.chaos.outside import CARRIERS, GatewayProcess, HoldingRemem, rows
from tests.chaos.points import POINTS, Point, Surroundings
from tests.chaos.verdict import Kept, compare
from tests.fakes.deepgram import FakeDeepgram
from tests.fakes.llm import FakeLlm
from tests.stage import ADMIN, PUBLIC_URL

RANDOM = "random"
PATIENCE = 20.0
"""A call that is not whole so many seconds after its end, or the kill, counts as lost."""

DIALECTS: dict[str, dict[str, Any]] = {
    "both": {},
    "plan": {"face": "plan", "shape": "plan", "honours_idempotency": False},
    "forgetful": {"honours_idempotency": False},
    "current": {"face": "current", "shape": "current"},
    "current, forgetful": {"face": "current", "shape": "current", "honours_idempotency": False},
}
"""How the remote store speaks. Those that honour no idempotency key would keep a document twice."""


@dataclass(frozen=True)
class Job:
    """One kill to be. The seed decides what the point leaves open: the pause before it, and what the caller does."""

    point: str
    seed: int


@dataclass(frozen=True)
class Outcome:
    """What was left of one call."""

    point: str
    where: str
    """Carrier and dialect, and the last moment of the script before a random kill."""
    seed: int
    words: Kept
    archives: int
    own: int
    remote: int
    seconds: float
    """From the kill, or from the call's end where it went on, until everything was in its place."""
    silent: bool = False
    """Whether the caller was left on a line where nothing happens."""
    problem: str = ""

    @property
    def whole(self) -> bool:
        documents = {self.archives, self.own, self.remote}
        right = documents == {1} if self.words.due else documents <= {0, 1} and len(documents) == 1
        return right and not (self.words.lost or self.words.surplus or self.problem)


@dataclass(frozen=True)
class LaneKind:
    carrier: str
    dialect: str
    llm: bool = False


@dataclass
class Lane:
    """One gateway and its world. Made by `open_lane`."""

    kind: LaneKind
    folder: Path
    carrier: Any
    engine: FakeDeepgram
    remem: HoldingRemem
    llm: FakeLlm | None
    gateway: GatewayProcess
    http: httpx.AsyncClient
    outcomes: list[Outcome] = field(default_factory=list)
    length: float = 0.0
    """How long a call takes with its ending."""

    async def play(self, job: Job) -> Outcome:
        """One call, its kill, what comes after, and the verdict."""
        dice = random.Random(job.seed)
        point = POINTS.get(job.point)
        caller = f"+120255501{len(self.outcomes):02}"
        pause = 0.0 if point else dice.uniform(0.02, 0.15)
        stop_at = point.stop_at if point else ""
        call = ScriptedCall(self.carrier, self.engine, caller=caller, stop_at=stop_at, pause=pause)
        self.carrier.asks_again = dice.random() < 0.5
        before = _Before(self.archives(), len(self.remem.documents))
        kill = await self._kill(call, point, dice)
        silent = not await self._afterwards(call)
        since = time.monotonic() if len(call.conversations) > 1 else kill.since
        outcome = await self._verdict(call, before, kill, since)
        where = f"{self.kind.carrier}, {self.kind.dialect}" + ("" if point else f", after {call.moment or 'nothing'}")
        outcome = replace(outcome, point=job.point, where=where, seed=job.seed, silent=silent, problem=kill.problem)
        self.outcomes.append(outcome)
        return outcome

    async def audit(self) -> list[str]:
        """Kill and start once more: nothing may be done twice, nothing be left behind."""
        before = (len(self.archives()), len(self.remem.documents))
        self.gateway.kill()
        await self._restart()
        await self._idle()
        await asyncio.sleep(0.3)
        after = (len(self.archives()), len(self.remem.documents))
        problems = [f"archives and remote documents went from {before} to {after}"] if before != after else []
        for database, table in (("journal.db", "sessions"), ("journal.db", "entries"), ("gateway.db", "endings")):
            if left := rows(self.folder / "data" / database, f"SELECT * FROM {table}"):
                problems.append(f"{len(left)} rows of {table} were left behind")
        own = [await self._own_documents(f"+120255501{number:02}") for number in range(len(self.outcomes))]
        if own != [outcome.own for outcome in self.outcomes]:
            problems.append("own documents changed afterwards")
        return [f"{self.kind}: {problem}" for problem in problems]

    def archives(self) -> frozenset[Path]:
        return frozenset((self.folder / "archive").glob("*.txt"))

    # The kill

    async def _kill(self, call: ScriptedCall, point: Point | None, dice: random.Random) -> "_Kill":
        """Play, kill, start again."""
        around = self._surroundings()
        playing = asyncio.create_task(call.play())
        try:
            await self._strike(around, call, point, dice)
            problem = ""
        except TimeoutError:
            self.gateway.kill()
            problem = "the point was never reached"
        now = time.monotonic()
        kill = _Kill(at=now, since=now, problem=problem)
        if point is not None and point.spoils:
            await asyncio.wait_for(playing, PATIENCE)
            return replace(kill, at=float("inf"))
        self.carrier.gateway_up.clear()
        playing.cancel()
        [ended] = await asyncio.gather(playing, return_exceptions=True)
        if isinstance(ended, Exception):
            kill = replace(kill, problem=problem or f"the call broke: {ended!r}")
        if dice.random() < 0.5:
            await call.leave()
        if point is None and dice.random() < 0.3:
            await self._restart(killed_after=dice.uniform(0.5, 2.0))
        await call.lost()
        kill = replace(kill, lived_again_at=time.monotonic())
        await self._restart()
        return kill

    async def _strike(self, around: Surroundings, call: ScriptedCall, point: Point | None, dice: random.Random) -> None:
        """Wait for the moment; kill."""
        if point is None:
            await asyncio.sleep(dice.uniform(0, self.length))
            self.gateway.kill()
            return
        async with point.arrange(around, call):
            await asyncio.sleep(dice.choice((0.0, 0.03, 0.12)))
            if not (point.leaves or point.spoils):
                self.gateway.kill()
            around.dead.set()

    def _surroundings(self) -> Surroundings:
        return Surroundings(self.gateway, self.remem, self.llm, self.folder / "data", self.folder / "archive")

    async def _restart(self, *, killed_after: float | None = None) -> None:
        """Start again. Killed so many seconds later it dies once more, somewhere in its recovery."""
        await self.gateway.gone()
        self.remem.let_go()
        if killed_after is not None:
            await self.gateway.launch()
            await asyncio.sleep(killed_after)
            self.gateway.kill()
            await self.gateway.gone()
            return
        await self.gateway.start(self.http)
        self.carrier.media.set()
        self.carrier.gateway_up.set()

    async def _afterwards(self, call: ScriptedCall) -> bool:
        """Let the carrier and the caller do what they do; false when the caller was left in silence."""
        if call.phone is None or call.phone.ended_by:
            return True
        if call.phone.answered:  # else nobody ever picks up, as with a gateway that was never there
            await call.go_on(patience=8)
        abandoned = call.phone.abandoned
        await call.leave()
        return not abandoned

    # The verdict

    async def _verdict(self, call: ScriptedCall, before: "_Before", kill: "_Kill", since: float) -> Outcome:
        give_up = time.monotonic() + PATIENCE
        while True:
            idle = await self._is_idle()
            outcome = await self._look(call, before, kill)
            if (idle and outcome.whole) or time.monotonic() > give_up:
                return replace(outcome, seconds=time.monotonic() - since)
            await asyncio.sleep(0.02)

    async def _look(self, call: ScriptedCall, before: "_Before", kill: "_Kill") -> Outcome:
        new = sorted(self.archives() - before.archives)
        text = "\n".join(path.read_text() for path in new)
        words = compare(call.said, text, killed_at=kill.at, lived_again_at=kill.lived_again_at)
        remote = len(self.remem.documents) - before.remote
        return Outcome("", "", 0, words, len(new), await self._own_documents(call.caller), remote, 0.0)

    async def _own_documents(self, caller: str) -> int:
        query = {"text": "voice call summary", "tags": ["voice-session", f"caller:{caller}"], "limit": 100}
        answer = await self.http.post(f"{self.gateway.url}/v1/query", json=query, headers={"X-API-Key": ADMIN})
        return len(answer.json()["results"])

    async def _is_idle(self) -> bool:
        state = (await self.http.get(f"{self.gateway.url}/health")).json()
        return bool(state["calls"] == state["endings"] == 0)

    async def _idle(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while not await self._is_idle():
                await asyncio.sleep(0.02)

    async def measure(self) -> None:
        """Play one call to its end, for its length."""
        began = time.monotonic()
        call = ScriptedCall(self.carrier, self.engine, caller="+12025550199", pause=0.085)
        documents = len(self.remem.documents)
        await call.play()
        while len(self.remem.documents) == documents:
            await asyncio.sleep(0.01)
        await self._idle()
        self.length = time.monotonic() - began


@dataclass(frozen=True)
class _Kill:
    """When it was, by which words are judged; since when the call is waited for; and what went wrong in the playing."""

    at: float
    since: float
    problem: str = ""
    lived_again_at: float = float("inf")


@dataclass(frozen=True)
class _Before:
    archives: frozenset[Path]
    remote: int


@contextlib.asynccontextmanager
async def open_lane(kind: LaneKind, folder: Path) -> AsyncIterator[Lane]:
    async with contextlib.AsyncExitStack() as stack:
        options = {"public_url": PUBLIC_URL, "speed": 0, "strict": False}
        carrier = await stack.enter_async_context(CARRIERS[kind.carrier](**options))
        engine = await stack.enter_async_context(FakeDeepgram())
        remem = await stack.enter_async_context(HoldingRemem(**DIALECTS[kind.dialect]))
        llm = await stack.enter_async_context(FakeLlm(profile="xai")) if kind.llm else None
        http = await stack.enter_async_context(httpx.AsyncClient(trust_env=False))
        gateway = GatewayProcess(_environ(folder, carrier, engine, remem, llm), folder)
        stack.callback(gateway.kill)
        await gateway.start(http)
        carrier.gateway_url = gateway.url
        carrier.gateway_up.set()
        yield Lane(kind, folder, carrier, engine, remem, llm, gateway, http)
        gateway.kill()
        await gateway.gone()


def _environ(
    folder: Path, carrier: Any, engine: FakeDeepgram, remem: HoldingRemem, llm: FakeLlm | None
) -> dict[str, str]:
    thinks = {"XAI_API_KEY": llm.api_key, "XAI_API_URL": f"{llm.url}/v1"} if llm else {}
    return {
        "PATH": os.environ["PATH"],
        "DATA_DIR": str(folder / "data"),
        "VOICE_SESSION_ARCHIVE_DIR": str(folder / "archive"),
        "PUBLIC_URL": PUBLIC_URL,
        "ALLOWED_CALLERS": "*",
        "DEEPGRAM_API_KEY": engine.api_key,
        "DEEPGRAM_AGENT_URL": engine.url,
        "GATEWAY_ADMIN_TOKEN": ADMIN,
        "REMEM_API_URL": remem.url,
        "REMEM_API_KEY": remem.api_key,
        **carrier.settings(),
        **thinks,
    }


# Many of them


@dataclass(frozen=True)
class Matrix:
    """Everything that came of a run. `problems` are what was found when all was over."""

    outcomes: list[Outcome]
    problems: list[str]


Tell = Callable[[Outcome], None]


async def run(jobs: Iterable[Job], *, parallel: int, tell: Tell) -> Matrix:
    """Play all jobs, dealt out to lanes of every kind."""
    return await play_lanes(deal(jobs), parallel=parallel, tell=tell)


async def play_lanes(
    shares: Iterable[tuple[LaneKind, list[Job]]], *, parallel: int, tell: Tell = lambda outcome: None
) -> Matrix:
    """A lane for each share, so many at a time."""
    matrix = Matrix([], [])
    room = asyncio.Semaphore(parallel)

    async def play(kind: LaneKind, share: list[Job]) -> None:
        async with room:
            with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
                async with open_lane(kind, Path(folder)) as lane:
                    await _play_share(lane, share, matrix, tell)

    async with asyncio.TaskGroup() as group:
        for kind, share in shares:
            group.create_task(play(kind, share))
    return matrix


async def _play_share(lane: Lane, share: list[Job], matrix: Matrix, tell: Tell) -> None:
    if any(job.point == RANDOM for job in share):
        await lane.measure()
    for job in share:
        matrix.outcomes.append(await lane.play(job))
        tell(matrix.outcomes[-1])
    matrix.problems.extend(await lane.audit())


def deal(jobs: Iterable[Job], *, most: int = 40) -> list[tuple[LaneKind, list[Job]]]:
    """Jobs by the kind of lane that their seed picks, in shares that one lane can play."""
    shares: dict[LaneKind, list[Job]] = {}
    for job in jobs:
        dice = random.Random(f"lane {job.seed}")
        llm = job.point in POINTS and POINTS[job.point].needs_llm
        kind = LaneKind(dice.choice(sorted(CARRIERS)), dice.choice(sorted(DIALECTS)), llm)
        shares.setdefault(kind, []).append(job)
    return [(kind, share[i : i + most]) for kind, share in shares.items() for i in range(0, len(share), most)]
