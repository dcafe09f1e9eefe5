"""What a caller asks of their memory aloud, carried out in one call: what is done, and what they are told."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final, Protocol

from gateway.agents import Agent
from gateway.calls.transcript import Transcript
from gateway.errors import StoreError
from gateway.memory.loader import MemoryLoader
from gateway.memory.recall import as_speech
from gateway.memory.trust import MemoryAccess, TrustLevel
from gateway.session import Speaker, Turn, VoiceSession
from gateway.text.voice_commands import CommandStep, VoiceCommand, VoiceCommandKind, VoiceCommands

PATIENCE: Final = 8.0
"""How long the caller waits for what they asked to be done."""

_log = logging.getLogger(__name__)

Forget = Callable[[str, str], Awaitable[object]]
"""Deletes all that an agent remembers of a caller, live calls and all. Raises StoreError."""


class MemoryCommandHost(Protocol):
    """The call, as what is kept of it is its own affair."""

    def keep_nothing(self, nothing: bool) -> None:
        """From the next turn on nothing that is said may outlive the call, or everything may again."""

    def taken_back(self) -> None:
        """Something is not in the transcript any more: nothing else may have it either."""

    def memory_is_gone(self) -> None:
        """The agent must not know any more what it was told of earlier calls."""


class MemoryCommands:
    """One call's. Without `forget` nothing is kept of this caller anyway, and they are told so."""

    def __init__(
        self,
        keeper: MemoryCommandHost,
        session: VoiceSession,
        agent: Agent,
        transcript: Transcript,
        access: MemoryAccess,
        *,
        memory: MemoryLoader | None,
        forget: Forget | None,
    ) -> None:
        self._keeper = keeper
        self._session = session
        self._transcript = transcript
        self._access = access
        self._memory = memory
        self._forget = forget
        self._commands = VoiceCommands(agent.language, name=agent.name)
        self._wished: list[Turn] = []
        self._forgotten = False

    def memory_is(self, memory: MemoryLoader | None) -> None:
        """What is known of the caller, who has turned out to be somebody else."""
        self._memory = memory

    def may_be_one(self, text: str, now: float) -> bool:
        """Whether this is one, if the caller has said all they want to say."""
        return self._commands.may_be_meant(text, now)

    def hear(self, text: str, at: datetime, now: float) -> VoiceCommand | None:
        """The caller said this: write it down, and tell what they wish, if that is what it is."""
        command = self._commands.heard(text, now)
        if (
            command is not None
            and command.wish in (VoiceCommandKind.OFF_RECORD, VoiceCommandKind.ON_RECORD)
            and not self._forgotten
        ):
            self._keeper.keep_nothing(command.wish is VoiceCommandKind.OFF_RECORD)
        self._transcript.caller_said(text, at)
        if command is not None:
            self._wished.append(self._transcript.turns[-1])
        return command

    async def carry_out(self, command: VoiceCommand) -> str:
        """Do it, and tell what the caller is to be told."""
        if self._forget is None or not self._session.caller or self._forgotten:
            return command.nothing
        if not self._access.allows(command.wish.needs):
            return command.failed
        if command.step is not CommandStep.DO:
            return command.say
        try:
            async with asyncio.timeout(PATIENCE):
                return await self._done(command, self._forget)
        except (StoreError, TimeoutError) as error:
            _log.warning(
                "a caller's wish could not be met", extra={"wish": command.wish, "error": type(error).__name__}
            )
            return command.failed

    async def _done(self, command: VoiceCommand, forget: Forget) -> str:
        match command.wish:
            case VoiceCommandKind.TELL_KNOWN:
                known = as_speech(self._known())
                return f"{command.say} {known}" if known else command.nothing
            case VoiceCommandKind.FORGET_THAT:
                return command.say if self._take_back() else command.nothing
            case VoiceCommandKind.FORGET_EVERYTHING:
                await self._forget_everything(forget)
        return command.say

    def _known(self) -> list[str]:
        """What the agent may be told, and so the caller."""
        if self._memory is None:
            return []
        facts: list[str] = []
        if self._access.allows(TrustLevel.EVERYTHING):
            facts = [fact.text for fact in self._memory.facts]
            facts += [f"{pin.title}: {pin.status}" if pin.status else pin.title for pin in self._memory.pins]
        if facts or not self._access.allows(TrustLevel.NAME):
            return facts
        calls = self._memory.calls
        if not self._access.allows(TrustLevel.SUMMARIES):
            return [self._memory.person]
        return [text for call in calls for text in call.facts or (call.context,)]

    def _take_back(self) -> bool:
        """What the caller said before the wish, or with it, and what was answered to that."""
        turns = self._transcript.turns
        *_, wish, _ = self._wished  # the last one is the yes
        end = next((place for place, turn in enumerate(turns) if turn is wish), 0)
        if self._commands.is_bare(wish.text):
            is_talk = [turn.speaker is Speaker.CALLER and not _is_in(turn, self._wished) for turn in turns[:end]]
            start = max((place for place, talk in enumerate(is_talk) if talk), default=end)
        else:
            start, end = end, end + 1
        self._unsay(turns[start:end])
        return end > start

    def _unsay(self, turns: list[Turn]) -> None:
        self._session.taken_back += [turn.name for turn in turns]
        self._transcript.take_back(turns)
        self._keeper.taken_back()

    async def _forget_everything(self, forget: Forget) -> None:
        """What was said so far in this call is part of it, and so is the rest."""
        await forget(self._session.agent, self._session.caller)
        self._forgotten = True
        self._keeper.keep_nothing(True)
        self._session.state = {}
        self._unsay(self._transcript.turns)
        self._keeper.memory_is_gone()


def _is_in(turn: Turn, turns: list[Turn]) -> bool:
    return any(turn is other for other in turns)
