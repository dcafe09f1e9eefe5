import pytest

from gateway.errors import SettingsError
from gateway.llm.accounts import LlmAccounts, model_address
from gateway.settings import Secret

OLLAMA = {"url": "http://127.0.0.1:11434/v1", "model": "qwen3"}
KNOWN = "anthropic/MODEL, xai/MODEL, openai/MODEL, openclaw/AGENT, script, or a table with url and model"
NEEDS = 'needs url and model, like url = "http://127.0.0.1:11434/v1", model = "qwen3"'


@pytest.mark.parametrize(
    "entry, problem",
    [
        ("gpt-9", f" is 'gpt-9'; write {KNOWN}"),
        ("", f" is ''; write {KNOWN}"),
        ("anthropic/x", " 'anthropic/x' needs ANTHROPIC_API_KEY; set it in the environment or in .env"),
        ("xai", " 'xai' needs XAI_API_KEY; set it in the environment or in .env"),
        ("openai/x", " 'openai/x' needs OPENAI_API_KEY; set it in the environment or in .env"),
        ("openclaw", " 'openclaw' needs OPENCLAW_GATEWAY_URL; set it in the environment or in .env"),
        ({**OLLAMA, "api_key_env": "MY_KEY"}, " needs MY_KEY; set it in the environment or in .env"),
        ({"model": "qwen3"}, f" {NEEDS}"),
        ({**OLLAMA, "url": "127.0.0.1"}, f" {NEEDS}"),
        ({**OLLAMA, "model": " "}, f" {NEEDS}"),
        ({**OLLAMA, "model": 3}, ".model must be text in quotes"),
        ({**OLLAMA, "options": "fast"}, ".options must be a table"),
        (
            {**OLLAMA, "key": "sk-secret"},
            ": unknown key key; known are api_key, api_key_env, model, name, options, url",
        ),
    ],
)
def test_mistake_gets_one_line(entry, problem):
    with pytest.raises(SettingsError) as raised:
        model_address(entry, LlmAccounts(), "gateway.toml, [agents.maya]: brain")
    assert str(raised.value) == f"gateway.toml, [agents.maya]: brain{problem}"


def test_openclaw_needs_its_token():
    with pytest.raises(SettingsError, match="needs OPENCLAW_GATEWAY_TOKEN"):
        model_address("openclaw", LlmAccounts(openclaw_gateway_url="http://127.0.0.1:1"), "brain")


def test_accounts_show_no_secret():
    assert "sk-secret" not in repr(LlmAccounts(xai_api_key=Secret("sk-secret"), keys={"MY_KEY": Secret("sk-secret")}))


def test_accounts_know_which_providers_have_a_key():
    key = Secret("sk-secret")
    assert LlmAccounts().with_keys == []
    assert LlmAccounts(openai_api_key=key, anthropic_api_key=key).with_keys == ["anthropic", "openai"]
