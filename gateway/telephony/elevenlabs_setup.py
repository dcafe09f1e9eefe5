"""
Connects agents that ElevenLabs hosts with this gateway: their webhooks and secrets, through ElevenLabs' API.

A change to an agent sends its other settings back, too: it is not documented whether ElevenLabs merges nested objects.
Values of secrets are sent and never shown.
"""

import copy
import hashlib
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Final
from urllib.parse import quote, urlsplit

from gateway.errors import CarrierRefused, SettingsError
from gateway.settings import Secret
from gateway.telephony.number_setup import AccountApi, SettingChange

INITIATION_PATH: Final = "/elevenlabs/initiation"
POST_CALL_PATH: Final = "/elevenlabs/post-call"
SECRET_HEADER: Final = "X-Gateway-Secret"
INITIATION_SECRET: Final = "ELEVENLABS_INITIATION_SECRET"
WEBHOOK_SECRET: Final = "ELEVENLABS_WEBHOOK_SECRET"
PHONE_FORMAT: Final = "ulaw_8000"
"""What Twilio's stream carries. In another format a registered call is noise (ElevenLabs docs, "Register call")."""
VARIABLES: Final = ("memory", "caller_name")
MCP_PATH: Final = "/mcp"
CALL_TOKEN: Final = "secret__call_token"
CALL_TOKEN_HEADER: Final = "X-Call-Token"
LLM_PATH: Final = "/elevenlabs/llm"

_NAME: Final = "Voice Gateway"
_NEW: Final = "(new)"
_OVERRIDES: Final = ("platform_settings", "workspace_overrides")
_INITIATION: Final = (*_OVERRIDES, "conversation_initiation_client_data_webhook")
_POST_CALL: Final = (*_OVERRIDES, "webhooks")
_ENABLED: Final = ("platform_settings", "overrides", "enable_conversation_initiation_client_data_from_webhook")
_PLACEHOLDERS: Final = ("conversation_config", "agent", "dynamic_variables", "dynamic_variable_placeholders")
_FORMATS: Final = (
    ("conversation_config", "asr", "user_input_audio_format"),
    ("conversation_config", "tts", "agent_output_audio_format"),
)
_MCP_SERVERS: Final = ("conversation_config", "agent", "prompt", "mcp_server_ids")
_LLM: Final = ("conversation_config", "agent", "prompt", "llm")
_CUSTOM_LLM: Final = ("conversation_config", "agent", "prompt", "custom_llm")
_CUSTOM: Final = "custom-llm"
_SPECULATIVE: Final = ("conversation_config", "turn", "speculative_turn")
LLM_SECRET: Final = "voice_gateway_llm_"
_MARK: Final = re.compile(r" \[[0-9a-f]{8}\]$")

Json = Mapping[str, Any]
Path = tuple[str, ...]


class ElevenLabsAccount(AccountApi):
    """The agents, secrets and webhooks of an ElevenLabs workspace (ElevenLabs docs, "API reference")."""

    name: ClassVar[str] = "ElevenLabs"

    def __init__(self, *, api_url: str, api_key: Secret, **options: Any) -> None:
        super().__init__(api_url, headers={"xi-api-key": api_key.reveal()}, **options)

    def agent(self, agent_id: str) -> Json:
        """Raises SettingsError if the account has no such agent."""
        try:
            agent: Json = self._request("GET", _agent_path(agent_id), "to show the agent", field="agent_id", whole=True)
            return agent
        except CarrierRefused as error:
            if error.status in (400, 404, 422):
                raise SettingsError(
                    f"ElevenLabs has no agent {agent_id}; check elevenlabs_agent in gateway.toml"
                ) from None
            raise

    def change_agent(self, agent_id: str, body: Json) -> None:
        self._request("PATCH", _agent_path(agent_id), "the change of the agent", field="agent_id", json=body)

    def workspace(self) -> Json:
        """Settings of agents that have none of their own; empty if the key may not read them."""
        try:
            found: Json = self._request("GET", "/v1/convai/settings", "to show settings", field="webhooks", whole=True)
            return found
        except CarrierRefused as error:
            if error.status in (401, 403):
                return {}
            raise

    def webhooks(self) -> list[Json]:
        return list(self._request("GET", "/v1/workspace/webhooks", "to list webhooks", field="webhooks"))

    def create_webhook(self, url: str) -> tuple[str, str]:
        """Returns its id and its secret, which is not shown again."""
        settings = {"auth_type": "hmac", "name": _NAME, "webhook_url": url}
        path, what = "/v1/workspace/webhooks", "to create a webhook"
        made = self._request("POST", path, what, field="webhook_id", whole=True, json={"settings": settings})
        return made["webhook_id"], made.get("webhook_secret") or ""

    def switch_on_webhook(self, webhook_id: str, name: str) -> None:
        """Deliver to it, with retries."""
        body = {"is_disabled": False, "name": name, "retry_enabled": True}
        path = f"/v1/workspace/webhooks/{quote(webhook_id, safe='')}"
        self._request("PATCH", path, "the change of the webhook", field="status", json=body)

    def secret_id(self, name: str) -> str:
        """Empty if there is no secret of this name."""
        return next((id_ for id_, found in self.secret_names(name).items() if found == name), "")

    def secret_names(self, search: str) -> dict[str, str]:
        """The names of secrets that match, by their ids."""
        found = self._request(
            "GET", "/v1/convai/secrets", "to list secrets", field="secrets", params={"search": search}
        )
        return {str(one["secret_id"]): str(one.get("name")) for one in found}

    def create_secret(self, name: str, value: str) -> str:
        body = {"type": "new", "name": name, "value": value}
        return str(self._request("POST", "/v1/convai/secrets", "to create a secret", field="secret_id", json=body))

    def mcp_server_id(self, url: str) -> str:
        """Empty if the workspace has no MCP server at this address."""
        found = self._request("GET", "/v1/convai/mcp-servers", "to list MCP servers", field="mcp_servers")
        return next((str(one["id"]) for one in found if _at(one, ("config", "url")) == url), "")

    def create_mcp_server(self, url: str) -> str:
        """A server whose requests carry the token of the call. Approval is given: there is no one to ask in a call."""
        config = {
            "name": _NAME,
            "url": url,
            "transport": "STREAMABLE_HTTP",
            "approval_policy": "auto_approve_all",
            "request_headers": {CALL_TOKEN_HEADER: {"variable_name": CALL_TOKEN}},
        }
        path, what = "/v1/convai/mcp-servers", "to create an MCP server"
        return str(self._request("POST", path, what, field="id", json={"config": config}))


def _agent_path(agent_id: str) -> str:
    return f"/v1/convai/agents/{quote(agent_id, safe='')}"


# What is set


@dataclass(frozen=True)
class HostedAgent:
    """An agent of gateway.toml with its settings at ElevenLabs. `is_registered`: our number, their agent."""

    name: str
    id: str
    is_registered: bool
    settings: Json

    def at(self, path: Path) -> Any:
        return _at(self.settings, path)

    def initiation_url(self, workspace: Json) -> str:
        """The webhook that is asked before a call; its own, or the workspace's."""
        own = self.at((*_INITIATION, "url"))
        return str(own or _at(workspace, (_INITIATION[-1], "url")) or "")

    def post_call_id(self, workspace: Json) -> str:
        """The webhook that gets its conversations; its own, or the workspace's."""
        own = self.at((*_POST_CALL, "post_call_webhook_id"))
        return str(own or _at(workspace, (_POST_CALL[-1], "post_call_webhook_id")) or "")

    @property
    def asks_before_calls(self) -> bool:
        return bool(self.at(_ENABLED))

    def has_secret_header(self, workspace: Json) -> bool:
        own = self.at((*_INITIATION, "request_headers"))
        headers = own or _at(workspace, (_INITIATION[-1], "request_headers")) or {}
        return _spelling(headers, SECRET_HEADER) in headers

    @property
    def llm_url(self) -> str:
        """The address of its own language model; empty if it has one of ElevenLabs'."""
        return str(self.at((*_CUSTOM_LLM, "url")) or "") if self.at(_LLM) == _CUSTOM else ""

    @property
    def llm_sends_call_token(self) -> bool:
        headers = self.at((*_CUSTOM_LLM, "request_headers")) or {}
        return headers.get(_spelling(headers, CALL_TOKEN_HEADER)) == {"variable_name": CALL_TOKEN}

    @property
    def llm_secret_id(self) -> str:
        return str(self.at((*_CUSTOM_LLM, "api_key", "secret_id")) or "")

    @property
    def answers_early(self) -> bool:
        return bool(self.at(_SPECULATIVE))

    @property
    def uses_memory(self) -> bool:
        prompt = self.at(("conversation_config", "agent", "prompt", "prompt")) or ""
        return re.search(r"\{\{\s*memory\s*\}\}", str(prompt)) is not None

    @property
    def has_phone_format(self) -> bool:
        return all(self.at(path) == PHONE_FORMAT for path in _FORMATS)


def _spelling(headers: Iterable[str], name: str) -> str:
    """The name of a header in the case in which it is there already: in another case it would be sent twice."""
    return next((one for one in headers if one.lower() == name.lower()), name)


def _at(settings: Json, path: Iterable[str]) -> Any:
    found: Any = settings
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found


# What is changed


@dataclass(frozen=True)
class LlmKeys:
    """The API tokens with which ElevenLabs asks for an agent's own language model."""

    ids: Sequence[str]
    """Of those that will be valid for a while."""
    create: Callable[[], tuple[str, str]]
    """Makes another: its id and its text, which is not shown again."""


@dataclass
class ElevenLabsSetup:
    """
    Connects agents with the gateway at `origin`, and notes what it changed; in a dry run, what it would change.

    `save` stores a new secret under its name in the settings. `replaces`: also webhooks that are not a gateway's.
    `with_tools`: let agents search their memory during a call, by MCP.
    """

    account: ElevenLabsAccount
    origin: str
    save: Callable[[str, str], None]
    is_dry_run: bool = False
    replaces: bool = False
    with_tools: bool = False
    changes: list[SettingChange] = field(default_factory=list)

    def connect(
        self,
        agents: Sequence[HostedAgent],
        *,
        webhook_secret: str,
        initiation_secret: str,
        llm_keys: Mapping[str, LlmKeys] = MappingProxyType({}),
    ) -> None:
        """
        Raises SettingsError, CarrierRefused. Repeated, it changes nothing.

        The agents named in `llm_keys` get their answers from the gateway's language model.
        """
        workspace, webhooks = self.account.workspace(), self.account.webhooks()
        if not self.replaces:
            for agent in agents:
                self._check_foreign(agent, workspace, webhooks)
                if agent.name in llm_keys and agent.llm_url and urlsplit(agent.llm_url).path != LLM_PATH:
                    host = urlsplit(agent.llm_url).netloc
                    problem = f"{agent.name} uses the language model at {host}, which would no longer answer"
                    raise SettingsError(f"{problem}; use --replace if that is right")
        secret_id = self._initiation_secret(initiation_secret)
        in_use = {agent.post_call_id(workspace) for agent in agents}
        webhook_id = self._webhook(webhook_secret, webhooks, in_use)
        server_id = self._mcp_server() if self.with_tools else ""
        for agent in agents:
            wanted = self._wanted(agent, secret_id, webhook_id)
            if server_id:
                wanted |= self._wanted_tools(agent, server_id)
            if agent.name in llm_keys:
                wanted |= self._wanted_llm(agent, self._llm_secret(agent.name, llm_keys[agent.name]))
            self._change_agent(agent, wanted)

    def _check_foreign(self, agent: HostedAgent, workspace: Json, webhooks: Sequence[Json]) -> None:
        """An agent has one webhook of each kind: another service would no longer be asked, or get its calls."""
        post_call = next((one for one in webhooks if one["webhook_id"] == agent.post_call_id(workspace)), {})
        urls = {
            INITIATION_PATH: agent.initiation_url(workspace) if agent.asks_before_calls else "",
            POST_CALL_PATH: post_call.get("webhook_url", ""),
        }
        for path, url in urls.items():
            if url and urlsplit(url).path != path:
                host = urlsplit(url).netloc
                problem = f"{agent.name} has a webhook to {host}, which would get its calls no longer"
                raise SettingsError(f"{problem}; use --replace if that is right")

    def _initiation_secret(self, value: str) -> str:
        """The id of the secret at ElevenLabs. Its name says which value it has: the value can't be read."""
        if not value:
            value = secrets.token_urlsafe(32)
            self._save(INITIATION_SECRET, "", value)
        name = f"voice_gateway_initiation_{_fingerprint(value)}"
        if found := self.account.secret_id(name):
            return found
        self._note("secret for the initiation webhook", "", _NEW)
        return _NEW if self.is_dry_run else self.account.create_secret(name, value)

    def _webhook(self, secret: str, webhooks: Sequence[Json], in_use: Collection[str]) -> str:
        """
        The id of the webhook for finished conversations.

        Its name says which secret it has, and that retries are on: neither can be read. One without it is a person's,
        or was left by a set-up that was interrupted.
        """
        url, mark = self.origin + POST_CALL_PATH, f" [{_fingerprint(secret)}]"
        ours = [one for one in webhooks if one.get("webhook_url") == url and one.get("auth_type", "hmac") == "hmac"]
        if secret and ours:
            best = max(
                ours,
                key=lambda one: (
                    one["name"].endswith(mark),
                    one["webhook_id"] in in_use,
                    one.get("created_at_unix", 0),
                ),
            )
            webhook_id, name, is_new = best["webhook_id"], best["name"], False
            is_off = bool(best.get("is_disabled") or best.get("is_auto_disabled"))
            if name.endswith(mark) and not is_off:
                return str(webhook_id)
            if is_off:
                self._note("post-call webhook", "switched off", "on")
        else:
            is_new, name, webhook_id, new_secret = True, _NAME, _NEW, ""
            self._note("post-call webhook", "", url)
            if not self.is_dry_run:
                self.save(WEBHOOK_SECRET, secret)  # as it is: a problem shows before there is a secret to lose
                webhook_id, new_secret = self.account.create_webhook(url)
                if not new_secret:
                    raise SettingsError(
                        f"ElevenLabs gave no secret for its webhook; delete {webhook_id} there and try again"
                    )
            self._save(WEBHOOK_SECRET, secret, new_secret)  # first of all: it is not shown again
            mark = f" [{_fingerprint(new_secret)}]"
        if is_new or not name.endswith(mark):
            self._note("post-call webhook retries", "", "on")
        if not self.is_dry_run:
            self.account.switch_on_webhook(webhook_id, _MARK.sub("", name) + mark)
        return str(webhook_id)

    def _mcp_server(self) -> str:
        url = self.origin + MCP_PATH
        if found := self.account.mcp_server_id(url):
            return found
        self._note("MCP server", "", url)
        return _NEW if self.is_dry_run else self.account.create_mcp_server(url)

    def _wanted_tools(self, agent: HostedAgent, server_id: str) -> dict[Path, Any]:
        servers = agent.at(_MCP_SERVERS) or []
        return {
            _MCP_SERVERS: servers if server_id in servers else [*servers, server_id],
            **_call_token_placeholder(agent),
        }

    def _llm_secret(self, name: str, keys: LlmKeys) -> str:
        """The id of the secret at ElevenLabs that holds an API token of this agent. Its name says which."""
        for token_id in keys.ids:
            if found := self.account.secret_id(LLM_SECRET + token_id):
                return found
        if self.is_dry_run:
            self._note(f"{name}: API token with the scope llm", "", _NEW)
            return _NEW
        token_id, text = keys.create()
        self._note(f"{name}: API token with the scope llm", "", f"vg_{token_id}")
        return self.account.create_secret(LLM_SECRET + token_id, text)

    def _wanted_llm(self, agent: HostedAgent, secret_id: str) -> dict[Path, Any]:
        url, key = self.origin + LLM_PATH, {"secret_id": secret_id}
        token = {"variable_name": CALL_TOKEN}
        # Functions could run for a sentence that the caller has not finished.
        wanted: dict[Path, Any] = {_LLM: _CUSTOM, _SPECULATIVE: False, **_call_token_placeholder(agent)}
        now = agent.at(_CUSTOM_LLM) or {}
        if urlsplit(str(now.get("url") or "")).path != LLM_PATH:  # headers of another service are not for us
            new = {"url": url, "api_key": key, "request_headers": {CALL_TOKEN_HEADER: token}}
            return {**wanted, _CUSTOM_LLM: new}
        headers = dict(now.get("request_headers") or {})
        headers[_spelling(headers, CALL_TOKEN_HEADER)] = token
        wanted |= {(*_CUSTOM_LLM, "url"): url, (*_CUSTOM_LLM, "api_key"): key}
        wanted[(*_CUSTOM_LLM, "request_headers")] = headers
        if now.get("api_type") not in (None, "chat_completions"):
            wanted[(*_CUSTOM_LLM, "api_type")] = "chat_completions"
        return wanted

    def _wanted(self, agent: HostedAgent, secret_id: str, webhook_id: str) -> dict[Path, Any]:
        """The settings that an agent should have, by their place."""
        headers = dict(agent.at((*_INITIATION, "request_headers")) or {})
        header = _spelling(headers, SECRET_HEADER)
        events = agent.at((*_POST_CALL, "events")) or []
        wanted: dict[Path, Any] = {
            _ENABLED: True,
            (*_INITIATION, "url"): self.origin + INITIATION_PATH,
            (*_INITIATION, "request_headers"): headers | {header: {"secret_id": secret_id}},
            (*_POST_CALL, "post_call_webhook_id"): webhook_id,
            (*_POST_CALL, "events"): events if "transcript" in events else [*events, "transcript"],
            (*_POST_CALL, "transcript_format"): "json",
        }
        if agent.at((*_POST_CALL, "exclude_transcript")):
            wanted[(*_POST_CALL, "exclude_transcript")] = False
        # A variable without a value, in a call that does not ask us, would keep the call from starting.
        known = agent.at(_PLACEHOLDERS) or {}
        wanted |= {(*_PLACEHOLDERS, name): "" for name in VARIABLES if name not in known}
        if agent.is_registered:
            wanted |= dict.fromkeys(_FORMATS, PHONE_FORMAT)
        return wanted

    def _change_agent(self, agent: HostedAgent, wanted: Mapping[Path, Any]) -> None:
        changed = {path: value for path, value in wanted.items() if agent.at(path) != value}
        parts = {path[0] for path in changed}
        body = {part: copy.deepcopy(agent.settings.get(part) or {}) for part in parts}
        for path, value in changed.items():
            place = body
            for name in path[:-1]:
                if not isinstance(place.get(name), dict):
                    place[name] = {}
                place = place[name]
            what = ".".join(path[-2:]) if path[-2] == _CUSTOM_LLM[-1] else path[-1]
            self._note(f"{agent.name}: {what}", _shown(agent.at(path)), _shown(value))
            place[path[-1]] = value
        body.get("platform_settings", {}).pop("safety", None)  # read-only
        if (prompt := _at(body, ("conversation_config", "agent", "prompt"))) and prompt.get("tool_ids"):
            prompt.pop("tools", None)  # what the ids stand for; both together are refused
        if body and not self.is_dry_run:
            self.account.change_agent(agent.id, body)

    def _save(self, name: str, before: str, value: str) -> None:
        self._note(f"{name} in .env", "(set)" if before else "", _NEW)
        if not self.is_dry_run:
            self.save(name, value)

    def _note(self, what: str, before: str, after: str) -> None:
        self.changes.append(SettingChange(what, before, after))


def _call_token_placeholder(agent: HostedAgent) -> dict[Path, str]:
    """Without it, calls that do not ask the gateway first would not start."""
    return {} if CALL_TOKEN in (agent.at(_PLACEHOLDERS) or {}) else {(*_PLACEHOLDERS, CALL_TOKEN): ""}


def llm_token_id(secret_name: str) -> str:
    """The id of the API token in a secret of this name; empty if it is another secret."""
    return secret_name.removeprefix(LLM_SECRET) if secret_name.startswith(LLM_SECRET) else ""


def _fingerprint(secret: str) -> str:
    """Distinguishes values. People who see it may change the webhook's address, and so get the secret itself."""
    return hashlib.sha256(secret.encode()).hexdigest()[:8]


def _shown(value: Any) -> str:
    """A setting for a person; what a header holds may be a secret."""
    match value:
        case None:
            return ""
        case bool():
            return "on" if value else "off"
        case {"url": str(url)}:
            return url
        case dict():
            return ", ".join(value)
        case list():
            return ", ".join(map(str, value))
        case _:
            return str(value) or '""'
