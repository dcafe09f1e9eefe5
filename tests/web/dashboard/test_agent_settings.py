from types import SimpleNamespace

import pytest

from gateway.agents import AgentDirectory
from gateway.session import TrustLevel
from gateway.settings import Secret
from gateway.web.dashboard import agent_settings
from gateway.web.dashboard.agent_settings import shown


@pytest.fixture
def agent(tmp_path):
    return lambda **table: AgentDirectory({"maya": table}, tmp_path).get("maya")


HEADERS = {"X-Shop": "hidden", "X-Desk": "env:DESK"}


def engines(*names):
    own = tuple(SimpleNamespace(name=name) for name in names)
    return SimpleNamespace(by_agent={"maya": own}, has_llm=lambda agent: "local" not in names)


def values(agent, table, *names):
    return {row.key: (row.value, row.source) for row in agent_settings.rows(agent, table, engines(*names))}


def test_rows_say_where_a_value_is_from(agent):
    table = {"language": "de", "numbers": ["+12025550100"], "memory": {"retention_days": 30}}
    found = values(agent(**table), table, "deepgram", "local")
    assert found["language"] == ("de", "gateway.toml")
    assert "engine" not in found  # the form has it
    assert found["patience"] == ("normal", "default")
    assert found["memory.retention_days"] == ("30", "gateway.toml")
    assert found["silence"] == ("ask_after: 20, hang_up_after: 60", "default")


@pytest.mark.parametrize(
    ("engine", "shown"), [("deepgram", "the engine's own"), ("local", "first with a key, else the script")]
)
def test_says_what_answers_without_brain(agent, engine, shown):
    assert values(agent(), {}, engine)["brain"] == (shown, "default")


def test_secrets_are_masked(agent):
    table = {
        "brain": {"url": "https://user:word@llm.example.com/v1?key=abc", "model": "m", "api_key": "sk-secret"},
        "memory": {"trust": {"pin": "4711"}},
        "webhook": "https://hooks.example.com/services/T0/B0/secret",
        "think": {"type": "open_ai", "model": "gpt", "endpoint": {"headers": {"Authorization": "Bearer sk-1"}}},
        "tools": [{"mcp": "https://crm.example.com/mcp/secret-path", "api_key_env": "CRM_TOKEN", "headers": HEADERS}],
    }
    text = str(values(agent(**table), table, "deepgram"))
    for secret in ("word", "abc", "sk-secret", "4711", "T0", "sk-1", "secret-path", "hidden"):
        assert secret not in text
    assert "https://hooks.example.com/…" in text and "CRM_TOKEN" in text and "pin: ••••" in text
    assert "X-Shop: ••••, X-Desk: env:DESK" in text


def test_unset_keys_are_listed(agent):
    names = agent_settings.unset(agent(filler="typing"), {"filler": "typing"})
    assert "consent" in names and "filler" not in names and "prompt" not in names and "language" not in names


@pytest.mark.parametrize(
    "table, engine, name, why",
    [
        ({}, "deepgram", "aura-2-thalia-en", ""),
        ({"voice": "cedar"}, "openai", "cedar", ""),
        ({"openai": {"voice": "marin"}}, "openai", "marin", "It is set by voice in openai."),
        ({"voice": {"model": "aura-2-luna-en"}}, "deepgram", "aura-2-luna-en", "It is a table in gateway.toml."),
        ({}, "local", "local engine's own", "The engine local has a voice of its own."),
        ({}, "deepgram/nova+cartesia/voice-1", "cartesia/voice-1", "It is set by speak in engine."),
    ],
)
def test_voice_is_that_of_the_first_engine(agent, table, engine, name, why):
    assert agent_settings.voice_of(agent(**table), table, engines(engine)) == agent_settings.VoiceSetting(name, why)


@pytest.mark.parametrize(
    "value, text",
    [
        (None, "–"),
        ((), "–"),
        (True, "yes"),
        (2.5, "2.5"),
        (["a", 1], "a, 1"),
        ({"a": {"b": False}}, "a: b: no"),
        (frozenset({"b", "a"}), "a, b"),
        (Secret("x"), "••••"),
        (TrustLevel.SUMMARIES, "summaries"),
        ("see https://example.com for more", "see https://example.com for more"),
    ],
)
def test_values_are_text(value, text):
    assert shown(value) == text
