"""
What a signed webhook says about the caller besides the number: the STIR/SHAKEN attestation and the SIP headers.

The attestation is read from the carrier's own fields only. A SIP header may claim one too, but the calling party can
write anything there.
"""

import enum
import re
from collections.abc import Mapping
from typing import Any, Final

_VERSTAT: Final = re.compile(r"TN-Validation-(?P<verdict>Passed|Failed)(?:-(?P<level>[ABC]))?(?P<suffix>-.*)?", re.I)
_TWILIO_HEADER: Final = "SipHeader_"  # the prefix of X- headers in webhooks of a SIP domain


class Attestation(enum.StrEnum):
    """How far the originating carrier vouches for the caller's number (STIR/SHAKEN)."""

    FULL = "full"
    """Level A: the originating carrier knows its customer and the customer's right to the number."""
    PARTIAL = "partial"
    """Level B: it knows its customer, but not the right to the number. Or level A that was relayed."""
    GATEWAY = "gateway"
    """Level C: it only passed the call into the network."""
    FAILED = "failed"
    """The call claimed a level, but its signature was invalid."""
    NONE = "none"
    """No attestation. Normal for international and SIP calls."""


_LEVELS: Final = {"A": Attestation.FULL, "B": Attestation.PARTIAL, "C": Attestation.GATEWAY}


def twilio_attestation(form: Mapping[str, str]) -> Attestation:
    """From `StirVerstat` in Twilio's voice webhook (Twilio docs, "Trusted Calling with SHAKEN/STIR")."""
    match = _VERSTAT.fullmatch(form.get("StirVerstat", "").strip())
    if match is None:
        return Attestation.NONE
    if match["verdict"].lower() == "failed":
        return Attestation.FAILED
    attestation = _level(match["level"])
    # The suffixes "-Diverted" and "-Passthrough" mark a forwarded call and a verdict that Twilio did not verify itself.
    return Attestation.PARTIAL if attestation is Attestation.FULL and match["suffix"] else attestation


def telnyx_attestation(payload: Mapping[str, Any]) -> Attestation:
    """From the payload of Telnyx's `call.initiated`. A level that Telnyx did not validate counts as none."""
    attestation = _level(payload.get("shaken_stir_attestation"))
    if attestation is Attestation.NONE:
        return attestation  # Telnyx reports unsigned calls as not validated, too
    match payload.get("shaken_stir_validated"):
        case True:
            return attestation
        case False:
            return Attestation.FAILED
        case _:
            return Attestation.NONE


def twilio_sip_headers(form: Mapping[str, str]) -> dict[str, str]:
    """The custom headers of a SIP call, names in lower case."""
    return {
        name.removeprefix(_TWILIO_HEADER).lower(): value
        for name, value in form.items()
        if name.startswith(_TWILIO_HEADER)
    }


def telnyx_sip_headers(payload: Mapping[str, Any]) -> dict[str, str]:
    """The same from the payload of `call.initiated`."""
    lists = (payload.get(field) for field in ("custom_headers", "sip_headers"))
    headers = [header for listed in lists if isinstance(listed, list) for header in listed if isinstance(header, dict)]
    pairs = ((header.get("name"), header.get("value")) for header in headers)
    return {name.lower(): value for name, value in pairs if isinstance(name, str) and isinstance(value, str)}


def _level(letter: object) -> Attestation:
    return _LEVELS.get(letter.upper(), Attestation.NONE) if isinstance(letter, str) else Attestation.NONE
