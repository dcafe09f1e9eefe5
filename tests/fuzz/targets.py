"""The fuzz targets by name. Each takes any bytes, and raises if a promise of the code is broken."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.codecs import fuzz_telnyx, fuzz_twilio
from tests.fuzz.http import fuzz_port_mux
from tests.fuzz.sockets import fuzz_picows, fuzz_portable
from tests.fuzz.texts import fuzz_redaction, fuzz_spoken_text

SEEDS = Path(__file__).parent.parent / "data" / "fuzz"
"""A folder per target: inputs that reach far, and those of earlier findings."""


class Target(NamedTuple):
    run: Callable[[bytes], None]
    max_bytes: int


TARGETS = {
    "twilio": Target(fuzz_twilio, 250),
    "telnyx": Target(fuzz_telnyx, 250),
    "picows": Target(fuzz_picows, 100),
    "portable": Target(fuzz_portable, 100),
    "port-mux": Target(fuzz_port_mux, 60),
    "redaction": Target(fuzz_redaction, 40),
    "spoken-text": Target(fuzz_spoken_text, 100),
}
