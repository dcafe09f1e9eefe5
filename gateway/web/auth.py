"""Who may come in: a key in the header that Remem clients use, or as a bearer."""

import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers

from gateway.settings import Secret


def is_authorized(headers: Headers, keys: Sequence[Secret]) -> bool:
    """Whether one of these keys was offered. An empty one opens nothing."""
    scheme, _, bearer = headers.get("Authorization", "").partition(" ")
    offered = (headers.get("X-API-Key", ""), bearer.strip() if scheme.lower() == "bearer" else "")
    # A list, not a generator: all are compared, so the time tells nothing.
    matches = [
        hmac.compare_digest(key.reveal().encode(), text.encode()) for key in keys for text in offered if key.reveal()
    ]
    return any(matches)
