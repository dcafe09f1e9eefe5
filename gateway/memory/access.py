"""Access of a live call to its caller's memory: whose memory, how much of it."""

import enum
from collections.abc import Callable
from typing import Protocol

from gateway.memory.loader import MemoryLoader
from gateway.memory.trust import TrustLevel


class AccessChange(enum.Enum):
    """A change of the memory that the agent of a live call may use."""

    LEVEL_RAISED = enum.auto()
    """More of the same memory may be used."""
    CALLER_CHANGED = enum.auto()
    """A tool has identified the caller: the memory of another identifier applies."""
    SPEAKER_CHANGED = enum.auto()
    """Another person has the phone. Kept state is not theirs."""
    CONTENT_CHANGED = enum.auto()
    """Other facts and past calls apply to the person who speaks."""
    REVOKED = enum.auto()
    """No memory may be used for the rest of the call."""


class MemoryAccess:
    """
    Whose memory the agent of one call may use now, and at which level.

    Observers get every change, after it has taken effect, in the order in which they subscribed. The object belongs
    to the call, not to its media stream: a resumed call keeps its level.
    """

    def __init__(self, level: TrustLevel = TrustLevel.EVERYTHING, *, caller: str = "") -> None:
        self.level = level
        self.caller = caller
        """The identifier under which the memory is kept; empty: nothing is read or kept."""
        self.person = ""
        """The name of the person who speaks, if several people share a number and this one has given a name."""
        self.locked = False
        """Set when the memory is another person's, or was erased at the caller's request."""
        self.memory: MemoryLoader | None = None
        """What is being loaded for `caller`; None without memory."""
        self._source: MemorySource = NoMemory()
        self._observers: list[Callable[[AccessChange], None]] = []

    def allows(self, level: TrustLevel) -> bool:
        return self.level >= level and not (self.locked and level)

    def subscribe(self, observer: Callable[[AccessChange], None]) -> None:
        self._observers.append(observer)

    def open(self, source: "MemorySource") -> None:
        """Start to load the memory of `caller`."""
        self._source = source
        self.memory = source.load(self.caller)

    @property
    def can_erase(self) -> bool:
        return self._source.can_erase

    async def erase(self) -> None:
        """Delete all that is stored about `caller`. Raises StoreError."""
        await self._source.erase(self.caller)

    def close(self) -> None:
        """Stop loading and drop all observers: the media stream has ended."""
        self._observers.clear()
        if self.memory is not None:
            self.memory.cancel()
            self.memory = None

    # Changes

    def raise_level(self, level: TrustLevel) -> None:
        self.level = max(self.level, level)
        self._notify(AccessChange.LEVEL_RAISED)

    def change_caller(self, caller: str) -> None:
        self.caller = caller
        if self.memory is not None:
            self.memory.cancel()
        self.memory = self._source.load(caller)
        self._notify(AccessChange.CALLER_CHANGED)

    def change_speaker(self) -> None:
        """Another person speaks; `name_speaker` follows."""
        self._notify(AccessChange.SPEAKER_CHANGED)

    def name_speaker(self, name: str, *, locked: bool) -> None:
        """The person who speaks has given a name. `locked`: the memory of that name is closed in this call."""
        self.person = name
        if self.memory is not None and self.memory.person_is(name):
            self.locked = locked
            self._notify(AccessChange.CONTENT_CHANGED)

    def revoke(self) -> None:
        self.locked = True
        self._notify(AccessChange.REVOKED)

    def _notify(self, change: AccessChange) -> None:
        for observer in list(self._observers):
            observer(change)


class MemorySource(Protocol):
    """The memory that an agent has of its callers."""

    @property
    def can_erase(self) -> bool: ...

    def load(self, caller: str) -> MemoryLoader | None:
        """Start to load a caller's memory. None for a caller without memory, or if the call may not use it."""

    async def erase(self, caller: str) -> None:
        """Delete everything about a caller. Raises StoreError."""


class NoMemory:
    """The MemorySource of a gateway without memory."""

    can_erase = False

    def load(self, caller: str) -> None: ...

    async def erase(self, caller: str) -> None: ...
