from __future__ import annotations

from typing import NoReturn

import pytest

from millrace.errors import InvalidRequest, InvalidSinkUri, Unreachable
from millrace.model.changefeeds import ChangefeedSpec, TableSettings
from millrace.model.table_plans import whole
from millrace.model.tables import Column, TableSchema
from millrace.pipeline.shape.creation import check_changefeed
from millrace.sink.kafka.routing import Routing
from millrace.sink.routes import Route


def no_spark() -> NoReturn:
    raise Unreachable("no Spark")


def table(oid: int, name: str) -> TableSchema:
    return TableSchema(oid, "public", name, "d", (Column("id", 20, -1, True), Column("x", 25)))


TABLES = [table(1, "a"), table(2, "order_b"), table(3, "tmp_c")]


def spec(*settings: TableSettings, sink: str = "kafka:") -> ChangefeedSpec:
    return ChangefeedSpec(id="f", source="shop", sink=sink, tables=("public.*", "!public.tmp_*", "sales.*"),
                          settings=settings)


def test_P8_without_expressions_no_spark_is_needed() -> None:
    named = TableSettings(tables="public.order_*", projection=("id AS key",), topic="orders", partition_by="column:key")
    found = check_changefeed(no_spark, spec(named), TABLES)
    assert found.plans[1] == whole(TABLES[0])
    assert [column.name for column in found.plans[2].shown.columns] == ["key"]
    assert found.routes == {1: Route("shop.public.a", Routing()), 2: Route("orders", Routing("column", ("key",)))}
    assert found.idle == ("tables: sales.*",)


def test_P8_with_expressions_spark_is_asked() -> None:
    with pytest.raises(Unreachable):
        check_changefeed(no_spark, spec(TableSettings(tables="*.*", filter="id > 1")), TABLES)


def test_K2_what_does_not_fit_a_table_is_refused() -> None:
    with pytest.raises(InvalidSinkUri):
        check_changefeed(no_spark, spec(sink="kafka:?x=1"), TABLES)
    with pytest.raises(InvalidRequest, match=r"public\.a, settings\[0\]\.projection: column 'id' of the key"):
        check_changefeed(no_spark, spec(TableSettings(tables="*.a", projection=("x",))), TABLES)
    with pytest.raises(InvalidRequest, match="share topic"):
        check_changefeed(no_spark, spec(sink="kafka:?topic=all"), TABLES)
