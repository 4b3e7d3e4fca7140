"""The table-driven codec: bytes <-> dicts, requests and responses, both directions, old and flexible versions.

In: a body and its version, or a dict. Out: a dict with every field of that version (absent ones at their default), or
bytes. Promise: Malformed is the only error of a decode, whatever the bytes; arrays are bounded by the bytes left and
by one budget per message, so time and memory are bounded by the size of the frame. A dict may hold fields its version
does not know: they are left out, so one answer serves all versions.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

from millrace.errors import Malformed
from millrace.limits import REQUEST_ENTRIES_MAX
from millrace.wire.kafka.schemas import TABLES
from millrace.wire.primitives import Buffer, read_uvarint, uvarint

Fields = dict[str, Any]
NO_UUID = UUID(int=0)

_I8, _I16, _I32, _I64 = (struct.Struct(">" + code) for code in "bhiq")
_SCALARS = {"bool": _I8, "i8": _I8, "i16": _I16, "i32": _I32, "i64": _I64}


class Versions(NamedTuple):
    first: int
    last: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last


class Field(NamedTuple):
    name: str
    kind: str                    # a type, "{}" or "[]"
    item: str                    # the type inside an array, "" for structs
    versions: Versions
    nullable: Versions | None
    tag: int | None
    default: int | None
    children: tuple[Field, ...]


class Api(NamedTuple):
    key: int
    name: str
    versions: Versions
    flexible: int
    request: tuple[Field, ...]
    response: tuple[Field, ...]

    def is_flexible(self, version: int) -> bool:
        return version >= self.flexible


# -- reading the tables --------------------------------------------------------------------------------------------

ALL = Versions(0, 1 << 15)


def _versions(text: str) -> Versions:
    first, dash, last = text.partition("-")
    if text.endswith("+"):
        return Versions(int(text[:-1]), ALL.last)
    return Versions(int(first), int(last) if dash else int(first))


def _field(line: str, children: tuple[Field, ...]) -> Field:
    name, _, rest = line.partition(": ")
    rest, _, default = rest.partition(" = ")
    rest, _, tag = rest.partition(" tag ")
    kind, *words = rest.split()
    nullable = next((_versions(word[1:]) for word in words if word.startswith("?")), None)
    versions = next((_versions(word) for word in words if not word.startswith("?")), ALL)
    item = ""
    if kind.startswith("["):
        kind, item = "[]", kind[1:-1]
    return Field(
        name, kind, item, versions, nullable, int(tag) if tag else None, int(default) if default else None, children
    )


def _fields(lines: list[str], depth: int) -> tuple[Field, ...]:
    found: list[Field] = []
    while lines:
        line = lines[0]
        indent = (len(line) - len(line.lstrip())) // 4
        if indent < depth:
            break
        lines.pop(0)
        found.append(_field(line.strip(), _fields(lines, depth + 1)))
    return tuple(found)


def _api(block: str) -> Api:
    head, *lines = block.strip().splitlines()
    key, name, versions, _, flexible = head.split()
    cut = lines.index("response")
    return Api(
        int(key), name, _versions(versions), int(flexible), _fields(lines[1:cut], 1), _fields(lines[cut + 1 :], 1)
    )


APIS: dict[int, Api] = {
    api.key: api for table in TABLES for api in map(_api, filter(str.strip, table.split("\napi ")))
}
BY_NAME: dict[str, Api] = {api.name: api for api in APIS.values()}


# -- decode --------------------------------------------------------------------------------------------------------


class Reader:
    """A position in one body. Reading past its end raises struct.error or IndexError, which `decode` turns."""

    __slots__ = ("at", "budget", "data", "end")

    def __init__(self, data: Buffer) -> None:
        self.data = memoryview(data)
        self.at = 0
        self.end = len(self.data)
        self.budget = REQUEST_ENTRIES_MAX

    def uvarint(self) -> int:
        value, self.at = read_uvarint(self.data, self.at, self.end)
        return value

    def take(self, size: int) -> memoryview:
        stop = self.at + size
        if size < 0 or stop > self.end:
            raise Malformed(f"{size} bytes wanted, {self.end - self.at} left")
        taken = self.data[self.at : stop]
        self.at = stop
        return taken

    def spend(self, count: int) -> None:
        self.budget -= count
        if count > self.end - self.at or self.budget < 0:
            raise Malformed(f"array of {count} entries, {self.end - self.at} bytes left")

    def skip_tag(self) -> None:
        self.take(self.uvarint())


Read = Callable[[Reader], Any]
Write = Callable[[bytearray, Any], None]


class Compiled(NamedTuple):
    """One struct in one version."""

    read: Read
    write: Write


def decode(api: Api, version: int, data: Buffer, *, response: bool = False, exact: bool = True) -> Fields:
    """One body. `exact`: all of it must be used; clients are forgiven (librdkafka pads the null array of Metadata)."""
    reader = Reader(data)
    try:
        fields: Fields = _compiled(api.key, version, response).read(reader)
    except (struct.error, IndexError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"{api.name} v{version}: {error}") from error
    if exact and reader.at != reader.end:
        raise Malformed(f"{api.name} v{version}: {reader.end - reader.at} bytes behind the message")
    return fields


def encode(api: Api, version: int, fields: Mapping[str, Any], *, response: bool = False) -> bytes:
    out = bytearray()
    _compiled(api.key, version, response).write(out, fields)
    return bytes(out)


class Encoded(bytes):
    """A struct that is encoded already; stands in a dict where the struct would."""

    __slots__ = ()


def encode_part(api: Api, version: int, name: str, value: Mapping[str, Any]) -> Encoded:
    """One element of a response's array of structs: answers assembled from parts kept encoded."""
    out = bytearray()
    field = next(field for field in api.response if field.name == name)
    _struct(field.children, version, api.is_flexible(version)).write(out, value)
    return Encoded(out)


@lru_cache(maxsize=512)
def _compiled(key: int, version: int, response: bool) -> Compiled:
    api = APIS[key]
    if version not in api.versions:
        raise Malformed(f"{api.name} has no version {version} here")
    return _struct(api.response if response else api.request, version, api.is_flexible(version))


@lru_cache(maxsize=2048)
def _struct(fields: tuple[Field, ...], version: int, flexible: bool) -> Compiled:
    here = [field for field in fields if version in field.versions]
    plain = [(f.name, _default(f, version), *_codec(f, version, flexible)) for f in here if f.tag is None]
    tagged = {f.tag: (f.name, _default(f, version), *_codec(f, version, flexible)) for f in here if f.tag is not None}

    def read(reader: Reader) -> Fields:
        found = {name: read_one(reader) for name, _, read_one, _ in plain}
        if flexible:
            for name, default, _, _ in tagged.values():
                found[name] = default() if callable(default) else default
            _read_tags(reader, tagged, found)
        return found

    def write(out: bytearray, value: Any) -> None:
        if type(value) is Encoded:
            out += value
            return
        for name, default, _, write_one in plain:
            item = value.get(name, _ABSENT)
            if item is _ABSENT:
                item = default() if callable(default) else default
            write_one(out, item)
        if flexible:
            _write_tags(out, tagged, value)

    return Compiled(read, write)


_ABSENT = object()


def _default(field: Field, version: int) -> Any:
    if field.nullable and version in field.nullable:
        return None
    if field.kind == "{}":
        return None
    if field.kind == "[]":
        return list
    if field.kind in _SCALARS:
        value = field.default or 0
        return bool(value) if field.kind == "bool" else value
    return {"string": "", "uuid": NO_UUID, "bytes": b"", "records": b""}[field.kind]


def _read_tags(reader: Reader, tagged: Mapping[int, Any], found: Fields) -> None:
    count = reader.uvarint()
    reader.spend(count)
    for _ in range(count):
        known = tagged.get(reader.uvarint())
        if known is None:
            reader.skip_tag()
            continue
        size = reader.uvarint()
        stop = reader.at + size
        if stop > reader.end:
            raise Malformed("tag behind the end")
        found[known[0]] = known[2](reader)
        if reader.at != stop:
            raise Malformed("tag of another size than it says")


def _write_tags(out: bytearray, tagged: Mapping[int, Any], value: Mapping[str, Any]) -> None:
    present: list[tuple[int, bytes]] = []
    for tag, (name, default, _, write_one) in tagged.items():
        item = value.get(name)
        if item is None or item == (default() if callable(default) else default):
            continue
        body = bytearray()
        write_one(body, item)
        present.append((tag, bytes(body)))
    out += uvarint(len(present))
    for tag, content in sorted(present):
        out += uvarint(tag) + uvarint(len(content)) + content


# -- one field -----------------------------------------------------------------------------------------------------


def _codec(field: Field, version: int, flexible: bool) -> tuple[Read, Write]:
    nullable = field.nullable is not None and version in field.nullable
    if field.kind == "{}":
        return _struct(field.children, version, flexible)
    if field.kind == "[]":
        read, write = _struct(field.children, version, flexible)
        if field.item:
            read, write = _scalar(field.item, flexible, nullable=False)
        return _array(read, write, flexible=flexible, nullable=nullable)
    return _scalar(field.kind, flexible, nullable=nullable)


def _scalar(kind: str, flexible: bool, *, nullable: bool) -> tuple[Read, Write]:
    if kind in _SCALARS:
        return _number(_SCALARS[kind], as_bool=kind == "bool")
    if kind == "uuid":
        return _read_uuid, _write_uuid
    if kind == "string":
        return _blob(_to_str, str.encode, flexible=flexible, nullable=nullable, short=True)
    if kind in ("bytes", "records"):
        return _blob(_as_is, _as_is, flexible=flexible, nullable=nullable, short=False)
    raise ValueError(kind)


def _number(form: struct.Struct, *, as_bool: bool) -> tuple[Read, Write]:
    size = form.size
    unpack, pack = form.unpack_from, form.pack

    def read(reader: Reader) -> Any:
        at = reader.at
        (value,) = unpack(reader.data, at)
        reader.at = at + size
        return value != 0 if as_bool else value

    def write(out: bytearray, value: Any) -> None:
        out += pack(value)

    return read, write


def _read_uuid(reader: Reader) -> UUID:
    return UUID(bytes=bytes(reader.take(16)))


def _write_uuid(out: bytearray, value: UUID | None) -> None:
    out += (value or NO_UUID).bytes


def _to_str(taken: memoryview) -> str:
    return str(taken, "utf-8")


def _as_is(taken: Any) -> Any:
    return taken


def _sizes(*, flexible: bool, short: bool) -> tuple[Callable[[Reader], int], Callable[[int], bytes]]:
    """How a length is read and written; -1 is null."""
    if flexible:
        return lambda reader: reader.uvarint() - 1, lambda size: uvarint(size + 1)
    form = _I16 if short else _I32
    return _number(form, as_bool=False)[0], form.pack


def _blob(
    inward: Callable[[memoryview], Any], outward: Callable[[Any], Any], *, flexible: bool, nullable: bool, short: bool
) -> tuple[Read, Write]:
    read_size, pack_size = _sizes(flexible=flexible, short=short)

    def read(reader: Reader) -> Any:
        size = read_size(reader)
        if size == -1 and nullable:
            return None
        return inward(reader.take(size))

    def write(out: bytearray, value: Any) -> None:
        if value is None:
            if not nullable:
                raise Malformed("null where a value must be")
            out += pack_size(-1)
            return
        content = outward(value)
        out += pack_size(len(content))
        out += content

    return read, write


def _array(read_item: Read, write_item: Write, *, flexible: bool, nullable: bool) -> tuple[Read, Write]:
    read_size, pack_size = _sizes(flexible=flexible, short=False)

    def read(reader: Reader) -> Any:
        count = read_size(reader)
        if count < 0:
            if count == -1 and nullable:
                return None
            raise Malformed(f"array of {count} entries")
        reader.spend(count)
        return [read_item(reader) for _ in range(count)]

    def write(out: bytearray, value: Any) -> None:
        if value is None:
            if not nullable:
                raise Malformed("null where an array must be")
            out += pack_size(-1)
            return
        out += pack_size(len(value))
        for item in value:
            write_item(out, item)

    return read, write
