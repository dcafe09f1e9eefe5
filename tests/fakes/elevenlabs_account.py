"""
The account API of ElevenLabs: agents, workspace webhooks, secrets and conversations.

The official SDK's types check requests and answers. It refuses what the real one refuses, as far as that is documented:
unknown fields, read-only ones, tools beside their ids, a webhook without https.
"""

import copy
import itertools
from typing import Any

from elevenlabs.types import (
    AgentPlatformSettingsRequestModel,
    ConvAiWebhooks,
    ConversationalConfig,
    ConversationInitiationClientDataWebhook,
    CustomLlm,
    GetAgentResponseModel,
    GetConvAiSettingsResponseModel,
    GetConversationResponseModel,
    GetConversationsPageResponseModel,
    GetWorkspaceSecretsResponseModel,
    McpServerConfigInput,
    McpServerResponseModel,
    McpServersResponseModel,
    PostWorkspaceSecretResponseModel,
    WebhookHmacSettings,
    WorkspaceCreateWebhookResponseModel,
    WorkspaceWebhookListResponseModel,
)
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


def hosted_agent(agent_id: str, prompt: str) -> dict[str, Any]:
    """An agent with settings of its owner in every part that the gateway changes."""
    tool = {"type": "client", "name": "order", "description": "Shows an order."}
    return {
        "agent_id": agent_id,
        "name": "Front desk",
        "conversation_config": {
            "asr": {"quality": "high", "user_input_audio_format": "pcm_16000", "keywords": ["Lopez"]},
            "tts": {"voice_id": "voice_1", "agent_output_audio_format": "pcm_16000"},
            "turn": {"turn_timeout": 7.0, "speculative_turn": True},
            "agent": {
                "first_message": "Hello.",
                "language": "en",
                "dynamic_variables": {"dynamic_variable_placeholders": {"shop": "Main Street"}},
                "prompt": {"prompt": prompt, "llm": "gpt-4o", "tool_ids": ["tool_1"], "tools": [tool]},
            },
        },
        "metadata": {"created_at_unix_secs": 1760000000, "updated_at_unix_secs": 1760000000},
        "platform_settings": {
            "auth": {"enable_auth": True},
            "widget": {"avatar": {"type": "orb"}},
            "overrides": {
                "conversation_config_override": {"agent": {"first_message": True}},
                "custom_llm_extra_body": True,
                "enable_conversation_initiation_client_data_from_webhook": False,
            },
            "workspace_overrides": {
                "conversation_initiation_client_data_webhook": None,
                "webhooks": {"post_call_webhook_id": None, "events": [], "send_audio": None},
            },
            "call_limits": {"daily_limit": 500},
            "safety": {"is_blocked_ivc": False},
        },
        "tags": ["production"],
    }


class FakeElevenLabsAccount:
    """
    One workspace. `merges`: whether a PATCH merges nested objects or replaces them, which is not documented.

    `failures` are statuses that the next requests get instead of an answer; 0 for an answer.
    """

    def __init__(self, api_key: str) -> None:
        self.api_key = api_key
        self.merges = True
        self.page_size = 100
        self.agents: dict[str, dict[str, Any]] = {}
        self.secrets: dict[str, dict[str, str]] = {}
        self.webhooks: dict[str, dict[str, Any]] = {}
        self.mcp_servers: dict[str, dict[str, Any]] = {}
        self.workspace: dict[str, Any] = {"conversation_initiation_client_data_webhook": None, "webhooks": {}}
        self.conversations: dict[str, dict[str, Any]] = {}
        self.failures: list[int] = []
        self.requests: list[str] = []
        self._numbers = itertools.count(1)

    @property
    def changes(self) -> list[str]:
        return [request for request in self.requests if not request.startswith("GET ")]

    def add_webhook(self, url: str, **fields: Any) -> str:
        webhook_id = f"wh_{next(self._numbers)}"
        self.webhooks[webhook_id] = {
            "name": "Mine",
            "webhook_id": webhook_id,
            "webhook_url": url,
            "is_disabled": False,
            "is_auto_disabled": False,
            "created_at_unix": 1760000000 + len(self.webhooks),
            "auth_type": "hmac",
            "usage": None,
            "most_recent_failure_error_code": None,
        } | fields
        return webhook_id

    def routes(self) -> list[Route]:
        served = {
            "GET /v1/convai/agents/{id}": self._agent,
            "PATCH /v1/convai/agents/{id}": self._change_agent,
            "GET /v1/convai/settings": self._settings,
            "GET /v1/convai/secrets": self._list_secrets,
            "POST /v1/convai/secrets": self._create_secret,
            "GET /v1/workspace/webhooks": self._list_webhooks,
            "POST /v1/workspace/webhooks": self._create_webhook,
            "PATCH /v1/workspace/webhooks/{id}": self._change_webhook,
            "GET /v1/convai/mcp-servers": self._list_mcp_servers,
            "POST /v1/convai/mcp-servers": self._create_mcp_server,
            "GET /v1/convai/conversations": self._list_conversations,
            "GET /v1/convai/conversations/{id}": self._conversation,
        }
        routes = []
        for name, handler in served.items():
            method, path = name.split()
            routes.append(Route(path, self._checked(handler), methods=[method], name=name))
        return routes

    def _checked(self, handler: Any) -> Any:
        async def answer(request: Request) -> Response:
            self.requests.append(f"{request.method} {request.url.path}")
            if request.headers.get("xi-api-key") != self.api_key:
                return refused(401, "invalid_api_key")
            if self.failures and (status := self.failures.pop(0)):
                return JSONResponse({"detail": {"status": "busy"}}, status, {"Retry-After": "0"})
            return await handler(request)

        return answer

    # Agents

    async def _agent(self, request: Request) -> Response:
        agent = self.agents.get(request.path_params["id"])
        if agent is None:
            return refused(404, "agent_not_found")
        GetAgentResponseModel.model_validate(agent)
        return JSONResponse(agent)

    async def _change_agent(self, request: Request) -> Response:
        agent, body = self.agents[request.path_params["id"]], await request.json()
        allowed = {"conversation_config": ConversationalConfig, "platform_settings": AgentPlatformSettingsRequestModel}
        for name, part in body.items():
            if name not in allowed or set(part) - set(allowed[name].model_fields):
                return refused(422, "unknown_field")
            allowed[name].model_validate(part)
        prompt = body.get("conversation_config", {}).get("agent", {}).get("prompt") or {}
        if "tools" in prompt and "tool_ids" in prompt:
            return refused(400, "tools_and_tool_ids")
        if (prompt.get("llm") == "custom-llm") and not prompt.get("custom_llm"):
            return refused(422, "custom_llm_missing")
        if custom := prompt.get("custom_llm"):
            if set(custom) - set(CustomLlm.model_fields) or not custom["url"].startswith("https://"):
                return refused(422, "invalid")
            CustomLlm.model_validate(custom)
            values = [custom.get("api_key"), *(custom.get("request_headers") or {}).values()]
            for value in values:
                if isinstance(value, dict) and "secret_id" in value and value["secret_id"] not in self.secrets:
                    return refused(404, "secret_not_found")
        overrides = body.get("platform_settings", {}).get("workspace_overrides") or {}
        if webhook := overrides.get("conversation_initiation_client_data_webhook"):
            ConversationInitiationClientDataWebhook.model_validate(webhook)
            for value in webhook["request_headers"].values():
                if isinstance(value, dict) and value["secret_id"] not in self.secrets:
                    return refused(404, "secret_not_found")
        if webhooks := overrides.get("webhooks"):
            ConvAiWebhooks.model_validate(webhooks)
            if webhooks.get("post_call_webhook_id") not in (None, *self.webhooks):
                return refused(404, "webhook_not_found")
        for name, part in body.items():
            agent[name] = merged(agent[name], part) if self.merges else part
        return JSONResponse(agent)

    async def _settings(self, request: Request) -> Response:
        GetConvAiSettingsResponseModel.model_validate(self.workspace)
        return JSONResponse(self.workspace)

    # Secrets and webhooks

    async def _list_secrets(self, request: Request) -> Response:
        used_by = {"tools": [], "agents": [], "others": [], "phone_numbers": []}
        found = [
            {"type": "stored", "secret_id": secret_id, "name": secret["name"], "used_by": used_by}
            for secret_id, secret in self.secrets.items()
            if secret["name"].startswith(request.query_params.get("search", ""))
        ]
        page = {"secrets": found, "next_cursor": None}
        GetWorkspaceSecretsResponseModel.model_validate(page)
        return JSONResponse(page)

    async def _create_secret(self, request: Request) -> Response:
        body = await request.json()
        if set(body) != {"type", "name", "value"} or body["type"] != "new" or not body["value"]:
            return refused(422, "invalid")
        if body["name"] in {secret["name"] for secret in self.secrets.values()}:
            return refused(409, "secret_already_exists")
        secret_id = f"secret_{next(self._numbers)}"
        self.secrets[secret_id] = {"name": body["name"], "value": body["value"]}
        made = {"type": "stored", "secret_id": secret_id, "name": body["name"]}
        PostWorkspaceSecretResponseModel.model_validate(made)
        return JSONResponse(made)

    async def _list_webhooks(self, request: Request) -> Response:
        hidden = ("secret", "retry_enabled")
        found = [
            {name: value for name, value in webhook.items() if name not in hidden} for webhook in self.webhooks.values()
        ]
        WorkspaceWebhookListResponseModel.model_validate({"webhooks": found})
        return JSONResponse({"webhooks": found})

    async def _create_webhook(self, request: Request) -> Response:
        body = await request.json()
        settings = WebhookHmacSettings.model_validate(body["settings"])
        if set(body) != {"settings"} or not settings.webhook_url.startswith("https://"):
            return refused(422, "invalid")
        number = next(self._numbers)
        secret = f"wsec_{number:032x}"
        webhook_id = self.add_webhook(settings.webhook_url, name=settings.name, secret=secret, retry_enabled=False)
        made = {"webhook_id": webhook_id, "webhook_secret": secret}
        WorkspaceCreateWebhookResponseModel.model_validate(made)
        return JSONResponse(made)

    async def _change_webhook(self, request: Request) -> Response:
        body = await request.json()
        if not {"is_disabled", "name"} <= set(body) <= {"is_disabled", "name", "retry_enabled"}:
            return refused(422, "invalid")
        webhook = self.webhooks[request.path_params["id"]]
        webhook.update(body)
        if not body["is_disabled"]:
            webhook["is_auto_disabled"] = False
        return JSONResponse({"status": "ok"})

    async def _list_mcp_servers(self, request: Request) -> Response:
        found = {"mcp_servers": list(self.mcp_servers.values())}
        McpServersResponseModel.model_validate(found)
        return JSONResponse(found)

    async def _create_mcp_server(self, request: Request) -> Response:
        body = await request.json()
        config = McpServerConfigInput.model_validate(body["config"])
        if set(body) != {"config"} or not str(config.url).startswith("https://") or not config.name:
            return refused(422, "invalid")
        server_id = f"mcp_{next(self._numbers)}"
        metadata = {"created_at": 1760000000, "owner_user_id": None}
        made = {"id": server_id, "config": body["config"], "metadata": metadata}
        McpServerResponseModel.model_validate(made)
        self.mcp_servers[server_id] = made
        return JSONResponse(made)

    # Conversations

    async def _list_conversations(self, request: Request) -> Response:
        """The newest first, as the real one does by default."""
        query = request.query_params
        after, size = int(query.get("call_start_after_unix", 0)), min(int(query.get("page_size", 30)), self.page_size)
        found = [
            one
            for one in self.conversations.values()
            if one["agent_id"] == query["agent_id"] and one["metadata"]["start_time_unix_secs"] >= after
        ]
        found.sort(key=lambda one: one["metadata"]["start_time_unix_secs"], reverse=True)
        first = int(query.get("cursor", 0))
        rest = len(found) > first + size
        page = {
            "conversations": [summary(one) for one in found[first : first + size]],
            "next_cursor": str(first + size) if rest else None,
            "has_more": rest,
        }
        GetConversationsPageResponseModel.model_validate(page)
        return JSONResponse(page)

    async def _conversation(self, request: Request) -> Response:
        found = self.conversations.get(request.path_params["id"])
        if found is None:
            return refused(404, "conversation_not_found")
        GetConversationResponseModel.model_validate(found)
        return JSONResponse(found)


def summary(conversation: dict[str, Any]) -> dict[str, Any]:
    metadata = conversation["metadata"]
    return {
        "agent_id": conversation["agent_id"],
        "conversation_id": conversation["conversation_id"],
        "start_time_unix_secs": metadata["start_time_unix_secs"],
        "call_duration_secs": metadata["call_duration_secs"],
        "message_count": len(conversation["transcript"]),
        "status": conversation["status"],
        "call_successful": "success",
        "conversation_initiation_source": metadata.get("conversation_initiation_source"),
    }


def merged(before: Any, after: Any) -> Any:
    if not isinstance(before, dict) or not isinstance(after, dict):
        return after
    return {**before, **{name: merged(before.get(name), value) for name, value in after.items()}}


def settings_of(agent: dict[str, Any]) -> dict[str, Any]:
    """A copy of what a person may have set."""
    return copy.deepcopy({name: agent[name] for name in ("conversation_config", "platform_settings", "tags", "name")})


def refused(status: int, code: str) -> JSONResponse:
    return JSONResponse({"detail": {"status": code, "message": "no"}}, status)
