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
    ("key", Routing()), ("table", Routing("table")), ("column:a, b", Routing("column", ("a", "b")))])
def test_routing_is_read(text: str, routing: Routing) -> None:
    assert parse_routing(text) == routing


@pytest.mark.parametrize("text", ["", "column:", "column", "keys", "column: ,"])
def test_routing_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="give key, table, or column:NAME"):
        parse_routing(text)


def test_K3_columns_that_are_not_of_the_key_are_refused() -> None:
    refuse_unless_routable(Routing("column", ("id",)), TABLE)
    refuse_unless_routable(Routing("table"), TABLE)
    with pytest.raises(InvalidRequest, match=r"not part of the key of public\.t"):
        refuse_unless_routable(Routing("column", ("id", "x")), TABLE)
    with pytest.raises(InvalidRequest, match=r"no column of public\.t"):
        refuse_unless_routable(Routing("column", ("nope",)), TABLE)
