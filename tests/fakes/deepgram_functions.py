"""The function calls of a conversation: requested, answered, cancelled."""

import json
from typing import Any


class Functions:
    """Records calls and responses, and validates the responses."""

    def __init__(self) -> None:
        self.calls: dict[str, dict[str, Any]] = {}
        self.responses: dict[str, str] = {}
        self.cancelled: set[str] = set()

    def ask(self, call: str | dict[str, Any]) -> dict[str, Any]:
        """A call in wire format, from a name or some fields."""
        given = {"name": call} if isinstance(call, str) else dict(call)
        arguments = given.pop("arguments", "{}")
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        response = given.pop("response", None)
        entry = {"id": f"fc_{len(self.calls) + 1}", "client_side": True, **given, "arguments": text}
        self.calls[entry["id"]] = entry
        if response is not None:
            self.responses[entry["id"]] = response
        return entry

    def answer(self, message: dict[str, Any]) -> str | None:
        """Record the client's response. Returns the problem or None."""
        call_id = message.get("id", "")
        call = self.calls.get(call_id)
        if call is None:
            return f"response to an unknown function call {call_id!r}"
        if message["name"] != call["name"]:
            return f"response to {call_id} names {message['name']!r}, not {call['name']!r}"
        if not call["client_side"]:
            return f"response to {call_id}, which is not for the client"
        if call_id in self.cancelled:
            return f"response to {call_id}, which was cancelled"
        if call_id in self.responses:
            return f"second response to {call_id}"
        self.responses[call_id] = message["content"]
        return None

    def pending(self) -> list[str]:
        """Ids of unanswered calls."""
        settled = self.responses.keys() | self.cancelled
        return [call_id for call_id, call in self.calls.items() if call["client_side"] and call_id not in settled]

    def answered(self, call_ids: list[str]) -> list[dict[str, Any]]:
        """These calls as a History entry, with their responses."""
        return [{**self.calls[key], "response": self.responses[key]} for key in call_ids if key in self.responses]
