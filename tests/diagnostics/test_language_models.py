from pathlib import Path

import pytest

from tests.diagnostics.conftest import NO_MODELS, Doctor
from tests.fakes.llm import FakeLlm


@pytest.mark.parametrize(
    ("agent", "found"),
    [
        ("main", ("ok", "{host} answers and accepts the key")),
        ("voice", ("problem", "{host} has no agent openclaw/voice correct brain; openclaw agents list shows them")),
    ],
)
async def test_openclaw_has_the_agents(doctor: Doctor, tmp_path: Path, agent: str, found: tuple[str, str]) -> None:
    (tmp_path / "gateway.toml").write_text(f'[agents.maya]\nbrain = "openclaw/{agent}"\n')
    async with FakeLlm(profile="openclaw-new") as llm:
        _, results = await doctor(OPENCLAW_GATEWAY_URL=llm.url, OPENCLAW_GATEWAY_TOKEN="test-key", **NO_MODELS)
    host = llm.url.removeprefix("http://")
    assert results["openclaw"] == (found[0], found[1].format(host=host))


async def test_openclaw_without_chat_completions(doctor: Doctor) -> None:
    async with FakeLlm(profile="openclaw-old") as llm:  # it has no list of models: the same answer as one that is off
        _, results = await doctor(OPENCLAW_GATEWAY_URL=llm.url, OPENCLAW_GATEWAY_TOKEN="test-key", **NO_MODELS)
    assert results["openclaw"][0] == "problem"
    assert "openclaw config set gateway.http.endpoints.chatCompletions.enabled true" in results["openclaw"][1]


async def test_brain_is_asked_once_and_its_cost_shown(doctor: Doctor, tmp_path: Path) -> None:
    async with FakeLlm() as llm:
        brain = f'brain = {{ url = "{llm.url}/v1", model = "llama3.2", name = "ollama", api_key = "test-key" }}'
        (tmp_path / "gateway.toml").write_text(f"[agents.maya]\n{brain}\n[agents.tom]\nprompt = 'maya.md'\n{brain}\n")
        (tmp_path / "maya.md").write_text("{{memory}}")
        code, found = await doctor(**NO_MODELS)
        requests = llm.requests
    state, words = found["brain of maya, tom"]
    assert state == "ok" and words.startswith("ollama llama3.2 answered in ")
    assert "(cost: one short request, " in words
    [request] = requests
    assert request.body["max_completion_tokens"] == 16
    assert found["summaries"] == ("ok", "written by the language model of maya, tom")


@pytest.mark.parametrize(
    ("key", "found"),
    [
        ("problem", "ollama answered 401 correct the key of brain in gateway.toml"),
        ("", "ollama answered 404 correct brain in gateway.toml, or try again later"),
    ],
)
async def test_brain_that_refuses_is_named(doctor: Doctor, tmp_path: Path, key: str, found: str) -> None:
    async with FakeLlm() as llm:
        path = "v1" if key else "gone"
        brain = f'brain = {{ url = "{llm.url}/{path}", model = "llama3.2", name = "ollama", api_key = "{key}" }}'
        (tmp_path / "gateway.toml").write_text(f"[agents.maya]\n{brain}\n")
        code, results = await doctor(**NO_MODELS)
        where = f"ollama at {llm.url}/{path}/chat/completions"
    assert code == 1
    assert results["brain of maya"] == ("problem", f"ollama llama3.2: {found.replace('ollama', where, 1)}")


async def test_key_of_a_refusing_provider_is_named(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "gateway.toml").write_text('[agents.maya]\nbrain = "anthropic"\n')
    async with FakeLlm() as llm:
        _, found = await doctor(ANTHROPIC_API_KEY="wrong", ANTHROPIC_BASE_URL=llm.url, **NO_MODELS)
    assert found["brain of maya"][1].endswith(": anthropic answered 401 correct ANTHROPIC_API_KEY")


async def test_server_of_summaries_is_asked(doctor: Doctor) -> None:
    async with FakeLlm() as llm:
        summaries = {"SUMMARY_PROVIDER": f"{llm.url}/v1", "SUMMARY_MODEL": "llama3.2"}
        _, found = await doctor(**summaries, SUMMARY_API_KEY="test-key", **NO_MODELS)
        [request] = llm.requests
        _, refused = await doctor(**summaries, SUMMARY_API_KEY="wrong", **NO_MODELS)
    assert (found["summaries"][0], request.body["model"]) == ("ok", "llama3.2")
    assert refused["summaries"][0] == "problem"
    assert refused["summaries"][1].endswith(" answered 401 correct SUMMARY_API_KEY")
    _, away = await doctor(**summaries | {"SUMMARY_PROVIDER": "http://127.0.0.1:1/v1"}, **NO_MODELS)
    problem = "127.0.0.1 at http://127.0.0.1:1/v1/chat/completions can't be reached: connection refused"
    assert away["summaries"] == ("problem", f"127.0.0.1 llama3.2: {problem}; start it, or correct SUMMARY_PROVIDER")


async def test_named_model_of_a_provider_is_asked(doctor: Doctor) -> None:
    """A misspelt model would otherwise be noticed in the first summary."""
    async with FakeLlm(profile="xai") as llm:
        keys = {"XAI_API_KEY": "test-key", "XAI_API_URL": f"{llm.url}/v1"}
        _, found = await doctor(SUMMARY_MODEL="grok-4.33", **keys, **NO_MODELS)
    assert found["summaries"][0] == "problem"
    assert found["summaries"][1].endswith(" correct SUMMARY_MODEL, or try again later")


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ('text_agent = "openclaw/voice"', "openclaw/voice correct text_agent"),
        ('brain = "openclaw/MAIN"', ""),
        ('brain = "openclaw"', ""),
    ],
)
async def test_every_openclaw_agent_is_looked_up(doctor: Doctor, tmp_path: Path, setting: str, text: str) -> None:
    (tmp_path / "gateway.toml").write_text(f"[agents.maya]\n{setting}\n")
    async with FakeLlm(profile="openclaw-new") as llm:
        _, found = await doctor(OPENCLAW_GATEWAY_URL=llm.url, OPENCLAW_GATEWAY_TOKEN="test-key", **NO_MODELS)
    assert found["openclaw"][0] == ("problem" if text else "ok")
    assert text in found["openclaw"][1]
