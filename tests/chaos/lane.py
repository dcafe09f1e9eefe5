"""
A lane: one gateway, or two that share Redis, with their own carrier, engine, stores and folder.

It plays one call after the other. The process that comes up after one kill answers the next call.
"""

import asyncio
import contextlib
import os
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from tests.chaos.call import MOMENTS, ScriptedCall
from tests.chaos.catalogue import POINTS
from tests.chaos.outside import CARRIERS, HoldingLlm, HoldingRemem, rows
from tests.chaos.points import Point, Surroundings
from tests.chaos.process import GatewayProcess
from tests.chaos.shared import SharedRedis
from tests.chaos.shim import FaultyLibc
from tests.chaos.verdict import RECEIVED_BEFORE, Kept, compare
from tests.fakes.deepgram import FakeDeepgram
from tests.link import Link, linked
from tests.stage import ADMIN, PUBLIC_URL, until_it

PATIENCE = 45.0
"""A call that is not whole so many seconds after its end, or the kill, counts as lost. Longer than a token lives."""

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
    patient: bool = False
    """Whether it waits until what was said is kept: on a machine without power to spare that takes its time."""


@dataclass(frozen=True)
class Outcome:
    """What was left of one call."""

    point: str
    where: str
    """Carrier and dialect, and the last moment of the script before a random kill."""
    seed: int
    words: Kept
    archives: int
    documents: int
    """In the remote store, which two nodes share."""
    own: int | None
    """In the gateway's own store; with two nodes either may have it."""
    seconds: float
    """From the kill, or from the call's end where it went on, until everything was in its place."""
    heard_after: float | None = None
    """Seconds from the carrier's new stream until the caller heard the agent again."""
    silent: bool = False
    """Whether the caller was left on a line where nothing happens."""
    problem: str = ""

    @property
    def whole(self) -> bool:
        counts = {self.archives, self.documents, self.documents if self.own is None else self.own}
        right = counts == {1} if self.words.due else counts <= {0, 1} and len(counts) == 1
        return right and not (self.words.lost or self.words.surplus or self.problem)

    @property
    def fine(self) -> bool:
        return self.whole and not self.silent


@dataclass(frozen=True)
class LaneKind:
    carrier: str
    dialect: str
    llm: bool = False
    nodes: int = 1
    shim: bool = False


@dataclass
class Lane:
    """Gateways and their world. Made by `open_lane`."""

    kind: LaneKind
    folder: Path
    carrier: Any
    engine: FakeDeepgram
    remem: HoldingRemem
    llm: HoldingLlm | None
    gateways: list[GatewayProcess]
    redis: SharedRedis | None
    links: list[Link]
    shim: FaultyLibc | None
    http: httpx.AsyncClient
    outcomes: list[Outcome] = field(default_factory=list)
    length: float = 0.0
    """How long a call takes with its ending."""

    @property
    def gateway(self) -> GatewayProcess:
        return self.gateways[0]

    async def play(self, job: Job) -> Outcome:
        """One call, its kill, what comes after, and the verdict."""
        dice = random.Random(job.seed)
        point = POINTS.get(job.point)
        caller = _caller(len(self.outcomes))
        pause = 0.03 if point else dice.uniform(0.02, 0.15)
        stop_at = point.stop_at if point else ""
        call = ScriptedCall(self.carrier, self.engine, caller=caller, stop_at=stop_at, pause=pause)
        self.carrier.asks_again = dice.random() < 0.5
        before = self.archives()
        kill = await self._kill(call, point, dice, patient=job.patient)
        silent = not await self._afterwards(call)
        since = time.monotonic() if call.went_on else kill.since
        outcome = await self._verdict(call, before, kill, since)
        if point is not None and point.board_forgets and self.redis is not None:
            async with self.redis.away(forgets=True):
                pass
        problem = kill.problem or await self._all_back(call, before, kill, outcome)
        where = f"{self.kind.carrier}, {self.kind.dialect}" + ("" if point else f", after {call.moment or 'nothing'}")
        outcome = replace(outcome, point=job.point, where=where, seed=job.seed, silent=silent, problem=problem)
        self.outcomes.append(outcome)
        return outcome

    async def audit(self) -> list[str]:
        """Kill and start everything once more: nothing may be done twice, nothing be left behind."""
        archives = self.archives()
        for gateway in self.gateways:
            gateway.kill()
        await self._start_dead()
        problems = [] if await self._comes_to_rest() else ["calls or endings did not come to rest"]
        await asyncio.sleep(0.3)
        if self.archives() != archives:
            problems.append("archives were written")
        problems += await self._left_behind()
        for number, outcome in enumerate(self.outcomes):
            documents, own = self._remote_documents(_caller(number)), await self._own_documents(_caller(number))
            if documents != outcome.documents or own != (min(own, 1) if outcome.own is None else outcome.own):
                problems.append(f"{outcome.point}: documents became {documents}, own ones {own}")
        return [f"{self.kind}: {problem}" for problem in problems]

    def archives(self) -> frozenset[Path]:
        return frozenset((self.folder / "archive").glob("*.txt"))

    def write_logs(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        last = self.outcomes[-1]
        for number, gateway in enumerate(self.gateways):
            name = f"{last.point.replace(' ', '-')}-{last.seed}-node{number}.log"
            (folder / name).write_text("".join(gateway.log))

    async def _left_behind(self) -> list[str]:
        """Rows of calls and endings that are over. A node hears a little later what others have done for it."""
        tables = (
            ("call-log.db", "live_calls"),
            ("call-log.db", "entries WHERE position IS NULL"),
            ("gateway.db", "endings"),
        )

        def left() -> list[str]:
            counts = [
                (table, len(rows(gateway.data_dir / database, f"SELECT 1 FROM {table}")))
                for gateway in self.gateways
                for database, table in tables
            ]
            return [f"{count} rows of {table} were left behind" for table, count in counts if count]

        give_up = time.monotonic() + (PATIENCE if self.redis is not None else 0.0)
        while left() and time.monotonic() < give_up:
            await asyncio.sleep(0.1)
        return left()

    # The kill

    async def _kill(self, call: ScriptedCall, point: Point | None, dice: random.Random, *, patient: bool) -> "_Kill":
        """Play, kill, and see to it that there is a gateway again."""
        around = self._surroundings(point, dice)
        playing = asyncio.create_task(call.play())
        problem = await self._strike(around, call, point, patient=patient)
        now = time.monotonic()
        if point is not None and point.spoils and not problem:
            await asyncio.wait({playing}, timeout=PATIENCE)
            cut_off = "" if call.moment == MOMENTS[-1] else f"the call was cut off after {call.moment}"
            self.remem.let_go()
            return _Kill(at=float("inf"), since=time.monotonic(), problem=await _stopped(playing) or cut_off)
        problem = problem or await _stopped(playing)
        await call.lost()
        lived_again_at = time.monotonic()
        await around.victim.gone()
        self.remem.let_go()
        if dice.random() < 0.5:
            await call.leave()
        if point is not None and point.back_first:
            await self._start_dead()
        await self._revive(around.victim, dice, often=point is None)
        self.carrier.media.set()
        return _Kill(now + (RECEIVED_BEFORE if patient else 0.0), now, problem, lived_again_at)

    async def _strike(self, around: Surroundings, call: ScriptedCall, point: Point | None, *, patient: bool) -> str:
        """Wait for the moment; kill. Returns what was wrong with that."""
        if point is None:
            await asyncio.sleep(around.dice.uniform(0, self.length))
            self._strike_down(around.victim)
            return ""
        try:
            async with point.arrange(around, call):
                if not point.spoils:
                    if not patient:
                        await asyncio.sleep(around.dice.choice((0.0, 0.03, 0.12)))
                    elif not point.back_first:  # that one waits for its own call log by itself
                        await around.known(call)
                    self._strike_down(around.victim)
                around.dead.set()
        except TimeoutError:
            self._strike_down(around.victim)
            return "the point was never reached"
        return ""

    def _strike_down(self, victim: GatewayProcess) -> None:
        """At once: nothing else runs here between the decision and the signal, and the carrier knows where to go."""
        victim.kill()
        others = [gateway for gateway in self.gateways if gateway is not victim]
        if others:
            self._balance(webhooks=others[0], media=others[0])
        else:
            self.carrier.gateway_up.clear()

    def _balance(self, *, webhooks: GatewayProcess, media: GatewayProcess) -> None:
        """Which node the carrier is sent to."""
        self.carrier.gateway_url, self.carrier.media_gateway_url = webhooks.url, media.url

    def _surroundings(self, point: Point | None, dice: random.Random) -> Surroundings:
        """Media comes to one node, the phone may ring at another; where only one may be known, it does not."""
        home = dice.choice(self.gateways)
        apart = point is None or not (point.spoils or point.stop_at == "ring")
        self._balance(webhooks=dice.choice(self.gateways) if apart else home, media=home)
        archive_dir = self.folder / "archive"
        return Surroundings(
            self.gateways, home, self.remem, self.llm, self.redis, self.links, self.shim, archive_dir, dice
        )

    async def _revive(self, victim: GatewayProcess, dice: random.Random, *, often: bool) -> None:
        """
        Start a gateway that is alone; one that has another stays dead for now.

        With `often` there is more to happen: the first dies once more, somewhere in its recovery; the second is back
        while the other one takes over.
        """
        once_more = often and dice.random() < 0.3
        if self.redis is not None:
            if once_more:
                await victim.start(self.http)
            return
        if once_more:
            await victim.launch()
            await asyncio.sleep(dice.uniform(0.5, 2.0))
            victim.kill()
        await self._start_dead()
        self.carrier.gateway_up.set()

    async def _start_dead(self) -> None:
        """Whatever does not run is started."""
        dead = [gateway for gateway in self.gateways if gateway.dead]
        for gateway in dead:
            await gateway.gone()
        await asyncio.gather(*(gateway.start(self.http) for gateway in dead))

    async def _afterwards(self, call: ScriptedCall) -> bool:
        """Let the carrier and the caller do what they do; false when the caller was left in silence."""
        if call.phone is None or call.phone.ended_by:
            return True
        if call.phone.answered:  # else nobody ever picks up, as with a gateway that was never there
            await call.go_on(patience=30)
        abandoned = call.phone.abandoned
        await call.leave()
        return not abandoned

    # The verdict

    async def _verdict(self, call: ScriptedCall, before: frozenset[Path], kill: "_Kill", since: float) -> Outcome:
        give_up = time.monotonic() + PATIENCE
        while True:
            outcome = await self._look(call, before, kill)
            at_rest = outcome.whole and await self._is_idle()
            if at_rest or time.monotonic() > give_up:
                # What was written between the look and the question counts.
                return replace(await self._look(call, before, kill), seconds=time.monotonic() - since)
            await asyncio.sleep(0.05)

    async def _look(self, call: ScriptedCall, before: frozenset[Path], kill: "_Kill") -> Outcome:
        new = sorted(self.archives() - before)
        text = "\n".join(path.read_text() for path in new)
        words = compare(call.said, text, killed_at=kill.at, lived_again_at=kill.lived_again_at)
        documents = self._remote_documents(call.caller)
        own = await self._own_documents(call.caller) if self.redis is None else None
        return Outcome("", "", 0, words, len(new), documents, own, 0.0, call.heard_after)

    async def _all_back(self, call: ScriptedCall, before: frozenset[Path], kill: "_Kill", outcome: Outcome) -> str:
        """The dead node is started again: nothing happens twice."""
        await self._start_dead()
        if not await self._comes_to_rest():
            return "calls or endings did not come to rest"
        after = replace(await self._look(call, before, kill), seconds=outcome.seconds)
        return "" if after == outcome else f"the node that came back changed it to {after}"

    def _remote_documents(self, caller: str) -> int:
        return sum(caller in document.content for document in self.remem.documents.values())

    async def _own_documents(self, caller: str) -> int:
        """The most that one node has."""
        query = {"text": "voice call summary", "tags": ["voice-session", f"caller:{caller}"], "limit": 100}
        counts = []
        for gateway in self.gateways:
            answer = await self.http.post(f"{gateway.url}/v1/query", json=query, headers={"X-API-Key": ADMIN})
            counts.append(len(answer.json()["results"]))
        return max(counts)

    async def _is_idle(self) -> bool:
        alive = [gateway for gateway in self.gateways if not gateway.dead]
        states = [(await self.http.get(f"{gateway.url}/health")).json() for gateway in alive]
        live = [rows(gateway.data_dir / "call-log.db", "SELECT 1 FROM live_calls") for gateway in alive]
        idle = all(state["calls"] == state["endings"] == 0 for state in states) and not any(live)
        return idle and (self.redis is None or await self._agree(self.redis, alive))

    async def _agree(self, redis: SharedRedis, alive: list[GatewayProcess]) -> bool:
        """Whether Redis knows of nothing to do, and of every node."""
        busy = await redis.calls() or await redis.jobs()
        return not busy and {gateway.pid for gateway in alive} <= await redis.members()

    async def _comes_to_rest(self) -> bool:
        with contextlib.suppress(TimeoutError):
            return bool(await until_it(self._is_idle, timeout=PATIENCE))
        return False

    async def measure(self) -> None:
        """Play one call to its end, for its length."""
        began = time.monotonic()
        call = ScriptedCall(self.carrier, self.engine, caller="+12025550199", pause=0.085)
        documents = len(self.remem.documents)
        await call.play()
        while len(self.remem.documents) == documents:
            await asyncio.sleep(0.01)
        await self._comes_to_rest()
        self.length = time.monotonic() - began


def _caller(number: int) -> str:
    """Each call of a lane is another caller's."""
    return f"+120255501{number:02}"


async def _stopped(playing: asyncio.Task[None]) -> str:
    """End the playing of a call; what went wrong in it."""
    playing.cancel()
    [ended] = await asyncio.gather(playing, return_exceptions=True)
    return f"the call broke: {ended!r}" if isinstance(ended, Exception) else ""


@dataclass(frozen=True)
class _Kill:
    """When it was, by which words are judged; since when the call is waited for; and what went wrong in the playing."""

    at: float
    since: float
    problem: str = ""
    lived_again_at: float = float("inf")


@contextlib.asynccontextmanager
async def open_lane(kind: LaneKind, folder: Path) -> AsyncIterator[Lane]:
    async with contextlib.AsyncExitStack() as stack:
        options = {"public_url": PUBLIC_URL, "speed": 0, "strict": False}
        carrier = await stack.enter_async_context(CARRIERS[kind.carrier](**options))
        carrier.webhook_seconds = carrier.upgrade_seconds = 15.0  # many gateways share this machine
        engine = await stack.enter_async_context(FakeDeepgram())
        remem = await stack.enter_async_context(HoldingRemem(**DIALECTS[kind.dialect]))
        llm = await stack.enter_async_context(HoldingLlm(profile="xai")) if kind.llm else None
        # No connection is kept: the gateway at its other end may be dead when it is used again.
        limits = httpx.Limits(max_keepalive_connections=0)
        http = await stack.enter_async_context(httpx.AsyncClient(trust_env=False, limits=limits, timeout=30))
        redis = await stack.enter_async_context(_started(SharedRedis(folder / "redis"))) if kind.nodes > 1 else None
        shim = FaultyLibc(folder) if kind.shim else None
        environ = _environ(folder, carrier, engine, remem, llm) | (shim.environ if shim else {})
        links = [await stack.enter_async_context(linked(redis.port)) for _ in range(kind.nodes)] if redis else []
        shares: list[dict[str, str]] = [{"REDIS_URL": link.redis_url} for link in links] or [{}]
        gateways = [
            GatewayProcess(environ | share, folder, folder / f"data{number}") for number, share in enumerate(shares)
        ]
        for gateway in gateways:
            stack.push_async_callback(gateway.end)
        await asyncio.gather(*(gateway.start(http) for gateway in gateways))
        carrier.gateway_url = gateways[0].url
        carrier.gateway_up.set()
        yield Lane(kind, folder, carrier, engine, remem, llm, gateways, redis, links, shim, http)


@contextlib.asynccontextmanager
async def _started(redis: SharedRedis) -> AsyncIterator[SharedRedis]:
    await redis.start()
    try:
        yield redis
    finally:
        await redis.kill()


def _environ(
    folder: Path,
    carrier: Any,
    engine: FakeDeepgram,
    remem: HoldingRemem,
    llm: HoldingLlm | None,
) -> dict[str, str]:
    thinks = {"XAI_API_KEY": llm.api_key, "XAI_API_URL": f"{llm.url}/v1"} if llm else {}
    return {
        "PATH": os.environ["PATH"],
        "VOICE_SESSION_ARCHIVE_DIR": str(folder / "archive"),
        "PUBLIC_URL": PUBLIC_URL,
        "ALLOWED_CALLERS": "*",
        "DEEPGRAM_API_KEY": engine.api_key,
        "DEEPGRAM_AGENT_URL": engine.url,
        "GATEWAY_ADMIN_TOKEN": ADMIN,
        "MEMORY_VECTORS": "false",
        "REMEM_API_URL": remem.url,
        "REMEM_API_KEY": remem.api_key,
        **carrier.settings(),
        **thinks,
    }
