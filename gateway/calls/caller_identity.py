"""Who the caller is, as far as it becomes known during the call: an identifier, a name, a PIN."""

import asyncio
import contextlib
import logging
import re
from typing import Final

from gateway.agents import Agent
from gateway.calls.recorder import CallRecorder
from gateway.calls.transcript import PIN_REMOVED
from gateway.errors import StoreError
from gateway.history.live_events import CallEvents
from gateway.memory.access import MemoryAccess, PinEntry, PinResult, spoken_pin
from gateway.memory.identity import SpeakerTracker, identifier, same_person
from gateway.metrics import PIN_TRIES
from gateway.session import TrustLevel, VoiceSession
from gateway.text.person_names import introduced_name, relation_to_known

PIN_ARGUMENT: Final = re.compile(r'"(?:\w+_)?(?:pin|passcode)(?:_?code|_?number|_\w+)?"\s*:', re.IGNORECASE)
"""In the JSON arguments of a function: the name of one that is a PIN."""
MOST_TRIES: Final = 3
"""Attempts at a PIN in one call."""


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
        self._pin_entry = PinEntry()
        self._common_length = len(agent.trust.pin.reveal()) if agent.trust.pin is not None else 0
        self._own_length: int | None = None
        """How many digits the caller's own PIN has, 0 without one; None while it is not known."""
        self._tries_left = MOST_TRIES
        self._level_with_pin = agent.trust.with_pin

    async def load_pin_length(self) -> None:
        """Find out whether the caller has a PIN of their own, which counts instead of the agent's."""
        self._own_length = None
        with contextlib.suppress(StoreError):
            self._own_length = await self._access.pin_length()
            self._try(self._pin_entry.complete(self._pin_length))  # typed in the meantime

    def caller_said(self, text: str, now: float, *, question: str) -> str:
        """Look for a name or a PIN in the answer to the agent's `question`. Returns the text without the PIN."""
        self._follow_speaker(text, now)
        if not spoken_pin(text, question=question):
            return text
        self._protect_recording()
        self._try(spoken_pin(text, question=question, length=self._pin_length))
        return PIN_REMOVED

    def digit_pressed(self, digit: str, now: float) -> None:
        self._protect_recording()
        self._try(self._pin_entry.pressed(digit, now, self._pin_length))

    def state_changed(self) -> None:
        """A tool may have identified the caller."""
        if self._settings.may_be_known_later:
            caller = identifier(self._settings, self._number, state=self._session.state)
            if caller != self._session.caller:
                self.identified_as(caller)

    def identified_as(self, caller: str) -> None:
        """From now on the memory of this identifier applies."""
        self._recorder.note("action", {"do": "identify", "caller": caller})
        self._session.caller, self._session.number = caller, self._number if caller != self._number else ""
        self._events.set_identity(caller, self._session.number)
        if not caller:
            self._recorder.discard()  # nothing may be kept of this caller
        self._access.change_caller(caller)

    def set_pin(self, pin: str) -> None:
        """
        Store the caller's PIN, if it is certain who calls: it would open the memory to them from then on.

        A PIN is replaced only if the number is attested, or the present one was given: a forged number is not enough.
        """

        async def store() -> None:
            try:
                if self._access.proven or not await self._access.pin_length():
                    await self._access.set_pin(pin)
                    self._own_length = len(pin)
            except StoreError as error:
                self._log.warning("PIN could not be stored", extra={"error": type(error).__name__})

        self._recorder.discard()  # it has the arguments of the function
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

    # The PIN

    @property
    def _pin_length(self) -> int:
        """The length of the PIN that counts; 0 if it is not known."""
        return 0 if self._own_length is None else self._own_length or self._common_length

    def _protect_recording(self) -> None:
        """Delete the recording, which has the digits as frames and as audio, if they may be those of a PIN."""
        if self._own_length is None or self._pin_length:
            self._recorder.discard()

    def _try(self, tried: str) -> None:
        """Check an attempt, unless it can gain nothing. The hash takes a while; the call goes on."""
        has_all = self._access.proven and self._access.level >= self._level_with_pin
        if tried and self._tries_left and not has_all:
            self._tries_left -= 1
            self._tasks.create_task(self._check(tried), name="PIN")

    async def _check(self, tried: str) -> None:
        try:
            result = await self._access.check_pin(tried)
        except StoreError as error:
            self._log.warning("PIN could not be checked", extra={"error": type(error).__name__})
            return
        if result is None:
            self._tries_left += 1
            return
        PIN_TRIES.labels(result.name.lower()).inc()
        self._log.info("PIN tried", extra={"result": result.name.lower()})
        if result is PinResult.RIGHT:
            self._access.raise_level(self._level_with_pin)
            self._session.trust = self._access.level
            self._events.set_trust(self._session.trust)
