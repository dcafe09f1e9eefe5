"""What a provider's HTTP status means for us; the same for all of them."""

import math
from typing import Final

from gateway.errors import LlmError, LlmRefused, LlmUnavailable

# Request timeout, conflict, rate limit. From 500 on the provider blames itself; Anthropic's 529 is an overload.
_RETRYABLE: Final = (408, 409, 429)


def failure_of(provider: str, status: int, retry_after: str | None) -> LlmError:
    """The error for an answer that is not 2xx; `retry_after` is the header as sent."""
    message = f"{provider} answered {status}"
    if status in _RETRYABLE or status >= 500:
        return LlmUnavailable(message, retry_after=_seconds_of(retry_after))
    return LlmRefused(message)


def _seconds_of(header: str | None) -> float | None:
    """The header's seconds. Its other form, a date, depends on two clocks and is not used."""
    try:
        seconds = float(header or "")
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
