import asyncio
import base64
import json
from collections import Counter

from websockets.asyncio.client import connect

from gateway.audio import SILENCE_FRAME
from gateway.bench.peers import (
    CYCLE_FRAMES,
    SPOKEN_FRAMES,
    Delays,
    FrameLedger,
    count_frames,
    stamp_of,
    stamped,
    start_engine,
)
from gateway.bench.results import FrameCount


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


async def test_realtime_engine_speaks_in_json():
    call, heard = Conversation(), Counter()
    async with await start_engine(lambda number: call, "openai") as server:
        async with connect(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}") as socket:
            assert _kind(await socket.recv()) == "session.created"
            await socket.send('{"type": "session.update", "session": {}}')
            assert _kind(await socket.recv()) == "session.updated"
            audio = base64.b64encode(stamped(7, 0, 0)).decode()
            await socket.send(f'{{"type":"input_audio_buffer.append","audio":"{audio}"}}')
            engine = await call.engine
            for _ in range(CYCLE_FRAMES):
                engine.beat()
            while heard["response.created"] < 2 or call.down.arrived < call.down.sent:
                message = json.loads(await socket.recv())
                heard[message["type"]] += 1
                if message["type"] == "response.output_audio.delta":
                    call.down.receive(base64.b64decode(message["delta"]), 0)
    assert heard["conversation.item.input_audio_transcription.completed"] == 2
    assert call.down.arrived == SPOKEN_FRAMES
    assert engine.settings_ns > 0


def _kind(message):
    if isinstance(message, bytes):
        return "sound"
    parsed = json.loads(message)
    return parsed.get("role", parsed["type"])


# Stamped frames


def ledger(*, frames=0):
    made = FrameLedger(7, Delays())
    return made, [made.send(1000 * number) for number in range(frames)]


def test_frame_names_its_call():
    frame = stamped(299, 12, 34)
    assert (len(frame), stamp_of(frame)) == (160, (299, 12, 34))


def test_other_sound_names_no_call():
    assert [stamp_of(SILENCE_FRAME), stamp_of(b""), stamp_of(stamped(1, 2, 3)[:-1])] == [None, None, None]


def test_frames_in_order_are_faultless():
    books, frames = ledger(frames=3)
    for frame in frames:
        books.receive(frame, 5000)
    assert count_frames([books]) == FrameCount(sent=3, lost=0, reordered=0, changed=0)
    assert count_frames([books]).faultless


def test_missing_frame_is_lost():
    books, frames = ledger(frames=3)
    books.receive(frames[0], 5000)
    books.receive(frames[2], 5000)
    assert count_frames([books]) == FrameCount(sent=3, lost=1, reordered=0, changed=0)


def test_repeated_frame_is_seen():
    books, frames = ledger(frames=1)
    books.receive(frames[0], 5000)
    books.receive(frames[0], 5000)
    assert count_frames([books]) == FrameCount(sent=1, lost=0, reordered=1, changed=0)


def test_swapped_frames_are_no_success():
    books, frames = ledger(frames=2)
    books.receive(frames[1], 5000)
    books.receive(frames[0], 5000)
    assert count_frames([books]) == FrameCount(sent=2, lost=1, reordered=1, changed=0)


def test_changed_sound_is_seen():
    books, frames = ledger(frames=1)
    books.receive(frames[0][:-1] + bytes([frames[0][-1] ^ 1]), 5000)
    assert count_frames([books]) == FrameCount(sent=1, lost=1, reordered=0, changed=1)


def test_another_calls_frame_is_seen():
    books, _ = ledger(frames=1)
    books.receive(stamped(8, 0, 0), 5000)
    assert count_frames([books]) == FrameCount(sent=1, lost=1, reordered=0, changed=1)


def test_delays_count_inside_window_only():
    delays = Delays()
    delays.open_window(100, 200)
    for sent in (99, 100, 199, 200):
        delays.add(sent, 250)
    assert list(delays.values_ns) == [150, 51]
