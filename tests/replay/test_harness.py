"""Recorded calls into a gateway that is already running, and what a recorded call found in the store."""

import asyncio
import contextlib

import pytest

from gateway.errors import RecordingError, SettingsError
from gateway.replay.compare import compare
from gateway.replay.harness import RunningGateway, past_documents, stored_document
from gateway.replay.recording import read
from gateway.settings import Secret, Settings
from gateway.simulate.engine import SimulatedEngine
from gateway.simulate.gateway_under_test import GatewayAddress, own_gateway
from tests.fakes.deepgram import FakeDeepgram
from tests.ports import free_port
from tests.replay.calls import RECORDINGS, SHIPPED

ACCOUNT, TOKEN = "AC00000000000000000000000000000001", Secret("auth-token")
PUBLIC_URL = "https://voice.example.com/behind/proxy"
GREETING = "Harbour Street Bicycles, this is Maya. How can I help you?"


@contextlib.asynccontextmanager
async def running(folder, engine_url, prompt, **more):
    """A gateway with the recorded agent and a PUBLIC_URL that differs from its address."""
    (folder / "prompts").mkdir()
    (folder / "prompts" / "maya.md").write_text(prompt)
    settings = Settings(
        public_url=PUBLIC_URL,
        data_dir=folder / "data",
        voice_session_archive_dir=folder / "archive",
        allowed_callers=frozenset({"+12025550143"}),
        twilio_account_sid=ACCOUNT,
        twilio_auth_token=TOKEN,
        twilio_api_url="http://127.0.0.1:9",
        deepgram_api_key=Secret("dg-test-key"),
        deepgram_agent_url=engine_url,
        agents={"maya": {"greeting": GREETING, "timezone": "America/New_York"}},
        folder=folder,
    )
    async with own_gateway(settings) as url:
        yield RunningGateway(GatewayAddress(url, PUBLIC_URL), ACCOUNT, TOKEN)


async def test_carrier_and_engine_are_compared(tmp_path):
    recording, port = read(RECORDINGS / "barge-in.jsonl"), free_port()
    url = f"ws://127.0.0.1:{port}/v1/agent/converse"
    async with running(tmp_path, url, recording.header.agent["prompt"]) as gateway:
        outcome = await gateway.play(recording, engine_port=port, speed=0)
    assert [str(difference) for difference in compare(recording, outcome)] == []


async def test_caller_alone_hears_what_comes(tmp_path):
    recording = read(RECORDINGS / "engine-refused.jsonl")
    async with FakeDeepgram() as engine, running(tmp_path, engine.url, "You are Maya.") as gateway:
        heard = await gateway.speak(recording, speed=5)
        conversation = await engine.next_conversation()
    spoken = b"".join(entry.frame for entry in conversation.log if entry.direction == "out" and _is_sound(entry))
    assert heard.seconds == len(spoken) / 8000 > 0
    assert heard.clears == 0


def _is_sound(entry):
    return isinstance(entry.frame, bytes)


async def test_telnyx_call_needs_its_own_gateway():
    gateway = RunningGateway(GatewayAddress("http://127.0.0.1:9"), ACCOUNT, TOKEN)
    recording = read(RECORDINGS / "telnyx.jsonl")
    with pytest.raises(RecordingError) as raised:
        await gateway.speak(recording, speed=0)
    assert str(raised.value) == (
        f"{recording.path} is a Telnyx call, and only Telnyx can sign for a running gateway; leave out --url"
    )


async def test_wrong_key_is_reported_in_one_line(tmp_path):
    recording = read(RECORDINGS / "goodbye.jsonl")
    async with running(tmp_path, "ws://127.0.0.1:9", "You are Maya.") as gateway:
        stranger = RunningGateway(gateway.address, ACCOUNT, Secret("another"))
        with pytest.raises(SettingsError) as raised:
            await stranger.speak(recording, speed=0)
    assert str(raised.value) == (
        f"the gateway at {gateway.address.url} did not accept the call: "
        "it rejects the signature; do TWILIO_AUTH_TOKEN and PUBLIC_URL match its own?"
    )


async def test_missing_gateway_is_reported_in_one_line():
    url = f"http://127.0.0.1:{free_port()}"
    gateway = RunningGateway(GatewayAddress(url), ACCOUNT, TOKEN)
    with pytest.raises(SettingsError) as raised:
        await gateway.speak(read(RECORDINGS / "goodbye.jsonl"), speed=0)
    assert (
        str(raised.value) == f"no gateway answers at {url} "
        "(connection refused); start it with `gateway serve`, or give its address with --url"
    )


async def test_engine_port_in_use_is_reported():
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        with pytest.raises(SettingsError) as raised:
            await SimulatedEngine(port).__aenter__()
    assert str(raised.value).startswith(f"can't be the engine on port {port}: ")


# What a recorded call found in the store


def second_call():
    return read(SHIPPED / "second.jsonl")


def test_every_memory_becomes_a_document():
    recording = second_call()
    documents = list(past_documents(recording))
    memory = recording.memory
    assert len(documents) == len(memory.calls) + len(memory.facts) + len(memory.pins) > 0
    caller, agent = f"caller:{recording.header.caller}", f"agent:{recording.header.agent['name']}"
    assert all({caller, agent} <= set(document["tags"]) for document in documents)


def test_document_of_an_earlier_call_has_its_summary():
    recording = second_call()
    past_call = recording.memory.calls[0]
    document = stored_document(past_call, recording.header)
    assert document["source_id"] == past_call.session_id
    assert document["created_at"] == past_call.started_at.isoformat()
    assert past_call.context in document["content"]


def test_first_call_remembers_nothing():
    assert list(past_documents(read(SHIPPED / "first.jsonl"))) == []
