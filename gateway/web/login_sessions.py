"""
Who may see the dashboard. Values and signatures only: no request, no page.

A visit is a signed value with an end, made of a key that is derived from the admin token. It holds no secret, every
node that has the same token accepts it, and another token makes all of them worthless.
"""

import base64
import binascii
import hashlib
import hmac
import ipaddress
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from gateway.settings import Secret

VISIT_SECONDS: Final = 7 * 86_400
MOST_TRIES: Final = 5
"""Wrong tokens from one address in TRY_SECONDS; after that even the right one is refused for a while."""
TRY_SECONDS: Final = 60.0
_MOST_ADDRESSES: Final = 1000


@dataclass(frozen=True)
class LoginSession:
    """Somebody who has shown the token. `form_token` goes into every form, and comes back with it."""

    value: str
    form_token: str


class SessionCodec:
    """Makes visits and knows them again. Times are seconds since 1970, and given."""

    def __init__(self, token: Secret) -> None:
        self._token = token.reveal().encode()
        self._key = hmac.digest(self._token, b"dashboard visits", "sha256")

    def admits(self, offered: str) -> bool:
        """Whether this is the admin token; takes as long for a wrong one."""
        return hmac.compare_digest(offered.encode(), self._token)

    def begin(self, now: float) -> LoginSession:
        unsigned = f"{int(now) + VISIT_SECONDS:x}.{secrets.token_urlsafe(16)}"
        return self._visit(f"{unsigned}.{self._signature('visit', unsigned)}")

    def recognise(self, value: str, now: float) -> LoginSession | None:
        """The visit that this value stands for; None for a forged or an old one."""
        unsigned, _, signature = value.rpartition(".")
        if not _same(signature, self._signature("visit", unsigned)):
            return None
        return self._visit(value) if int(unsigned.partition(".")[0], 16) > now else None

    @staticmethod
    def is_from_form(visit: LoginSession, form_token: str) -> bool:
        """Whether a form was made for this visit, and not by another site."""
        return _same(form_token, visit.form_token)

    def _visit(self, value: str) -> LoginSession:
        return LoginSession(value, self._signature("form", value))

    def _signature(self, what: str, text: str) -> str:
        return hmac.new(self._key, f"{what}:{text}".encode(), hashlib.sha256).hexdigest()


class SealedParam:
    """
    Puts a number, or what somebody looks for, into an address so that nobody can read it there.

    Addresses stand in histories and in proxies' logs. The same text always becomes the same word.
    """

    def __init__(self, token: Secret) -> None:
        self._cipher = AESSIV(hmac.digest(token.reveal().encode(), b"dashboard addresses", "sha512"))

    def seal(self, text: str) -> str:
        return base64.urlsafe_b64encode(self._cipher.encrypt(text.encode(), None)).decode().rstrip("=")

    def unseal(self, word: str) -> str | None:
        """None for a word that is not ours."""
        try:
            sealed = base64.b64decode(word + "=" * (-len(word) % 4), altchars=b"-_", validate=True)
            return self._cipher.decrypt(sealed, None).decode()
        except (binascii.Error, ValueError, InvalidTag):
            return None


class LoginThrottle:
    """How often an address may still be wrong. Bounded: the address that was wrong longest ago is forgotten first."""

    def __init__(self) -> None:
        self._wrong: OrderedDict[str, list[float]] = OrderedDict()

    def left(self, address: str, now: float) -> bool:
        return len(self._recent(_network(address), now)) < MOST_TRIES

    def was_wrong(self, address: str, now: float) -> None:
        network = _network(address)
        self._wrong[network] = [*self._recent(network, now), now]
        self._wrong.move_to_end(network)
        if len(self._wrong) > _MOST_ADDRESSES:
            self._wrong.popitem(last=False)

    def _recent(self, network: str, now: float) -> list[float]:
        return [then for then in self._wrong.get(network, ()) if now - then < TRY_SECONDS]


def _network(address: str) -> str:
    """One subscriber has a whole /64 of IPv6 addresses."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network((ip, 64), strict=False)) if ip.version == 6 else str(ip)


def _same(offered: str, expected: str) -> bool:
    return hmac.compare_digest(offered.encode(), expected.encode())
