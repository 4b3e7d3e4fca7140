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
from millrace.sink.kafka.debezium_modes import Modes
from millrace.sink.kafka.routing import Routing, parse_routing
from millrace.sink.kafka.topics import DEFAULT, TopicTemplate, parse_template
from millrace.wire.batches_out import Codec

DdlPlace = Literal["topic", "inline", "off"]
DDL_TOPIC: Final = "{source}.schema-changes"
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
    decimals: Literal["string", "number"] = "string"         # of json; debezium-json has `modes`
    modes: Modes = Modes()                 # of debezium-json: Debezium's own options
    ddl: DdlPlace = "topic"                # where a message for each schema change goes
    ddl_topic: TopicTemplate = TopicTemplate(DDL_TOPIC)
    skipped_operations: Literal["none", "t"] = "none"        # t: truncations
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
            _refuse_pair(text, pairs, key, f"{key} goes with {' and '.join(forms)}, not with {form}")
    for key, other in SAME.items():
        if key in found:
            if other in found:
                _refuse_pair(text, pairs, key, f"{key} and {other} say the same: give one of them")
            found[other] = found.pop(key)
    if "decimals" in found and "decimal.handling.mode" in found:
        _refuse_pair(text, pairs, "decimals", "decimals and decimal.handling.mode say the same: give one of them")
    return KafkaSink(**_with_defaults(found, form))


def _with_defaults(found: dict[str, Any], form: str) -> dict[str, Any]:
    """Of debezium-json those of Debezium: tombstones, and nothing but data in the topic of a table."""
    is_debezium = form == "debezium-json"
    found.setdefault("tombstones", is_debezium)
    found.setdefault("ddl", "topic" if is_debezium else "inline")
    modes = {field: found.pop(key) for key, field in MODES.items() if key in found}
    if is_debezium and "decimals" in found:
        modes["decimal"] = found["decimals"]
    return {key.replace(".", "_"): value for key, value in found.items()} | {"modes": Modes(**modes)}


def _refuse_pair(text: str, pairs: list[_Pair], key: str, why: str) -> NoReturn:
    pair = next(one for one in pairs if one.key == key)
    _refuse(text, pair.at, pair.length, why)


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


def _ddl(value: str) -> str:
    return {"true": "inline", "false": "off"}.get(value) or _one_of(("topic", "inline", "off"), value)


def _ddl_topic(value: str) -> TopicTemplate:
    for name in ("{schema}", "{table}"):
        if name in value:
            raise InvalidRequest(f"{value!r}: all schema changes of a source go to one topic, it has no {name}")
    return parse_template(value)


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
    "ddl": Key(_ddl, "topic, inline, off", "topic with debezium-json, else inline",
               "a message for each schema change: in a topic of their own, or in its place among the rows; true is "
               "inline, false is off"),
    "ddl.topic": Key(_ddl_topic, "name with {source}", DDL_TOPIC, "the topic of schema changes, with ddl=topic"),
    "skipped.operations": _choice_of(("none", "t"), "none",
                                     "Debezium's name; t: no message for a truncation, for consumers that fail on one: "
                                     "they keep rows that are gone"),
    "watermarks": _flag_of("false", "a message in each partition when the checkpoint has moved on"),
    "decimals": _choice_of(("string", "number"), "string",
                           "how numeric is written: as text, or as a number of any length; with debezium-json instead "
                           "of decimal.handling.mode"),
    "decimal.handling.mode": _choice_of(("precise", "double", "string"), "precise",
                                        "as Debezium's: bytes with a scale, a float, or text"),
    "time.precision.mode": _choice_of(("adaptive", "adaptive_time_microseconds", "connect"), "adaptive",
                                      "as Debezium's: by the column's precision, or in milliseconds"),
    "interval.handling.mode": _choice_of(("numeric", "string"), "numeric",
                                         "as Debezium's: microseconds, or P1Y2M3DT4H5M6.5S"),
    "binary.handling.mode": _choice_of(("bytes", "base64", "base64-url-safe", "hex"), "bytes", "as Debezium's"),
    "hstore.handling.mode": _choice_of(("json", "map"), "json", "as Debezium's: a string of JSON, or an object"),
    "tombstones.on.delete": _flag_of("true", "Debezium's name of tombstones"),
    "schemas.enable": _flag_of("false", "Kafka Connect's name of schema"),
    "compression": _choice_of(("none", "lz4", "zstd"), "none", "of batches", _compression),
    "message_bytes": _number_of(1024, limits.BATCH_BYTES_CEILING, str(limits.SINK_MESSAGE_BYTES_MAX),
                                "a row above it, or above its topic's own max.message.bytes, goes to the quarantine"),
}
MODES: Final = {
    "decimal.handling.mode": "decimal", "time.precision.mode": "time", "interval.handling.mode": "interval",
    "binary.handling.mode": "binary", "hstore.handling.mode": "hstore",
}
ONLY: dict[str, tuple[str, ...]] = {
    "tombstones": ("debezium-json", "json"), "schema": ("debezium-json",), "decimals": ("debezium-json", "json"),
    **dict.fromkeys((*MODES, "tombstones.on.delete", "schemas.enable", "skipped.operations"), ("debezium-json",)),
}
SAME: Final = {"tombstones.on.delete": "tombstones", "schemas.enable": "schema"}


def _refuse(text: str, at: int, length: int, why: str) -> NoReturn:
    shown = mask(text)
    mark = " " * at + "^" * max(length, 1) if shown == text else ""      # behind a mask places are others
    raise InvalidSinkUri("\n".join(filter(None, [f"sink: {why}", shown, mark])))
