"""
What lets somebody use the browser phone without the admin token. Values and seals only: no request, no page.

A call pass is in a link that the operator gives away: one call, as the caller that the operator chose. A watch pass
comes with a call that was let in: its bearer may follow this call, and no other. Both are sealed with a key that is
derived from the admin token, so every node that has the same token knows them, and nobody can read or change one.
"""

import base64
import binascii
import hmac
import secrets
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TypeVar

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from gateway.settings import Secret

LINK_SECONDS: Final = 24 * 3600
WATCH_SECONDS: Final = 6 * 3600
"""Longer than any call; what is written down after it is followed too."""


@dataclass(frozen=True)
class GuestLink:
    """One call. `era` is when the board that knows of spent passes began: it knows nothing from before."""

    caller: str
    called: str
    expires: int
    era: str = ""
    number: str = field(default_factory=lambda: secrets.token_hex(16))


@dataclass(frozen=True)
class WatchToken:
    """The right to follow one call. `caller` is under whom its memory is kept."""

    session: str
    agent: str
    caller: str
    expires: int


P = TypeVar("P", GuestLink, WatchToken)


class TokenCodec:
    """Makes passes and reads them again. Times are seconds since 1970, and given."""

    def __init__(self, token: Secret) -> None:
        self._cipher = AESSIV(hmac.digest(token.reveal().encode(), b"phone passes", "sha512"))

    def seal(self, given: GuestLink | WatchToken) -> str:
        sealed = self._cipher.encrypt(orjson.dumps(asdict(given)), [_kind(type(given))])
        return base64.urlsafe_b64encode(sealed).decode().rstrip("=")

    def read(self, kind: type[P], word: str, now: float) -> P | None:
        """None for a word that is not ours, of another kind, or too old."""
        try:
            sealed = base64.b64decode(word + "=" * (-len(word) % 4), altchars=b"-_", validate=True)
            fields: dict[str, Any] = orjson.loads(self._cipher.decrypt(sealed, [_kind(kind)]))
        except (binascii.Error, ValueError, InvalidTag):
            return None
        found = kind(**fields)
        return found if found.expires > now else None


def _kind(kind: type) -> bytes:
    return kind.__name__.encode()
