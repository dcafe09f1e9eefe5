"""Whole calls whose engine fails and is replaced by another one: real sockets, real documents, replays."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.app import Timeouts
from gateway.calls.engine_connection import EngineTimeouts
from gateway.engines.deepgram import DeepgramEngine, DeepgramTimeouts
from gateway.engines.interface import VoiceEngine
from gateway.engines.registry import ENGINES
from gateway.metrics import REGISTRY
from gateway.settings import Secret, Settings
from gateway.websocket.interface import Connector
from tests.fakes.deepgram import Conversation, FakeDeepgram, speech
from tests.replay.calls import replay_all
from tests.stage import CALLED, GREETING_SOUND, PATIENCE, Stage, make_carrier, staged

GREETING = "Hello, this is Maya. How can I help you?"
SORRY = "Sorry, I lost you for a second."
QUESTION = "Is my bike ready?"
PATIENT = EngineTimeouts(failover_connect=PATIENCE, failover_settings=PATIENCE, failover_answer=PATIENCE)
FEW_SECONDS = 5.0
"""Long enough for an engine that works, on a busy machine."""


class Spare(DeepgramEngine):
    """The engine that takes over."""

    name = "spare"


class Failover:
    """A gateway whose agents have an engine that fails, and a spare one."""

    def __init__(self, stage: Stage, spare: FakeDeepgram) -> None:
        self.stage = stage
        self.engine = stage.engine
        self.spare = spare

    async def health(self) -> dict[str, Any]:
        state: dict[str, Any] = (await self.stage.http.get("/health")).json()
        return state


@pytest.fixture
async def failover(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Failover]:
    timeouts = Timeouts(engine=replace(PATIENT, **getattr(request, "param", {})))
    async with FakeDeepgram() as spare:

        def make_spare(settings: Settings, connect: Connector) -> VoiceEngine:
            return Spare(connect, spare.url, Secret(spare.api_key), DeepgramTimeouts())

        (tmp_path / "gateway.toml").write_text('[agents.maya]\nengine = ["deepgram", "spare"]\n')
        engines = {**ENGINES, "spare": make_spare}
        records = {"RECORD_DIR": str(tmp_path / "records")}
        async with staged(tmp_path, make_carrier("twilio"), engines=engines, timeouts=timeouts, **records) as stage:
            yield Failover(stage, spare)
            await stage.idle()
        calls = len(stage.carrier.calls)
        await replay_all(tmp_path / "records", count=calls, timeouts=timeouts)


def turns_of(engine: str) -> float:
    """How many turns the metrics have of this engine. No caller makes a sound here."""
    labels = {"engine": engine, "counted_from": "engine"}
    return REGISTRY.get_sample_value("voice_gateway_unmeasured_turns_total", labels) or 0.0


async def refused(failover: Failover) -> tuple[Any, Conversation]:
    failover.engine.refuse_next(402)
    call = await failover.stage.carrier.dial()
    return call, await failover.spare.next_conversation()


async def settings_never_applied(failover: Failover) -> tuple[Any, Conversation]:
    failover.engine.behave(hold_settings=True)
    call = await failover.stage.carrier.dial()
    return call, await failover.spare.next_conversation()


@pytest.mark.parametrize(
    ("failover", "fails"),
    [({}, refused), ({"failover_settings": FEW_SECONDS}, settings_never_applied)],
    indirect=["failover"],
    ids=["refused", "settings never applied"],
)
async def test_engine_that_fails_before_the_greeting(
    failover: Failover, fails: Callable[[Failover], Awaitable[tuple[Any, Conversation]]]
) -> None:
    """The next one greets: the caller has heard nothing yet."""
    call, conversation = await fails(failover)
    settings = await conversation.configured()
    assert settings["agent"]["greeting"] == GREETING
    await call.wait_heard(len(GREETING_SOUND))
    state = (await failover.health())["engines"]
    assert (state["deepgram"]["state"], state["spare"]["state"]) == ("failing", "ok")
    await conversation.user_says(QUESTION)
    await call.hang_up()
    assert (await failover.stage.archive()) == f"AGENT: {GREETING}\nCALLER: {QUESTION}\n"
    await failover.stage.document()


@pytest.mark.parametrize("kind", ["quota", "closed"])
async def test_engine_that_fails_during_an_answer(failover: Failover, kind: str) -> None:
    """The next one has the conversation and the tools, does not greet, and says one sentence."""
    before = turns_of("deepgram"), turns_of("spare")
    call, conversation = await failover.stage.dial()
    await call.wait_heard(len(GREETING_SOUND))
    await failover.stage.played(call, conversation)
    await conversation.user_says(QUESTION)
    await conversation.call_functions(["order_status"])
    await conversation.agent_says("It will be")
    await call.wait_heard(len(GREETING_SOUND) + 1)
    if kind == "quota":
        await conversation.fail("INSUFFICIENT_FUNDS")
    else:
        conversation.abort()
    spare = await failover.spare.next_conversation()
    settings = await spare.configured()
    assert "greeting" not in settings["agent"]
    assert [message.get("content") for message in settings["agent"]["context"]["messages"]] == [
        GREETING,
        QUESTION,
        None,
        "It will be",
    ]
    await call.wait_heard(len(GREETING_SOUND + speech("It will be") + speech(SORRY)))
    await failover.stage.played(call, spare)
    await spare.user_says("Thanks.")
    await call.hang_up()
    archive = await failover.stage.archive()
    assert archive.count(GREETING) == archive.count(SORRY) == archive.count(QUESTION) == 1
    assert archive.endswith("CALLER: Thanks.\n")
    await failover.stage.document()
    metrics = (await failover.stage.http.get("/metrics")).text
    assert 'voice_gateway_engine_failing{engine="deepgram"} 1.0' in metrics
    assert (turns_of("deepgram"), turns_of("spare")) == (before[0] + 1, before[1] + 1)


@pytest.mark.parametrize("failover", [{"failover_answer": FEW_SECONDS}], indirect=True, ids=["no answer"])
async def test_engine_that_hangs_is_left(failover: Failover) -> None:
    call, conversation = await failover.stage.dial()
    await call.wait_heard(len(GREETING_SOUND))
    await failover.stage.played(call, conversation)
    await conversation.user_says(QUESTION)
    conversation.hang()
    spare = await failover.spare.next_conversation()
    settings = await spare.configured()
    assert [message["content"] for message in settings["agent"]["context"]["messages"]] == [GREETING, QUESTION]
    await call.hang_up()
    await failover.stage.document()


async def test_outage_is_paid_for_once(failover: Failover) -> None:
    """A second call begins with the engine that works."""
    call, conversation = await refused(failover)
    await conversation.configured()
    second, spare = await failover.stage.carrier.dial("+12025550144", CALLED), await failover.spare.next_conversation()
    await spare.configured()
    assert failover.engine.refused == [402]
    assert failover.engine.conversations == []
    await asyncio.gather(call.hang_up(), second.hang_up())
