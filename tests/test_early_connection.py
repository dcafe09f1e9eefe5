"""The engine's connection opens while the phone rings, with every engine that is a service."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.app import Timeouts
from gateway.calls.engine_connection import EngineTimeouts
from tests.stage import Stage, make_carrier, staged, until
from tests.test_every_engine import make_engine

ENGINES = ("deepgram", "openai", "xai")


@pytest.fixture(params=ENGINES)
async def stage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stage]:
    timeouts = Timeouts(engine=EngineTimeouts(early=60))
    async with staged(
        tmp_path, make_carrier("twilio"), engine=make_engine(request.param, tmp_path), timeouts=timeouts
    ) as stage:
        yield stage


async def media_starts(stage: Stage, call: Any) -> Any:
    media = await stage.carrier.connect(call)
    start = stage.carrier.start_message(call, stream_id=media.stream_id)
    await media.send_json(stage.carrier.connected_message(), start)
    return media


async def test_engine_is_connected_before_the_media(stage: Stage) -> None:
    """The settings leave with `start`, on the connection that is there."""
    call = await stage.carrier.ring()
    [conversation] = await until(lambda: stage.engine.connections)
    media = await media_starts(stage, call)
    await conversation.configured()
    assert "Maya" in conversation.prompt
    assert (await media.receive())["event"] == "media"
    assert stage.engine.connections == [conversation]
    await media.close()


async def test_caller_who_hangs_up_releases_the_connection(stage: Stage) -> None:
    call = await stage.carrier.ring()
    [connection] = await until(lambda: stage.engine.connections)
    await call.complete("no-answer")
    await connection.wait_closed()
    assert stage.engine.conversations == []
