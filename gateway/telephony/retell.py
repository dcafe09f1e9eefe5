"""
Retell's webhooks about calls of agents that it hosts. Without I/O.

From Retell's docs ("Inbound webhook", "Webhook overview", "Secure the webhook") and its SDK.
"""

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final

from gateway.errors import SignatureRejected
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

PLATFORM: Final = "retell"
SIGNATURE_SECONDS: Final = 5 * 60

_SIGNATURE: Final = re.compile(r"v=([0-9]{1,15}),d=([0-9a-f]{64})")
_SPEAKERS: Final = {"user": Speaker.CALLER, "agent": Speaker.AGENT}
_MACHINES: Final = ("voicemail_reached", "ivr_reached")
_END_REASONS: Final = {
    "agent_hangup": EndReason.AGENT_HUNG_UP,
    "inactivity": EndReason.AGENT_HUNG_UP,
    "call_transfer": EndReason.TRANSFERRED,
    "transfer_bridged": EndReason.TRANSFERRED,
    "max_duration_reached": EndReason.TIME_LIMIT,
    "manual_stopped": EndReason.OPERATOR_HUNG_UP,
    "call_take_over": EndReason.OPERATOR_HUNG_UP,
}


@dataclass(frozen=True)
class Retell:
    """
    `call_inbound`, and a call that is over: `call_ended` or `call_analyzed`, whichever is stored first.

    Both have the whole transcript. The analysis is not used.
    """

    secret: Secret | None
    name: ClassVar[str] = PLATFORM
    paths: ClassVar[Sequence[str]] = ("/retell/inbound", "/retell/events")
    setting: ClassVar[str] = "RETELL_API_KEY"

    def check(self, headers: Mapping[str, str], body: bytes, *, now: float) -> None:
        """`x-retell-signature: v=<unix milliseconds>,d=<hex>` over body and time, as the SDK's `verify` does."""
        match = _SIGNATURE.fullmatch(headers.get("x-retell-signature", ""))
        if self.secret is None or match is None:
            raise SignatureRejected("retell signature is missing or malformed")
        if abs(now - int(match[1]) / 1000) > SIGNATURE_SECONDS:
            raise SignatureRejected("retell signature is too far from our clock")
        signed = hmac.new(self.secret.reveal().encode(), body + match[1].encode(), hashlib.sha256).hexdigest()
        if not hmac.compare_digest(match[2], signed):
            raise SignatureRejected("retell signature is wrong")

    def read(self, body: bytes) -> Initiation | HostedConversation | None:
        given = read_object(body, PLATFORM)
        match given.get("event"):
            case "call_inbound":
                call = read_table(given, "call_inbound")
                # The call has no id yet.
                agent_id, caller, called = (
                    read_text(call.get(name)) for name in ("agent_id", "from_number", "to_number")
                )
                return Initiation(agent_id, caller, called, "")
            case "call_ended" | "call_analyzed":
                return _conversation(read_table(given, "call"))
        return None

    def answer(self, asked: Initiation, agent_id: str, variables: Mapping[str, str]) -> dict[str, Any]:
        """The agent is named only if the number has none: naming it again could select another version of it."""
        chosen = {"override_agent_id": agent_id} if agent_id and not asked.agent_id else {}
        return {"call_inbound": {"dynamic_variables": dict(variables), **chosen}}


def _conversation(call: Mapping[str, Any]) -> HostedConversation:
    started_at = datetime.fromtimestamp(_seconds(call.get("start_timestamp")), UTC)
    reason = read_text(call.get("disconnection_reason"))
    turns: list[Turn] = []
    for entry in read_tables(call, "transcript_object"):
        speaker = _SPEAKERS.get(read_text(entry.get("role")))
        if speaker is None or read_table(entry, "metadata").get("is_backchannel"):
            continue
        start = next((read_number(word.get("start")) for word in read_tables(entry, "words")), 0.0)
        add_turn(turns, speaker, read_text(entry.get("content")), started_at + timedelta(seconds=start))
    numbers = read_text(call.get("from_number")), read_text(call.get("to_number"))
    person, agent = reversed(numbers) if call.get("direction") == "outbound" else numbers
    # Metadata comes from the user's server; variables also from SIP headers.
    given = {**read_table(call, "retell_llm_dynamic_variables"), **read_table(call, "metadata")}
    return HostedConversation(
        id=conversation_id(call.get("call_id"), PLATFORM),
        agent_id=read_text(call.get("agent_id")),
        number=person,
        call_id="",
        started_at=started_at,
        seconds=_seconds(call.get("duration_ms")),
        end_reason=_end_reason(reason),
        turns=turns,
        is_dialled=call.get("call_type") == "phone_call",
        is_call=reason not in _MACHINES,
        attributes={name: str(value) for name, value in given.items() if isinstance(value, str | int | float)},
        called=agent,
    )


def _seconds(milliseconds: Any) -> float:
    return read_number(milliseconds, below=10**14) / 1000


def _end_reason(reason: str) -> EndReason:
    if reason.startswith(("error_", "dial_")):
        return EndReason.FAILED
    return _END_REASONS.get(reason, EndReason.CALLER_HUNG_UP)
