"""
The public API of tools: what a user's function can read of its call, and do in it.

Functions run in threads of their own; the call lives on the event loop. Actions are carried over to the loop in
order, and have happened before the function's result is used.
"""

import asyncio
import concurrent.futures
import contextlib
import copy
import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol

from gateway.logs import CallLogger
from gateway.memory.state import MOST_KEYS, CallerState, Scalar, StateRefused, Value, check_value
from gateway.session import Turn, VoiceSession
from gateway.telephony.phone_numbers import transfer_target

ANSWER_SECONDS: Final = 5.0
"""How long a function waits for a value from the event loop; normally it takes less than a millisecond."""

Kept = Scalar | Mapping[str, Scalar]
"""A value as it is read back. Flat objects are read-only views."""


class ConversationHost(Protocol):
    """The call that tools act on. All methods are called on the event loop and return at once."""

    def say(self, text: str) -> None:
        """Have the agent say it: now or, before anything was said, as part of the greeting."""

    def hang_up(self) -> None:
        """Hang up after the agent has finished speaking."""

    def transfer(self, target: str) -> None:
        """`target` is an E.164 number or a SIP address."""

    def set_pin(self, pin: str) -> None:
        """Store the caller's PIN. Has no effect in a call below the trust level `everything`."""

    def turns(self) -> Sequence[Turn]:
        """The conversation so far."""


class Memory(Mapping[str, Kept]):
    """State kept by earlier calls of this caller. Read-only."""

    unverified: frozenset[str] = frozenset()
    """The keys whose values come from calls in which it was not certain who called."""

    def __init__(self, values: Mapping[str, Value] | None = None) -> None:
        self.replace(values or {})

    def __getitem__(self, key: str) -> Kept:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._values))  # another thread may add keys

    def __len__(self) -> int:
        return len(self._values)

    def clear(self) -> None:
        self._values.clear()

    def replace(self, values: Mapping[str, Value]) -> None:
        self._values: dict[str, Kept] = {key: _kept(value) for key, value in values.items()}
        self.unverified = values.unverified if isinstance(values, CallerState) else frozenset()

    def fields(self) -> dict[str, Value]:
        """A copy, in plain dictionaries."""
        return {key: dict(value) if isinstance(value, Mapping) else value for key, value in self.items()}


class State(Memory, MutableMapping[str, Kept]):
    """
    State that this call leaves behind. Raises StateRefused, a ValueError, for a value that cannot be kept.

    Values set while the caller is off the record are available in this call and are not kept.
    """

    def __init__(self, session: VoiceSession) -> None:
        super().__init__(session.state)
        self._session = session
        self._off_record: set[str] = set()

    def kept_fields(self, kept: Mapping[str, Value]) -> dict[str, Value]:
        """All fields, with the `kept` value in place of one that was set off the record."""
        fields = {key: value for key, value in self.fields().items() if key not in self._off_record}
        return fields | {key: kept[key] for key in self._off_record if key in kept and key in self._values}

    def __setitem__(self, key: str, value: Kept) -> None:
        if len(self._values) >= MOST_KEYS and key not in self._values:
            raise StateRefused(f"a call keeps at most {MOST_KEYS} state keys")
        self._values[key] = _kept(check_value(key, dict(value) if isinstance(value, Mapping) else value))
        (self._off_record.add if self._session.off_record else self._off_record.discard)(key)

    def __delitem__(self, key: str) -> None:
        del self._values[key]
        self._off_record.discard(key)


class Conversation:
    """One call, as its tools see it. Created on the event loop, safe to use from any thread."""

    def __init__(
        self, session: VoiceSession, host: ConversationHost, *, memory: Mapping[str, Value] | None = None
    ) -> None:
        self.memory = Memory(memory)
        self.state = State(session)
        """Text, numbers, true and false, or flat objects of these."""
        fields = {"call": session.uuid[:8], "agent": session.agent}
        self.log = CallLogger(logging.getLogger("gateway.functions"), fields)
        """A logger that adds the call's id. Do not log what was said."""
        self._session = session
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._open = True

    # What a function can read

    @property
    def caller(self) -> str:
        """The caller's number in E.164; empty if withheld."""
        return self._session.number or self._session.caller

    @property
    def agent(self) -> str:
        return self._session.agent

    @property
    def trust(self) -> str:
        """How certain it is who calls: none, name, summaries or everything."""
        return str(self._session.trust)

    @property
    def session(self) -> str:
        """The id of this call."""
        return self._session.id

    @property
    def transcript(self) -> tuple[tuple[str, str], ...]:
        """The turns so far: ("caller" or "agent", text). Of the agent's answers, what the caller heard."""
        if threading.get_ident() == self._loop_thread:
            turns = self._host.turns()
        else:
            answer: concurrent.futures.Future[Sequence[Turn]] = concurrent.futures.Future()
            self._loop.call_soon_threadsafe(lambda: answer.set_result(self._host.turns()))
            turns = answer.result(timeout=ANSWER_SECONDS)
        return tuple((str(turn.speaker), turn.text) for turn in turns)

    # What a function can do

    def say(self, text: str) -> None:
        """Have the agent say exactly this: now or, in `start_function`, as part of the greeting."""
        if not isinstance(text, str):
            raise TypeError("say takes text")
        if text.strip():
            self._do(lambda: self._host.say(text.strip()))

    def hang_up(self) -> None:
        """End the call when the agent has finished speaking."""
        self._do(lambda: self._host.hang_up())

    def transfer(self, target: str) -> None:
        """Transfer the caller to an E.164 number or a SIP address."""
        address = transfer_target(target)
        if address is None:
            raise ValueError("transfer takes a number like +12025550100 or an address like sip:desk@example.com")
        self._do(lambda: self._host.transfer(address))

    def set_pin(self, pin: str) -> None:
        """
        Give the caller this PIN of 4 to 12 digits.

        Ignored unless `trust` is everything, and for a caller with a PIN who has not given it in an unattested call.
        """
        if not isinstance(pin, str) or not re.fullmatch("[0-9]{4,12}", pin):
            raise ValueError("a PIN has 4 to 12 digits")
        self._do(lambda: self._host.set_pin(pin))

    # Used by ToolExecutor

    def handle(self) -> "Conversation":
        """The same conversation for one run of a function, which can be closed by itself."""
        return copy.copy(self)

    def close(self) -> None:
        """Ignore further actions: the run that holds this handle was given up."""
        self._open = False

    def _do(self, effect: Callable[[], None]) -> None:
        def happen() -> None:
            if self._open:  # checked on the loop, which also closes it
                effect()

        with contextlib.suppress(RuntimeError):  # the loop has ended, with all calls
            self._loop.call_soon_threadsafe(happen)


def _kept(value: Value) -> Kept:
    return MappingProxyType(value) if isinstance(value, dict) else value
