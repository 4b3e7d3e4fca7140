"""Variable-length integers as Kafka writes them, with bounds.

In: a buffer, a position, the end that may not be passed. Out: the value and the next position.
Promise: Malformed is the only error; no read passes `end`, no varint is longer than its type allows.
"""

from __future__ import annotations

from millrace.errors import Malformed

Buffer = bytes | bytearray | memoryview

UVARINT_BYTES_MAX = 5
UVARLONG_BYTES_MAX = 10


def read_uvarint(data: Buffer, at: int, end: int) -> tuple[int, int]:
    """An unsigned 32-bit varint."""
    if at < end:
        byte = data[at]
        if byte < 0x80:  # nearly every length and count is this short
            return byte, at + 1
    value, at = _read(data, at, end, UVARINT_BYTES_MAX)
    if value > 0xFFFFFFFF:
        raise Malformed("varint above 32 bits")
    return value, at


def read_varint(data: Buffer, at: int, end: int) -> tuple[int, int]:
    """A signed (zigzag) 32-bit varint."""
    value, at = read_uvarint(data, at, end)
    return (value >> 1) ^ -(value & 1), at


def read_varlong(data: Buffer, at: int, end: int) -> tuple[int, int]:
    """A signed (zigzag) 64-bit varint."""
    value, at = _read(data, at, end, UVARLONG_BYTES_MAX)
    if value > 0xFFFFFFFFFFFFFFFF:
        raise Malformed("varint above 64 bits")
    return (value >> 1) ^ -(value & 1), at


def _read(data: Buffer, at: int, end: int, bytes_max: int) -> tuple[int, int]:
    value = shift = 0
    for position in range(at, min(at + bytes_max, end)):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
        shift += 7
    raise Malformed("varint does not end")


_SHORT = [bytes((value,)) for value in range(0x80)]


def uvarint(value: int) -> bytes:
    if 0 <= value < 0x80:
        return _SHORT[value]
    if value < 0:
        raise Malformed("negative unsigned varint")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint(value: int) -> bytes:
    """Signed (zigzag), 32 or 64 bits alike."""
    return uvarint(value << 1 if value >= 0 else (-value << 1) - 1)
