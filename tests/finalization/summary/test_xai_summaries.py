import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from pydantic import TypeAdapter

from gateway.errors import LlmRefused, LlmUnavailable
from gateway.finalization.summary.call_summary import SCHEMA
from gateway.finalization.summary.xai_summaries import XaiSummaries
from gateway.settings import Secret
from tests.fakes.llm import FakeLlm
from tests.fakes.llm_script import Pace


@pytest.fixture
async def llm():
    async with FakeLlm(profile="xai") as llm:
        yield llm


async def ask(llm, *, key="test-key", path="/v1", model="", **options):
    provider = XaiSummaries(Secret(key), llm.url + path, model, **options)
    await provider.prepare()
    try:
        return await provider.summarise("Write notes.", "CALLER: Is it ready?")
    finally:
        await provider.close()


async def test_request_fits_sdk_type(llm):
    await ask(llm)
    (request,) = llm.requests
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
            "json_schema": {"name": "call_summary", "schema": SCHEMA, "strict": True},
        },
    }


async def test_answer_becomes_summary(llm):
    summary = await ask(llm, path="/v1/", model="grok-4.5")
    assert summary.action_items == ("one of action_items",)
    assert summary.written_by == "xai/grok-4.5"


@pytest.mark.parametrize("shape", ["fenced", "prose", "wrong types"])
async def test_bent_json_is_read(llm, shape):
    llm.shape = shape
    assert (await ask(llm)).topics == ("one of topics",)


@pytest.mark.parametrize("shape", ["cut", "refusal"])
async def test_useless_answer_is_refused(llm, shape):
    llm.shape = shape
    with pytest.raises(LlmRefused):
        await ask(llm)


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
async def test_sparse_answer_is_read(llm, body, topics):
    llm.babbles(body)
    assert (await ask(llm)).topics == topics


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
async def test_answer_without_text_is_refused(llm, body):
    llm.babbles(body)
    with pytest.raises(LlmRefused):
        await ask(llm)


@pytest.mark.parametrize("body", ["<html>busy</html>", '{"half": '])
async def test_nonsense_is_unavailable(llm, body):
    llm.babbles(body)
    with pytest.raises(LlmUnavailable, match="^xai answered with something that is not JSON$"):
        await ask(llm)


@pytest.mark.parametrize(("header", "seconds"), [("2", 2.0), ("soon", None), ("nan", None), ("-1", None), ("", None)])
async def test_rate_limit_is_unavailable(llm, header, seconds):
    llm.fails(429, retry_after=header)
    with pytest.raises(LlmUnavailable) as raised:
        await ask(llm)
    assert (str(raised.value), raised.value.retry_after) == ("xai answered 429", seconds)


async def test_wrong_key_is_refused(llm):
    with pytest.raises(LlmRefused, match="^xai answered 401$"):
        await ask(llm, key="xai-wrong")


async def test_retired_model_is_refused(llm):
    with pytest.raises(LlmRefused, match="^xai answered 404$"):
        await ask(llm, model="grok-3")


async def test_silence_is_unavailable(llm):
    llm.pace = Pace(hangs="before headers")
    with pytest.raises(LlmUnavailable, match="^xai did not answer in time$"):
        await ask(llm, timeout=0.2)


async def test_answer_cut_in_middle_is_unavailable(llm):
    llm.pace = Pace(closes_after=1)
    with pytest.raises(LlmUnavailable, match="^xai can't be reached: RemoteProtocolError$"):
        await ask(llm)


async def test_closed_port_is_unavailable():
    async with FakeLlm(profile="xai") as gone:
        pass
    with pytest.raises(LlmUnavailable, match="^xai can't be reached: ConnectError$"):
        await ask(gone)
