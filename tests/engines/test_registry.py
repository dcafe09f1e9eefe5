"""Which engine a gateway uses, and a whole call on an engine that the gateway does not have."""

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.agents import Agent
from gateway.app import Timeouts
from gateway.audio import SILENCE_FRAME
from gateway.calls.engine_connection import EngineTimeouts
from gateway.engines.cascade import CascadeEngine
from gateway.engines.deepgram import DeepgramEngine
from gateway.engines.interface import NoEngine
from gateway.engines.registry import ENGINES, EngineDirectory
from gateway.errors import EngineRefused, SettingsError
from gateway.settings import Secret, Settings
from gateway.websocket.interface import Connector
from tests.fakes.echo_engine import BEEP, make_echo_engine
from tests.stage import (
    ADMIN,
    CALLED,
    CALLER,
    PATIENCE,
    PUBLIC_URL,
    SOUND,
    make_carrier,
    patient_client,
    running_gateway,
    until,
    until_it,
)

CONNECT = cast(Connector, None)


def directory(*agents: Agent, **fields: Any) -> EngineDirectory:
    return EngineDirectory(Settings(**fields), agents or [Agent("maya", "")], CONNECT, ENGINES)


def made(**fields: Any) -> Any:
    [guarded] = directory(**fields).by_agent["maya"]
    return guarded.engine


class Running(NoEngine):
    """Has background work, which it counts."""

    runs = 0

    async def run(self) -> None:
        self.runs += 1


async def test_engine_of_a_changed_agent_is_made_and_started() -> None:
    first, second = Running(), Running()
    makers = {"deepgram": lambda *_: first, "local": lambda *_: second}
    maya = Agent("maya", "")
    engines = EngineDirectory(Settings(deepgram_api_key=Secret("k")), [maya], CONNECT, makers)
    running = asyncio.create_task(engines.run())
    await until(lambda: first.runs == 1)
    changed = replace(maya, engine=("local", "deepgram"))
    engines.check(changed)
    assert list(engines.engines) == ["deepgram"]  # nothing was made
    engines.prepare(changed)
    await until(lambda: second.runs == 1)
    assert [one.engine for one in engines.of(changed)] == [second, first]
    assert [one.engine for one in engines.of(maya)] == [first]  # a call that began before
    assert engines.by_agent["maya"] == engines.of(changed)
    second.is_ready = False  # it loads its models; other agents go on
    assert engines.is_ready
    running.cancel()


@pytest.mark.parametrize("engine", ["deepgrm", "openai", "deepgram/nova-3+nowhere/x"])
def test_changed_engine_is_refused_as_at_the_start(engine: str) -> None:
    engines = directory(deepgram_api_key=Secret("k"))
    changed = Agent("maya", "", engine=engine)
    with pytest.raises(SettingsError) as at_the_start:
        directory(changed, deepgram_api_key=Secret("k"))
    with pytest.raises(SettingsError) as later:
        engines.check(changed)
    assert str(later.value) == str(at_the_start.value)
    assert str(later.value).startswith("gateway.toml, [agents.maya]: engine")


def test_names_of_engines_for_people() -> None:
    engines = directory(deepgram_api_key=Secret("k"), xai_api_key=Secret("k"))
    assert engines.default_names == ("deepgram",)
    assert engines.usable_names == ["deepgram", "xai", "local"]


def test_deepgram_where_its_key_is_set() -> None:
    engine = made(deepgram_api_key=Secret("k"))
    assert isinstance(engine, DeepgramEngine)
    assert (engine.name, engine.has_llm, engine.health()) == ("deepgram", True, {"engine": "deepgram"})


@pytest.mark.parametrize(
    ("engine", "own", "with_brain"),
    [
        ("deepgram", ("google", "gemini-3-flash"), None),
        ("openai", ("openai", "gpt-realtime-2.1"), ("openai", "gpt-realtime-2.1")),
        ("xai", ("xai", "grok-voice-latest"), ("xai", "grok-voice-latest")),
        ("local", None, None),
    ],
)
def test_model_that_an_engine_runs(
    engine: str, own: tuple[str, str] | None, with_brain: tuple[str, str] | None
) -> None:
    keys = {f"{name}_api_key": Secret("k") for name in ("deepgram", "openai", "xai")}
    agent = Agent("maya", "", engine=(engine,), think={"type": "google", "model": "gemini-3-flash"})
    [one] = directory(agent, **keys).of(agent)
    assert one.engine.own_model(agent) == own
    assert one.engine.own_model(replace(agent, brain=("anthropic/claude-haiku-5-5",))) == with_brain


@pytest.mark.parametrize("query", ["model=gpt-realtime-mini", "api-version=1&deployment=gpt-realtime-mini"])
def test_address_names_the_realtime_model(query: str) -> None:
    engine = made(openai_api_key=Secret("k"), openai_realtime_url=f"wss://rt.example.com/v1/realtime?{query}")
    assert engine.own_model(Agent("maya", "")) == ("openai", "gpt-realtime-mini")


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        (["deepgram", "openai", "xai"], "deepgram"),
        (["openai", "xai"], "openai"),
        (["xai"], "xai"),
    ],
)
def test_first_engine_with_a_key_is_used(keys: list[str], name: str) -> None:
    assert made(**{f"{key}_api_key": Secret("k") for key in keys}).name == name


def test_local_without_a_key() -> None:
    engine = made()
    assert isinstance(engine, CascadeEngine)
    assert (engine.has_llm, engine.is_ready) == (False, False)
    assert engine.health() == {"engine": "local", "engine_state": "loading"}


async def test_no_engine_without_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "moonshine_voice", None)  # as if it were not installed
    engine = made()
    assert isinstance(engine, NoEngine)
    assert engine.health() == {"engine": "not set up"}
    with pytest.raises(EngineRefused):
        await engine.connect(cast(Any, None), cast(Any, None))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"voice_engine": "siri"}, "VOICE_ENGINE is 'siri'; use one of: deepgram, local, openai, xai"),
        ({"voice_engine": "deepgram"}, "VOICE_ENGINE is deepgram but DEEPGRAM_API_KEY is not set"),
        ({"local_voice": "alto"}, "LOCAL_VOICE is 'alto'; write hibari, or an address"),
    ],
)
def test_mistake_is_one_line(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        made(**fields)


@pytest.mark.parametrize(
    ("engine", "problem"),
    [
        ("siri", r"gateway.toml, \[agents.maya\]: engine is 'siri'; use one of: deepgram, local, openai, xai"),
        (["local", "deepgram"], r"\[agents.maya\]: engine is deepgram but DEEPGRAM_API_KEY is not set"),
    ],
)
def test_mistake_of_an_agent_is_one_line(engine: Any, problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        directory(Agent("maya", "", engine=engine))


def test_packages_that_an_agent_needs_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "moonshine_voice", None)  # as if it were not installed
    with pytest.raises(SettingsError, match=r"\[agents.maya\]: engine is local but its packages are missing; run: "):
        directory(Agent("maya", "", engine="local"))


def test_each_agent_has_its_own_engines() -> None:
    maya, sam = Agent("maya", ""), Agent("sam", "", engine=["local", "Deepgram"])
    engines = directory(maya, sam, deepgram_api_key=Secret("k"))
    assert [engine.name for engine in engines.by_agent["maya"]] == ["deepgram"]
    assert [engine.name for engine in engines.by_agent["sam"]] == ["local", "deepgram"]
    assert engines.by_agent["sam"][1] is engines.by_agent["maya"][0]
    assert (engines.has_llm("maya"), engines.has_llm("sam")) == (True, False)


def test_unused_engines_are_not_made() -> None:
    engines = directory(Agent("maya", "", engine="local"), deepgram_api_key=Secret("k"))
    assert list(engines.engines) == ["local"]
    assert list(directory(Agent("maya", ""), deepgram_api_key=Secret("k")).engines) == ["deepgram"]


def test_calls_that_are_not_handed_over_have_the_rest_of_the_list() -> None:
    handed_over = Agent("maya", "", engine=["elevenlabs", "local"], elevenlabs_agent="agent_1")
    engines = directory(handed_over, Agent("sam", "", engine="elevenlabs"), deepgram_api_key=Secret("k"))
    names = {agent: [engine.name for engine in found] for agent, found in engines.by_agent.items()}
    assert names == {"maya": ["local"], "sam": ["deepgram"]}


async def test_whole_call_on_another_engine(tmp_path: Path) -> None:
    """Registering an engine is all it takes; VOICE_ENGINE or an agent names it."""
    (tmp_path / "gateway.toml").write_text('[agents.maya]\nengine = "echo"\n')
    async with make_carrier("twilio") as carrier:
        environ = {
            "DATA_DIR": str(tmp_path / "data"),
            "VOICE_SESSION_ARCHIVE_DIR": str(tmp_path / "archive"),
            "PUBLIC_URL": PUBLIC_URL,
            "ALLOWED_CALLERS": "*",
            "GATEWAY_ADMIN_TOKEN": ADMIN,
            "MEMORY_VECTORS": "false",
            **carrier.settings(),
        }
        engines = {**ENGINES, "echo": make_echo_engine}
        # The caller sends the silence that ends a turn; a pause between frames must not.
        timeouts = Timeouts(engine=EngineTimeouts(silence_after=PATIENCE))
        async with (
            running_gateway(environ, tmp_path, engines=engines, timeouts=timeouts) as url,
            patient_client(url) as http,
        ):
            assert (await http.get("/health")).json()["engine"] == "echo"
            carrier.gateway_url = url
            call = await carrier.dial(CALLER, CALLED)
            await call.wait_heard(len(BEEP))
            await call.until(lambda: len(call.marks_echoed) > 0)
            await call.speak(3 * SOUND + SILENCE_FRAME)
            await call.wait_heard(len(BEEP) + len(3 * SOUND))
            await call.until(lambda: len(call.marks_echoed) > 1)
            await call.hang_up()
            [archive] = await until(lambda: list((tmp_path / "archive").glob("*.txt")))
    greeting, caller, answer = archive.read_text().splitlines()
    assert greeting.startswith("AGENT: Hello, this is Maya.")
    assert (caller, answer) == ("CALLER: 480 bytes", "AGENT: I heard 480 bytes.")


async def test_next_call_has_the_engine_that_the_file_names_now(tmp_path: Path) -> None:
    async with make_carrier("twilio") as carrier:
        environ = {
            "DATA_DIR": str(tmp_path / "data"),
            "VOICE_SESSION_ARCHIVE_DIR": str(tmp_path / "archive"),
            "PUBLIC_URL": PUBLIC_URL,
            "ALLOWED_CALLERS": "*",
            "GATEWAY_ADMIN_TOKEN": ADMIN,
            "MEMORY_VECTORS": "false",
            "DEEPGRAM_API_KEY": "dg-test-key",
            **carrier.settings(),
        }
        engines = {**ENGINES, "echo": make_echo_engine}
        async with running_gateway(environ, tmp_path, engines=engines) as url, patient_client(url) as http:
            assert (await http.get("/health")).json()["engine"] == "deepgram"
            (tmp_path / "gateway.toml").write_text('[agents.maya]\nengine = "echo"\n')

            async def has_echo() -> bool:
                return "echo" in (await http.get("/health")).json().get("engines", {})

            await until_it(has_echo)
            carrier.gateway_url = url
            call = await carrier.dial(CALLER, CALLED)
            await call.wait_heard(len(BEEP))
            await call.hang_up()
