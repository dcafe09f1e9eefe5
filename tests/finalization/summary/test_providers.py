import asyncio
import json

import pytest
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from pydantic import TypeAdapter

from gateway.errors import LlmRefused, LlmUnavailable
from gateway.finalization.summary.call_summary import SummaryRequest
from gateway.finalization.summary.providers import AnthropicSummaries, CompletionsSummaries, summary_provider
from gateway.llm.accounts import LlmAccounts, ModelAddress, model_address
from gateway.settings import Secret
from tests.fakes.llm import FakeLlm
from tests.fakes.llm_script import Answer, Pace


@pytest.fixture
async def llm():
    async with FakeLlm() as llm:
        yield llm


async def ask(llm, *, key="test-key", path="", model="", **options):
    provider = AnthropicSummaries(Secret(key), llm.url + path, model, **options)
    try:
        return await provider.summarise(SummaryRequest("Write notes.", "CALLER: Is it ready?"))
    finally:
        await provider.close()


async def test_request_fits_sdk_type(llm):
    await ask(llm)
    (request,) = llm.requests
    TypeAdapter(MessageCreateParamsNonStreaming).validate_python(request.body)
    assert request.headers["anthropic-version"] == "2026-10-21"
    assert request.body == {
        "model": "claude-haiku-5-5",
        "max_tokens": 2048,
        "system": "Write notes.",
        "messages": [{"role": "user", "content": "CALLER: Is it ready?"}],
        "thinking": {"type": "disabled"},
        "output_config": {"format": {"type": "json_schema", "schema": SummaryRequest("", "").schema}},
    }


async def test_answer_becomes_summary(llm):
    summary = await ask(llm, model="claude-sonnet-5-5")
    assert summary.topics == ("one of topics",)
    assert summary.written_by == "anthropic/claude-sonnet-5-5"


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/"])
async def test_base_url_may_end_in_version(llm, path):
    await ask(llm, path=path)
    assert llm.requests[0].path == "/v1/messages"


@pytest.mark.parametrize("shape", ["fenced", "prose", "wrong types"])
async def test_bent_json_is_read(llm, shape):
    llm.shape = shape
    assert (await ask(llm)).topics == ("one of topics",)


async def test_whole_json_at_token_limit_is_read(llm):
    llm.answers(Answer('{"topics": ["Order A12"]}', finish="length"))
    assert (await ask(llm)).topics == ("Order A12",)


@pytest.mark.parametrize("shape", ["cut", "refusal"])
async def test_useless_answer_is_refused(llm, shape):
    llm.shape = shape
    with pytest.raises(LlmRefused):
        await ask(llm)


@pytest.mark.parametrize("status", [408, 429, 500, 504, 529])
async def test_passing_failure_is_unavailable(llm, status):
    llm.fails(status, retry_after="1.5")
    with pytest.raises(LlmUnavailable) as raised:
        await ask(llm)
    assert (str(raised.value), raised.value.retry_after) == (f"anthropic answered {status}", 1.5)
    assert len(llm.requests) == 1


@pytest.mark.parametrize("status", [400, 402, 403, 404, 413])
async def test_lasting_failure_is_refused(llm, status):
    llm.fails(status)
    with pytest.raises(LlmRefused, match=f"^anthropic answered {status}$"):
        await ask(llm)


async def test_wrong_key_is_refused_unquoted(llm):
    with pytest.raises(LlmRefused) as raised:
        await ask(llm, key="sk-wrong")
    assert str(raised.value) == "anthropic answered 401"
    assert raised.value.__suppress_context__


async def test_unknown_model_is_refused(llm):
    with pytest.raises(LlmRefused, match="404"):
        await ask(llm, model="claude-gone")


NESTED = "[" * 100_000


@pytest.mark.parametrize(
    "body", ["<html>busy</html>", '{"half": ', "{}", "[]", '{"content": "text"}', '"text"', "", NESTED]
)
async def test_nonsense_is_unavailable(llm, body):
    llm.babbles(body)
    with pytest.raises(LlmUnavailable):
        await ask(llm)


async def test_silence_is_unavailable(llm):
    llm.pace = Pace(hangs="before headers")
    with pytest.raises(LlmUnavailable, match="^anthropic did not answer in time$"):
        await ask(llm, timeout=0.2)


async def test_answer_cut_in_middle_is_unavailable(llm):
    llm.pace = Pace(closes_after=1)
    with pytest.raises(LlmUnavailable):
        await ask(llm)


async def test_closed_port_is_unavailable():
    async with FakeLlm() as gone:
        pass
    with pytest.raises(LlmUnavailable, match="^anthropic can't be reached: connection refused$"):
        await ask(gone)


async def test_cancelled_summary_leaves_server(llm):
    llm.pace = Pace(hangs="before headers")
    asking = asyncio.create_task(ask(llm))
    await llm.received(1)
    asking.cancel()
    await llm.idle()
    assert llm.requests[0].disconnected_at is not None


async def test_parallel_summaries_share_client(llm):
    provider = AnthropicSummaries(Secret("test-key"), llm.url)
    await provider.prepare()
    summaries = await asyncio.gather(
        *(provider.summarise(SummaryRequest("Write notes.", f"CALLER: {n}")) for n in range(5))
    )
    await provider.close()
    assert len(summaries) == len(llm.requests) == 5


async def test_closing_unused_provider_is_quiet(llm):
    await AnthropicSummaries(Secret("test-key"), llm.url).close()
    assert llm.requests == []


# Grok


@pytest.fixture
async def xai():
    async with FakeLlm(profile="xai") as xai:
        yield xai


async def ask_xai(xai, *, key="test-key", path="/v1", model="", **options):
    address = ModelAddress("xai", "xai", xai.url + path, model or "grok-4.3", Secret(key))
    if options:
        return await ask_provider(CompletionsSummaries(address, formats=("json_schema",), headers={}, **options))
    return await ask_provider(summary_provider(address))


async def ask_provider(provider):
    await provider.prepare()
    try:
        return await provider.summarise(SummaryRequest("Write notes.", "CALLER: Is it ready?"))
    finally:
        await provider.close()


async def test_xai_request_fits_sdk_type(xai):
    await ask_xai(xai)
    (request,) = xai.requests
    TypeAdapter(CompletionCreateParamsNonStreaming).validate_python(request.body)
    assert request.body == {
        "model": "grok-4.3",
        "messages": [
            {"role": "system", "content": "Write notes."},
            {"role": "user", "content": "CALLER: Is it ready?"},
        ],
        "max_completion_tokens": 4096,
        "reasoning_effort": "low",
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "call_summary", "schema": SummaryRequest("", "").schema, "strict": True},
        },
    }


async def test_xai_answer_becomes_summary(xai):
    summary = await ask_xai(xai, path="/v1/", model="grok-4.5")
    assert summary.action_items == ("one of action_items",)
    assert summary.written_by == "xai/grok-4.5"


@pytest.mark.parametrize("shape", ["fenced", "prose", "wrong types"])
async def test_xai_bent_json_is_read(xai, shape):
    xai.shape = shape
    assert (await ask_xai(xai)).topics == ("one of topics",)


@pytest.mark.parametrize("shape", ["cut", "refusal"])
async def test_xai_useless_answer_is_refused(xai, shape):
    xai.shape = shape
    with pytest.raises(LlmRefused):
        await ask_xai(xai)


@pytest.mark.parametrize(
    ("body", "topics"),
    [
        ('{"choices": [{"message": {"content": "{\\"topics\\": [\\"a\\"]}"}}]}', ("a",)),
        (
            '{"choices": [{"message": {"content": [{"text": "{\\"topics\\":"}, {}, 1, {"text": " [\\"a\\"]}"}]}}]}',
            ("a",),
        ),
    ],
    ids=["no finish reason", "parts"],
)
async def test_xai_sparse_answer_is_read(xai, body, topics):
    xai.babbles(body)
    assert (await ask_xai(xai)).topics == topics


@pytest.mark.parametrize(
    "body",
    [
        "{}",
        "[]",
        '{"choices": []}',
        '{"choices": [{}]}',
        '{"choices": [{"message": null}]}',
        '{"choices": [{"message": {"content": null}}]}',
        '{"choices": [{"message": {"content": "", "refusal": "I can\'t."}}]}',
    ],
)
async def test_xai_answer_without_text_is_refused(xai, body):
    xai.babbles(body)
    with pytest.raises(LlmRefused):
        await ask_xai(xai)


@pytest.mark.parametrize("body", ["<html>busy</html>", '{"half": ', NESTED])
async def test_xai_nonsense_is_unavailable(xai, body):
    xai.babbles(body)
    with pytest.raises(LlmUnavailable, match="^xai answered with something that is not JSON$"):
        await ask_xai(xai)


@pytest.mark.parametrize(("header", "seconds"), [("2", 2.0), ("soon", None), ("nan", None), ("-1", None), ("", None)])
async def test_xai_rate_limit_is_unavailable(xai, header, seconds):
    xai.fails(429, retry_after=header)
    with pytest.raises(LlmUnavailable) as raised:
        await ask_xai(xai)
    assert (str(raised.value), raised.value.retry_after) == ("xai answered 429", seconds)


async def test_xai_wrong_key_is_refused(xai):
    with pytest.raises(LlmRefused, match="^xai answered 401$"):
        await ask_xai(xai, key="xai-wrong")


async def test_xai_retired_model_is_refused(xai):
    with pytest.raises(LlmRefused, match="^xai answered 404$"):
        await ask_xai(xai, model="grok-3")


async def test_xai_silence_is_unavailable(xai):
    xai.pace = Pace(hangs="before headers")
    with pytest.raises(LlmUnavailable, match="^xai did not answer in time$"):
        await ask_xai(xai, timeout=0.2)


async def test_xai_answer_cut_in_middle_is_unavailable(xai):
    xai.pace = Pace(closes_after=1)
    with pytest.raises(LlmUnavailable, match="^xai can't be reached: RemoteProtocolError$"):
        await ask_xai(xai)


async def test_xai_closed_port_is_unavailable():
    async with FakeLlm(profile="xai") as gone:
        pass
    with pytest.raises(LlmUnavailable, match="^xai can't be reached: connection refused$"):
        await ask_xai(gone)


# GPT, OpenClaw, and servers with the same API


def address_of(llm, entry, **accounts):
    key = Secret("test-key")
    known = {
        "openai_api_key": key,
        "openai_base_url": f"{llm.url}/v1",
        "openclaw_gateway_url": llm.url,
        "openclaw_gateway_token": key,
    }
    return model_address(entry, LlmAccounts(**known, **accounts), "brain")


async def test_openai_writes_summaries():
    async with FakeLlm() as llm:
        summary = await ask_provider(summary_provider(address_of(llm, "openai")))
    TypeAdapter(CompletionCreateParamsNonStreaming).validate_python(llm.requests[0].body)
    assert llm.requests[0].body["max_completion_tokens"] == 4096
    assert (summary.written_by, summary.topics) == ("openai/gpt-5.4-mini", ("one of topics",))


async def test_compatible_server_under_openai_may_lack_schemas():
    """OPENAI_BASE_URL is any server's."""
    async with FakeLlm() as llm:
        llm.answers('{"topics": ["The bike"]}')
        llm.fails(400)
        assert (await ask_provider(summary_provider(address_of(llm, "openai")))).topics == ("The bike",)


@pytest.mark.parametrize("profile", ["openclaw-old", "openclaw-new"])
async def test_openclaw_agent_writes_summaries(profile):
    async with FakeLlm(profile=profile) as llm:
        llm.answers('{"topics": ["The bike"]}')
        summary = await ask_provider(summary_provider(address_of(llm, "openclaw/main")))
    assert (summary.written_by, summary.topics) == ("openclaw/main", ("The bike",))
    assert llm.sessions == {}  # no conversation there holds the transcript


def own_server(llm):
    table = {"url": f"{llm.url}/v1", "model": "qwen3", "api_key": "test-key", "options": {"temperature": 0}}
    return address_of(llm, table)


async def test_own_server_gets_the_schema_and_its_options():
    async with FakeLlm() as llm:
        summary = await ask_provider(summary_provider(own_server(llm)))
    body = llm.requests[0].body
    assert (body["response_format"]["type"], body["temperature"], body["max_tokens"]) == ("json_schema", 0, 4096)
    assert summary.written_by == "127.0.0.1/qwen3"


async def test_answer_without_end_is_refused():
    """And not read into memory as a whole."""
    async with FakeLlm() as llm:
        llm.answers(json.dumps({"topics": ["The bike"], "context": "word " * 300_000}))
        with pytest.raises(LlmRefused, match="^127.0.0.1 answered with more than 1000000 bytes$"):
            await ask_provider(summary_provider(own_server(llm)))
    assert len(llm.requests) == 1


async def test_server_without_schemas_is_asked_for_json():
    """And from then on asked so at once."""
    async with FakeLlm() as llm:
        llm.answers('{"topics": ["The bike"]}')
        llm.fails(400)
        provider = summary_provider(own_server(llm))
        for _ in range(2):
            summary = await provider.summarise(SummaryRequest("Write notes.", "CALLER: Is it ready?"))
            assert summary.topics == ("The bike",)
        await provider.close()
    asked = [request.body["response_format"]["type"] for request in llm.requests]
    assert asked == ["json_schema", "json_object", "json_object"]
    assert '"caller_facts"' in llm.requests[1].body["messages"][0]["content"]  # the schema, as text


async def test_server_that_ignores_the_schema_gets_it_in_words():
    """And from then on at once."""
    async with FakeLlm() as llm:
        llm.answers("They spoke about the bike.")
        provider = summary_provider(own_server(llm))
        llm.answers('{"topics": ["The bike"]}', when="Answer with one JSON object")
        for _ in range(2):
            summary = await provider.summarise(SummaryRequest("Write notes.", "CALLER: Is it ready?"))
            assert summary.topics == ("The bike",)
        await provider.close()
    asked = [request.body["response_format"]["type"] for request in llm.requests]
    assert asked == ["json_schema", "json_object", "json_object", "json_object", "json_object"]
    assert '"caller_facts"' in llm.requests[1].body["messages"][0]["content"]


async def test_empty_summary_by_the_schema_is_final():
    async with FakeLlm() as llm:
        llm.answers('{"topics": [], "context": ""}')
        with pytest.raises(LlmRefused, match="empty summary"):
            await ask_provider(summary_provider(own_server(llm)))
    assert len(llm.requests) == 1


async def test_calls_that_end_together_lose_one_format():
    async with FakeLlm() as llm:
        llm.answers('{"topics": ["The bike"]}')
        llm.fails(400, times=3)
        provider = summary_provider(own_server(llm))
        request = SummaryRequest("Write notes.", "CALLER: Is it ready?")
        await asyncio.gather(*(provider.summarise(request) for _ in range(3)))
        await provider.close()
    asked = [request.body.get("response_format", {}).get("type") for request in llm.requests]
    assert sorted(map(str, asked)) == ["json_object"] * 3 + ["json_schema"] * 3


async def test_request_that_no_format_mends_changes_nothing():
    """It was too long, for example."""
    async with FakeLlm() as llm:
        llm.answers('{"topics": ["The bike"]}')
        llm.fails(400, times=3)
        provider = summary_provider(own_server(llm))
        request = SummaryRequest("Write notes.", "CALLER: Is it ready?")
        with pytest.raises(LlmRefused, match="400"):
            await provider.summarise(request)
        await provider.summarise(request)
        await provider.close()
    assert llm.requests[3].body["response_format"]["type"] == "json_schema"


async def test_server_without_any_format_is_asked_in_words():
    async with FakeLlm() as llm:
        llm.answers('Of course! ```json\n{"topics": ["The bike"]}\n``` Anything else?')
        llm.fails(422, times=2)
        summary = await ask_provider(summary_provider(own_server(llm)))
    assert summary.topics == ("The bike",)
    assert "response_format" not in llm.requests[2].body


@pytest.mark.parametrize("tag", ["<think>", "<thinking>", ""])
async def test_thoughts_are_no_answer(tag):
    end = f"</{tag.strip('<>') or 'think'}>"
    async with FakeLlm() as llm:
        llm.answers(f'{tag}Maybe {{"topics": ["wrong"]}}?{end}{{"topics": ["The bike"], "context": ""}}')
        assert (await ask_provider(summary_provider(own_server(llm)))).topics == ("The bike",)


async def test_prose_is_asked_for_once_more():
    async with FakeLlm() as llm:
        llm.answers("They spoke about the bike.")
        llm.answers('{"topics": ["The bike"]}', when="Answer with one JSON object")
        llm.fails(400)
        summary = await ask_provider(summary_provider(own_server(llm)))
    assert summary.topics == ("The bike",)
    assert llm.requests[2].body["messages"][2] == {"role": "assistant", "content": "They spoke about the bike."}


async def test_translated_keys_are_asked_for_once_more():
    async with FakeLlm() as llm:
        llm.answers('{"temas": ["La bicicleta"]}')
        llm.answers('{"topics": ["La bicicleta"]}', when="caller_name, topics, decisions")
        llm.fails(400)
        assert (await ask_provider(summary_provider(own_server(llm)))).topics == ("La bicicleta",)


async def test_prose_twice_is_refused():
    async with FakeLlm() as llm:
        llm.answers("They spoke about the bike.")
        llm.fails(400)
        with pytest.raises(LlmRefused):
            await ask_provider(summary_provider(own_server(llm)))
    assert len(llm.requests) == 3


async def test_refused_key_does_not_change_the_format():
    async with FakeLlm() as llm:
        llm.fails(401)
        with pytest.raises(LlmRefused, match="401"):
            await ask_provider(summary_provider(own_server(llm)))
    assert len(llm.requests) == 1
