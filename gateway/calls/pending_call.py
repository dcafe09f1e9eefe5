"""
A call that was let in and waits for its media: what is known of it, and the token that opens a socket for it.

It outlives its process: a journal, or what other nodes know, makes the same ring again.
"""

import asyncio
import hmac
import math
import secrets
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import quote

from gateway.agents import Agent, AgentDirectory
from gateway.calls.outbound import OutboundCall, speaker
from gateway.calls.recorder import FORMAT, CallRecorder
from gateway.cluster.directory import CallRecord
from gateway.history.call_log import RecoveredCall
from gateway.memory.access import MemoryAccess
from gateway.memory.trust import TrustLevel
from gateway.session import CallKey, VoiceSession, new_session_id
from gateway.tools.loader import CallTools

_RECORDED: Final = ("name", "prompt", "greeting", "sorry", "numbers", "listen", "think", "speak", "engine_thinks")
"""What a replay must know of an agent."""


@dataclass(eq=False)
class PendingCall:
    """
    A call that was let in and has no media yet. Its token opens one media socket, once.

    `session` is there for a caller who is remembered, and for every call that goes on after it lost its media.
    """

    key: CallKey
    account_id: str
    caller: str
    """Under whom its memory is kept; empty: nothing is kept, or read."""
    called: str
    agent: Agent
    media_url: str
    expires: float
    call_tools: asyncio.Task[CallTools] | None = None
    session: VoiceSession | None = None
    session_id: str = field(default_factory=new_session_id)
    """What its session has as id, or will have."""
    recorder: CallRecorder | None = None
    attempt: int = 0
    number: str = ""
    """The caller's, as the network tells it."""
    access: MemoryAccess = field(default_factory=MemoryAccess)
    """How much of the caller's memory may be told."""
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    used: bool = False
    shared: bool = False
    """Other nodes know of it: its token may be spent at any of them."""
    handed_over: bool = False
    """The caller was put through to somebody who has not picked up yet."""
    picked_up: bool | None = None
    """Whether they have, when that was told before the call with us had ended."""
    ask_at: float = math.inf
    """When the carrier is to be asked whether the caller is still there."""
    taken: bool = False
    """Another node has the call now; nothing is to be done about it here."""
    adopted: bool = False
    """Another node had it that could not be asked, and may have its media still."""
    order: OutboundCall | None = None
    """Why we call, where it is us who do."""

    def __post_init__(self) -> None:
        self.access.caller = self.caller

    @property
    def stream_url(self) -> str:
        """The media socket's address with the token in it, for carriers that keep it there."""
        return f"{self.media_url}?token={quote(self.token, safe='')}"

    def again(self, *, expires: float) -> "PendingCall":
        """The same call once more, after its stream was lost: another token, one more attempt."""
        return replace(
            self,
            expires=expires,
            call_tools=None,
            attempt=self.attempt + 1,
            token=secrets.token_urlsafe(32),
            used=False,
            shared=False,
            handed_over=False,
            picked_up=None,
        )

    def cancel(self) -> None:
        """Nobody will need what is being loaded for it."""
        self.access.close()
        if self.call_tools is not None:
            self.call_tools.cancel()

    def has_token(self, token: str) -> bool:
        """Whether it is this call's, and this stream's of it. In constant time."""
        return hmac.compare_digest(self.token.encode(), token.encode())

    def opens(self, token: str, account_id: str, now: float) -> bool:
        """Whether this token, from this account, opens the call's media now."""
        right = self.has_token(token)
        return right and not self.used and now < self.expires and account_id in ("", self.account_id)

    # Told to others

    @property
    def journal_header(self) -> dict[str, Any]:
        """What the journal knows of a call beside its session."""
        return {
            "key": self.key,
            "account_id": self.account_id,
            "called": self.called,
            "media_url": self.media_url,
            "handed_over": self.handed_over,
            "number": self.number,
            "tier": self.access.level,
            "order": self.order.as_json() if self.order is not None else None,
        }

    def recording_header(self, session: VoiceSession) -> dict[str, object]:
        """How a recording begins: what a replay must know to place the call again."""
        agent = {name: getattr(self.agent, name) for name in _RECORDED}
        return {
            "format": FORMAT,
            "carrier": session.carrier,
            "caller": self.number,
            "called": self.called,
            "account_id": self.account_id,
            "call_id": self.key[1],
            "session": session.id,
            "started_at": session.started_at.isoformat(),
            "agent": agent | {"timezone": str(self.agent.timezone or ""), "has_brain": bool(self.agent.brain)},
        }

    def new_session(self) -> VoiceSession:
        """For a call in which nothing was said yet."""
        number = self.number if self.number != self.caller else ""
        return VoiceSession(
            agent=self.agent.name, caller=self.caller, carrier=self.key[0], number=number, id=self.session_id
        )


def pending_call_from_journal(left: RecoveredCall, agents: AgentDirectory) -> PendingCall:
    """A call as the journal of a dead process knows it."""
    header = left.header
    carrier, call_id = header["key"]
    called, order = header["called"], OutboundCall.from_json(header.get("order"))
    return PendingCall(
        (carrier, call_id),
        header["account_id"],
        left.session.caller,
        called,
        speaker(agents, called, order),
        header["media_url"],
        0.0,
        session_id=left.session.id,
        number=header["number"],
        access=MemoryAccess(TrustLevel(header["tier"])),
        handed_over=header["handed_over"],
        order=order,
    )


def pending_call_from_record(
    record: CallRecord, session: VoiceSession | None, agents: AgentDirectory, *, expires: float
) -> PendingCall:
    """A call as another node knows it."""
    order = OutboundCall.from_json(record.order)
    return PendingCall(
        record.key,
        record.account_id,
        session.caller if session is not None else record.caller,
        record.called,
        speaker(agents, record.called, order),
        record.media_url,
        expires,
        session=session,
        session_id=session.id if session is not None else new_session_id(),
        attempt=record.attempt,
        token=record.token,
        number=record.number,
        access=MemoryAccess(TrustLevel(record.tier)),
        shared=True,
        handed_over=record.handed_over,
        adopted=session is None or session.taken_over,
        order=order,
    )
