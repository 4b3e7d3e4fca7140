"""Options of Debezium's PostgreSQL connector that decide how a value is written, with its names and its defaults."""

from __future__ import annotations

from typing import Literal, NamedTuple

DecimalMode = Literal["precise", "double", "string", "number"]
TimeMode = Literal["adaptive", "adaptive_time_microseconds", "connect"]
IntervalMode = Literal["numeric", "string"]
BinaryMode = Literal["bytes", "base64", "base64-url-safe", "hex"]
HstoreMode = Literal["json", "map"]


class Modes(NamedTuple):
    """`number` of decimals is ours: an exact JSON number, which Debezium does not have."""

    decimal: DecimalMode = "precise"
    time: TimeMode = "adaptive"
    interval: IntervalMode = "numeric"
    binary: BinaryMode = "bytes"
    hstore: HstoreMode = "json"

    def unit_us(self, what: str, digits: int) -> int:
        """Times are counted in it: milliseconds or microseconds."""
        if self.time == "connect":
            return 1000
        if self.time == "adaptive_time_microseconds" and what == "time":
            return 1
        return 1000 if digits <= 3 else 1


DEFAULTS = Modes()
