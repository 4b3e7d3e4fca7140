"""A changefeed's spec held against the tables of its source, before anything is made of it.

    spec ─▶ rules, expressions, sink (no table needed) ─▶ tables it takes ─▶ a plan and a route for each

In: a spec, the tables there are. Out: plans and routes, and rules that nobody needs, for a warning. Promise: what is
wrong is refused here, with the field and the place shown, and nothing was changed. Without expressions no Spark is
needed [P8]; with some: Unreachable, if it is not there. Blocks: shells use a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from millrace.core.feeds.choice import ChosenTables
from millrace.core.feeds.feeds import check_spec
from millrace.core.marked import marked
from millrace.errors import InvalidRequest
from millrace.model.changefeeds import ChangefeedSpec
from millrace.model.table_plans import TablePlan
from millrace.model.tables import Oid, TableSchema
from millrace.ops.secrets import mask
from millrace.pipeline.shape.analysis import plan_of
from millrace.sink.kafka.routing import parse_routing, refuse_unless_routable
from millrace.sink.routes import Route, Routed, check_sink, routes
from millrace.sink.uri import KafkaSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Checked(NamedTuple):
    """`idle`: rules and settings that no table of the source needs."""

    sink: KafkaSink
    plans: dict[Oid, TablePlan]
    routes: dict[Oid, Route]
    idle: tuple[str, ...]


def check_changefeed(
    spark: Callable[[], SparkSession], spec: ChangefeedSpec, tables: Iterable[TableSchema]
) -> Checked:
    check_spec(spec)
    sink = check_sink(spec)
    chosen, known = ChosenTables(spec), list(tables)
    for table in known:
        chosen.on_table(table)
    plans: dict[Oid, TablePlan] = {}
    routed = []
    for oid, taken in sorted(chosen.taken.items()):
        settings, where = chosen.settings_of(taken), f"settings[{taken.entry}]"
        plans[oid] = plan_of(spark, where, settings, taken.table)
        routed.append(Routed(plans[oid].shown, settings, where))
        _refuse_unless_routable(spec, sink, routed[-1])
    idle = chosen.rules.idle((table.schema, table.name) for table in known)
    return Checked(sink, plans, routes(spec.source, sink, routed), idle)


def _refuse_unless_routable(spec: ChangefeedSpec, sink: KafkaSink, routed: Routed) -> None:
    """With the column marked where it stands: in the settings, or in the sink."""
    table, settings, where = routed
    by = settings.partition_by
    routing = parse_routing(by) if by else sink.partition
    try:
        refuse_unless_routable(routing, table)
    except InvalidRequest as error:
        keys = {table.columns[i].name for i in table.keys}
        column = next(name for name in routing.columns if name not in keys)
        field, text = (f"{where}.partition_by", by) if by else ("sink", mask(spec.sink))
        at = text.find(column, text.find("column:") + len("column:"))
        if at < 0:                                           # written otherwise: quoted, or with %XX
            raise
        raise InvalidRequest(marked(field, text, at, str(error), length=len(column))) from None
