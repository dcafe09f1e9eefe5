"""
`gateway doctor`: checks everything that a call needs and says what to fix.

Each check finishes within seconds, whatever is wrong, and prints no key.
"""

import argparse
import asyncio
import contextlib
import enum
import os
import shutil
import sqlite3
import stat
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

import httpx
from rich.text import Text

from gateway import logs, settings
from gateway.agents import Agent, AgentDirectory
from gateway.cli import terminal
from gateway.cli.setup import RENEW_DAYS, has_llm, llm_tokens, read_agents
from gateway.cluster.open import check_redis_url
from gateway.engines.cascade import CascadeEngine
from gateway.engines.registry import ENGINES, make_engines
from gateway.engines.sdk_checks import settings_problem
from gateway.errors import CarrierRefused, GatewayError, SettingsError, SharedStoreUnavailable, StoreUnavailable
from gateway.history import traces
from gateway.history.api_tokens import ApiToken
from gateway.history.stores import store_path
from gateway.llm.accounts import ENABLE_OPENCLAW, SCRIPT
from gateway.settings import KEYED_PROVIDERS, Secret, Settings, is_url
from gateway.speech.config import SpeechConfig
from gateway.telephony.elevenlabs_setup import (
    CALL_TOKEN_HEADER,
    INITIATION_PATH,
    LLM_PATH,
    LLM_SECRET,
    PHONE_FORMAT,
    POST_CALL_PATH,
    ElevenLabsAccount,
    HostedAgent,
    llm_token_id,
)
from gateway.telephony.number_setup import webhook_urls
from gateway.telephony.phone_numbers import AllowList, DialingRules
from gateway.telephony.signatures import TelnyxVerifier
from gateway.tools.remote import RemoteTimeouts, RemoteToolFailed, RemoteTools
from gateway.tools.remote_settings import HttpToolSettings, McpSettings, is_loopback, secret_headers
from gateway.websocket import picows

DESCRIPTION: Final = (
    "Check settings, keys, connections, disk and clock. Exit code 0: all good, 1: warnings, 2: something is wrong. "
    "Changes nothing."
)
TIMEOUT: Final = 5.0
LOW_DISK_BYTES: Final = 1 << 30
FULL_DISK_BYTES: Final = 100 << 20
MAX_CLOCK_SKEW: Final = 30.0
"""Telnyx signatures are valid for minutes. A clock that is off by more than this keeps drifting."""


class CheckState(enum.StrEnum):
    OK = "ok"
    WARNING = "warning"
    WRONG = "wrong"


_AGENT_TABLE: Final = "correct the agent in gateway.toml"
_SET_UP: Final = "run: gateway setup elevenlabs"
_SET_UP_LLM: Final = "run: gateway setup elevenlabs --llm"
_KEY: Final = "correct ELEVENLABS_API_KEY; it needs access to agents, secrets and workspace webhooks"
_IMPORT: Final = "fetch what was missed with: gateway import elevenlabs --since 7d"

_STYLES: Final = {CheckState.OK: "green", CheckState.WARNING: "yellow", CheckState.WRONG: "red"}


@dataclass(frozen=True)
class CheckResult:
    check: str
    state: CheckState
    found: str
    todo: str = ""


def _ok(check: str, found: str) -> CheckResult:
    return CheckResult(check, CheckState.OK, found)


def _warning(check: str, found: str, todo: str) -> CheckResult:
    return CheckResult(check, CheckState.WARNING, found, todo)


def _wrong(check: str, found: str, todo: str = "") -> CheckResult:
    return CheckResult(check, CheckState.WRONG, found, todo)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    logs.keep_quiet()
    try:
        loaded = settings.load(os.environ, Path.cwd())
        with terminal.progress("Checking settings, keys and connections"):
            results = asyncio.run(_examine(loaded))
    except SettingsError as error:
        results = [_wrong("settings", str(error))]
    counts = Counter(one.state for one in results)
    totals = ", ".join(f"{counts[state]} {state}" for state in CheckState)
    terminal.output(options.json, [asdict(one) for one in results], [terminal.table(_rows(results)), "", totals])
    return max(list(CheckState).index(one.state) for one in results)


def _rows(results: Sequence[CheckResult]) -> Iterator[Sequence[terminal.Cell]]:
    for one in results:
        yield Text(one.state, _STYLES[one.state]), one.check, one.found
        if one.todo:
            yield "", "", Text(f"to do: {one.todo}", "bold")


async def _examine(settings: Settings) -> list[CheckResult]:
    """Run all checks, those that need the network concurrently. Results come in the order in which to fix them."""
    async with httpx.AsyncClient(timeout=TIMEOUT, follow_redirects=False) as http:
        net = _Net(http)
        checked = await asyncio.gather(*(check(settings, net) for check in _CHECKS))
    skew = min(net.skews, default=None)
    if skew is None:
        clock = _ok("clock", "no server to compare with")
    elif skew > MAX_CLOCK_SKEW:
        clock = _wrong("clock", f"off by {skew:.0f} s", "turn on time synchronisation (NTP)")
    else:
        clock = _ok("clock", "accurate")
    return [*_settings(settings), *_disk(settings), clock, *(one for found in checked for one in found)]


def _settings(settings: Settings) -> Iterator[CheckResult]:
    """Settings, including mistakes that stop the gateway from starting."""

    def agents() -> str:
        found = AgentDirectory(settings.agents, settings.folder)
        DialingRules(settings.outbound_allowed, found.transfer_targets)
        RemoteTools(found, settings.agent_keys, RemoteTimeouts())
        return f"agents: {', '.join(agent.name for agent in found)}"

    checks: tuple[Callable[[], object], ...] = (
        agents,
        lambda: AllowList(settings.allowed_callers),
        lambda: settings.telnyx_public_key and TelnyxVerifier(settings.telnyx_public_key),
        lambda: check_redis_url(settings),
        lambda: traces.check(settings),
    )
    for check in checks:
        try:
            if (words := check()) and isinstance(words, str):
                yield _ok("settings", words)
        except GatewayError as error:
            yield _wrong("settings", str(error))
    if "*" in settings.allowed_callers:
        yield _ok("callers", "anyone may call")
    elif settings.allowed_callers:
        yield _ok("callers", f"{len(settings.allowed_callers)} allowed")
    else:
        rejects = _wrong if _has_carrier(settings) else _warning
        yield rejects("callers", "all callers are rejected", "set ALLOWED_CALLERS to your number, or to * for anyone")
    yield _limits(settings)
    if (keys := settings.folder / ".env").is_file() and stat.S_IMODE(keys.stat().st_mode) & 0o077:
        yield _warning(".env", "readable by other users of this machine", f"chmod 600 {keys}")


def _limits(settings: Settings) -> CheckResult:
    """The limits against fraud and cost. MAX_CALLS is off by default: how much is too much differs."""
    limits = ("max_calls", "max_call_seconds", "calls_per_caller", "outbound_per_hour")
    off = [name.upper() for name in limits if not getattr(settings, name)]
    if "*" in settings.outbound_allowed:
        off.append("OUTBOUND_ALLOWED")
    if not off:
        return _ok("limits", "all set")
    found = f"off: {', '.join(off)}"
    if off == ["MAX_CALLS"]:
        return _ok("limits", found)
    return _warning("limits", found, "set them, or calls may cost more than you expect")


def _has_carrier(settings: Settings) -> bool:
    return settings.twilio_auth_token is not None or settings.telnyx_api_key is not None


# Disk


def _disk(settings: Settings) -> Iterator[CheckResult]:
    yield _folder("DATA_DIR", settings.data_dir)
    yield _folder("VOICE_SESSION_ARCHIVE_DIR", settings.voice_session_archive_dir)
    if settings.record_dir is not None:
        yield _folder("RECORD_DIR", settings.record_dir)
    with contextlib.suppress(GatewayError):  # reported with the settings
        yield from _recordings(settings)
    yield _embedded_store(store_path(settings.data_dir))


def _recordings(settings: Settings) -> Iterator[CheckResult]:
    """Whether recordings are encrypted, and callers know of them."""
    agents = list(AgentDirectory(settings.agents, settings.folder))
    if settings.record_dir is None:
        if names := ", ".join(agent.name for agent in agents if agent.consent and not agent.consent.always):
            todo = "set RECORD_DIR, or add always = true to consent if your carrier records"
            yield _warning("recordings", f"nothing is recorded, so {names} does not announce it", todo)
        return
    missing = [] if settings.record_key else ["not encrypted"]
    if names := ", ".join(agent.name for agent in agents if not agent.consent):
        missing.append(f"not announced by {names}")
    if missing:
        todo = "make a RECORD_KEY with: gateway recordings key; add consent to agents in gateway.toml"
        yield _warning("recordings", "; ".join(missing), todo)
    else:
        yield _ok("recordings", "encrypted and announced")


def _folder(name: str, path: Path) -> CheckResult:
    there = next(one for one in (path, *path.absolute().parents) if one.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        return _wrong(name, f"{there} is not writable", f"set {name} to a writable folder")
    free = shutil.disk_usage(there).free
    room = f"{free / (1 << 30):.1f} GB free"
    if free < FULL_DISK_BYTES:
        return _wrong(name, f"{path}: {room}", "free up disk space; nothing more can be stored")
    if free < LOW_DISK_BYTES:
        return _warning(name, f"{path}: {room}", "free up disk space soon")
    if path.exists():
        if path.stat().st_uid != os.geteuid():
            return _wrong(name, f"{path} belongs to another user", f"set {name} to a folder of yours")
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            return _warning(name, f"{path} is readable by other users", f"chmod 700 {path}")
    return _ok(name, f"{path}: {room}" if path.exists() else f"{path} (not created yet): {room}")


def _embedded_store(path: Path) -> CheckResult:
    if not path.is_file():
        return _ok("store", "embedded, not created yet")
    failed = 0
    try:
        with contextlib.closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=TIMEOUT)) as db:
            problem = db.execute("PRAGMA quick_check(1)").fetchone()[0]
            # A file that only an earlier version has opened has another table, which is renamed at the next start.
            if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'finalization_jobs'").fetchone():
                failed = int(db.execute("SELECT count(*) FROM finalization_jobs WHERE problem <> ''").fetchone()[0])
    except sqlite3.Error as error:
        return _wrong("store", f"{path} is not readable: {error}", "restore it from a backup")
    if problem != "ok":
        return _wrong("store", f"{path} is damaged: {problem}", "restore it from a backup")
    if failed:
        todo = "see the reason with: gateway sessions; then run: gateway sessions retry"
        return _warning("store", f"{terminal.count(failed, 'post-call job')} failed", todo)
    return _ok("store", "embedded, intact")


# Servers


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
        self, check: str, url: str, *, keys: str, address: str, method: str = "GET", **options: Any
    ) -> CheckResult:
        """Check that a server answers and accepts the key. `keys` and `address` name the settings."""
        answer, host = await self.answer(method, url, **options), urlsplit(url).netloc
        if isinstance(answer, str):
            return _wrong(check, f"{host} unreachable ({answer})", f"check the network and {address}")
        status = answer.status_code
        if status in (401, 403):
            return _wrong(check, f"{host} rejects the key", f"correct {keys}")
        if status == 429 or status >= 500:
            return _warning(check, f"{host} answers {status}", "try again later; the service may be down")
        if status >= 300:
            return _wrong(check, f"{host} answers {status}: not this service", f"check {address}")
        return _ok(check, f"{host} answers and accepts the key")


async def _engine(settings: Settings, net: _Net) -> list[CheckResult]:
    """The engines, and the speech servers that replace the local engine's models."""
    found = []
    try:
        agents = AgentDirectory(settings.agents, settings.folder)
    except GatewayError:
        return []  # reported with the settings
    try:
        directory = make_engines(settings, agents, picows.connect, ENGINES)
    except GatewayError as error:
        return [_wrong("engine", str(error))]
    engines = directory.engines
    for agent in agents:
        for engine in directory.by_agent[agent.name]:
            if problem := settings_problem(engine.name, agent):
                found.append(_wrong(f"agent {agent.name}", f"{engine.name} does not take {problem}", _AGENT_TABLE))
    for name, one in engines.items():
        check = "engine" if len(engines) == 1 else f"engine {name}"
        try:
            found.append(_ok(check, await one.engine.probe()))
        except GatewayError as error:
            found.append(_wrong(check, str(error)))
    if "local" in engines and isinstance(engines["local"].engine, CascadeEngine):
        config = SpeechConfig.read(settings.local_recogniser, settings.local_voice)
        for name, url in {"LOCAL_RECOGNISER": config.recogniser, "LOCAL_VOICE": config.voice}.items():
            if is_url(url, ("http", "https")):
                found.append(await _speech_server(name, url, settings.local_speech_api_key, net))
    return found


async def _speech_server(name: str, url: str, key: Secret | None, net: _Net) -> CheckResult:
    """Such servers share only their audio paths, so any response but 401 and 403 passes."""
    headers = _bearer(key) if key is not None else {}
    answer, host = await net.answer("GET", f"{url}/models", headers=headers), urlsplit(url).netloc
    if isinstance(answer, str):
        return _wrong(name, f"{host} unreachable ({answer})", f"start it, or correct {name}")
    if answer.status_code in (401, 403):
        return _wrong(name, f"{host} rejects the key", "correct LOCAL_SPEECH_API_KEY")
    return _ok(name, f"{host} answers")


async def _carriers(settings: Settings, net: _Net) -> list[CheckResult]:
    if not _has_carrier(settings):
        todo = "for a phone number, set TWILIO_ACCOUNT_SID and TWILIO_AUTH_TOKEN, or the TELNYX_ keys"
        return [_warning("carriers", "none; only the gateway's own phone works", todo)]
    found = []
    if (token := settings.twilio_auth_token) is not None:
        account = f"{settings.twilio_api_url.rstrip('/')}/2010-04-01/Accounts/{quote(settings.twilio_account_sid, '')}"
        url, auth = f"{account}/IncomingPhoneNumbers.json?PageSize=1", (settings.twilio_account_sid, token.reveal())
        names = {"keys": "TWILIO_ACCOUNT_SID and TWILIO_AUTH_TOKEN", "address": "TWILIO_API_URL"}
        found.append(await net.check_key("twilio", url, **names, auth=auth))
    if (key := settings.telnyx_api_key) is not None:
        url = f"{settings.telnyx_api_url.rstrip('/')}/phone_numbers"
        names = {"keys": "TELNYX_API_KEY", "address": "TELNYX_API_URL"}
        found.append(await net.check_key("telnyx", url, **names, headers=_bearer(key)))
    return found


async def _elevenlabs(settings: Settings, net: _Net) -> list[CheckResult]:
    """The agents that ElevenLabs hosts: whether each is connected with this gateway."""
    try:
        agents = [agent for agent in AgentDirectory(settings.agents, settings.folder) if agent.elevenlabs_agent]
    except GatewayError:
        return []  # reported with the settings
    if not agents:
        return []
    if (key := settings.elevenlabs_api_key) is None:
        return [_wrong("elevenlabs", "no key", "set ELEVENLABS_API_KEY, or remove elevenlabs_agent")]
    secrets = ("ELEVENLABS_INITIATION_SECRET", "ELEVENLABS_WEBHOOK_SECRET")
    if unset := [name for name in secrets if getattr(settings, name.lower()) is None]:
        return [_wrong("elevenlabs", f"not set: {', '.join(unset)}", _SET_UP)]
    account = ElevenLabsAccount(api_url=settings.elevenlabs_api_url, api_key=key, timeout=TIMEOUT)
    try:
        workspace, webhooks = await asyncio.to_thread(lambda: (account.workspace(), account.webhooks()))
        hosted = await asyncio.to_thread(read_agents, account, agents)
        names = await asyncio.to_thread(account.secret_names, LLM_SECRET) if any(a.llm_url for a in hosted) else {}
        tokens = await llm_tokens(settings)
    except CarrierRefused as error:
        problem = "rejects the key" if error.status in (401, 403) else f"answers {error.status}"
        return [_wrong("elevenlabs", f"{urlsplit(settings.elevenlabs_api_url).netloc} {problem}", _KEY)]
    except (SettingsError, StoreUnavailable) as error:
        return [_wrong("elevenlabs", str(error), "")]
    with_llm = {agent.name for agent in agents if has_llm(agent, settings)}
    origin, found = settings.public_url.rstrip("/"), []
    for agent in hosted:
        check = f"elevenlabs {agent.name}"
        problems = list(_hosted_agent(check, agent, origin, workspace, webhooks))
        if urlsplit(agent.llm_url).path == LLM_PATH:
            token = tokens.get(llm_token_id(names.get(agent.llm_secret_id, "")))
            problems += _hosted_llm(check, agent, origin, token, has_llm=agent.name in with_llm)
        found += problems or [_ok(check, "connected both ways, and its prompt uses memory")]
    return found


def _hosted_agent(
    check: str, agent: HostedAgent, origin: str, workspace: Mapping[str, Any], webhooks: Sequence[Mapping[str, Any]]
) -> Iterator[CheckResult]:
    if not agent.asks_before_calls or agent.initiation_url(workspace) != origin + INITIATION_PATH:
        yield _wrong(check, "calls start without memory: its initiation webhook is not this gateway's", _SET_UP)
    elif not agent.has_secret_header(workspace):
        yield _wrong(check, "its initiation webhook sends no X-Gateway-Secret", _SET_UP)
    webhook = next((one for one in webhooks if one["webhook_id"] == agent.post_call_id(workspace)), {})
    failure = webhook.get("most_recent_failure_error_code")
    if webhook.get("webhook_url") != origin + POST_CALL_PATH:
        yield _wrong(check, "its calls are not remembered: its post-call webhook is not this gateway's", _SET_UP)
    elif webhook.get("is_auto_disabled") or webhook.get("is_disabled"):
        reason = f" after failures, the last with status {failure}" if webhook.get("is_auto_disabled") else ""
        yield _wrong(check, f"its post-call webhook is switched off{reason}", f"{_SET_UP}; {_IMPORT}")
    elif failure == 401:
        todo = f"if it goes on: remove ELEVENLABS_WEBHOOK_SECRET from .env; {_SET_UP}; {_IMPORT}"
        yield _warning(check, "its post-call webhook was rejected: it may have another secret", todo)
    elif failure:
        yield _warning(check, f"its post-call webhook failed, the last time with status {failure}", _IMPORT)
    if agent.is_registered and not agent.has_phone_format:
        yield _wrong(check, f"its calls are noise: it needs {PHONE_FORMAT} both ways", _SET_UP)
    if not agent.uses_memory:
        yield _warning(check, "its prompt does not use memory", "write {{memory}} into its prompt at ElevenLabs")


def _hosted_llm(
    check: str, agent: HostedAgent, origin: str, token: ApiToken | None, *, has_llm: bool
) -> Iterator[CheckResult]:
    """Its voice at ElevenLabs, with the language model of this gateway."""
    now = datetime.now(UTC)
    if agent.llm_url != origin + LLM_PATH:
        yield _wrong(check, f"it asks for answers at {urlsplit(agent.llm_url).netloc}", _SET_UP_LLM)
    if not has_llm:
        yield _wrong(check, "it asks this gateway for answers, and has no brain", "set its brain in gateway.toml")
    if not agent.llm_secret_id or (token is not None and token.status(now) != "active"):
        state = token.status(now) if token is not None else "missing"
        yield _wrong(check, f"the API token with which it asks for answers is {state}", _SET_UP_LLM)
    elif token is not None and token.status(now + timedelta(days=RENEW_DAYS)) != "active":
        yield _warning(
            check, f"the API token with which it asks for answers ends {token.expires_at:%Y-%m-%d}", _SET_UP_LLM
        )
    if not agent.llm_sends_call_token:
        yield _wrong(check, f"answers know no caller: it sends no {CALL_TOKEN_HEADER}", _SET_UP_LLM)
    if agent.answers_early:
        problem = "speculative turn is on: functions may run before the caller has finished"
        yield _warning(check, problem, _SET_UP_LLM)


async def _language_models(settings: Settings, net: _Net) -> list[CheckResult]:
    """Every provider with a key: for summaries, and as an agent's language model."""
    found = []
    if (key := settings.anthropic_api_key) is not None:
        headers = {"x-api-key": key.reveal(), "anthropic-version": "2023-06-01"}
        url = f"{settings.anthropic_base_url.rstrip('/')}/v1/models"
        names = {"keys": "ANTHROPIC_API_KEY", "address": "ANTHROPIC_BASE_URL"}
        found.append(await net.check_key("anthropic", url, **names, headers=headers))
    if (key := settings.xai_api_key) is not None:
        url = f"{settings.xai_api_url.rstrip('/')}/models"
        names = {"keys": "XAI_API_KEY", "address": "XAI_API_URL"}
        found.append(await net.check_key("xai", url, **names, headers=_bearer(key)))
    if (key := settings.openai_api_key) is not None:
        url = f"{settings.openai_base_url.rstrip('/')}/models"
        names = {"keys": "OPENAI_API_KEY", "address": "OPENAI_BASE_URL"}
        found.append(await net.check_key("openai", url, **names, headers=_bearer(key)))
    if settings.openclaw_gateway_url:
        headers = _bearer(settings.openclaw_gateway_token or Secret(""))
        url = f"{settings.openclaw_gateway_url.rstrip('/').removesuffix('/v1')}/v1/models"
        found.append(await _openclaw(settings, url, headers, net))
    found.append(_summaries(settings))
    return found


async def _openclaw(settings: Settings, url: str, headers: dict[str, str], net: _Net) -> CheckResult:
    """Its chat completions have to be enabled, and it needs the agents that are named in gateway.toml."""
    host, answer = urlsplit(url).netloc.rpartition("@")[2], await net.answer("GET", url, headers=headers)
    if not isinstance(answer, str) and answer.status_code == 404:
        return _wrong(
            "openclaw", f"{host} answers 404: its chat completions are switched off", f"run there: {ENABLE_OPENCLAW}"
        )
    names = {"keys": "OPENCLAW_GATEWAY_TOKEN", "address": "OPENCLAW_GATEWAY_URL"}
    checked = await net.check_key("openclaw", url, **names, headers=headers)
    if isinstance(answer, str) or not answer.is_success:
        return checked
    with contextlib.suppress(ValueError, TypeError, KeyError):
        known = {model["id"] for model in answer.json()["data"]}
        entries = [entry for agent in AgentDirectory(settings.agents, settings.folder) for entry in agent.brain]
        named = {entry for entry in entries if isinstance(entry, str) and entry.startswith("openclaw/")}
        if missing := sorted(named - known):
            return _wrong(
                "openclaw", f"{host} has no agent {missing[0]}", "correct brain; openclaw agents list shows them"
            )
    return checked


def _summaries(settings: Settings) -> CheckResult:
    """What writes the summaries, by the same rule as `build_summarizer`."""
    agents = AgentDirectory(settings.agents, settings.folder)
    brains = sorted(agent.name for agent in agents if set(map(str, agent.brain)) - {SCRIPT})
    by_key = next((name for name in KEYED_PROVIDERS if getattr(settings, f"{name}_api_key")), "")
    provider = settings.summary_provider or by_key or ("brain" if brains else "extractive")
    if provider == "brain" and brains:
        return _ok("summaries", f"written by the language model of {', '.join(brains)}")
    if provider == "brain":
        return _warning("summaries", "SUMMARY_PROVIDER is brain but no agent has one", "set brain in gateway.toml")
    if provider != "extractive":
        return _ok("summaries", f"written by {provider}")
    if settings.summary_provider:
        return _ok("summaries", "written without a language model")
    todo = "give an agent a brain, or set SUMMARY_PROVIDER or a key; SUMMARY_PROVIDER=extractive keeps it so"
    return _warning("summaries", "written without a language model", todo)


async def _remem(settings: Settings, net: _Net) -> list[CheckResult]:
    if not settings.remem_api_url:
        return []
    headers = {"X-API-Key": settings.remem_api_key.reveal()} if settings.remem_api_key else {}
    url = f"{settings.remem_api_url.rstrip('/')}/v1/query"
    question = {"query": "voice call", "text": "voice call", "limit": 1}
    names = {"keys": "REMEM_API_KEY", "address": "REMEM_API_URL"}
    return [await net.check_key("remem", url, **names, method="POST", headers=headers, json=question)]


async def _redis(settings: Settings, net: _Net) -> list[CheckResult]:
    if settings.redis_url is None:
        return []
    from gateway.cluster import redis_store

    try:
        check_redis_url(settings)
    except GatewayError:
        return []  # reported with the settings
    shared_store = redis_store.RedisStore(redis_store.connect(settings.redis_url.reveal(), settings.redis_password))
    try:
        await shared_store.get("doctor")
        return [_ok("redis", "answers")]
    except SharedStoreUnavailable as error:
        return [_wrong("redis", f"not usable ({error})", "start Redis, or correct REDIS_URL")]
    finally:
        await shared_store.close()


async def _postgres(settings: Settings, net: _Net) -> list[CheckResult]:
    if settings.database_url is None:
        return []
    return [await asyncio.to_thread(_postgres_answers, settings.database_url.reveal())]


def _postgres_answers(url: str) -> CheckResult:
    import psycopg  # slow to import

    from gateway.memory.stores.postgres_pool import connect_problem

    try:
        with psycopg.connect(url, connect_timeout=int(TIMEOUT)) as connection:
            where = f"{connection.info.host}:{connection.info.port}"
            vectors = connection.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'").fetchone()
    except psycopg.Error as error:
        return _wrong("postgres", f"not usable ({connect_problem(error)})", "start PostgreSQL, or correct DATABASE_URL")
    if not vectors:
        return _wrong("postgres", f"{where} has no pgvector", "install pgvector there")
    return _ok("postgres", f"{where} answers and has pgvector")


async def _remote_tools(settings: Settings, net: _Net) -> list[CheckResult]:
    """The MCP servers and HTTP APIs of each agent."""
    try:
        agents = list(AgentDirectory(settings.agents, settings.folder))
        RemoteTools(agents, settings.agent_keys, RemoteTimeouts())
    except GatewayError:
        return []  # reported with the settings
    checks = [
        _mcp_server(agent, tool, settings) if isinstance(tool, McpSettings) else _http_tool(agent, tool, net)
        for agent in agents
        for tool in agent.tools
    ]
    return list(await asyncio.gather(*checks))


async def _mcp_server(agent: Agent, server: McpSettings, settings: Settings) -> CheckResult:
    from gateway.tools.mcp_client import tool_names  # slow to import

    check, headers = f"tools of {agent.name}: {server.host}", secret_headers(server, settings.agent_keys, "")
    try:
        async with asyncio.timeout(2 * TIMEOUT):
            names = await tool_names(server, headers, RemoteTimeouts(connect=TIMEOUT))
    except TimeoutError:
        return _wrong(check, "does not answer", "start the MCP server, or correct mcp in gateway.toml")
    except RemoteToolFailed as error:
        if error.kind in ("status 401", "status 403"):
            return _wrong(check, "rejects the key", "correct api_key_env or headers in gateway.toml, or the key")
        return _wrong(check, f"no MCP server ({error.kind})", "start the MCP server, or correct mcp in gateway.toml")
    if missing := sorted((server.tools or frozenset()) - names):
        return _warning(check, f"has no tool {', '.join(missing)}", f"use some of: {', '.join(sorted(names))}")
    found = terminal.count(len(names & server.tools if server.tools is not None else names), "tool")
    return _encrypted(check, server.mcp, f"answers, {found}")


async def _http_tool(agent: Agent, tool: HttpToolSettings, net: _Net) -> CheckResult:
    """Any response passes: to send the request itself could have an effect."""
    check, parts = f"tools of {agent.name}: {tool.name}", urlsplit(tool.http.url)
    answer = await net.answer("OPTIONS", f"{parts.scheme}://{parts.netloc}/")
    if isinstance(answer, str):
        return _wrong(check, f"{tool.host} unreachable ({answer})", "start it, or correct http in gateway.toml")
    return _encrypted(check, tool.http.url, f"{tool.host} answers")


def _encrypted(check: str, url: str, found: str) -> CheckResult:
    """A good result, unless the address is http beyond this machine."""
    parts = urlsplit(url)
    if parts.scheme == "https" or is_loopback(parts.hostname or ""):
        return _ok(check, found)
    return _warning(check, f"{found}; not encrypted", "use https, unless the network between is yours alone")


async def _public(settings: Settings, net: _Net) -> list[CheckResult]:
    public = settings.public_url
    if not public:
        todo = "set PUBLIC_URL to the https address of your tunnel or server"
        return [_warning("PUBLIC_URL", "not set; taken from the proxy's headers", todo)]
    found = []
    if problem := _no_gateway(await net.answer("GET", f"{public.rstrip('/')}/health")):
        todo = "start the gateway and the tunnel, then run this again"
        found.append(_wrong("PUBLIC_URL", f"no gateway at {public} ({problem})", todo))
    else:
        found.append(_ok("PUBLIC_URL", f"{public} reaches the gateway"))
    if not public.startswith("https://"):
        found.append(_wrong("PUBLIC_URL", "is not https", "use https; carriers require TLS for media"))
    urls = webhook_urls(public)
    if settings.twilio_auth_token is not None:
        found.append(_ok("twilio webhook", f"{urls['twilio']}, status {urls['twilio status']}"))
    if settings.telnyx_api_key is not None:
        found.append(_ok("telnyx webhook", urls["telnyx"]))
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


Check = Callable[[Settings, _Net], Awaitable[Iterable[CheckResult]]]
_CHECKS: Final[tuple[Check, ...]] = (
    _engine,
    _carriers,
    _elevenlabs,
    _language_models,
    _remem,
    _redis,
    _postgres,
    _remote_tools,
    _public,
)
