"""Whole calls at `gateway serve --workers`: whichever worker a webhook or a socket lands at, it is one gateway."""

import asyncio
import contextlib
import functools
import os
import re
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.metrics import SAMPLE_SECONDS
from tests.chaos.faulty_peers import rows
from tests.fakes.deepgram import Conversation, FakeDeepgram
from tests.live import watching
from tests.redis_server import has_turn, running_redis
from tests.stage import ADMIN, PUBLIC_URL, make_carrier, patient_client, until, until_it
from tests.test_stream_recovery import GatewayProcess

WORKERS = 3
CALLERS = [f"+120255501{number}" for number in range(40, 46)]
SERVE = "import sys; from gateway.cli.main import main; sys.exit(main(sys.argv[1:]))"


class WorkersProcess(GatewayProcess):
    """`gateway serve --workers`, all of them ready."""

    async def start(self, count: int = WORKERS) -> None:
        (self._folder / "calendar.py").write_text("raise SystemExit(9)  # a user's file, which must not hide Python's")
        command = [sys.executable, "-P", "-c", SERVE, "serve", "--workers", str(count)]
        with (self._folder / "log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command, env=self._environ, cwd=self._folder, stderr=log
            )
        await until_it(lambda: self._complete(count))

    async def state(self) -> dict[str, Any]:
        """/health of the worker that answers; empty if none does."""
        async with patient_client(self.url) as http:
            with contextlib.suppress(httpx.HTTPError):
                state: dict[str, Any] = (await http.get("/health")).json()
                return state
        return {}

    async def busiest(self) -> tuple[int, int]:
        """The process with the most calls, and how many, once every worker has reported its calls."""

        async def reported() -> list[dict[str, Any]]:
            nodes: list[dict[str, Any]] = (await self.state()).get("nodes", [])
            return nodes if sum(node["calls"] for node in nodes) == len(CALLERS) else []

        nodes = await until_it(reported)
        busiest = max(nodes, key=lambda node: node["calls"])
        return int(busiest["node"].split("-")[-2]), busiest["calls"]

    async def any_worker(self) -> tuple[int, int]:
        """A process, and how many there are."""
        nodes = (await until_it(self._others_known))["nodes"]
        return int(nodes[0]["node"].split("-")[-2]), len(nodes)

    async def is_without(self, worker: int) -> bool:
        """Whether all are there again, and that one is not."""
        workers = [int(node["node"].split("-")[-2]) for node in (await self.state()).get("nodes", [])]
        return len(workers) == WORKERS and worker not in workers

    async def idle(self) -> None:
        async def quiet() -> bool:
            state = await self.state()
            nodes = state.get("nodes", [state] if state else [])
            return bool(nodes) and not any(node["calls"] or node["endings"] for node in nodes)

        await until_it(quiet)

    async def _others_known(self) -> dict[str, Any]:
        """The state, from a worker that knows of the others."""
        state = await self.state()
        return state if "nodes" in state else {}

    async def _complete(self, count: int) -> bool:
        state = await self.state()
        return bool(state) and len(state.get("nodes", [state])) == count


@dataclass
class Talk:
    """One caller, and the engine's end of the call."""

    caller: str
    call: Any
    conversation: Conversation

    @property
    def order(self) -> str:
        return f"My order number is {self.caller[-2:]}."


@dataclass
class Office:
    """Workers between a carrier and an engine."""

    gateway: WorkersProcess
    carrier: Any
    engine: FakeDeepgram
    archive_dir: Path
    redis_url: str

    async def dial_all(self) -> list[Talk]:
        """Everybody calls at once, and says something."""
        calls = await asyncio.gather(*(self.carrier.dial(caller) for caller in CALLERS))
        # Each makes a sound of their own: so it is known which of the engine's ends is whose.
        sounds = [bytes([number]) * 160 for number in range(1, len(calls) + 1)]
        conversations = [await self.conversation() for _ in calls]
        await asyncio.gather(*(call.speak(sound) for call, sound in zip(calls, sounds, strict=True)))
        talks = []
        for caller, call, sound in zip(CALLERS, calls, sounds, strict=True):
            [heard_by] = await until(lambda sound=sound: [one for one in conversations if sound in one.heard])
            talks.append(Talk(caller, call, heard_by))
        await asyncio.gather(*(talk.conversation.user_says(talk.order) for talk in talks))
        return talks

    async def conversation(self) -> Conversation:
        conversation = await self.engine.next_conversation()
        await conversation.configured()
        return conversation

    async def shares(self, text: str) -> bool:
        """Whether each worker can know that this was said."""
        return await has_turn(self.redis_url, text)

    async def say_goodbye(self, talks: list[Talk]) -> None:
        await asyncio.gather(*(talk.conversation.user_says("And please hurry.") for talk in talks))
        await asyncio.gather(*(talk.call.hang_up() for talk in talks))

    async def check_memory(self, talks: list[Talk]) -> None:
        """Everybody's words are in one archive and one document, whole and in order."""
        await until(lambda: len(self.archives()) >= len(talks))
        await self.gateway.idle()
        archives = self.archives()
        assert len(archives) == len(talks)
        for talk in talks:
            [archive] = [text for text in archives if talk.order in text]
            lines = [re.escape(f"CALLER: {text}\n") for text in (talk.order, "And please hurry.")]
            assert re.search("(AGENT: .*\n)?".join(lines), archive)
            # `idle` is what the workers last reported, up to a heartbeat ago.
            assert await until_it(lambda caller=talk.caller: self.documents(caller)) == 1

    async def documents(self, caller: str) -> int:
        question = {"text": "voice call", "tags": ["voice-session", f"caller:{caller}"]}
        async with patient_client(self.gateway.url, headers={"X-API-Key": ADMIN}) as http:
            return len((await http.post("/v1/query", json=question)).json()["results"])

    def archives(self) -> list[str]:
        return [path.read_text() for path in self.archive_dir.glob("voice-session-*.txt")]


@contextlib.asynccontextmanager
async def opened(carrier_name: str, folder: Path, **environ: str) -> AsyncIterator[Office]:
    """The office; its gateway has yet to be started."""
    async with make_carrier(carrier_name, strict=False) as carrier, FakeDeepgram() as engine:
        gateway = WorkersProcess(
            {
                "DATA_DIR": str(folder / "data"),
                "VOICE_SESSION_ARCHIVE_DIR": str(folder / "archive"),
                "PUBLIC_URL": PUBLIC_URL,
                "ALLOWED_CALLERS": "*",
                "DEEPGRAM_API_KEY": engine.api_key,
                "DEEPGRAM_AGENT_URL": engine.url,
                "GATEWAY_ADMIN_TOKEN": ADMIN,
                "MEMORY_VECTORS": "false",
                **carrier.settings(),
                **environ,
            },
            folder,
        )
        carrier.gateway_url = gateway.url
        try:
            redis_url = environ.get("REDIS_URL") or f"unix://{folder / 'data/valkey/socket'}"
            yield Office(gateway, carrier, engine, folder / "archive", redis_url)
            with contextlib.suppress(ProcessLookupError):
                await gateway.send(signal.SIGINT)
            await gateway.stopped()
        except BaseException:
            sys.stderr.write((folder / "log").read_text())  # of all workers; pytest shows it
            raise
        finally:
            await gateway.clear_away()


@pytest.fixture(params=["private Valkey", "REDIS_URL"])
async def office(request: pytest.FixtureRequest, carrier_name: str) -> AsyncIterator[Office]:
    async with contextlib.AsyncExitStack() as stack:
        # Short, because the address of a Unix socket holds about a hundred bytes.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="workers-")))
        environ = {}
        if request.param == "REDIS_URL":
            environ["REDIS_URL"] = (await stack.enter_async_context(running_redis(folder / "redis"))).url
        office = await stack.enter_async_context(opened(carrier_name, folder, **environ))
        await office.gateway.start()
        yield office


@pytest.mark.parametrize("carrier_name", ["telnyx"])
async def test_any_worker_answers_for_all(office: Office) -> None:
    """
    Calls at once leave one document each.

    Every worker shows the events of all workers, also of one that died, and counts all of them.
    """
    async with watching(office.gateway.url) as watcher:
        talks = await office.dial_all()
        await asyncio.gather(*(watcher.hears(talk.order) for talk in talks))
        await office.say_goodbye(talks)
        await watcher.sees("hangup", len(talks))
    await office.check_memory(talks)
    assert [len(talk.call.streams) for talk in talks] == [1] * len(talks)
    await until_it(lambda: counts(office, len(talks)))
    await asyncio.sleep(3 * SAMPLE_SECONDS)  # by then each of them has written its gauges
    victim, _ = await office.gateway.any_worker()
    os.kill(victim, signal.SIGKILL)
    await until_it(lambda: office.gateway.is_without(victim))
    await until_it(lambda: counts(office, len(talks)))


@pytest.mark.parametrize(("office", "carrier_name"), [("REDIS_URL", "twilio")], indirect=["office"])
async def test_operator_has_a_say_in_every_call(office: Office) -> None:
    """Whichever worker the dashboard comes from: it shows all calls, and what is wanted reaches the one that has it."""
    talks = await office.dial_all()
    async with patient_client(office.gateway.url) as http:
        await http.post("/login", data={"token": ADMIN})
        page = await until_it(lambda: shows_all(http, talks))
        [form_token, *_] = re.findall(r'name="form_token" value="([^"]*)"', page)
        ids = re.findall(r'data-session="([0-9a-f-]{36})"', page)
        for id_ in ids:
            answer = await http.post(
                f"/live/{id_}/say", data={"form_token": form_token, "words": "Hold on.", "quietly": "1"}
            )
            assert answer.status_code == 204, answer.text
        for talk in talks:
            assert (await talk.conversation.message("InjectAgentMessage"))["message"] == "Hold on."
        for id_ in ids:
            answer = await http.post(f"/live/{id_}/end", data={"form_token": form_token, "quietly": "1"})
            assert answer.status_code == 204, answer.text
        await asyncio.gather(*(talk.call.over() for talk in talks))

        async def gone() -> str:  # at whichever worker, as soon as that one knows
            answer = await http.post(f"/live/{ids[0]}/end", data={"form_token": form_token})
            return answer.text if answer.status_code == 404 else ""

        assert await until_it(gone) == "Call not found. It has ended."


async def shows_all(http: httpx.AsyncClient, talks: list[Talk]) -> str:
    """The page of live calls, once all of them are on it with what was said."""
    page = (await http.get("/")).text
    return page if all(talk.order in page for talk in talks) else ""


async def counts(office: Office, ended: int) -> bool:
    """Whether this many calls have ended, according to any worker."""
    async with patient_client(office.gateway.url) as http:
        text = (await http.get("/metrics")).text
    found = re.findall(r"^voice_gateway_call_seconds_count\{.*\} (\d+)\.0$", text, re.MULTILINE)
    return [int(count) for count in found] == [ended]


# Starting workers takes seconds: each store and each carrier once.
@pytest.mark.parametrize(
    ("office", "carrier_name"), [("private Valkey", "twilio"), ("REDIS_URL", "telnyx")], indirect=["office"]
)
async def test_calls_outlive_their_worker(office: Office) -> None:
    talks = await office.dial_all()
    victim, its_calls = await office.gateway.busiest()
    for talk in talks:
        await office.gateway.has_logged(talk.order)
        await until_it(functools.partial(office.shares, talk.order))
    os.kill(victim, signal.SIGKILL)
    await until(lambda: sum(talk.call.streams[0].ended.is_set() for talk in talks) == its_calls)
    lost = {talk.order for talk in talks if talk.call.streams[0].ended.is_set()}
    resumed: dict[str, Conversation] = {}
    # A worker that the machine does not run for some seconds counts as dead, too: its calls get another stream.
    while not lost <= resumed.keys():
        again = await office.conversation()
        settings = await again.settings_received()
        resumed[settings["agent"]["context"]["messages"][-1]["content"]] = again
    for talk in talks:
        talk.conversation = resumed.get(talk.order, talk.conversation)
    await office.say_goodbye(talks)
    await office.check_memory(talks)
    assert {talk.order for talk in talks if len(talk.call.streams) > 1} >= lost


async def test_survivor_reads_what_a_worker_could_not_share(tmp_path: Path) -> None:
    """Redis is away when it is killed: what was said last is in the call log on their disk, and nowhere else."""
    async with running_redis(tmp_path / "redis") as redis, opened("telnyx", tmp_path, REDIS_URL=redis.url) as office:
        await office.gateway.start()
        call, conversation = await office.carrier.dial(CALLERS[0]), await office.conversation()
        await conversation.user_says("I would like to book a table.")
        [victim] = [node for node in await until_it(lambda: with_calls(office)) if node["calls"]]
        await redis.kill()
        await conversation.user_says("For two, please.")
        await until(lambda: "For two, please." in str(rows(tmp_path / "data/call-log.db", "SELECT entry FROM entries")))
        os.kill(int(victim["node"].split("-")[-2]), signal.SIGKILL)
        await redis.start()
        again = await office.conversation()
        settings = await again.settings_received()
        assert settings["agent"]["context"]["messages"][-1]["content"] == "For two, please."
        await call.hang_up()
        [archive] = await until(office.archives, timeout=60)
        assert "CALLER: I would like to book a table.\n" in archive
        assert archive.count("CALLER: For two, please.\n") == 1


async def with_calls(office: Office) -> list[dict[str, Any]]:
    """All nodes, once one of them has reported its call."""
    nodes: list[dict[str, Any]] = (await office.gateway.state()).get("nodes", [])
    return nodes if sum(node["calls"] for node in nodes) == 1 else []


@pytest.mark.parametrize("office", ["private Valkey"], indirect=True)
@pytest.mark.parametrize("carrier_name", ["twilio"])
async def test_workers_drain_without_their_supervisor(office: Office) -> None:
    """Killed, it can't tell them: they notice, refuse new calls, let the live ones end, and are gone."""
    call, conversation = await office.carrier.dial(), await office.conversation()
    await office.gateway.kill()
    await until_it(lambda: refused(office))
    await conversation.user_says("I am still here.")
    await call.hang_up()
    await until(lambda: not office.gateway.processes())
    assert ["CALLER: I am still here." in text for text in office.archives()] == [True]


@pytest.mark.parametrize("office", ["private Valkey"], indirect=True)
@pytest.mark.parametrize("carrier_name", ["twilio"])
async def test_sigterm_lets_live_calls_end(office: Office) -> None:
    call, conversation = await office.carrier.dial(), await office.conversation()
    await office.gateway.send(signal.SIGTERM)
    await until_it(lambda: refused(office))
    await conversation.user_says("I am still here.")
    await call.hang_up()
    assert await office.gateway.stopped() == 0
    assert ["CALLER: I am still here." in text for text in office.archives()] == [True]


async def test_call_of_a_lone_gateway_is_taken_up_once(tmp_path: Path) -> None:
    """It was begun without workers, and all of them find it in the call log."""
    async with opened("telnyx", tmp_path) as office:
        await GatewayProcess.start(office.gateway)
        call, conversation = await office.carrier.dial(CALLERS[0]), await office.conversation()
        talk = Talk(CALLERS[0], call, conversation)
        await conversation.user_says(talk.order)
        await office.gateway.has_logged(talk.order)
        await office.gateway.kill()
        await office.gateway.start()
        talk.conversation = await office.conversation()
        await office.say_goodbye([talk])
        await office.check_memory([talk])
        assert len(call.streams) == len(office.engine.conversations) == 2


async def refused(office: Office) -> bool:
    """Whether a new call is, by whichever worker it comes to."""
    async with patient_client(office.gateway.url) as http:
        with contextlib.suppress(httpx.HTTPError):  # a worker without calls has just ended
            return (await http.get("/ready")).status_code == 503
    return False
