"""Settings of a table checked by Spark itself: its analysis of the expressions, over no rows; no job runs.

    draft ─▶ SELECT (filter), (expression)… over an empty table of the columns they need ─▶ types ─▶ TablePlan

In: a session, settings, a table. Out: a TablePlan. Errors: InvalidExpression with the expression and the place that
Spark complains of. Blocks: shells use a thread.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark import errors
from pyspark.sql import types as st

from millrace.core.feeds.drafts import Draft, draft
from millrace.core.feeds.expressions import Expression
from millrace.model.changefeeds import TableSettings
from millrace.model.table_plans import TablePlan
from millrace.model.tables import Column, TableSchema
from millrace.pipeline.datasource.columns import spark_type
from millrace.wire.pg.types import kinds_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What Spark's errors about an expression are; all others are about Spark.
_THEIRS = (errors.AnalysisException, errors.ParseException, errors.ArithmeticException, errors.DateTimeException,
           errors.IllegalArgumentException, errors.NumberFormatException, errors.SparkRuntimeException)
_SAID = re.compile(r"\[[A-Z0-9_.]+\]\s*(.*?)\s*(?:SQLSTATE:|$)", re.DOTALL)
_LINE = re.compile(r"\(line (\d+), pos(ition)? (\d+)\)")
_AROUND = "({}\n)"                # closed on a line of its own; nothing in the text can leave it

_OIDS: dict[type[st.DataType], int] = {
    st.BooleanType: 16, st.ByteType: 21, st.ShortType: 21, st.IntegerType: 23, st.LongType: 20, st.FloatType: 700,
    st.DoubleType: 701, st.DateType: 1082, st.TimestampType: 1184, st.TimestampNTZType: 1114, st.BinaryType: 17,
    st.StringType: 25, st.CharType: 25, st.VarcharType: 25,
}


def plan_of(
    spark: Callable[[], SparkSession], where: str, settings: TableSettings, table: TableSchema
) -> TablePlan:
    """`spark`: opens a session; not called if there is nothing to ask. `where`: names the settings in messages."""
    found = draft(where, settings, table)
    columns: dict[str, Column] = {}
    wanted = [*([found.filter] if found.filter is not None else []), *(made.expression for made in found.made)]
    kinds = _types(spark(), found, wanted) if wanted else []
    if found.filter is not None and not isinstance(kind := kinds.pop(0), st.BooleanType):
        found.filter.refuse(found.filter.words[0].at, f"a filter is true or false; this is {kind.simpleString()}")
    for made, kind in zip(found.made, kinds, strict=True):
        columns[made.name] = _column(made.expression, made.name, kind)
    return found.plan(columns)


def _types(spark: SparkSession, found: Draft, wanted: Sequence[Expression]) -> list[st.DataType]:
    """Of each expression. All at once, and one by one only to tell which is bad."""
    try:
        return _analysed(spark, found, wanted)
    except _THEIRS:
        for one in wanted:
            try:
                _analysed(spark, found, [one])
            except _THEIRS as error:
                _refuse(one, found.table, error)
        raise


def _analysed(spark: SparkSession, found: Draft, wanted: Sequence[Expression]) -> list[st.DataType]:
    # The client of Spark logs each error with the server's whole stack, before we can say it in a line.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)
    asked = sorted({i for made in found.made for i in made.needs} | set(found.filter_needs))
    kinds = kinds_of(found.table)
    schema = st.StructType([st.StructField(found.table.columns[i].name, spark_type(kinds[i])) for i in asked])
    frame = spark.createDataFrame([], schema).selectExpr(*(_AROUND.format(one.sql) for one in wanted))
    return [field.dataType for field in frame.schema.fields]


def _column(expression: Expression, name: str, kind: st.DataType) -> Column:
    if isinstance(kind, st.DecimalType):
        return Column(name, 1700, (kind.precision << 16 | kind.scale) + 4, type_name="numeric")
    oid = _OIDS.get(type(kind))
    if oid is None:
        expression.refuse(expression.words[0].at, f"of type {kind.simpleString()}, which has no like in a message; "
                                                  "to_json or CAST(… AS STRING) makes a text of it")
    return Column(name, oid)


def _refuse(expression: Expression, table: TableSchema, error: Any) -> NoReturn:
    text = str(error)
    said = _SAID.search(text)
    why = " ".join((said[1] if said else text.strip().split("\n")[0]).split())
    at, length = _place(expression, error, text)
    if str(error.getCondition()).startswith("UNRESOLVED_COLUMN"):      # Spark knows only those that it was shown
        name = (error.getMessageParameters() or {}).get("objectName", "this")
        why = f"{name} is no column of {table.full_name}; it has {', '.join(one.name for one in table.columns)}"
    elif at == len(expression.sql.rstrip()):
        why = "the expression is not complete here, or ends with too much"
    expression.refuse(at, why.partition(" Please, refer to ")[0].removesuffix("."), length=length)


def _place(expression: Expression, error: Any, text: str) -> tuple[int, int]:
    """Spark counts from our parenthesis on."""
    end = len(expression.sql.rstrip())
    contexts = [one for one in error.getQueryContext() or [] if one.contextType().name == "SQL"]
    if contexts:
        start, stop = contexts[0].startIndex() - 1, contexts[0].stopIndex()
        return min(max(start, 0), end), max(stop - max(start, 0), 1)
    if found := _LINE.search(text):
        line, column = int(found[1]), int(found[3]) - (1 if found[2] else 0)
        if line == 1:
            return min(max(column - 1, 0), end), 1
        before = sum(len(one) + 1 for one in expression.sql.split("\n")[:line - 1])
        return min(before + column, end), 1
    return expression.words[0].at, 1
