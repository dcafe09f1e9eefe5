"""Hosted agents, the widget and outbound calls at two gateways that share a real Redis."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from redis.asyncio import Redis

from gateway.cluster.redis_store import PREFIX
from tests.fakes.elevenlabs import AGENT_ID, FakeElevenLabs, conversation
from tests.fakes.webhook_receiver import SECRET, WebhookReceiver
from tests.redis_server import RedisServer, running_redis
from tests.stage import CALLED, CALLER, Stage, make_carrier, patient_client, staged, until, until_it
from tests.web.test_widget import SITE

AGENTS = f"""
[agents.maya]
prompt = "p.md"
greeting = "Hello, this is Maya."
numbers = ["{CALLED}"]
elevenlabs_agent = "{AGENT_ID}"
webhook_events = ["call.ended", "voicemail.left"]
"""


@dataclass
class Pair:
    """`a` has the carrier; `b` is another node."""

    a: Stage
    b: Stage
    elevenlabs: FakeElevenLabs
    receiver: WebhookReceiver
    redis: RedisServer

    async def knows_call(self, call_id: str) -> bool:
        """Whether every node sees what was decided about a hosted call. The answer does not wait for that."""
        async with Redis.from_url(self.redis.url) as client:
            return bool([name async for name in client.scan_iter(f"{PREFIX}*hosted:{call_id}")])

    async def documents(self) -> int:
        return len(await self.a.documents()) + len(await self.b.documents())

    async def idle(self) -> None:
        await self.a.idle()
        await self.b.idle()


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with contextlib.AsyncExitStack() as stack:
        redis = await stack.enter_async_context(running_redis(tmp_path / "redis"))
        elevenlabs = await stack.enter_async_context(FakeElevenLabs().running())
        receiver = await stack.enter_async_context(WebhookReceiver().running())
        carrier, stages = make_carrier("twilio", strict=False), []
        shared = {"REDIS_URL": redis.url, "WEBHOOK_URL": receiver.url, "WEBHOOK_SECRET": SECRET}
        for name in ("a", "b"):
            folder = tmp_path / name
            folder.mkdir()
            (folder / "p.md").write_text("You answer the phone.\n{{memory}}")
            (folder / "gateway.toml").write_text(AGENTS)
            given = {**shared, **elevenlabs.settings(), **(carrier.settings() if name == "b" else {})}
            own = carrier if name == "a" else make_carrier("twilio", strict=False)
            stages.append(await stack.enter_async_context(staged(folder, own, **given)))
        elevenlabs.gateway_url = stages[0].url
        yield Pair(stages[0], stages[1], elevenlabs, receiver, redis)


async def test_hosted_call_is_prepared_at_one_node_and_reported_at_another(pair: Pair) -> None:
    """What was decided when it rang holds at every node; reports at both leave one document and one webhook."""
    await pair.elevenlabs.rings(CALLER, "CAconv_1")
    token = pair.elevenlabs.variables["secret__call_token"]
    said = ("user", "My dog is called Rex.")
    data = conversation("conv_1", said, number=CALLER)
    await until_it(lambda: pair.knows_call("CAconv_1"))
    pair.elevenlabs.gateway_url = pair.b.url
    await pair.elevenlabs.rings(CALLER, "CAconv_1")
    assert pair.elevenlabs.variables["secret__call_token"] == token
    answers = []
    for url in (pair.b.url, pair.a.url, pair.b.url):
        pair.elevenlabs.gateway_url = url
        answers.append((await pair.elevenlabs.report(data)).status_code)
        await pair.idle()
    assert answers == [200] * 3
    await until_it(pair.documents)
    [message] = await until(pair.receiver.messages)
    assert (await pair.documents(), message["session"]) == (1, "voice-session:conv_1")
    assert not pair.receiver.repeated


async def test_widget_token_of_one_node_opens_one_call_at_any(pair: Pair) -> None:
    made = await pair.a.http.post("/v1/widget/tokens", json={"origin": SITE, "user_identity": "anna@42"})
    form, headers = {"token": made.json()["token"]}, {"Origin": SITE}

    async def call(url: str) -> httpx.Response:
        async with patient_client(url) as http:
            return await http.post("/widget/call", data=form, headers=headers)

    answers = await asyncio.gather(*(call(url) for url in (pair.a.url, pair.b.url) * 3))
    assert sorted(answer.status_code for answer in answers) == [201, *[403] * 5]


async def test_mailbox_is_reported_to_another_node(pair: Pair) -> None:
    carrier = pair.a.carrier
    carrier.callee = "answers"
    order = {"to": CALLER, "voicemail": {"say": "Please call back."}}
    answer = await pair.a.http.post("/v1/outbound/call", json=order)
    engine_side = await pair.a.engine.next_conversation()
    await engine_side.configured()
    [call] = carrier.calls
    carrier.gateway_url = pair.b.url
    await call.detects("beep")
    await call.over()
    [left] = await until(lambda: pair.receiver.messages("voicemail.left"))
    assert left["session"] == answer.json()["session"]
