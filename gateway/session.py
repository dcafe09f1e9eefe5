"""A voice session: one call with one caller, and what was said in it. Plain values, kept on this machine."""

import enum
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

CallKey = tuple[str, str]
"""Carrier and its id of the call."""


class Speaker(enum.StrEnum):
    CALLER = "caller"
    AGENT = "agent"


class EndReason(enum.StrEnum):
    """Why a call ended. Whichever comes first; the others find it over."""

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
    FAILED = "internal error"


@dataclass(frozen=True, slots=True)
class Turn:
    """
    What one side said. `text` is what the other side heard of it; `unheard` is the rest of an agent's answer that
    was cut off. `heard` is false where there is such a rest.
    """

    speaker: Speaker
    text: str
    at: datetime
    unheard: str = ""
    kept: bool = True
    """False for what was said off the record: known while the call goes on, and written nowhere."""

    @property
    def name(self) -> str:
        """What it is known by: who began to speak when."""
        return f"{self.speaker} {self.at.isoformat()}"

    @property
    def heard(self) -> bool:
        return not self.unheard


def new_session_id() -> str:
    return f"voice-session:{uuid.uuid4()}"


@dataclass
class VoiceSession:
    """
    One call. `caller` is under whom its memory is kept: the number in E.164, where an agent's settings name nothing
    else; empty for somebody who must stay nameless.
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
    """The caller's number, where `caller` is something else."""
    state: dict[str, Any] = field(default_factory=dict)
    """What the agent's functions want kept of this caller."""
    timings: list[dict[str, float | None]] = field(default_factory=list)
    """How long the answer to each of the caller's turns took, stage by stage."""
    receipt: dict[str, Any] = field(default_factory=dict)
    """What the agent was told of earlier calls, and where each piece of it came from."""
    taken_over: bool = False
    """A node had it that could not be asked: more may have been said than is known here."""
    off_record: bool = False
    """Whether the caller wants nothing kept of what is said now."""
    taken_back: list[str] = field(default_factory=list)
    """Names of turns that the caller wants forgotten: whoever else knows of the call may have them yet."""

    @property
    def uuid(self) -> str:
        return self.id.removeprefix("voice-session:")

    @property
    def seconds(self) -> float:
        return ((self.ended_at or datetime.now(UTC)) - self.started_at).total_seconds()

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "agent": self.agent,
            "caller": self.caller,
            "carrier": self.carrier,
            "started_at": self.started_at.isoformat(),
            "ended_at": self.ended_at.isoformat() if self.ended_at else None,
            "end_reason": self.end_reason,
            "turns": [
                {"speaker": turn.speaker, "text": turn.text, "at": turn.at.isoformat(), "unheard": turn.unheard}
                for turn in self.turns
            ],
            "number": self.number,
            "state": self.state,
            "timings": self.timings,
            "receipt": self.receipt,
            "taken_over": self.taken_over,
            "off_record": self.off_record,
            "taken_back": self.taken_back,
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "VoiceSession":
        return cls(
            id=stored["id"],
            agent=stored["agent"],
            caller=stored["caller"],
            carrier=stored["carrier"],
            started_at=datetime.fromisoformat(stored["started_at"]),
            ended_at=datetime.fromisoformat(stored["ended_at"]) if stored["ended_at"] else None,
            end_reason=EndReason(stored["end_reason"]) if stored["end_reason"] else None,
            turns=[
                Turn(Speaker(turn["speaker"]), turn["text"], datetime.fromisoformat(turn["at"]), turn["unheard"])
                for turn in stored["turns"]
            ],
            number=stored.get("number", ""),
            state=dict(stored.get("state", {})),
            timings=list(stored.get("timings", [])),
            receipt=dict(stored.get("receipt", {})),
            taken_over=bool(stored.get("taken_over")),
            off_record=bool(stored.get("off_record")),
            taken_back=list(stored.get("taken_back", [])),
        )
