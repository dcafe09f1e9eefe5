"""
What nodes share, as a few plain operations: values that expire, sets, and lists.

Every method raises SharedStoreUnavailable when the store can't be reached.
"""

from collections.abc import Sequence
from typing import Protocol


class ExpiringStore(Protocol):
    """Named values. Each is kept for `seconds` after it was written."""

    async def get(self, name: str) -> bytes | None: ...

    async def put(self, name: str, value: bytes, seconds: float) -> None: ...

    async def add(self, name: str, value: bytes, seconds: float) -> bool:
        """Put the value unless there is one. Whether it was put."""

    async def delete(self, name: str) -> bool:
        """Whether there was something to delete. Of several callers at once, one gets true."""

    async def close(self) -> None: ...


class NoSharedStore:
    """The ExpiringStore of a process that shares nothing: it keeps nothing."""

    async def get(self, name: str) -> bytes | None:
        return None

    async def put(self, name: str, value: bytes, seconds: float) -> None: ...

    async def add(self, name: str, value: bytes, seconds: float) -> bool:
        return True

    async def delete(self, name: str) -> bool:
        return False

    async def close(self) -> None: ...


class SharedStore(ExpiringStore, Protocol):
    """Values, sets and lists that all nodes see."""

    async def swap(self, name: str, old: bytes, new: bytes, seconds: float) -> bool:
        """Replace `old` by `new`. False if the value is not `old` any more."""

    # Sets

    async def join(self, name: str, member: str) -> bool:
        """Whether it was not a member before."""

    async def leave(self, name: str, member: str) -> None: ...

    async def members(self, name: str) -> set[str]: ...

    # Lists

    async def append(self, name: str, values: Sequence[bytes], seconds: float) -> None: ...

    async def rewrite(self, name: str, values: Sequence[bytes], seconds: float) -> None:
        """Replace the whole list in one step."""

    async def items(self, name: str) -> list[bytes]: ...

    async def take(self, name: str, wait: float) -> bytes | None:
        """Remove and return the first item; wait that many seconds for one."""
