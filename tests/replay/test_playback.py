"""Memory and tools of a recorded call, which replace the store and the user's code."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from gateway.agents import Agent
from gateway.engines.interface import FunctionCall
from gateway.memory.access import MemoryAccess
from gateway.memory.memory_log import Retention
from gateway.memory.remem_client import NoRemem
from gateway.memory.summary_parser import PastCall
from gateway.replay.playback import RecordedRecall, RecordedToolLoader
from gateway.replay.recording import RecordedFrame, RecordedMemory, Recording
from gateway.session import TrustLevel
from gateway.simulate.frames import JsonFrame
from gateway.tools.executor import ToolTimeouts
from tests.replay import test_compare
from tests.stage import CALLER

pytestmark = pytest.mark.virtual_time

NOON = datetime(2026, 2, 6, 12, 0, tzinfo=UTC)


def past_call(number: int) -> PastCall:
    return PastCall(f"voice-session:{number}", NOON, "", "+12025550143", "maya", context=f"Call {number}.")


def recording() -> Recording:
    recorded = test_compare.recording()
    return replace(recorded, header=replace(recorded.header, identity=CALLER))


def recall(recorded: Recording) -> RecordedRecall:
    """Its store is not asked."""
    return RecordedRecall(recorded, None, NoRemem(), 3, Retention())


async def test_memory_is_that_of_the_recording() -> None:
    memory = RecordedMemory(calls=(past_call(1), past_call(2)))
    found = recall(replace(recording(), memory=memory))
    assert await found.own_calls("maya", CALLER) == [past_call(1), past_call(2)]
    assert await found.remote_calls("maya", CALLER) == [past_call(1), past_call(2)]
    assert await found.known_facts("maya", CALLER) == []


async def test_late_memory_comes_when_it_is_due() -> None:
    late = RecordedMemory(calls=(past_call(1),))
    found = recall(replace(recording(), late_memory={CALLER: late}))
    loading = asyncio.ensure_future(found.remote_calls("maya", CALLER))
    await asyncio.sleep(60)
    assert not loading.done()
    found.come_late()
    assert await loading == [past_call(1)]


async def test_each_identity_has_its_memory() -> None:
    """Of a caller who was identified during the call, everything came late."""
    memory, late = RecordedMemory(calls=(past_call(1),)), RecordedMemory(calls=(past_call(2),))
    found = recall(replace(recording(), memory=memory, late_memory={"state:id:8812": late}))
    assert await found.own_calls("maya", CALLER) == [past_call(1)]
    assert await found.own_calls("maya", "state:id:8812") == []
    loading = asyncio.ensure_future(found.remote_calls("maya", "state:id:8812"))
    await asyncio.sleep(60)
    assert not loading.done()
    found.come_late()
    assert await loading == [past_call(2)]


# Tools


def message(at: float, direction: str, **fields: object) -> RecordedFrame:
    return RecordedFrame(round(at * 10), at, direction, "engine", JsonFrame(fields))  # type: ignore[arg-type]


FUNCTION = {"name": "order_status", "description": "Where an order is.", "parameters": {}, "defer_until_eot": True}
REQUEST = {"type": "FunctionCallRequest", "functions": [{"id": "f1", "name": "order_status", "arguments": "{}"}]}
STEPS = (
    message(0.1, "to", type="Settings", agent={"think": {"functions": [FUNCTION, FUNCTION | {"name": "end_call"}]}}),
    message(1.0, "from", **REQUEST),
    message(3.5, "to", type="FunctionCallResponse", id="f1", name="order_status", content="ready"),
    message(4.0, "from", **REQUEST),  # of another session, with the same id
    message(4.5, "to", type="FunctionCallResponse", id="f1", name="order_status", content="picked up"),
    message(5.0, "from", **REQUEST),
)


async def test_function_returns_what_it_returned_after_the_same_time() -> None:
    """The agent's own functions only: the gateway hangs up and transfers by itself."""
    loader = RecordedToolLoader(replace(recording(), steps=STEPS), {}, None, None, (), None, ToolTimeouts())
    tools = await loader.load(Agent("maya", "You are Maya."), MemoryAccess(TrustLevel.EVERYTHING))
    [tool] = tools.builtins
    assert tool.schema.definition.name == "order_status" and tool.schema.parse("no JSON") == {}
    call, clock = FunctionCall("f1", "order_status", "{}"), asyncio.get_running_loop().time
    began = clock()
    assert await tool.handler(call, {}) == "ready"
    assert clock() - began == pytest.approx(2.5)
    assert await tool.handler(call, {}) == "picked up"
    with pytest.raises(TimeoutError):  # it was not answered
        await asyncio.wait_for(tool.handler(call, {}), 600)
