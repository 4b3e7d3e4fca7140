"""Random values for the Kafka tables, and the same messages as kafka-python knows them."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from kafka.protocol.api_message import ApiMessage

from millrace.wire.kafka.codec import APIS, Api, Field

for room in ("admin", "consumer", "metadata", "producer"):
    import_module(f"kafka.protocol.{room}")

RANGES = {"i8": 7, "i16": 15, "i32": 31, "i64": 63}


@cache
def foreign(api: Api, *, response: bool) -> Any:
    """kafka-python's class of one message."""
    wanted = api.name + ("Response" if response else "Request")
    queue = [ApiMessage]
    while queue:
        kind = queue.pop()
        if kind.__name__ == wanted:
            return kind
        queue.extend(kind.__subclasses__())
    raise LookupError(wanted)


def _scalar(kind: str) -> st.SearchStrategy[Any]:
    if kind in RANGES:
        return st.integers(-(2 ** RANGES[kind]), 2 ** RANGES[kind] - 1)
    return {
        "bool": st.booleans(),
        "uuid": st.binary(min_size=16, max_size=16).map(lambda raw: UUID(bytes=raw)),
        "string": st.text(max_size=6),
        "bytes": st.binary(max_size=9),
        "records": st.binary(max_size=200),
    }[kind]


def _value(field: Field, version: int) -> st.SearchStrategy[Any]:
    if field.kind == "{}":
        found = struct_of(field.children, version)
    elif field.kind == "[]":
        item = _scalar(field.item) if field.item else struct_of(field.children, version)
        found = st.lists(item, max_size=3)
    else:
        found = _scalar(field.kind)
    if field.nullable and version in field.nullable:
        return st.none() | found
    return found


@cache
def struct_of(fields: tuple[Field, ...], version: int) -> st.SearchStrategy[dict[str, Any]]:
    here = [field for field in fields if version in field.versions]
    plain = {f.name: _value(f, version) for f in here if f.tag is None}
    tagged = {f.name: _value(f, version) for f in here if f.tag is not None}
    return st.fixed_dictionaries(plain, optional=tagged)


def cases(*, private: bool = True) -> list[tuple[str, int, bool]]:
    """(api, version, response) of everything the tables hold."""
    return [
        (api.name, version, response)
        for api in APIS.values()
        for version in range(api.versions.first, api.versions.last + 1)
        for response in (False, True)
        if private or api.key < 1000
    ]
