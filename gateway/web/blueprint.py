"""What is made of the settings before anything runs. A person's mistake is found here, and is one line."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from gateway.agents import AgentDirectory, find_text
from gateway.calls.engine_connection import EngineConfig
from gateway.errors import SettingsError
from gateway.finalization.summary.summarizer import Summarizer, build_writer
from gateway.history import trace_export
from gateway.llm.agent_llm import AgentLlm, LlmAccounts, build_brains
from gateway.llm.openclaw import OpenClawUpstream
from gateway.memory.remem_client import RememClient
from gateway.settings import Secret, Settings
from gateway.sounds import bundled_sound
from gateway.speech import model_files
from gateway.speech.config import SpeechConfig
from gateway.telephony.phone_numbers import AllowList
from gateway.telephony.rest import CallControl, SoftphoneControl, TelnyxControl, TwilioControl
from gateway.telephony.signatures import TelnyxVerifier
from gateway.telephony.softphone import SoftphoneCodec
from gateway.tools.module import ReloadingToolModule
from gateway.tools.prepared import shelves_of
from gateway.web import sharing
from gateway.web.admin_token import admin_token
from gateway.websocket.interface import Connector, tls_context


@dataclass(frozen=True)
class Blueprint:
    """What can be made, and can be wrong, before anything runs."""

    settings: Settings
    agents: AgentDirectory
    allowed: AllowList
    verifier: TelnyxVerifier | None
    engine: EngineConfig | None
    """How Deepgram is reached, where it is the engine."""
    engine_is_local: bool
    writer: Summarizer
    apology: bytes
    store_keys: tuple[Secret, ...]
    shelves: Mapping[str, ReloadingToolModule]
    text_agents: Mapping[str, OpenClawUpstream]
    agent_llms: Mapping[str, AgentLlm]

    @classmethod
    def from_settings(cls, settings: Settings, connect: Connector) -> "Blueprint":
        _check_folder(settings.record_dir, "RECORD_DIR")
        sharing.check(settings)
        trace_export.check(settings)
        own_key = (settings.remem_api_key,) if settings.remem_api_key and not settings.remem_api_url else ()
        agents = AgentDirectory(settings.agents, settings.folder)
        is_local = _engine_is_local(settings)
        return cls(
            settings=settings,
            agents=agents,
            allowed=AllowList(settings.allowed_callers),
            verifier=TelnyxVerifier(settings.telnyx_public_key) if settings.telnyx_public_key else None,
            engine=_engine(settings, connect),
            engine_is_local=is_local,
            writer=_writer(settings),
            apology=bundled_sound("apology"),
            store_keys=(admin_token(settings), *own_key),
            shelves=shelves_of(agents),
            text_agents=_text_agents(settings, agents),
            agent_llms=build_brains(agents, _accounts(settings), engine_thinks=not is_local),
        )


def _check_folder(folder: Path | None, name: str) -> None:
    try:
        if folder is not None:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(
            f"{name} {folder} can't be used: {error.strerror}; set {name} to a folder of yours"
        ) from None


def _engine(settings: Settings, connect: Connector) -> EngineConfig | None:
    if settings.engine != "deepgram" or settings.deepgram_api_key is None:
        return None
    tls_context()  # now, not in the first call
    key = Secret(f"Token {settings.deepgram_api_key.reveal()}")
    return EngineConfig(connect, settings.deepgram_agent_url, {"Authorization": key})


def _engine_is_local(settings: Settings) -> bool:
    """Where nobody has chosen it, its packages decide."""
    if settings.engine != "local":
        return False
    if settings.voice_engine and not model_files.are_installed():
        raise SettingsError(f"VOICE_ENGINE is local but its packages are missing; run: {model_files.INSTALL}")
    SpeechConfig.read(settings.local_recogniser, settings.local_voice)
    return model_files.are_installed()


def _writer(settings: Settings) -> Summarizer:
    return build_writer(
        provider=settings.summary_provider,
        model=settings.summary_model,
        anthropic_api_key=settings.anthropic_api_key,
        anthropic_base_url=settings.anthropic_base_url,
        xai_api_key=settings.xai_api_key,
        xai_api_url=settings.xai_api_url,
        instructions=_summary_prompt(settings.folder),
    )


def _summary_prompt(folder: Path) -> str:
    missing = "prompts/summary.md is missing; it tells the language model how to write a summary"
    return find_text("prompts/summary.md", folder, missing=missing)


def _accounts(settings: Settings) -> LlmAccounts:
    return LlmAccounts(
        anthropic_api_key=settings.anthropic_api_key,
        anthropic_base_url=settings.anthropic_base_url,
        xai_api_key=settings.xai_api_key,
        xai_api_url=settings.xai_api_url,
        openclaw_gateway_url=settings.openclaw_gateway_url,
        openclaw_gateway_token=settings.openclaw_gateway_token,
        environ=settings.environ,
    )


def _text_agents(settings: Settings, agents: AgentDirectory) -> dict[str, OpenClawUpstream]:
    """Those that are OpenClaw's, by how they are written; the others are webhooks."""
    names = {agent.text_agent for agent in agents if agent.text_agent.startswith("openclaw")}
    if names and not (settings.openclaw_gateway_url and settings.openclaw_gateway_token):
        raise SettingsError(f"text_agent {min(names)} needs OPENCLAW_GATEWAY_URL and OPENCLAW_GATEWAY_TOKEN")
    url, token = settings.openclaw_gateway_url, settings.openclaw_gateway_token or Secret("")
    return {name: OpenClawUpstream(url, name.partition("/")[2], token) for name in names}


def remem(settings: Settings, http: httpx.AsyncClient) -> RememClient | None:
    if not settings.remem_api_url:
        return None
    return RememClient(settings.remem_api_url, settings.remem_api_key or Secret(""), http)


def telnyx_control(settings: Settings, http: httpx.AsyncClient) -> TelnyxControl | None:
    if settings.telnyx_api_key is None:
        return None
    return TelnyxControl(http, api_url=settings.telnyx_api_url, api_key=settings.telnyx_api_key)


def controls(settings: Settings, http: httpx.AsyncClient, telnyx: TelnyxControl | None) -> dict[str, CallControl]:
    made: dict[str, CallControl] = {SoftphoneCodec.name: SoftphoneControl()}
    if telnyx is not None:
        made["telnyx"] = telnyx
    if settings.twilio_auth_token is not None:
        made["twilio"] = TwilioControl(
            http,
            api_url=settings.twilio_api_url,
            account_sid=settings.twilio_account_sid,
            auth_token=settings.twilio_auth_token,
        )
    return made


def carriers(settings: Settings) -> frozenset[str]:
    keys = {"twilio": settings.twilio_auth_token, "telnyx": settings.telnyx_api_key}
    return frozenset(name for name, key in keys.items() if key is not None)
