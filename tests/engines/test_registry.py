"""Which engine a gateway uses, and a whole call on an engine that the gateway does not have."""

import sys
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.app import Timeouts
from gateway.audio import SILENCE_FRAME
from gateway.calls.engine_connection import EngineTimeouts
from gateway.engines.deepgram import DeepgramEngine
from gateway.engines.interface import NoEngine
from gateway.engines.local import LocalEngine
from gateway.engines.registry import ENGINES, make_engine
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
)

CONNECT = cast(Connector, None)


def made(**fields: Any) -> Any:
    return make_engine(Settings(**fields), CONNECT, ENGINES)


def test_deepgram_where_its_key_is_set() -> None:
    engine = made(deepgram_api_key=Secret("k"))
    assert isinstance(engine, DeepgramEngine)
    assert (engine.name, engine.has_llm, engine.health()) == ("deepgram", True, {"engine": "deepgram"})


def test_local_without_a_key() -> None:
    engine = made()
    assert isinstance(engine, LocalEngine)
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
        ({"voice_engine": "siri"}, "VOICE_ENGINE is 'siri'; use one of: deepgram, local"),
        ({"voice_engine": "deepgram"}, "VOICE_ENGINE is deepgram but DEEPGRAM_API_KEY is not set"),
        ({"local_voice": "alto"}, "LOCAL_VOICE is 'alto'; write hibari, or an address"),
    ],
)
def test_mistake_is_one_line(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        made(**fields)


async def test_whole_call_on_another_engine(tmp_path: Path) -> None:
    """Registering an engine is all it takes."""
    async with make_carrier("twilio") as carrier:
        environ = {
            "VOICE_ENGINE": "echo",
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
