"""Single values as PostgreSQL prints them -> the JSON that Debezium's connector writes for them.

In: the text of a value, its shape, the modes. Out: JSON; None is null. The same that whole columns give.
What no value of Debezium's type can say is null (NaN in a precise decimal) or the nearest that fits 64 bits.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from datetime import timedelta
from math import isfinite, isnan
from struct import pack

from millrace.sink.kafka.debezium_modes import Modes
from millrace.sink.kafka.debezium_shapes import Shape
from millrace.sink.kafka.json_scalars import (
    INTERVAL_TEXT,
    NUMBER,
    STAMP,
    TIME,
    clock_us,
    day_of,
    days_of,
    float_json,
    interval_json,
    iso_day,
)
from millrace.sink.kafka.json_text import quote

UNAVAILABLE = "__debezium_unavailable_value"

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
# Debezium's numbers for infinite timestamps, in microseconds.
INFINITY_US = {"infinity": 9_223_372_036_825_200_000, "-infinity": -9_223_372_036_832_400_000}
INFINITY_DAYS = {"infinity": INT32_MAX, "-infinity": INT32_MIN}
_MONTH_US = 2_629_800_000_000            # 30.4375 days, as Debezium counts them
_DAY_US = 86_400_000_000
_DIGITS_AT_ONCE = 4_000
_NOT_FINITE = {"NaN": "NAN", "Infinity": "POSITIVE_INFINITY", "-Infinity": "NEGATIVE_INFINITY"}

_TIMETZ = re.compile(r"(\d\d):(\d\d):(\d\d)(?:\.(\d+))?([+-])(\d\d)(?::(\d\d))?(?::(\d\d))?\Z")
_HSTORE = re.compile(r'"((?:[^"\\]|\\.)*)"=>(?:(NULL)|"((?:[^"\\]|\\.)*)")(?:, )?', re.DOTALL)
_TOKENS = re.compile(r'"((?:[^"\\]|\\.)*)"|([^{},"]+)|[{},]', re.DOTALL)
_BOUNDS = re.compile(r"(?:\[[^\]]*\])+=")
_UNESCAPED = re.compile(r"\\(.)", re.DOTALL)
_NOT_DIGITS = re.compile(r"[^0-9]")
_CENTS = re.compile(r"[^0-9]([0-9]{2})\D*\Z")

Read = Callable[[str, Shape, Modes], bytes | None]


def value_json(text: str, shape: Shape, modes: Modes) -> bytes | None:
    return _READERS[shape.what](text, shape, modes)


def _string(text: str, shape: Shape, modes: Modes) -> bytes:
    return quote(text)


def _bool(text: str, shape: Shape, modes: Modes) -> bytes:
    return b"true" if text in ("t", "1", "true") else b"false"


def _integer(text: str, shape: Shape, modes: Modes) -> bytes:
    return text.encode()


def _double(text: str, shape: Shape, modes: Modes) -> bytes:
    return float_json(text)


# -- decimals --------------------------------------------------------------------------------------------------------
def octets_of(unscaled: int) -> bytes:
    """Two's complement, the shortest, as Java's BigInteger."""
    return unscaled.to_bytes((unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1, "big", signed=True)


def _base64(octets: bytes) -> bytes:
    return b'"' + base64.b64encode(octets) + b'"'


def _parts(text: str) -> tuple[int, int]:
    """Unscaled value and scale of what PostgreSQL prints: it never has an exponent."""
    whole, _, fraction = text.partition(".")
    return _whole(whole + fraction), len(fraction)


def _whole(text: str) -> int:
    """Of any length: PostgreSQL's numeric has up to 147,455 digits, int() takes 4,300 at once."""
    if len(text) <= _DIGITS_AT_ONCE:
        return int(text)
    sign, digits, value = (-1, text[1:], 0) if text[0] == "-" else (1, text, 0)
    for at in range(0, len(digits), _DIGITS_AT_ONCE):
        part = digits[at:at + _DIGITS_AT_ONCE]
        value = value * 10 ** len(part) + int(part)
    return sign * value


def _decimal(text: str, shape: Shape, modes: Modes) -> bytes | None:
    if modes.decimal != "precise":
        return _inexact(text, modes)
    if not NUMBER.match(text):
        return None
    unscaled, scale = _parts(text)
    moved = 10 ** abs(shape.scale - scale)
    return _base64(octets_of(unscaled * moved if shape.scale >= scale else unscaled // moved))


def _numeric(text: str, shape: Shape, modes: Modes) -> bytes | None:
    """Without a scale of its own: as many digits as it needs."""
    if modes.decimal != "precise":
        return _inexact(text, modes)
    if not NUMBER.match(text):
        return None
    if "." in text:
        text = text.rstrip("0").removesuffix(".")
    unscaled, scale = _parts(text)
    return b'{"scale":%d,"value":%s}' % (scale, _base64(octets_of(unscaled)))


def _inexact(text: str, modes: Modes) -> bytes | None:
    is_number = NUMBER.match(text) is not None
    if modes.decimal == "double":
        value = float(text)
        return float_json(repr(value)) if isfinite(value) else quote(_spelt(value))
    if modes.decimal == "string":
        return quote(text if is_number else _NOT_FINITE.get(text, text))
    return text.encode() if is_number else quote(text)


def _spelt(value: float) -> str:
    """Of one that is not finite; digits may be too many for a float."""
    return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _money(text: str, shape: Shape, modes: Modes) -> bytes | None:
    """As lc_monetary prints it: the last two digits are a fraction if nothing but a mark stands before them."""
    digits = _NOT_DIGITS.sub("", text)
    if not digits:
        return None
    cents = int(digits) * (1 if _CENTS.search(text) else 100) * (-1 if "-" in text or "(" in text else 1)
    if modes.decimal == "precise":
        return _base64(octets_of(cents))
    spelt = f"{'-' if cents < 0 else ''}{abs(cents) // 100}.{abs(cents) % 100:02}"
    return _inexact(spelt, modes)


# -- times -----------------------------------------------------------------------------------------------------------
def _date(text: str, shape: Shape, modes: Modes) -> bytes | None:
    found = STAMP.match(text)
    if found is None:
        return b"%d" % INFINITY_DAYS[text] if text in INFINITY_DAYS else None
    return b"%d" % days_of(*day_of(found))


def _time(text: str, shape: Shape, modes: Modes) -> bytes | None:
    found = TIME.match(text)
    return None if found is None else b"%d" % (clock_us(*found.groups()) // modes.unit_us("time", shape.digits))


def _timestamp(text: str, shape: Shape, modes: Modes) -> bytes | None:
    unit, found = modes.unit_us("timestamp", shape.digits), STAMP.match(text)
    if text in INFINITY_US:
        us = INFINITY_US[text]
        return b"%d" % (abs(us) // unit * (1 if us > 0 else -1))
    if found is None:
        return None
    us = days_of(*day_of(found)) * _DAY_US + clock_us(*found.group(4, 5, 6, 7))
    return b"%d" % min(max(us // unit, INT64_MIN), INT64_MAX)


def _timestamptz(text: str, shape: Shape, modes: Modes) -> bytes | None:
    found = STAMP.match(text)
    if found is None:
        return quote(text)                                    # infinite
    fraction = (found[7] or "").ljust(6, "0")[:shape.digits]
    return quote(f"{iso_day(found)}T{found[4]}:{found[5]}:{found[6]}{'.' if fraction else ''}{fraction}Z")


def _timetz(text: str, shape: Shape, modes: Modes) -> bytes | None:
    """In UTC."""
    found = _TIMETZ.match(text)
    if found is None:
        return quote(text)
    sign, hours, minutes, seconds = found.group(5, 6, 7, 8)
    offset = timedelta(hours=int(hours), minutes=int(minutes or 0), seconds=int(seconds or 0)) // timedelta(seconds=1)
    us = (clock_us(*found.group(1, 2, 3, 4)) - (1 if sign == "+" else -1) * offset * 1_000_000) % _DAY_US
    whole, fraction = divmod(us, 1_000_000)
    spelt = f".{fraction:06}".rstrip("0") if fraction else ""
    return quote(f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}{spelt}Z")


def _interval(text: str, shape: Shape, modes: Modes) -> bytes | None:
    if modes.interval == "string":
        return interval_json(text)
    found = INTERVAL_TEXT.match(text)
    if found is None:
        return b"%d" % (INT64_MIN if text.startswith("-") else INT64_MAX)      # infinite, from 17 on
    years, months, days, sign, hours, minutes, seconds = found.groups()
    whole, _, fraction = (seconds or "0").partition(".")
    clock = clock_us(hours, minutes, whole, fraction) * (-1 if sign == "-" else 1)
    us = (int(years or 0) * 12 + int(months or 0)) * _MONTH_US + int(days or 0) * _DAY_US + clock
    return b"%d" % min(max(us, INT64_MIN), INT64_MAX)


# -- bytes, bits, shapes ---------------------------------------------------------------------------------------------
def binary_json(octets: bytes, modes: Modes) -> bytes:
    if modes.binary == "hex":
        return b'"' + octets.hex().encode() + b'"'
    if modes.binary == "base64-url-safe":
        return b'"' + base64.urlsafe_b64encode(octets) + b'"'
    return _base64(octets)


def _bytes(text: str, shape: Shape, modes: Modes) -> bytes:
    return binary_json(bytes.fromhex(text.removeprefix("\\x")), modes)


def _bits(text: str, shape: Shape, modes: Modes) -> bytes:
    """Little-endian without zeros at the end, as Java's BitSet."""
    number = int(text or "0", 2)
    return _base64(number.to_bytes((number.bit_length() + 7) // 8, "little"))


def _point(text: str, shape: Shape, modes: Modes) -> bytes:
    x, y = text.strip("()").split(",")
    wkb = pack("<BIdd", 1, 1, float(x), float(y))
    return b'{"x":%s,"y":%s,"wkb":%s,"srid":null}' % (float_json(x), float_json(y), _base64(wkb))


def _hstore(text: str, shape: Shape, modes: Modes) -> bytes:
    found = {_UNESCAPED.sub(r"\1", one[1]): None if one[2] else _UNESCAPED.sub(r"\1", one[3])
             for one in _HSTORE.finditer(text)}
    spelt = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    return spelt.encode() if modes.hstore == "map" else quote(spelt)


def _array(text: str, shape: Shape, modes: Modes) -> bytes | None:
    """Nested as the dimensions are; bounds have no place in JSON."""
    element, out = shape.element or Shape("string"), bytearray()
    for token in _TOKENS.finditer(_BOUNDS.sub("", text, count=1)):
        quoted_text, bare = token.group(1, 2)
        if quoted_text is not None:
            out += value_json(_UNESCAPED.sub(r"\1", quoted_text), element, modes) or b"null"
        elif bare is not None:
            out += b"null" if bare == "NULL" else value_json(bare, element, modes) or b"null"
        else:
            out += {"{": b"[", "}": b"]", ",": b","}[token[0]]
    return bytes(out)


_READERS: dict[str, Read] = {
    **dict.fromkeys(("string", "json", "xml", "uuid", "ltree", "tsvector", "enum"), _string),
    "bool": _bool, "flag": _bool, "int16": _integer, "int32": _integer, "int64": _integer, "float": _double,
    "double": _double, "decimal": _decimal, "numeric": _numeric, "money": _money, "date": _date, "time": _time,
    "timestamp": _timestamp, "timestamptz": _timestamptz, "timetz": _timetz, "interval": _interval, "bytes": _bytes,
    "bits": _bits, "point": _point, "hstore": _hstore, "array": _array,
}


# -- what stands for a value that was not sent -----------------------------------------------------------------------
def unavailable(shape: Shape, modes: Modes) -> bytes:
    """The source did not send it again, since it did not change: what Debezium writes where its type lets it."""
    marker = UNAVAILABLE.encode()
    if shape.what == "bytes":
        return quote(UNAVAILABLE) if modes.binary == "hex" else binary_json(marker, modes)
    if shape.what in ("decimal", "numeric", "bits") and (shape.what == "bits" or modes.decimal == "precise"):
        return b'{"scale":0,"value":%s}' % _base64(marker) if shape.what == "numeric" else _base64(marker)
    if shape.what == "hstore":
        return _hstore(f'"{UNAVAILABLE}"=>"{UNAVAILABLE}"', shape, modes)
    if shape.what == "array":
        return _unavailable_array(shape.element or Shape("string"), modes)
    return quote(UNAVAILABLE)


def _unavailable_array(element: Shape, modes: Modes) -> bytes:
    if element.what in ("int16", "int32", "int64", "float", "double", "date", "time", "timestamp", "interval"):
        return json.dumps(list(UNAVAILABLE.encode()), separators=(",", ":")).encode()
    if element.what in ("bool", "flag", "point"):
        return b"null"
    return b"[" + unavailable(element, modes) + b"]"
