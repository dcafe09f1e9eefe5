"""Which recogniser and voice `engine = { listen, speak }` names, and what is said about mistakes."""

import pytest

from gateway.agents import AgentDirectory
from gateway.engines.local import LocalSpeech
from gateway.engines.registry import ENGINES, EngineDirectory
from gateway.engines.streaming import StreamingRecogniserService, StreamingVoiceService
from gateway.errors import SettingsError
from gateway.settings import Secret, Settings

KEYS = {f"{name}_api_key": Secret("k") for name in ("deepgram", "openai", "elevenlabs", "cartesia")}
WHERE = "gateway.toml, [agents.maya]: engine"


@pytest.fixture
def make(tmp_path):
    def make(*entries, keys=KEYS, **agent):
        (tmp_path / "prompts").mkdir(exist_ok=True)
        (tmp_path / "prompts" / "maya.md").write_text("You are Maya.")
        tables = {"maya": {"engine": list(entries), **agent}}
        directory = EngineDirectory(Settings(**keys), AgentDirectory(tables, tmp_path), None, ENGINES)
        return tuple(guarded.engine for guarded in directory.by_agent["maya"])

    return make


@pytest.mark.parametrize(
    "listen, url",
    [
        ("deepgram/nova-3", "wss://api.deepgram.com/v1/listen?model=nova-3&language=en&"),
        ("deepgram/flux-general-en", "wss://api.deepgram.com/v2/listen?model=flux-general-en&"),
        ("openai/gpt-transcribe", "wss://api.openai.com/v1/realtime?intent=transcription"),
    ],
)
def test_recogniser_is_named_by_service_and_model(make, listen, url):
    [engine] = make({"listen": listen, "speak": "elevenlabs/Rachel"})
    assert engine.name == f"{listen}+elevenlabs/Rachel"
    assert (engine.has_llm, engine.is_ready, engine.health()) == (False, True, {"engine": engine.name})
    assert isinstance(engine.recogniser, StreamingRecogniserService)
    assert engine.recogniser.endpoint.url.startswith(url)
    assert "k" not in repr(engine.recogniser.endpoint.credentials)
    engine.recogniser.make_codec()


@pytest.mark.parametrize(
    "speak, url",
    [
        ("deepgram/flux-kit-en", "wss://api.deepgram.com/v2/speak?model=flux-kit-en&encoding=mulaw&sample_rate=8000"),
        ("deepgram/aura-2-thalia-en", "wss://api.deepgram.com/v1/speak?model=aura-2-thalia-en&"),
        (
            "elevenlabs/Rachel",
            "wss://api.elevenlabs.io/v1/text-to-speech/Rachel/multi-stream-input?model_id=eleven_flash_v2_5&",
        ),
        ("elevenlabs/Rachel/eleven_v3", "wss://api.elevenlabs.io/v1/text-to-speech/Rachel/multi-stream-input?"),
        ("cartesia/the-id", "wss://api.cartesia.ai/tts/websocket?cartesia_version="),
        ("cartesia/the-id/sonic-3", "wss://api.cartesia.ai/tts/websocket?cartesia_version="),
    ],
)
async def test_voice_is_named_by_service_voice_and_model(make, speak, url):
    [engine] = make({"listen": "deepgram/nova-3", "speak": speak})
    assert isinstance(engine.voice, StreamingVoiceService)
    assert engine.voice.endpoint.url.startswith(url)
    engine.voice.make_codec()


def test_language_and_patience_of_the_agent_are_used(make):
    [engine] = make({"listen": "deepgram/nova-3", "speak": "elevenlabs/Rachel"}, language="de", patience="long")
    assert "language=de" in engine.recogniser.endpoint.url
    assert "language_code=de" in engine.voice.endpoint.url
    assert "endpointing=800" in engine.recogniser.endpoint.url
    assert engine.name == "deepgram/nova-3+elevenlabs/Rachel de long"


def test_local_parts_share_one_process(make):
    local, listens, speaks = make(
        "local",
        {"listen": "local", "speak": "cartesia/id"},
        {"listen": "deepgram/nova-3", "speak": "local"},
        keys=KEYS,
    )
    assert isinstance(listens.recogniser, LocalSpeech)
    assert local.recogniser is local.voice is listens.recogniser is speaks.voice


def test_equal_engines_are_made_once(make):
    table = {"listen": "deepgram/nova-3", "speak": "cartesia/id"}
    first, second = make(table, "deepgram", dict(table))
    assert (first.name, second.name) == ("deepgram/nova-3+cartesia/id", "deepgram")


@pytest.mark.parametrize(
    "table, problem",
    [
        ({"listen": "siri", "speak": "local"}, ".listen is 'siri'; write local, deepgram/MODEL or openai/MODEL"),
        ({"listen": "deepgram/", "speak": "local"}, ".listen is 'deepgram/'; write local"),
        ({"listen": "local/x", "speak": "local"}, ".listen is 'local/x'; write local"),
        ({"listen": "local", "speak": "openai/alloy"}, ".speak is 'openai/alloy'; write local, deepgram/VOICE"),
        ({"listen": "openai/gpt-live-transcribe", "speak": "local"}, ".listen: gpt-live-transcribe detects no turns"),
        ({"listen": "local"}, " needs listen and speak, like listen = "),
        ({"listen": "local", "speak": "local", "voice": "x"}, " needs listen and speak, like listen = "),
        ({"listen": "local", "speak": 7}, " needs listen and speak, like listen = "),
    ],
)
def test_mistakes_are_named_with_the_agent(make, table, problem):
    with pytest.raises(SettingsError) as raised:
        make(table)
    assert str(raised.value).startswith(f"{WHERE}{problem}")


@pytest.mark.parametrize(
    "listen, speak, key",
    [
        ("deepgram/nova-3", "local", "listen 'deepgram/nova-3' needs DEEPGRAM_API_KEY"),
        ("openai/gpt-transcribe", "local", "listen 'openai/gpt-transcribe' needs OPENAI_API_KEY"),
        ("local", "deepgram/aura-2-thalia-en", "speak 'deepgram/aura-2-thalia-en' needs DEEPGRAM_API_KEY"),
        ("local", "elevenlabs/Rachel", "speak 'elevenlabs/Rachel' needs ELEVENLABS_API_KEY"),
        ("local", "cartesia/id", "speak 'cartesia/id' needs CARTESIA_API_KEY"),
    ],
)
def test_missing_key_is_named_with_the_agent(make, listen, speak, key):
    with pytest.raises(SettingsError) as raised:
        make({"listen": listen, "speak": speak}, keys={})
    assert str(raised.value) == f"{WHERE}.{key}; set it in the environment or in .env"


def test_think_of_the_engine_is_the_brain(tmp_path):
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "maya.md").write_text("You are Maya.")
    engine = {"listen": "local", "speak": "local", "think": "anthropic/claude-haiku-4-5"}
    [agent] = AgentDirectory({"maya": {"engine": engine}}, tmp_path)
    assert (agent.brain, agent.engine_thinks) == (("anthropic/claude-haiku-4-5",), False)
    assert agent.engines == ("local+local",)
    for tables in ({"engine": engine, "brain": "script"}, {"engine": [engine, {**engine, "think": "script"}]}):
        with pytest.raises(SettingsError, match="engine.think is the agent's brain; write it once, or as brain"):
            AgentDirectory({"maya": tables}, tmp_path)
