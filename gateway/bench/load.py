"""The load: N simulated calls at once that talk both ways at a steady pace, end and are replaced; live viewers."""

import asyncio
import contextlib
import gc
import random
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime
from typing import Final

import httpx
import orjson
from picows import WSError

from gateway.audio import FRAME_MS
from gateway.bench.peers import CALLERS, Delays, FrameLedger, SimulatedCall, count_frames
from gateway.bench.processes import ADMIN_TOKEN
from gateway.bench.results import FrameCount, Spread

_ANSWER_SECONDS: Final = 20.0
_POLL_SECONDS: Final = 0.02
_CALL_SECONDS: Final = 120.0
"""Average length of a call. With N calls, one ends and another begins every 120/N seconds."""
_TIMED_CALLERS: Final = 20
"""Callers whose calls last for the whole run and are hung up last, to time their documents."""


class Pacer:
    """
    Calls each registered function every 20 ms, spread over slots of one millisecond.

    `lags_ns` records how late each slot was: delays of the load generator must not count as the gateway's.
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
        Run one slot if it is due, then yield to the loop: a late load that only sends would read its frames too late.

        The loop's timers have a resolution of one millisecond.
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
    """All calls of one run."""

    def __init__(self, calls: int) -> None:
        self.up, self.down = Delays(), Delays()
        self.calls = [self._new_call(number) for number in range(calls)]
        self.past: list[SimulatedCall] = []
        """Calls that ended during the run and were replaced."""
        self._pacer = Pacer()
        self._ringing = asyncio.Semaphore(8)

    def _new_call(self, number: int) -> SimulatedCall:
        # Random phases, so that some calls speak at the same time; the same in every run.
        return SimulatedCall(number, phase=random.Random(number).random(), up=self.up, down=self.down)

    async def place(self, http: httpx.AsyncClient) -> None:
        """Place all calls. A call that fails is missing from `connected`, which is a result too."""
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

    async def talk_while(self, work: Callable[[], Awaitable[None]]) -> Spread:
        """Keep the calls talking until `work` is done. Returns how late the load itself was."""
        gc.collect()
        gc.disable()  # the delay of a collection would count as the gateway's
        try:
            await asyncio.sleep(1.0)  # the collection delayed the load, which then sends a burst
            first_turn = len(self._pacer.lags_ns)
            await work()
            return Spread.of_ns(self._pacer.lags_ns[first_turn:])
        finally:
            gc.enable()

    async def measure_delays(self, http: httpx.AsyncClient, seconds: float) -> None:
        """Count the frames sent from now on. Calls end and begin, so finalization and memory are part of the load."""
        since_ns = time.monotonic_ns()
        for delays in (self.up, self.down):
            delays.open_window(since_ns, since_ns + int(seconds * 1e9))
        passing = [number for number in range(len(self.calls)) if number % CALLERS >= _TIMED_CALLERS]
        pause = _CALL_SECONDS / len(self.calls)
        async with asyncio.TaskGroup() as tasks:
            for place, number in enumerate(passing[: int(seconds / pause) + 1]):
                tasks.create_task(self._call_again(number, http, after=place * pause))
            await asyncio.sleep(seconds)

    async def _call_again(self, number: int, http: httpx.AsyncClient, after: float) -> None:
        await asyncio.sleep(after)
        await self._hang_up(self.calls[number])
        await asyncio.sleep(1.0)  # by then the first call should be remembered
        self.past.append(self.calls[number])
        self.calls[number] = self._new_call(number)
        await self._place(number, http)

    @property
    def connected(self) -> int:
        return sum(call.connected for call in self.calls)

    @property
    def turns(self) -> int:
        """Turns of each side so far."""
        return sum(call.engine.turns for call in [*self.past, *self.calls] if call.engine is not None)

    def start_to_settings(self) -> Spread:
        return Spread.of_ns(call.engine.settings_ns - call.started_ns for call in self.calls if call.engine is not None)

    async def hang_up_some(self, http: httpx.AsyncClient, document_seconds: float) -> Spread:
        """Time from hang-up until the store has the document, for calls of different callers. None if it waits 0 s."""
        some = [call for call in self.calls[:_TIMED_CALLERS] if call.connected and document_seconds]
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
        query = {"query": "voice call summary", "tags": [f"caller:{call.caller}"], "limit": 1}
        with contextlib.suppress(httpx.HTTPError, TimeoutError):
            async with asyncio.timeout(document_seconds):
                while True:
                    answer = await http.post("/v1/query", json=query)
                    if answer.raise_for_status().json()["results"]:
                        return time.monotonic_ns() - hung_up_ns
                    await asyncio.sleep(_POLL_SECONDS)
        return None

    async def _hang_up(self, call: SimulatedCall) -> None:
        if call.engine is not None:
            call.engine.silent = True  # audio after the hang-up is dropped and would count as lost
        await _drain([call.down])
        self._pacer.remove(call.beat)
        call.hang_up()

    async def finish(self) -> FrameCount:
        """Stop sending, wait for frames in transit, count."""
        self._pacer.stop()
        ledgers = [ledger for call in [*self.past, *self.calls] for ledger in (call.up, call.down)]
        await _drain(ledgers)
        for call in self.calls:
            call.close()
        return count_frames(ledgers)


@contextlib.asynccontextmanager
async def watching(http: httpx.AsyncClient, delays_ns: list[int]) -> AsyncIterator[None]:
    """Two live viewers during the block. Adds the delays from a caller's final words to a viewer."""

    async def watch(path: str) -> None:
        async with http.stream("GET", path, timeout=None) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if line.startswith("data: ") and '"speaker":"caller"' in line:
                    said_at = datetime.fromisoformat(orjson.loads(line.removeprefix("data: "))["at"]).timestamp()
                    delays_ns.append(time.time_ns() - int(said_at * 1e9))

    async with asyncio.TaskGroup() as group:
        # With level meters like the live page, and without like `gateway tail`.
        tasks = [group.create_task(watch(path)) for path in ("/v1/live?levels=1", "/v1/live")]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


def client(url: str) -> httpx.AsyncClient:
    """An HTTP client for webhooks and for the gateway's store."""
    limits = httpx.Limits(keepalive_expiry=2.0)  # before uvicorn closes idle connections, after five seconds
    headers = {"X-API-Key": ADMIN_TOKEN}
    return httpx.AsyncClient(base_url=url, trust_env=False, timeout=_ANSWER_SECONDS, limits=limits, headers=headers)


async def _drain(ledgers: Sequence[FrameLedger]) -> None:
    """Wait until all sent frames have arrived, up to a limit for lost ones."""
    for _ in range(100):
        if all(ledger.arrived == ledger.sent for ledger in ledgers):
            return
        await asyncio.sleep(_POLL_SECONDS)
