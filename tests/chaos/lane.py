"""
A lane: one gateway, or two that share a Redis, with its own carrier, engine, stores and folder.

It plays one call after the other. The gateway restarted after a kill takes the next call.
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

from tests.chaos.all_points import POINTS
from tests.chaos.call import MOMENTS, ScriptedCall
from tests.chaos.faulty_libc import FaultyLibc
from tests.chaos.faulty_peers import CARRIERS, PausableLlm, PausableReceiver, PausableRemem, rows
from tests.chaos.points import KillContext, Point
from tests.chaos.process import GatewayProcess
from tests.chaos.shared_redis import SharedRedis
from tests.chaos.turn_check import RECEIVED_BEFORE, Kept, compare
from tests.fakes import elevenlabs
from tests.fakes.deepgram import FakeDeepgram
from tests.fakes.webhook_receiver import SECRET
from tests.link import Link, linked
from tests.stage import ADMIN, PUBLIC_URL, until, until_it

PATIENCE = 45.0
"""Seconds after which an incomplete call counts as lost. Longer than the lifetime of a stream token."""

DIALECTS: dict[str, dict[str, Any]] = {
    "both": {},
    "plan": {"face": "plan", "shape": "plan", "honours_idempotency": False},
    "forgetful": {"honours_idempotency": False},
    "current": {"face": "current", "shape": "current"},
    "current, forgetful": {"face": "current", "shape": "current", "honours_idempotency": False},
}
"""Variants of the remote store. Those without idempotency keys would store a repeated document twice."""


@dataclass(frozen=True)
class Job:
    """One kill. The seed decides the pause before it and the caller's behaviour."""

    point: str
    seed: int
    patient: bool = False
    """Wait until all turns are stored before the kill, which takes long on a busy machine."""


@dataclass(frozen=True)
class Outcome:
    """The result of one call."""

    point: str
    where: str
    """Carrier and store variant, and the last moment of the script before a random kill."""
    seed: int
    words: Kept
    archives: int
    documents: int
    """In the remote store, which two nodes share."""
    own: int | None
    """In the gateway's own store; None with two nodes, where either may have it."""
    webhooks: int | None
    """Accepted ids; None with two nodes, where one that is dead may have it."""
    seconds: float
    """From the kill, or from the end of a resumed call, until everything was stored."""
    heard_after: float | None = None
    """Seconds from the carrier's new stream until the caller heard the agent again."""
    silent: bool = False
    """Whether the caller was left on a dead line."""
    problem: str = ""

    @property
    def whole(self) -> bool:
        counts = {self.archives, self.documents, self.documents if self.own is None else self.own}
        right = counts == {1} if self.words.due else counts <= {0, 1} and len(counts) == 1
        reported = (
            self.webhooks is None or self.webhooks == 1 or not (self.words.due or self.webhooks or self.documents)
        )
        return right and reported and not (self.words.lost or self.words.surplus or self.problem)

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
    """Gateways and their peers. Created by `open_lane`."""

    kind: LaneKind
    folder: Path
    carrier: Any
    engine: FakeDeepgram
    remem: PausableRemem
    receiver: PausableReceiver
    llm: PausableLlm | None
    gateways: list[GatewayProcess]
    redis: SharedRedis | None
    links: list[Link]
    shim: FaultyLibc | None
    http: httpx.AsyncClient
    outcomes: list[Outcome] = field(default_factory=list)
    length: float = 0.0
    """Seconds that a call takes with its finalization."""

    @property
    def gateway(self) -> GatewayProcess:
        return self.gateways[0]

    async def play(self, job: Job) -> Outcome:
        """Play one call, kill the gateway, resume the call, and check what was stored."""
        rng = random.Random(job.seed)
        point = POINTS.get(job.point)
        caller = _caller(len(self.outcomes))
        pause = 0.03 if point else rng.uniform(0.02, 0.15)
        stop_at = point.stop_at if point else ""
        call = ScriptedCall(self.carrier, self.engine, caller=caller, stop_at=stop_at, pause=pause)
        self.carrier.asks_again = rng.random() < 0.5
        before = self.archives()
        kill = await self._kill(call, point, rng, patient=job.patient)
        silent = not await self._after_kill(call)
        since = time.monotonic() if call.was_resumed else kill.since
        outcome = await self._check(call, before, kill, since)
        if point is not None and point.redis_forgets and self.redis is not None:
            async with self.redis.away(forgets=True):
                pass
        problem = kill.problem or await self._restart_and_compare(call, before, kill, outcome)
        where = f"{self.kind.carrier}, {self.kind.dialect}" + ("" if point else f", after {call.moment or 'nothing'}")
        outcome = replace(outcome, point=job.point, where=where, seed=job.seed, silent=silent, problem=problem)
        self.outcomes.append(outcome)
        return outcome

    async def audit(self) -> list[str]:
        """Kill and restart everything: nothing may be repeated or left over."""
        archives = self.archives()
        for gateway in self.gateways:
            gateway.kill()
        await self._start_dead()
        problems = [] if await self._becomes_idle() else ["calls or finalization jobs did not finish"]
        await asyncio.sleep(0.3)
        if self.archives() != archives:
            problems.append("archives were written")
        problems += await self._leftover_rows()
        for number, outcome in enumerate(self.outcomes):
            documents, own = self._remote_documents(_caller(number)), await self._own_documents(_caller(number))
            if documents != outcome.documents or own != (min(own, 1) if outcome.own is None else outcome.own):
                problems.append(f"{outcome.point}: documents became {documents}, own ones {own}")
            if (webhooks := self.receiver.received(_caller(number))) < documents or webhooks > 1:
                problems.append(f"{outcome.point}: {webhooks} webhooks for {documents} documents")
        return [f"{self.kind}: {problem}" for problem in problems]

    def archives(self) -> frozenset[Path]:
        return frozenset((self.folder / "archive").glob("*.txt"))

    def write_logs(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        last = self.outcomes[-1]
        for number, gateway in enumerate(self.gateways):
            name = f"{last.point.replace(' ', '-')}-{last.seed}-node{number}.log"
            (folder / name).write_text("".join(gateway.log))

    async def _leftover_rows(self) -> list[str]:
        """Rows of finished calls and jobs. A node learns with a delay what others have done for it."""
        tables = (
            ("call-log.db", "live_calls"),
            ("call-log.db", "entries WHERE position IS NULL"),
            ("gateway.db", "finalization_jobs"),
        )

        def left() -> list[str]:
            counts = [
                (table, len(rows(gateway.data_dir / database, f"SELECT 1 FROM {table}")))
                for gateway in self.gateways
                for database, table in tables
            ]
            return [f"{count} rows of {table} were left behind" for table, count in counts if count]

        if self.redis is not None:
            with contextlib.suppress(TimeoutError):
                await until(lambda: not left(), timeout=PATIENCE)
        return left()

    # The kill

    async def _kill(self, call: ScriptedCall, point: Point | None, rng: random.Random, *, patient: bool) -> "_Kill":
        """Play, kill, and restart."""
        context = self._kill_context(point, rng)
        playing = asyncio.create_task(call.play())
        problem = await self._wait_and_kill(context, call, point, patient=patient)
        now = time.monotonic()
        if point is not None and point.no_kill and not problem:
            await asyncio.wait({playing}, timeout=PATIENCE)
            cut_off = "" if call.moment == MOMENTS[-1] else f"the call was cut off after {call.moment}"
            self._let_go()
            return _Kill(at=float("inf"), since=time.monotonic(), problem=await _stopped(playing) or cut_off)
        problem = problem or await _stopped(playing)
        await call.lost()
        restarted_at = time.monotonic()
        await context.victim.gone()
        self._let_go()
        if rng.random() < 0.5:
            await call.leave()
        if point is not None and point.restart_first:
            await self._start_dead()
        await self._revive(context.victim, rng, often=point is None)
        self.carrier.media.set()
        return _Kill(now + (RECEIVED_BEFORE if patient else 0.0), now, problem, restarted_at)

    async def _wait_and_kill(
        self, context: KillContext, call: ScriptedCall, point: Point | None, *, patient: bool
    ) -> str:
        """Wait for the moment and kill. Returns a problem or an empty string."""
        if point is None:
            await asyncio.sleep(context.rng.uniform(0, self.length))
            self._kill_process(context.victim)
            return ""
        try:
            async with point.arrange(context, call):
                if not point.no_kill:
                    if not patient:
                        await asyncio.sleep(context.rng.choice((0.0, 0.03, 0.12)))
                    elif not point.restart_first:  # such a point waits for the call log itself
                        await context.known(call)
                    self._kill_process(context.victim)
                context.dead.set()
        except TimeoutError:
            self._kill_process(context.victim)
            return "the point was never reached"
        return ""

    def _kill_process(self, victim: GatewayProcess) -> None:
        """Kill synchronously and direct the carrier to the other gateway."""
        victim.kill()
        others = [gateway for gateway in self.gateways if gateway is not victim]
        if others:
            self._balance(webhooks=others[0], media=others[0])
        else:
            self.carrier.gateway_up.clear()

    def _let_go(self) -> None:
        self.remem.let_go()
        self.receiver.let_go()

    def _balance(self, *, webhooks: GatewayProcess, media: GatewayProcess) -> None:
        """Choose the nodes for webhooks and media."""
        self.carrier.gateway_url, self.carrier.media_gateway_url = webhooks.url, media.url

    def _kill_context(self, point: Point | None, rng: random.Random) -> KillContext:
        """Choose the nodes: webhooks may go to another one than media, unless the point needs one node."""
        home = rng.choice(self.gateways)
        apart = point is None or not (point.no_kill or point.stop_at == "ring")
        self._balance(webhooks=rng.choice(self.gateways) if apart else home, media=home)
        archive_dir = self.folder / "archive"
        return KillContext(
            self.gateways,
            home,
            self.remem,
            self.receiver,
            self.llm,
            self.redis,
            self.links,
            self.shim,
            archive_dir,
            rng,
        )

    async def _revive(self, victim: GatewayProcess, rng: random.Random, *, often: bool) -> None:
        """
        Restart a single gateway. One of two stays dead for now.

        With `often`, sometimes kill a single gateway again during its recovery, and restart one of two while the other
        takes over.
        """
        once_more = often and rng.random() < 0.3
        if self.redis is not None:
            if once_more:
                await victim.start(self.http)
            return
        if once_more:
            await victim.launch()
            await asyncio.sleep(rng.uniform(0.5, 2.0))
            victim.kill()
        await self._start_dead()
        self.carrier.gateway_up.set()

    async def _start_dead(self) -> None:
        """Start every gateway that does not run."""
        dead = [gateway for gateway in self.gateways if gateway.dead]
        for gateway in dead:
            await gateway.gone()
        await asyncio.gather(*(gateway.start(self.http) for gateway in dead))

    async def _after_kill(self, call: ScriptedCall) -> bool:
        """Let carrier and caller continue. Returns False if the caller was left on a dead line."""
        if call.phone is None or call.phone.ended_by:
            return True
        if call.phone.answered:  # otherwise the call is never answered
            await call.resume(timeout=30)
        abandoned = call.phone.abandoned
        await call.leave()
        return not abandoned

    # The check

    async def _check(self, call: ScriptedCall, before: frozenset[Path], kill: "_Kill", since: float) -> Outcome:
        async def at_rest() -> bool:
            return (await self._count(call, before, kill)).whole and await self._is_idle()

        with contextlib.suppress(TimeoutError):
            await until_it(at_rest, timeout=PATIENCE)
        # Count again: something may have been written between the two queries.
        return replace(await self._count(call, before, kill), seconds=time.monotonic() - since)

    async def _count(self, call: ScriptedCall, before: frozenset[Path], kill: "_Kill") -> Outcome:
        new = sorted(self.archives() - before)
        text = "\n".join(path.read_text() for path in new)
        words = compare(call.said, text, killed_at=kill.at, restarted_at=kill.restarted_at)
        documents = self._remote_documents(call.caller)
        own = await self._own_documents(call.caller) if self.redis is None else None
        webhooks = self.receiver.received(call.caller) if self.redis is None else None
        return Outcome("", "", 0, words, len(new), documents, own, webhooks, 0.0, call.heard_after)

    async def _restart_and_compare(
        self, call: ScriptedCall, before: frozenset[Path], kill: "_Kill", outcome: Outcome
    ) -> str:
        """Restart the dead node: nothing may be repeated."""
        await self._start_dead()
        if not await self._becomes_idle():
            return "calls or finalization jobs did not finish"
        after = replace(await self._count(call, before, kill), seconds=outcome.seconds)
        return "" if after == outcome else f"the restarted node changed it to {after}"

    def _remote_documents(self, caller: str) -> int:
        return sum(caller in document.content for document in self.remem.documents.values())

    async def _own_documents(self, caller: str) -> int:
        """The largest number in one node's store."""
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
        """Whether Redis has no work left and a heartbeat of every node."""
        busy = await redis.calls() or await redis.jobs()
        return not busy and {gateway.pid for gateway in alive} <= await redis.members()

    async def _becomes_idle(self) -> bool:
        with contextlib.suppress(TimeoutError):
            return bool(await until_it(self._is_idle, timeout=PATIENCE))
        return False

    async def is_reported(self, caller: str) -> bool:
        """Whether the caller's only call has left one document in each store, and one webhook."""
        own, remote = await self._own_documents(caller), self._remote_documents(caller)
        assert max(own, remote, self.receiver.received(caller)) <= 1
        return own == remote == self.receiver.received(caller) == 1 and await self._is_idle()

    async def measure(self) -> None:
        """Measure the length of a call without a kill."""
        began = time.monotonic()
        call = ScriptedCall(self.carrier, self.engine, caller="+12025550199", pause=0.085)
        documents = len(self.remem.documents)
        await call.play()
        while len(self.remem.documents) == documents:
            await asyncio.sleep(0.01)
        await self._becomes_idle()
        self.length = time.monotonic() - began


def _caller(number: int) -> str:
    """Each call of a lane has its own caller."""
    return f"+120255501{number:02}"


async def _stopped(playing: asyncio.Task[None]) -> str:
    """Cancel the script. Returns the problem if it failed."""
    playing.cancel()
    [ended] = await asyncio.gather(playing, return_exceptions=True)
    return f"the call broke: {ended!r}" if isinstance(ended, Exception) else ""


@dataclass(frozen=True)
class _Kill:
    """`at` and `restarted_at` decide which turns may be lost; `since` is when waiting for the result began."""

    at: float
    since: float
    problem: str = ""
    restarted_at: float = float("inf")


@contextlib.asynccontextmanager
async def open_lane(kind: LaneKind, folder: Path) -> AsyncIterator[Lane]:
    async with contextlib.AsyncExitStack() as stack:
        options = {"public_url": PUBLIC_URL, "speed": 0, "strict": False}
        carrier = await stack.enter_async_context(CARRIERS[kind.carrier](**options))
        carrier.webhook_seconds = carrier.upgrade_seconds = 15.0  # several gateways share this machine
        engine = await stack.enter_async_context(FakeDeepgram())
        remem = await stack.enter_async_context(PausableRemem(**DIALECTS[kind.dialect]))
        receiver = await stack.enter_async_context(PausableReceiver().running())
        llm = await stack.enter_async_context(PausableLlm(profile="xai")) if kind.llm else None
        # No keep-alive: the gateway may be killed before a connection is used again.
        limits = httpx.Limits(max_keepalive_connections=0)
        http = await stack.enter_async_context(httpx.AsyncClient(trust_env=False, limits=limits, timeout=30))
        redis = await stack.enter_async_context(_started(SharedRedis(folder / "redis"))) if kind.nodes > 1 else None
        shim = FaultyLibc(folder) if kind.shim else None
        environ = _environ(folder, carrier, engine, remem, receiver, llm) | (shim.environ if shim else {})
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
        yield Lane(kind, folder, carrier, engine, remem, receiver, llm, gateways, redis, links, shim, http)


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
    remem: PausableRemem,
    receiver: PausableReceiver,
    llm: PausableLlm | None,
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
        "ELEVENLABS_API_KEY": elevenlabs.API_KEY,
        "ELEVENLABS_WEBHOOK_SECRET": elevenlabs.WEBHOOK_SECRET,
        "WEBHOOK_URL": receiver.url,
        "WEBHOOK_SECRET": SECRET,
        **carrier.settings(),
        **thinks,
    }
