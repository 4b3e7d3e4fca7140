"""The tables say what Kafka says, the codec reads what it wrote, and no bytes raise anything but Malformed."""

from __future__ import annotations

import json
import re
from importlib import resources
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.api_message import ApiMessage

from millrace.errors import Malformed
from millrace.wire.kafka.codec import APIS, BY_NAME, Field, decode, encode, encode_part
from support_kafka_tables import cases, foreign, struct_of

KINDS = {"int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64"}
# Kept out of our tables on purpose: fields of KRaft's own followers.
LEFT_OUT = {("FetchResponse", "SnapshotId")}


def definition(name: str) -> dict[str, Any]:
    """Kafka's own definition, as a client library ships it."""
    text = (resources.files("kafka.protocol.schemas.resources") / f"{name}.json").read_text()
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("//")]
    found: dict[str, Any] = json.loads(re.sub(r"\s//.*", "", "\n".join(lines)))
    return found


def spans(text: str | None, version: int) -> bool:
    if not text or text == "none":
        return False
    first, dash, last = text.partition("-")
    if text.endswith("+"):
        return version >= int(text[:-1])
    return int(first) <= version <= int(last if dash else first)


def theirs(message: str, fields: list[dict[str, Any]], structs: dict[str, Any], version: int) -> list[Any]:
    found = []
    for field in fields:
        if not spans(field["versions"], version) or (message, field["name"]) in LEFT_OUT:
            continue
        kind, array = field["type"].removeprefix("[]"), field["type"].startswith("[]")
        inner = field.get("fields") or structs.get(kind, {}).get("fields")
        tag = field.get("tag") if spans(field.get("taggedVersions"), version) else None
        found.append((
            "[]" if array else "{}" if inner else KINDS.get(kind, kind),
            KINDS.get(kind, kind) if array and not inner else "",
            spans(field.get("nullableVersions"), version),
            tag,
            theirs(message, inner, structs, version) if inner else [],
        ))
    return found


def ours(fields: tuple[Field, ...], version: int) -> list[Any]:
    return [
        (f.kind, f.item, f.nullable is not None and version in f.nullable, f.tag, ours(f.children, version))
        for f in fields
        if version in f.versions
    ]


@pytest.mark.parametrize(("name", "version", "response"), cases(private=False))
def test_L20_our_tables_hold_the_fields_of_kafkas_definitions(name: str, version: int, response: bool) -> None:
    message = name + ("Response" if response else "Request")
    defined = definition(message)
    structs = {struct["name"]: struct for struct in defined.get("commonStructs", [])}
    api = BY_NAME[name]
    assert ours(api.response if response else api.request, version) == theirs(
        message, defined["fields"], structs, version
    )
    assert spans(defined["flexibleVersions"], version) == api.is_flexible(version)
    assert api.key == defined["apiKey"]


messages = st.sampled_from(cases()).flatmap(
    lambda case: st.tuples(
        st.just(case),
        struct_of(BY_NAME[case[0]].response if case[2] else BY_NAME[case[0]].request, case[1]),
    )
)


public = messages.filter(lambda message: BY_NAME[message[0][0]].key < 1000)


@settings(max_examples=300)
@given(messages)
def test_L20_what_is_encoded_is_decoded(message: Any) -> None:
    (name, version, response), wanted = message
    body = encode(BY_NAME[name], version, wanted, response=response)
    found = decode(BY_NAME[name], version, body, response=response)
    assert encode(BY_NAME[name], version, found, response=response) == body
    for key, value in wanted.items():
        if value is not None:
            assert found[key] == value or isinstance(value, list | dict)


@settings(max_examples=300)
@given(public)
def test_L20_another_codec_writes_the_same_bytes(message: Any) -> None:
    (name, version, response), wanted = message
    body = encode(BY_NAME[name], version, wanted, response=response)
    if name == "ApiVersions" and response and wanted["error_code"]:
        return  # a client reads a refusal as version 0, whatever it asked with
    kind = foreign(BY_NAME[name], response=response)[version]
    assert bytes(ApiMessage.encode(kind.decode(body))) == body  # not the subclass's: some of those guess versions


@settings(max_examples=60)
@given(messages)
def test_L25_every_prefix_is_malformed(message: Any) -> None:
    (name, version, response), fields = message
    body = encode(BY_NAME[name], version, fields, response=response)
    for cut in range(len(body)):
        with pytest.raises(Malformed):
            decode(BY_NAME[name], version, body[:cut], response=response)
    with pytest.raises(Malformed):
        decode(BY_NAME[name], version, body + b"\0", response=response)


@settings(max_examples=300)
@given(messages, st.data())
def test_L25_a_mutation_is_malformed_or_another_message(message: Any, data: st.DataObject) -> None:
    (name, version, response), fields = message
    body = bytearray(encode(BY_NAME[name], version, fields, response=response)) or bytearray(1)
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    try:
        decode(BY_NAME[name], version, body, response=response)
    except Malformed:
        pass


@given(st.sampled_from(sorted(APIS)), st.binary(max_size=120), st.booleans(), st.data())
def test_L25_noise_raises_malformed_only(key: int, noise: bytes, response: bool, data: st.DataObject) -> None:
    api = APIS[key]
    version = data.draw(st.integers(api.versions.first, api.versions.last))
    try:
        decode(api, version, noise, response=response)
    except Malformed:
        pass


def test_L25_a_count_above_the_bytes_left_allocates_nothing() -> None:
    with pytest.raises(Malformed, match="entries"):
        decode(BY_NAME["Metadata"], 0, b"\x7f\xff\xff\xff" + b"\0" * 64)


def test_L25_a_frame_full_of_empty_entries_stays_within_its_budget() -> None:
    with pytest.raises(Malformed, match="entries"):
        decode(BY_NAME["Metadata"], 1, (200_000).to_bytes(4, "big") + b"\0" * 400_000)


def test_L20_a_version_we_do_not_hold_is_refused() -> None:
    with pytest.raises(Malformed):
        decode(BY_NAME["Produce"], 2, b"")


@pytest.mark.parametrize("version", [0, 7, 12])
def test_L20_a_part_kept_encoded_gives_the_same_answer(version: int) -> None:
    api = BY_NAME["Metadata"]
    topic = {"name": "t", "partitions": [{"partition": 0, "leader_id": 1, "replica_nodes": [1, 2], "isr_nodes": [1]}]}
    part = encode_part(api, version, "topics", topic)
    assert encode(api, version, {"topics": [part]}, response=True) == encode(
        api, version, {"topics": [topic]}, response=True
    )
