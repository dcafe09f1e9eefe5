import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from gateway.agents import Agent, ConsentSettings
from gateway.calls.call import LiveCallTimeouts
from gateway.calls.call_factory import CallFactory, NoMemoryServices
from gateway.calls.call_table import ManagedCall
from gateway.calls.engine_connection import CallEngines, EngineTimeouts
from gateway.calls.recorder import NoRecorder, RecordingDirectory
from gateway.cluster.node import SingleNode
from gateway.engines.failover import GuardedEngine
from gateway.history.live_events import EventPublisher
from gateway.llm.agent_llm import AgentLlm
from gateway.llm.chat import ChatRequest, Finished, LlmEndpoint, TextDelta
from gateway.llm.responder import Responder
from gateway.llm.responder_factory import CallLlm
from gateway.memory.access import NoMemory
from gateway.session import Consent, Speaker, Turn
from gateway.tools.executor import CallTools
from tests.fakes.call_control import FakeCallControl
from tests.fakes.call_parts import FakeStream, FakeVoiceEngine

RANG_AT = datetime(2026, 2, 6, 23, 15, tzinfo=UTC)
NO_TOOLS = CallTools()


class Log:
    """Records what is written to the call log."""

    def __init__(self):
        self.calls = []

    def open_call(self, session, header):
        self.calls.append(("open", session.id))

    def take_over(self, session, header):
        self.calls.append(("take over", session.id))


class Tools:
    def load(self, agent, access):
        async def load():
            return NO_TOOLS

        return asyncio.get_running_loop().create_task(load())


class Memory:
    """Loads nothing."""

    remembers = True

    def __init__(self, log):
        self.log = log

    def source(self, agent, access):
        return NoMemory()


class Llms:
    """Agents that use the engine's language model."""

    def open(self, agent, caller, media_url, access):
        return None


NO_LLMS = Llms()


class Upstream:
    name, model = "anthropic", "claude-haiku-5-5"

    async def answer(self, request, caller_key):
        yield TextDelta("It is.")
        yield Finished("stop")


class OwnLlms:
    """Agents with their own language model."""

    def __init__(self):
        self.responder = Responder("maya", "", AgentLlm((Upstream(),), 1.0, "", "", "en"))

    def open(self, agent, caller, media_url, access):
        return CallLlm(LlmEndpoint("https://voice.example.com", "b", self.responder), self.responder)

    def memory_changed(self, llm, agent, access, change): ...
    def close(self, llm): ...


def factory(log=None, recordings=None, llms=NO_LLMS, made=None):
    memory = Memory(log) if log is not None else NoMemoryServices()
    made = made or [GuardedEngine(FakeVoiceEngine())]
    engines = CallEngines(lambda agent: made, EngineTimeouts())
    return CallFactory(
        engines, llms, Tools(), memory, RecordingDirectory(recordings), EventPublisher(), LiveCallTimeouts()
    )


def a_call(caller="+12025550143"):
    return ManagedCall(("twilio", "CA1"), "AC1", caller, "+12025550100", Agent("maya", "You are Maya."), "wss://media")


async def test_remembered_call_is_logged_from_the_start():
    log, call = Log(), a_call()
    with_memory = factory(log)
    session = with_memory.session(call)
    assert session is not None
    call.session = session
    with_memory.open_log(session, call)
    with_memory.take_over(call)
    assert with_memory.log is log
    assert log.calls == [(step, session.id) for step in ("open", "take over")]


async def test_anonymous_call_is_not_logged():
    log, call = Log(), a_call(caller="")
    assert factory(log).session(call) is None
    factory(log).open_log(call.new_session(), call)
    assert log.calls == []


async def test_nothing_is_stored_without_memory():
    call = a_call()
    without = factory()
    assert not without.has_memory
    assert without.session(call) is None
    without.open_log(call.new_session(), call)
    assert await without.log.unfinished() == []


async def test_tools_are_loaded_while_the_phone_rings():
    call = a_call()
    without = factory()
    without.prepare(call)
    assert await call.tools is NO_TOOLS
    assert await without.load_tools(call) is NO_TOOLS


def made(calls, call, tools=NO_TOOLS):
    return calls.make(call, tools, FakeStream(), FakeCallControl(), SingleNode())


async def test_recorder_follows_the_directory(tmp_path):
    assert isinstance(made(factory(Log()), a_call()).recorder, NoRecorder)
    media = made(factory(Log(), recordings=tmp_path), a_call())
    assert not isinstance(media.recorder, NoRecorder)
    media.recorder.close()


async def test_call_off_the_record_is_not_recorded(tmp_path):
    call = a_call()
    call.session = call.new_session()
    call.session.off_record = True
    assert isinstance(made(factory(Log(), recordings=tmp_path), call).recorder, NoRecorder)


async def test_call_that_leaves_nothing_is_not_recorded(tmp_path):
    anonymous = made(factory(Log(), recordings=tmp_path), a_call(caller=""))
    without_memory = made(factory(recordings=tmp_path), a_call())
    assert isinstance(anonymous.recorder, NoRecorder) and isinstance(without_memory.recorder, NoRecorder)


async def test_new_call_starts_when_it_is_answered():
    log, call = Log(), a_call()
    call.session = call.new_session()
    call.session.started_at = RANG_AT
    assert made(factory(log), call).session is call.session
    assert call.session.started_at > RANG_AT
    assert log.calls == [("open", call.session.id)]


async def test_resumed_call_keeps_its_start():
    call = a_call()
    call.session = call.new_session()
    call.session.started_at = RANG_AT
    call.session.turns.append(Turn(Speaker.CALLER, "Hello.", RANG_AT))
    assert made(factory(Log()), call).session.started_at == RANG_AT


async def test_call_is_not_recorded_before_the_caller_agrees(tmp_path):
    call = a_call()
    call.agent = replace(call.agent, consent=ConsentSettings(require=True))
    recorder = made(factory(Log(), recordings=tmp_path), call).recorder
    recorder.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "consent, after, recorded",
    [
        (Consent.NONE, Consent.NO_ANSWER, False),  # the stream was lost before the answer
        (Consent.AGREED, Consent.AGREED, True),
        (Consent.REFUSED, Consent.REFUSED, False),
    ],
)
async def test_resumed_call_keeps_the_answer(tmp_path, consent, after, recorded):
    call = a_call()
    call.agent = replace(call.agent, consent=ConsentSettings(require=True))
    call.session = call.new_session()
    call.session.consent = consent
    call.session.turns.append(Turn(Speaker.AGENT, "May I record this call?", RANG_AT))
    recordings = factory(Log(), recordings=tmp_path)
    made(recordings, call).recorder.close()
    recordings.recordings.close()
    assert call.session.consent is after
    assert len(list(tmp_path.iterdir())) == recorded


class WithoutModel(FakeVoiceEngine):
    def own_model(self, agent):
        return None


async def test_model_is_that_of_the_calls_engine():
    """The engine may have been changed since the start."""
    engines = [GuardedEngine(WithoutModel())]
    calls = factory(llms=OwnLlms(), made=engines)
    assert made(calls, a_call()).model == ("anthropic", "claude-haiku-5-5")
    engines[:] = [GuardedEngine(FakeVoiceEngine())]
    assert made(calls, a_call()).model == ("fake", "fake-1")


async def test_attempts_of_the_own_model_are_published():
    published = []
    llms = OwnLlms()
    calls = replace(factory(llms=llms), publisher=EventPublisher(listener=published.append))
    made(calls, a_call())
    request = ChatRequest(({"role": "user", "content": "Is it ready?"},))
    assert [event async for event in llms.responder.answer(request)][-1] == Finished("stop")
    assert [(event["event"], event["model"], event["outcome"]) for event in published] == [
        ("model_finished", "claude-haiku-5-5", "answered")
    ]
