import sys
from pathlib import Path

import pytest

from gateway import extras
from tests.diagnostics.conftest import NO_MODELS, Doctor
from tests.fakes.remem import FakeRemem
from tests.postgres_server import PostgresServer
from tests.redis_server import running_redis


async def test_settings_file_is_looked_at(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "gateway.toml").write_text('database_url = "postgresql://127.0.0.1:1/voice"\n')
    _, found = await doctor(**NO_MODELS)
    assert found["postgres"] == (
        "problem",
        "not usable (connection refused) start PostgreSQL, or correct DATABASE_URL",
    )


async def test_missing_driver_is_one_mistake(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)  # as if it were not installed
    code, found = await doctor(DATABASE_URL="postgresql://127.0.0.1:1/voice", **NO_MODELS)
    install = extras.how_to_install("postgres")
    said = f"DATABASE_URL is set but the extra postgres is not installed; run: {install}"
    assert (code, found["settings"]) == (2, ("problem", said))
    assert "postgres" not in found


async def test_servers_are_shown_with_their_versions(doctor: Doctor, tmp_path: Path, postgres: PostgresServer) -> None:
    async with FakeRemem(api_key="a-remem-key") as remem, running_redis(tmp_path / "redis") as redis:
        urls = {"REMEM_API_URL": remem.url, "REDIS_URL": redis.url, "DATABASE_URL": postgres.fresh()}
        _, found = await doctor(REMEM_API_KEY="a-remem-key", **urls, **NO_MODELS)
    assert found["remem"][0] == "ok"
    assert found["redis"][0] == "ok" and found["redis"][1].startswith(("Redis ", "Valkey "))
    assert found["postgres"][0] == "ok" and " and has pgvector 0." in found["postgres"][1]
