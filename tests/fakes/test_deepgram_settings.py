"""What the simulated Voice Agent takes and refuses, with the SDK's models as the second opinion."""

import copy

import pytest
from deepgram.agent.v1.types.agent_v1settings import AgentV1Settings

from tests.fakes.deepgram_client import SETTINGS
from tests.fakes.deepgram_settings import ClientMistake, check_message, parse

FLUX_VOICE = {"provider": {"type": "deepgram", "version": "v2", "model": "flux-kit-en"}}
ENDPOINT = {"url": "https://voice.example.org/v1/chat/completions", "headers": {"authorization": "Bearer t"}}
REMOVED = object()


def changed(path, value):
    """The good settings with one thing changed, or removed."""
    settings = copy.deepcopy(SETTINGS)
    *parents, name = path.split(".")
    block = settings
    for parent in parents:
        block = block[parent]
    block[name] = value
    if value is REMOVED:
        del block[name]
    return settings


@pytest.mark.parametrize(
    "settings",
    [
        SETTINGS,
        changed("audio", {}) | {"agent": {}},
        changed("agent.think.endpoint", ENDPOINT),
        changed("agent.think", [{**SETTINGS["agent"]["think"], "endpoint": ENDPOINT}, SETTINGS["agent"]["think"]]),
        changed("agent.speak", FLUX_VOICE),
        changed("agent.speak", [FLUX_VOICE, SETTINGS["agent"]["speak"]]),
        changed("agent.listen.provider", {"type": "deepgram", "version": "v1", "model": "nova-3", "language": "en"}),
        changed("agent.think.provider", {"type": "anthropic", "model": "claude-haiku-4-5", "version": "v1"}),
    ],
)
def test_good_settings_please_both(settings):
    assert check_message(settings) == []
    assert AgentV1Settings.model_validate(settings).dict() == settings


@pytest.mark.parametrize(
    ("path", "value", "code"),
    [
        ("audio", REMOVED, "UNPARSABLE_CLIENT_MESSAGE"),
        ("agent", REMOVED, "UNPARSABLE_CLIENT_MESSAGE"),
        ("agent", "agent-123", "INVALID_AGENT_ID"),
        ("settings", {"flags": {"history": False}}, "UNPARSABLE_CLIENT_MESSAGE"),
        ("tags", "gateway", "UNPARSABLE_CLIENT_MESSAGE"),
        ("agent.language", "en", "UNPARSABLE_CLIENT_MESSAGE"),
        ("agent.think_live", {"provider": {}}, "UNPARSABLE_CLIENT_MESSAGE"),
        ("agent.greeting", None, "UNPARSABLE_CLIENT_MESSAGE"),
        ("agent.context", {"messages": [{"type": "History", "role": "system", "content": "x"}]}, "INVALID_SETTINGS"),
        ("audio.input.encoding", "ulaw", "INVALID_SETTINGS"),
        ("audio.input.sample_rate", REMOVED, "UNPARSABLE_CLIENT_MESSAGE"),
        ("audio.input.sample_rate", "8000", "UNPARSABLE_CLIENT_MESSAGE"),
        ("audio.output.bitrate", 48000, "INVALID_SETTINGS"),
        ("agent.speak", REMOVED, None),
        ("agent.listen.provider.version", REMOVED, "INVALID_SETTINGS"),
        ("agent.listen.provider.version", "v1", "INVALID_SETTINGS"),
        ("agent.listen.provider.version", "v3", "INVALID_SETTINGS"),
        ("agent.listen.provider.model", "nova-3", "INVALID_SETTINGS"),
        ("agent.listen.provider.language", "en", "UNPARSABLE_CLIENT_MESSAGE"),
        ("agent.listen.provider.language_hints", ["en"], "INVALID_SETTINGS"),
        ("agent.listen.provider.eot_threshold", 0.4, "INVALID_SETTINGS"),
        ("agent.listen.provider.eager_eot_threshold", 0.85, "INVALID_SETTINGS"),
        ("agent.listen.provider.eot_timeout_ms", 499, "INVALID_SETTINGS"),
        ("agent.think.provider.model", REMOVED, "UNPARSABLE_CLIENT_MESSAGE"),
        ("agent.think.provider.type", "openai", "INVALID_SETTINGS"),
        ("agent.think.provider.type", "groq", "INVALID_SETTINGS"),
        ("agent.think.provider.temperature", 2.1, "INVALID_SETTINGS"),
        ("agent.think.context_length", "max", "INVALID_SETTINGS"),
        ("agent.think.endpoint", {"url": "https://voice.example.org"}, "UNPARSABLE_CLIENT_MESSAGE"),
        ("agent.think.functions", [{"description": "nameless"}], "UNPARSABLE_CLIENT_MESSAGE"),
        ("agent.think.functions", [{"name": "f", "parameters": {}}], "UNPARSABLE_CLIENT_MESSAGE"),
        ("agent.think.functions", [{"name": "f", "initial_agent_filler": True}], "INVALID_SETTINGS"),
        ("agent.speak.provider.model", "thalia", "FAILED_TO_SPEAK"),
        ("agent.speak.provider.model", "flux-kit-en", "FAILED_TO_SPEAK"),
        ("agent.speak.provider.speed", 1.6, "FAILED_TO_SPEAK"),
        ("agent.speak.provider.language", "en", "UNPARSABLE_CLIENT_MESSAGE"),
        ("agent.speak.provider", {"type": "eleven_labs", "model_id": "eleven_turbo_v2_5"}, "INVALID_SETTINGS"),
    ],
)
def test_each_mistake_has_its_code(path, value, code):
    if code is None:
        assert check_message(changed(path, value)) == []
        return
    with pytest.raises(ClientMistake) as raised:
        check_message(changed(path, value))
    assert raised.value.code == code


@pytest.mark.parametrize(
    "output",
    [
        {"encoding": "mp3", "sample_rate": 22050},
        {"encoding": "mulaw", "sample_rate": 24000},
        {"encoding": "linear16", "sample_rate": 24000, "container": "wav"},
    ],
)
def test_flux_voices_limit_the_output(output):
    settings = changed("agent.speak", FLUX_VOICE)
    settings["audio"]["output"] = output
    with pytest.raises(ClientMistake) as raised:
        check_message(settings)
    assert raised.value.code == "INVALID_SETTINGS"


def test_broken_voice_in_chain_warns():
    chain = [{"provider": {"type": "deepgram", "model": "nobody"}}, SETTINGS["agent"]["speak"]]
    assert check_message(changed("agent.speak", chain)) == ["SPEAK_REQUEST_FAILED"]


def test_description_names_the_field():
    with pytest.raises(ClientMistake) as raised:
        check_message(changed("agent.listen.provider.eot_threshold", "high"))
    assert raised.value.description == "Settings.agent.listen.provider.eot_threshold is not a number"


@pytest.mark.parametrize(
    "message",
    [
        {"type": "UpdateInstructions", "instructions": "x"},
        {"type": "UpdatePrompt"},
        {"type": "UpdateThink_Live", "think_live": {}},
        {"type": "InjectAgentMessage", "content": "hello"},
        {"type": "InjectAgentMessage", "is_dynamic": True},
        {"type": "FunctionCallResponse", "id": "fc_1", "name": "f", "content": {"state": "ready"}},
        {"type": "KeepAlive", "content": ""},
    ],
)
def test_unparsable_messages_are_refused(message):
    with pytest.raises(ClientMistake) as raised:
        check_message(message)
    assert raised.value.code == "UNPARSABLE_CLIENT_MESSAGE"


@pytest.mark.parametrize("frame", ["", "hello", "[]", "{}", '{"type": 1}'])
def test_text_without_type_is_refused(frame):
    with pytest.raises(ClientMistake) as raised:
        parse(frame)
    assert raised.value.code == "UNPARSABLE_CLIENT_MESSAGE"
