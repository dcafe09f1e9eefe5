"""Waiting for something to come true, up to a limit that only a machine that stands still would reach."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tests import stage

LIMIT = 60.0


async def until(condition: Callable[[], Any]) -> Any:
    """Wait until it holds, and return it."""
    return await stage.until(condition, timeout=LIMIT)


async def until_it(condition: Callable[[], Awaitable[Any]]) -> Any:
    """The same, for something that has to be asked."""
    return await stage.until_it(condition, timeout=LIMIT)


async def wait_for_event(event: Awaitable[Any]) -> None:
    async with asyncio.timeout(LIMIT):
        await event
