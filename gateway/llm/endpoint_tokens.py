"""Bearer tokens for the chat completions endpoint: one per call, valid until the call ends."""

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from gateway.llm.responder import Responder

MOST_GUESTS: Final = 1000
"""Responders for calls of other nodes; the least recently used one is closed first."""

Elsewhere = Callable[[str], Awaitable[Responder | None]]
"""Makes a responder for another node's call, by the digest of its bearer token; None if there is no such call."""


class EndpointTokens:
    """Stores, shares and looks up digests only, so that timing reveals nothing about a token."""

    def __init__(self, elsewhere: Elsewhere | None = None) -> None:
        self._elsewhere = elsewhere
        self._responders: dict[str, Responder] = {}
        self._guests: OrderedDict[str, Responder] = OrderedDict()

    def open(self, responder: Responder) -> str:
        """A bearer token for one call. It is a secret."""
        bearer = secrets.token_urlsafe(32)
        self._responders[digest_of(bearer)] = responder
        return bearer

    def close(self, bearer: str) -> None:
        """End the call's answers and invalidate its token. May be repeated."""
        if responder := self._responders.pop(digest_of(bearer), None):
            responder.close()

    async def find(self, bearer: str) -> Responder | None:
        digest = digest_of(bearer)
        if digest in self._responders or self._elsewhere is None or not bearer:
            return self._responders.get(digest)
        return self._guest(digest, await self._elsewhere(digest))

    def _guest(self, digest: str, found: Responder | None) -> Responder | None:
        """
        One responder for all requests of a call, since equal requests share their answer; None once the call has ended.

        Replaced when the call turns out to be another caller's.
        """
        known = self._guests.pop(digest, None)
        if known is not None and (found is None or found.caller_key != known.caller_key):
            known.close()
            known = None
        if found is not None:
            self._guests[digest] = known or found
        if len(self._guests) > MOST_GUESTS:
            self._guests.popitem(last=False)[1].close()
        return self._guests.get(digest)


def digest_of(bearer: str) -> str:
    """The form of a token that may be stored and shared."""
    return hashlib.sha256(bearer.encode()).hexdigest()
