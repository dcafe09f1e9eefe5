"""
Vapi's server messages about calls of assistants that it hosts. Without I/O.

From Vapi's docs ("Server events", "Server authentication") and its OpenAPI description.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final

from gateway.errors import SignatureRejected
from gateway.sealing import is_same
from gateway.session import EndReason, Speaker, Turn
from gateway.settings import Secret
from gateway.telephony.hosted import (
    HostedConversation,
    Initiation,
    add_turn,
    conversation_id,
    read_number,
    read_object,
    read_table,
    read_tables,
    read_text,
)

PLATFORM: Final = "vapi"

# The docs show "assistant", real messages have "bot". Other roles are prompts and tools.
_SPEAKERS: Final = {"user": Speaker.CALLER, "bot": Speaker.AGENT, "assistant": Speaker.AGENT}
_PHONE_CALLS: Final = ("inboundPhoneCall", "outboundPhoneCall")


@dataclass(frozen=True)
class Vapi:
    """`assistant-request` and `end-of-call-report`. They carry a secret and no signature."""

    secret: Secret | None
    name: ClassVar[str] = PLATFORM
    paths: ClassVar[Sequence[str]] = ("/vapi/server",)
    setting: ClassVar[str] = "VAPI_SERVER_SECRET"

    def check(self, headers: Mapping[str, str], body: bytes, *, now: float) -> None:
        """The secret, in the header of a bearer token credential or in the older X-Vapi-Secret."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        offered = token.strip() if scheme.lower() == "bearer" else headers.get("x-vapi-secret", "")
        if self.secret is None or not is_same(offered, self.secret.reveal()):
            raise SignatureRejected("missing or wrong X-Vapi-Secret")

    def read(self, body: bytes) -> Initiation | HostedConversation | None:
        message = read_table(read_object(body, PLATFORM), "message")
        call = read_table(message, "call")
        if not call:
            return None  # about a chat
        match message.get("type"):
            case "assistant-request":
                number, is_dialled = _number(message, call)
                return Initiation("", number if is_dialled else "", _called(message, call), read_text(call.get("id")))
            case "end-of-call-report":
                return _conversation(message, call)
        return None

    def answer(self, asked: Initiation, agent_id: str, variables: Mapping[str, str]) -> dict[str, Any] | None:
        if not agent_id:
            return None
        return {"assistantId": agent_id, "assistantOverrides": {"variableValues": dict(variables)}}


def _number(message: Mapping[str, Any], call: Mapping[str, Any]) -> tuple[str, bool]:
    """The other person's number, and whether a carrier gave it. Any SIP client can claim any number."""
    customer = read_table(message, "customer") or read_table(call, "customer")
    is_sip = bool(read_text(customer.get("sipUri")) or read_text(_phone_number(message, call).get("sipUri")))
    return read_text(customer.get("number")), call.get("type") in _PHONE_CALLS and not is_sip


def _phone_number(message: Mapping[str, Any], call: Mapping[str, Any]) -> Mapping[str, Any]:
    return read_table(message, "phoneNumber") or read_table(call, "phoneNumber")


def _called(message: Mapping[str, Any], call: Mapping[str, Any]) -> str:
    return read_text(_phone_number(message, call).get("number"))


def _conversation(message: Mapping[str, Any], call: Mapping[str, Any]) -> HostedConversation:
    customer = read_table(message, "customer") or read_table(call, "customer")
    number, is_dialled = _number(message, call)
    started_at = _time(message.get("startedAt"), call.get("startedAt"), call.get("createdAt"))
    ended_at = _time(message.get("endedAt"), call.get("endedAt"))
    reason = read_text(message.get("endedReason"))
    turns: list[Turn] = []
    for entry in read_tables(read_table(message, "artifact"), "messages"):
        if (speaker := _SPEAKERS.get(read_text(entry.get("role")))) is not None:
            at = started_at + timedelta(seconds=read_number(entry.get("secondsFromStart")))
            add_turn(turns, speaker, read_text(entry.get("message")), at)
    user_id = read_text(customer.get("externalId"))
    return HostedConversation(
        id=conversation_id(call.get("id"), PLATFORM),
        agent_id=read_text(call.get("assistantId")),
        number=number,
        call_id="",
        started_at=started_at,
        seconds=max(0.0, (ended_at - started_at).total_seconds()),
        end_reason=_end_reason(reason),
        turns=turns,
        is_dialled=is_dialled,
        is_call=reason != "voicemail",
        attributes={"user_id": user_id} if user_id else {},
        called=_called(message, call),
    )


def _time(*values: Any) -> datetime:
    """The first of these ISO 8601 times that makes sense."""
    for value in values:
        try:
            found = datetime.fromisoformat(read_text(value))
        except ValueError:
            continue
        if 2000 <= found.year < 2100:
            return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    return datetime.fromtimestamp(0, UTC)


def _end_reason(reason: str) -> EndReason:
    if reason.startswith("customer-ended-call"):
        return EndReason.CALLER_HUNG_UP
    if reason == "assistant-forwarded-call" or reason.endswith("-executed-transfer"):
        return EndReason.TRANSFERRED
    if reason.startswith(("assistant-ended-call", "assistant-said-")) or reason == "silence-timed-out":
        return EndReason.AGENT_HUNG_UP
    if reason == "exceeded-max-duration":
        return EndReason.TIME_LIMIT
    return EndReason.FAILED if "error" in reason or "failed" in reason else EndReason.CALLER_HUNG_UP
