"""Several gateways that share a real Redis: a call can ring at one, talk at another, and survive both."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from gateway.cluster.directory import ClusterTimeouts
from gateway.simulate.softphone import Softphone
from tests.chaos.faulty_peers import PausableRemem
from tests.fakes.deepgram import Conversation, FakeDeepgram
from tests.link import Link, linked
from tests.live import watching
from tests.redis_server import RedisServer, running_redis
from tests.stage import (
    ADMIN,
    CALLED,
    CALLER,
    PATIENCE,
    PUBLIC_URL,
    SOUND,
    make_carrier,
    patient_client,
    until,
    until_it,
)
from tests.test_stream_recovery import SORRY, GatewayProcess


@dataclass
class Cluster:
    """Two gateway processes with a folder and a link to Redis each, one carrier, one engine, one remote store."""

    nodes: list[GatewayProcess]
    links: list[Link]
    redis: RedisServer
    carrier: Any
    engine: FakeDeepgram
    remem: PausableRemem
    folder: Path
    http: httpx.AsyncClient

    def balance(self, *, webhooks: int, media: int) -> None:
        """Which node the balancer sends what to."""
        self.carrier.gateway_url = self.nodes[webhooks].url
        self.carrier.media_gateway_url = self.nodes[media].url

    async def dial(self) -> tuple[Any, Conversation]:
        call = await self.carrier.dial(CALLER)
        return call, await self.conversation()

    async def conversation(self) -> Conversation:
        conversation = await self.engine.next_conversation()
        await conversation.configured()
        return conversation

    async def calls(self, node: int) -> int:
        return int((await self.http.get(f"{self.nodes[node].url}/health")).json()["calls"])

    async def idle(self, *nodes: int) -> None:
        async def quiet() -> bool:
            answers = [(await self.http.get(f"{self.nodes[node].url}/health")).json() for node in nodes]
            return all(state["calls"] == state["endings"] == 0 for state in answers)

        await until_it(quiet)

    async def whole(self, *nodes: int) -> str:
        """One archive and one remote document, after everything has come to rest; what the archive says."""
        await until(lambda: self.archives())
        await until(lambda: self.remem.documents)
        await self.idle(*nodes)
        assert len(self.remem.documents) == 1
        [text] = self.archives()
        return text

    async def taken_for_dead(self, node: int) -> None:
        """Until the other node knows nothing of it any more, and has had the time to act on that."""

        async def alone() -> bool:
            return "nodes" not in (await self.http.get(f"{self.nodes[1 - node].url}/health")).json()

        await until_it(alone)
        await asyncio.sleep(2 * ClusterTimeouts().heartbeat)

    async def knows(self, text: str) -> None:
        """What was said is known to every node, and outlives the one that has the call."""
        await until_it(lambda: self.redis.has_turn(text))

    def documents(self) -> list[str]:
        return [document.content for document in self.remem.documents.values()]

    def archives(self) -> list[str]:
        return [path.read_text() for path in self.folder.glob("archive/voice-session-*.txt")]


@pytest.fixture
def agent_table() -> str:
    """The contents of gateway.toml. With any, calls are recorded."""
    return ""


@pytest.fixture(params=["twilio", "telnyx"])
async def cluster(request: pytest.FixtureRequest, tmp_path: Path, agent_table: str) -> AsyncIterator[Cluster]:
    (tmp_path / "gateway.toml").write_text(agent_table)
    async with contextlib.AsyncExitStack() as stack:
        redis = await stack.enter_async_context(running_redis(tmp_path / "redis"))
        carrier = await stack.enter_async_context(make_carrier(request.param, strict=False))
        engine = await stack.enter_async_context(FakeDeepgram())
        remem = await stack.enter_async_context(PausableRemem(honours_idempotency=False))
        http = await stack.enter_async_context(patient_client())
        links = [await stack.enter_async_context(linked(redis.port)) for _ in range(2)]
        nodes = [
            GatewayProcess(
                {
                    "DATA_DIR": str(tmp_path / f"data{number}"),
                    "VOICE_SESSION_ARCHIVE_DIR": str(tmp_path / "archive"),
                    "PUBLIC_URL": PUBLIC_URL,
                    "ALLOWED_CALLERS": "*",
                    "DEEPGRAM_API_KEY": engine.api_key,
                    "DEEPGRAM_AGENT_URL": engine.url,
                    "GATEWAY_ADMIN_TOKEN": ADMIN,
                    "MEMORY_VECTORS": "false",
                    "REDIS_URL": links[number].redis_url,
                    "REMEM_API_URL": remem.url,
                    "REMEM_API_KEY": remem.api_key,
                    **({"RECORD_DIR": str(tmp_path / "recordings")} if agent_table else {}),
                    **carrier.settings(),
                },
                tmp_path,
            )
            for number in range(2)
        ]
        for node in nodes:
            stack.push_async_callback(node.clear_away)
        await asyncio.gather(*(node.start() for node in nodes))
        made = Cluster(nodes, links, redis, carrier, engine, remem, tmp_path, http)
        made.balance(webhooks=0, media=0)
        yield made


async def test_rings_at_one_node_and_talks_at_another(cluster: Cluster) -> None:
    cluster.balance(webhooks=0, media=1)
    call, conversation = await cluster.dial()
    await conversation.user_says("I would like to book a table.")
    assert await cluster.calls(1) == 1
    await cluster.idle(0)
    await call.hang_up()
    assert "CALLER: I would like to book a table." in await cluster.whole(0, 1)


async def test_ordered_at_one_node_and_picked_up_at_another(cluster: Cluster) -> None:
    cluster.balance(webhooks=1, media=0)
    order = {"to": CALLER, "from": CALLED, "context": "The bike is ready."}
    answer = await cluster.http.post(
        f"{cluster.nodes[0].url}/v1/outbound/call", json=order, headers={"X-API-Key": ADMIN}
    )
    conversation = await cluster.conversation()
    assert conversation.prompt.endswith("# Why you are calling\nThe bike is ready.")
    await conversation.user_says("I will come at five.")
    [call] = cluster.carrier.calls
    assert call.id == answer.json()["call_id"]
    await call.hang_up()
    assert "CALLER: I will come at five." in await cluster.whole(0, 1)


async def test_any_node_tells_of_all_calls(cluster: Cluster) -> None:
    """Whoever watches one node sees the other's calls, and goes on at any of them."""
    async with watching(cluster.nodes[1].url, levels="1") as watcher:
        call, conversation = await cluster.dial()
        await conversation.user_says("I would like to book a table.")
        await watcher.hears("I would like to book a table.")

        async def caller_is_loud() -> bool:
            await call.speak(SOUND)
            shown = [level for event in watcher.of("levels") for level in event["levels"]]
            return any(level["caller"] > 0.5 for level in shown)

        await until_it(caller_is_loud)
    await call.hang_up()
    async with watching(cluster.nodes[0].url, since=watcher.place) as later:
        await later.sees("finished")
    assert "ringing" not in later.kinds
    assert later.kinds.count("hangup") == 1


@pytest.mark.parametrize("cluster", ["twilio"], indirect=True)
async def test_phone_socket_is_closed_at_every_node_while_no_call_waits(cluster: Cluster) -> None:
    """A call of the softphone opens it at any node; its address alone opens it at none."""
    origins = [node.url.replace("http", "ws", 1) for node in cluster.nodes]
    answer = await cluster.http.post(f"{cluster.nodes[0].url}/v1/phone", json={}, headers={"X-API-Key": ADMIN})
    placed = answer.json()
    for path in ("/phone/media", "/phone/media?pass=guess", placed["media_path"][:-1]):
        with pytest.raises(InvalidStatus) as refusal:
            await connect(origins[1] + path, proxy=None)
        assert refusal.value.response.status_code == 404
    async with connect(origins[1] + placed["media_path"], compression=None, proxy=None) as socket:
        await Softphone(socket, placed).start(placed)
        await cluster.conversation()
        assert await cluster.calls(1) == 1


async def test_token_opens_one_socket_at_all_nodes(cluster: Cluster) -> None:
    call, conversation = await cluster.dial()
    cluster.balance(webhooks=0, media=1)
    stranger = await cluster.carrier.connect(call, token=call.token)
    await stranger.send_json(cluster.carrier.start_message(call, stream_id=stranger.stream_id, token=call.token))
    assert await stranger.wait_closed() == 1008
    await conversation.user_says("Nobody else is here.")
    await call.hang_up()
    assert "CALLER: Nobody else is here." in await cluster.whole(0, 1)


async def test_hangup_told_to_another_node(cluster: Cluster) -> None:
    """The node that has the call learns of its end, whichever node the carrier reports it to."""
    cluster.balance(webhooks=0, media=0)
    call, conversation = await cluster.dial()
    await conversation.user_says("Goodbye.")
    cluster.balance(webhooks=1, media=0)
    await call.hang_up()
    assert "CALLER: Goodbye." in await cluster.whole(0, 1)


@pytest.mark.parametrize("cluster", ["twilio"], indirect=True)
async def test_end_told_by_the_way_of_resuming(cluster: Cluster) -> None:
    """Twilio may ask what to do with a stream that is over when the call is too: it is not taken from its node."""
    call, conversation = await cluster.dial()
    await conversation.user_says("Goodbye.")
    cluster.balance(webhooks=1, media=1)
    answer = await cluster.carrier.webhook(call, path="/twilio/resume", form={"CallStatus": "completed"})
    assert "<Hangup" in answer.answer and "<Connect" not in answer.answer
    assert "CALLER: Goodbye." in await cluster.whole(0, 1)


async def test_lost_stream_goes_on_at_another_node(cluster: Cluster) -> None:
    call, conversation = await cluster.dial()
    await conversation.user_says("I would like to book a table.")
    cluster.balance(webhooks=1, media=1)
    await call.drop()
    await call.wait_stream(2)
    await _goes_on(cluster, call)
    await cluster.whole(0, 1)


async def test_call_outlives_its_node(cluster: Cluster) -> None:
    call, conversation = await cluster.dial()
    await conversation.user_says("I would like to book a table.")
    await cluster.knows("I would like to book a table.")
    cluster.balance(webhooks=1, media=1)
    await cluster.nodes[0].kill()
    await call.wait_stream(2)
    await _goes_on(cluster, call)
    archive = await cluster.whole(1)
    await cluster.nodes[0].start()
    await cluster.idle(0, 1)
    assert [archive] == cluster.archives()
    assert len(cluster.remem.documents) == 1


@pytest.mark.parametrize("agent_table", ["[agents.maya]\nconsent = { require = true }\n"])
@pytest.mark.parametrize("cluster", ["twilio"], indirect=True)
async def test_refusal_outlives_its_node(cluster: Cluster) -> None:
    call, conversation = await cluster.dial()
    await conversation.until(lambda: not conversation.agent_speaking)
    await conversation.user_says("No, thanks.")
    await conversation.message("InjectAgentMessage")
    await cluster.knows("this call is not recorded")
    cluster.balance(webhooks=1, media=1)
    await cluster.nodes[0].kill()
    await call.wait_stream(2)
    settings = await (again := await cluster.conversation()).settings_received()
    assert "greeting" not in settings["agent"]
    await again.user_says("A table for two, please.")
    await call.hang_up()
    await cluster.whole(1)
    [session] = (await cluster.http.get(f"{cluster.nodes[1].url}/v1/sessions", headers={"X-API-Key": ADMIN})).json()
    assert session["consent"] == "refused"
    assert list((cluster.folder / "recordings").iterdir()) == []


async def _goes_on(cluster: Cluster, call: Any) -> None:
    """The other node's agent knows what was said, says sorry, and the conversation ends there."""
    again = await cluster.conversation()
    settings = await again.settings_received()
    assert "greeting" not in settings["agent"]
    assert settings["agent"]["context"]["messages"][-1]["content"] == "I would like to book a table."
    assert (await again.message("InjectAgentMessage"))["message"] == SORRY
    await again.user_says("For two, please.")
    await call.hang_up()
    await until(cluster.archives)
    [archive] = cluster.archives()
    assert re.search(r"CALLER: I would like to book a table\.\n(AGENT: .*\n)?CALLER: For two, please\.\n", archive)


async def test_ending_of_a_dead_node_is_finished_by_another(cluster: Cluster) -> None:
    """Killed while its document is on the way: the other node claims the ending, and asks before it sends again."""
    await cluster.nodes[1].kill()  # so that the ending is the first one's
    call, conversation = await cluster.dial()
    await conversation.user_says("Please remember the red bike.")
    cluster.remem.hold = "after"
    await call.hang_up()
    await asyncio.wait_for(cluster.remem.holding.wait(), PATIENCE)
    await cluster.nodes[0].kill()
    cluster.remem.let_go()
    await cluster.nodes[1].start()
    await cluster.whole(1)


async def test_calls_go_on_without_redis(cluster: Cluster) -> None:
    """A call begun before, and one begun while Redis is away; their endings wait, and drain when it is back."""
    call, conversation = await cluster.dial()
    await cluster.redis.kill()
    await conversation.user_says("Redis is away now.")
    await call.hang_up()
    await until_it(lambda: _waits(cluster))
    assert not cluster.remem.documents
    await cluster.redis.start()
    assert "CALLER: Redis is away now." in await cluster.whole(0, 1)


async def test_call_begun_without_redis(cluster: Cluster) -> None:
    await cluster.redis.kill()
    call, conversation = await cluster.dial()
    await conversation.user_says("Redis is away now.")
    await call.hang_up()
    await cluster.redis.start()
    assert "CALLER: Redis is away now." in await cluster.whole(0, 1)


async def test_redis_that_forgets_loses_no_ending(cluster: Cluster) -> None:
    cluster.remem.hold = "before"
    call, conversation = await cluster.dial()
    await conversation.user_says("Please remember the red bike.")
    await call.hang_up()
    await asyncio.wait_for(cluster.remem.holding.wait(), PATIENCE)
    await cluster.redis.empty()
    cluster.remem.hold = ""
    cluster.remem.release.set()
    await cluster.whole(0, 1)


async def _waits(cluster: Cluster) -> bool:
    return bool((await cluster.http.get(f"{cluster.nodes[0].url}/health")).json()["endings"])


# A node that can't reach Redis, while the others can


async def test_call_goes_on_at_a_node_cut_off(cluster: Cluster) -> None:
    """Other nodes take this one for dead. The carrier reports that its call is alive, so no node ends it."""
    call, conversation = await cluster.dial()
    await conversation.user_says("I would like to book a table.")
    await cluster.links[0].cut()
    await conversation.user_says("For two, please.")
    await conversation.agent_says("Very well.")  # an engine that is silent for long is reconnected
    await cluster.taken_for_dead(0)
    await conversation.user_says("Is anybody there?")
    assert not call.ended_by
    assert (await cluster.calls(0), await cluster.calls(1)) == (1, 0)
    await cluster.links[0].mend()
    await conversation.user_says("Thank you.")
    await call.hang_up()
    archive = await cluster.whole(0, 1)
    assert _caller_lines(archive) == [
        "I would like to book a table.",
        "For two, please.",
        "Is anybody there?",
        "Thank you.",
    ]
    assert len(cluster.engine.conversations) == 1


async def test_call_that_ends_at_a_node_cut_off(cluster: Cluster) -> None:
    """The carrier reports the end to the other node, which finalizes what it has; the same document gets the rest."""
    call, conversation = await cluster.dial()
    await conversation.user_says("I would like to book a table.")
    await cluster.knows("I would like to book a table.")
    await cluster.links[0].cut()
    await conversation.user_says("Please remember the red bike.")
    cluster.balance(webhooks=1, media=0)
    await call.hang_up()
    assert _caller_lines(await cluster.whole(1)) == ["I would like to book a table."]
    assert "red bike" not in cluster.documents()[0]
    await cluster.links[0].mend()
    everything = ["I would like to book a table.", "Please remember the red bike."]
    await until(lambda: [_caller_lines(text) for text in cluster.archives()] == [everything])
    await until(lambda: "red bike" in cluster.documents()[0])
    assert _caller_lines(await cluster.whole(0, 1)) == everything


async def test_words_at_a_node_cut_off_are_added_to_a_call_that_went_on(cluster: Cluster) -> None:
    """Its media breaks as well, and the call goes on at the other node, which has not heard the last words."""
    call, conversation = await cluster.dial()
    await conversation.user_says("I would like to book a table.")
    await cluster.knows("I would like to book a table.")
    await cluster.links[0].cut()
    await conversation.user_says("For two, please.")
    cluster.balance(webhooks=1, media=1)
    await call.drop()
    await call.wait_stream(2)
    again = await cluster.conversation()
    await again.user_says("Tomorrow evening.")
    await cluster.links[0].mend()
    await call.hang_up()
    everything = ["I would like to book a table.", "For two, please.", "Tomorrow evening."]
    await until(lambda: [_caller_lines(text) for text in cluster.archives()] == [everything])
    assert _caller_lines(await cluster.whole(0, 1)) == everything


async def test_killed_node_adds_what_it_had_not_shared(cluster: Cluster) -> None:
    """Its call log has more turns than the job that the other node has made: they reach archive and document."""
    call, conversation = await cluster.dial()
    await conversation.user_says("I would like to book a table.")
    await cluster.knows("I would like to book a table.")
    await cluster.links[0].cut()
    await conversation.user_says("Please remember the red bike.")
    await cluster.nodes[0].has_logged("Please remember the red bike.")
    cluster.balance(webhooks=1, media=1)
    await cluster.nodes[0].kill()
    await call.hang_up()
    assert _caller_lines(await cluster.whole(1)) == ["I would like to book a table."]
    assert "red bike" not in cluster.documents()[0]
    await cluster.links[0].mend()
    await cluster.nodes[0].start()
    everything = ["I would like to book a table.", "Please remember the red bike."]
    await until(lambda: [_caller_lines(text) for text in cluster.archives()] == [everything])
    await until(lambda: "red bike" in cluster.documents()[0])
    assert _caller_lines(await cluster.whole(0, 1)) == everything


async def test_node_that_dies_soon_after_redis_forgot(cluster: Cluster) -> None:
    """It is known again at once, with its calls: the other node finds them."""
    call, conversation = await cluster.dial()
    await conversation.user_says("I would like to book a table.")
    await cluster.knows("I would like to book a table.")
    await cluster.redis.empty()
    await cluster.knows("I would like to book a table.")
    cluster.carrier.gateway_url = cluster.carrier.media_gateway_url = "http://127.0.0.1:1"  # reports reach no node
    await cluster.nodes[0].kill()
    await call.hang_up()
    cluster.balance(webhooks=1, media=1)
    assert _caller_lines(await cluster.whole(1)) == ["I would like to book a table."]


def _caller_lines(archive: str) -> list[str]:
    return re.findall(r"^CALLER: (.*)$", archive, re.MULTILINE)
