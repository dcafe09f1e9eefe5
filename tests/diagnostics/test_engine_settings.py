import sys
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import pytest
from deepgram.types.speak_settings_v1provider import SpeakSettingsV1Provider_Deepgram
from openai.types.realtime.realtime_audio_config_output import RealtimeAudioConfigOutput

from gateway.agents import Agent
from gateway.diagnostics.engine_settings import UnknownVoice, settings_problem, unknown_voice


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


def literals(annotation: Any) -> Iterator[str]:
    for part in get_args(annotation):
        if get_origin(annotation) is Literal:
            yield part
        else:
            yield from literals(part)


def agent(**voice: Any) -> Agent:
    return Agent("maya", "You are Maya.", "Hello.", **voice)


def deepgram(name: str) -> Agent:
    return agent(speak={"type": "deepgram", "model": name})


@pytest.mark.parametrize("name", [*literals(SpeakSettingsV1Provider_Deepgram.model_fields["model"].annotation)])
def test_voices_of_deepgrams_sdk_are_known(name: str) -> None:
    assert unknown_voice("deepgram", deepgram(name)) is None
    assert unknown_voice(f"deepgram/nova-3+deepgram/{name}", agent()) is None


@pytest.mark.parametrize("name", [*literals(RealtimeAudioConfigOutput.model_fields["voice"].annotation)])
def test_voices_of_openais_sdk_are_known(name: str) -> None:
    assert unknown_voice("openai", agent(openai={"voice": name})) is None


def test_misspelt_voice_names_a_similar_one() -> None:
    assert unknown_voice("openai", agent(openai={"voice": "shimer"})) == UnknownVoice(
        "openai", "shimer", is_listed=True, similar="shimmer"
    )
    found = unknown_voice("deepgram/nova-3+deepgram/aura-2-talia-en", agent())
    assert found is not None and found.similar == "aura-2-thalia-en"


def test_main_voices_of_xai_are_known() -> None:
    assert unknown_voice("xai", agent(xai={"voice": "Leo"})) is None
    assert unknown_voice("xai", agent(xai={"voice": "carina"})) == UnknownVoice("xai", "carina")


@pytest.mark.parametrize("provider", ["elevenlabs", "cartesia"])
def test_provider_without_a_list_is_left_open(provider: str) -> None:
    engine = f"deepgram/nova-3+{provider}/Rachel/a-model"
    assert unknown_voice(engine, agent()) == UnknownVoice(provider, "Rachel")


def test_own_and_local_voices_are_not_looked_up() -> None:
    assert unknown_voice("openai", agent(openai={"voice": {"id": "voice_12"}})) is None
    assert unknown_voice("local", agent()) is None
    assert unknown_voice("deepgram/nova-3+local", agent()) is None
