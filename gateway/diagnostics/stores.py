"""Checks of what is stored elsewhere: Redis, PostgreSQL and Remem."""

import asyncio

from gateway.cluster.open import check_redis_url
from gateway.diagnostics.http_probe import HttpProbe
from gateway.diagnostics.results import TIMEOUT, CheckResult, ok, problem
from gateway.errors import GatewayError
from gateway.history.stores import check_database_url
from gateway.settings import Settings


async def check_stores(settings: Settings, probe: HttpProbe) -> list[CheckResult]:
    checks = await asyncio.gather(_remem(settings, probe), _redis(settings), _postgres(settings))
    return [one for found in checks for one in found]


async def _remem(settings: Settings, probe: HttpProbe) -> list[CheckResult]:
    if not settings.remem_api_url:
        return []
    headers = {"X-API-Key": settings.remem_api_key.reveal()} if settings.remem_api_key else {}
    url = f"{settings.remem_api_url.rstrip('/')}/v1/query"
    question = {"query": "voice call", "text": "voice call", "limit": 1}
    names = {"keys": "REMEM_API_KEY", "address": "REMEM_API_URL"}
    return [await probe.check_key("remem", url, **names, method="POST", headers=headers, json=question)]


async def _redis(settings: Settings) -> list[CheckResult]:
    if settings.redis_url is None:
        return []
    try:
        check_redis_url(settings)
    except GatewayError:
        return []  # reported with the settings
    from redis.exceptions import RedisError

    from gateway.cluster import redis_store

    client = redis_store.connect(settings.redis_url.reveal(), settings.redis_password)
    try:
        server = await client.info("server")
        name = "Valkey" if "valkey_version" in server else "Redis"
        return [ok("redis", f"{name} {server.get('valkey_version') or server.get('redis_version')} answers")]
    except (RedisError, OSError) as error:  # its text may quote the password
        reason = f"not usable ({type(error).__name__})"
        return [problem("redis", reason, "start Redis, or correct REDIS_URL")]
    finally:
        await client.aclose()


async def _postgres(settings: Settings) -> list[CheckResult]:
    if settings.database_url is None:
        return []
    try:
        check_database_url(settings.database_url)
    except GatewayError:
        return []  # reported with the settings
    url = settings.database_url.reveal()
    return [await asyncio.to_thread(_postgres_answers, url, needs_vectors=settings.memory_vectors)]


def _postgres_answers(url: str, *, needs_vectors: bool) -> CheckResult:
    import psycopg  # slow to import

    from gateway.memory.stores.postgres import NO_PGVECTOR, is_new_enough
    from gateway.memory.stores.postgres_pool import connect_problem

    # Installed in this database, or else the version that the server could install.
    query = """SELECT coalesce(installed_version, default_version) FROM pg_available_extensions WHERE name = 'vector'"""
    try:
        with psycopg.connect(url, connect_timeout=int(TIMEOUT)) as connection:
            major, minor = divmod(connection.info.server_version, 10_000)
            where = f"PostgreSQL {major}.{minor} at {connection.info.host}:{connection.info.port}"
            [vectors] = connection.execute(query).fetchone() or [""]
    except psycopg.Error as error:
        reason = f"not usable ({connect_problem(error)})"
        return problem("postgres", reason, "start PostgreSQL, or correct DATABASE_URL")
    if not needs_vectors:
        return ok("postgres", f"{where} answers")
    if not is_new_enough(vectors):
        return problem("postgres", f"{where}: {NO_PGVECTOR}")
    return ok("postgres", f"{where} answers and has pgvector {vectors}")
