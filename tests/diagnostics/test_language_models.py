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


async def test_brain_that_refuses_is_named(doctor: Doctor, tmp_path: Path) -> None:
    async with FakeLlm() as llm:
        brain = f'brain = {{ url = "{llm.url}/v1", model = "llama3.2", name = "ollama", api_key = "problem" }}'
        (tmp_path / "gateway.toml").write_text(f"[agents.maya]\n{brain}\n")
        code, found = await doctor(**NO_MODELS)
    assert code == 1
    todo = "correct brain in gateway.toml, its key or its address"
    assert found["brain of maya"] == ("problem", f"ollama llama3.2: ollama answered 401 {todo}")


async def test_server_of_summaries_is_asked(doctor: Doctor) -> None:
    summaries = {"SUMMARY_PROVIDER": "http://127.0.0.1:1/v1", "SUMMARY_MODEL": "llama3.2"}
    _, found = await doctor(**summaries, **NO_MODELS)
    assert found["summaries"] == (
        "problem",
        "127.0.0.1:1 unreachable (ConnectError) start it, or correct SUMMARY_PROVIDER",
    )
