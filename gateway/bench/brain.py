"""
How much later the first word of an answer reaches the engine because it passes through the gateway.

All calls are up, the caller's sound goes on, the agent thinks: each asks for one answer after the other, first straight
from the language model, then through the gateway with the bearer that its engine was given. The difference is what the
gateway adds, delay and work alike.

Memory is off: it is searched before the language model is asked, and that is another measurement.

What is not the gateway's is kept out. A word is here when the kernel has it, however late this process reads it. The
gateway and its load go before whatever else runs on their cores, where the system allows it. Answers whose first word
was on its way while the machine was taken away all the same are left out, straight and through the gateway alike.
"""

import asyncio
import re
import time
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import orjson
import uvloop

from gateway.bench.engine import start_engine
from gateway.bench.frame_stamps import FrameCount
from gateway.bench.interference import Interference
from gateway.bench.kernel_timestamps import StampedConnection
from gateway.bench.load import Load, client
from gateway.bench.measures import BrainMeasurement, Spread
from gateway.bench.processes import GatewayProcess, cores, pinned, put_ahead, put_back, running_gateway
from gateway.bench.upstream import FIRST_PIECE_SECONDS, PIECE_SECONDS, PIECES, running_upstream
from gateway.bench.variants import MEMORY_OFF, Variant
from gateway.errors import BenchFailed

TURNS: Final = 100
_SETTLE_SECONDS: Final = 1.5
_ANSWER_SECONDS: Final = 10.0
_TURN_SECONDS: Final = FIRST_PIECE_SECONDS + PIECES * PIECE_SECONDS
_HISTORY: Final = [
    {"role": "user", "content": "Could you tell me whether my order has left the workshop?"},
    {"role": "assistant", "content": "It has. The parcel should be with you on Friday."},
] * 5

_FIRST_WORD: Final = re.compile(rb'"content":"(\d+)"')
_END: Final = b"\r\n0\r\n\r\n"


def measure(turns: int, *, seconds: float) -> BrainMeasurement:
    """One run with so many answers at once against a fresh gateway. BenchFailed if it can't be held."""
    core, others = cores()
    with pinned(others), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_measure(turns, seconds, core))


async def _measure(turns: int, seconds: float, core: int) -> BrainMeasurement:
    load = Load(turns)
    async with running_upstream() as upstream_url, await start_engine(lambda number: load.calls[number]) as engine:
        engine_url = f"ws://127.0.0.1:{engine.sockets[0].getsockname()[1]}"
        model_url = f"{upstream_url}/v1"
        toml = f'[agents.maya]\nbrain = {{ url = "{model_url}", model = "bench" }}\n'
        variant = Variant("brain", environment=MEMORY_OFF.environment, toml=toml)
        async with running_gateway(engine_url, variant, core=core) as process, client(process.url) as http:
            await load.place(http)
            if load.connected != turns:
                raise BenchFailed(f"only {load.connected} of {turns} calls came up")
            load.fall_silent()
            ahead = put_ahead(process.pid) and put_ahead()
            try:
                await asyncio.sleep(_SETTLE_SECONDS)
                direct = await _phase(load, process, seconds, f"{model_url}/chat/completions")
                through = await _phase(load, process, seconds)
            finally:
                put_back()
            return _difference(turns, seconds, direct, through, await load.finish(), ahead)


@dataclass(frozen=True)
class _Phase:
    """What was found out in one half of the run."""

    answers: int
    failed: int
    delay: Spread
    left_out: int
    cpu_seconds: float
    core_taken: float
    generator_lag: Spread


async def _phase(load: Load, process: GatewayProcess, seconds: float, url: str = "") -> _Phase:
    """All ask for so long, at `url` or where their engines were told to."""
    askers = [Asker(call.engine.settings, url) for call in load.calls if call.engine is not None]
    began, cpu, waited = time.monotonic(), process.cpu_seconds(), process.waited_seconds()
    weather = Interference(process)
    watching = asyncio.get_running_loop().create_task(weather.watch())
    try:
        lag = await load.talk_while(_ask(askers, seconds))
    finally:
        watching.cancel()
    words = [word for asker in askers for word in asker.first_words]
    clear = [word for word in words if weather.was_clear(word.sent_ns, word.here_ns)]
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
    """Evenly spread: answers do not begin all at once."""
    pause = _TURN_SECONDS / len(askers)
    async with asyncio.TaskGroup() as tasks:
        for place, asker in enumerate(askers):
            tasks.create_task(asker.ask(seconds, after=place * pause))


def _difference(
    turns: int, seconds: float, direct: _Phase, through: _Phase, frames: FrameCount, ahead: bool
) -> BrainMeasurement:
    return BrainMeasurement(
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


class FirstWord(NamedTuple):
    """When the language model sent the first word of an answer, and when it was here."""

    sent_ns: int
    here_ns: int


class Asker:
    """The engine of one call, where it asks for answers; as its settings say, or at `url` instead."""

    def __init__(self, settings: bytes, url: str = "") -> None:
        think = orjson.loads(settings)["agent"]["think"]
        self.answers = 0
        self.failed = 0
        self.first_words: list[FirstWord] = []
        self._url = urlsplit(url or think["endpoint"]["url"])
        self._headers = {**think["endpoint"]["headers"], "host": self._url.netloc, "content-type": "application/json"}
        self._prompt = {"role": "system", "content": think["prompt"]}

    async def ask(self, seconds: float, *, after: float = 0.0) -> None:
        """Answer after answer for so long, two at least. The first opens connections, and its delay does not count."""
        await asyncio.sleep(after)
        until = time.monotonic() + seconds
        try:
            # The gateway names its public, secure address; on loopback there is no proxy to make it so.
            async with await StampedConnection.open(self._url.hostname or "", self._url.port or 443) as connection:
                await self._ask_once(connection)
                while not self.first_words or time.monotonic() < until:
                    self.first_words.append(await self._ask_once(connection))
        except (OSError, ValueError):
            self.failed += 1

    async def _ask_once(self, connection: StampedConnection) -> FirstWord:
        """OSError or ValueError for an answer that is none."""
        async with asyncio.timeout(_ANSWER_SECONDS):
            await connection.write(self._request())
            first_word = await _read_answer(connection)
        self.answers += 1
        return first_word

    def _request(self) -> bytes:
        question = {"role": "user", "content": f"And what about order number {self.answers}?"}
        body = orjson.dumps({"model": "bench", "messages": [self._prompt, *_HISTORY, question], "stream": True})
        headers = {**self._headers, "content-length": str(len(body))}
        lines = [f"POST {self._url.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        return "\r\n".join([*lines, "", ""]).encode() + body


async def _read_answer(connection: StampedConnection) -> FirstWord:
    """Read one answer to its end. ValueError if it is none."""
    received, first_word = b"", None
    while not received.endswith(_END):
        data, at_ns = await connection.read()
        received += data
        if not data or not received.startswith(b"HTTP/1.1 200 "):
            raise ValueError("not an answer")
        if first_word is None and (sent := _FIRST_WORD.search(received)):
            first_word = FirstWord(int(sent[1]), at_ns)
    if first_word is None:
        raise ValueError("an answer without the language model's words")
    return first_word
