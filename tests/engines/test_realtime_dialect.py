from dataclasses import replace
from typing import Any

import pytest

from gateway.agents import Agent
from gateway.engines.interface import AgentFunction, AgentSettings
from gateway.engines.realtime_dialect import OPENAI, XAI
from tests.fakes.realtime_checks import check_openai, check_xai

MAYA = Agent("maya", "You are Maya.")
NEW_CALL = AgentSettings(MAYA, "You are Maya.", "Hello.", (AgentFunction("end_call", "Hang up."),))
PCMU = {"type": "audio/pcmu"}


def test_settings_say_mu_law_both_ways() -> None:
    session = OPENAI.session(NEW_CALL)
    assert (session["type"], session["output_modalities"]) == ("realtime", ["audio"])
    assert session["instructions"] == "You are Maya."
    assert session["audio"] == {
        "input": {
            "format": PCMU,
            "transcription": {"model": "gpt-transcribe", "language": "en"},
            "turn_detection": {
                "type": "semantic_vad",
                "eagerness": "auto",
                "create_response": True,
                "interrupt_response": True,
            },
        },
        "output": {"format": PCMU, "voice": "marin"},
    }
    assert [tool["name"] for tool in session["tools"]] == ["end_call"]


def test_options_of_an_agent_reach_the_session() -> None:
    options = {
        "turn_detection": "server",
        "transcription": "whisper-1",
        "noise_reduction": "near_field",
        "session": {"audio": {"output": {"speed": 1.2}}},
    }
    agent = replace(MAYA, speak={"model": "cedar"}, openai=options, listen={"keyterms": ["Rohloff", "Ana"]})
    update = {"type": "session.update", "session": OPENAI.session(replace(NEW_CALL, agent=agent))}
    check_openai(update)
    audio = update["session"]["audio"]
    assert audio["output"] == {"format": PCMU, "voice": "cedar", "speed": 1.2}
    assert audio["input"]["turn_detection"]["type"] == "server_vad"
    assert audio["input"]["transcription"]["prompt"] == "The caller may say: Rohloff, Ana."
    assert audio["input"]["noise_reduction"] == {"type": "near_field"}


@pytest.mark.parametrize(
    ("patience", "turn_detection", "found"),
    [
        ("long", "semantic", {"type": "semantic_vad", "eagerness": "low"}),
        ("short", "server", {"type": "server_vad", "silence_duration_ms": 300}),
        ("long", {"type": "server_vad", "silence_duration_ms": 250}, {"silence_duration_ms": 250}),
    ],
)
def test_patience_sets_the_turn_detection(patience: Any, turn_detection: Any, found: dict[str, Any]) -> None:
    agent = replace(MAYA, patience=patience, openai={"turn_detection": turn_detection})
    update = {"type": "session.update", "session": OPENAI.session(replace(NEW_CALL, agent=agent))}
    check_openai(update)
    assert found.items() <= update["session"]["audio"]["input"]["turn_detection"].items()


def test_xai_has_its_own_places() -> None:
    agent = replace(MAYA, speak={"model": "cedar"}, listen={"keyterms": ["Rohloff"]})
    update = {"type": "session.update", "session": XAI.session(replace(NEW_CALL, agent=agent))}
    check_xai(update)
    session = update["session"]
    assert (session["voice"], session["turn_detection"]["type"]) == ("eve", "server_vad")
    assert session["audio"]["input"]["transcription"] == {
        "model": "grok-transcribe",
        "language_hint": "en",
        "keyterms": ["Rohloff"],
    }


def test_names_from_memory_follow_the_keyterms_of_the_agent() -> None:
    agent = replace(MAYA, listen={"keyterms": ["Rohloff", "Ana"]})
    session = OPENAI.session(replace(NEW_CALL, agent=agent, keyterms=("Ana", "Bregenz")))
    assert session["audio"]["input"]["transcription"]["keywords"] == ["Rohloff", "Ana", "Bregenz"]


def test_transcription_can_be_switched_off() -> None:
    """Then nothing shows which words interrupt, so the server decides."""
    agent = replace(MAYA, openai={"transcription": False}, interrupt="words")
    listening = OPENAI.session(replace(NEW_CALL, agent=agent))["audio"]["input"]
    assert "transcription" not in listening
    assert listening["turn_detection"]["interrupt_response"]
