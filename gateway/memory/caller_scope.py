"""Whose memory: one caller with one agent."""

from dataclasses import dataclass
from typing import ClassVar

import orjson


@dataclass(frozen=True, slots=True)
class CallerScope:
    """One caller with one agent; `source` says of what kind the documents are."""

    source: ClassVar[str]

    agent: str
    caller: str

    @property
    def names(self) -> tuple[str, str]:
        return self.agent, self.caller

    @property
    def tags(self) -> tuple[str, ...]:
        return self.source, f"agent:{self.agent}", f"caller:{self.caller}"

    @property
    def tags_text(self) -> str:
        """As the store keeps them."""
        return orjson.dumps(self.tags).decode()
