"""The shared store in Redis, or in any server that speaks its protocol."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError, RedisError, ResponseError

from gateway.errors import SharedStoreUnavailable
from gateway.settings import Secret

PREFIX: Final = "voice-gateway:"
ANSWER_SECONDS: Final = 2.0
"""A server that has not answered by then is treated as not there."""

# Compare and write in one step.
_SWAP: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
"""

_JOIN_LIMITED: Final = """
local limit = tonumber(ARGV[2])
if limit > 0 and redis.call('SISMEMBER', KEYS[1], ARGV[1]) == 0 and redis.call('SCARD', KEYS[1]) >= limit then
    return 0
end
redis.call('SADD', KEYS[1], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
"""

# A sorted set of the times of what was admitted, by the server's clock; the members are unique.
_ADMIT: Final = """
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local window = tonumber(ARGV[2]) * 1000
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - window)
local admitted = redis.call('ZCARD', KEYS[1])
if admitted >= tonumber(ARGV[1]) then
    local first = redis.call('ZRANGE', KEYS[1], admitted - ARGV[1], admitted - ARGV[1], 'WITHSCORES')
    return math.max(1, math.ceil((first[2] + window - now) / 1000))
end
redis.call('ZADD', KEYS[1], string.format('%.0f', now), string.format('%.0f-%d', now, admitted))
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 0
"""

P = ParamSpec("P")
T = TypeVar("T")


def connect(url: str, password: Secret | None = None) -> Redis:
    """
    A client that answers or fails within seconds. A password in the URL takes precedence over `password`.

    It retries once, at once, after a lost connection: when Redis was restarted, all connections of the pool are dead.
    """
    return Redis.from_url(
        url,
        password=password.reveal() if password is not None else None,
        socket_timeout=ANSWER_SECONDS,
        socket_connect_timeout=ANSWER_SECONDS,
        retry=Retry(NoBackoff(), 1, supported_errors=(ConnectionError,)),
        health_check_interval=0,
    )


class Client(Protocol):
    """An object that uses a Redis client."""

    _client: Any


C = TypeVar("C", bound=Client)


def foreign_errors(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[C, P], Coroutine[Any, Any, T]]:
    """
    Translate Redis' errors, without their text: it may contain the address with its password.

    After a lost connection the idle ones of the pool are dead as well; each would cost its user a failure.

    The work is a task of its own, so that a cancellation, and thus a time-out, ends the wait at once. The client sends
    inside `asyncio.wait_for`, which before Python 3.12 ignores a cancellation that comes just when it is done: it would
    go on to wait for an answer, for ANSWER_SECONDS.
    """
    abandoned: set[asyncio.Task[T]] = set()  # the loop alone would not keep them

    @wraps(method)
    async def guarded(self: C, /, *args: P.args, **kwargs: P.kwargs) -> T:
        work = asyncio.get_running_loop().create_task(method(self, *args, **kwargs))
        try:
            return await asyncio.shield(work)
        except (RedisError, OSError, TimeoutError) as error:
            failure = error
        finally:
            if not work.done():
                work.cancel()
                abandoned.add(work)
                work.add_done_callback(abandoned.discard)
                work.add_done_callback(lambda task: task.cancelled() or task.exception())  # so that it is not reported
        if not isinstance(failure, ResponseError):
            with contextlib.suppress(RedisError, OSError, TimeoutError):
                await self._client.connection_pool.disconnect(inuse_connections=False)
        raise SharedStoreUnavailable(f"Redis: {type(failure).__name__}") from None

    return guarded


class RedisStore:
    """A SharedStore whose names are keys of one Redis database."""

    def __init__(self, client: Redis) -> None:
        self._client: Any = client  # its types do not distinguish bytes from text
        self._swap = client.register_script(_SWAP)
        self._join_limited = client.register_script(_JOIN_LIMITED)
        self._admit = client.register_script(_ADMIT)

    @foreign_errors
    async def get(self, name: str) -> bytes | None:
        value: bytes | None = await self._client.get(PREFIX + name)
        return value

    @foreign_errors
    async def put(self, name: str, value: bytes, seconds: float) -> None:
        await self._client.set(PREFIX + name, value, px=_milliseconds(seconds))

    @foreign_errors
    async def add(self, name: str, value: bytes, seconds: float) -> bool:
        return bool(await self._client.set(PREFIX + name, value, px=_milliseconds(seconds), nx=True))

    @foreign_errors
    async def swap(self, name: str, old: bytes, new: bytes, seconds: float) -> bool:
        return bool(await self._swap(keys=[PREFIX + name], args=[old, new, _milliseconds(seconds)]))

    @foreign_errors
    async def delete(self, name: str) -> bool:
        return bool(await self._client.delete(PREFIX + name))

    @foreign_errors
    async def admit(self, name: str, limit: int, seconds: float) -> float:
        """Returns at most a thousandth too much."""
        return int(await self._admit(keys=[PREFIX + name], args=[limit, _milliseconds(seconds)])) / 1000

    @foreign_errors
    async def join(self, name: str, member: str) -> bool:
        return bool(await self._client.sadd(PREFIX + name, member))

    @foreign_errors
    async def join_limited(self, name: str, member: str, limit: int, seconds: float) -> bool:
        return bool(await self._join_limited(keys=[PREFIX + name], args=[member, limit, _milliseconds(seconds)]))

    @foreign_errors
    async def leave(self, name: str, member: str) -> None:
        await self._client.srem(PREFIX + name, member)

    @foreign_errors
    async def members(self, name: str) -> set[str]:
        return {member.decode() for member in await self._client.smembers(PREFIX + name)}

    @foreign_errors
    async def append(self, name: str, values: Sequence[bytes], seconds: float, *, replace: bool = False) -> None:
        async with self._client.pipeline(transaction=True) as pipeline:
            if replace:
                pipeline.delete(PREFIX + name)
            if values:
                pipeline.rpush(PREFIX + name, *values)
            pipeline.pexpire(PREFIX + name, _milliseconds(seconds))
            await pipeline.execute()

    async def rewrite(self, name: str, values: Sequence[bytes], seconds: float) -> None:
        await self.append(name, values, seconds, replace=True)

    @foreign_errors
    async def items(self, name: str) -> list[bytes]:
        return list(await self._client.lrange(PREFIX + name, 0, -1))

    @foreign_errors
    async def take(self, name: str, wait: float) -> bytes | None:
        clock = asyncio.get_running_loop().time
        give_up = clock() + wait
        while (left := give_up - clock()) > 0:
            # The server's timeout has to end before the socket's.
            if found := await self._client.blpop([PREFIX + name], timeout=min(left, ANSWER_SECONDS / 2)):
                return bytes(found[1])
        first: bytes | None = await self._client.lpop(PREFIX + name)
        return first

    async def close(self) -> None:
        await self._client.aclose()


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))
