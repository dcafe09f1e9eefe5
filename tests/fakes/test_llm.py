"""The LLM simulator, judged by the official SDKs' types and clients."""

import asyncio
import json

import anthropic
import httpx
import openai
import pytest
from anthropic.types import Message
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.fakes.llm import FakeLlm
from tests.fakes.llm_script import Answer, Pace, Profile, ToolCall

PROFILES: tuple[Profile, ...] = ("openai", "xai", "openclaw-old", "openclaw-new")
MODELS = {"openai": "gpt-5.4-mini", "xai": "grok-4.3", "openclaw-old": "openclaw", "openclaw-new": "openclaw/main"}
ORDER = ToolCall("order_status", '{"order": "A12", "city": "Málaga"}')
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "ready"}
SCHEMA = {
    "type": "object",
    "properties": {"topics": {"type": "array", "items": {"type": "string"}}, "context": {"type": "string"}},
    "required": ["topics", "context"],
    "additionalProperties": False,
}


def claude(llm, **client):
    return anthropic.AsyncAnthropic(api_key="test-key", base_url=llm.url, max_retries=0, **client)


def question(**more):
    return {
        "model": "claude-haiku-5-5",
        "max_tokens": 100,
        "messages": [{"role": "user", "content": "Is it ready?"}],
        "thinking": {"type": "disabled"},
        **more,
    }


async def post(llm, path="/v1/messages", headers=None, **body):
    given = {"x-api-key": "test-key", "authorization": "Bearer test-key", "anthropic-version": "2026-10-21"}
    async with httpx.AsyncClient() as client:
        return await client.post(llm.url + path, json=body, headers=given | (headers or {}))


async def ask_chat(llm, **more):
    body = {"model": MODELS[llm.profile], "messages": [{"role": "user", "content": "Is it ready?"}], **more}
    return await post(llm, "/v1/chat/completions", **body)


def chunks_of(response):
    records = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert records.pop() == "[DONE]"
    return [json.loads(record) for record in records]


def spoken(chunks):
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


async def test_anthropic_answer_fits_sdk_type():
    async with FakeLlm() as llm:
        llm.answers(Answer("Let me look.", tools=(ORDER,)))
        response = await post(llm, **question(thinking={"type": "adaptive"}))
    message = Message.model_validate(response.json())
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
    assert message.stop_reason == "tool_use"


async def test_anthropic_stream_passes_sdk_client():
    async with FakeLlm(pace=Pace(slice_bytes=7)) as llm:
        llm.answers(Answer("Señora, it is ready.", tools=(ORDER,)))
        async with claude(llm) as client, client.messages.stream(**question()) as stream:
            message = await stream.get_final_message()
    text, tool = message.content
    assert text.text == "Señora, it is ready."
    assert tool.input == {"order": "A12", "city": "Málaga"}


async def test_anthropic_error_comes_inside_stream():
    async with FakeLlm() as llm:
        llm.answers(Answer("It is ready.", breaks_after=2))
        async with claude(llm) as client, client.messages.stream(**question()) as stream:
            with pytest.raises(anthropic.APIStatusError) as raised:
                await stream.get_final_message()
    assert raised.value.type == "overloaded_error"


@pytest.mark.parametrize("header", [{"x-api-key": "test-key"}, {"authorization": "Bearer test-key"}])
async def test_anthropic_takes_both_key_headers(header):
    async with FakeLlm() as llm, httpx.AsyncClient() as client:
        headers = {"anthropic-version": "2023-06-01", **header}
        response = await client.post(f"{llm.url}/v1/messages", json=question(), headers=headers)
    assert response.status_code == 200


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"temperature": 0.2}, 400),
        ({"model": "claude-gone"}, 404),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": " "}]}]}, 400),
        ({"messages": [{"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Hi."}]}, 400),
        ({"messages": [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "{"}]}, 400),
        (
            {
                "messages": [
                    {"role": "user", "content": "Hi."},
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "n", "input": {}}]},
                    {"role": "user", "content": "And?"},
                ]
            },
            400,
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": "Hi."},
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "n", "input": {}}]},
                    {"role": "user", "content": [{"type": "text", "text": "And?"}, RESULT]},
                ]
            },
            400,
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": "Hi."},
                    {"role": "assistant", "content": "Hello."},
                    {"role": "user", "content": [RESULT]},
                ]
            },
            400,
        ),
        ({"system": [{"type": "text", "text": ""}]}, 400),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, 400),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}}, 400),
    ],
)
async def test_anthropic_refuses_what_api_refuses(change, status):
    async with FakeLlm() as llm:
        response = await post(llm, **question(**change))
    assert response.status_code == status
    assert response.json()["type"] == "error"


@pytest.mark.parametrize("profile", PROFILES)
async def test_completion_fits_sdk_type(profile):
    async with FakeLlm(profile=profile) as llm:
        llm.answers(Answer("It is ready.", tools=(ORDER,)))
        response = await ask_chat(llm)
    choice = ChatCompletion.model_validate(response.json()).choices[0]
    assert choice.message.content == "It is ready."
    assert choice.message.tool_calls[0].function.name == "order_status"


@pytest.mark.parametrize("profile", PROFILES)
async def test_stream_says_whole_text(profile):
    async with FakeLlm(profile=profile, pace=Pace(slice_bytes=5)) as llm:
        llm.answers("Sí, señora: it is ready.")
        chunks = chunks_of(await ask_chat(llm, stream=True))
    assert spoken(chunks) == "Sí, señora: it is ready."
    for chunk in chunks:
        padded = [{"finish_reason": None, **choice} for choice in chunk["choices"]]
        ChatCompletionChunk.model_validate({**chunk, "choices": padded})


async def test_openai_stream_passes_sdk_client():
    async with FakeLlm() as llm, openai.AsyncOpenAI(api_key="test-key", base_url=f"{llm.url}/v1") as client:
        llm.answers(Answer("One moment.", tools=(ORDER,)))
        messages = [{"role": "user", "content": "Is it ready?"}]
        async with client.chat.completions.stream(model="gpt-5.4-mini", messages=messages) as stream:
            completion = await stream.get_final_completion()
    assert completion.choices[0].message.tool_calls[0].function.arguments == ORDER.arguments


async def test_xai_stream_has_its_oddities():
    async with FakeLlm(profile="xai") as llm:
        llm.answers(Answer(tools=(ORDER,)))
        chunks = chunks_of(await ask_chat(llm, stream=True, stream_options={"include_usage": True}))
    choices = [chunk["choices"][0] for chunk in chunks[:-1]]
    assert ["finish_reason" in choice for choice in choices] == [False, False, False, False, True]
    assert choices[2]["delta"] == {"reasoning_content": "Let me see."}
    assert choices[3]["delta"]["tool_calls"][0]["function"]["arguments"] == ORDER.arguments
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["total_tokens"] == 160


@pytest.mark.parametrize("profile", ["openclaw-old", "openclaw-new"])
async def test_openclaw_with_nothing_to_say_says_so(profile):
    async with FakeLlm(profile=profile) as llm:
        llm.answers("")
        assert spoken(chunks_of(await ask_chat(llm, stream=True))) == "No response from OpenClaw."


async def test_old_openclaw_speaks_its_errors():
    async with FakeLlm(profile="openclaw-old") as llm:
        llm.answers(Answer("It is ready.", breaks_after=1))
        chunks = chunks_of(await ask_chat(llm, stream=True))
    assert spoken(chunks) == "It Error: internal error"
    assert not any("finish_reason" in choice for chunk in chunks for choice in chunk["choices"])


async def test_new_openclaw_marks_its_errors():
    async with FakeLlm(profile="openclaw-new") as llm:
        llm.answers(Answer("It is ready.", breaks_after=1))
        chunks = chunks_of(await ask_chat(llm, stream=True))
    assert chunks[-1] == {"error": {"message": "internal error", "type": "api_error"}}


@pytest.mark.parametrize(
    ("model", "headers", "status"),
    [
        ("openclaw", {}, 200),
        ("OpenClaw/Main", {}, 200),
        ("agent:main", {"x-openclaw-session-key": "agent:main:voice:1"}, 200),
        ("openclaw/nobody", {}, 400),
        ("anthropic/claude-haiku-4-5", {}, 400),
        ("openclaw", {"x-openclaw-session-key": "cron:nightly"}, 400),
        ("openclaw", {"x-openclaw-agent-id": "main"}, 200),
        ("openclaw", {"x-openclaw-agent-id": "nobody"}, 400),
    ],
)
async def test_openclaw_model_names_an_agent(model, headers, status):
    async with FakeLlm(profile="openclaw-new") as llm:
        assert (await ask_chat(llm, model=model, headers=headers)).status_code == status


async def test_openclaw_session_doubles_history():
    async with FakeLlm(profile="openclaw-new") as llm:
        for _ in range(2):
            await ask_chat(llm, headers={"x-openclaw-session-key": "voice:1"})
    turn = [{"role": "user", "content": "Is it ready?"}, {"role": "assistant", "content": "It is ready."}]
    assert llm.sessions["voice:1"] == turn * 2


async def test_rule_follows_last_user_message():
    async with FakeLlm() as llm:
        llm.answers("Hello.")
        llm.answers("At nine.", when="open")
        messages = [{"role": "user", "content": [{"type": "text", "text": "When do you open?"}]}]
        assert (await ask_chat(llm, messages=messages)).json()["choices"][0]["message"]["content"] == "At nine."
        assert (await ask_chat(llm)).json()["choices"][0]["message"]["content"] == "Hello."


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ("plain", '{"topics": ["one of topics"], "context": "context"}'),
        ("fenced", '```json\n{"topics": ["one of topics"], "context": "context"}\n```'),
        ("cut", '{"topics": ["one of topic'),
        ("wrong types", '{"topics": "one of topics", "context": 7}'),
        ("refusal", None),
    ],
)
async def test_schema_shapes_the_answer(shape, text):
    async with FakeLlm(shape=shape) as llm:
        wanted = {"type": "json_schema", "json_schema": {"name": "notes", "schema": SCHEMA}}
        response = await ask_chat(llm, response_format=wanted)
    assert response.json()["choices"][0]["message"]["content"] == text


async def test_scripted_status_passes_once():
    async with FakeLlm() as llm:
        llm.fails(429, retry_after="2")
        first, second = await ask_chat(llm), await ask_chat(llm)
    assert (first.status_code, first.headers["retry-after"], second.status_code) == (429, "2", 200)


async def test_wrong_key_is_refused():
    async with FakeLlm(api_key="another") as llm:
        assert (await ask_chat(llm)).status_code == 401
        assert (await post(llm, **question())).status_code == 401


async def test_stream_can_close_in_middle():
    async with FakeLlm(pace=Pace(closes_after=3)) as llm:
        with pytest.raises(httpx.RemoteProtocolError):
            await ask_chat(llm, stream=True)
    assert llm.requests[0].completed is False


@pytest.mark.parametrize("hangs", ["before headers", "before first token", "after first token"])
async def test_client_that_leaves_is_noticed(hangs):
    async with FakeLlm(pace=Pace(hangs=hangs)) as llm:
        asking = asyncio.create_task(ask_chat(llm, stream=True))
        await llm.received(1)
        asking.cancel()
        await llm.idle()
    assert llm.requests[0].disconnected_at >= llm.requests[0].at
    assert llm.requests[0].completed is False


async def test_parallel_requests_are_counted():
    async with FakeLlm(pace=Pace(hangs="before headers")) as llm:
        asking = [asyncio.create_task(ask_chat(llm)) for _ in range(3)]
        await llm.received(3)
        for task in asking:
            task.cancel()
        await llm.idle()
    assert (llm.most_parallel, llm.parallel) == (3, 0)


async def test_connection_serves_many_requests():
    async with FakeLlm() as llm, httpx.AsyncClient() as client:
        for stream in (False, True):
            body = {"messages": [{"role": "user", "content": "Is it ready?"}], "stream": stream}
            headers = {"authorization": "Bearer test-key"}
            await client.post(f"{llm.url}/v1/chat/completions", json=body, headers=headers)
    assert (len(llm.requests), llm.connections) == (2, 1)


async def test_models_pass_sdk_clients():
    async with (
        FakeLlm() as llm,
        claude(llm) as anthropic_client,
        openai.AsyncOpenAI(api_key="test-key", base_url=f"{llm.url}/v1") as openai_client,
    ):
        assert [model.id async for model in anthropic_client.models.list(limit=1)] == ["claude-haiku-5-5"]
        assert [model.id async for model in openai_client.models.list()] == ["some-model"]
    assert llm.requests == []


async def test_only_marked_beginning_is_cached_by_anthropic():
    marked = {"type": "text", "text": "You are a barber.", "cache_control": {"type": "ephemeral"}}
    async with FakeLlm() as llm:
        for note in ("one", "two"):
            response = await post(llm, **question(system=[marked, {"type": "text", "text": note}]))
            usage = Message.model_validate(response.json()).usage
    assert usage.cache_read_input_tokens == 10


async def test_equal_beginning_is_cached_by_chat():
    async with FakeLlm() as llm:
        for last in ("Is it ready?", "When do you open?"):
            messages = [{"role": "system", "content": "You are a barber."}, {"role": "user", "content": last}]
            response = await ask_chat(llm, messages=messages)
    assert response.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 10
