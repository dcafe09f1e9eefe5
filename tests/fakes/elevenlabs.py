"""
ElevenLabs: sends initiation and post-call webhooks as it does, serves register-call and the account's API, and uses a
custom LLM.

The official SDK's types check what the gateway answers and sends, and what this simulator sends.
"""

import contextlib
import hashlib
import hmac
import json
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import httpx
from elevenlabs.types import (
    ConversationInitiationClientDataRequestInput,
    GetConversationResponseModel,
)
from openai.types.chat import ChatCompletionChunk
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.simulate.gateway_under_test import serve_on_loopback
from tests.fakes.elevenlabs_account import FakeElevenLabsAccount, hosted_agent

API_KEY = "xi-test-key"
WEBHOOK_SECRET = "wsec_demo_0123456789"
INITIATION_SECRET = "initiation-secret-of-the-tests"
AGENT_ID = "agent_7k2"
STARTED = 1760000000


class CallDidNotStart(Exception):
    """What ElevenLabs answers to client data that its agent does not accept."""


class LlmProblem(Exception):
    """A custom LLM's answer that ElevenLabs could not use."""


def system_tool(name: str, *arguments: str) -> dict[str, Any]:
    """One of ElevenLabs' own tools, as a custom LLM gets it."""
    properties = {argument: {"type": "string"} for argument in arguments}
    parameters = {"type": "object", "properties": properties, "required": []}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


END_CALL = system_tool("end_call", "reason", "message")
SKIP_TURN = system_tool("skip_turn", "reason")


@dataclass
class LlmAnswer:
    """A streamed answer, read as strictly as OpenAI's own client does, and a bit more."""

    offered: frozenset[str]
    text: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    finish_reason: str | None = None
    usage: int | None = None
    is_done: bool = False

    def read(self, line: str) -> None:
        if not line:
            return
        if self.is_done or not line.startswith("data: "):
            raise LlmProblem(f"a line that is not expected: {line}")
        if line == "data: [DONE]":
            self.is_done = True
            return
        chunk = ChatCompletionChunk.model_validate_json(line.removeprefix("data: "))
        if chunk.usage is not None:
            if chunk.choices:
                raise LlmProblem("usage in a chunk with choices")
            self.usage = chunk.usage.total_tokens
            return
        [choice] = chunk.choices
        if self.finish_reason is not None:
            raise LlmProblem("a chunk after the last one")
        self.finish_reason, delta = choice.finish_reason, choice.delta
        self.text += delta.content or ""
        for call in delta.tool_calls or ():
            if call.index == len(self.calls):
                self.calls.append((call.function.name, ""))
            name, arguments = self.calls[call.index]
            self.calls[call.index] = name, arguments + (call.function.arguments or "")

    def check(self) -> None:
        if not self.is_done or self.finish_reason != ("tool_calls" if self.calls else "stop"):
            raise LlmProblem(f"ended with {self.finish_reason}")
        if unknown := {name for name, _ in self.calls} - self.offered:
            raise LlmProblem(f"tools that were not offered: {unknown}")
        if re.search(r"\.\.\.(?! )", self.text):
            raise LlmProblem("buffer words without a blank")


def signature(body: bytes, secret: str = WEBHOOK_SECRET, at: float | None = None) -> str:
    moment = str(int(time.time() if at is None else at))
    digest = hmac.new(secret.encode(), f"{moment}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={moment},v0={digest}"


def conversation(conversation_id: str, *said: tuple[str, str], number: str = "", **fields: Any) -> dict[str, Any]:
    """`data` of a post-call webhook. `said`: pairs of role and message."""
    phone_call = {
        "type": "twilio",
        "direction": "inbound",
        "phone_number_id": "pn_1",
        "agent_number": "+12025550100",
        "external_number": number,
        "call_sid": f"CA{conversation_id}",
        "stream_sid": "MZ01",
    }
    data: dict[str, Any] = {
        "agent_id": AGENT_ID,
        "conversation_id": conversation_id,
        "status": "done",
        "user_id": None,
        "transcript": [
            {"role": role, "message": message, "time_in_call_secs": 2 * place}
            for place, (role, message) in enumerate(said)
        ],
        "metadata": {
            "start_time_unix_secs": int(time.time()) - 60,
            "call_duration_secs": 42,
            "termination_reason": "Client ended call",
            "phone_call": phone_call if number else None,
        },
        "analysis": None,
        "has_audio": True,
        "has_user_audio": True,
        "has_response_audio": True,
        "has_auxiliary_audio": False,
    }
    return data | fields


class FakeElevenLabs:
    """`url` is the API's base. `registered` holds the bodies of register-call."""

    def __init__(self, prompt: str = "You are Maya.\n{{memory}}\nThe caller is {{caller_name}}.") -> None:
        self.prompt = prompt
        self.account = FakeElevenLabsAccount(API_KEY)
        self.account.agents[AGENT_ID] = hosted_agent(AGENT_ID, prompt)
        self.url = ""
        self.gateway_url = ""
        self.variables: dict[str, Any] = {}
        """Of the conversation that began last."""
        self.registered: list[dict[str, Any]] = []
        self.answer: Response | None = None
        """Instead of TwiML."""
        self.http = httpx.AsyncClient(trust_env=False, timeout=30)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        register = Route("/v1/convai/twilio/register-call", self._register, methods=["POST"])
        app = Starlette(routes=[register, *self.account.routes()])
        async with self.http, serve_on_loopback(app) as self.url:
            yield self

    def settings(self) -> dict[str, str]:
        return {
            "ELEVENLABS_API_KEY": API_KEY,
            "ELEVENLABS_API_URL": self.url,
            "ELEVENLABS_WEBHOOK_SECRET": WEBHOOK_SECRET,
            "ELEVENLABS_INITIATION_SECRET": INITIATION_SECRET,
        }

    # Initiation

    async def ask(self, secret: str | None = INITIATION_SECRET, **body: Any) -> httpx.Response:
        headers = {} if secret is None else {"X-Gateway-Secret": secret}
        return await self.http.post(f"{self.gateway_url}/elevenlabs/initiation", json=body, headers=headers)

    async def rings(self, caller: str, call_sid: str = "CA01", agent_id: str = AGENT_ID) -> str:
        """The prompt of a conversation that begins now. Raises CallDidNotStart."""
        response = await self.ask(caller_id=caller, agent_id=agent_id, called_number="+12025550100", call_sid=call_sid)
        if response.status_code != 200:
            raise CallDidNotStart(f"status {response.status_code}")
        answer = response.json()
        if answer.pop("type", "conversation_initiation_client_data") != "conversation_initiation_client_data":
            raise CallDidNotStart("type")
        return self.start(answer)

    def start(self, data: Mapping[str, Any]) -> str:
        """Apply client data as ElevenLabs does."""
        ConversationInitiationClientDataRequestInput.model_validate(data)
        if set(data) - {"dynamic_variables", "user_id", "custom_llm_extra_body"}:
            raise CallDidNotStart("an override that the agent does not allow")
        self.variables = variables = data["dynamic_variables"]
        if any(name.startswith("system__") or not isinstance(value, str | int | float | bool)
               for name, value in variables.items()):  # fmt: skip
            raise CallDidNotStart("a reserved name, or a value that is not a scalar")

        def value(match: "re.Match[str]") -> str:
            if match[1] not in variables:
                raise CallDidNotStart(f"no value for {match[1]}")
            return str(variables[match[1]])

        return re.sub(r"\{\{(\w+)\}\}", value, self.prompt)

    # Custom LLM

    def llm_request(
        self, said: str, *, key: str, tools: Sequence[Mapping[str, Any]] = (), headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """
        The request for an answer to these words of the caller, as arguments for httpx.

        The agent is configured with the headers X-Call-Token and X-Caller, from variables of the conversation.
        """
        body: dict[str, Any] = {
            "model": "maya",
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0.5,
            "max_tokens": 5000,
            "messages": [
                {"role": "system", "content": "You answer for the harbour."},
                {"role": "assistant", "content": "Hello."},
                {"role": "user", "content": said},
            ],
            "parallel_tool_calls": False,
            "user_id": "caller:+12025550143",
            "elevenlabs_extra_body": {"caller": "+12025550143"},
        }
        if tools:
            body["tools"] = list(tools)
        resolved = {"X-Call-Token": self.variables.get("secret__call_token", ""), "X-Caller": "+12025550143"}
        sent = {"Authorization": f"Bearer {key}", **resolved, **(headers or {})}
        url = f"{self.gateway_url}/elevenlabs/llm/chat/completions"
        return {"method": "POST", "url": url, "json": body, "headers": sent}

    async def thinks(self, said: str, **options: Any) -> LlmAnswer:
        """The answer of the custom LLM. Raises LlmProblem."""
        request = self.llm_request(said, **options)
        offered = frozenset(tool["function"]["name"] for tool in request["json"].get("tools", ()))
        answer = LlmAnswer(offered)
        async with self.http.stream(**request) as response:
            if response.status_code != 200:
                await response.aread()
                raise LlmProblem(f"status {response.status_code}: {response.json()['error']['message']}")
            if not response.headers["content-type"].startswith("text/event-stream"):
                raise LlmProblem(response.headers["content-type"])
            async for line in response.aiter_lines():
                answer.read(line)
        answer.check()
        return answer

    # Register-call

    async def _register(self, request: Request) -> Response:
        if request.headers.get("xi-api-key") != API_KEY:
            return JSONResponse({"detail": "invalid key"}, 401)
        body = await request.json()
        if set(body) - {"agent_id", "from_number", "to_number", "direction", "conversation_initiation_client_data"}:
            return JSONResponse({"detail": "unknown field"}, 422)
        self.registered.append(body)
        if self.answer is not None:
            return self.answer
        self.start(body["conversation_initiation_client_data"])
        number = len(self.registered)
        twiml = (
            '<?xml version="1.0" encoding="UTF-8"?><Response><Connect><Stream url="wss://api.elevenlabs.io/v1/convai">'
            f'<Parameter name="conversation_id" value="conv_{number}"/></Stream></Connect></Response>'
        )
        return Response(twiml, media_type="text/html")

    # Post-call

    async def report(
        self, data: Mapping[str, Any], kind: str = "post_call_transcription", secret: str = WEBHOOK_SECRET
    ) -> httpx.Response:
        if kind == "post_call_transcription" and "transcript" in data:
            GetConversationResponseModel.model_validate(data)
        body = json.dumps({"type": kind, "event_timestamp": int(time.time()), "data": data}, indent=1).encode()
        return await self.post(body, signature(body, secret))

    async def post(self, body: bytes | AsyncIterator[bytes], header: str | None) -> httpx.Response:
        headers = {"content-type": "application/json"} | ({"ElevenLabs-Signature": header} if header else {})
        return await self.http.post(f"{self.gateway_url}/elevenlabs/post-call", content=body, headers=headers)
