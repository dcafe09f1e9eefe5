"""ElevenLabs' messages about calls of agents that it hosts. Without I/O, apart from the client of its REST API."""

import asyncio
import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote
from xml.etree import ElementTree

import httpx

from gateway.errors import CarrierRefused, SignatureRejected
from gateway.session import EndReason, Speaker, Turn
from gateway.settings import Secret
from gateway.telephony.hosted import (
    HostedConversation,
    Initiation,
    add_turn,
    conversation_id,
    prompt_variables,
    read_number,
    read_object,
    read_table,
    read_tables,
    read_text,
)

PLATFORM: Final = "elevenlabs"
PAST_SECONDS: Final = 30 * 60
FUTURE_SECONDS: Final = 5 * 60
TRANSCRIPTION: Final = "post_call_transcription"
CALL_TOKEN: Final = "secret__call_token"
"""The variable with the one-call token. Their language model does not see it; headers can hold it."""

_TEXT_SOURCES: Final = re.compile(r"whatsapp|twilio_sms|\w+_integration")
_UNKNOWN_SOURCES: Final = ("template_preview", "subagent_tool", "unknown")
_RESERVED: Final = ("system__", "secret__")


class SignatureCheck:
    """
    Verifies `ElevenLabs-Signature: t=<unix seconds>,v0=<hex>` over the raw body (ElevenLabs docs, "Webhooks").

    The body may come in pieces. The constructor, for a bad time, and `finish` raise SignatureRejected. Not the SDK's
    check: that fails on blanks, and with ValueError on a bad time.
    """

    def __init__(self, secret: str, header: str, *, now: float) -> None:
        parts = [part.strip().partition("=") for part in header.split(",")]
        times = [value for name, _, value in parts if name == "t"]
        if len(times) != 1 or not re.fullmatch("[0-9]{1,12}", times[0]):
            raise SignatureRejected("elevenlabs signature has no time")
        if not -FUTURE_SECONDS <= now - int(times[0]) <= PAST_SECONDS:
            raise SignatureRejected("elevenlabs signature is too far from our clock")
        self._given = [value.encode() for name, _, value in parts if name == "v0"]
        self._hmac = hmac.new(secret.encode(), times[0].encode() + b".", hashlib.sha256)

    def update(self, piece: bytes) -> None:
        self._hmac.update(piece)

    def finish(self) -> None:
        signed = self._hmac.hexdigest().encode()
        if not any(hmac.compare_digest(value, signed) for value in self._given):
            raise SignatureRejected("elevenlabs signature is missing or wrong")


# The webhook before a call


def read_initiation(body: bytes) -> Initiation:
    """Raises RemoteProtocolError."""
    given = read_object(body, PLATFORM)
    agent_id, caller, called, call_id = (
        value if isinstance(value := given.get(name), str) else ""
        for name in ("agent_id", "caller_id", "called_number", "call_sid")
    )
    return Initiation(agent_id, caller, called, call_id)


def client_data(*, memory: str, caller_name: str, user_id: str, call_token: str) -> dict[str, Any]:
    """
    `conversation_initiation_client_data`, as the answer to the webhook and in register-call.

    Every variable is always there: a call whose agent uses one that is missing does not start.
    """
    variables = {**prompt_variables(memory, caller_name), CALL_TOKEN: call_token}
    return {"dynamic_variables": variables, "user_id": user_id}


# The webhook after a call


def read_post_call(body: bytes) -> tuple[str, Mapping[str, Any]]:
    """The type of a post-call message and its data. Raises RemoteProtocolError."""
    given = read_object(body, PLATFORM)
    data = given.get("data")
    return str(given.get("type", "")), data if isinstance(data, dict) else {}


def is_audio(part: bytes) -> bool:
    """Whether this is the beginning or end of a message with a recording, too large to be read as a whole."""
    return re.search(rb'"type"\s*:\s*"post_call_audio"', part) is not None


def read_conversation(data: Mapping[str, Any]) -> HostedConversation:
    """A conversation of the webhook, or of the REST API, which has the same shape. Raises RemoteProtocolError."""
    metadata, client = read_table(data, "metadata"), read_table(data, "conversation_initiation_client_data")
    phone_call, variables = read_table(metadata, "phone_call"), read_table(client, "dynamic_variables")
    started_at = datetime.fromtimestamp(read_number(metadata.get("start_time_unix_secs")), UTC)
    user_id = read_text(data.get("user_id")) or read_text(metadata.get("user_id"))
    number = read_text(phone_call.get("external_number")) or user_id.removeprefix("caller:")
    source = read_text(metadata.get("conversation_initiation_source"))
    is_text = any(metadata.get(name) for name in ("sms", "whatsapp", "text_only")) or _TEXT_SOURCES.fullmatch(source)
    attributes = {name: str(value) for name, value in variables.items() if not name.startswith(_RESERVED)}
    headers = read_table(phone_call, "sip_header_dynamic_variables")
    return HostedConversation(
        id=conversation_id(data.get("conversation_id"), PLATFORM),
        agent_id=read_text(data.get("agent_id")),
        number=number or read_text(variables.get("system__caller_id")),
        call_id=read_text(phone_call.get("call_sid")),
        started_at=started_at,
        seconds=read_number(metadata.get("call_duration_secs")),
        end_reason=_end_reason(data, metadata),
        turns=_turns(read_tables(data, "transcript"), started_at),
        is_dialled=bool(read_text(phone_call.get("external_number"))),
        is_call=not is_text and source not in _UNKNOWN_SOURCES and phone_call.get("call_result") != "voicemail",
        attributes={"user_id": user_id, **attributes} if user_id else attributes,
        sip_headers={name.lower(): str(value) for name, value in headers.items()},
        call_token=read_text(variables.get(CALL_TOKEN)),
    )


def _turns(transcript: Sequence[Mapping[str, Any]], started_at: datetime) -> list[Turn]:
    turns: list[Turn] = []
    for entry in transcript:
        message = entry.get("message")
        if not isinstance(message, str) or entry.get("ignored_as_backchannel"):
            continue
        whole = read_text(entry.get("original_message"))
        unheard = whole[len(message) :].strip() if entry.get("interrupted") and whole.startswith(message) else ""
        speaker = Speaker.CALLER if entry.get("role") == "user" else Speaker.AGENT
        at = started_at + timedelta(seconds=read_number(entry.get("time_in_call_secs")))
        add_turn(turns, speaker, message, at, unheard)
    return turns


def _end_reason(data: Mapping[str, Any], metadata: Mapping[str, Any]) -> EndReason:
    """From their free text."""
    if data.get("status") == "failed":
        return EndReason.FAILED
    reason = read_text(metadata.get("termination_reason")).lower()
    if "transfer" in reason:
        return EndReason.TRANSFERRED
    return EndReason.AGENT_HUNG_UP if "end_call" in reason or "agent" in reason else EndReason.CALLER_HUNG_UP


# The REST API

_GET_SECONDS: Final = 30.0
_PAUSES: Final = (1.0, 5.0, 15.0, 30.0, 60.0)
"""In seconds, between attempts."""
_LONGEST_PAUSE: Final = 300.0


@dataclass(frozen=True)
class ListedConversation:
    """A conversation in a list. `is_call`: false for a chat and for a call without words, as far as the list says."""

    id: str
    started_at: float
    is_call: bool


class ElevenLabsApi:
    """The requests about calls."""

    def __init__(
        self, http: httpx.AsyncClient, url: str, key: Secret, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._http = http
        self._url = url.rstrip("/")
        self._key = key
        self._sleep = sleep

    async def register_call(
        self, agent_id: str, *, caller: str, called: str, data: Mapping[str, Any], timeout: float
    ) -> tuple[str, str]:
        """
        Register a Twilio call. Returns TwiML that connects it to the agent, and the conversation's id, possibly empty.

        Raises CarrierRefused, also for an answer that is too late or no TwiML.
        """
        body: dict[str, Any] = {
            "agent_id": agent_id,
            "from_number": caller,
            "to_number": called,
            "direction": "inbound",
        }
        body |= {"conversation_initiation_client_data": dict(data)}
        headers = {"xi-api-key": self._key.reveal()}
        url = f"{self._url}/v1/convai/twilio/register-call"
        try:
            response = await self._http.post(url, json=body, headers=headers, timeout=timeout)
        except httpx.HTTPError as error:
            raise CarrierRefused(PLATFORM, "register-call", 0, type(error).__name__) from None
        if response.status_code != httpx.codes.OK:
            raise CarrierRefused(PLATFORM, "register-call", response.status_code)
        try:
            document = ElementTree.fromstring(response.text)
        except ElementTree.ParseError:
            raise CarrierRefused(PLATFORM, "register-call", 200, "not TwiML") from None
        if document.tag != "Response":
            raise CarrierRefused(PLATFORM, "register-call", 200, "not TwiML")
        ids = [one.get("value", "") for one in document.iter("Parameter") if one.get("name") == "conversation_id"]
        return response.text, next(iter(ids), "")

    async def conversations(self, agent_id: str, since: datetime) -> list[ListedConversation]:
        """The agent's conversations that have ended, the oldest first. Raises CarrierRefused, RemoteProtocolError."""
        query = {"agent_id": agent_id, "call_start_after_unix": str(int(since.timestamp())), "page_size": "100"}
        query |= {"summary_mode": "exclude"}
        found: dict[str, ListedConversation] = {}
        while True:
            page = await self._get("conversations", "to list conversations", query)
            for one in read_tables(page, "conversations"):
                listed_id, source = read_text(one.get("conversation_id")), one.get("conversation_initiation_source")
                if one.get("status") in ("done", "failed"):
                    is_call = bool(one.get("message_count", 1)) and not _TEXT_SOURCES.fullmatch(read_text(source))
                    at = read_number(one.get("start_time_unix_secs"))
                    found[listed_id] = ListedConversation(listed_id, at, is_call)
            cursor = read_text(page.get("next_cursor"))
            if not page.get("has_more") or not cursor or cursor == query.get("cursor"):
                return sorted(found.values(), key=lambda one: (one.started_at, one.id))
            query["cursor"] = cursor

    async def conversation(self, listed_id: str) -> HostedConversation:
        """Raises CarrierRefused, RemoteProtocolError."""
        path = f"conversations/{quote(listed_id, safe='')}"
        return read_conversation(await self._get(path, "to show a conversation"))

    async def _get(self, path: str, what: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Asks again while the service is busy or away, as long as it says, or with growing pauses."""
        url, headers = f"{self._url}/v1/convai/{path}", {"xi-api-key": self._key.reveal()}
        for pause in (*_PAUSES, None):
            try:
                response = await self._http.get(url, params=query, headers=headers, timeout=_GET_SECONDS)
            except httpx.HTTPError as error:
                status, problem, wanted = 0, type(error).__name__, ""
            else:
                status, problem, wanted = response.status_code, "", response.headers.get("Retry-After", "")
                if status == httpx.codes.OK:
                    return read_object(response.content, PLATFORM)
            if pause is None or not (status in (0, 408, 429) or status >= 500):
                break
            await self._sleep(min(float(wanted), _LONGEST_PAUSE) if wanted.isdecimal() else pause)
        raise CarrierRefused(PLATFORM, what, status, problem)
