"""Each attack of scripts/attack in short, beside a live call. No figures: those depend on the machine."""

import asyncio
import contextlib

import pytest

from tests.attacks import ATTACKS, Attack, Stranger
from tests.stage import SOUND, Stage, in_time, make_carrier, staged, until

BURST_EVENTS = (
    "request refused",
    "websocket protocol error",
    "media socket refused",
    "carrier protocol error",
    "webhook rejected",
    "too many connections",
    "too many media sockets without a start",
    "media socket sent no start",
)


@pytest.fixture
async def stage(tmp_path):
    async with staged(tmp_path, make_carrier("twilio")) as stage:
        yield stage


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
async def test_attack_ends_no_call(stage: Stage, attack: Attack, caplog: pytest.LogCaptureFixture) -> None:
    """The gateway refuses the attack by itself, logs it once, and the call goes on."""
    call, conversation = await stage.dial()
    stranger = Stranger(stage.url)
    rounds = asyncio.gather(*[attack.round(stranger) for _ in range(4)])
    if attack.holds:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(rounds, 0.3)
    else:
        await in_time(rounds)
        assert b"\x8a" not in stranger.received  # no pong
        assert len(stranger.received) < 2000
    await call.speak(SOUND * 5)
    await until(lambda: SOUND * 5 in bytes(conversation.heard))
    await call.hang_up()
    logged = [record.message for record in caplog.records]
    assert "Exception in ASGI application\n" not in logged
    assert [event for event in BURST_EVENTS if logged.count(event) > 1] == []
    assert [record.message for record in caplog.records if len(str(vars(record))) > 5000] == []
