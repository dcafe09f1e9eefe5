"""
Vapi: asks for an assistant and reports calls as it does.

Its SDK would replace the pydantic that the gateway runs on, so the rules below are written down from its OpenAPI
description and docs.
"""

import re
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

SECRET = "vapi-secret-of-the-tests"
ASSISTANT_ID = "5f6a1c1e-2f4b-4c39-9d58-0c3b3a1e7a10"
NUMBER = "+12025550100"


def call_object(call_id: str, number: str, kind: str = "inboundPhoneCall", **fields: Any) -> dict[str, Any]:
    now = datetime.now(UTC).isoformat()
    call = {"id": call_id, "orgId": "org_1", "createdAt": now, "updatedAt": now, "type": kind, "status": "ringing"}
    return call | ({"customer": {"number": number}} if number else {}) | fields


def end_of_call(call_id: str, *said: tuple[str, str], number: str = "", **fields: Any) -> dict[str, Any]:
    """`message` of a report. `said`: pairs of role and words."""
    started = datetime.now(UTC) - timedelta(minutes=1)
    began = started.timestamp() * 1000
    messages: list[dict[str, Any]] = [
        {"role": "system", "message": "You are Maya.", "time": began, "secondsFromStart": 0}
    ]
    for place, (role, words) in enumerate(said):
        at = began + 2500 * place
        spoken = {"time": at, "endTime": at + 1000, "secondsFromStart": 2.5 * place, "duration": 1000}
        messages.append({"role": role, "message": words, **spoken})
    message: dict[str, Any] = {
        "type": "end-of-call-report",
        "timestamp": time.time() * 1000,
        "endedReason": "customer-ended-call",
        "startedAt": started.isoformat().replace("+00:00", "Z"),
        "endedAt": (started + timedelta(seconds=42)).isoformat().replace("+00:00", "Z"),
        "artifact": {"messages": messages, "transcript": "AI: … User: …"},
        "analysis": {},
        "call": call_object(call_id, number, assistantId=ASSISTANT_ID),
        "phoneNumber": {"provider": "vapi", "number": NUMBER},
    }
    return message | fields


class FakeVapi:
    """`prompt` is the assistant's."""

    settings = {"VAPI_SERVER_SECRET": SECRET}
    agents = f'[agents.maya]\nprompt = "p.md"\nvapi_assistant = "{ASSISTANT_ID}"\n'

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.prompt = "You are Maya.\n{{memory}}\nThe caller is {{ caller_name }}."
        self.http = http
        self.gateway_url = ""
        self.calls = 0

    async def send(self, message: dict[str, Any], secret: str | None = SECRET) -> httpx.Response:
        headers = {} if secret is None else {"X-Vapi-Secret": secret}
        return await self.http.post(f"{self.gateway_url}/vapi/server", json={"message": message}, headers=headers)

    async def ask(self, caller: str, secret: str | None = SECRET) -> httpx.Response:
        self.calls += 1
        call = call_object(f"call-{self.calls}", caller)
        number = {"provider": "vapi", "number": NUMBER}
        return await self.send({"type": "assistant-request", "call": call, "phoneNumber": number}, secret)

    async def rings(self, caller: str) -> str:
        """The prompt of the call that begins now."""
        answer = (await self.ask(caller)).raise_for_status().json()
        assert answer.pop("assistantId") == ASSISTANT_ID
        overrides = answer.pop("assistantOverrides")
        assert not answer and set(overrides) == {"variableValues"}
        values = overrides["variableValues"]
        return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda match: values.get(match[1], ""), self.prompt)

    async def report(
        self, call_id: str, *said: tuple[str, str], number: str = "", secret: str | None = SECRET
    ) -> httpx.Response:
        roles = {"agent": "bot", "user": "user"}
        spoken = [(roles[role], words) for role, words in said]
        return await self.send(end_of_call(call_id, *spoken, number=number), secret)

    async def report_web_call(self, call_id: str, *said: tuple[str, str], claims: str) -> httpx.Response:
        call = call_object(call_id, claims, "webCall", assistantId=ASSISTANT_ID)
        return await self.send(end_of_call(call_id, *said, call=call, phoneNumber=None))

    async def report_chat(self, *said: tuple[str, str]) -> httpx.Response:
        chat = {"id": "chat-1", "orgId": "org_1", "assistantId": ASSISTANT_ID}
        return await self.send(end_of_call("x", *said, call=None, chat=chat))
