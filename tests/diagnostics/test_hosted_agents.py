import asyncio
from pathlib import Path

import pytest

from gateway.cli.main import main
from tests.diagnostics.conftest import NO_MODELS, Doctor
from tests.fakes.elevenlabs import AGENT_ID, API_KEY, FakeElevenLabs


async def test_hosted_agents_are_checked(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.md").write_text("{{memory}}")
    agent = f'[agents.maya]\nprompt = "p.md"\nelevenlabs_agent = "{AGENT_ID}"\nengine = "elevenlabs"\n'
    (tmp_path / "gateway.toml").write_text(agent)
    async with FakeElevenLabs().running() as elevenlabs:
        account = elevenlabs.account
        environ = {"ELEVENLABS_API_KEY": API_KEY, "ELEVENLABS_API_URL": elevenlabs.url, **NO_MODELS}
        environ |= {"PUBLIC_URL": "https://voice.invalid"}

        async def checked(**more: str) -> list[tuple[str, str]]:
            _, found = await doctor(**environ, **more)
            return [result for check, result in found.items() if check.startswith("elevenlabs")]

        [(state, words)] = await checked()
        assert state == "problem" and words.startswith(
            "not set: ELEVENLABS_INITIATION_SECRET, ELEVENLABS_WEBHOOK_SECRET"
        )
        assert await asyncio.to_thread(main, ["setup", "elevenlabs"]) == 0
        capsys.readouterr()
        assert await checked() == [("ok", "connected both ways, and its prompt uses memory")]

        settings, [webhook] = account.agents[AGENT_ID], account.webhooks.values()
        webhook |= {"is_auto_disabled": True, "most_recent_failure_error_code": 503}
        assert "switched off after failures, the last with status 503" in (await checked())[0][1]
        webhook |= {"is_auto_disabled": False, "most_recent_failure_error_code": 401}
        assert (await checked())[0][0] == "warning"
        webhook |= {"most_recent_failure_error_code": None}
        settings["conversation_config"]["tts"]["agent_output_audio_format"] = "pcm_16000"
        assert "needs ulaw_8000 both ways" in (await checked())[0][1]
        settings["conversation_config"]["tts"]["agent_output_audio_format"] = "ulaw_8000"
        settings["conversation_config"]["agent"]["prompt"]["prompt"] = "You are Maya."
        assert (await checked())[0][1].endswith("write {{memory}} into its prompt at ElevenLabs")
        settings["platform_settings"]["workspace_overrides"]["webhooks"]["post_call_webhook_id"] = None
        settings["conversation_config"]["agent"]["prompt"]["prompt"] = "{{ memory }}"
        assert "its calls are not remembered" in (await checked())[0][1]
        account.agents.clear()
        assert "ElevenLabs has no agent" in (await checked())[0][1]
        monkeypatch.setenv("ELEVENLABS_API_KEY", "problem")
        environ["ELEVENLABS_API_KEY"] = "problem"
        assert "rejects the key correct ELEVENLABS_API_KEY" in (await checked())[0][1]


async def test_language_model_of_a_hosted_agent_is_checked(
    doctor: Doctor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.md").write_text("{{memory}}")
    brain = 'brain = { url = "http://127.0.0.1:1/v1", model = "llama3.2" }'
    agent = f'[agents.maya]\nprompt = "p.md"\nelevenlabs_agent = "{AGENT_ID}"\n{brain}\n'
    (tmp_path / "gateway.toml").write_text(agent)
    async with FakeElevenLabs().running() as elevenlabs:
        environ = {"ELEVENLABS_API_KEY": API_KEY, "ELEVENLABS_API_URL": elevenlabs.url, **NO_MODELS}

        async def checked(**more: str) -> tuple[str, str]:
            _, found = await doctor(**environ, **{"PUBLIC_URL": "https://voice.invalid", **more})
            [result] = [result for check, result in found.items() if check.startswith("elevenlabs")]
            return result

        await checked()  # sets the environment for the set-up
        assert await asyncio.to_thread(main, ["setup", "elevenlabs", "--llm"]) == 0
        capsys.readouterr()
        assert (await checked())[0] == "ok"

        config = elevenlabs.account.agents[AGENT_ID]["conversation_config"]
        config["turn"]["speculative_turn"] = True
        state, words = await checked()
        assert state == "warning" and words.endswith("run: gateway setup elevenlabs --llm")
        custom = config["agent"]["prompt"]["custom_llm"]
        config["turn"]["speculative_turn"], headers = False, custom.pop("request_headers")
        assert "it asks for answers without the caller: it sends no X-Call-Token" in (await checked())[1]
        custom["request_headers"] = headers
        [name] = [one["name"] for one in elevenlabs.account.secrets.values() if "_llm_" in one["name"]]
        assert await asyncio.to_thread(main, ["token", "revoke", name.removeprefix("voice_gateway_llm_")]) == 0
        capsys.readouterr()
        assert "the API token with which it asks for answers is revoked" in (await checked())[1]
        key = custom.pop("api_key")
        assert "the API token with which it asks for answers is missing" in (await checked())[1]
        custom |= {"api_key": key, "url": "https://old.example.com/elevenlabs/llm"}
        assert await asyncio.to_thread(main, ["setup", "elevenlabs", "--llm"]) == 0
        capsys.readouterr()
        assert (await checked())[0] == "ok"
        custom = elevenlabs.account.agents[AGENT_ID]["conversation_config"]["agent"]["prompt"]["custom_llm"]
        assert custom["url"] == "https://voice.invalid/elevenlabs/llm"
        custom["url"] = "https://old.example.com/elevenlabs/llm"
        assert "it asks for answers at old.example.com" in (await checked())[1]
        custom["url"] = "https://llm.example.com/v1"  # another service's, which is the owner's affair
        assert (await checked())[0] == "ok"
