"""
Retell: sends its inbound webhook and call events as it does.

The official SDK signs them, and its types check the calls.
"""

import json
import re
import time
from typing import Any

import httpx
from retell.lib.webhook_auth import symmetric
from retell.types import PhoneCallResponse, WebCallResponse

API_KEY = "key_of_the_tests"
AGENT_ID = "agent_5f6a1c1e2f4b4c399d580c3b3a"
NUMBER = "+12025550100"


def signature(body: bytes, key: str = API_KEY, at: float | None = None) -> str:
    moment = int((time.time() if at is None else at) * 1000)
    return str(symmetric["sign"](body.decode(), key, moment))


def call_object(call_id: str, *said: tuple[str, str], number: str = "", **fields: Any) -> dict[str, Any]:
    """A call that is over. Without a number it is a web call. `said`: pairs of role and words."""
    ended = int(time.time() * 1000)
    call: dict[str, Any] = {
        "call_id": call_id,
        "call_type": "phone_call" if number else "web_call",
        "agent_id": AGENT_ID,
        "agent_version": 0,
        "call_status": "ended",
        "start_timestamp": ended - 42_000,
        "end_timestamp": ended,
        "duration_ms": 42_000,
        "disconnection_reason": "user_hangup",
        "transcript": "Agent: … User: …",
        "transcript_object": [
            {"role": role, "content": words, "words": [{"word": words, "start": 2.5 * place, "end": 2.5 * place + 1}]}
            for place, (role, words) in enumerate(said)
        ],
    }
    if number:
        call |= {"direction": "inbound", "from_number": number, "to_number": NUMBER}
    else:
        call |= {"access_token": "token"}
    call |= fields
    (PhoneCallResponse if call["call_type"] == "phone_call" else WebCallResponse).model_validate(call)
    return call


class FakeRetell:
    """`prompt` is the agent's."""

    settings = {"RETELL_API_KEY": API_KEY}
    agents = f'[agents.maya]\nprompt = "p.md"\nretell_agent = "{AGENT_ID}"\n'

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.prompt = "You are Maya.\n{{memory}}\nThe caller is {{caller_name}}."
        self.http = http
        self.gateway_url = ""

    async def post(self, path: str, body: bytes, header: str | None) -> httpx.Response:
        headers = {"content-type": "application/json"} | ({"x-retell-signature": header} if header else {})
        return await self.http.post(f"{self.gateway_url}/retell/{path}", content=body, headers=headers)

    async def send(self, path: str, message: dict[str, Any], key: str | None = API_KEY) -> httpx.Response:
        body = json.dumps(message, ensure_ascii=False).encode()
        return await self.post(path, body, None if key is None else signature(body, key))

    async def ask(self, caller: str, secret: str | None = API_KEY, agent_id: str = AGENT_ID) -> httpx.Response:
        call = {"from_number": caller, "to_number": NUMBER} | ({"agent_id": agent_id} if agent_id else {})
        return await self.send("inbound", {"event": "call_inbound", "call_inbound": call}, secret)

    async def rings(self, caller: str) -> str:
        """The prompt of the call that begins now."""
        answer = (await self.ask(caller)).raise_for_status().json()
        variables = answer.pop("call_inbound").pop("dynamic_variables")
        assert not answer and all(isinstance(value, str) for value in variables.values())
        return re.sub(r"\{\{(\w+)\}\}", lambda match: variables.get(match[1], match[0]), self.prompt)

    async def report(
        self, call_id: str, *said: tuple[str, str], number: str = "", secret: str | None = API_KEY
    ) -> httpx.Response:
        call = call_object(call_id, *said, number=number)
        return await self.send("events", {"event": "call_ended", "call": call}, secret)

    async def report_web_call(self, call_id: str, *said: tuple[str, str], claims: str) -> httpx.Response:
        # The gateway does not expect a number here. A caller's client can't add one, but the claim must not count.
        call = call_object(call_id, *said) | {"from_number": claims, "to_number": NUMBER}
        return await self.send("events", {"event": "call_analyzed", "call": call})

    async def report_chat(self, *said: tuple[str, str]) -> httpx.Response:
        chat = {"chat_id": "chat_1", "agent_id": AGENT_ID, "transcript": "User: …"}
        return await self.send("events", {"event": "chat_analyzed", "chat": chat})
