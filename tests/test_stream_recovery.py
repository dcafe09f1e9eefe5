"""A call that loses its stream or its gateway continues, and no turn is lost. Both carriers."""

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.app import Timeouts
from gateway.calls.call import LiveCallTimeouts
from gateway.calls.call_table import CallTimeouts
from tests.chaos.faulty_peers import rows
from tests.chaos.fork_server import ForkedGateway
from tests.fakes.deepgram import FakeDeepgram
from tests.ports import free_port
from tests.stage import ADMIN, PATIENCE, PUBLIC_URL, Stage, make_carrier, patient_client, staged, until, until_it

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
    await call.over()
    assert (await stage.archive()).count("CALLER: Can you hear me?\n") == 1
    assert len(call.streams) == 4


async def test_stable_streams_may_be_lost_any_number_of_times(carrier_name: str, tmp_path: Path) -> None:
    timeouts = Timeouts(calls=CallTimeouts(stable_stream=0))
    async with staged(tmp_path, make_carrier(carrier_name), timeouts=timeouts) as stage:
        call, conversation = await stage.dial()
        await conversation.user_says("Can you hear me?")
        for number in range(2, 7):
            await call.drop()
            await call.wait_stream(number)
            await (await stage.engine.next_conversation()).configured()
        await call.hang_up()
        assert (await stage.archive()).count("CALLER: Can you hear me?\n") == 1


@pytest.mark.parametrize("rest", ["says it is over", "says nothing"])
async def test_hangup_that_only_breaks_the_stream(tmp_path: Path, rest: str) -> None:
    """No stop, no callback, and Twilio does not ask: the call comes to its ending all the same, and soon."""
    timeouts = Timeouts(calls=CallTimeouts(liveness_check=0.3, liveness_unknown=0.9))
    async with staged(tmp_path, make_carrier("twilio"), timeouts=timeouts) as stage:
        call = await stage.carrier.ring()
        stream = await stage.carrier.connect(call)
        await stream.send_json(stage.carrier.start_message(call, stream_id=stream.stream_id))
        conversation = await stage.engine.next_conversation()
        await conversation.configured()
        await conversation.user_says("Goodbye.")
        call.end("caller")
        call.status = "completed"
        if rest == "says nothing":
            stage.carrier.fail("*", status=500, times=99)
        await stream.close()
        [archive] = await until(stage.archives, timeout=60)
        assert archive.endswith("CALLER: Goodbye.\n")
        await stage.idle()
        assert len(await stage.documents()) == 1


async def test_hangup_while_the_stream_is_lost(tmp_path: Path) -> None:
    async with staged(tmp_path, make_carrier("telnyx")) as stage:
        call, conversation = await stage.dial()
        await conversation.user_says("Goodbye.")
        stage.carrier.fail("read", status=500, times=99)
        await asyncio.gather(call.drop(), stage.carrier.webhook(call, "call.hangup"))
        assert "CALLER: Goodbye." in await stage.archive()
        await stage.idle()
        assert len(call.streams) == 1


async def test_stopping_gateway_hangs_up_who_waits(tmp_path: Path, carrier_name: str) -> None:
    """Their media would reach no node."""
    async with staged(tmp_path, make_carrier(carrier_name)) as stage:
        call = await stage.carrier.ring()
    assert call.ended_by == "gateway-rest"


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
        await asyncio.sleep(2 * LiveCallTimeouts().last_words)
        await again.user_says("I am still here.")
        await call.hang_up()
        assert "CALLER: I am still here." in await stage.archive()
        assert len(call.streams) == 2


# The gateway itself dies


class GatewayProcess:
    """A real `gateway serve` that can be killed, and started again on the same port and folder."""

    def __init__(self, environ: dict[str, str], folder: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._environ = {**environ, "PORT": str(self.port), "PATH": os.environ["PATH"]}
        self._folder = folder
        self._process: ForkedGateway | asyncio.subprocess.Process | None = None

    def set(self, **environ: str) -> None:
        """For the next start."""
        self._environ |= environ

    async def start(self) -> None:
        self._process = ForkedGateway(self._environ, self._folder)
        async with patient_client(self.url) as http:

            async def ready() -> bool:
                with contextlib.suppress(httpx.HTTPError):
                    return (await http.get("/health")).status_code == 200
                return False

            await until_it(ready)

    async def send(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def stopped(self) -> int:
        assert self._process is not None
        return await asyncio.wait_for(self._process.wait(), PATIENCE)

    async def drains(self) -> None:
        """It has heard that it shall stop, and takes no new calls."""
        async with patient_client(self.url) as http:

            async def refuses() -> bool:
                return (await http.get("/ready")).status_code == 503

            await until_it(refuses)

    async def has_logged(self, text: str) -> None:
        """From then on the text outlives the process, however that ends."""
        await until(lambda: self._call_log(f"SELECT 1 FROM entries WHERE instr(entry, '{text}')"))

    async def has_logged_a_call(self) -> None:
        await until(lambda: self._call_log("SELECT 1 FROM live_calls"))

    def _call_log(self, query: str) -> list[Any]:
        return rows(Path(self._environ["DATA_DIR"]) / "call-log.db", query)

    async def kill(self) -> None:
        """At once. One that is dead already stays so."""
        with contextlib.suppress(ProcessLookupError):
            await self.send(signal.SIGKILL)
        await self.stopped()

    def processes(self) -> list[int]:
        """All that run on its folder."""
        own, found = f"DATA_DIR={self._environ['DATA_DIR']}".encode(), []
        for environ in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if own in environ.read_bytes().split(b"\0"):
                    found.append(int(environ.parent.name))
        return found

    async def clear_away(self) -> None:
        """Nothing of it is left running, whatever the test has come to: no worker either that has lost its parent."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)  # a fork shows its parent's environment in /proc
            await self._process.wait()


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

    async def archive(self) -> str:
        [path] = await until(lambda: list(self.archive_dir.glob("*.txt")))
        return path.read_text()

    async def documents(self) -> int:
        async with patient_client(self.gateway.url, headers={"X-API-Key": ADMIN}) as http:
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
        try:
            await gateway.start()
            carrier.gateway_url = gateway.url
            yield Scene(gateway, carrier, engine, tmp_path / "archive")
            await gateway.kill()
        finally:
            await gateway.clear_away()


async def test_killed_gateway_loses_no_turn(scene: Scene) -> None:
    call, conversation = await scene.dial()
    await conversation.user_says("My order number is nine.")
    await conversation.agent_says("Nine, thank you.")
    await call.wait_heard(20)
    await scene.gateway.has_logged("Nine, thank you.")  # and with it all that was said before
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
    await scene.gateway.has_logged("My order number is nine.")
    await scene.gateway.kill()
    await scene.gateway.start()
    again = await scene.engine.next_conversation()
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
    await scene.gateway.has_logged_a_call()
    await scene.gateway.kill()
    call.opens_media = True
    await scene.gateway.start()
    conversation = await scene.engine.next_conversation()
    settings = await conversation.configured()
    assert settings["agent"]["greeting"] == "Hello, this is Maya. How can I help you?"
    await call.hang_up()


async def test_sigterm_lets_live_calls_end(scene: Scene) -> None:
    """/ready says no, a new call is refused, the live one goes on and is kept, then the process ends."""
    call, conversation = await scene.dial()
    await scene.gateway.send(signal.SIGTERM)
    await scene.gateway.drains()
    refused = await scene.carrier.dial("+12025550144")
    assert refused.rejected
    await conversation.user_says("I am still here.")
    await call.hang_up()
    assert await scene.gateway.stopped() in (0, -signal.SIGTERM)
    assert "CALLER: I am still here.\n" in await scene.archive()


async def test_draining_gateway_takes_a_lost_stream_up_again(scene: Scene) -> None:
    call, conversation = await scene.dial()
    await conversation.user_says("I am still here.")
    await scene.gateway.send(signal.SIGTERM)
    await scene.gateway.drains()
    await call.drop()
    await call.wait_stream(2)
    again = await scene.engine.next_conversation()
    await again.configured()
    await again.user_says("Still.")
    await call.hang_up()
    assert await scene.gateway.stopped() in (0, -signal.SIGTERM)
    archive = await scene.archive()
    assert archive.index("CALLER: I am still here.\n") < archive.index("CALLER: Still.\n")


async def test_draining_gateway_waits_for_who_is_on_the_way(scene: Scene) -> None:
    """A call was let in, and its media has not come yet."""
    call = await scene.carrier.ring()
    await scene.gateway.send(signal.SIGTERM)
    await scene.gateway.drains()
    stream = await scene.carrier.connect(call, token=call.token)
    await stream.send_json(scene.carrier.start_message(call, stream_id=stream.stream_id))
    conversation = await scene.engine.next_conversation()
    await conversation.configured()
    await call.hang_up()
    await stream.close()
    assert await scene.gateway.stopped() in (0, -signal.SIGTERM)


async def test_second_sigterm_ends_live_calls(scene: Scene) -> None:
    call, conversation = await scene.dial()
    await conversation.user_says("I am still here.")
    await scene.gateway.send(signal.SIGTERM)
    await scene.gateway.drains()  # two signals at once may be one
    await scene.gateway.send(signal.SIGTERM)
    await scene.gateway.stopped()
    assert "CALLER: I am still here.\n" in await scene.archive()
    await call.over()
