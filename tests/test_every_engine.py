"""What is promised of a call holds for every engine that is a service, and for both carriers."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.deepgram import FakeDeepgram
from tests.fakes.deepgram_speech import speech
from tests.fakes.openai_realtime import FakeRealtime
from tests.stage import GREETING_SOUND, SOUND, Stage, make_carrier, staged

GREETING = "Hello, this is Maya. How can I help you?"
SORRY = "Sorry, I lost you for a second."


def make_engine(name: str, **behaviour: Any) -> Any:
    match name:
        case "deepgram":
            return FakeDeepgram(**behaviour)
        case "openai":
            return FakeRealtime("sk-test-key", **behaviour)
        case _:
            return FakeRealtime("xai-test-key", is_xai=True, **behaviour)


@pytest.fixture(params=["deepgram", "openai", "xai"])
def engine_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
async def any_stage(engine_name: str, carrier_name: str, tmp_path: Path) -> AsyncIterator[Stage]:
    """A gateway that records, between a phone without playback delay and an engine."""
    carrier = make_carrier(carrier_name)
    records = {"RECORD_DIR": str(tmp_path / "records")}
    async with staged(tmp_path, carrier, engine=make_engine(engine_name), **records) as stage:
        yield stage


async def greeted(stage: Stage) -> tuple[Any, Any]:
    """A call whose greeting was played."""
    call, conversation = await stage.dial()
    await call.wait_heard(len(GREETING_SOUND))
    await stage.played(call, conversation)
    return call, conversation


async def test_whole_call(any_stage: Stage, tmp_path: Path) -> None:
    """Greeting, memory, turns, a tool, a barge-in, the engine's loss, hangup, document; and it can be replayed."""
    stage = any_stage
    call, conversation = await greeted(stage)
    assert "there are no notes of an earlier call" in conversation.prompt
    await call.speak(SOUND * 3)
    await conversation.hears(len(SOUND) * 4)
    assert SOUND * 3 in bytes(conversation.heard)
    await conversation.user_says("Is my bike ready?")
    [result] = await conversation.call_functions(["order_status"])
    assert json.loads(result) == {"error": "there is no function of this name"}
    await stage.answer(call, conversation, "It will be on Friday.")
    conversation.abort()
    again = await stage.engine.next_conversation()
    await again.configured()
    await call.until(lambda: bytes(call.heard).endswith(speech(SORRY)))
    await stage.played(call, again)
    await again.user_says("Thanks, goodbye.")
    await call.hang_up()
    answer = f"AGENT: It will be on Friday. {SORRY}"
    assert await stage.archive() == (
        f"AGENT: {GREETING}\nCALLER: Is my bike ready?\n{answer}\nCALLER: Thanks, goodbye.\n"
    )
    assert "bike" in (await stage.document())["content"]
    assert conversation.problems == again.problems == []
