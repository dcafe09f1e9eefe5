"""The providers' prompt caches, to detect requests that break them."""

import json
from typing import Any

TOKENS_EACH = 10


class PromptCache:
    """Anthropic caches prefixes that end in a marked block, the others every prefix of a request."""

    def __init__(self) -> None:
        self._kept: set[str] = set()

    def tokens(self, body: dict[str, Any], *, marked_only: bool) -> int:
        """The cached part of this request, which is cached from now on. Tools, blocks and messages count the same."""
        system = body.get("system", [])
        parts = [*body.get("tools", []), *([system] if isinstance(system, str) else system), *body["messages"]]
        ends = [
            number for number, part in enumerate(parts, 1) if not marked_only or "cache_control" in json.dumps(part)
        ]
        beginnings = {end: json.dumps(parts[:end]) for end in ends}
        known = max((end for end, beginning in beginnings.items() if beginning in self._kept), default=0)
        self._kept.update(beginnings.values())
        return known * TOKENS_EACH
