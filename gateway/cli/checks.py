"""The checks of `gateway doctor`. Each finishes within seconds, whatever is wrong, and prints no key."""

import asyncio
import contextlib
import enum
import os
import shutil
import sqlite3
import stat
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

import httpx
import websockets.asyncio.client
import websockets.exceptions

from gateway import extras
from gateway.agents import AgentDirectory
from gateway.cluster.open import check_redis_url
from gateway.engines.registry import SET_UP_ENGINE
from gateway.errors import GatewayError
from gateway.history import traces
from gateway.history.stores import store_path
from gateway.settings import Secret, Settings, is_url
from gateway.speech.config import SpeechConfig
from gateway.telephony.number_setup import webhook_urls
from gateway.telephony.phone_numbers import AllowList
from gateway.telephony.signatures import TelnyxVerifier

TIMEOUT: Final = 5.0
LOW_DISK_BYTES: Final = 1 << 30
FULL_DISK_BYTES: Final = 100 << 20
MAX_CLOCK_SKEW: Final = 30.0
"""Telnyx signatures are valid for minutes. A clock that is off by more than this keeps drifting."""


class CheckState(enum.StrEnum):
    OK = "ok"
    WARNING = "warning"
    WRONG = "wrong"

    @property
    def exit_code(self) -> int:
        return list(CheckState).index(self)


@dataclass(frozen=True)
class CheckResult:
    check: str
    state: CheckState
    found: str
    todo: str = ""


Check = Callable[[Settings, "_Net"], Awaitable[Iterable[CheckResult]]]


async def examine(settings: Settings) -> list[CheckResult]:
    """Run all checks, those that need the network concurrently. Results come in the order in which to fix them."""
    async with httpx.AsyncClient(timeout=TIMEOUT, follow_redirects=False) as http:
        net = _Net(http)
        checked = await asyncio.gather(*(check(settings, net) for check in _CHECKS))
        clock = _clock(net)
    return [*_settings(settings), *_disk(settings), clock, *(one for found in checked for one in found)]


class _Net:
    """Sends requests and keeps the clock skew that each response shows."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self.skews: list[float] = []

    async def answer(self, method: str, url: str, **options: Any) -> httpx.Response | str:
        """The response, or the name of the error."""
        try:
            answer = await self._http.request(method, url, **options)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return type(error).__name__
        with contextlib.suppress(ValueError, TypeError):
            date = parsedate_to_datetime(answer.headers.get("Date", ""))
            self.skews.append(abs(date.timestamp() - time.time()))
        return answer

    async def check_key(
        self, check: str, method: str, url: str, *, keys: str, address: str, **options: Any
    ) -> CheckResult:
        """Check that a server answers and accepts the key. `keys` and `address` name the settings."""
        answer, host = await self.answer(method, url, **options), urlsplit(url).netloc
        if isinstance(answer, str):
            return CheckResult(
                check, CheckState.WRONG, f"{host} unreachable ({answer})", f"check the network and {address}"
            )
        status = answer.status_code
        if status in (401, 403):
            return CheckResult(check, CheckState.WRONG, f"{host} rejects the key", f"correct {keys}")
        if status == 429 or status >= 500:
            return CheckResult(
                check, CheckState.WARNING, f"{host} answers {status}", "try again later; the service may be down"
            )
        if status >= 300:
            return CheckResult(
                check, CheckState.WRONG, f"{host} answers {status}: not this service", f"check {address}"
            )
        return CheckResult(check, CheckState.OK, f"{host} answers and accepts the key")


def _settings(settings: Settings) -> list[CheckResult]:
    """Settings, including mistakes that stop the gateway from starting."""
    found = []
    for check in (_agents, _allow_list, _public_key, check_redis_url, traces.check):
        try:
            if words := check(settings):
                found.append(CheckResult("settings", CheckState.OK, words))
        except GatewayError as error:
            found.append(CheckResult("settings", CheckState.WRONG, str(error)))
    if not settings.allowed_callers:
        todo = "set ALLOWED_CALLERS to your number, or to * for anyone"
        state = CheckState.WRONG if _has_carrier(settings) else CheckState.WARNING
        found.append(CheckResult("callers", state, "all callers are rejected", todo))
    else:
        anyone = "*" in settings.allowed_callers
        found.append(
            CheckResult(
                "callers", CheckState.OK, "anyone may call" if anyone else f"{len(settings.allowed_callers)} allowed"
            )
        )
    return found


def _agents(settings: Settings) -> str:
    return f"agents: {', '.join(agent.name for agent in AgentDirectory(settings.agents, settings.folder))}"


def _allow_list(settings: Settings) -> None:
    AllowList(settings.allowed_callers)


def _public_key(settings: Settings) -> None:
    if settings.telnyx_public_key:
        TelnyxVerifier(settings.telnyx_public_key)


def _has_carrier(settings: Settings) -> bool:
    return settings.twilio_auth_token is not None or settings.telnyx_api_key is not None


def _disk(settings: Settings) -> list[CheckResult]:
    folders = {"DATA_DIR": settings.data_dir, "VOICE_SESSION_ARCHIVE_DIR": settings.voice_session_archive_dir}
    if settings.record_dir is not None:
        folders["RECORD_DIR"] = settings.record_dir
    return [*(_folder(name, path) for name, path in folders.items()), _own_store(settings.data_dir)]


def _folder(name: str, path: Path) -> CheckResult:
    there = next(one for one in (path, *path.absolute().parents) if one.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        return CheckResult(name, CheckState.WRONG, f"{there} is not writable", f"set {name} to a writable folder")
    free = shutil.disk_usage(there).free
    room = f"{free / (1 << 30):.1f} GB free"
    if free < FULL_DISK_BYTES:
        return CheckResult(name, CheckState.WRONG, f"{path}: {room}", "free up disk space; nothing more can be stored")
    if free < LOW_DISK_BYTES:
        return CheckResult(name, CheckState.WARNING, f"{path}: {room}", "free up disk space soon")
    if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o077:
        return CheckResult(name, CheckState.WARNING, f"{path} is readable by other users", f"chmod 700 {path}")
    return CheckResult(name, CheckState.OK, f"{path}: {room}" if path.exists() else f"{path} (not created yet): {room}")


def _own_store(data_dir: Path) -> CheckResult:
    path = store_path(data_dir)
    if not path.is_file():
        return CheckResult("store", CheckState.OK, "embedded, not created yet")
    try:
        with contextlib.closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=TIMEOUT)) as db:
            problem = db.execute("PRAGMA quick_check(1)").fetchone()[0]
            failed = _failed_jobs(db)
    except sqlite3.Error as error:
        return CheckResult("store", CheckState.WRONG, f"{path} is not readable: {error}", "restore it from a backup")
    if problem != "ok":
        return CheckResult("store", CheckState.WRONG, f"{path} is damaged: {problem}", "restore it from a backup")
    if failed:
        todo = "see the reason with: gateway sessions; then run: gateway sessions retry"
        jobs = f"{failed} post-call {'job' if failed == 1 else 'jobs'} failed"
        return CheckResult("store", CheckState.WARNING, jobs, todo)
    return CheckResult("store", CheckState.OK, "embedded, intact")


def _failed_jobs(db: sqlite3.Connection) -> int:
    """Of a file that only an earlier version has opened, none: its table is renamed at the next start."""
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'finalization_jobs'").fetchone():
        return 0
    return int(db.execute("SELECT count(*) FROM finalization_jobs WHERE problem <> ''").fetchone()[0])


def _clock(net: _Net) -> CheckResult:
    if not net.skews:
        return CheckResult("clock", CheckState.OK, "no server to compare with")
    skew = min(net.skews)
    if skew > MAX_CLOCK_SKEW:
        return CheckResult("clock", CheckState.WRONG, f"off by {skew:.0f} s", "turn on time synchronisation (NTP)")
    return CheckResult("clock", CheckState.OK, "accurate")


# Servers


async def _engine(settings: Settings, net: _Net) -> list[CheckResult]:
    if settings.engine == "local":
        return await _local_engine(settings, net)
    key, host = settings.deepgram_api_key or Secret(""), urlsplit(settings.deepgram_agent_url).netloc
    headers = {"Authorization": f"Token {key.reveal()}"}
    try:
        async with asyncio.timeout(TIMEOUT):
            async with websockets.asyncio.client.connect(settings.deepgram_agent_url, additional_headers=headers):
                return [CheckResult("engine", CheckState.OK, f"{host} answers and accepts the key")]
    except websockets.exceptions.InvalidStatus as refused:
        status = refused.response.status_code
        if status in (401, 402, 403):
            return [
                CheckResult(
                    "engine", CheckState.WRONG, f"{host} rejects the key ({status})", "correct DEEPGRAM_API_KEY"
                )
            ]
        return [CheckResult("engine", CheckState.WRONG, f"{host} answers {status}", "check DEEPGRAM_AGENT_URL")]
    except (OSError, TimeoutError, websockets.exceptions.WebSocketException) as error:
        what = f"{host} unreachable ({type(error).__name__})"
        return [CheckResult("engine", CheckState.WRONG, what, "check the network and DEEPGRAM_AGENT_URL")]


async def _local_engine(settings: Settings, net: _Net) -> list[CheckResult]:
    """Its packages and models, and the speech servers that replace them."""
    if not extras.is_installed("local"):
        return [CheckResult("engine", CheckState.WRONG, "no voice engine; calls are rejected", SET_UP_ENGINE)]
    from gateway.speech.models import Models  # imports numpy

    try:
        choices = SpeechConfig.read(settings.local_recogniser, settings.local_voice)
        await asyncio.to_thread(Models.load, choices)
    except GatewayError as error:
        return [CheckResult("engine", CheckState.WRONG, str(error))]
    servers = {"LOCAL_RECOGNISER": choices.recogniser, "LOCAL_VOICE": choices.voice}
    return [
        CheckResult("engine", CheckState.OK, "local, models intact"),
        *[
            await _speech_server(name, url, settings.local_speech_api_key, net)
            for name, url in servers.items()
            if is_url(url, ("http", "https"))
        ],
    ]


async def _speech_server(name: str, url: str, key: Secret | None, net: _Net) -> CheckResult:
    """Such servers share only their audio paths, so any response but 401 and 403 passes."""
    headers = _bearer(key) if key is not None else {}
    answer, host = await net.answer("GET", f"{url}/models", headers=headers), urlsplit(url).netloc
    if isinstance(answer, str):
        return CheckResult(name, CheckState.WRONG, f"{host} unreachable ({answer})", f"start it, or correct {name}")
    if answer.status_code in (401, 403):
        return CheckResult(name, CheckState.WRONG, f"{host} rejects the key", "correct LOCAL_SPEECH_API_KEY")
    return CheckResult(name, CheckState.OK, f"{host} answers")


async def _carriers(settings: Settings, net: _Net) -> list[CheckResult]:
    if not _has_carrier(settings):
        todo = "for a phone number, set TWILIO_ACCOUNT_SID and TWILIO_AUTH_TOKEN, or the TELNYX_ keys"
        return [CheckResult("carriers", CheckState.WARNING, "none; only the gateway's own phone works", todo)]
    found = []
    if settings.twilio_auth_token is not None:
        sid = settings.twilio_account_sid
        url = (
            f"{settings.twilio_api_url.rstrip('/')}/2010-04-01/Accounts/{quote(sid, safe='')}/IncomingPhoneNumbers.json"
        )
        auth = httpx.BasicAuth(sid, settings.twilio_auth_token.reveal())
        keys = "TWILIO_ACCOUNT_SID and TWILIO_AUTH_TOKEN"
        asked = net.check_key(
            "twilio", "GET", url, keys=keys, address="TWILIO_API_URL", auth=auth, params={"PageSize": "1"}
        )
        found.append(await asked)
    if settings.telnyx_api_key is not None:
        url = f"{settings.telnyx_api_url.rstrip('/')}/phone_numbers"
        headers = _bearer(settings.telnyx_api_key)
        asked = net.check_key("telnyx", "GET", url, keys="TELNYX_API_KEY", address="TELNYX_API_URL", headers=headers)
        found.append(await asked)
    return found


async def _language_models(settings: Settings, net: _Net) -> list[CheckResult]:
    """Every provider with a key: for summaries, and as an agent's language model."""
    found = []
    if (key := settings.anthropic_api_key) is not None:
        headers = {"x-api-key": key.reveal(), "anthropic-version": "2023-06-01"}
        url = f"{settings.anthropic_base_url.rstrip('/')}/v1/models"
        names = {"keys": "ANTHROPIC_API_KEY", "address": "ANTHROPIC_BASE_URL"}
        found.append(await net.check_key("anthropic", "GET", url, **names, headers=headers))
    if (key := settings.xai_api_key) is not None:
        url = f"{settings.xai_api_url.rstrip('/')}/models"
        names = {"keys": "XAI_API_KEY", "address": "XAI_API_URL"}
        found.append(await net.check_key("xai", "GET", url, **names, headers=_bearer(key)))
    if settings.openclaw_gateway_url:
        headers = _bearer(settings.openclaw_gateway_token or Secret(""))
        url = f"{settings.openclaw_gateway_url.rstrip('/').removesuffix('/v1')}/v1/models"
        names = {"keys": "OPENCLAW_GATEWAY_TOKEN", "address": "OPENCLAW_GATEWAY_URL"}
        found.append(await net.check_key("openclaw", "GET", url, **names, headers=headers))
    return [*found, _writer(settings)]


def _writer(settings: Settings) -> CheckResult:
    keys = {"anthropic": settings.anthropic_api_key, "xai": settings.xai_api_key}
    first = next((name for name, key in keys.items() if key is not None), "extractive")
    provider = settings.summary_provider or first
    if provider != "extractive":
        return CheckResult("summaries", CheckState.OK, f"written by {provider}")
    if settings.summary_provider:
        return CheckResult("summaries", CheckState.OK, "written without a language model")
    todo = "set ANTHROPIC_API_KEY or XAI_API_KEY, or SUMMARY_PROVIDER=extractive to keep it so"
    return CheckResult("summaries", CheckState.WARNING, "written without a language model", todo)


async def _remem(settings: Settings, net: _Net) -> list[CheckResult]:
    if not settings.remem_api_url:
        return []
    headers = {"X-API-Key": settings.remem_api_key.reveal()} if settings.remem_api_key else {}
    url = f"{settings.remem_api_url.rstrip('/')}/v1/query"
    question = {"query": "voice call", "text": "voice call", "limit": 1}
    names = {"keys": "REMEM_API_KEY", "address": "REMEM_API_URL"}
    return [await net.check_key("remem", "POST", url, **names, headers=headers, json=question)]


async def _redis(settings: Settings, net: _Net) -> list[CheckResult]:
    if settings.redis_url is None:
        return []
    from gateway.cluster import redis_store
    from gateway.errors import SharedStoreUnavailable

    try:
        check_redis_url(settings)
    except GatewayError:
        return []  # reported with the settings
    shared_store = redis_store.RedisStore(redis_store.connect(settings.redis_url.reveal()))
    try:
        await shared_store.get("doctor")
        return [CheckResult("redis", CheckState.OK, "answers")]
    except SharedStoreUnavailable as error:
        return [CheckResult("redis", CheckState.WRONG, f"not usable ({error})", "start Redis, or correct REDIS_URL")]
    finally:
        await shared_store.close()


async def _postgres(settings: Settings, net: _Net) -> list[CheckResult]:
    if settings.database_url is None:
        return []
    url = settings.database_url.reveal()
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "127.0.0.1", parts.port or 5432
    except ValueError:  # its text may quote the address, with the password
        return [
            CheckResult("postgres", CheckState.WRONG, "DATABASE_URL has no valid host or port", "correct DATABASE_URL")
        ]
    try:
        async with asyncio.timeout(TIMEOUT):
            _, writer = await asyncio.open_connection(host, port)
            writer.close()
    except (OSError, TimeoutError) as error:
        what = f"{host}:{port} unreachable ({type(error).__name__})"
        return [CheckResult("postgres", CheckState.WRONG, what, "start PostgreSQL, or correct DATABASE_URL")]
    return [await asyncio.to_thread(_postgres_answers, url, f"{host}:{port}")]


def _postgres_answers(url: str, where: str) -> CheckResult:
    import psycopg  # slow to import

    try:
        with psycopg.connect(url, connect_timeout=int(TIMEOUT)) as connection:
            vectors = connection.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'").fetchone()
    except psycopg.Error as error:  # its text may quote the address, with the password
        return CheckResult(
            "postgres", CheckState.WRONG, f"{where} refuses ({type(error).__name__})", "correct DATABASE_URL"
        )
    if not vectors:
        return CheckResult("postgres", CheckState.WRONG, f"{where} has no pgvector", "install pgvector there")
    return CheckResult("postgres", CheckState.OK, f"{where} answers and has pgvector")


async def _public(settings: Settings, net: _Net) -> list[CheckResult]:
    public = settings.public_url
    if not public:
        todo = "set PUBLIC_URL to the https address of your tunnel or server"
        return [CheckResult("PUBLIC_URL", CheckState.WARNING, "not set; taken from the proxy's headers", todo)]
    found = []
    if problem := _no_gateway(await net.answer("GET", f"{public.rstrip('/')}/health")):
        todo = "start the gateway and the tunnel, then run this again"
        found.append(CheckResult("PUBLIC_URL", CheckState.WRONG, f"no gateway at {public} ({problem})", todo))
    else:
        found.append(CheckResult("PUBLIC_URL", CheckState.OK, f"{public} reaches the gateway"))
    if not public.startswith("https://"):
        found.append(
            CheckResult("PUBLIC_URL", CheckState.WRONG, "is not https", "use https; carriers require TLS for media")
        )
    urls = webhook_urls(public)
    if settings.twilio_auth_token is not None:
        found.append(CheckResult("twilio webhook", CheckState.OK, f"{urls['twilio']}, status {urls['twilio status']}"))
    if settings.telnyx_api_key is not None:
        found.append(CheckResult("telnyx webhook", CheckState.OK, urls["telnyx"]))
    return found


def _no_gateway(answer: httpx.Response | str) -> str:
    """Why this response is not from a gateway; empty if it is."""
    if isinstance(answer, str):
        return answer
    if answer.status_code != 200:
        return str(answer.status_code)
    try:
        return "" if answer.json()["status"] == "ok" else "its /health is not ok"
    except (ValueError, KeyError, TypeError):
        return "another service answers there"


def _bearer(key: Secret) -> dict[str, str]:
    return {"Authorization": f"Bearer {key.reveal()}"}


_CHECKS: Final[tuple[Check, ...]] = (_engine, _carriers, _language_models, _remem, _redis, _postgres, _public)
