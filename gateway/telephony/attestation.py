"""
What a signed webhook says of the caller beside the number: who vouches for it (STIR/SHAKEN), and the SIP headers.

The verdict is read from the carrier's own fields alone. A SIP header may claim one too, but whoever places the call
can write that.
"""

import enum
import re
from collections.abc import Mapping
from typing import Any, Final

_VERSTAT: Final = re.compile(r"TN-Validation-(?P<verdict>Passed|Failed)(?:-(?P<level>[ABC]))?(?P<suffix>-.*)?", re.I)
_TWILIO_HEADER: Final = "SipHeader_"


class Attestation(enum.StrEnum):
    """How far the network vouches for the caller's number."""

    FULL = "full"
    """Level A: the carrier of origin knows its customer, and that the number is theirs."""
    PARTIAL = "partial"
    """Level B: it knows its customer, but not whose number that is. Or level A, told by somebody in between."""
    GATEWAY = "gateway"
    """Level C: it has only let the call into the network."""
    FAILED = "failed"
    """Somebody claimed a level, and the signature did not hold."""
    NONE = "none"
    """No verdict. Usual for calls from abroad and by SIP: neither good nor bad."""


_LEVELS: Final = {"A": Attestation.FULL, "B": Attestation.PARTIAL, "C": Attestation.GATEWAY}


def twilio_attestation(form: Mapping[str, str]) -> Attestation:
    """The verdict in Twilio's voice webhook, its `StirVerstat`."""
    match = _VERSTAT.fullmatch(form.get("StirVerstat", "").strip())
    if match is None:
        return Attestation.NONE
    if match["verdict"].lower() == "failed":
        return Attestation.FAILED
    attestation = _level(match["level"])
    # "-Diverted" and "-Passthrough": the call was forwarded, or Twilio repeats what it was told.
    return Attestation.PARTIAL if attestation is Attestation.FULL and match["suffix"] else attestation


def telnyx_attestation(payload: Mapping[str, Any]) -> Attestation:
    """The verdict in the payload of Telnyx's `call.initiated`; a level that Telnyx did not check says nothing."""
    attestation = _level(payload.get("shaken_stir_attestation"))
    if attestation is Attestation.NONE:
        return attestation  # a call that nobody signed is not validated either
    match payload.get("shaken_stir_validated"):
        case True:
            return attestation
        case False:
            return Attestation.FAILED
        case _:
            return Attestation.NONE


def twilio_sip_headers(form: Mapping[str, str]) -> dict[str, str]:
    """The custom headers of a call that came by SIP, names in lower case."""
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
