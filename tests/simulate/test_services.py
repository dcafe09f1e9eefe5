"""The simulated language model, through the APIs of both providers."""

from dataclasses import replace

import httpx
import orjson
import pytest
from starlette.applications import Starlette

from gateway.finalization.summary.call_summary import CallSummary, parse_answer
from gateway.settings import Settings
from gateway.simulate.services import SimulatedLlm

SUMMARY = CallSummary("Ana", ("bikes",), ("Thursday",), (), ("The bike is green.",), "Ask about the bike.", "")


def said_by(provider):
    return replace(SUMMARY, written_by=f"{provider}/model")


def llm(provider):
    summary = said_by(provider)
    return SimulatedLlm(summary.written_by, orjson.dumps(summary).decode())


async def answer(player, path):
    transport = httpx.ASGITransport(Starlette(routes=player.routes()))
    async with httpx.AsyncClient(transport=transport, base_url="http://llm") as http:
        return (await http.post(path, json={})).json()


async def test_anthropic_message_holds_the_summary():
    message = await answer(llm("anthropic"), "/v1/messages")
    assert message["stop_reason"] == "end_turn"
    assert parse_answer(message["content"][0]["text"], "anthropic/model") == said_by("anthropic")


async def test_xai_completion_holds_the_summary():
    completion = await answer(llm("xai"), "/chat/completions")
    assert parse_answer(completion["choices"][0]["message"]["content"], "xai/model") == said_by("xai")


@pytest.mark.parametrize("provider", ["anthropic", "xai"])
def test_gateway_asks_the_recorded_model(provider):
    settings = Settings(**llm(provider).settings("http://127.0.0.1:9"))
    assert (settings.summary_provider, settings.summary_model) == (provider, "model")


@pytest.mark.parametrize("written_by", ["", "extractive"])
def test_extractive_summary_needs_no_model(written_by):
    settings = Settings(**SimulatedLlm(written_by, "").settings("http://127.0.0.1:9"))
    assert settings.summary_provider == "extractive"
    assert settings.anthropic_api_key is None
