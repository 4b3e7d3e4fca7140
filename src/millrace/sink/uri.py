"""Sink URIs: what a changefeed's `sink` says, read and refused before anything is made of it.

    kafka:?format=debezium-json&topic={source}.{schema}.{table}&partition=key&tombstones=true

In: the text. Out: a KafkaSink. A key that is not known, a value that does not fit, keys that do not go together:
InvalidSinkUri with the URI, the place marked, and the remedy. Passwords are masked in it [A8].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, Literal, NamedTuple, NoReturn
from urllib.parse import unquote

import msgspec

from millrace import limits
from millrace.errors import InvalidRequest, InvalidSinkUri, InvalidTopicName
from millrace.ops.secrets import mask
from millrace.sink.kafka.routing import Routing, parse_routing
from millrace.sink.kafka.topics import DEFAULT, TopicTemplate, parse_template
from millrace.wire.batches_out import Codec

FormatName = Literal["debezium-json", "canal-json", "json"]
FORMATS: Final = ("debezium-json", "canal-json", "json")


class KafkaSink(msgspec.Struct, frozen=True, kw_only=True):
    """Topics of our own log."""

    format: FormatName = "debezium-json"
    topic: TopicTemplate = TopicTemplate(DEFAULT)
    partition: Routing = Routing()
    tombstones: bool = False               # a message without value behind each delete, for compacted topics
    schema: bool = False                   # Kafka Connect's schema in each message
    watermarks: bool = False               # a message in every partition for each checkpoint [K4]
    decimals: Literal["string", "number"] = "string"
    ddl: bool = True                       # a message for each schema change, in its place
    compression: Codec = Codec.NONE
    partitions: int = 1                    # of topics that are created
    replication: int = 0                   # of topics that are created; 0: the cluster's default
    message_bytes: int = limits.SINK_MESSAGE_BYTES_MAX       # larger rows are set aside, whatever the topic takes


def parse_sink(text: str) -> KafkaSink:
    scheme, colon, rest = text.partition(":")
    if scheme != "kafka" or not colon:
        _refuse(text, 0, len(scheme), f"{scheme!r} is no sink; there is kafka:?format=…")
    if rest.startswith("//"):
        _refuse(text, 0, len("kafka://"), "another Kafka cannot be written to yet; kafka:?… writes to our own log, "
                                          "which every Kafka client reads")
    path, _, query = rest.partition("?")
    if path:
        _refuse(text, len("kafka:"), len(path), "a sink on our own log has no path; give topic=NAME")
    return _checked(text, list(_pairs(text, query)))


def refuse_too_few(text: str, brokers: int) -> None:
    """Of a URI that can be read. No topic could be made with more replicas than there are brokers."""
    wanted = parse_sink(text).replication
    if wanted > brokers:
        pair = next(one for one in _pairs(text, text.partition("?")[2]) if one.key == "replication")
        _refuse(text, pair.at, pair.length, f"replication: {wanted} replicas need as many brokers, there are "
                                            f"{brokers}; give {brokers} at most, or leave it out")


class _Pair(NamedTuple):
    """`at`: where the key stands in the text."""

    key: str
    value: str
    at: int
    length: int


def _pairs(text: str, query: str) -> Iterator[_Pair]:
    at = len(text) - len(query)
    for part in query.split("&") if query else ():
        key, equals, value = part.partition("=")
        if not equals:
            _refuse(text, at, max(len(part), 1), "a key and a value are written key=value")
        yield _Pair(unquote(key), unquote(value), at, len(part))
        at += len(part) + 1


def _checked(text: str, pairs: list[_Pair]) -> KafkaSink:
    found: dict[str, Any] = {}
    for key, value, at, length in pairs:
        known = KEYS.get(key)
        if known is None:
            _refuse(text, at, len(key), f"{key!r} is no key; there are {', '.join(sorted(KEYS))}")
        if key in found:
            _refuse(text, at, length, f"{key} stands twice")
        try:
            found[key] = known.read(value)
        except (InvalidRequest, InvalidTopicName) as error:
            start, rest = at + len(key) + 1, length - len(key) - 1
            if error.why and text[start:start + rest] == value:       # with %XX in it places are others
                _refuse(text, start + error.at, 1, f"{key}: {error.why}")
            _refuse(text, start, rest, str(error))
    form = found.get("format", "debezium-json")
    for key, forms in ONLY.items():
        if found.get(key) not in (None, False) and form not in forms:
            pair = next(one for one in pairs if one.key == key)
            _refuse(text, pair.at, pair.length, f"{key} goes with {' and '.join(forms)}, not with {form}")
    # Debezium writes tombstones unless told not to.
    found.setdefault("tombstones", form == "debezium-json")
    return KafkaSink(**found)


def _one_of(choices: tuple[str, ...], value: str) -> str:
    if value not in choices:
        raise InvalidRequest(f"{value!r}: give {' or '.join(choices)}")
    return value


def _flag(value: str) -> bool:
    return _one_of(("true", "false"), value) == "true"


def _number(low: int, high: int, value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) < 12 and low <= int(value) <= high):
        raise InvalidRequest(f"{value!r}: give a number from {low} to {high}")
    return int(value)


def _compression(value: str) -> Codec:
    return Codec[_one_of(("none", "lz4", "zstd"), value).upper()]


class Key(NamedTuple):
    """A key of the URI. `value`, `default`, `meaning`: for the reference, which is made of them."""

    read: Callable[[str], Any]
    value: str
    default: str
    meaning: str


def _choice_of(choices: tuple[str, ...], default: str, meaning: str, read: Callable[[str], Any] | None = None) -> Key:
    return Key(read or partial(_one_of, choices), ", ".join(choices), default, meaning)


def _flag_of(default: str, meaning: str) -> Key:
    return Key(_flag, "true, false", default, meaning)


def _number_of(low: int, high: int, default: str, meaning: str) -> Key:
    return Key(partial(_number, low, high), f"{low} to {high}", default, meaning)


KEYS: dict[str, Key] = {
    "format": _choice_of(FORMATS, "debezium-json", "how a change is written"),
    "topic": Key(parse_template, "name with {source}, {schema}, {table}", DEFAULT,
                 "the topic of a table; made where it is missing"),
    "partition": Key(parse_routing, "key, table, column:NAME,NAME", "key",
                     "what decides the partition; columns are of the key, so that the order of a key holds"),
    "partitions": _number_of(1, limits.PARTITIONS_PER_TOPIC_MAX, "1", "of topics that are made"),
    "replication": _number_of(1, 100, "the cluster's", "copies of topics that are made"),
    "tombstones": _flag_of("true with debezium-json, else false",
                           "behind a delete a message without value, by which compacted topics forget the key"),
    "schema": _flag_of("false", "Kafka Connect's schema in each message"),
    "ddl": _flag_of("true", "a message for each schema change, in its place among the rows"),
    "watermarks": _flag_of("false", "a message in each partition when the checkpoint has moved on"),
    "decimals": _choice_of(("string", "number"), "string",
                           "how numeric is written: as text, or as a number of any length"),
    "compression": _choice_of(("none", "lz4", "zstd"), "none", "of batches", _compression),
    "message_bytes": _number_of(1024, limits.BATCH_BYTES_CEILING, str(limits.SINK_MESSAGE_BYTES_MAX),
                                "a row above it, or above its topic's own max.message.bytes, goes to the quarantine"),
}
ONLY: dict[str, tuple[str, ...]] = {
    "tombstones": ("debezium-json", "json"), "schema": ("debezium-json",), "decimals": ("debezium-json", "json"),
}


def _refuse(text: str, at: int, length: int, why: str) -> NoReturn:
    shown = mask(text)
    mark = " " * at + "^" * max(length, 1) if shown == text else ""      # behind a mask places are others
    raise InvalidSinkUri("\n".join(filter(None, [f"sink: {why}", shown, mark])))
