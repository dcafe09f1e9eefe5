"""
Connections to PostgreSQL: some threads, each with one of its own, opened when there is work and again when it is lost.

psycopg blocks, which is what lets memory be written once for both databases: an asyncio driver would want each
function twice. Nothing here waits for ever. Who finds the server away is told so at once for a second, so that work
does not pile up behind it, and a server that stops answering has its connection cut.
"""

import asyncio
import contextlib
import functools
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import psycopg
from psycopg import errors

from gateway.errors import StoreUnavailable
from gateway.memory.database import Parameters, Rows

T = TypeVar("T")
Raw = psycopg.Connection[Any]

CONNECT_SECONDS: Final = 5
_AWAY_SECONDS: Final = 1.0
_CLOSING_SECONDS: Final = 5.0
_NAMED: Final = re.compile(r"(?<![:\w]):([a-z_]+)")


class PostgresConnection:
    """A Connection for the SQL that both databases know."""

    def __init__(self, raw: Raw) -> None:
        self._raw = raw

    def execute(self, statement: str, parameters: Parameters = (), /) -> Rows:
        return self._raw.execute(_translated(statement), _storable(parameters))

    def executemany(self, statement: str, parameters: Iterable[Sequence[Any]], /) -> Rows:
        cursor = self._raw.cursor()
        cursor.executemany(_translated(statement), [_storable(row) for row in parameters])
        return cursor


@functools.lru_cache(512)
def _translated(statement: str) -> bytes:
    return _NAMED.sub(r"%(\1)s", statement.replace("%", "%%").replace("?", "%s")).encode()


def _storable(parameters: Parameters) -> Any:
    """PostgreSQL's text has every character but NUL."""
    if isinstance(parameters, dict):
        return {name: _without_nul(value) for name, value in parameters.items()}
    return [_without_nul(value) for value in parameters]


def _without_nul(value: Any) -> Any:
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value


class PooledJob:
    """What is done on a thread, and can be given up from another."""

    def __init__(self) -> None:
        self.is_given_up = False
        self._connection: Raw | None = None

    def uses(self, connection: Raw | None) -> None:
        self._connection = connection
        if self.is_given_up and connection is not None:
            _cut(connection)

    def give_up(self) -> None:
        self.is_given_up = True
        if self._connection is not None:
            _cut(self._connection)


class Server:
    """
    The way to the server, and how it is.

    `prepare` is done with the first connection that is made, `greeting` is said on each.
    """

    def __init__(self, url: str, prepare: Callable[[Raw], None], greeting: str) -> None:
        self.problem = ""
        """Why the last connection could not be made; empty where it could."""
        self._url = url
        self._prepare = prepare
        self._greeting = greeting.encode()
        self._is_prepared = False
        self._preparing = threading.Lock()
        self._away_until = 0.0

    def connect(self, job: PooledJob) -> Raw:
        """On a thread. Raises StoreUnavailable."""
        if time.monotonic() < self._away_until:
            raise StoreUnavailable(self.problem)
        try:
            connection = self._connected(job)
        except StoreUnavailable as error:
            self.problem = str(error)
            self._away_until = time.monotonic() + _AWAY_SECONDS
            raise
        self.problem = ""
        return connection

    def _connected(self, job: PooledJob) -> Raw:
        try:
            connection = psycopg.connect(
                self._url,
                autocommit=True,
                client_encoding="utf8",
                connect_timeout=CONNECT_SECONDS,
                application_name="voice-gateway",
                keepalives_idle=10,
                keepalives_interval=5,
                keepalives_count=3,
            )
        except psycopg.Error as error:
            raise StoreUnavailable(f"can't reach PostgreSQL, see DATABASE_URL: {_reason(error)}") from error
        job.uses(connection)
        try:
            with self._preparing:
                if not self._is_prepared:
                    self._prepare(connection)
                    self._is_prepared = True
            connection.execute(self._greeting)
        except psycopg.Error as error:
            connection.close()
            raise StoreUnavailable(f"can't make tables in PostgreSQL: {_kind(error)}") from error
        except StoreUnavailable:
            connection.close()
            raise
        return connection


class PostgresPool:
    """Threads that work on connections; `close` them."""

    def __init__(self, server: Server, count: int, name: str) -> None:
        self._server = server
        self._threads = ThreadPoolExecutor(count, name)
        self._own = threading.local()
        self._connections: set[Raw] = set()

    async def do(self, work: Callable[[Raw], T], seconds: float) -> T:
        """
        Do `work` with a connection, on a thread, within so many seconds. Raises StoreUnavailable.

        It is done again when the connection turns out to have been lost since it was last used.
        """
        job = PooledJob()
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.get_running_loop().run_in_executor(self._threads, self._work, work, job)
        except TimeoutError:
            job.give_up()
            raise StoreUnavailable("PostgreSQL does not answer", answer_lost=True) from None

    async def close(self) -> None:
        job = asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)
        _, unfinished = await asyncio.wait({job}, timeout=_CLOSING_SECONDS)
        for connection in tuple(self._connections):
            if unfinished:
                _cut(connection)
            else:
                connection.close()
        await job

    def _work(self, work: Callable[[Raw], T], job: PooledJob) -> T:
        while True:
            connection, is_new = self._connection(job)
            job.uses(connection)
            try:
                return work(connection)
            except psycopg.Error as error:
                if isinstance(error, errors.ReadOnlySqlTransaction):  # it has become another server's standby
                    connection.close()
                if is_new or job.is_given_up or not connection.closed:
                    raise StoreUnavailable(f"PostgreSQL failed: {_kind(error)}") from error
            finally:
                job.uses(None)

    def _connection(self, job: PooledJob) -> tuple[Raw, bool]:
        """This thread's, and whether it was made just now."""
        known: Raw | None = getattr(self._own, "connection", None)
        if known is not None and not known.closed:
            return known, False
        if known is not None:
            self._connections.discard(known)
        self._own.connection = made = self._server.connect(job)
        self._connections.add(made)
        return made, True


def _cut(connection: Raw) -> None:
    """Whoever waits for the server on this connection waits no longer. Nothing else may be done from another thread."""
    with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as wire:
        wire.shutdown(socket.SHUT_RDWR)


def _reason(error: psycopg.Error) -> str:
    """Why there is no connection. A URL that can't be read is not quoted: there may be a password in it."""
    if isinstance(error, psycopg.ProgrammingError):
        return "it is no address; write it like postgresql://user:password@host:5432/name"
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _kind(error: psycopg.Error) -> str:
    """What went wrong. The server's own words may quote what was stored."""
    return type(error).__name__
