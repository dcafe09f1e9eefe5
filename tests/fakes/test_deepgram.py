"""The simulated Voice Agent, driven by Deepgram's own SDK and by a plain WebSocket; its words judged by the SDK."""

import asyncio
import json
import typing

import pytest
import websockets
from deepgram import AsyncDeepgramClient
from deepgram.agent.v1 import socket_client
from deepgram.agent.v1.types.agent_v1settings import AgentV1Settings
from deepgram.core.api_error import ApiError
from deepgram.environment import DeepgramClientEnvironment

from gateway.audio import SILENCE_FRAME
from tests.fakes.deepgram import ConversationOver, FakeDeepgram, speech
from tests.fakes.deepgram_client import KEY, QUIET, SETTINGS, Client, connected, kinds, plain

# The SDK imports what its WebSocket library calls deprecated, and does so when first used.
pytestmark = pytest.mark.filterwarnings("ignore:websockets.*deprecated:DeprecationWarning")

MODELS = [model for model in typing.get_args(socket_client.V1SocketClientResponse) if model is not bytes]
CALLER = speech("eight ch")
PARTS = ("Think", "Speak", "Listen")


def sdk(engine, **credentials):
    agent = engine.url.removesuffix("/v1/agent/converse")
    nowhere = {"base": "http://127.0.0.1:9", "production": "ws://127.0.0.1:9", "agent_rest": "http://127.0.0.1:9"}
    return AsyncDeepgramClient(environment=DeepgramClientEnvironment(agent=agent, **nowhere), **credentials)


def conforms(message):
    """Whether one of the SDK's models takes the message whole."""
    fitting = [model for model in MODELS if model.model_fields["type"].default == message["type"]]
    return any(model.model_validate(message).dict() == message for model in fitting)


# Handshake


async def test_sdk_is_welcomed_and_configured():
    async with FakeDeepgram(KEY) as engine, sdk(engine, api_key=KEY).agent.v1.connect() as agent:
        welcome = await agent.recv()
        await agent.send_settings(AgentV1Settings.model_validate(QUIET))
        assert (await agent.recv()).type == "SettingsApplied"
        conversation = await engine.next_connection()
        assert await conversation.configured() == QUIET
        assert welcome.request_id == conversation.request_id


async def test_wrong_key_is_refused():
    async with FakeDeepgram(KEY) as engine:
        with pytest.raises(ApiError) as raised:
            async with sdk(engine, api_key="wrong").agent.v1.connect():
                pass
    assert raised.value.status_code == 401
    assert engine.connections == []


async def test_bearer_scheme_opens_too():
    async with FakeDeepgram(KEY) as engine, sdk(engine, access_token=KEY).agent.v1.connect() as agent:
        assert (await agent.recv()).type == "Welcome"


async def test_request_id_is_in_header():
    async with FakeDeepgram(KEY) as engine, plain(engine, scheme="tOkEn") as socket:
        welcome = json.loads(await socket.recv())
        assert socket.response.headers["dg-request-id"] == welcome["request_id"]


@pytest.mark.parametrize("status", [401, 402, 403, 429, 503])
async def test_handshakes_are_refused_on_demand(status):
    async with FakeDeepgram(KEY) as engine:
        engine.refuse_next(status, times=2)
        for _ in range(2):
            with pytest.raises(websockets.InvalidStatus) as raised:
                await plain(engine)
            assert raised.value.response.status_code == status
        async with plain(engine) as socket:
            assert json.loads(await socket.recv())["type"] == "Welcome"
    assert engine.refused == [status, status]


async def test_other_paths_are_unknown():
    async with FakeDeepgram(KEY) as engine:
        with pytest.raises(websockets.InvalidStatus) as raised:
            await websockets.connect(engine.url.replace("/v1/agent/converse", "/agent"), proxy=None)
    assert raised.value.response.status_code == 404


async def test_conversations_come_in_order():
    async with FakeDeepgram(KEY) as engine, plain(engine) as first, plain(engine) as second:
        ids = [json.loads(await socket.recv())["request_id"] for socket in (first, second)]
        conversations = [await engine.next_connection(), await engine.next_connection()]
        assert [conversation.request_id for conversation in conversations] == ids
        assert engine.connections == conversations


# Settings


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        (['{"type": "KeepAlive"}'], "NON_SETTINGS_MESSAGE_BEFORE_SETTINGS"),
        (["not json"], "UNPARSABLE_CLIENT_MESSAGE"),
        (['{"type": "Settings"}'], "UNPARSABLE_CLIENT_MESSAGE"),
        ([json.dumps(QUIET), json.dumps(QUIET)], "SETTINGS_ALREADY_APPLIED"),
        ([json.dumps(QUIET), '{"type": "Whisper"}'], "UNPARSABLE_CLIENT_MESSAGE"),
    ],
)
async def test_client_mistake_ends_conversation(frames, code):
    async with FakeDeepgram(KEY) as engine, plain(engine) as socket:
        for frame in frames:
            await socket.send(frame)
        assert (await Client(socket).until("Error"))[-1]["code"] == code
        conversation = await engine.next_connection()
        assert await conversation.wait_closed() == 1008
        assert [problem.partition(":")[0] for problem in conversation.problems] == [code]


async def test_held_settings_wait_for_test():
    async with FakeDeepgram(KEY, hold_settings=True) as engine, plain(engine) as socket:
        client, conversation = Client(socket), await engine.next_connection()
        await client.send(SETTINGS)
        assert await conversation.settings_received() == SETTINGS
        assert conversation.sent("SettingsApplied") == []
        await conversation.apply_settings()
        assert kinds(await client.until("ConversationText")) == ["Welcome", "SettingsApplied", "ConversationText"]


async def test_early_audio_is_lost_and_noted():
    async with FakeDeepgram(KEY, hold_settings=True) as engine, plain(engine) as socket:
        client, conversation = Client(socket), await engine.next_connection()
        await client.send(QUIET)
        await client.send(SILENCE_FRAME)
        await conversation.until(lambda: conversation.problems)
        await conversation.apply_settings()
        await client.send(CALLER)
        assert await conversation.hears(160) == CALLER
        assert conversation.problems == ["audio before SettingsApplied"]


async def test_waiting_ends_with_the_conversation():
    async with FakeDeepgram(KEY) as engine, plain(engine) as socket:
        conversation = await engine.next_connection()
        await socket.send("not json")
        with pytest.raises(ConversationOver, match="closed with 1008"):
            await conversation.configured()


async def test_welcome_can_be_withheld():
    async with FakeDeepgram(KEY, welcome=False) as engine, plain(engine) as socket:
        await Client(socket).send(QUIET)
        assert (await Client(socket).receive())["type"] == "SettingsApplied"


# Ends


async def test_idle_client_is_given_up():
    async with connected() as (conversation, client):
        conversation.behave(idle_timeout=0.05)
        await client.send({"type": "KeepAlive"})
        await client.socket.ping()
        error = (await client.until("Error"))[-1]
        assert error["code"] == "CLIENT_MESSAGE_TIMEOUT"
        assert "binary message" in error["description"]
        assert await conversation.wait_closed() == 1011


async def test_idle_timer_asks_for_settings():
    async with FakeDeepgram(KEY, idle_timeout=0.01) as engine, plain(engine) as socket:
        error = (await Client(socket).until("Error"))[-1]
    assert "Settings" in error["description"]


@pytest.mark.parametrize("close", [1000, 1001, 1008, 1011])
async def test_failure_is_told_and_closed(close):
    async with connected() as (conversation, client):
        await conversation.fail("INTERNAL_SERVER_ERROR", close=close)
        assert (await client.receive())["code"] == "INTERNAL_SERVER_ERROR"
        with pytest.raises(websockets.ConnectionClosed) as raised:
            await client.receive()
        assert raised.value.rcvd.code == close
        assert await conversation.wait_closed() == close


async def test_connection_can_be_dropped():
    async with connected() as (conversation, client):
        conversation.abort()
        with pytest.raises(websockets.ConnectionClosedError) as raised:
            await client.receive()
        assert raised.value.rcvd is None
        assert await conversation.wait_closed() == 1006


async def test_hung_engine_answers_nothing():
    async with connected() as (conversation, client):
        conversation.behave(idle_timeout=0.01)
        conversation.hang()
        await client.send({"type": "UpdatePrompt", "prompt": "Anyone?"})
        await conversation.until(lambda: len(conversation.log) == 4)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.receive(), 0.05)
        await asyncio.wait_for(await client.socket.ping(), 60)
        assert conversation.closed is None


async def test_half_open_engine_answers_no_ping():
    async with connected() as (conversation, client):
        conversation.hang(half_open=True)
        pong = await client.socket.ping()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(pong), 0.05)
        conversation.abort()
        with pytest.raises(websockets.ConnectionClosed):
            await pong


async def test_client_close_is_seen():
    async with connected() as (conversation, client):
        await client.socket.close(1000)
        assert await conversation.wait_closed() == 1000
        assert conversation.problems == []


async def test_leaving_closes_open_sockets():
    async with FakeDeepgram(KEY) as engine:
        socket = await plain(engine)
    with pytest.raises(websockets.ConnectionClosedOK) as raised:
        await Client(socket).until("never")
    assert raised.value.rcvd.code == 1001
    assert engine.connections[0].closed == 1001


async def test_garbage_can_be_sent():
    async with connected() as (conversation, client):
        await conversation.send_text("not json")
        await conversation.send({"type": "Sneeze"})
        await conversation.send_audio(b"")
        assert [await client.socket.recv() for _ in range(3)] == ["not json", '{"type": "Sneeze"}', b""]


async def test_manners_change_for_next_conversation():
    async with FakeDeepgram(KEY) as engine, plain(engine) as first:
        assert json.loads(await first.recv())["type"] == "Welcome"
        engine.behave(welcome=False)
        async with plain(engine) as second:
            await Client(second).send(QUIET)
            assert (await Client(second).receive())["type"] == "SettingsApplied"


# The SDK as judge


async def test_every_message_conforms_to_sdk():
    async with connected(SETTINGS, echo_functions=True) as (conversation, client):
        await conversation.user_says("Is it ready?")
        await conversation.request_functions(["end_call", {"name": "lookup", "client_side": False, "response": "x"}])
        response = {"type": "FunctionCallResponse", "id": "fc_1", "name": "end_call", "content": "ok"}
        updates = [{"type": "UpdatePrompt", "prompt": "x"}]
        updates += [{"type": f"Update{part}", part.lower(): QUIET["agent"][part.lower()]} for part in PARTS]
        for message in [response, *updates, {"type": "InjectAgentMessage", "message": "x", "behavior": "queue"}]:
            await client.send(message)
        await client.until("ListenUpdated")
        await conversation.cancel_functions(["fc_1"])
        await conversation.barge_in(audio_done=True)
        await client.send({"type": "InjectAgentMessage", "message": "x"})
        await client.until("InjectionRefused")
        await conversation.warn("SLOW_SPEAK_REQUEST")
        await conversation.fail("SERVER_GOING_AWAY", close=None)
    texts = [entry.frame for entry in conversation.log if entry.direction == "out" and isinstance(entry.frame, str)]
    messages = [json.loads(text) for text in texts]
    assert {message["type"] for message in messages if not conforms(message)} == {"EndOfTurn"}
    assert len({message["type"] for message in messages}) == 18


async def test_sdk_reads_a_whole_conversation():
    async with FakeDeepgram(KEY, script={"Hello?": "Yes?"}) as engine:
        async with sdk(engine, api_key=KEY).agent.v1.connect() as agent:
            await agent.send_settings(AgentV1Settings.model_validate(SETTINGS))
            await agent.send_raw({"type": "InjectUserMessage", "content": "Hello?"})
            await agent.send_media(SILENCE_FRAME)
            texts = []
            while texts[-1:] != ["Yes?"]:
                message = await agent.recv()
                if getattr(message, "type", None) == "ConversationText":
                    texts.append(message.content)
        assert await (await engine.next_connection()).wait_closed() == 1000
