from __future__ import annotations

import pytest

from millrace.core.feeds.topic_claims import Claim
from millrace.errors import InvalidRequest, InvalidSinkUri, InvalidTopicName
from millrace.model.changefeeds import ChangefeedSpec, TableSettings
from millrace.model.tables import Column, TableSchema
from millrace.sink.kafka.routing import Routing
from millrace.sink.routes import Route, Routed, Router, check_sink, claims, may_meet, routes
from millrace.sink.uri import parse_sink

SAID = TableSettings(tables="*.*")


def spec(sink: str, **said: str) -> ChangefeedSpec:
    return ChangefeedSpec(id="f", source="shop", sink=sink, settings=(SAID, TableSettings(tables="a.*", **said)))


def table(oid: int, name: str) -> TableSchema:
    return TableSchema(oid, "public", name, "d", (Column("id", 20, -1, True), Column("at", 25, -1, True),
                                                  Column("x", 25)))


def test_K2_what_settings_say_counts_before_the_sinks_own() -> None:
    sink = parse_sink("kafka:?partition=table")
    own = TableSettings(tables="a.*", topic="all.{table}", partition_by="column:at")
    found = routes("shop", sink, [Routed(table(1, "a"), SAID), Routed(table(2, "b b"), own)])
    assert found == {1: Route("shop.public.a", Routing("table")), 2: Route("all.b-20b", Routing("column", ("at",)))}


@pytest.mark.parametrize(("said", "kind", "shown"), [
    ({"topic": "a.{tble}"}, InvalidTopicName, r"settings\[1\]\.topic: .* is no placeholder.*\na\.\{tble\}\n  \^$"),
    ({"topic": "a b"}, InvalidTopicName, r"settings\[1\]\.topic: ' ' is not allowed.*\na b\n \^$"),
    ({"partition_by": "column:a,,b"}, InvalidRequest, r"settings\[1\]\.partition_by: .*\ncolumn:a,,b\n {9}\^$"),
    ({"partition_by": "id"}, InvalidRequest, r"settings\[1\]\.partition_by: give key, table.*\nid\n\^$"),
])
def test_K2_settings_that_cannot_be_read_are_refused_with_the_place(
    said: dict[str, str], kind: type[Exception], shown: str
) -> None:
    with pytest.raises(kind, match=shown):
        check_sink(spec("kafka:", **said))


def test_K2_a_sink_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(InvalidSinkUri):
        check_sink(spec("kafka:?topic=%"))
    assert check_sink(spec("kafka:?format=json", topic="x")).format == "json"


def test_K2_tables_that_share_a_topic_have_no_tombstones() -> None:
    both = [Routed(table(1, "a"), SAID), Routed(table(2, "b"), SAID)]
    with pytest.raises(InvalidRequest, match=r"public\.a and public\.b share topic 'all'"):
        routes("shop", parse_sink("kafka:?topic=all"), both)
    assert len(routes("shop", parse_sink("kafka:?topic=all&tombstones=false"), both)) == 2
    assert len(routes("shop", parse_sink("kafka:?topic=all"), both[:1])) == 1


def test_K3_a_column_that_is_not_of_the_key_is_refused_for_the_table() -> None:
    with pytest.raises(InvalidRequest, match=r"not part of the key of public\.a"):
        routes("shop", parse_sink("kafka:?partition=column:x"), [Routed(table(1, "a"), SAID)])


def test_K2_each_version_of_a_table_has_the_route_that_its_name_has() -> None:
    own = TableSettings(tables="public.a", topic="all.{table}", partition_by="column:at")
    router = Router("shop", parse_sink("kafka:?partition=table"), (own, TableSettings(tables="public.*", topic="x")))
    assert router.said(table(1, "a")) == Routed(table(1, "a"), own, "settings[0]")
    assert [router.route(table(1, name)) for name in ("a", "b", "a")] == [
        Route("all.a", Routing("column", ("at",))), Route("x", Routing("table")),
        Route("all.a", Routing("column", ("at",)))]
    alone = Router("shop", parse_sink("kafka:"), ())
    assert (alone.route(table(1, "a")).topic, alone.said(table(1, "a")).where) == ("shop.public.a", "sink")


def test_K2_claims_are_the_topics_of_the_tables_that_the_rules_take() -> None:
    own = ChangefeedSpec(id="f", source="shop", sink="kafka:", tables=("public.*", "!public.b"),
                         settings=(TableSettings(tables="public.c", topic="all"),))
    assert claims(own, [table(1, "a"), table(2, "b"), table(3, "c")]) == [
        Claim("shop.public.a", "f", "public.a"), Claim("all", "f", "public.c")]


@pytest.mark.parametrize(("one", "other", "meet"), [
    ("kafka:", "kafka:", False), ("kafka:?topic={table}", "kafka:", True), ("kafka:?topic=a.{table}", "kafka:", False),
    ("kafka:?topic=a.{table}", "kafka:?topic=a.b", True), ("kafka:?topic=a.{table}", "kafka:?topic=b.{table}", False),
])
def test_K2_changefeeds_of_two_sources_meet_only_if_their_topics_can_begin_alike(
    one: str, other: str, meet: bool
) -> None:
    first, second = (ChangefeedSpec(id=source, source=source, sink=sink) for source, sink in
                     (("shop", one), ("crm", other)))
    assert may_meet(first, second) is may_meet(second, first) is meet
