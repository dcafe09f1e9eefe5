import sys
from typing import Any

import pytest

from gateway.agents import Agent
from gateway.engines.sdk_checks import settings_problem


@pytest.mark.parametrize("engine", ["deepgram", "openai", "xai", "local"])
def test_default_agent_has_no_problem(engine: str) -> None:
    assert settings_problem(engine, Agent("maya", "You are Maya.", "Hello.")) == ""


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"turn_detection": {"type": "semantic_vad", "eagerness": "hasty"}}, "eagerness: input should be"),
        ({"session": {"temprature": 0.7}}, "session.temprature: unknown"),
        ({"noise_reduction": "wind"}, "noise_reduction.type: input should be"),
    ],
)
def test_mistake_in_options_is_named(options: dict[str, Any], problem: str) -> None:
    assert problem in settings_problem("openai", Agent("maya", "You are Maya.", openai=options))


def test_mistake_in_a_provider_is_named() -> None:
    flux = {"type": "deepgram", "version": "v2", "model": "flux-general-en"}
    agent = Agent("maya", "You are Maya.", listen={**flux, "eot_threshold": "much"})
    assert settings_problem("deepgram", agent).startswith("agent.listen.provider.eot_threshold: input should be")


def test_without_the_sdk_nothing_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent("maya", "You are Maya.", openai={"session": {"temprature": 0.7}})
    monkeypatch.setitem(sys.modules, "openai", None)  # as if it were not installed
    assert settings_problem("openai", agent) == ""
