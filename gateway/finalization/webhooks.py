"""
Webhooks: signed messages to the operator's server when a call ends, and for other events that an agent selects.

Messages are rows of an outbox. Each is stored before it is sent, and sent until the server accepts it, so a killed
process or an outage loses none; it keeps its `webhook-id` on every attempt. Signed as Standard Webhooks specifies
(https://www.standardwebhooks.com), with every secret of WEBHOOK_SECRET: a secret is replaced by adding the new one
first.
"""

import asyncio
import base64
import hashlib
import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from secrets import token_bytes
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import orjson

from gateway.agents import WEBHOOK_EVENTS
from gateway.errors import SettingsError, StoreError
from gateway.finalization.summary.call_summary import CallSummary
from gateway.invocation import command
from gateway.memory.stores.database import Connection, tables
from gateway.memory.stores.store import MemoryStore
from gateway.metrics import WEBHOOKS
from gateway.session import EndReason, VoiceSession
from gateway.settings import Secret

SCHEMA: Final = tables("webhooks")

CALL_ENDED, CALL_STARTED, CALL_TRANSFERRED, FINALIZATION_FAILED, VOICEMAIL_LEFT = WEBHOOK_EVENTS

MOST_AT_ONCE: Final = 20
GONE: Final = 410
"""The server wants no more messages (Standard Webhooks)."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WebhookTimeouts:
    """All in seconds."""

    request: float = 15.0
    retries: tuple[float, ...] = (5.0, 30.0, 120.0, 300.0, 900.0, 1800.0, 3600.0)
    """Between attempts; the last one repeats."""
    give_up: float = 48 * 3600.0
    """After this the message has failed, and waits for `gateway sessions retry`."""
    lease: float = 20.0
    """How long a message belongs to the process that sends it. More than `request`."""
    poll: float = 10.0
    """How often messages of other processes are looked for."""
    keep_sent: float = 7 * 86_400.0


@dataclass(frozen=True)
class WebhookTarget:
    """Where an agent's messages go, and which it sends."""

    url: str
    events: frozenset[str] = frozenset({CALL_ENDED})


@dataclass(frozen=True)
class WebhookMessage:
    """One message. Its id follows from session and event, so that it is never made twice."""

    event: str
    session_id: str
    agent: str
    caller: str
    content: Mapping[str, Any]

    @property
    def id(self) -> str:
        return f"msg_{hashlib.sha256(f'{self.session_id} {self.event}'.encode()).hexdigest()[:32]}"

    def body(self, at: datetime) -> bytes:
        return orjson.dumps({"type": self.event, "timestamp": _moment(at), **self.content})


class NoWebhooks:
    """Sends nothing."""

    def wants(self, agent: str, event: str) -> bool:
        return False

    async def add(self, message: WebhookMessage) -> None: ...

    def observe(self, event: Mapping[str, Any]) -> None: ...

    async def run(self) -> None: ...


class WebhookOutbox:
    """
    Stores messages and delivers them.

    `targets`: by agent. `shares_store`: other processes deliver the same messages. One that was being sent when its
    process died is sent again when its lease ends; without other processes, at the start.
    """

    def __init__(
        self,
        store: MemoryStore,
        http: httpx.AsyncClient,
        targets: Mapping[str, WebhookTarget],
        secrets: Sequence[Secret],
        *,
        shares_store: bool = False,
        timeouts: WebhookTimeouts = WebhookTimeouts(),
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._store = store
        self._http = http
        self._targets = targets
        self._secrets = tuple(secrets)
        self._shares_store = shares_store
        self._timeouts = timeouts
        self._now = now
        self._observed: list[WebhookMessage] = []
        self._news = asyncio.Event()

    def wants(self, agent: str, event: str) -> bool:
        target = self._targets.get(agent)
        return target is not None and event in target.events

    async def add(self, message: WebhookMessage) -> None:
        """Store a message; the same one again changes nothing. Raises StoreUnavailable."""
        now = self._now()
        statement = """INSERT INTO webhook_messages VALUES (?, ?, ?, ?, ?, ?, 'pending', 0, ?, '', ?)
            ON CONFLICT (id) DO NOTHING"""
        about = (message.session_id, message.agent, message.caller, message.event)
        await self._store.change(statement, message.id, *about, message.body(now).decode(), _moment(now), _moment(now))
        self._news.set()

    def observe(self, event: Mapping[str, Any]) -> None:
        """Take a live event of a call. Returns at once; the message is stored by `run`."""
        match event:
            case {"event": "answered", "attempt": 0}:
                kind = CALL_STARTED
            case {"event": "hangup", "reason": EndReason.TRANSFERRED}:
                kind = CALL_TRANSFERRED
            case {"event": "finished", "problem": str(problem)} if problem:
                kind = FINALIZATION_FAILED
            case _:
                return
        if event["caller"] and self.wants(event["agent"], kind):
            content = {name: event[name] for name in ("session", "agent", "caller", "carrier")}
            if kind == FINALIZATION_FAILED:
                content["problem"] = event["problem"]
            self._observed.append(WebhookMessage(kind, event["session"], event["agent"], event["caller"], content))
            self._news.set()

    # Delivery

    async def run(self) -> None:
        """Until cancelled, deliver what is due."""
        leased = not self._shares_store
        async with asyncio.TaskGroup() as sending:
            while True:
                self._news.clear()
                try:
                    if leased:
                        change = "UPDATE webhook_messages SET due_at = ? WHERE state = 'pending' AND due_at > ?"
                        await self._store.change(change, _moment(self._now()), _moment(self._now()))
                        leased = False
                    while self._observed:
                        await self.add(self._observed[0])
                        del self._observed[0]
                    for row in await self._claim():
                        sending.create_task(self._deliver(*row))
                    wait = await self._next_due()
                except StoreError as error:
                    _log.warning("webhook messages could not be read", extra={"reason": str(error)})
                    wait = self._timeouts.poll
                try:
                    async with asyncio.timeout(wait):
                        await self._news.wait()
                except TimeoutError:
                    continue

    async def _claim(self) -> list[tuple[str, str, str, str, int, str]]:
        """Messages that are due, reserved for this process; deletes those that were accepted long ago."""
        now, timeouts = self._now(), self._timeouts
        leased = _moment(now + timedelta(seconds=timeouts.lease))

        def work(connection: Connection) -> list[tuple[str, str, str, str, int, str]]:
            old = _moment(now - timedelta(seconds=timeouts.keep_sent))
            connection.execute("DELETE FROM webhook_messages WHERE state = 'sent' AND due_at < ?", (old,))
            query = """SELECT id, agent, event, body, attempts, created_at, due_at FROM webhook_messages
                WHERE state = 'pending' AND due_at <= ? ORDER BY due_at LIMIT ?"""
            take = "UPDATE webhook_messages SET due_at = ? WHERE id = ? AND state = 'pending' AND due_at = ?"
            due = connection.execute(query, (_moment(now), MOST_AT_ONCE)).fetchall()
            return [row[:6] for row in due if connection.execute(take, (leased, row[0], row[6])).rowcount]

        return await self._store.run(work)

    async def _next_due(self) -> float:
        """Seconds until the next message is due, at most `poll`."""
        query = "SELECT MIN(due_at) FROM webhook_messages WHERE state = 'pending'"
        [(due_at,)] = await self._store.fetch(query)
        if due_at is None:
            return self._timeouts.poll
        return max(0.0, min((datetime.fromisoformat(due_at) - self._now()).total_seconds(), self._timeouts.poll))

    async def _deliver(
        self, message_id: str, agent: str, event: str, body: str, attempts: int, created_at: str
    ) -> None:
        """One attempt, and what became of it."""
        target, fields = self._targets.get(agent), {"webhook": event, "webhook_id": message_id}
        if target is None:
            problem, pause = "no webhook is set for this agent", None
        else:
            problem, pause = await self._post(target.url, message_id, body)
            fields["host"] = urlsplit(target.url).hostname or ""
        now, change = self._now(), "UPDATE webhook_messages SET state = ?, due_at = ?, problem = ?, attempts = ?"
        age = (now - datetime.fromisoformat(created_at)).total_seconds()
        if not problem:
            state, change = "sent", f"{change}, body = ''"
            _log.info("webhook delivered", extra=fields)
        elif pause is None or age > self._timeouts.give_up:
            state = "failed"
            _log.error("webhook failed", extra={**fields, "reason": problem})
        else:
            state, retries = "pending", self._timeouts.retries
            pause = max(pause, retries[min(attempts, len(retries) - 1)] * random.uniform(0.8, 1.2))
            if not attempts:
                _log.warning("webhook will be retried", extra={**fields, "reason": problem})
        WEBHOOKS.labels(event, {"pending": "retried"}.get(state, state)).inc()
        due_at = _moment(now + timedelta(seconds=pause or 0.0))
        try:
            await self._store.change(f"{change} WHERE id = ?", state, due_at, problem, attempts + 1, message_id)
        except StoreError as error:  # the lease expires, and it is sent again with the same id
            _log.warning("webhook's state could not be stored", extra={**fields, "reason": str(error)})
        self._news.set()

    async def _post(self, url: str, message_id: str, body: str) -> tuple[str, float | None]:
        """The problem, empty on success, and the shortest pause before the next attempt; None for never."""
        headers = signed_headers(self._secrets, message_id, body, self._now())
        try:
            response = await self._http.post(url, content=body, headers=headers, timeout=self._timeouts.request)
        except httpx.HTTPError as error:
            return type(error).__name__, 0.0
        if response.is_success:
            return "", 0.0
        if response.status_code == GONE:
            return "status 410, the server wants no more messages", None
        retry_after = response.headers.get("retry-after", "")
        wanted = float(retry_after) if retry_after.isdecimal() else 0.0
        return f"status {response.status_code}", min(wanted, self._timeouts.retries[-1])


async def send_test(http: httpx.AsyncClient, url: str, secrets: Sequence[Secret], content: Mapping[str, Any]) -> int:
    """Post one signed message at once and return the status. Raises httpx.HTTPError."""
    now = datetime.now(UTC)
    message_id = f"msg_test_{now:%Y%m%d%H%M%S}"
    body = orjson.dumps({"type": "test", "timestamp": _moment(now), **content}).decode()
    response = await http.post(url, content=body, headers=signed_headers(secrets, message_id, body, now))
    return response.status_code


async def undelivered(store: MemoryStore) -> list[dict[str, Any]]:
    """The messages that were not accepted yet, oldest first. Raises StoreUnavailable."""
    names = ("id", "session", "agent", "event", "state", "attempts", "due_at", "problem")
    query = """SELECT id, session_id, agent, event, state, attempts, due_at, problem FROM webhook_messages
        WHERE state <> 'sent' ORDER BY created_at"""
    return [dict(zip(names, row, strict=True)) for row in await store.fetch(query)]


async def retry_failed(store: MemoryStore, session_id: str = "") -> int:
    """Queue all failed messages again, or those of one call. Returns how many there were."""
    now = _moment(datetime.now(UTC))
    change = """UPDATE webhook_messages SET state = 'pending', due_at = ?, created_at = ?, problem = '', attempts = 0
        WHERE state = 'failed' AND ? IN ('', session_id)"""
    return await store.change(change, now, now, session_id)


def check_secrets(secrets: Sequence[Secret]) -> None:
    """Raises SettingsError for a secret that signs nothing."""
    from standardwebhooks import Webhook

    for secret in secrets:
        try:
            Webhook(secret.reveal())
        except Exception:  # an error of base64, or of the library's own; the text may quote the secret
            raise SettingsError(
                f"WEBHOOK_SECRET must be whsec_ followed by base64; make one with: {command('webhook secret')}"
            ) from None


def new_secret() -> str:
    return f"whsec_{base64.b64encode(token_bytes(32)).decode()}"


def signed_headers(secrets: Sequence[Secret], message_id: str, body: str, now: datetime) -> dict[str, str]:
    from standardwebhooks import Webhook

    signatures = [Webhook(secret.reveal()).sign(message_id, now, body) for secret in secrets]
    return {
        "content-type": "application/json",
        "user-agent": "voice-gateway",
        "webhook-id": message_id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": " ".join(signatures),
    }


def call_ended(session: VoiceSession, summary: CallSummary | None, fields: Iterable[str] = ()) -> WebhookMessage:
    """
    The message about a finished call. Without a summary, the call has left no document.

    `fields`: what the agent asks for; every one of them is in the message, None if there is no value.
    """
    notes = {name: value for name, value in asdict(summary).items() if name in _NOTES} if summary else None
    content = {
        "session": session.id,
        "agent": session.agent,
        "caller": session.caller,
        **({"number": session.number} if session.number else {}),
        "carrier": session.carrier,
        "engine": session.engine,
        "started_at": _moment(session.started_at),
        "ended_at": _moment(session.ended_at or session.started_at),
        "seconds": round(max(session.seconds, 0.0), 1),
        "end_reason": str(session.end_reason or EndReason.FAILED),
        "turns": [
            {"speaker": turn.speaker, "text": turn.text, "at": _moment(turn.at), "unheard": turn.unheard}
            for turn in session.turns
            if turn.kept
        ],
        "summary": notes,
        "facts": [
            {"text": fact.text, "type": fact.type, "confidence": fact.confidence}
            for fact in (summary.caller_facts if summary else ())
        ],
        "fields": {**dict.fromkeys(fields), **(summary.fields if summary else {})},
        "usage": session.usage,
    }
    return WebhookMessage(CALL_ENDED, session.id, session.agent, session.caller, content)


def voicemail_left(session: VoiceSession) -> WebhookMessage:
    """The message about a call whose message a mailbox has. The words are in its `call.ended`."""
    content = {"session": session.id, "agent": session.agent, "caller": session.caller, "carrier": session.carrier}
    content |= {"number": session.number} if session.number else {}
    return WebhookMessage(VOICEMAIL_LEFT, session.id, session.agent, session.caller, content)


_NOTES: Final = ("caller_name", "topics", "decisions", "action_items", "facts", "context", "written_by")


def _moment(at: datetime) -> str:
    """Of one width, so that text order is time order."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds")
