"""Checksums of joined pieces against those of the whole."""

import random
import zlib

import pytest

from gateway.replay.checksum import crc32_of_both


@pytest.mark.parametrize(("first", "second"), [(0, 0), (7, 0), (0, 7), (160, 160), (1, 3200), (959, 240_000)])
def test_two_checksums_make_one(first, second):
    source = random.Random(first * 31 + second)
    a, b = source.randbytes(first), source.randbytes(second)
    assert crc32_of_both(zlib.crc32(a), zlib.crc32(b), len(b)) == zlib.crc32(a + b)
