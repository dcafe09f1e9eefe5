"""The calls of this node: one ManagedCall each, from the webhook until it has ended. In memory, no I/O."""

import asyncio
import hmac
import math
import secrets
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from gateway.agents import Agent, AgentDirectory
from gateway.calls.call import Call
from gateway.calls.outbound import OutboundCall, speaker
from gateway.calls.recorder import FORMAT, CallRecorder
from gateway.calls.state import CallState, checked
from gateway.cluster.directory import CallRecord
from gateway.engines.early_connection import EarlyConnection, NoEarlyConnection
from gateway.history.call_log import RecoveredCall
from gateway.memory.access import MemoryAccess
from gateway.session import CallKey, TrustLevel, VoiceSession, new_session_id
from gateway.telephony.machine_detection import AnsweredBy
from gateway.tools.executor import CallTools

MAX_EVENTS: Final = 10_000

_RECORDED: Final = (
    *("name", "prompt", "greeting", "sorry", "numbers", "listen", "think", "speak", "engine_thinks", "language"),
    *("consent", "interrupt", "patience", "silence", "filler", "transfer_to", "disabled_tools"),
)
"""The fields of an agent that a replay needs."""


@dataclass(frozen=True)
class CallTimeouts:
    """Durations of a call's life cycle, in seconds."""

    token: float = 30.0
    """How long a stream token is valid. Carriers open the media socket within a second or two of the webhook."""
    reconnect: float = 60.0
    """How long a call without media waits for another stream. Carriers took up to 45 s to notice a lost one."""
    liveness_check: float = 5.0
    """How often a carrier that requests the new stream itself is asked whether the caller is still there."""
    liveness_unknown: float = 15.0
    """How long the call waits on if the carrier does not answer that question."""
    hangup_grace: float = 1.0
    """A stopped stream is often the first sign of a hangup: wait this long for the carrier to report it."""
    stable_stream: float = 30.0
    """A stream that lasted this long resets the reconnect counter."""
    dialling: float = 60.0
    """How long an outbound call counts as one until it is answered. Longer than a phone rings."""
    tick: float = 0.1
    close: float = 15.0
    """How long calls may take to complete their sessions at shutdown."""
    remember_ended: float = 3600.0
    """How long late webhooks of an ended call are recognized."""
    early_report: tuple[float, ...] = (0.5, 1.0, 2.0)
    """Pauses before a report about a call that no node knows yet is delivered again."""


@dataclass(eq=False)
class ManagedCall:
    """
    One call that this node is responsible for.

    While it is RINGING or RECONNECTING, an open stream token lets the carrier attach media, once.
    """

    key: CallKey
    account_id: str
    caller: str
    """The key of the caller's memory; empty: nothing is stored or read."""
    called: str
    agent: Agent
    media_url: str
    state: CallState = CallState.RINGING
    number: str = ""
    """The caller's phone number as the network reports it."""
    access: MemoryAccess = field(default_factory=MemoryAccess)
    order: OutboundCall | None = None
    """The request, if the gateway placed this call."""
    user_name: str = ""
    """The caller's name, as a website reports it."""
    session: VoiceSession | None = None
    """Exists from the start for a caller who is remembered, and for every call once it is answered."""
    session_id: str = field(default_factory=new_session_id)
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    """The token of the latest stream; spent unless `has_open_token`."""
    token_expires: float = 0.0
    """When the open token expires, in loop time; 0 once it is spent or withdrawn."""
    token_is_shared: bool = False
    """Whether other nodes accept the token too."""
    deadline: float = math.inf
    """When the call is given up unless media is attached, in loop time."""
    liveness_check_at: float = math.inf
    attempt: int = 0
    """Streams requested in a row since the last stable one."""
    transfer_answered: bool | None = None
    """The outcome of a transfer, if the carrier reported it before our side of the call had ended."""
    answered_by: list[AnsweredBy] = field(default_factory=list)
    """What the carrier has reported about an outbound call, in order. Every stream of the call gets it."""
    may_be_elsewhere: bool = False
    """Taken over from a node that could not be asked and may still have the media."""
    tools: asyncio.Task[CallTools] | None = None
    engine: EarlyConnection | NoEarlyConnection = NoEarlyConnection()
    """Opened while the phone rang; attached to `media`."""
    recorder: CallRecorder | None = None
    media: Call | None = None
    """The live call, while media is attached."""
    task: asyncio.Task[None] | None = None
    """Runs `media`."""

    def __post_init__(self) -> None:
        self.access.caller = self.caller

    @classmethod
    def from_journal(cls, recovered: RecoveredCall, agents: AgentDirectory) -> "ManagedCall":
        """A call that was live when the process that wrote the journal died."""
        header = recovered.header
        carrier, call_id = header["key"]
        called, order = header["called"], OutboundCall.from_json(header.get("order"))
        return cls(
            (carrier, call_id),
            header["account_id"],
            recovered.session.caller,
            called,
            speaker(agents, called, order),
            header["media_url"],
            CallState.TRANSFERRING if header["handed_over"] else CallState.RECONNECTING,
            header["number"],
            MemoryAccess(TrustLevel(header["tier"])),
            order,
            session=recovered.session,
            session_id=recovered.session.id,
        )

    @classmethod
    def from_record(cls, record: CallRecord, session: VoiceSession | None, agents: AgentDirectory) -> "ManagedCall":
        """A call of another node, as the cluster's directory describes it."""
        order = OutboundCall.from_json(record.order)
        return cls(
            record.key,
            record.account_id,
            session.caller if session is not None else record.caller,
            record.called,
            speaker(agents, record.called, order, record.user_name),
            record.media_url,
            record.state,
            record.number,
            MemoryAccess(TrustLevel(record.tier)),
            order,
            record.user_name,
            session,
            session.id if session is not None else new_session_id(),
            record.token,
            token_is_shared=True,
            attempt=record.attempt,
            may_be_elsewhere=session is None or session.taken_over,
        )

    # State

    def change_state(self, state: CallState) -> None:
        """Raises IllegalTransition."""
        self.state = checked(self.state, state)

    @property
    def has_open_token(self) -> bool:
        return self.token_expires > 0

    @property
    def awaits_stream(self) -> bool:
        """Whether the carrier has yet to be given a token for a new stream."""
        return self.state in (CallState.RECONNECTING, CallState.TRANSFERRING) and not self.has_open_token

    def open_token(self, expires: float) -> None:
        """The call's token is valid from now on; without media, the call is given up when it expires."""
        self.token_expires = self.deadline = expires

    def renew_token(self, expires: float) -> None:
        """Open a new token: the call continues with another stream."""
        self.change_state(CallState.RECONNECTING)
        self.token, self.token_is_shared = secrets.token_urlsafe(32), False
        self.open_token(expires)
        self.attempt += 1
        self.tools = self.transfer_answered = None
        self.access.caller = self.caller

    def close_token(self) -> None:
        self.token_expires = 0.0

    def has_token(self, token: str) -> bool:
        """Whether it is the token of the latest stream. In constant time."""
        return hmac.compare_digest(self.token.encode(), token.encode())

    def spend_token(self, token: str, account_id: str, now: float) -> bool:
        """Attach media if this is the open token. A wrong, spent, expired or foreign one changes nothing."""
        if not self.has_token(token) or now >= self.token_expires or account_id not in ("", self.account_id):
            return False
        self.attach_media()
        return True

    def attach_media(self) -> None:
        self.change_state(CallState.ACTIVE)
        self.close_token()
        self.deadline = math.inf

    def cancel_loading(self) -> None:
        self.access.close()
        if self.tools is not None:
            self.tools.cancel()
        self.engine.close()

    # Descriptions for the carrier, the journal, other nodes and recordings

    @property
    def stream_url(self) -> str:
        """The media socket's address with the token in it, for carriers that pass no parameters."""
        return f"{self.media_url}?token={quote(self.token, safe='')}"

    def new_session(self) -> VoiceSession:
        number = self.number if self.number != self.caller else ""
        return VoiceSession(
            agent=self.agent.name,
            caller=self.caller,
            carrier=self.key[0],
            number=number,
            id=self.session_id,
            trust=self.access.level,
        )

    @property
    def journal_header(self) -> dict[str, Any]:
        """What the journal stores of a call beside its session."""
        return {
            "key": self.key,
            "account_id": self.account_id,
            "called": self.called,
            "media_url": self.media_url,
            "handed_over": self.state is CallState.TRANSFERRING,
            "number": self.number,
            "tier": self.access.level,
            "order": self.order.as_json() if self.order is not None else None,
        }

    def record(self, node: str) -> CallRecord:
        """What the cluster's directory stores of a call. `node` owns it."""
        return CallRecord(
            self.key,
            node,
            self.state,
            self.account_id,
            self.caller,
            self.called,
            self.media_url,
            self.attempt,
            self.token if self.has_open_token else "",
            {**self.session.as_json(), "turns": []} if self.session is not None else None,
            self.number,
            self.access.level,
            self.order.as_json() if self.order is not None else None,
            self.user_name,
        )

    def recording_header(self, session: VoiceSession) -> dict[str, object]:
        """The first line of a recording: what a replay needs to place the call again."""
        agent = {name: getattr(self.agent, name) for name in _RECORDED}
        return {
            "format": FORMAT,
            "carrier": session.carrier,
            "caller": self.number,
            "identity": self.caller,
            "called": self.called,
            "account_id": self.account_id,
            "call_id": self.key[1],
            "session": session.id,
            "started_at": session.started_at.isoformat(),
            "trust": str(self.access.level),
            "turns_before": len(session.turns),  # of a call that another node had first
            "agent": {
                **agent,
                "timezone": str(self.agent.timezone or ""),
                "has_brain": bool(self.agent.brain),
                "new_person_after": self.agent.repeat_caller.new_person_after,
            },
        }


class CallTable:
    """Every call of this node that has not ended, and for a while the keys of those that have."""

    def __init__(self, remember_ended: float) -> None:
        self._calls: dict[CallKey, ManagedCall] = {}
        self._remember_ended = remember_ended
        self._ended: OrderedDict[CallKey, float] = OrderedDict()
        self._events: OrderedDict[str, None] = OrderedDict()

    def is_new_event(self, event_id: str) -> bool:
        """Whether this webhook event was not seen before. One without an id is always new."""
        if not event_id:
            return True
        if event_id in self._events:
            return False
        self._events[event_id] = None
        if len(self._events) > MAX_EVENTS:
            self._events.popitem(last=False)
        return True

    def add(self, call: ManagedCall) -> None:
        self._calls[call.key] = call
        self._ended.pop(call.key, None)

    def get(self, key: CallKey) -> ManagedCall | None:
        return self._calls.get(key)

    def manages(self, call: ManagedCall) -> bool:
        """Whether the call has neither ended nor gone to another node."""
        return self._calls.get(call.key) is call

    def media(self, key: CallKey) -> Call | None:
        """The live call, if it has media here."""
        call = self._calls.get(key)
        return call.media if call is not None else None

    def with_media(self) -> list[Call]:
        return [call.media for call in self._calls.values() if call.media is not None]

    def tick_groups(self, count: int) -> list[list[Call]]:
        """The live calls that have media, in so many groups."""
        calls = self.with_media()
        return [calls[first::count] for first in range(count)]

    def without_media(self) -> list[ManagedCall]:
        return [call for call in self._calls.values() if call.state is not CallState.ACTIVE]

    def overdue(self, now: float) -> list[ManagedCall]:
        """Calls whose deadline for new media has passed."""
        return [call for call in self._calls.values() if now >= call.deadline]

    def due_for_liveness_check(self, now: float, every: float) -> list[ManagedCall]:
        """Reconnecting calls about which the carrier is to be asked now. Schedules the next check of each."""
        due = [
            call
            for call in self._calls.values()
            if now >= call.liveness_check_at and call.awaits_stream and call.state is CallState.RECONNECTING
        ]
        for call in due:
            call.liveness_check_at = now + every
        return due

    def end(self, call: ManagedCall, now: float) -> None:
        """The call is over. Its key is remembered for late webhooks."""
        call.change_state(CallState.ENDED)
        if self.manages(call):
            del self._calls[call.key]
        self.remember_ended(call.key, now)

    def remember_ended(self, key: CallKey, now: float) -> None:
        """Recognize this call as over, even if it was never known here: the hangup can overtake the first webhook."""
        self._ended[key] = now
        self._ended.move_to_end(key)
        while next(iter(self._ended.values())) < now - self._remember_ended:
            self._ended.popitem(last=False)

    def has_ended(self, key: CallKey) -> bool:
        return key in self._ended

    def remove(self, key: CallKey) -> ManagedCall | None:
        """The call belongs to another node now."""
        self._ended.pop(key, None)
        return self._calls.pop(key, None)

    @property
    def is_empty(self) -> bool:
        return not self._calls

    def __iter__(self) -> Iterator[ManagedCall]:
        return iter(list(self._calls.values()))

    def __len__(self) -> int:
        """Calls that were answered and have not ended."""
        return sum(call.state is not CallState.RINGING for call in self._calls.values())
