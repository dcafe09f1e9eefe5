"""Who may ask for a call's answers: the engine shows the bearer that was made for the call, and it dies with it."""

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from gateway.llm.responder import Responder

MOST_GUESTS: Final = 1000
"""Calls of other nodes that were asked for here; the one that was longest not asked for is given up first."""

Elsewhere = Callable[[str], Awaitable[Responder | None]]
"""Somebody to think for the call of another node whose bearer has this digest; None if there is no such call."""


class EndpointTokens:
    """Only digests are kept, shared and looked up: how long that takes tells nothing about a bearer."""

    def __init__(self, elsewhere: Elsewhere | None = None) -> None:
        self._elsewhere = elsewhere
        self._thinkers: dict[str, Responder] = {}
        self._guests: OrderedDict[str, Responder] = OrderedDict()

    def open(self, responder: Responder) -> str:
        """A bearer for one call. It is a secret."""
        bearer = secrets.token_urlsafe(32)
        self._thinkers[digest_of(bearer)] = responder
        return bearer

    def close(self, bearer: str) -> None:
        """The call is over, and what is still being answered in it. May be repeated."""
        if responder := self._thinkers.pop(digest_of(bearer), None):
            responder.close()

    async def find(self, bearer: str) -> Responder | None:
        digest = digest_of(bearer)
        if digest in self._thinkers or self._elsewhere is None or not bearer:
            return self._thinkers.get(digest)
        return self._guest(digest, await self._elsewhere(digest))

    def _guest(self, digest: str, found: Responder | None) -> Responder | None:
        """
        The same for all requests of a call, as equal ones share their answer; None once the call is over.

        Another one when the call is not of the same caller any more.
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
    """What may be kept and shared of a bearer."""
    return hashlib.sha256(bearer.encode()).hexdigest()
