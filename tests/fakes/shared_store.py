"""The store that nodes share, in memory. Values expire by the loop's clock, so it works on virtual time."""

import asyncio
from collections.abc import Sequence

from gateway.errors import SharedStoreUnavailable


class FakeSharedStore:
    """A SharedStore. While `is_away`, every method raises SharedStoreUnavailable."""

    def __init__(self) -> None:
        self.is_away = False
        self._values: dict[str, tuple[bytes, float]] = {}
        self._sets: dict[str, set[str]] = {}
        self._lists: dict[str, tuple[list[bytes], float]] = {}
        self._appended = asyncio.Event()

    async def get(self, name: str) -> bytes | None:
        self._reach()
        value, expires = self._values.get(name, (None, 0.0))
        return value if _now() < expires else None

    async def put(self, name: str, value: bytes, seconds: float) -> None:
        self._reach()
        self._values[name] = value, _now() + seconds

    async def add(self, name: str, value: bytes, seconds: float) -> bool:
        if await self.get(name) is not None:
            return False
        await self.put(name, value, seconds)
        return True

    async def swap(self, name: str, old: bytes, new: bytes, seconds: float) -> bool:
        if await self.get(name) != old:
            return False
        await self.put(name, new, seconds)
        return True

    async def delete(self, name: str) -> bool:
        existed = await self.get(name) is not None or bool(await self.items(name))
        self._values.pop(name, None)
        self._lists.pop(name, None)
        return existed

    async def admit(self, name: str, limit: int, seconds: float) -> float:
        times = [float(at) for at in await self.items(name) if float(at) > _now() - seconds]
        if len(times) >= limit:
            return times[-limit] + seconds - _now()
        await self.rewrite(name, [b"%f" % at for at in (*times, _now())], seconds)
        return 0.0

    async def join(self, name: str, member: str) -> bool:
        self._reach()
        members = self._sets.setdefault(name, set())
        is_new = member not in members
        members.add(member)
        return is_new

    async def join_limited(self, name: str, member: str, limit: int, seconds: float) -> bool:
        members = await self.members(name) - {member}
        if limit and len(members) >= limit:
            return False
        await self.join(name, member)
        return True

    async def leave(self, name: str, member: str) -> None:
        self._reach()
        self._sets.get(name, set()).discard(member)

    async def members(self, name: str) -> set[str]:
        self._reach()
        return set(self._sets.get(name, ()))

    async def append(self, name: str, values: Sequence[bytes], seconds: float) -> None:
        await self.rewrite(name, [*await self.items(name), *values], seconds)

    async def rewrite(self, name: str, values: Sequence[bytes], seconds: float) -> None:
        self._reach()
        self._lists[name] = list(values), _now() + seconds
        self._appended.set()

    async def items(self, name: str) -> list[bytes]:
        self._reach()
        values, expires = self._lists.get(name, ([], 0.0))
        return list(values) if _now() < expires else []

    async def take(self, name: str, wait: float) -> bytes | None:
        try:
            async with asyncio.timeout(wait):
                while not await self.items(name):
                    self._appended.clear()
                    await self._appended.wait()
        except TimeoutError:
            return None
        return self._lists[name][0].pop(0)

    async def close(self) -> None: ...

    @property
    def names(self) -> set[str]:
        return {*self._values, *self._sets, *self._lists}

    def lose_everything(self) -> None:
        """As a server that was restarted without persistence."""
        self._values.clear()
        self._sets.clear()
        self._lists.clear()

    def _reach(self) -> None:
        if self.is_away:
            raise SharedStoreUnavailable("the store is away")


def _now() -> float:
    return asyncio.get_running_loop().time()
