"""Ways to start the gateway that a bench run can measure and compare."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True)
class Variant:
    """One configuration of the gateway under test."""

    name: str
    arguments: tuple[str, ...] = ()
    """Extra arguments of `gateway serve`."""
    environment: Mapping[str, str] = field(default_factory=dict)
    toml: str = ""
    """Content of gateway.toml."""
    document_seconds: float = 30.0
    """How long to wait for a call's document; 0 if none is written."""
    viewers: bool = False
    """Open a live page and a tail during the run."""


LOCAL_CALLS: Final = 8
"""Default number of simultaneous calls for the local engine."""

SOCKETS: Final = {name: Variant(name, ("--sockets", name)) for name in ("picows", "websockets")}

Pair = tuple[Variant, Variant]

# The embedding model is a separate process on the same core here, so it stays off.
COMPARISONS: Final[Mapping[str, Pair]] = {
    "memory": (
        Variant("memory off", environment={"VOICE_SESSION_ENABLED": "false"}, document_seconds=0.0),
        Variant("memory on", environment={"VOICE_SESSION_ENABLED": "true", "MEMORY_VECTORS": "false"}),
    ),
    "viewers": (
        Variant("no viewers", environment={"MEMORY_VECTORS": "false"}),
        Variant("live page and tail", environment={"MEMORY_VECTORS": "false"}, viewers=True),
    ),
}
"""Ratios are the second of a pair divided by the first."""
