"""A call that loses its stream, or its gateway, goes on; what was said is never lost. Both carriers."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.calls import desk
from gateway.calls.pipeline import LAST_WORDS_SECONDS
from tests.chaos.outside import rows
from tests.fakes.deepgram import FakeDeepgram
from tests.stage import ADMIN, PUBLIC_URL, Stage, make_carrier, staged, until, until_it

SORRY = "Sorry, I lost you for a second."


async def test_lost_stream_goes_on(stage: Stage) -> None:
    """The same session on a new stream: the agent knows what was said, does not greet, and says sorry."""
    call, conversation = await stage.dial()
    await stage.played(call, conversation)
    await conversation.user_says("I would like to book a table.")
    await call.drop()
    await call.wait_stream(2)
    again = await stage.engine.next_conversation()
    settings = await again.configured()
    assert "greeting" not in settings["agent"]
    assert settings["agent"]["context"]["messages"][-1]["content"] == "I would like to book a table."
    assert (await again.message("InjectAgentMessage"))["message"] == SORRY
    await again.user_says("For two, please.")
    await call.hang_up()
    archive = await stage.archive()
    assert re.search(r"CALLER: I would like to book a table\.\n(AGENT: .*\n)?CALLER: For two, please\.\n$", archive)
    await stage.idle()
    assert len(await stage.documents()) == 1


async def test_resumed_call_still_knows_the_caller(stage: Stage) -> None:
    call, conversation = await stage.dial()
    await conversation.user_says("I ride a red bike, remember that.")
    await call.hang_up()
    await stage.document()
    call, conversation = await stage.dial()
    await conversation.user_says("Hello again.")
    await call.drop()
    await call.wait_stream(2)
    again = await stage.engine.next_conversation()
    await again.configured()
    assert "red bike" in again.prompt
    await call.hang_up()


async def test_hangup_is_not_a_lost_stream(stage: Stage) -> None:
    call, conversation = await stage.dial()
    await conversation.user_says("Goodbye.")
    await call.hang_up()
    await stage.document()
    await stage.idle()
    assert len(call.streams) == 1
    assert len(stage.engine.conversations) == 1


async def test_stream_that_never_holds_is_given_up(stage: Stage) -> None:
    call, conversation = await stage.dial()
    await conversation.user_says("Can you hear me?")
    for number in range(2, 5):
        await call.drop()
        await call.wait_stream(number)
    await call.drop()
    await call.over(10)
    assert (await stage.archive()).count("CALLER: Can you hear me?\n") == 1
    assert len(call.streams) == 4


async def test_streams_that_hold_may_be_lost_as_often_as_they_like(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk, "STEADY_SECONDS", 0.0)
    call, conversation = await stage.dial()
    await conversation.user_says("Can you hear me?")
    for number in range(2, 7):
        await call.drop()
        await call.wait_stream(number)
        await (await stage.engine.next_conversation()).configured()
    await call.hang_up()
    assert (await stage.archive()).count("CALLER: Can you hear me?\n") == 1


async def test_hangup_while_the_stream_is_lost(tmp_path: Path) -> None:
    async with staged(tmp_path, make_carrier("telnyx")) as stage:
        call, conversation = await stage.dial()
        await conversation.user_says("Goodbye.")
        stage.carrier.fail("read", status=500, times=99)
        await asyncio.gather(call.drop(), stage.carrier.webhook(call, "call.hangup"))
        assert "CALLER: Goodbye." in await stage.archive()
        await stage.idle()
        assert len(call.streams) == 1


async def test_stream_that_the_carrier_thinks_it_has(tmp_path: Path) -> None:
    """It has not noticed that the connection is gone: the dead stream is stopped, and the call goes on."""
    async with staged(tmp_path, make_carrier("telnyx")) as stage:
        call, conversation = await stage.dial()
        await conversation.user_says("Can you hear me?")
        stage.carrier.fail("streaming_start", status=422, code="90045")
        await call.drop()
        await call.wait_stream(2)
        again = await stage.engine.next_conversation()
        await again.configured()
        await call.hang_up()
        assert not call.violations


@pytest.mark.parametrize("event", ["streaming.stopped", "streaming.failed"])
async def test_late_word_of_an_earlier_stream(tmp_path: Path, event: str) -> None:
    """Webhooks come in any order: the stream that the call has now goes on."""
    async with staged(tmp_path, make_carrier("telnyx")) as stage:
        call, conversation = await stage.dial()
        await conversation.user_says("Can you hear me?")
        earlier = call.media_url
        await call.drop()
        await call.wait_stream(2)
        again = await stage.engine.next_conversation()
        await again.configured()
        details: dict[str, Any] = {"stream_url": earlier}
        if event == "streaming.failed":
            details = {"stream_params": details}
        await stage.carrier.webhook(call, event, payload=call.payload(event) | details)
        await asyncio.sleep(2 * LAST_WORDS_SECONDS)
        await again.user_says("I am still here.")
        await call.hang_up()
        assert "CALLER: I am still here." in await stage.archive()
        assert len(call.streams) == 2


# The gateway itself dies


class GatewayProcess:
    """A real `gateway serve` that can be killed, and started again on the same port and folder."""

    def __init__(self, environ: dict[str, str], folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._environ = {**environ, "PORT": str(self.port), "PATH": os.environ["PATH"]}
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        command = "import sys; from gateway.cli.main import main; sys.exit(main(['serve']))"
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", command, env=self._environ, cwd=self._folder, stderr=asyncio.subprocess.DEVNULL
        )
        async with httpx.AsyncClient() as http:

            async def ready() -> bool:
                with contextlib.suppress(httpx.HTTPError):
                    return (await http.get(f"{self.url}/health")).status_code == 200
                return False

            await until_it(ready, timeout=60)

    async def send(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def stopped(self) -> int:
        assert self._process is not None
        return await asyncio.wait_for(self._process.wait(), 60)

    async def kill(self) -> None:
        """At once. One that is dead already stays so."""
        with contextlib.suppress(ProcessLookupError):
            await self.send(signal.SIGKILL)
        await self.stopped()


class Scene:
    """A killable gateway between a carrier and an engine."""

    def __init__(self, gateway: GatewayProcess, carrier: Any, engine: FakeDeepgram, archive_dir: Path) -> None:
        self.gateway = gateway
        self.carrier = carrier
        self.engine = engine
        self.archive_dir = archive_dir

    async def dial(self) -> tuple[Any, Any]:
        call = await self.carrier.dial()
        conversation = await self.engine.next_conversation()
        await conversation.configured()
        return call, conversation

    @property
    def journal(self) -> Path:
        return self.archive_dir.parent / "data/journal.db"

    async def journaled(self, words: str) -> None:
        """Until this is on disk. Whether that takes 100 ms is for scripts/chaos to judge, on a machine at rest."""
        await until(lambda: words in str(rows(self.journal, "SELECT entry FROM entries")))

    async def archive(self) -> str:
        [path] = await until(lambda: list(self.archive_dir.glob("*.txt")), timeout=60)
        return path.read_text()

    async def documents(self) -> int:
        async with httpx.AsyncClient(base_url=self.gateway.url, headers={"X-API-Key": ADMIN}) as http:
            answer = await http.post("/v1/query", json={"text": "voice call", "tags": ["voice-session"]})
            return len(answer.json()["results"])


@pytest.fixture
async def scene(carrier_name: str, tmp_path: Path) -> AsyncIterator[Scene]:
    async with make_carrier(carrier_name) as carrier, FakeDeepgram() as engine:
        carrier.strict = False
        environ = {
            "DATA_DIR": str(tmp_path / "data"),
            "VOICE_SESSION_ARCHIVE_DIR": str(tmp_path / "archive"),
            "PUBLIC_URL": PUBLIC_URL,
            "ALLOWED_CALLERS": "*",
            "DEEPGRAM_API_KEY": "dg-test-key",
            "DEEPGRAM_AGENT_URL": engine.url,
            "GATEWAY_ADMIN_TOKEN": ADMIN,
            "MEMORY_VECTORS": "false",
            **carrier.settings(),
        }
        gateway = GatewayProcess(environ, tmp_path)
        await gateway.start()
        carrier.gateway_url = gateway.url
        yield Scene(gateway, carrier, engine, tmp_path / "archive")
        with contextlib.suppress(ProcessLookupError):
            await gateway.kill()


async def test_killed_gateway_loses_no_turn(scene: Scene) -> None:
    call, conversation = await scene.dial()
    await conversation.user_says("My order number is nine.")
    await conversation.agent_says("Nine, thank you.")
    await call.wait_heard(20)
    await scene.journaled("Nine, thank you.")
    await scene.gateway.kill()
    hanging_up = asyncio.create_task(call.hang_up())
    await scene.gateway.start()
    await hanging_up
    archive = await scene.archive()
    assert "CALLER: My order number is nine.\nAGENT: Nine, thank you." in archive
    await until_it(lambda: scene.documents())
    assert await scene.documents() == 1


@pytest.mark.parametrize("carrier_name", ["telnyx"])  # Twilio asks once, within seconds of the loss
async def test_killed_gateway_takes_the_call_up_again(scene: Scene) -> None:
    call, conversation = await scene.dial()
    await conversation.user_says("My order number is nine.")
    await scene.journaled("My order number is nine.")
    await scene.gateway.kill()
    await scene.gateway.start()
    again = await scene.engine.next_conversation(timeout=60)
    settings = await again.configured()
    assert settings["agent"]["context"]["messages"][-1]["content"] == "My order number is nine."
    await again.user_says("And please hurry.")
    await call.hang_up()
    archive = await scene.archive()
    assert archive.index("My order number is nine.") < archive.index("And please hurry.")
    await until_it(lambda: scene.documents())
    assert await scene.documents() == 1


@pytest.mark.parametrize("carrier_name", ["telnyx"])
async def test_call_that_only_rang_is_taken_up(scene: Scene) -> None:
    """Killed after the answer and before the media: the caller is not left in silence, but greeted."""
    call = await scene.carrier.ring()
    await until(lambda: rows(scene.journal, "SELECT id FROM sessions"))
    await scene.gateway.kill()
    call.opens_media = True
    await scene.gateway.start()
    conversation = await scene.engine.next_conversation(timeout=60)
    settings = await conversation.configured()
    assert settings["agent"]["greeting"] == "Hello, this is Maya. How can I help you?"
    await call.hang_up()


async def test_sigterm_lets_live_calls_end(scene: Scene) -> None:
    """/ready says no, a new call is refused, the live one goes on and is kept, then the process ends."""
    call, conversation = await scene.dial()
    await scene.gateway.send(signal.SIGTERM)
    await until_it(lambda: is_draining(scene))
    refused = await scene.carrier.dial("+12025550144")
    assert refused.rejected
    await conversation.user_says("I am still here.")
    await call.hang_up()
    assert await scene.gateway.stopped() in (0, -signal.SIGTERM)
    assert "CALLER: I am still here.\n" in await scene.archive()


async def test_lost_stream_comes_back_while_draining(scene: Scene) -> None:
    """The caller is still there, and the gateway too: the call goes on as at any other time."""
    call, conversation = await scene.dial()
    await conversation.user_says("Can you hear me?")
    await scene.gateway.send(signal.SIGTERM)
    await until_it(lambda: is_draining(scene))
    await call.drop()
    await call.wait_stream(2)
    again = await scene.engine.next_conversation()
    await again.configured()
    await again.user_says("I am back.")
    await call.hang_up()
    await scene.gateway.stopped()
    assert re.search(r"CALLER: Can you hear me\?\n(AGENT: .*\n)?CALLER: I am back\.\n", await scene.archive())


@pytest.mark.parametrize("carrier_name", ["telnyx"])
async def test_call_that_rings_is_waited_for(scene: Scene) -> None:
    """It was answered before the SIGTERM, and its media is on the way."""
    call = await scene.carrier.ring()
    await scene.gateway.send(signal.SIGTERM)
    await until_it(lambda: is_draining(scene))
    call.opens_media = True
    await scene.carrier.webhook(call, "streaming.failed")  # it comes with the next stream
    conversation = await scene.engine.next_conversation()
    await conversation.configured()
    await conversation.user_says("Here I am.")
    await call.hang_up()
    await scene.gateway.stopped()
    assert "CALLER: Here I am.\n" in await scene.archive()


async def is_draining(scene: Scene) -> bool:
    async with httpx.AsyncClient(base_url=scene.gateway.url) as http:
        return (await http.get("/ready")).status_code == 503


async def test_second_sigterm_ends_live_calls(scene: Scene) -> None:
    call, conversation = await scene.dial()
    await conversation.user_says("I am still here.")
    await scene.gateway.send(signal.SIGTERM)
    await until_it(lambda: is_draining(scene))
    await scene.gateway.send(signal.SIGTERM)
    await scene.gateway.stopped()
    assert "CALLER: I am still here.\n" in await scene.archive()
    await call.over(10)
