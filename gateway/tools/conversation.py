"""
What a user's function sees of its call, and what it can do there.

Functions run in threads of their own; the call lives on the gateway's loop. What a function does to the call is
carried over to the loop, in the order it was done: all of it has happened before the function's result is there.
"""

import asyncio
import concurrent.futures
import contextlib
import copy
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol

from gateway.logs import CallLogger
from gateway.memory.state import MOST_KEYS, Scalar, Value, check_value
from gateway.session import Turn, VoiceSession
from gateway.telephony.phone_numbers import transfer_target

ANSWER_SECONDS: Final = 5.0
"""How long a function waits for the loop to tell it something; normally that takes less than a millisecond."""

Kept = Scalar | Mapping[str, Scalar]
"""A value as it is read back; a flat object can't be changed in place."""


class ConversationHost(Protocol):
    """The call, as its functions act on it. Every method is called on the gateway's loop and returns at once."""

    def say(self, text: str) -> None:
        """Have the agent say it: now, or with the greeting while nothing has been said."""

    def hang_up(self) -> None: ...

    def transfer(self, target: str) -> None:
        """`target` is an E.164 number or a SIP address."""

    def turns(self) -> Sequence[Turn]:
        """The conversation so far."""


class Memory(Mapping[str, Kept]):
    """What earlier calls of this caller left behind. Read only."""

    def __init__(self, values: Mapping[str, Value] | None = None) -> None:
        self._values: dict[str, Kept] = {key: _kept(value) for key, value in (values or {}).items()}

    def __getitem__(self, key: str) -> Kept:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._values))  # another thread may add keys meanwhile

    def __len__(self) -> int:
        return len(self._values)

    def clear(self) -> None:
        """The caller wants it forgotten, or is somebody else."""
        self._values.clear()

    def become(self, values: Mapping[str, Value]) -> None:
        """What is kept now: a call that went on beside this one may have ended."""
        self._values = {key: _kept(value) for key, value in values.items()}

    def fields(self) -> dict[str, Value]:
        """A copy, in plain dictionaries."""
        return {key: dict(value) if isinstance(value, Mapping) else value for key, value in self.items()}


class State(Memory, MutableMapping[str, Kept]):
    """What this call leaves behind. ValueError for what can't be kept: see `check_value`."""

    def __setitem__(self, key: str, value: Kept) -> None:
        if len(self._values) >= MOST_KEYS and key not in self._values:
            raise ValueError(f"a call keeps at most {MOST_KEYS} state keys")
        self._values[key] = _kept(check_value(key, dict(value) if isinstance(value, Mapping) else value))

    def __delitem__(self, key: str) -> None:
        del self._values[key]


class Conversation:
    """One call, as its functions know it. Made on the gateway's loop, safe to use from any thread."""

    def __init__(
        self,
        session: VoiceSession,
        host: ConversationHost,
        *,
        memory: Mapping[str, Value] | None = None,
        state: Mapping[str, Value] | None = None,
    ) -> None:
        self.memory = Memory(memory)
        self.state = State(state)
        """Text, numbers, true and false, or flat objects of these."""
        self.log = CallLogger(
            logging.getLogger("gateway.functions"), {"call": session.uuid[:8], "agent": session.agent}
        )
        """A logger that names the call. Like every log here, it is no place for what was said."""
        self._session = session
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._open = True

    # What a function knows

    @property
    def caller(self) -> str:
        """The caller's number in E.164; empty for somebody who hides it."""
        return self._session.number or self._session.caller

    @property
    def agent(self) -> str:
        return self._session.agent

    @property
    def session(self) -> str:
        """The id of this call."""
        return self._session.id

    @property
    def transcript(self) -> tuple[tuple[str, str], ...]:
        """The turns so far, each as who spoke ("caller" or "agent") and what was heard."""
        return tuple((str(turn.speaker), turn.text) for turn in self._ask(self._host.turns))

    # What a function does

    def say(self, text: str) -> None:
        """Have the agent say exactly this: now, or in `start_function` with the greeting."""
        if not isinstance(text, str):
            raise TypeError("say takes text")
        if text.strip():
            self._do(lambda: self._host.say(text.strip()))

    def hang_up(self) -> None:
        """End the call once the agent has said what it is saying."""
        self._do(lambda: self._host.hang_up())

    def transfer(self, target: str) -> None:
        """Hand the caller over to an E.164 number or a SIP address."""
        address = transfer_target(target)
        if address is None:
            raise ValueError("transfer takes a number like +12025550100 or an address like sip:desk@example.com")
        self._do(lambda: self._host.transfer(address))

    # The runner's side

    def handle(self) -> "Conversation":
        """The same conversation for one run of a function; closing it leaves the others theirs."""
        return copy.copy(self)

    def close(self) -> None:
        """The run that holds this handle was given up: what it still does must not surprise the caller."""
        self._open = False

    def _do(self, effect: Callable[[], None]) -> None:
        def happen() -> None:
            if self._open:  # asked on the loop, where it is closed
                effect()

        with contextlib.suppress(RuntimeError):  # the loop has ended, and every call with it
            self._loop.call_soon_threadsafe(happen)

    def _ask(self, question: Callable[[], Sequence[Turn]]) -> Sequence[Turn]:
        if threading.get_ident() == self._loop_thread:
            return question()
        answer: concurrent.futures.Future[Sequence[Turn]] = concurrent.futures.Future()
        self._loop.call_soon_threadsafe(lambda: answer.set_result(question()))
        return answer.result(timeout=ANSWER_SECONDS)


def _kept(value: Value) -> Kept:
    return MappingProxyType(value) if isinstance(value, dict) else value
