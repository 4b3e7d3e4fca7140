"""Single values as PostgreSQL prints them -> plain JSON: odd cells and elements of arrays, which are rare or must be
parsed.

In: the text of a value, its type, the style. Out: JSON, the same that whole columns of the type give [S6].
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import NamedTuple

from millrace.sink.kafka.debezium_modes import Modes
from millrace.sink.kafka.json_text import quote
from millrace.wire.pg.types import Form, kind_of


class Dialect(Enum):
    DEBEZIUM = "debezium"    # debezium_values
    PLAIN = "plain"          # times as ISO text; json as it is
    CANAL = "canal"          # every value a string


class Style(NamedTuple):
    """`decimal_numbers`: numeric as JSON numbers, else as strings; not in Debezium's dialect, which has `modes`."""

    dialect: Dialect
    decimal_numbers: bool = False
    modes: Modes = Modes()

    @property
    def bare(self) -> bool:
        """Whether numbers are JSON numbers."""
        return self.dialect is not Dialect.CANAL


JSON_TYPES = frozenset({114, 3802})
NUMERIC, INTERVAL, TIMETZ, BIT = 1700, 1186, 1266, 1560

# Array type -> type of its elements, for the types PostgreSQL brings with it.
ELEMENTS = {
    1000: 16, 1001: 17, 1002: 18, 1003: 19, 1016: 20, 1005: 21, 1007: 23, 1009: 25, 1028: 26, 1010: 27, 1011: 28,
    199: 114, 143: 142, 271: 5069, 1021: 700, 1022: 701, 791: 790, 1040: 829, 775: 774, 1041: 869, 651: 650,
    1014: 1042, 1015: 1043, 1182: 1082, 1183: 1083, 1115: 1114, 1185: 1184, 1187: 1186, 1270: 1266, 1561: 1560,
    1563: 1562, 1231: 1700, 2951: 2950, 3221: 3220, 3643: 3614, 3645: 3615, 3807: 3802, 3905: 3904, 3907: 3906,
    3909: 3908, 3911: 3910, 3913: 3912, 3927: 3926, 4073: 4072,
}

NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?\Z")
STAMP = re.compile(r"(\d+)-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(\d+))?)?([+-]\d\d(?::\d\d)*)?( BC)?\Z")
TIME = re.compile(r"(\d\d):(\d\d):(\d\d)(?:\.(\d+))?\Z")
_ZONE_HOURS = re.compile(r"([+-]\d\d)\Z")
INTERVAL_TEXT = re.compile(
    r"(?:([+-]?\d+) years? ?)?(?:([+-]?\d+) mons? ?)?(?:([+-]?\d+) days? ?)?"
    r"(?:([+-])?(\d+):(\d\d):(\d\d(?:\.\d+)?))?\Z")


def json_of(text: str, type_oid: int, typmod: int, style: Style) -> bytes:
    """One value. What cannot be read as its type stays the text it is."""
    if style.dialect is Dialect.CANAL:
        return quote(text)
    if type_oid in ELEMENTS:
        return array_json(text, type_oid, style)
    reader = _READERS.get(kind_of(type_oid, typmod).form)
    if reader is not None:
        return reader(text, typmod, style)
    special = _SPECIAL.get(type_oid)
    return quote(text) if special is None else special(text, typmod, style)


def _decimal(text: str, typmod: int, style: Style) -> bytes:
    return text.encode() if style.decimal_numbers and NUMBER.match(text) else quote(text)


def _bool(text: str, typmod: int, style: Style) -> bytes:
    return {"t": b"true", "f": b"false"}.get(text) or quote(text)


def _integer(text: str, typmod: int, style: Style) -> bytes:
    return text.encode() if NUMBER.match(text) else quote(text)


def _float(text: str, typmod: int, style: Style) -> bytes:
    return float_json(text)


def float_json(text: str) -> bytes:
    """With a point or an exponent, so that readers see a float; NaN and infinities as strings."""
    if not NUMBER.match(text):
        return quote(text)
    return text.encode() if "." in text or "e" in text else text.encode() + b".0"


def _bytea(text: str, typmod: int, style: Style) -> bytes:
    return b'"' + base64.b64encode(bytes.fromhex(text.removeprefix("\\x"))) + b'"'


def _date(text: str, typmod: int, style: Style) -> bytes:
    found = STAMP.match(text)
    return quote(text if found is None else iso_day(found))


def _time(text: str, typmod: int, style: Style) -> bytes:
    return quote(text)


def _timestamp(text: str, typmod: int, style: Style, *, zoned: bool) -> bytes:
    found = STAMP.match(text)
    return quote(text if found is None else _iso(found, zoned=zoned))


def _json(text: str, typmod: int, style: Style) -> bytes:
    return text.encode()


def _interval(text: str, typmod: int, style: Style) -> bytes:
    return interval_json(text)


def interval_json(text: str) -> bytes:
    """P1Y2M3DT4H5M6.5S, as Debezium's with interval.handling.mode=string."""
    found = INTERVAL_TEXT.match(text)
    if found is None or not text:
        return quote(text)                                    # infinite ones
    years, months, days, sign, hours, minutes, seconds = found.groups()
    minus = "-" if sign == "-" else ""
    clock = [minus + str(int(part)) if int(part) else "0" for part in (hours or "0", minutes or "0")]
    rest = (seconds or "0").lstrip("0") or "0"
    rest = rest.rstrip("0").rstrip(".") if "." in rest else rest
    rest = "0" + rest if rest.startswith(".") else rest or "0"
    rest = minus + rest if rest != "0" else rest
    return quote(f"P{int(years or 0)}Y{int(months or 0)}M{int(days or 0)}DT{clock[0]}H{clock[1]}M{rest}S")


def _timetz(text: str, typmod: int, style: Style) -> bytes:
    return quote(_ZONE_HOURS.sub(r"\1:00", text))


def _bit(text: str, typmod: int, style: Style) -> bytes:
    return {"1": b"true", "0": b"false"}.get(text, quote(text)) if typmod == 1 else quote(text)


Reader = Callable[[str, int, Style], bytes]
_READERS: dict[Form, Reader] = {
    Form.BOOL: _bool, Form.INT16: _integer, Form.INT32: _integer, Form.INT64: _integer, Form.UINT32: _integer,
    Form.FLOAT32: _float, Form.FLOAT64: _float, Form.DECIMAL: _decimal, Form.DATE: _date, Form.TIME: _time,
    Form.TIMESTAMP: partial(_timestamp, zoned=False), Form.TIMESTAMPTZ: partial(_timestamp, zoned=True),
    Form.BYTES: _bytea,
}
_SPECIAL: dict[int, Reader] = {
    114: _json, 3802: _json, NUMERIC: _decimal, INTERVAL: _interval, TIMETZ: _timetz, BIT: _bit,
}


def days_of(year: int, month: int, day: int) -> int:
    """Since 1970-01-01 in the Gregorian calendar without end, years counted through 0 (1 BC)."""
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def day_of(found: re.Match[str]) -> tuple[int, int, int]:
    year = int(found[1])
    return (1 - year if found[9] else year), int(found[2]), int(found[3])


def clock_us(hour: str | None, minute: str | None, second: str | None, fraction: str | None) -> int:
    whole = (int(hour or 0) * 60 + int(minute or 0)) * 60 + int(second or 0)
    return whole * 1_000_000 + int((fraction or "").ljust(6, "0")[:6] or 0)


def iso_day(found: re.Match[str]) -> str:
    """Years as ISO 8601 has them: -0043 for 44 BC, +10000."""
    year, month, day = day_of(found)
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04}-{month:02}-{day:02}"


def _iso(found: re.Match[str], *, zoned: bool) -> str:
    fraction = (found[7] or "").rstrip("0")
    clock = f"{found[4]}:{found[5]}:{found[6]}" + (f".{fraction}" if fraction else "")
    return f"{iso_day(found)}T{clock}" + ("Z" if zoned else "")


def array_json(text: str, type_oid: int, style: Style) -> bytes:
    """Nested as the dimensions are. Bounds that do not start at 1 have no place in JSON: then the text stays whole."""
    if not text.startswith("{"):
        return quote(text)
    element = ELEMENTS[type_oid]
    out = bytearray()
    for token in _TOKENS.finditer(text):
        quoted_text, bare = token.group(1, 2)
        if quoted_text is not None:
            out += json_of(re.sub(r"\\(.)", r"\1", quoted_text, flags=re.DOTALL), element, -1, style)
        elif bare is not None:
            out += b"null" if bare == "NULL" else json_of(bare, element, -1, style)
        else:
            out += {"{": b"[", "}": b"]", ",": b","}[token[0]]
    return bytes(out)


_TOKENS = re.compile(r'"((?:[^"\\]|\\.)*)"|([^{},"]+)|[{},]', re.DOTALL)
