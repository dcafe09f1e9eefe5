"""Sounds that come with us: mu-law, 8000 Hz, made by scripts/make_sounds and tests/record_calls.py."""

from functools import cache
from importlib import resources


@cache
def bundled_sound(name: str) -> bytes:
    """One of them, read once."""
    return resources.files("gateway").joinpath(f"sounds/{name}.ulaw").read_bytes()
