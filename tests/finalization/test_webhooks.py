"""The outbox with a real store, and a receiver that checks signatures with the official library."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime

import httpx
import pytest
from standardwebhooks import Webhook

from gateway.errors import SettingsError
from gateway.finalization.webhooks import (
    WEBHOOK_EVENTS,
    NoWebhooks,
    WebhookMessage,
    WebhookOutbox,
    WebhookTarget,
    WebhookTimeouts,
    call_ended,
    check_secrets,
    new_secret,
    retry_failed,
    send_test,
    signed_headers,
)
from gateway.history.stores import open_local_store
from gateway.memory.facts import CallerFact
from gateway.session import EndReason
from gateway.settings import Secret
from tests.calls.aftermath import CALLER, SUMMARY, WORDS, a_session
from tests.fakes.webhook_receiver import SECRET, WebhookReceiver
from tests.stage import until

QUICK = WebhookTimeouts(request=5.0, retries=(0.01,), lease=30.0, poll=0.05)
MESSAGE = WebhookMessage("call.ended", "voice-session:1", "maya", CALLER, {"session": "voice-session:1"})


@pytest.fixture
async def receiver() -> AsyncIterator[WebhookReceiver]:
    async with WebhookReceiver().running() as receiver:
        yield receiver


@pytest.fixture
async def store(tmp_path):
    store = await open_local_store(tmp_path)
    yield store
    await store.close()


@contextlib.asynccontextmanager
async def outbox(store, url, *, events=WEBHOOK_EVENTS, timeouts=QUICK, secrets=(SECRET,), now=None):
    options = {} if now is None else {"now": now}
    target = WebhookTarget(url, frozenset(events))
    async with httpx.AsyncClient(trust_env=False) as http:
        made = WebhookOutbox(store, http, {"maya": target}, [Secret(s) for s in secrets], timeouts=timeouts, **options)
        running = asyncio.ensure_future(made.run())
        try:
            yield made
            assert not running.done()
        finally:
            running.cancel()
            await asyncio.wait({running})


async def rows(store):
    return await store.fetch("SELECT state, attempts, problem, body FROM webhook_messages")


async def test_message_is_delivered_once(store, receiver):
    async with outbox(store, receiver.url) as box:
        await box.add(MESSAGE)
        await until(lambda: receiver.accepted)
        await box.add(MESSAGE)  # the step that made it is repeated after a restart
        await until_sent(store)
    assert receiver.attempts == [MESSAGE.id]
    assert receiver.accepted[MESSAGE.id]["session"] == "voice-session:1"
    assert await rows(store) == [("sent", 1, "", "")]


async def until_sent(store):
    while any(state == "pending" for state, *_ in await rows(store)):
        await asyncio.sleep(0.01)


async def test_refused_message_is_repeated_with_the_same_id(store, receiver):
    receiver.answers = [500, 429, 400]
    async with outbox(store, receiver.url) as box:
        await box.add(MESSAGE)
        await until(lambda: receiver.accepted)
    assert receiver.attempts == [MESSAGE.id] * 4


async def test_first_retry_is_soon_and_pauses_grow():
    retries = WebhookTimeouts().retries
    assert retries[0] * 1.2 < 45
    assert list(retries) == sorted(retries) and retries[-1] == 3600


async def test_message_waits_for_a_server_that_is_away(store, receiver):
    async with outbox(store, "http://127.0.0.1:9/hook") as box:
        await box.add(MESSAGE)
        while (await rows(store))[0][1] < 2:
            await asyncio.sleep(0.01)
        [(state, _, problem, _)] = await rows(store)
    assert (state, problem) == ("pending", "ConnectError")
    async with outbox(store, receiver.url):  # the process was started again
        await until(lambda: receiver.accepted)


async def test_message_that_was_claimed_by_a_killed_process_is_sent_again(store, receiver):
    """Its lease is over."""
    clock = [datetime(2026, 2, 6, tzinfo=UTC)]
    async with httpx.AsyncClient(trust_env=False) as http:
        dead = WebhookOutbox(store, http, {}, [Secret(SECRET)], timeouts=QUICK, now=lambda: clock[0])
        await dead.add(MESSAGE)
        assert await dead._claim() and not await dead._claim()
    async with outbox(store, receiver.url):
        await until(lambda: receiver.accepted)


async def test_two_processes_share_the_work(store, receiver):
    messages = [replace(MESSAGE, session_id=f"voice-session:{number}") for number in range(30)]
    async with outbox(store, receiver.url) as one, outbox(store, receiver.url):
        for message in messages:
            await one.add(message)
        await until(lambda: len(receiver.accepted) == 30)
        await until_sent(store)
    assert sorted(receiver.attempts) == sorted(message.id for message in messages)


async def test_gone_server_gets_no_more_attempts_until_retried(store, receiver):
    receiver.answers = [410]
    async with outbox(store, receiver.url) as box:
        await box.add(MESSAGE)
        while (await rows(store))[0][0] != "failed":
            await asyncio.sleep(0.01)
        assert receiver.attempts == [MESSAGE.id]
        assert await retry_failed(store, "voice-session:other") == 0
        assert await retry_failed(store, "voice-session:1") == 1
        await until(lambda: receiver.accepted)


async def test_message_fails_after_two_days(store, receiver):
    """It stays, with its body, for an operator who mends the server."""
    receiver.answers = [500] * 50
    async with outbox(store, receiver.url, timeouts=replace(QUICK, give_up=0.0)) as box:
        await box.add(MESSAGE)
        while (await rows(store))[0][0] != "failed":
            await asyncio.sleep(0.01)
    [(_, attempts, problem, body)] = await rows(store)
    assert (attempts, problem) == (1, "status 500") and body
    assert WebhookTimeouts().give_up == 48 * 3600


async def test_accepted_messages_are_deleted_after_a_week(store, receiver):
    async with outbox(store, receiver.url) as box:
        await box.add(MESSAGE)
        await until_sent(store)
        await store.change("UPDATE webhook_messages SET due_at = '2026-01-01T00:00:00.000+00:00'")
        while await rows(store):
            await asyncio.sleep(0.01)


async def test_every_secret_signs():
    """While one replaces the other, a receiver may have either."""
    secrets, now = [new_secret(), new_secret()], datetime.now(UTC)
    headers = signed_headers([Secret(secret) for secret in secrets], "msg_1", '{"type":"test"}', now)
    for secret in secrets:
        assert Webhook(secret).verify('{"type":"test"}', headers) == {"type": "test"}


@pytest.mark.parametrize("secret", ["whsec_", "whsec_a", ""])
def test_secret_that_signs_nothing_is_refused(secret):
    with pytest.raises(SettingsError, match="gateway webhook secret") as caught:
        check_secrets([Secret(secret)])
    assert secret not in str(caught.value) or secret in ("", "whsec_")


async def test_test_message_is_signed(receiver):
    async with httpx.AsyncClient(trust_env=False) as http:
        assert await send_test(http, receiver.url, [Secret(SECRET)], {"agent": "maya"}) == 200
    [message] = receiver.messages("test")
    assert message["agent"] == "maya"


# What is in a message


def test_finished_call_is_reported_as_the_contract_says():
    fact = CallerFact("Prefers mornings", "preference", 0.9, (1,))
    summary = replace(SUMMARY, caller_facts=(fact,), fields={"order": "A12", "urgent": None})
    message = call_ended(a_session(engine="deepgram", usage={"input_tokens": 7}), summary)
    content = dict(message.content)
    assert content.pop("summary")["topics"] == SUMMARY.topics
    assert content.pop("turns")[1]["text"] == WORDS
    assert content == {
        "session": message.session_id,
        "agent": "maya",
        "caller": CALLER,
        "carrier": "twilio",
        "engine": "deepgram",
        "started_at": "2026-02-06T23:15:00.000+00:00",
        "ended_at": "2026-02-06T23:19:22.000+00:00",
        "seconds": 262.0,
        "end_reason": "caller hung up",
        "facts": [{"text": "Prefers mornings", "type": "preference", "confidence": 0.9}],
        "fields": {"order": "A12", "urgent": None},
        "usage": {"input_tokens": 7},
    }


def test_call_without_a_document_is_reported_without_a_summary():
    content = call_ended(a_session(turns=[]), None, ["order", "urgent"]).content
    assert (content["summary"], content["facts"], content["turns"]) == (None, [], [])
    assert content["fields"] == {"order": None, "urgent": None}


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ({"event": "answered", "attempt": 0}, "call.started"),
        ({"event": "hangup", "reason": str(EndReason.TRANSFERRED)}, "call.transferred"),
        ({"event": "finished", "problem": "remote document: 401"}, "finalization.failed"),
    ],
)
async def test_other_moments_are_reported(store, receiver, event, kind):
    about = {"session": "voice-session:1", "agent": "maya", "caller": CALLER, "carrier": "twilio"}
    async with outbox(store, receiver.url) as box:
        box.observe(about | event)
        await until(lambda: receiver.messages(kind))
    assert receiver.messages(kind)[0]["session"] == "voice-session:1"


@pytest.mark.parametrize(
    "event",
    [
        {"event": "answered", "attempt": 1},  # its media stream was replaced
        {"event": "hangup", "reason": "caller hung up"},
        {"event": "finished", "problem": ""},
        {"event": "answered", "attempt": 0, "caller": ""},  # withheld
        {"event": "answered", "attempt": 0, "agent": "ben"},  # has no webhook
    ],
)
async def test_nothing_else_is_reported(store, event):
    about = {"session": "voice-session:1", "agent": "maya", "caller": CALLER, "carrier": "twilio"}
    async with outbox(store, "http://127.0.0.1:9/hook") as box:
        box.observe(about | event)
        await box.add(MESSAGE)
    assert len(await rows(store)) == 1


async def test_agent_without_the_event_sends_nothing(store, receiver):
    async with outbox(store, receiver.url, events=["call.ended"]) as box:
        assert box.wants("maya", "call.ended") and not box.wants("maya", "call.started")
        assert not box.wants("ben", "call.ended")
    assert not NoWebhooks().wants("maya", "call.ended")
