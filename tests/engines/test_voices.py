from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import pytest
from deepgram.types.speak_settings_v1provider import SpeakSettingsV1Provider_Deepgram
from openai.types.realtime.realtime_audio_config_output import RealtimeAudioConfigOutput

from gateway.agents import Agent
from gateway.engines.voices import UnknownVoice, unknown_voice


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
