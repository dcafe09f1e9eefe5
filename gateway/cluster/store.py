"""
What several nodes share, as few plain operations: values that expire, sets, and lists.

The calls' own logic stands above it once (`commons.py`), whether the board is Redis or, for workers on one machine, a
file. Every method raises SharedStoreUnavailable when the board can't be reached.
"""

from collections.abc import Sequence
from typing import Protocol


class SharedStore(Protocol):
    """
    Names and values that all nodes see. `seconds` is how long a name is kept after this write.

    `era` is another one when the board has forgotten everything; empty for a board that never does by itself.
    """

    @property
    def era(self) -> str: ...

    async def get(self, name: str) -> bytes | None: ...

    async def put(self, name: str, value: bytes, seconds: float) -> None: ...

    async def add(self, name: str, value: bytes, seconds: float) -> bool:
        """Put it unless there is a value; whether there was none."""

    async def swap(self, name: str, old: bytes, new: bytes, seconds: float) -> bool:
        """Put `new` where `old` still stands; whether it did."""

    async def delete(self, name: str) -> bool:
        """Whether there was something to delete: of many who try, one is told so."""

    # Sets

    async def join(self, name: str, member: str) -> bool:
        """Whether it was not in it."""

    async def leave(self, name: str, member: str) -> None: ...

    async def members(self, name: str) -> set[str]: ...

    # Lists

    async def append(self, name: str, values: Sequence[bytes], seconds: float) -> None: ...

    async def rewrite(self, name: str, values: Sequence[bytes], seconds: float) -> None:
        """These values and no others, in one step."""

    async def items(self, name: str) -> list[bytes]: ...

    async def take(self, name: str, wait: float) -> bytes | None:
        """Remove and return the first item, waiting so many seconds for one."""

    async def close(self) -> None: ...
