import sys
from pathlib import Path

import pytest

from tests.diagnostics.conftest import NO_MODELS, Doctor
from tests.fakes.audio_server import FakeAudioServer
from tests.fakes.deepgram import FakeDeepgram
from tests.fakes.openai_realtime import FakeRealtime


async def test_speech_servers_are_asked(doctor: Doctor) -> None:
    with FakeAudioServer() as server:
        _, found = await doctor(LOCAL_RECOGNISER=server.url, LOCAL_VOICE="http://127.0.0.1:1/v1#kokoro/af_heart")
    assert found["LOCAL_RECOGNISER"] == (
        "problem",
        f"{server.url.split('/')[2]} rejects the key correct LOCAL_SPEECH_API_KEY",
    )
    assert found["LOCAL_VOICE"] == (
        "problem",
        "127.0.0.1:1 unreachable (connection refused) start it, or correct LOCAL_VOICE",
    )


async def test_options_of_a_realtime_engine_are_checked(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "gateway.toml").write_text("[agents.maya.openai]\nsession = { temprature = 0.7 }\n")
    async with FakeRealtime("sk-test-key") as engine:
        _, found = await doctor(**engine.settings(), OPENAI_BASE_URL="http://127.0.0.1:1/v1")
        assert found["engine"] == ("ok", f"{engine.url.split('/')[2]} answers and accepts the key")
    problem = "openai does not take session.temprature: unknown correct the agent in gateway.toml"
    assert found["openai of maya"] == ("problem", problem)


async def test_missing_local_engine_is_told(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "moonshine_voice", None)  # as if it were not installed
    _, found = await doctor()
    state, words = found["engine"]
    assert state == "problem" and words.startswith("no voice engine, so calls are rejected; set DEEPGRAM_API_KEY, ")
    assert words.endswith("scripts/install --no-dev --extra local")


async def test_unknown_voice_is_wrong(doctor: Doctor) -> None:
    _, found = await doctor(LOCAL_RECOGNISER="http://127.0.0.1:1/v1#whisper-1", LOCAL_VOICE="nobody")
    assert found["settings"][0] == "problem" and found["settings"][1].startswith("LOCAL_VOICE is 'nobody'")


async def test_misspelt_voice_is_found_without_an_sdk(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "deepgram", None)  # as if it were not installed
    (tmp_path / "gateway.toml").write_text('[agents.maya]\nvoice = "aura-2-talia-en"\n')
    async with FakeDeepgram(api_key="dg-test-key") as engine:
        _, found = await doctor(DEEPGRAM_API_KEY="dg-test-key", DEEPGRAM_AGENT_URL=engine.url)
    assert found["deepgram of maya"] == (
        "warning",
        "voice aura-2-talia-en is not in the list for deepgram; did you mean aura-2-thalia-en? "
        "correct the agent in gateway.toml",
    )


async def test_voice_without_a_list_is_not_checked(doctor: Doctor, tmp_path: Path) -> None:
    speak = '[agents.maya]\nengine = { listen = "deepgram/flux-general-en", speak = "elevenlabs/Rachel" }\n'
    (tmp_path / "gateway.toml").write_text(speak)
    _, found = await doctor(ELEVENLABS_API_KEY="a-key", ELEVENLABS_API_URL="http://127.0.0.1:1", **NO_MODELS)
    check = "deepgram/flux-general-en+elevenlabs/Rachel of maya"
    assert found[check] == ("off", "voice Rachel not checked; there is no list for elevenlabs")
