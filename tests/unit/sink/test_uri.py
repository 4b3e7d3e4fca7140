from __future__ import annotations

import pytest

from millrace.errors import InvalidSinkUri
from millrace.sink.kafka.debezium_modes import Modes
from millrace.sink.kafka.routing import Routing
from millrace.sink.kafka.topics import TopicTemplate
from millrace.sink.uri import KEYS, MODES, SAME, KafkaSink, parse_sink, refuse_too_few
from millrace.wire.batches_out import Codec


def test_K1_defaults_are_debeziums() -> None:
    assert parse_sink("kafka:") == parse_sink("kafka:?format=debezium-json") == KafkaSink(tombstones=True)
    assert not parse_sink("kafka:?format=json").tombstones


def test_K1_every_key_is_read() -> None:
    found = parse_sink("kafka:?format=json&topic=%7Bschema%7D.{table}&partition=column:a,b&tombstones=true&ddl=false"
                       "&watermarks=true&decimals=number&compression=zstd&partitions=12&replication=3"
                       "&message_bytes=4096")
    assert found == KafkaSink(
        format="json", topic=TopicTemplate("{schema}.{table}"), partition=Routing("column", ("a", "b")),
        tombstones=True, ddl="off", watermarks=True, decimals="number", compression=Codec.ZSTD, partitions=12,
        replication=3, message_bytes=4096)
    assert parse_sink("kafka:?schema=true").schema


def test_K6_options_have_debeziums_names() -> None:
    found = parse_sink("kafka:?decimal.handling.mode=double&time.precision.mode=connect&interval.handling.mode=string"
                       "&binary.handling.mode=hex&hstore.handling.mode=map&tombstones.on.delete=false"
                       "&schemas.enable=true")
    assert found.modes == Modes("double", "connect", "string", "hex", "map")
    assert (found.tombstones, found.schema) == (False, True)


@pytest.mark.parametrize(("uri", "place"), [
    ("kafka:", "topic"), ("kafka:?format=json", "inline"), ("kafka:?format=canal-json", "inline"),
    ("kafka:?ddl=true", "inline"), ("kafka:?ddl=inline", "inline"), ("kafka:?ddl=false", "off"),
    ("kafka:?ddl=off", "off")])
def test_K6_schema_changes_have_a_topic_of_their_own_unless_asked_for(uri: str, place: str) -> None:
    assert parse_sink(uri).ddl == place
    assert parse_sink(uri).ddl_topic.topic("shop", "", "") == "shop.schema-changes"


def test_K1_every_key_is_documented_with_the_default_that_it_has() -> None:
    """The reference is made of KEYS."""
    own = {key.replace(".", "_") for key in KEYS.keys() - MODES.keys() - SAME.keys()}
    assert own | {"modes"} == set(KafkaSink.__struct_fields__)
    assert set(MODES.values()) == set(Modes._fields)
    told = {name: key.default for name, key in KEYS.items() if name not in {*SAME, "decimals"}}
    assert told.pop("tombstones") == "true with debezium-json, else false"
    assert told.pop("ddl") == "topic with debezium-json, else inline"
    assert told.pop("replication") == "the cluster's"
    assert parse_sink("kafka:?" + "&".join(f"{name}={value}" for name, value in told.items())) == parse_sink("kafka:")
    assert all(key.value and key.meaning for key in KEYS.values())


@pytest.mark.parametrize(("uri", "marked", "remedy"), [
    ("kafka:?formt=json", "formt", "is no key; there are binary.handling.mode, compression, ddl,"),
    ("kafka:?decimal.handling.mode=exact", "exact", "give precise or double or string"),
    ("kafka:?format=json&interval.handling.mode=string", "interval.handling.mode=string", "goes with debezium-json"),
    ("kafka:?tombstones=true&tombstones.on.delete=true", "tombstones.on.delete=true", "say the same: give one"),
    ("kafka:?decimals=string&decimal.handling.mode=string", "decimals=string", "say the same: give one"),
    ("kafka:?ddl=maybe", "maybe", "give topic or inline or off"),
    ("kafka:?ddl.topic=x.{table}", "x.{table}", "all schema changes of a source go to one topic"),
    ("kafka:?format=avro", "avro", "give debezium-json or canal-json or json"),
    ("kafka:?format=json&format=json", "format=json", "format stands twice"),
    ("kafka:?topic=x.{scema}.x", "{", "topic: .* is no placeholder"),
    ("kafka:?topic=x.%7Bscema}.x", "x.%7Bscema}.x", "character 3: .* is no placeholder"),
    ("kafka:?partition=row", "r", "give key, table, or column:NAME"),
    ("kafka:?partition=column:a,a&ddl=true", "a", "'a' stands twice"),
    ("kafka:?tombstones=yes", "yes", "give true or false"),
    ("kafka:?partitions=0", "0", "give a number from 1"),
    ("kafka:?partitions=²", "²", "give a number from 1"),
    ("kafka:?format=canal-json&tombstones=true", "tombstones=true", "tombstones goes with debezium-json and json"),
    ("kafka:?format=json&schema=true", "schema=true", "schema goes with debezium-json, not with json"),
    ("kafka:?watermarks", "watermarks", "written key=value"),
    ("kafka:orders", "orders", "has no path"),
    ("kafka://host:9092?format=json", "kafka://", "cannot be written to yet"),
    ("pulsar:?x=1", "pulsar", "'pulsar' is no sink"),
])
def test_K1_what_does_not_fit_is_refused_with_the_place(uri: str, marked: str, remedy: str) -> None:
    with pytest.raises(InvalidSinkUri, match=remedy) as refused:
        parse_sink(uri)
    _, shown, marks = str(refused.value).split("\n")
    assert shown == uri
    at = marks.index("^")
    assert uri[at:at + marks.count("^")] == marked


def test_A8_a_password_is_never_shown() -> None:
    with pytest.raises(InvalidSinkUri) as refused:
        parse_sink("kafka://me:hunter2@host:9092")
    assert "hunter2" not in str(refused.value)


def test_K2_more_replicas_than_brokers_are_refused_with_the_place() -> None:
    text = "kafka:?format=json&replication=9&partitions=2"
    with pytest.raises(InvalidSinkUri, match=r"9 replicas need as many brokers, there are 3.*\n.*\n {19}\^{13}$"):
        refuse_too_few(text, 3)
    refuse_too_few(text, 9)
    refuse_too_few("kafka:", 1)
