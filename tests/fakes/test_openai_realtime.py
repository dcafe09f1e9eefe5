"""The simulated Realtime server keeps to the protocol, by the types of the official package."""

import base64
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, get_args

import pytest
import websockets
from openai.types.realtime import RealtimeServerEvent

from tests.fakes.openai_realtime import FakeRealtime
from tests.fakes.realtime_checks import extras
from tests.fakes.realtime_conversation import RealtimeConversation

KEY = "sk-test-key"
PCMU = {"format": {"type": "audio/pcmu"}}
SESSION = {"type": "realtime", "instructions": "You are Maya.", "audio": {"input": PCMU, "output": PCMU}}
SOUND = b"\x11" * 1600
MODELS = {
    get_args(model.model_fields["type"].annotation)[0]: model for model in get_args(get_args(RealtimeServerEvent)[0])
}


class Client:
    """Sends and receives raw events."""

    def __init__(self, socket: Any) -> None:
        self.socket = socket
        self.seen: list[dict[str, Any]] = []

    async def send(self, kind: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": kind, "event_id": "ours", **fields}))

    async def until(self, kind: str) -> list[str]:
        """The types of all events up to this one."""
        start = len(self.seen)
        while len(self.seen) == start or self.seen[-1]["type"] != kind:
            self.seen.append(json.loads(await self.socket.recv()))
        return [event["type"] for event in self.seen[start:]]

    @property
    def last(self) -> dict[str, Any]:
        return self.seen[-1]


def plain(engine: FakeRealtime, query: str = "?model=gpt-realtime-2.1", **headers: str) -> Any:
    headers = {"Authorization": f"Bearer {KEY}"} | {name.replace("_", "-"): value for name, value in headers.items()}
    return websockets.connect(f"{engine.url}{query}", additional_headers=headers, proxy=None)


@contextlib.asynccontextmanager
async def connected(**behaviour: Any) -> AsyncIterator[tuple[RealtimeConversation, Client]]:
    """Both sides of a configured conversation."""
    async with FakeRealtime(KEY, **behaviour) as engine, plain(engine) as socket:
        client = Client(socket)
        await client.send("session.update", session=SESSION)
        conversation = await engine.next_conversation()
        assert await client.until("session.updated") == ["session.created", "session.updated"]
        yield conversation, client


@pytest.mark.parametrize(
    ("query", "headers", "status"), [("", {}, 404), ("?model=m", {"Authorization": "Bearer other"}, 401)]
)
async def test_strangers_are_refused(query: str, headers: dict[str, str], status: int) -> None:
    async with FakeRealtime(KEY) as engine:
        with pytest.raises(websockets.InvalidStatus):
            async with plain(engine, query, **headers):
                pass
        assert engine.refused == [status]


async def test_beta_header_is_refused() -> None:
    async with FakeRealtime(KEY) as engine, plain(engine, OpenAI_Beta="realtime=v1") as socket:
        assert json.loads(await socket.recv())["error"]["code"] == "beta_api_shape_disabled"
        with pytest.raises(websockets.ConnectionClosedError) as closed:
            await socket.recv()
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 4000


@pytest.mark.parametrize(
    ("session", "code", "param"),
    [
        ({"instructions": "x"}, "missing_required_parameter", "session.type"),
        ({**SESSION, "voice": "marin"}, "unknown_parameter", "session.voice"),
        ({**SESSION, "output_modalities": ["smell"]}, "invalid_value", None),
    ],
)
async def test_bad_settings_are_rejected_whole(session: dict[str, Any], code: str, param: str | None) -> None:
    async with FakeRealtime(KEY) as engine, plain(engine) as socket:
        client = Client(socket)
        await client.send("session.update", session=session)
        conversation = await engine.next_conversation()
        await client.until("error")
        error = client.last["error"]
        assert (error["code"], error["event_id"]) == (code, "ours")
        assert param is None or error["param"] == param
        assert conversation.settings is None and conversation.prompt.startswith("Your knowledge")


async def test_every_event_has_its_official_type() -> None:
    """A whole conversation: turns, a function, a barge-in, a cut, an error."""
    async with connected() as (conversation, client):
        await conversation.user_says("Is it ready?")
        [call_id] = await conversation.request_functions(["hours"])
        await client.until("response.done")
        await client.send(
            "conversation.item.create", item={"type": "function_call_output", "call_id": call_id, "output": "ok"}
        )
        await client.send("response.create")
        await client.until("response.created")
        await conversation.agent_says("It is. Come by.", audio=SOUND, done=False)
        await conversation.barge_in(late_audio=SOUND)
        await conversation.end_turn("Stop.")
        await conversation.agent_says("All right. Goodbye.", items=2)
        item_id = next(item["id"] for item in conversation.items if item.get("size"))
        await client.send("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=99_999)
        await client.until("error")
        await client.send("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=50)
        await client.until("conversation.item.truncated")
    for event in client.seen:
        model = MODELS[event["type"]].model_validate(event)
        assert model.type == event["type"]
        assert set(extras(model)) <= {"session.id", "session.object"}  # which servers send all the same


async def test_plain_turn_has_the_documented_order() -> None:
    async with connected() as (conversation, client):
        await conversation.user_says("Is it ready?")
        await conversation.agent_says("It is.", audio=SOUND, sizes=(1600,))
        kinds = await client.until("response.done")
    assert [kind for kind in kinds if "transcript.delta" not in kind] == [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.input_audio_transcription.completed",
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_audio.delta",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.done",
    ]
    assert client.last["response"]["usage"]["output_token_details"]["audio_tokens"] == 4


async def test_only_one_response_exists() -> None:
    async with connected() as (conversation, client):
        await client.send("response.create")
        await client.send("response.create")
        await client.until("error")
        assert client.last["error"]["code"] == "conversation_already_has_active_response"
        await client.send("response.cancel")
        await client.until("response.done")
        assert client.last["response"]["status_details"] == {"type": "cancelled", "reason": "client_cancelled"}
        await client.send("response.cancel")
        await client.until("error")
        assert client.last["error"]["code"] == "response_cancel_not_active"
        assert len(conversation.responses) == 1


async def test_interrupted_answer_ends_with_late_audio() -> None:
    async with connected() as (conversation, client):
        await conversation.agent_says("It is a long story.", audio=SOUND, done=False)
        await conversation.barge_in(late_audio=b"\x22" * 320)
        await client.until("input_audio_buffer.speech_started")
        assert (await client.until("response.done"))[:2] == ["response.output_audio.delta"] * 2
        assert client.last["response"]["status_details"]["reason"] == "turn_detected"


async def test_audio_is_decoded_and_counted() -> None:
    async with connected() as (conversation, client):
        await client.send("input_audio_buffer.append", audio=base64.b64encode(SOUND).decode())
        assert await conversation.hears(1600) == SOUND
        await conversation.user_starts_speaking()
        await client.until("input_audio_buffer.speech_started")
        assert client.last["audio_start_ms"] == 200
        assert conversation.problems == []


async def test_early_audio_is_a_problem() -> None:
    async with FakeRealtime(KEY) as engine, plain(engine) as socket:
        client = Client(socket)
        await client.send("input_audio_buffer.append", audio=base64.b64encode(SOUND).decode())
        conversation = await engine.next_conversation()
        await conversation.hears(1600)
        assert conversation.problems == ["audio before session.updated"]


async def test_result_of_an_unknown_call_is_refused() -> None:
    async with connected() as (_, client):
        item = {"type": "function_call_output", "call_id": "c9", "output": "ok"}
        await client.send("conversation.item.create", item=item)
        await client.until("error")
        assert client.last["error"]["param"] == "item.call_id"


async def test_assistant_audio_cannot_be_supplied() -> None:
    async with connected() as (_, client):
        content = [{"type": "output_audio", "transcript": "On Friday."}]
        await client.send("conversation.item.create", item={"type": "message", "role": "assistant", "content": content})
        await client.until("error")
        assert client.last["error"]["param"] == "item.content[0].text"


async def test_xai_speaks_what_it_is_forced_to() -> None:
    async with FakeRealtime(KEY, is_xai=True) as engine, plain(engine, "?model=grok-voice-latest") as socket:
        client = Client(socket)
        detection = {"type": "server_vad", "silence_duration_ms": 500}
        await client.send("session.update", session={"voice": "eve", "turn_detection": detection})
        await client.until("session.updated")
        content = [{"type": "output_text", "text": "Hello."}]
        item = {"type": "force_message", "role": "assistant", "content": content}
        await client.send("conversation.item.create", item=item)
        assert "response.output_audio.delta" in await client.until("response.done")
        await client.send("session.update", session=SESSION)
        await client.until("error")
        assert client.last["error"]["param"] == "session.type"


async def test_turns_are_found_by_energy() -> None:
    async with connected(listen_by_energy=True, turns=["Hello."], managed_answer="Hi.") as (_, client):
        for sound in (b"\x10" * 1600, b"\xff" * 8000):
            await client.send("input_audio_buffer.append", audio=base64.b64encode(sound).decode())
        kinds = await client.until("response.done")
        assert kinds[0] == "input_audio_buffer.speech_started" and "response.output_audio.delta" in kinds
