"""Which partition of the group topic a group belongs to: Kafka's rule, so that tools may compute it, too [L21]."""

from __future__ import annotations

GROUP_TOPIC = "__millrace.groups"

_HASH_BITS = 0xFFFF_FFFF
_POSITIVE = 0x7FFF_FFFF


def partition_of(group: str, partition_count: int) -> int:
    """Java's String.hashCode, its sign bit off, modulo."""
    units = group.encode("utf-16-be", "surrogatepass")
    hashed = 0
    for at in range(0, len(units), 2):
        hashed = (31 * hashed + (units[at] << 8 | units[at + 1])) & _HASH_BITS
    return (hashed & _POSITIVE) % partition_count
