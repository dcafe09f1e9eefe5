import asyncio
import json
from collections import Counter

from websockets.asyncio.client import connect

from gateway.bench.frame_stamps import Delays, FrameLedger, stamped
from gateway.bench.peers import CYCLE_FRAMES, SPOKEN_FRAMES, start_engine


class Conversation:
    """A call that only its engine knows of."""

    def __init__(self):
        self.up, self.down = FrameLedger(7, Delays()), FrameLedger(7, Delays())
        self.engine = asyncio.get_running_loop().create_future()

    def engine_connected(self, engine):
        engine.begin(CYCLE_FRAMES // 2)
        self.engine.set_result(engine)


async def test_each_side_takes_one_turn_a_cycle():
    """The first turns at once, then one of each side in three seconds: the journal is made of them."""
    call, heard = Conversation(), Counter()
    async with await start_engine(lambda number: call) as server:
        async with connect(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}") as socket:
            await socket.send(stamped(7, 0, 0))
            engine = await call.engine
            for _ in range(2 * CYCLE_FRAMES):
                engine.beat()
            while sum(heard.values()) < 1 + 3 * 3 + 2 * (SPOKEN_FRAMES + 1):
                heard[_kind(await socket.recv())] += 1
    assert engine.turns == heard["user"] == heard["assistant"] == 3
    assert (heard["sound"], heard["AgentAudioDone"]) == (2 * SPOKEN_FRAMES, 2)


def _kind(message):
    if isinstance(message, bytes):
        return "sound"
    parsed = json.loads(message)
    return parsed.get("role", parsed["type"])
