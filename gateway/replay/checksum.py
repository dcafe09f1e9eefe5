"""The CRC-32 of two pieces of data joined, from the checksum of each; the standard library only knows whole pieces."""

import functools
from typing import Final

_POLYNOMIAL: Final = 0xEDB88320

Matrix = tuple[int, ...]
"""A linear map of 32 bits over GF(2): the images of bit 0, bit 1, …"""


def crc32_of_both(first: int, second: int, second_bytes: int) -> int:
    """zlib.crc32(a + b) from zlib.crc32(a), zlib.crc32(b) and len(b)."""
    # What b's length does to a's checksum is what so many zero bytes would do.
    for power in range(second_bytes.bit_length()):
        if second_bytes >> power & 1:
            first = _applied(_zero_bytes(power), first)
    return first ^ second


@functools.cache
def _zero_bytes(power: int) -> Matrix:
    """Append two to this power zero bytes."""
    if power > 0:
        return _squared(_zero_bytes(power - 1))
    one_bit = (_POLYNOMIAL, *(1 << bit for bit in range(31)))
    return _squared(_squared(_squared(one_bit)))


def _squared(matrix: Matrix) -> Matrix:
    return tuple(_applied(matrix, column) for column in matrix)


def _applied(matrix: Matrix, vector: int) -> int:
    result = 0
    for column in matrix:
        if vector & 1:
            result ^= column
        vector >>= 1
    return result
