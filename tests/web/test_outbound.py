"""Outbound calls: who may place them, what the agent knows about them, and calls that are not answered."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes.webhook_receiver import SECRET, WebhookReceiver
from tests.live import watching
from tests.stage import ADMIN, CALLED, CALLER, Stage, make_carrier, running_gateway, staged, until

AGENTS = f"""
[agents.maya]
prompt = "maya.md"
numbers = ["{CALLED}"]
greeting = "Hello, this is Maya."
webhook_events = ["call.ended", "voicemail.left"]
[agents.maya.memory.repeat_caller]
identifier_source = "integration_attribute:customer_id"

[agents.otto]
prompt = "otto.md"
"""


@pytest.fixture
async def receiver() -> AsyncIterator[WebhookReceiver]:
    async with WebhookReceiver().running() as made:
        yield made


@pytest.fixture
async def stage(carrier_name: str, tmp_path: Path, receiver: WebhookReceiver) -> AsyncIterator[Stage]:
    async with called_by(carrier_name, tmp_path, receiver) as made:
        yield made


@contextlib.asynccontextmanager
async def called_by(carrier_name: str, tmp_path: Path, receiver: WebhookReceiver) -> AsyncIterator[Stage]:
    (tmp_path / "maya.md").write_text("You are Maya.\n{{memory}}\nWhy you call: {{context}}\nThat is all.")
    (tmp_path / "otto.md").write_text("You are Otto.")
    (tmp_path / "gateway.toml").write_text(AGENTS)
    # No number may call this gateway; it may dial all the same.
    environ = {"ALLOWED_CALLERS": "", "WEBHOOK_URL": receiver.url, "WEBHOOK_SECRET": SECRET}
    async with staged(tmp_path, make_carrier(carrier_name), **environ) as made:
        made.carrier.callee = "answers"
        yield made


async def place(stage: Stage, **order: Any) -> httpx.Response:
    return await stage.http.post("/v1/outbound/call", json={"to": CALLER, **order})


async def placed(stage: Stage, **order: Any) -> tuple[Any, Any, dict[str, str]]:
    """The call, its conversation, and what was answered."""
    answer = await place(stage, **order)
    assert answer.status_code == 202, answer.text
    conversation = await stage.engine.next_conversation()
    await conversation.configured()
    [call] = [call for call in stage.carrier.calls if call.id == answer.json()["call_id"]]
    return call, conversation, answer.json()


async def test_agent_calls_and_knows_why(stage: Stage, carrier_name: str):
    call, conversation, answer = await placed(stage, context="The bike is ready.", greeting="Your bike is ready.")
    assert (call.caller, call.called) == (CALLED, CALLER)
    assert (answer["carrier"], answer["status"]) == (carrier_name, "queued")
    assert "Why you call: The bike is ready.\nThat is all." in conversation.prompt
    assert conversation.settings["agent"]["greeting"] == "Your bike is ready."
    await conversation.user_says("I will come at five.")
    await call.hang_up()
    document = await stage.document()
    assert f"**Session:** {answer['session']}" in document["content"]
    assert "CALLER: I will come at five." in await stage.archive()


async def test_prompt_without_a_place_gets_the_context_at_its_end(stage: Stage):
    call, conversation, _ = await placed(stage, agent="otto", **{"from": CALLED}, context={"order": 17, "paid": True})
    assert conversation.prompt == "You are Otto.\n\n# Why you are calling\norder: 17\npaid: true"
    await call.hang_up()


async def test_context_may_say_whose_memory_it_is(stage: Stage):
    for text in ("My dog is called Rex.", "Hello again."):
        call, conversation, _ = await placed(stage, context={"customer_id": "C-17"})
        await conversation.user_says(text)
        await call.hang_up()
        await stage.idle()
    assert "Rex" in conversation.prompt
    assert len(await stage.documents(caller="integration_attribute:customer_id:C-17")) == 2


async def test_call_that_comes_in_has_no_context(stage: Stage, carrier_name: str, tmp_path: Path):
    async with staged(tmp_path / "other", make_carrier(carrier_name)) as other:
        call, conversation = await other.dial()
        assert "{{context}}" not in conversation.prompt
        await call.hang_up()


async def test_conversation_goes_on_after_a_lost_stream(stage: Stage):
    """With the same context, in the same session."""
    call, conversation, _ = await placed(stage, context="The bike is ready.")
    await stage.answer(call, conversation, "Your bike is ready.")
    await call.streams[0].abort()
    again = await stage.engine.next_conversation()
    await again.configured()
    assert "Why you call: The bike is ready." in again.prompt
    assert again.settings["agent"]["context"]["messages"][-1]["content"].endswith("Your bike is ready.")
    await call.hang_up()
    assert len(stage.archives()) <= 1


@pytest.mark.parametrize("outcome, reasons", [("busy", {"busy", "user busy"}), ("no-answer", {"no answer", "timeout"})])
async def test_nobody_picks_up(stage: Stage, outcome: str, reasons: set[str]):
    stage.carrier.callee = outcome
    async with watching(stage.url) as watcher:
        session = (await place(stage)).json()["session"]
        await watcher.sees("unanswered")
    told = {event["event"]: event for event in watcher.events if event["session"] == session}
    assert list(told) == ["dialling", "unanswered"]
    assert told["unanswered"]["reason"] in reasons
    assert stage.archives() == []


async def test_webhook_asked_twice_is_answered_the_same(stage: Stage, carrier_name: str):
    if carrier_name == "telnyx":
        stage.carrier.repeats = "after"
    call, _, _ = await placed(stage)
    assert len(call.streams) == 1
    await call.hang_up()


async def test_order_is_not_readable_on_disk(stage: Stage, tmp_path: Path):
    stage.carrier.callee = "rings"
    await place(stage, context="Heliotrope.")
    await until(lambda: stage.carrier.calls)
    content = b"".join(path.read_bytes() for path in (tmp_path / "data").glob("local.db*"))
    assert b"order:" in content
    assert b"Heliotrope" not in content


# Mailboxes

MESSAGE = "This is Maya. Your bike is ready, please call back."


async def test_mailbox_gets_the_message_and_the_webhook_says_so(stage: Stage, receiver: WebhookReceiver):
    call, conversation, answer = await placed(stage, voicemail={"say": MESSAGE})
    await conversation.user_says("You have reached Bertha Okafor. I am in Lisbon. Please leave a message.")
    await call.detects("unknown")  # changes nothing
    await call.detects("beep")
    await call.over()
    [left] = await until(lambda: receiver.messages("voicemail.left"))
    [ended] = await until(receiver.messages)
    assert left["session"] == ended["session"] == answer["session"] and left["caller"] == CALLER
    assert ended["end_reason"] == "voicemail left" and ended["turns"][-1]["text"] == MESSAGE
    document = await stage.document()
    assert f"A message was left on the voicemail: {MESSAGE}" in document["content"]
    await stage.idle()
    shown = (await stage.http.get(f"/v1/sessions/{answer['session'].partition(':')[2]}")).json()
    assert shown["outcome"] == "voicemail left"
    # What the machine said is nowhere: it is not the caller's.
    assert "Lisbon" not in str([document, ended, stage.archives(), shown]) and "bike" in await stage.archive()
    assert not receiver.repeated and call.violations == []


async def test_mailbox_gets_the_message_on_a_new_stream(stage: Stage, receiver: WebhookReceiver):
    """The stream is lost while the mailbox's greeting plays; the new one is silent until its end, too."""
    call, conversation, _ = await placed(stage, voicemail={"say": MESSAGE})
    await stage.answer(call, conversation, "Am I speaking to Bertha?")
    await call.detects("machine")
    await call.streams[0].abort()
    again = await stage.engine.next_conversation()
    await again.configured()
    await call.detects("beep")
    await call.over()
    [ended] = await until(receiver.messages)
    assert ended["end_reason"] == "voicemail left" and ended["turns"][-1]["text"].endswith(MESSAGE)
    assert len(await until(lambda: receiver.messages("voicemail.left"))) == 1 and not receiver.repeated


@pytest.mark.parametrize("answerer", ["machine", "fax"])
async def test_mailbox_is_hung_up_on_and_leaves_no_document(stage: Stage, receiver: WebhookReceiver, answerer: str):
    call, conversation, _ = await placed(stage, voicemail="hang_up")
    await conversation.user_says("Please leave a message after the tone.")
    await call.detects(answerer)
    await call.over()
    [ended] = await until(receiver.messages)
    assert (ended["end_reason"], ended["summary"], ended["facts"]) == ("voicemail reached", None, [])
    await stage.idle()
    assert await stage.documents() == [] and receiver.messages("voicemail.left") == []


async def test_person_talks_on(stage: Stage, receiver: WebhookReceiver):
    call, conversation, _ = await placed(stage, voicemail={"say": MESSAGE})
    await call.detects("person")
    await conversation.user_says("Hello? I will come at five.")
    await call.hang_up()
    await call.detects("machine")  # late, and wrong
    [ended] = await until(receiver.messages)
    assert ended["end_reason"] == "caller hung up" and (await stage.document())["content"]
    assert receiver.messages("voicemail.left") == []


async def test_detection_is_not_paid_for_unless_wanted(stage: Stage, carrier_name: str):
    call, _, _ = await placed(stage)
    asked = call.detection if carrier_name == "twilio" else call.originated_with.get("answering_machine_detection")
    assert not asked
    await call.hang_up()


async def test_telnyx_event_without_call_id_is_understood(tmp_path: Path, receiver: WebhookReceiver):
    async with called_by("telnyx", tmp_path, receiver) as stage:
        call, _, _ = await placed(stage, voicemail="hang_up")
        await call.detects("machine", call_control_id=None)
        await call.over()


# Refused


@pytest.mark.parametrize("headers", [{}, {"X-API-Key": "guess"}, {"Authorization": "Bearer guess"}])
async def test_only_the_admin_may_place_calls(stage: Stage, headers: dict[str, str]):
    async with httpx.AsyncClient(base_url=stage.url, trust_env=False) as http:
        answer = await http.post("/v1/outbound/call", json={"to": CALLER}, headers=headers)
    assert (answer.status_code, stage.carrier.calls) == (401, [])


@pytest.mark.parametrize(
    "order, problem",
    [
        ({"to": "Anna"}, "to must be a phone number like +12025550143"),
        ({"to": 5}, "to must be text"),
        ({"from": "us"}, "from must be a phone number like +12025550100"),
        ({"agent": "nobody"}, "no agent is named nobody; the agents are maya, otto"),
        ({"agent": "otto"}, "from is missing: a phone number of your carrier account"),
        ({"carrier": "pigeon"}, "carrier must be a configured one: {carrier}"),
        ({"context": ["a"]}, "context must be text"),
        (
            {"context": {"a": {"b": 1}}},
            "context must be text, or an object whose values are text, numbers, true or false",
        ),
        ({"context": "x" * 8001}, "context is longer than 8000 characters"),
        ({"greeting": "x" * 501}, "greeting is longer than 500 characters"),
        (
            {"when": "now"},
            "unknown field when; known fields are agent, carrier, context, from, greeting, to, voicemail",
        ),
        ({"voicemail": "leave one"}, 'voicemail must be "hang_up" or {{"say": "…"}}'),
        ({"voicemail": {"say": " "}}, 'voicemail must be "hang_up" or {{"say": "…"}}'),
        ({"voicemail": {"say": "Hi.", "after": 3}}, 'voicemail must be "hang_up" or {{"say": "…"}}'),
        ({"voicemail": {"say": "x" * 1001}}, "voicemail is longer than 1000 characters"),
    ],
)
async def test_wrong_order_is_explained(stage: Stage, carrier_name: str, order: dict[str, Any], problem: str):
    answer = await place(stage, **order)
    assert (answer.status_code, answer.json()) == (400, {"detail": problem.format(carrier=carrier_name)})
    assert stage.carrier.calls == []


async def test_carrier_that_refuses_is_named(stage: Stage, carrier_name: str):
    stage.carrier.fail("dial" if carrier_name == "telnyx" else "create", status=403, code="10010")
    answer = await place(stage)
    assert answer.status_code == 502
    assert answer.json()["detail"].startswith(f"{carrier_name} refused dial")


async def test_without_a_carrier_nobody_can_be_called(tmp_path: Path):
    environ = {"DATA_DIR": str(tmp_path / "data"), "GATEWAY_ADMIN_TOKEN": ADMIN, "DEEPGRAM_API_KEY": "dg-test-key"}
    async with running_gateway(environ, tmp_path) as url, httpx.AsyncClient(base_url=url, trust_env=False) as http:
        answer = await http.post("/v1/outbound/call", json={"to": CALLER}, headers={"X-API-Key": ADMIN})
    assert (answer.status_code, answer.json()["detail"]) == (
        503,
        "no carrier is configured; set the keys for Twilio or Telnyx",
    )
