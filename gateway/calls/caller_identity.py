"""Who the caller is, as far as it becomes known during the call: an identifier, a name, a PIN."""

import asyncio
import logging
from collections.abc import Awaitable
from typing import Final

from gateway.agents import Agent
from gateway.calls.recorder import CallRecorder
from gateway.errors import StoreError
from gateway.history.live_events import CallEvents
from gateway.memory.access import MemoryAccess, PinEntry, PinResult, PinVerifier
from gateway.memory.identity import SpeakerTracker, identifier, same_person
from gateway.metrics import PIN_TRIES
from gateway.session import TrustLevel, VoiceSession
from gateway.text.person_names import introduced_name, relation_to_known

PIN_REMOVED: Final = "[PIN removed]"


class CallerIdentity:
    """Follows who is on the line, and opens or closes access to the caller's memory accordingly."""

    def __init__(
        self,
        session: VoiceSession,
        agent: Agent,
        access: MemoryAccess,
        events: CallEvents,
        log: logging.LoggerAdapter[logging.Logger],
        tasks: asyncio.TaskGroup,
        recorder: CallRecorder,
    ) -> None:
        self._session = session
        self._number = session.number or session.caller
        self._settings = agent.repeat_caller
        self._access = access
        self._events = events
        self._log = log
        self._tasks = tasks
        self._recorder = recorder
        self._speaker = SpeakerTracker(silence=agent.repeat_caller.new_person_after)
        self._earlier_speakers: list[str] = []
        self._pin = PinVerifier(agent.trust.pin) if agent.trust.pin is not None else None
        self._pin_entry = PinEntry()
        self._level_with_pin = agent.trust.with_pin

    def caller_said(self, text: str, now: float, *, question: str) -> str:
        """Look for a name or a PIN in the answer to the agent's `question`. Returns the text without the PIN."""
        self._follow_speaker(text, now)
        if self._pin is None:
            tried = self._pin_entry.heard(text, question=question)
            self._check(tried)
            return PIN_REMOVED if tried else text
        result = self._pin.heard(text, question=question)
        self._count(result)
        return text if result is None else PIN_REMOVED

    def digit_pressed(self, digit: str, now: float) -> None:
        if self._pin is not None:
            self._count(self._pin.pressed(digit, now))
        else:
            self._check(self._pin_entry.pressed(digit, now))

    def state_changed(self) -> None:
        """A tool may have identified the caller."""
        if not self._settings.may_be_known_later:
            return
        caller = identifier(self._settings, self._number, state=self._session.state)
        if caller != self._session.caller:
            self._session.caller, self._session.number = caller, self._number if caller != self._number else ""
            self._events.set_identity(caller, self._session.number)
            if not caller:
                self._recorder.discard()  # nothing may be kept of this caller
            self._access.change_caller(caller)

    def set_pin(self, pin: str) -> None:
        """Store the caller's PIN, if it is certain who calls: it would open the memory to them from then on."""

        async def store() -> None:
            try:
                await self._access.set_pin(pin)
            except StoreError as error:
                self._log.warning("PIN could not be stored", extra={"error": type(error).__name__})

        if self._access.allows(TrustLevel.EVERYTHING):
            self._tasks.create_task(store(), name="PIN")

    def _follow_speaker(self, text: str, now: float) -> None:
        """Several people may share a number. Each has their own memory; a memory that was closed stays closed."""
        if self._access.memory is None:
            return
        self._speaker.name = known = self._speaker.name or self._access.memory.person
        self._session.known_name = self._session.known_name or known
        introduced, relation = introduced_name(text), relation_to_known(text)
        is_another = self._speaker.heard(now, introduced.text if introduced else "", relation=relation)
        if introduced is None and not relation:
            return
        if is_another:
            self._log.info("another person speaks")
            self._earlier_speakers.append(known)
            self._access.change_speaker()
        name = self._speaker.name
        self._access.name_speaker(name, locked=any(same_person(name, earlier) for earlier in self._earlier_speakers))

    def _check(self, tried: str) -> None:
        """Check an attempt at the caller's own PIN. The hash takes a while; the call goes on."""

        if tried:
            self._tasks.create_task(self._resolve(self._access.check_pin(tried)), name="PIN")

    def _count(self, result: PinResult | None) -> None:
        """Count an attempt at the agent's PIN: after too many failures in other calls the right one is refused too."""

        async def counted(result: PinResult) -> PinResult:
            return result if await self._access.count_pin(right=result is PinResult.RIGHT) else PinResult.LOCKED

        if result is not None:
            self._tasks.create_task(self._resolve(counted(result)), name="PIN")

    async def _resolve(self, attempt: Awaitable[PinResult | None]) -> None:
        try:
            self._apply(await attempt)
        except StoreError as error:
            self._log.warning("PIN could not be checked", extra={"error": type(error).__name__})

    def _apply(self, result: PinResult | None) -> None:
        if result is None:
            return
        self._recorder.discard()  # it has the digits, as frames and as audio
        PIN_TRIES.labels(result.name.lower()).inc()
        self._log.info("PIN tried", extra={"result": result.name.lower()})
        if result is PinResult.RIGHT:
            self._access.raise_level(self._level_with_pin)
            self._session.trust = self._access.level
            self._events.set_trust(self._session.trust)
