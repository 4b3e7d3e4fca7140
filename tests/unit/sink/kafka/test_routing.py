from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as foreign

from millrace.errors import InvalidRequest
from millrace.model.tables import Column, TableSchema
from millrace.sink.kafka.murmur import murmur2, murmur2_column
from millrace.sink.kafka.routing import Routing, parse_routing, refuse_unless_routable

TABLE = TableSchema(1, "public", "t", "d", (Column("id", 20, -1, True), Column("x", 25)))


@given(st.binary(max_size=9), st.lists(st.binary(max_size=40) | st.integers(1000, 1100).map(bytes), max_size=6))
def test_K2_hash_is_that_of_other_clients(shared: bytes, values: list[bytes]) -> None:
    keys = [shared + value for value in values]
    wanted = [foreign(key) & 0x7FFFFFFF for key in keys]
    array = pa.array([b"front", *keys], pa.binary()).slice(1)
    assert [murmur2(key) for key in keys] == wanted
    assert murmur2_column(array).tolist() == wanted
    assert murmur2_column(array, shared).tolist() == wanted


# Of Kafka's own tests of Utils.murmur2 (org.apache.kafka.common.utils.UtilsTest), as signed numbers.
@pytest.mark.parametrize(("key", "hashed"), [
    (b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536),
    (b"a-little-bit-longer-string", -1486304829), (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    (b"abc", 479470107),
])
def test_K2_hash_is_that_of_java(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed & 0x7FFFFFFF


@pytest.mark.parametrize(("text", "routing"), [
    ("key", Routing()), ("table", Routing("table")), ("column:a, b", Routing("column", ("a", "b"))),
    ('column:"a,b", "c""d" ,é', Routing("column", ("a,b", 'c"d', "é")))])
def test_routing_is_read(text: str, routing: Routing) -> None:
    assert parse_routing(text) == routing


@pytest.mark.parametrize(("text", "place", "why"), [
    ("", 1, "give key"), ("column:", 8, "is missing: give key"), ("column", 1, "give key"), ("keys", 1, "give key"),
    ("column: ,", 8, "is missing"), ("column:a,", 10, "is missing"), ('column:""', 8, "is missing"),
    ('column:a"b', 9, "a comma is missing"), ('column:"a"b', 11, "a comma is missing"), ('column:"a', 8, "is missing"),
    ("column:a,b,a", 12, "'a' stands twice")])
def test_K2_routing_that_cannot_be_read_is_refused_with_the_place(text: str, place: int, why: str) -> None:
    with pytest.raises(InvalidRequest, match=f"character {place}: .*{why}") as refused:
        parse_routing(text)
    assert refused.value.at == place - 1


@given(st.lists(st.text(min_size=1), min_size=1, max_size=3, unique=True))
def test_K2_any_name_can_be_quoted(names: list[str]) -> None:
    text = ",".join('"' + name.replace('"', '""') + '"' for name in names)
    assert parse_routing(f"column:{text}") == Routing("column", tuple(names))


def test_K3_columns_that_are_not_of_the_key_are_refused() -> None:
    refuse_unless_routable(Routing("column", ("id",)), TABLE)
    refuse_unless_routable(Routing("table"), TABLE)
    with pytest.raises(InvalidRequest, match=r"not part of the key of public\.t"):
        refuse_unless_routable(Routing("column", ("id", "x")), TABLE)
    with pytest.raises(InvalidRequest, match=r"no column of public\.t"):
        refuse_unless_routable(Routing("column", ("nope",)), TABLE)
