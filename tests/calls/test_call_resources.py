import asyncio
from types import SimpleNamespace

import pytest

from gateway.agents import Agent
from gateway.calls.call_resources import CallResources
from gateway.calls.call_table import ManagedCall
from gateway.calls.recorder import NoRecorder, RecordingDirectory
from gateway.history.live_events import EventPublisher


class Log:
    """Records what is written to the call log."""

    def __init__(self):
        self.calls = []

    def open_call(self, session, header):
        self.calls.append(("open", session.id))

    def take_over(self, session, header):
        self.calls.append(("take over", session.id))

    def claim(self, session_id):
        self.calls.append(("claim", session_id))

    def release(self, session_id):
        self.calls.append(("release", session_id))

    async def unfinished(self):
        return ["a call"]


class Tools:
    def load(self, agent, access):
        async def load():
            return SimpleNamespace(function_names=["book"])

        return asyncio.get_running_loop().create_task(load())


def resources(log=None):
    memory = SimpleNamespace(log=log, recall=None, limit=3, forget=None) if log is not None else None
    return CallResources(memory, Tools(), RecordingDirectory(None), EventPublisher(), lambda *_: None)


def a_call(caller="+12025550143"):
    return ManagedCall(("twilio", "CA1"), "AC1", caller, "+12025550100", Agent("maya", "You are Maya."), "wss://media")


async def test_remembered_call_is_logged_from_the_start():
    log, call = Log(), a_call()
    with_memory = resources(log)
    session = with_memory.session(call)
    assert session is not None
    with_memory.open_log(session, call)
    with_memory.take_over(session, call)
    with_memory.claim(session.id)
    with_memory.discard(session.id)
    assert log.calls == [(step, session.id) for step in ("open", "take over", "claim", "release")]
    assert await with_memory.unfinished() == ["a call"]


async def test_anonymous_call_is_not_logged():
    log, call = Log(), a_call(caller="")
    assert resources(log).session(call) is None
    resources(log).open_log(call.new_session(), call)
    assert log.calls == []


async def test_nothing_is_stored_without_memory():
    call = a_call()
    without = resources()
    assert not without.has_memory
    assert without.session(call) is None
    without.open_log(call.new_session(), call)
    without.claim("voice-session:1")
    without.discard("voice-session:1")
    assert await without.unfinished() == []


async def test_tools_are_loaded_while_the_phone_rings():
    call = a_call()
    without = resources()
    without.prepare(call)
    assert call.tools is not None
    assert (await without.call_tools(call)).function_names == ["book"]


@pytest.mark.parametrize("prepared", [True, False])
async def test_tools_are_there_when_media_arrives(prepared):
    call = a_call()
    without = resources()
    if prepared:
        without.prepare(call)
    assert (await without.call_tools(call)).function_names == ["book"]


async def test_recorder_follows_the_directory():
    call = a_call()
    tools = SimpleNamespace(function_names=[])
    assert isinstance(resources().recorder(call.new_session(), call, tools), NoRecorder)
