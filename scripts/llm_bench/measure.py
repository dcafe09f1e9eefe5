"""
How much later the first token of an answer reaches the engine because it passes through the gateway.

All calls are up and the caller's audio keeps flowing. Each call requests one answer after the other, first directly
from the language model, then through the gateway with the bearer token its engine was given. The difference is the
delay and the CPU time that the gateway adds. Memory is off: its search before each request is a separate measurement.

Interference is excluded. The kernel's receive timestamp counts, however late this process reads the data. The gateway
and the load run with real-time priority where the system allows it. Answers whose first token was in flight while the
machine was preempted are left out, direct and through the gateway alike.
"""

import asyncio
import re
import time
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import orjson
import uvloop

from gateway.bench.load import Load, client
from gateway.bench.peers import start_engine
from gateway.bench.processes import COMPARISONS, GatewayProcess, Variant, reserved_core, running_gateway
from gateway.bench.results import FrameCount, Spread
from gateway.errors import BenchFailed
from scripts.llm_bench.interference import Interference, raise_priority, restore_priority
from scripts.llm_bench.kernel_timestamps import StampedConnection
from scripts.llm_bench.report import LlmMeasurement
from scripts.llm_bench.upstream import FIRST_PIECE_SECONDS, PIECE_SECONDS, PIECES, running_upstream

TURNS: Final = 100
_SETTLE_SECONDS: Final = 1.5
_ANSWER_SECONDS: Final = 10.0
_TURN_SECONDS: Final = FIRST_PIECE_SECONDS + PIECES * PIECE_SECONDS
_HISTORY: Final = [
    {"role": "user", "content": "Could you check whether my order has left the workshop?"},
    {"role": "assistant", "content": "It has. The parcel should be with you on Friday."},
] * 5

_FIRST_TOKEN: Final = re.compile(rb'"content":"(\d+)"')
_END: Final = b"\r\n0\r\n\r\n"


def measure(turns: int, *, seconds: float) -> LlmMeasurement:
    """Run against a fresh gateway with `turns` simultaneous answers. Raises BenchFailed if calls cannot be placed."""
    with reserved_core() as core, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_measure(turns, seconds, core))


async def _measure(turns: int, seconds: float, core: int) -> LlmMeasurement:
    load = Load(turns)
    async with running_upstream() as upstream_url, await start_engine(lambda number: load.calls[number]) as engine:
        engine_url = f"ws://127.0.0.1:{engine.sockets[0].getsockname()[1]}"
        model_url = f"{upstream_url}/v1"
        toml = f'[agents.maya]\nbrain = {{ url = "{model_url}", model = "bench" }}\n'
        variant = Variant("brain", environment=COMPARISONS["memory"][0].environment, toml=toml)
        async with running_gateway(engine_url, variant, core=core) as process, client(process.url) as http:
            await load.place(http)
            if load.connected != turns:
                raise BenchFailed(f"only {load.connected} of {turns} calls connected")
            for call in load.calls:
                if call.engine is not None:
                    call.engine.silent = True
            ahead = raise_priority(process.pid) and raise_priority()
            try:
                await asyncio.sleep(_SETTLE_SECONDS)
                direct = await _phase(load, process, seconds, f"{model_url}/chat/completions")
                through = await _phase(load, process, seconds)
            finally:
                restore_priority()
            return _difference(turns, seconds, direct, through, await load.finish(), ahead)


@dataclass(frozen=True)
class _Phase:
    """Result of one half of the run."""

    answers: int
    failed: int
    delay: Spread
    left_out: int
    cpu_seconds: float
    core_taken: float
    generator_lag: Spread


async def _phase(load: Load, process: GatewayProcess, seconds: float, url: str = "") -> _Phase:
    """Request answers for `seconds`, at `url` or at the endpoint in each engine's settings."""
    askers = [Asker(call.engine.settings, url) for call in load.calls if call.engine is not None]
    began, cpu, waited = time.monotonic(), process.cpu_seconds(), process.waited_seconds()
    interference = Interference(process)
    watching = asyncio.get_running_loop().create_task(interference.watch())
    try:
        lag = await load.talk_while(partial(_ask, askers, seconds))
    finally:
        watching.cancel()
    words = [word for asker in askers for word in asker.first_tokens]
    clear = [word for word in words if interference.was_clear(word.sent_ns, word.here_ns)]
    return _Phase(
        answers=sum(asker.answers for asker in askers),
        failed=sum(asker.failed for asker in askers),
        delay=Spread.of_ns(word.here_ns - word.sent_ns for word in clear),
        left_out=len(words) - len(clear),
        cpu_seconds=process.cpu_seconds() - cpu,
        core_taken=(process.waited_seconds() - waited) / (time.monotonic() - began),
        generator_lag=lag,
    )


async def _ask(askers: list["Asker"], seconds: float) -> None:
    """Spread the start times evenly, so that answers do not all begin at once."""
    pause = _TURN_SECONDS / len(askers)
    async with asyncio.TaskGroup() as tasks:
        for place, asker in enumerate(askers):
            tasks.create_task(asker.ask(seconds, after=place * pause))


def _difference(
    turns: int, seconds: float, direct: _Phase, through: _Phase, frames: FrameCount, ahead: bool
) -> LlmMeasurement:
    return LlmMeasurement(
        turns=turns,
        seconds=seconds,
        answers=through.answers,
        failed=direct.failed + through.failed,
        left_out=through.left_out,
        direct=direct.delay,
        through=through.delay,
        cpu_ms_per_turn=round((through.cpu_seconds - direct.cpu_seconds) * 1000 / max(through.answers, 1), 2),
        frames=frames,
        generator_lag=max(direct.generator_lag, through.generator_lag, key=lambda lag: lag.p99_ms),
        core_taken=round(through.core_taken, 3),
        ahead=ahead,
    )


class FirstToken(NamedTuple):
    """When the model sent the first token and when the kernel received it."""

    sent_ns: int
    here_ns: int


class Asker:
    """Requests answers for one call, at the endpoint in its engine settings or at `url`."""

    def __init__(self, settings: bytes, url: str = "") -> None:
        think = orjson.loads(settings)["agent"]["think"]
        self.answers = 0
        self.failed = 0
        self.first_tokens: list[FirstToken] = []
        self._url = urlsplit(url or think["endpoint"]["url"])
        self._headers = {**think["endpoint"]["headers"], "host": self._url.netloc, "content-type": "application/json"}
        self._prompt = {"role": "system", "content": think["prompt"]}

    async def ask(self, seconds: float, *, after: float = 0.0) -> None:
        """Request answers for `seconds`, at least two. The first opens connections and is not counted."""
        await asyncio.sleep(after)
        until = time.monotonic() + seconds
        try:
            # The gateway names its public https address; on loopback there is no TLS proxy in front of it.
            async with await StampedConnection.open(self._url.hostname or "", self._url.port or 443) as connection:
                await self._ask_once(connection)
                while not self.first_tokens or time.monotonic() < until:
                    self.first_tokens.append(await self._ask_once(connection))
        except (OSError, ValueError):
            self.failed += 1

    async def _ask_once(self, connection: StampedConnection) -> FirstToken:
        """Raises OSError or ValueError for a malformed answer."""
        async with asyncio.timeout(_ANSWER_SECONDS):
            await connection.write(self._request())
            first_token = await _read_answer(connection)
        self.answers += 1
        return first_token

    def _request(self) -> bytes:
        question = {"role": "user", "content": f"And what about order number {self.answers}?"}
        body = orjson.dumps({"model": "bench", "messages": [self._prompt, *_HISTORY, question], "stream": True})
        headers = {**self._headers, "content-length": str(len(body))}
        lines = [f"POST {self._url.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        return "\r\n".join([*lines, "", ""]).encode() + body


async def _read_answer(connection: StampedConnection) -> FirstToken:
    """Read one answer to its end. Raises ValueError if it is malformed."""
    received, first_token = b"", None
    while not received.endswith(_END):
        data, at_ns = await connection.read()
        received += data
        if not data or not received.startswith(b"HTTP/1.1 200 "):
            raise ValueError("not an answer")
        if first_token is None and (sent := _FIRST_TOKEN.search(received)):
            first_token = FirstToken(int(sent[1]), at_ns)
    if first_token is None:
        raise ValueError("no text of the language model in the answer")
    return first_token
