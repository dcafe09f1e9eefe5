"""Who is on the line in one call, as far as that comes out in it, and whose memory the agent may use for them."""

import logging
from collections.abc import Callable
from typing import Final, Protocol

from gateway.agents import Agent
from gateway.finalization.summary.fact_rules import stated_name
from gateway.history.live_events import CallEvents
from gateway.memory.identity import SpeakerTracker, identifier, same_person
from gateway.memory.loader import MemoryLoader
from gateway.memory.trust import MemoryAccess, PinResult, PinVerifier
from gateway.session import VoiceSession

PIN_REMOVED: Final = "[PIN removed]"

LookUp = Callable[[str], MemoryLoader | None]
"""Begins to load what is known of a caller."""


class IdentityEvents(Protocol):
    """The call, which tells everybody in it."""

    def memory_is(self, memory: MemoryLoader | None) -> None:
        """From here on this is what is known; the same again when other parts of it count."""

    def caller_is_another(self) -> None:
        """A function has found out who calls: functions are given what is kept of that one."""

    def somebody_else_speaks(self) -> None:
        """What functions were given of the one before is not for this one."""

    def more_may_be_told(self) -> None: ...


class CallerIdentity:
    """One call's caller: an identifier that functions may find out, a name they say, a PIN they know."""

    def __init__(
        self,
        host: IdentityEvents,
        session: VoiceSession,
        agent: Agent,
        access: MemoryAccess,
        *,
        memory: MemoryLoader | None,
        look_up: LookUp | None,
        call_events: CallEvents,
        log: logging.LoggerAdapter[logging.Logger],
    ) -> None:
        self._host = host
        self._session = session
        self._number = session.number or session.caller
        self._settings = agent.repeat_caller
        self._access = access
        self._memory = memory
        self._look_up = look_up
        self._call_events = call_events
        self._log = log
        self._person = SpeakerTracker(silence=agent.repeat_caller.new_person_after)
        self._gone: list[str] = []
        self._pin = PinVerifier(agent.trust.pin) if agent.trust.pin is not None else None
        self._with_pin = agent.trust.with_pin

    def said(self, text: str, now: float, *, question: str) -> str:
        """The caller said this, after the agent's `question`. Returns what may be written down of it."""
        self._note_person(text, now)
        if self._pin is None:
            return text
        result = self._pin.heard(text, question=question)
        self._judge(result)
        return text if result is None else PIN_REMOVED

    def pressed(self, digit: str, now: float) -> None:
        """A key was pressed, which may be one of their PIN."""
        if self._pin is not None:
            self._judge(self._pin.pressed(digit, now))

    def state_changed(self) -> None:
        """A function may have found out who the caller is."""
        if not self._settings.may_be_known_later or self._look_up is None:
            return
        caller = identifier(self._settings, self._number, state=self._session.state)
        if caller != self._session.caller:
            self._session.caller, self._session.number = caller, self._number if caller != self._number else ""
            self._access.caller = caller
            self._call_events.set_identity(caller, self._session.number)
            self._host.caller_is_another()
            self._change_memory(self._look_up(caller))

    def call_over(self) -> None:
        if self._memory is not None:
            self._memory.cancel()

    def _note_person(self, text: str, now: float) -> None:
        """Several people may have one number: each has their own memory, and once locked it stays so."""
        if self._memory is None:
            return
        self._person.name = known = self._person.name or self._memory.person
        name = stated_name(text)
        is_another = self._person.heard(now, name)
        if not name:
            return
        if is_another:
            self._log.info("somebody else has the phone")
            self._gone.append(known)
            self._host.somebody_else_speaks()
        self._access.person = name
        if self._memory.person_is(name):
            self._access.locked = any(same_person(name, gone) for gone in self._gone)
            self._change_memory(self._memory)

    def _change_memory(self, memory: MemoryLoader | None) -> None:
        if self._memory is not None and memory is not self._memory:
            self._memory.cancel()
        self._memory = memory
        self._host.memory_is(memory)

    def _judge(self, result: PinResult | None) -> None:
        if result is None:
            return
        self._log.info("PIN tried", extra={"result": result.name.lower()})
        if result is PinResult.RIGHT:
            self._access.tier = max(self._access.tier, self._with_pin)
            self._host.more_may_be_told()
