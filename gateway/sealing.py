"""
Sealed values and signatures, with keys derived from the admin token.

Every node with the same token can open them, and a new token invalidates all of them. Each use has a key of its own:
what was sealed for one purpose cannot be opened for another.
"""

import base64
import binascii
import hashlib
import hmac
from dataclasses import dataclass
from typing import Any

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from gateway.settings import Secret


class Sealer:
    """
    Encrypts and authenticates values for one purpose (AES-SIV, RFC 5297).

    The same value becomes the same sealed bytes, so that a sealed text can be compared and cached; add a random field
    where that must not be. `context` is not stored, but must be the same when the value is opened.
    """

    def __init__(self, token: Secret, purpose: str) -> None:
        self._cipher = AESSIV(hmac.digest(token.reveal().encode(), purpose.encode(), "sha512"))

    def seal(self, content: bytes, context: str = "") -> bytes:
        return self._cipher.encrypt(content, [context.encode()] if context else None)

    def open(self, sealed: bytes, context: str = "") -> bytes | None:
        """The content; None if it was changed, or sealed with another token, purpose or context."""
        try:
            return self._cipher.decrypt(sealed, [context.encode()] if context else None)
        except (InvalidTag, ValueError):
            return None

    def seal_text(self, content: bytes, context: str = "") -> str:
        """Sealed, in characters that a URL can hold."""
        return base64.urlsafe_b64encode(self.seal(content, context)).decode().rstrip("=")

    def open_text(self, sealed: str, context: str = "") -> bytes | None:
        try:
            content = base64.b64decode(sealed + "=" * (-len(sealed) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        return self.open(content, context)

    def seal_json(self, value: Any, context: str = "") -> bytes:
        return self.seal(orjson.dumps(value), context)

    def open_json(self, sealed: bytes, context: str = "") -> Any:
        """The value; None for anything that was not sealed like this."""
        content = self.open(sealed, context)
        return None if content is None else orjson.loads(content)


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs texts for one purpose (HMAC-SHA-256)."""

    key: bytes

    @classmethod
    def for_purpose(cls, token: Secret, purpose: str) -> "Signer":
        return cls(hmac.digest(token.reveal().encode(), purpose.encode(), "sha256"))

    def sign(self, text: str) -> str:
        return hmac.new(self.key, text.encode(), hashlib.sha256).hexdigest()


def is_same(offered: str, expected: str) -> bool:
    """Compare secrets in a time that does not depend on where they differ."""
    return hmac.compare_digest(offered.encode(), expected.encode())
