"""Webhook signatures. Without I/O: the time is an argument. An invalid signature raises SignatureRejected."""

import binascii
from base64 import b64decode
from collections.abc import Iterable, Mapping
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from twilio.request_validator import RequestValidator

from gateway.errors import SettingsError, SignatureRejected

TELNYX_TOLERANCE: Final = 300.0
"""Seconds by which a Telnyx timestamp may deviate, as in Telnyx's own library."""
_TIMESTAMP_DIGITS: Final = 12


class _Values(dict[str, list[str]]):
    """Form values in the shape that Twilio's validator expects for repeated names."""

    def getlist(self, name: str) -> list[str]:
        return self[name]


def check_twilio(auth_token: str, url: str, form: Iterable[tuple[str, str]], headers: Mapping[str, str]) -> None:
    """
    Verify X-Twilio-Signature (Twilio docs, "Webhooks security").

    `url` is the public URL as configured at Twilio. `form` must include blank values: Twilio signs them, too.
    """
    # Opt-in signatures with a shared key; without an algorithm the signature is the auth token's as usual.
    if "algorithm=" in headers.get("x-twilio-webhooks-signature-settings", ""):
        raise SignatureRejected("twilio signed with a shared key, which this gateway does not have")
    values = _Values()
    for name, value in form:
        values.setdefault(name, []).append(value)
    signature = headers.get("x-twilio-signature", "")
    try:
        is_valid = RequestValidator(auth_token).validate(url, values, signature)
    except ValueError:  # the URL has an invalid host
        is_valid = False
    if not is_valid:
        raise SignatureRejected("twilio signature is missing or wrong; is PUBLIC_URL the address Twilio calls?")


class TelnyxVerifier:
    """Ed25519 over "timestamp|body" with the account's public key (Telnyx docs, "Webhook signing")."""

    def __init__(self, public_key: str) -> None:
        try:
            self._key = Ed25519PublicKey.from_public_bytes(b64decode(public_key, validate=True))
        except (binascii.Error, ValueError):
            raise SettingsError(
                "TELNYX_PUBLIC_KEY is not a base64 Ed25519 key; copy it from the Telnyx portal, Keys & Credentials"
            ) from None

    def check(self, body: bytes, headers: Mapping[str, str], *, now: float) -> None:
        timestamp = headers.get("telnyx-timestamp", "")
        is_number = timestamp.isdecimal() and len(timestamp) <= _TIMESTAMP_DIGITS
        if not is_number or abs(now - int(timestamp)) > TELNYX_TOLERANCE:
            raise SignatureRejected("telnyx timestamp is missing or too far from our clock")
        try:
            signature = b64decode(headers.get("telnyx-signature-ed25519", ""), validate=True)
            self._key.verify(signature, timestamp.encode() + b"|" + body)
        except (binascii.Error, ValueError, InvalidSignature):
            raise SignatureRejected("telnyx signature is missing or wrong") from None
