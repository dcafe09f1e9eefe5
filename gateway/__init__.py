"""
Voice Gateway: phone an AI agent that remembers its callers.

What an agent's own functions need can be imported from here.
"""

from typing import Any

__all__ = ["Conversation", "speculative", "timeout"]


def __getattr__(name: str) -> Any:
    """Loaded when asked for: most of the program, and every command, does without."""
    if name == "Conversation":
        from gateway.tools.conversation import Conversation

        return Conversation
    if name in ("speculative", "timeout"):
        from gateway.tools import module

        return getattr(module, name)
    raise AttributeError(f"module 'gateway' has no attribute {name!r}")
