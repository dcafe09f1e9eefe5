"""N simulated calls at once: placed, talking both ways at a steady pace, hung up, counted."""

import asyncio
import contextlib
import gc
import time
from array import array
from collections.abc import Callable
from typing import Final

import httpx
from picows import WSError

from gateway.audio import FRAME_MS
from gateway.bench.carriers import CALLERS, SimulatedCall
from gateway.bench.measures import Spread
from gateway.bench.processes import ADMIN_TOKEN
from gateway.bench.stamps import Delays, FrameCount

_RINGING_AT_ONCE: Final = 8
_ANSWER_SECONDS: Final = 20.0
_CATCH_UP_SECONDS: Final = 0.1
_DRAIN_SECONDS: Final = 2.0
_DOCUMENT_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.02
_HANG_UPS: Final = 20
"""Calls that are hung up one by one, while the others go on, to time their documents."""


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
        """Whatever is due by now. The loop's timers are no finer than a millisecond."""
        while (now_ns := time.monotonic_ns()) >= self._due_ns:
            self.lags_ns.append(now_ns - self._due_ns)
            for beat in self._slots[self._turns % FRAME_MS]:
                beat()
            self._turns += 1
            self._due_ns += 1_000_000
        self._timer = asyncio.get_running_loop().call_later(0.001, self._turn)


class Load:
    """All calls of one run. The methods are called in the order they stand here."""

    def __init__(self, calls: int) -> None:
        self.up, self.down = Delays(), Delays()
        self.calls = [
            SimulatedCall(number, phase=number / calls, up=self.up, down=self.down) for number in range(calls)
        ]
        self._pacer = Pacer()

    async def place(self, url: str) -> None:
        """Ring them all. One that fails is missing from `connected`, and that is a result too."""
        self._pacer.start()
        ringing = asyncio.Semaphore(_RINGING_AT_ONCE)
        async with _client() as http:
            await asyncio.gather(*(self._place(number, http, url, ringing) for number in range(len(self.calls))))

    async def _place(self, number: int, http: httpx.AsyncClient, url: str, ringing: asyncio.Semaphore) -> None:
        call = self.calls[number]
        async with ringing:
            with contextlib.suppress(httpx.HTTPError, WSError, OSError, ValueError, TimeoutError):
                await call.place(http, url)
                self._pacer.add(call.beat, number)
                async with asyncio.timeout(_ANSWER_SECONDS):
                    await call.talking.wait()
            if call.engine is not None:
                self._pacer.add(call.engine.beat, number + FRAME_MS // 2)

    async def measure(self, seconds: float) -> Spread:
        """Count delays for so long. Returns how late the load itself was meanwhile."""
        gc.collect()
        gc.disable()  # a collection here would be charged to the gateway
        try:
            await asyncio.sleep(_CATCH_UP_SECONDS)
            since_ns, first_turn = time.monotonic_ns(), len(self._pacer.lags_ns)
            for delays in (self.up, self.down):
                delays.open_window(since_ns, since_ns + int(seconds * 1e9))
            await asyncio.sleep(seconds)
            return Spread.of_ns(self._pacer.lags_ns[first_turn:])
        finally:
            gc.enable()

    @property
    def connected(self) -> int:
        return sum(call.connected for call in self.calls)

    def start_to_settings(self) -> Spread:
        return Spread.of_ns(call.engine.settings_ns - call.started_ns for call in self.calls if call.engine is not None)

    async def hang_up_some(self, url: str) -> Spread:
        """From hangup until the gateway's store has the document. Each with a caller of its own."""
        some = [call for call in self.calls[: min(_HANG_UPS, CALLERS)] if call.connected]
        for call in some:
            assert call.engine is not None
            call.engine.silent = True  # what is spoken to nobody is dropped, and would count as lost
        await asyncio.sleep(0.2)
        async with _client() as http:
            delays = await asyncio.gather(*(self._hang_up(call, http, url, 0.05 * i) for i, call in enumerate(some)))
        return Spread.of_ns(delay for delay in delays if delay is not None)

    async def _hang_up(self, call: SimulatedCall, http: httpx.AsyncClient, url: str, after: float) -> int | None:
        await asyncio.sleep(after)
        self._pacer.remove(call.beat)
        call.hang_up()
        hung_up_ns = time.monotonic_ns()
        with contextlib.suppress(httpx.HTTPError, TimeoutError):
            async with asyncio.timeout(_DOCUMENT_SECONDS):
                await _document(http, url, call.caller)
                return time.monotonic_ns() - hung_up_ns
        return None

    async def finish(self) -> FrameCount:
        """Stop sending, let what is on its way arrive, count."""
        self._pacer.stop()
        ledgers = [ledger for call in self.calls for ledger in (call.up, call.down)]
        for _ in range(int(_DRAIN_SECONDS / _LOOK_SECONDS)):
            if all(ledger.arrived == ledger.sent for ledger in ledgers):
                break
            await asyncio.sleep(_LOOK_SECONDS)
        for call in self.calls:
            call.leave()
        return FrameCount.of(ledgers)


def _client() -> httpx.AsyncClient:
    return httpx.AsyncClient(trust_env=False, timeout=_ANSWER_SECONDS, headers={"X-API-Key": ADMIN_TOKEN})


async def _document(http: httpx.AsyncClient, url: str, caller: str) -> None:
    """Ask for the caller's document until it is there."""
    question = {"query": "voice call summary", "tags": [f"caller:{caller}"], "limit": 1}
    while True:
        answer = await http.post(f"{url}/v1/query", json=question)
        if answer.raise_for_status().json()["results"]:
            return
        await asyncio.sleep(_LOOK_SECONDS)
