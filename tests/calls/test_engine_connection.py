"""What the keeper does by the clock; connecting and losing are tested with whole calls."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from gateway.audio import SILENCE_FRAME
from gateway.calls import engine_connection
from gateway.calls.agent_context import AgentContext
from gateway.calls.engine_connection import ANSWER_SECONDS, STALLED_BYTES, EngineConfig, EngineConnection
from gateway.engines.deepgram import DeepgramSession, EngineEvents
from gateway.engines.deepgram_codec import KEEP_ALIVE_SECONDS
from gateway.errors import EngineUnavailable
from gateway.websocket.interface import Connector

SOUND = bytes(range(160))


class Link:
    """An engine link that writes down what it is given."""

    def __init__(self, now: float) -> None:
        self.sent_at = self.received_at = now
        self.buffered_bytes = 0
        self.sent: list[bytes] = []
        self.said: list[str] = []
        self.kept_alive = 0
        self.dropped = False

    def send_audio(self, audio: bytes, *, at: float) -> None:
        self.sent.append(audio)
        self.sent_at = at

    send_silence = send_audio

    def say(self, text: str) -> None:
        self.said.append(text)

    def keep_alive(self, *, at: float) -> None:
        self.kept_alive += 1
        self.sent_at = at

    def update_prompt(self, addition: str) -> None:
        self.said.append(addition)

    def drop(self) -> None:
        self.dropped = True


class NothingUntold:
    def untold(self) -> str:
        return ""


@pytest.fixture
async def keeper() -> AsyncIterator[EngineConnection]:
    yield make_keeper()


def make_keeper(access: EngineConfig | None = None, **options: Any) -> EngineConnection:
    return EngineConnection(
        cast(EngineEvents, None),
        access or EngineConfig(cast(Connector, None), ""),
        cast(AgentContext, NothingUntold()),
        sorry="Sorry.",
        log=logging.LoggerAdapter(logging.getLogger(__name__)),
        **options,
    )


def connected(keeper: EngineConnection) -> tuple[Link, float]:
    now = asyncio.get_running_loop().time()
    link = Link(now)
    keeper.link, keeper.ready = cast(DeepgramSession, link), False
    return link, now


async def test_sound_waits_for_a_ready_engine(keeper: EngineConnection) -> None:
    link, _ = connected(keeper)
    keeper.hear(SOUND)
    assert link.sent == []
    keeper.applied()
    keeper.hear(SOUND)
    assert link.sent == [SOUND, SOUND]
    assert link.said == []


async def test_only_the_last_ten_seconds_wait(keeper: EngineConnection) -> None:
    for number in range(600):
        keeper.hear(bytes([number % 256]) * 160)
    link, _ = connected(keeper)
    keeper.applied()
    assert len(link.sent) == 500
    assert link.sent[0] == bytes([100]) * 160


async def test_second_connection_says_sorry(keeper: EngineConnection) -> None:
    connected(keeper)
    keeper.applied()
    link, _ = connected(keeper)
    keeper.applied()
    assert link.said == ["Sorry."]


async def test_engine_that_is_ready_twice_says_nothing(keeper: EngineConnection) -> None:
    link, _ = connected(keeper)
    keeper.applied()
    keeper.applied()
    assert link.said == []


async def test_call_that_goes_on_says_sorry() -> None:
    keeper = make_keeper(resumed=True)
    link, _ = connected(keeper)
    keeper.applied()
    assert link.said == ["Sorry."]


async def test_pause_is_filled_in_real_time(keeper: EngineConnection) -> None:
    link, now = connected(keeper)
    keeper.applied()
    keeper.hear(SOUND)
    link.sent.clear()
    keeper.tick(now + 0.1)
    assert link.sent == []
    for tick in range(4, 11):
        keeper.tick(now + tick / 10)
    assert set(link.sent) == {SILENCE_FRAME}
    assert 49 <= len(link.sent) <= 51


async def test_waiting_engine_is_kept_alive(keeper: EngineConnection) -> None:
    link, now = connected(keeper)
    keeper.tick(now + KEEP_ALIVE_SECONDS - 0.1)
    assert link.kept_alive == 0
    keeper.tick(now + KEEP_ALIVE_SECONDS + 0.1)
    keeper.tick(now + KEEP_ALIVE_SECONDS + 0.2)
    assert link.kept_alive == 1


async def test_engine_that_stops_answering_is_dropped(keeper: EngineConnection) -> None:
    link, now = connected(keeper)
    keeper.applied()
    keeper.answer_due_since = now
    link.received_at = now + 5
    keeper.tick(now + 5 + ANSWER_SECONDS - 0.1)
    assert not link.dropped
    keeper.tick(now + 5 + ANSWER_SECONDS + 0.1)
    assert link.dropped


async def test_silent_engine_is_fine_while_nobody_asks(keeper: EngineConnection) -> None:
    link, now = connected(keeper)
    keeper.applied()
    keeper.tick(now + 10 * ANSWER_SECONDS)
    assert not link.dropped


async def test_engine_that_stops_reading_is_dropped(keeper: EngineConnection) -> None:
    link, now = connected(keeper)
    link.buffered_bytes = STALLED_BYTES + 1
    keeper.tick(now)
    assert link.dropped


async def test_absent_engine_is_not_tried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each try may take its time, and somebody listens to silence meanwhile."""
    tries = 0

    async def connect(*_: Any, **__: Any) -> Any:
        nonlocal tries
        tries += 1
        raise EngineUnavailable("the engine can't be reached")

    monkeypatch.setattr(engine_connection, "AWAY_SECONDS", -1.0)
    with pytest.raises(EngineUnavailable):
        await make_keeper(access=EngineConfig(connect, "")).run()
    assert tries == 1


async def test_engine_that_comes_late_takes_what_was_said(keeper: EngineConnection) -> None:
    keeper.hear(SOUND)
    taking = asyncio.create_task(keeper.takes_all(60))
    await asyncio.sleep(0)
    link, _ = connected(keeper)
    keeper.applied()
    assert await taking
    assert link.sent == [SOUND]


async def test_engine_that_lacks_nothing_is_not_waited_for(keeper: EngineConnection) -> None:
    assert not await keeper.takes_all(3600)
