"""
Runs blocking work on pooled PostgreSQL connections, off the event loop and with a time limit.

psycopg's blocking connections let memory be written once for both databases; its asyncio ones would need every function
a second time. `psycopg_pool` opens, reuses and replaces the connections. This module adds what it lacks: a reason when
the server can't be reached (the pool only logs it), failing fast for a moment after that, so that work does not pile
up, and cutting the connection to a server that has stopped answering.
"""

import asyncio
import contextlib
import functools
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

import psycopg
from psycopg import errors
from psycopg_pool import ConnectionPool, PoolTimeout

from gateway.errors import StoreUnavailable
from gateway.memory.stores.database import Parameters, Rows

T = TypeVar("T")
Raw = psycopg.Connection[Any]

_NAMED: Final = re.compile(r"(?<![:\w]):([a-z_]+)")
_FAILURE_CHECK_SECONDS: Final = 0.05  # how soon a job that waits for a connection notices that connecting failed

_CONNECT_PROBLEMS: Final = {
    "password authentication failed": "wrong user or password",
    "no password supplied": "a password is needed; put it into DATABASE_URL or PGPASSWORD",
    "no pg_hba.conf entry": "the server does not admit this user from here",
    "does not exist": "the database or the user does not exist",
    "failed to resolve host": "the host name is unknown",
    "Connection refused": "connection refused",
    "No such file or directory": "no such file or directory",
    "timeout expired": "no answer in time",
    "starting up": "the server is starting",
    "shutting down": "the server is stopping",
    "too many": "the server has too many connections",
    "sslmode": "TLS failed",
    "SSL": "TLS failed",
}
"""What libpq's and the server's messages contain, and what it means."""

# It logs each failed attempt; here the reason is in the error that the work gets.
logging.getLogger("psycopg.pool").setLevel(logging.ERROR)


@dataclass(frozen=True)
class PostgresTimeouts:
    """Durations in seconds."""

    connect: int = 5
    away: float = 1.0
    """No new connection is tried for this long after one failed."""
    watch: float = 5.0
    """How often the watcher checks whether the server is there."""
    read: float = 10.0
    write: float = 30.0
    conflict: float = 10.0
    """How long a transaction that conflicts with another node's is tried again."""
    vacuum: float = 600.0
    close: float = 5.0


class PostgresConnection:
    """A Connection for the SQL that both databases share."""

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
    """PostgreSQL's text type can hold any character but NUL."""
    if isinstance(parameters, dict):
        return dict(zip(parameters, _storable(tuple(parameters.values())), strict=True))
    return [value.replace("\0", "\ufffd") if isinstance(value, str) else value for value in parameters]


class _Job:
    """Work on a thread that another thread can give up, which cuts the connection that it uses."""

    def __init__(self) -> None:
        self.is_given_up = False
        self._connection: Raw | None = None
        self._changing = threading.Lock()

    def uses(self, connection: Raw | None) -> None:
        with self._changing:
            self._connection = connection
            if self.is_given_up and connection is not None:
                _cut(connection)

    def give_up(self, opening: Raw | None) -> None:
        """`opening` is cut instead where the job has no connection yet."""
        with self._changing:
            self.is_given_up = True
            if (connection := self._connection or opening) is not None:
                _cut(connection)


class PostgresPool:
    """
    Threads that run blocking work on pooled connections; `close` it. `read` and `write` raise StoreUnavailable.

    `prepare` runs on the first connection, the statement `greeting` on each. Reads and writes have threads of their
    own, so that a live call never waits for finalization.
    """

    def __init__(
        self,
        url: str,
        prepare: Callable[[Raw], None],
        greeting: str,
        *,
        readers: int,
        writers: int,
        timeouts: PostgresTimeouts = PostgresTimeouts(),
    ) -> None:
        self.problem = ""
        """Why the last connection could not be opened; empty if it could."""
        self._url = url
        self._prepare = prepare
        self._greeting = greeting.encode()
        self._timeouts = timeouts
        self._size = readers + writers
        self._connections: ConnectionPool[Raw] = ConnectionPool(
            connection_class=cast("type[Raw]", self),  # the pool calls its `connect`, and nothing else
            min_size=0,
            max_size=self._size,
            open=False,
            reconnect_timeout=0,
            num_workers=1,
        )
        self._readers = ThreadPoolExecutor(readers, "store reading")
        self._writers = ThreadPoolExecutor(writers, "store writing")
        self._jobs: set[_Job] = set()
        self._is_prepared = False
        self._opening: Raw | None = None
        self._failed_at = float("-inf")

    async def read(self, work: Callable[[Raw], T], seconds: float) -> T:
        """Run `work`, with a limit on the time it takes as a whole."""
        return await self._do(self._readers, work, seconds)

    async def write(self, work: Callable[[Raw], T], seconds: float) -> T:
        return await self._do(self._writers, work, seconds)

    async def close(self) -> None:
        """Finish the work under way. What takes too long is cut off."""
        loop = asyncio.get_running_loop()
        shutdowns = {loop.run_in_executor(None, threads.shutdown) for threads in (self._readers, self._writers)}
        _, unfinished = await asyncio.wait(shutdowns, timeout=self._timeouts.close)
        if unfinished:
            for job in tuple(self._jobs):
                job.give_up(self._opening)
            await asyncio.wait(unfinished)
        await asyncio.to_thread(self._connections.close)

    async def _do(self, threads: ThreadPoolExecutor, work: Callable[[Raw], T], seconds: float) -> T:
        job = _Job()
        self._jobs.add(job)
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.get_running_loop().run_in_executor(threads, self._work, work, job)
        except TimeoutError:
            job.give_up(self._opening)
            raise StoreUnavailable("PostgreSQL does not answer", answer_lost=True) from None
        finally:
            self._jobs.discard(job)

    # On a thread

    def _work(self, work: Callable[[Raw], T], job: _Job) -> T:
        for _ in range(self._size + 1):  # every pooled connection may have been lost since it was last used
            connection = self._checked_out(job)
            job.uses(connection)
            try:
                return work(connection)
            except psycopg.Error as error:
                if isinstance(error, errors.ReadOnlySqlTransaction):  # the server has become a standby
                    connection.close()
                if job.is_given_up or not connection.closed:
                    # Only the type: the server's message may quote stored text.
                    raise StoreUnavailable(f"PostgreSQL failed: {type(error).__name__}") from error
            finally:
                job.uses(None)
                self._connections.putconn(connection)
        raise StoreUnavailable("PostgreSQL closed every connection")

    def _checked_out(self, job: _Job) -> Raw:
        began = time.monotonic()
        self._connections.open()
        while not job.is_given_up:
            self._check_reachable(since=began)
            with contextlib.suppress(PoolTimeout):
                return self._connections.getconn(_FAILURE_CHECK_SECONDS)
        raise StoreUnavailable("PostgreSQL does not answer")

    def _check_reachable(self, *, since: float) -> None:
        """Raise StoreUnavailable if connecting has failed since then, or a moment ago."""
        if self._failed_at >= min(since, time.monotonic() - self._timeouts.away):
            raise StoreUnavailable(self.problem)

    # On the pool's worker thread

    def connect(self, conninfo: str = "", **options: Any) -> Raw:
        """Open a connection, in place of `Connection.connect`."""
        self._check_reachable(since=time.monotonic())
        try:
            connection = self._connect()
        except StoreUnavailable as error:
            self.problem, self._failed_at = str(error), time.monotonic()
            raise
        self.problem = ""
        return connection

    def _connect(self) -> Raw:
        try:
            connection = psycopg.connect(
                self._url,
                autocommit=True,
                client_encoding="utf8",
                connect_timeout=self._timeouts.connect,
                application_name="voice-gateway",
                keepalives_idle=10,
                keepalives_interval=5,
                keepalives_count=3,
            )
        except psycopg.Error as error:
            raise StoreUnavailable(f"can't reach PostgreSQL, see DATABASE_URL: {connect_problem(error)}") from None
        self._opening = connection
        try:
            if not self._is_prepared:
                self._prepare(connection)
                self._is_prepared = True
            connection.execute(self._greeting)
        except (psycopg.Error, StoreUnavailable) as error:
            connection.close()
            if isinstance(error, StoreUnavailable):
                raise
            raise StoreUnavailable(f"can't make tables in PostgreSQL: {type(error).__name__}") from error
        finally:
            self._opening = None
        return connection


def connect_problem(error: psycopg.Error) -> str:
    """Why connecting failed, in words of ours: the driver's may quote any part of the URL, also of the password."""
    if isinstance(error, psycopg.ProgrammingError):
        return "it is not an address; write it like postgresql://user:password@host:5432/name"
    text = str(error)
    return next((problem for sign, problem in _CONNECT_PROBLEMS.items() if sign in text), type(error).__name__)


def _cut(connection: Raw) -> None:
    """Shut down the socket of a connection that another thread waits on; libpq allows nothing else across threads."""
    with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as wire:
        wire.shutdown(socket.SHUT_RDWR)
