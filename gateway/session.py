"""A voice session: what is stored of one call. Plain values."""

import copy
import enum
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

CallKey = tuple[str, str]
"""(carrier, the carrier's id of the call)"""


class Speaker(enum.StrEnum):
    CALLER = "caller"
    AGENT = "agent"


class TrustLevel(enum.IntEnum):
    """
    How far the caller's identity is certain: what a call may use of the memory, and the rank of what it teaches.

    Each level includes those below. Its text is used in settings, receipts and stores.
    """

    NONE = 0
    """Uses nothing and teaches nothing."""
    NAME = 1
    """The caller's name only."""
    SUMMARIES = 2
    """Also summaries of earlier calls."""
    EVERYTHING = 3
    """Also facts, state and pinned topics. What such a call teaches is verified."""

    def __str__(self) -> str:
        return self.name.lower()

    @classmethod
    def of(cls, stored: object) -> "TrustLevel":
        """The level in a stored entry. One without a level counts as taught by a trusted call."""
        if stored is None:
            return cls.EVERYTHING
        return next((level for level in cls if str(level) == stored), cls.NONE)

    @property
    def mark(self) -> dict[str, str]:
        """What a store adds to an entry of this level: nothing for a verified one."""
        return {} if self is TrustLevel.EVERYTHING else {"trust": str(self)}


class EndReason(enum.StrEnum):
    """Why a call ended: the first reason that came."""

    CALLER_HUNG_UP = "caller hung up"
    STREAM_STOPPED = "media stream stopped"
    STREAM_LOST = "media stream lost"
    AGENT_HUNG_UP = "agent hung up"
    ENGINE_LOST = "voice engine lost"
    ENGINE_REFUSED = "voice engine refused"
    MEDIA_SILENT = "carrier went silent"
    CARRIER_STALLED = "carrier stopped reading"
    SHUTDOWN = "gateway shut down"
    GATEWAY_DIED = "gateway died"
    TRANSFERRED = "transferred"
    OPERATOR_HUNG_UP = "operator hung up"
    TIME_LIMIT = "longest call reached"
    CALLER_SILENT = "caller silent"
    VOICEMAIL_REACHED = "voicemail reached"
    VOICEMAIL_LEFT = "voicemail left"
    FAILED = "internal error"


FAILURES: Final = frozenset(
    {
        EndReason.STREAM_LOST,
        EndReason.ENGINE_LOST,
        EndReason.ENGINE_REFUSED,
        EndReason.MEDIA_SILENT,
        EndReason.CARRIER_STALLED,
        EndReason.GATEWAY_DIED,
        EndReason.FAILED,
    }
)
"""Reasons that make a call a failed one."""


class Consent(enum.StrEnum):
    """What became of the question whether the call may be recorded."""

    NONE = ""
    """Neither announced nor asked."""
    ANNOUNCED = "announced"
    AGREED = "agreed"
    REFUSED = "refused"
    NO_ANSWER = "no answer"

    @property
    def allows_recording(self) -> bool:
        return self not in (Consent.REFUSED, Consent.NO_ANSWER)


class Voicemail(enum.StrEnum):
    """Whether a call that the gateway placed was answered by a mailbox."""

    NONE = ""
    REACHED = "reached"
    LEFT = "left"
    """The whole message was played to it."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One final utterance. `text` is what the other side heard; `unheard` is the rest of an interrupted answer."""

    speaker: Speaker
    text: str
    at: datetime
    unheard: str = ""
    kept: bool = True
    """False for what was said off the record: available during the call, stored nowhere."""
    by_operator: bool = False
    """Whether the agent said what an operator had typed."""

    @property
    def name(self) -> str:
        """Identifies the turn within its call: speaker and start time."""
        return f"{self.speaker} {self.at.isoformat()}"

    @property
    def heard(self) -> bool:
        return not self.unheard


def new_session_id() -> str:
    return f"voice-session:{uuid.uuid4()}"


@dataclass
class VoiceSession:
    """
    One call. `caller` is the key of the caller's memory: the number in E.164, unless the agent's settings name
    another identifier; empty if nothing may be kept.
    """

    agent: str
    caller: str
    carrier: str
    id: str = field(default_factory=new_session_id)
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    ended_at: datetime | None = None
    end_reason: EndReason | None = None
    turns: list[Turn] = field(default_factory=list)
    number: str = ""
    """The caller's number, if `caller` is another identifier."""
    state: dict[str, Any] = field(default_factory=dict)
    """What the agent's tools keep about this caller."""
    timings: list[dict[str, Any]] = field(default_factory=list)
    """The ResponseTime of each answer, as JSON."""
    receipt: dict[str, Any] = field(default_factory=dict)
    """The version of the agent's texts, what it was given of earlier calls, and the source of each item."""
    taken_over: bool = False
    """Taken over from a node that did not answer: turns may be missing."""
    off_record: bool = False
    """Whether the caller is off the record now."""
    taken_back: list[str] = field(default_factory=list)
    """Names of turns that the caller retracted; other nodes may still have them."""
    known_name: str = ""
    """The caller's name, as earlier calls gave it."""
    engine: str = ""
    """The name of the voice engine that answered last."""
    first_audio: float | None = None
    """Seconds from the answer to the agent's first audio."""
    usage: dict[str, int] = field(default_factory=dict)
    """Tokens of the agent's own language models, and of an engine that reports them."""
    trust: TrustLevel = TrustLevel.EVERYTHING
    """The highest level that the call reached. It ranks everything that the call teaches."""
    consent: Consent = Consent.NONE
    """To the recording of the call."""
    voicemail: Voicemail = Voicemail.NONE

    @property
    def leaves_document(self) -> bool:
        """Whether later calls may know of this one: not without trust, nor if a mailbox got no message."""
        return bool(self.trust) and self.voicemail is not Voicemail.REACHED

    @property
    def uuid(self) -> str:
        return self.id.removeprefix("voice-session:")

    @property
    def seconds(self) -> float:
        return ((self.ended_at or datetime.now(UTC)) - self.started_at).total_seconds()

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            **vars(self),
            "started_at": self.started_at.isoformat(),
            "ended_at": self.ended_at.isoformat() if self.ended_at else None,
            "turns": [
                {
                    "speaker": turn.speaker,
                    "text": turn.text,
                    "at": turn.at.isoformat(),
                    "unheard": turn.unheard,
                    "by_operator": turn.by_operator,
                }
                for turn in self.turns
            ],
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "VoiceSession":
        """Fields that an earlier version did not store have their defaults."""
        session = cls(**copy.deepcopy({name: stored[name] for name in cls.__dataclass_fields__ if name in stored}))
        session.started_at = datetime.fromisoformat(stored["started_at"])
        session.ended_at = datetime.fromisoformat(stored["ended_at"]) if stored["ended_at"] else None
        session.end_reason = EndReason(stored["end_reason"]) if stored["end_reason"] else None
        session.trust = TrustLevel(session.trust)
        session.consent = Consent(session.consent)
        session.voicemail = Voicemail(session.voicemail)
        session.turns = [
            Turn(
                Speaker(turn["speaker"]),
                turn["text"],
                datetime.fromisoformat(turn["at"]),
                turn["unheard"],
                by_operator=turn.get("by_operator", False),
            )
            for turn in stored["turns"]
        ]
        return session
