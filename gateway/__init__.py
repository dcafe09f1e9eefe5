"""
Voice Gateway: phone an AI agent that remembers its callers.

It exports what a module of agent functions needs.
"""

from typing import Any

__all__ = ["Conversation", "requires", "speculative", "timeout"]


def __getattr__(name: str) -> Any:
    """Imported on first use: most of the program, and every command, does not need them."""
    if name == "Conversation":
        from gateway.tools.conversation import Conversation

        return Conversation
    if name in ("requires", "speculative", "timeout"):
        from gateway.tools import module

        return getattr(module, name)
    raise AttributeError(f"module 'gateway' has no attribute {name!r}")
