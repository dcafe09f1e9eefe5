"""Carries out what a caller asks about their memory: "what do you know about me", "forget that", "off the record"."""

import asyncio
import logging
from typing import Final

from gateway.agents import Agent
from gateway.calls.transcript import Transcript
from gateway.errors import StoreError
from gateway.memory.access import MemoryAccess, spoken_pin
from gateway.memory.recall import as_speech
from gateway.session import Speaker, TrustLevel, Turn, VoiceSession
from gateway.text.voice_commands import CommandStep, VoiceCommand, VoiceCommandKind, VoiceCommands

NEED_PROOF: Final = frozenset({VoiceCommandKind.FORGET_EVERYTHING, VoiceCommandKind.SET_PIN})
"""Commands that need the level `everything` and attestation A or the PIN: a number may be forged."""

_log = logging.getLogger(__name__)


class MemoryCommands:
    """The memory commands of one call."""

    def __init__(
        self, session: VoiceSession, agent: Agent, transcript: Transcript, access: MemoryAccess, *, timeout: float
    ) -> None:
        """`timeout` limits how long the caller waits for a command."""
        self._session = session
        self._transcript = transcript
        self._access = access
        self._timeout = timeout
        self._commands = VoiceCommands(agent.language, name=agent.name)
        self._command_turns: list[Turn] = []
        self._new_pin = ""
        self._erased = False

    def may_be_command(self, text: str, now: float) -> bool:
        """Whether this is a command, if the caller has finished speaking."""
        return self._commands.may_be_meant(text, now)

    def sets_pin(self, text: str) -> bool:
        """Whether the turn may contain a new PIN, and must not be written down."""
        return self._commands.sets_pin(text)

    def recognize(self, text: str, now: float) -> VoiceCommand | None:
        """The command in a turn that is not written yet. "Off the record" takes effect here, for this turn too."""
        command = self._commands.heard(text, now)
        if command is not None and command.kind is VoiceCommandKind.SET_PIN and command.step is CommandStep.ASK:
            self._new_pin = spoken_pin(text)
        if command is not None and not self._erased:
            if command.kind in (VoiceCommandKind.OFF_RECORD, VoiceCommandKind.ON_RECORD):
                self._transcript.go_off_record(command.kind is VoiceCommandKind.OFF_RECORD)
        return command

    async def run(self, command: VoiceCommand, turn: Turn) -> str:
        """Carry out the command that the caller gave in `turn`. Returns the reply."""
        self._command_turns.append(turn)
        sets_pin = command.kind is VoiceCommandKind.SET_PIN
        if not self._access.can_erase or not self._session.caller or self._erased:
            return command.failed if sets_pin else command.nothing
        is_certain = self._access.proven and self._access.allows(TrustLevel.EVERYTHING)
        if command.kind in NEED_PROOF and not is_certain:
            return command.failed
        if sets_pin and not self._new_pin:
            return command.nothing
        if command.step is not CommandStep.DO:
            return command.say
        try:
            async with asyncio.timeout(self._timeout):
                return await self._run(command)
        except (StoreError, TimeoutError) as error:
            _log.warning("memory command failed", extra={"command": command.kind, "error": type(error).__name__})
            return command.failed

    async def _run(self, command: VoiceCommand) -> str:
        match command.kind:
            case VoiceCommandKind.TELL_KNOWN:
                known = as_speech(self._known())
                return f"{command.say} {known}" if known else command.nothing
            case VoiceCommandKind.FORGET_THAT:
                return command.say if self._forget_that() else command.nothing
            case VoiceCommandKind.SET_PIN:
                await self._access.set_pin(self._new_pin)
                self._new_pin = ""
            case VoiceCommandKind.FORGET_EVERYTHING:
                await self._access.erase()
                self._erased = True
                self._transcript.go_off_record(True)
                self._session.state = {}
                self._transcript.retract(self._transcript.turns)
                self._access.revoke()
        return command.say

    def _known(self) -> list[str]:
        """What the agent may use of the caller's memory, as sentences."""
        memory = self._access.memory
        if memory is None:
            return []
        facts: list[str] = []
        if self._access.allows(TrustLevel.EVERYTHING):
            facts = [fact.text for fact in memory.facts]
            facts += [f"{topic.title}: {topic.status}" if topic.status else topic.title for topic in memory.topics]
        if facts or not self._access.allows(TrustLevel.NAME):
            return facts
        if not self._access.allows(TrustLevel.SUMMARIES):
            return [memory.person]
        return [text for call in memory.calls for text in call.facts or (call.context,)]

    def _forget_that(self) -> bool:
        """Retract what the caller said before the command, or with it, and the answer to that."""
        turns = self._transcript.turns
        *_, command_turn, _ = self._command_turns  # the last one is the confirmation
        end = next((place for place, turn in enumerate(turns) if turn is command_turn), 0)
        if self._commands.is_bare(command_turn.text):
            commands = {id(turn) for turn in self._command_turns}
            is_talk = [turn.speaker is Speaker.CALLER and id(turn) not in commands for turn in turns[:end]]
            start = max((place for place, talk in enumerate(is_talk) if talk), default=end)
        else:
            start, end = end, end + 1
        self._transcript.retract(turns[start:end])
        return end > start
