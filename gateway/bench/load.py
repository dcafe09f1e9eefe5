"""N simulated calls at once: placed, talking both ways at a steady pace, replaced one by one, hung up, counted."""

import asyncio
import contextlib
import gc
import random
import time
from array import array
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import httpx
from picows import WSError

from gateway.audio import FRAME_MS
from gateway.bench.carriers import CALLERS, SimulatedCall
from gateway.bench.frame_stamps import Delays, FrameCount, Ledger
from gateway.bench.measures import Spread
from gateway.bench.processes import ADMIN_TOKEN

_RINGING_AT_ONCE: Final = 8
_ANSWER_SECONDS: Final = 20.0
_IDLE_SECONDS: Final = 2.0
"""A connection that has rested longer may be one that the gateway is about to close: uvicorn does after five."""
_CATCH_UP_SECONDS: Final = 1.0
"""A collection holds the load up; what it then sends all at once has to be through before anything counts."""
_DRAIN_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.02
_CALL_SECONDS: Final = 120.0
"""How long a call lasts on average. While N talk, one ends and another begins every 120/N seconds."""
_AWAY_SECONDS: Final = 1.0
"""Before the same caller rings again; by then there should be something to remember."""
_TIMED_CALLERS: Final = 20
"""Their calls last for the whole run and are hung up in the end to time their documents. Others come and go."""


class Pacer:
    """
    Calls each of its members once in 20 ms, evenly spread over slots of one millisecond.

    `lags_ns` tells how late each slot was: a load generator that can't keep pace must not blame the gateway.
    """

    def __init__(self) -> None:
        self.lags_ns = array("q")
        self._slots: list[list[Callable[[], None]]] = [[] for _ in range(FRAME_MS)]
        self._turns = 0
        self._due_ns = time.monotonic_ns()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, beat: Callable[[], None], slot: int) -> None:
        self._slots[slot % FRAME_MS].append(beat)

    def remove(self, beat: Callable[[], None]) -> None:
        for slot in self._slots:
            if beat in slot:
                slot.remove(beat)

    def start(self) -> None:
        self._due_ns = time.monotonic_ns()
        self._turn()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _turn(self) -> None:
        """
        One slot if it is due, then whatever has arrived: a load that is late and only sends would find it too late.

        The loop's timers are no finer than a millisecond.
        """
        now_ns = time.monotonic_ns()
        if now_ns >= self._due_ns:
            self.lags_ns.append(now_ns - self._due_ns)
            for beat in self._slots[self._turns % FRAME_MS]:
                beat()
            self._turns += 1
            self._due_ns += 1_000_000
        is_late = time.monotonic_ns() >= self._due_ns
        self._timer = asyncio.get_running_loop().call_later(0 if is_late else 0.001, self._turn)


class Load:
    """All calls of one run. The methods are called in the order they stand here."""

    def __init__(self, calls: int) -> None:
        self.up, self.down = Delays(), Delays()
        self.calls = [self._call(number) for number in range(calls)]
        self.past: list[SimulatedCall] = []
        """Those that others have replaced."""
        self._pacer = Pacer()
        self._ringing = asyncio.Semaphore(_RINGING_AT_ONCE)

    def _call(self, number: int) -> SimulatedCall:
        # Callers know nothing of each other: some speak at once. The same ones in every run.
        return SimulatedCall(number, phase=random.Random(number).random(), up=self.up, down=self.down)

    async def place(self, http: httpx.AsyncClient) -> None:
        """Ring them all. One that fails is missing from `connected`, and that is a result too."""
        self._pacer.start()
        await asyncio.gather(*(self._place(number, http) for number in range(len(self.calls))))

    async def _place(self, number: int, http: httpx.AsyncClient) -> None:
        call = self.calls[number]
        async with self._ringing:
            with contextlib.suppress(httpx.HTTPError, WSError, OSError, ValueError, TimeoutError):
                await call.place(http)
                self._pacer.add(call.beat, number)
                async with asyncio.timeout(_ANSWER_SECONDS):
                    await call.talking.wait()
            if call.engine is not None:
                self._pacer.add(call.engine.beat, number + FRAME_MS // 2)

    async def measure(self, http: httpx.AsyncClient, seconds: float) -> Spread:
        """Count delays for so long, while calls come and go. Returns how late the load itself was meanwhile."""
        return await self.talk_while(self._count(http, seconds))

    async def talk_while(self, something: Awaitable[None]) -> Spread:
        """Let the calls talk until this is done. Returns how late the load itself was meanwhile."""
        gc.collect()
        gc.disable()  # a collection here would be charged to the gateway
        try:
            await asyncio.sleep(_CATCH_UP_SECONDS)
            first_turn = len(self._pacer.lags_ns)
            await something
            return Spread.of_ns(self._pacer.lags_ns[first_turn:])
        finally:
            gc.enable()

    async def _count(self, http: httpx.AsyncClient, seconds: float) -> None:
        since_ns = time.monotonic_ns()
        for delays in (self.up, self.down):
            delays.open_window(since_ns, since_ns + int(seconds * 1e9))
        await self._come_and_go(http, seconds)

    async def _come_and_go(self, http: httpx.AsyncClient, seconds: float) -> None:
        """Calls end and begin among those that go on: endings are written, memory is read."""
        passing = [number for number in range(len(self.calls)) if number % CALLERS >= _TIMED_CALLERS]
        pause = _CALL_SECONDS / len(self.calls)
        leaving = passing[: int(seconds / pause) + 1]
        async with asyncio.TaskGroup() as tasks:
            for place, number in enumerate(leaving):
                tasks.create_task(self._call_again(number, http, after=place * pause))
            await asyncio.sleep(seconds)

    async def _call_again(self, number: int, http: httpx.AsyncClient, after: float) -> None:
        await asyncio.sleep(after)
        await self._hang_up(self.calls[number])
        await asyncio.sleep(_AWAY_SECONDS)
        self.past.append(self.calls[number])
        self.calls[number] = self._call(number)
        await self._place(number, http)

    def fall_silent(self) -> None:
        """The agents stop speaking; callers are heard as before."""
        for call in self.calls:
            if call.engine is not None:
                call.engine.silent = True

    @property
    def connected(self) -> int:
        return sum(call.connected for call in self.calls)

    @property
    def turns(self) -> int:
        """So many each side has taken until now."""
        return sum(call.engine.turns for call in [*self.past, *self.calls] if call.engine is not None)

    def start_to_settings(self) -> Spread:
        return Spread.of_ns(call.engine.settings_ns - call.started_ns for call in self.calls if call.engine is not None)

    async def hang_up_some(self, http: httpx.AsyncClient, document_seconds: float) -> Spread:
        """From hangup until the gateway's store has the document. Each with a caller of its own."""
        some = [call for call in self.calls[:_TIMED_CALLERS] if call.connected]
        delays = await asyncio.gather(
            *(self._time_document(call, http, document_seconds, after=0.05 * place) for place, call in enumerate(some))
        )
        return Spread.of_ns(delay for delay in delays if delay is not None)

    async def _time_document(
        self, call: SimulatedCall, http: httpx.AsyncClient, document_seconds: float, after: float
    ) -> int | None:
        await asyncio.sleep(after)
        await self._hang_up(call)
        hung_up_ns = time.monotonic_ns()
        with contextlib.suppress(httpx.HTTPError, TimeoutError):
            async with asyncio.timeout(document_seconds):
                await _document(http, call.caller)
                return time.monotonic_ns() - hung_up_ns
        return None

    async def _hang_up(self, call: SimulatedCall) -> None:
        if call.engine is not None:
            call.engine.silent = True  # what is spoken to nobody is dropped, and would count as lost
        await _arrived([call.down])
        self._pacer.remove(call.beat)
        call.hang_up()

    async def finish(self) -> FrameCount:
        """Stop sending, let what is on its way arrive, count."""
        self._pacer.stop()
        ledgers = [ledger for call in [*self.past, *self.calls] for ledger in (call.up, call.down)]
        await _arrived(ledgers)
        for call in self.calls:
            call.leave()
        return FrameCount.of(ledgers)


def client(url: str) -> httpx.AsyncClient:
    """To ring at the gateway, and to ask its store."""
    limits = httpx.Limits(keepalive_expiry=_IDLE_SECONDS)
    headers = {"X-API-Key": ADMIN_TOKEN}
    return httpx.AsyncClient(base_url=url, trust_env=False, timeout=_ANSWER_SECONDS, limits=limits, headers=headers)


async def _arrived(ledgers: Sequence[Ledger]) -> None:
    """Wait for what is on its way, and not for what is lost."""
    for _ in range(int(_DRAIN_SECONDS / _LOOK_SECONDS)):
        if all(ledger.arrived == ledger.sent for ledger in ledgers):
            return
        await asyncio.sleep(_LOOK_SECONDS)


async def _document(http: httpx.AsyncClient, caller: str) -> None:
    """Ask for the caller's document until it is there."""
    question = {"query": "voice call summary", "tags": [f"caller:{caller}"], "limit": 1}
    while True:
        answer = await http.post("/v1/query", json=question)
        if answer.raise_for_status().json()["results"]:
            return
        await asyncio.sleep(_LOOK_SECONDS)
