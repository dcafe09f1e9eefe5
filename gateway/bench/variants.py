"""What can be measured and compared: ways to start the gateway."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True)
class Variant:
    """One way to start it, beside what all have in common."""

    name: str
    arguments: tuple[str, ...] = ()
    """Of `gateway serve`."""
    environment: Mapping[str, str] = field(default_factory=dict)
    toml: str = ""
    """What stands in its gateway.toml."""
    document_seconds: float = 30.0
    """How long to wait for a call's document; no time where there will be none."""
    watched: bool = False
    """Somebody watches meanwhile: a page of live calls, and a tail."""


LOCAL_CALLS: Final = 8
"""At once on the local engine, where nobody says otherwise."""

SOCKETS: Final = {name: Variant(name, ("--sockets", name)) for name in ("picows", "websockets")}
MEMORY_OFF: Final = Variant("memory off", environment={"VOICE_SESSION_ENABLED": "false"}, document_seconds=0.0)
MEMORY_ON: Final = Variant("memory on", environment={"VOICE_SESSION_ENABLED": "true", "MEMORY_VECTORS": "false"})
"""Journal, endings and recall. The embedding model is another program, on the same one core here."""

UNWATCHED: Final = Variant("nobody watches", environment={"MEMORY_VECTORS": "false"})
WATCHED: Final = Variant("a page and a tail watch", environment={"MEMORY_VECTORS": "false"}, watched=True)

Pair = tuple[Variant, Variant]

COMPARISONS: Final[Mapping[str, Pair]] = {
    "sockets": (SOCKETS["picows"], SOCKETS["websockets"]),
    "memory": (MEMORY_OFF, MEMORY_ON),
    "watchers": (UNWATCHED, WATCHED),
}
"""The second of a pair is told in terms of the first."""
