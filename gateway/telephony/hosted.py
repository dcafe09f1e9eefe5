"""
Calls of agents that another platform hosts, whichever it is: one that rings, one that is over. Without I/O.

What platforms send is read leniently: a value of another type than expected counts as missing.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

import orjson

from gateway.errors import RemoteProtocolError
from gateway.session import EndReason, Speaker, Turn
from gateway.settings import Secret

_CONVERSATION_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")


@dataclass(frozen=True)
class Initiation:
    """A call that rings at the platform."""

    agent_id: str
    caller: str
    called: str
    call_id: str
    """Of the carrier or the platform; empty if unknown."""


@dataclass(frozen=True)
class HostedConversation:
    """A finished conversation, as the platform reports it."""

    id: str
    agent_id: str
    number: str
    """The other person's number, as far as a carrier gave it; the platform may not know it."""
    call_id: str
    started_at: datetime
    seconds: float
    end_reason: EndReason
    turns: Sequence[Turn]
    is_dialled: bool
    """Whether a carrier gave the number. Otherwise it is what the conversation's client claims."""
    is_call: bool
    """Whether it was spoken, by a person. Chats are not calls."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """What may identify the person besides a number: the platform's user id, and variables of the conversation."""
    sip_headers: Mapping[str, str] = field(default_factory=dict)
    call_token: str = field(default="", repr=False)
    """The token of `PreparedCall`, if the platform sends it back. It is kept nowhere."""
    called: str | None = None
    """The agent's number, which selects the agent if `agent_id` is empty. None: the platform always names it."""


class HostedPlatform(Protocol):
    """How a platform asks for a caller's memory and reports a call, signed with a shared secret."""

    @property
    def name(self) -> str: ...
    @property
    def paths(self) -> Sequence[str]: ...
    @property
    def setting(self) -> str:
        """The setting that holds the secret."""

    @property
    def secret(self) -> Secret | None: ...

    def check(self, headers: Mapping[str, str], body: bytes, *, now: float) -> None:
        """Raises SignatureRejected. `headers` have lower-case names."""

    def read(self, body: bytes) -> Initiation | HostedConversation | None:
        """None for messages that need no more than an acknowledgement. Raises RemoteProtocolError."""

    def answer(self, asked: Initiation, agent_id: str, variables: Mapping[str, str]) -> dict[str, Any] | None:
        """What connects a call that rings to the agent; None if the platform needs one, and `agent_id` is empty."""


def conversation_id(value: Any, platform: str) -> str:
    """An id that may become a file name. Raises RemoteProtocolError for any other."""
    if not isinstance(value, str) or not _CONVERSATION_ID.fullmatch(value):
        raise RemoteProtocolError(platform, "sent a malformed conversation id")
    return value


def add_turn(turns: list[Turn], speaker: Speaker, said: str, at: datetime, unheard: str = "") -> None:
    """Turns stay in the order of the platform's list: its times are rounded, and equal ones are common."""
    if turns and at <= turns[-1].at:
        at = turns[-1].at + timedelta(milliseconds=1)
    if said.strip():
        turns.append(Turn(speaker, said.strip(), at, unheard))


def prompt_variables(memory: str, caller_name: str) -> dict[str, str]:
    """What a prompt at the platform may refer to. Both are always there: some platforms need a value for each."""
    return {"memory": _plain(memory), "caller_name": _plain(caller_name)}


def _plain(text: str) -> str:
    """Text for their prompt: no placeholders, no control characters."""
    text = text.replace("{{", "{ {").replace("}}", "} }").replace("{%", "{ %")
    return "".join(character for character in text if character == "\n" or character.isprintable())


# JSON of platforms


def read_object(body: bytes, platform: str) -> dict[str, Any]:
    """Raises RemoteProtocolError."""
    try:
        given = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise RemoteProtocolError(platform, "sent something that is not JSON") from None
    if not isinstance(given, dict):
        raise RemoteProtocolError(platform, "sent JSON that is not an object")
    return given


def read_table(given: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = given.get(name)
    return value if isinstance(value, dict) else {}


def read_tables(given: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    value = given.get(name)
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def read_text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""


def read_number(value: Any, below: int = 10**11) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < below
    return float(value) if is_number else 0.0
