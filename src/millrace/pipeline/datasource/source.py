"""`format("millrace")`: one table's changes as a DataFrame, batch and streaming [P1].

    schema()        the table's columns as they are now, and the metadata; fixed from then on
    reader          range by `startingOffsets`, `endingOffsets`; both at complete positions unless named by number
    streamReader    positions in Spark's checkpoint; a batch ends at a complete position

Spark runs these in processes of their own: the instance goes there by pickle, clients are made where they are needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from millrace.errors import CopyUnderWay
from millrace.model.tables import TableSchema
from millrace.pipeline.datasource.columns import layout_of, spark_schema
from millrace.pipeline.datasource.options import Options, parse_options
from millrace.pipeline.datasource.plan import check_columns, plan
from millrace.pipeline.datasource.reading import client_of, read_work
from millrace.pipeline.datasource.secret import explained, with_key
from millrace.pipeline.datasource.stream import TableStream
from millrace.pipeline.datasource.table import find_table, open_table
from millrace.pipeline.datasource.work import Work


class MillraceDataSource(DataSource):
    """Register it with `millrace.pipeline.register(spark)` or `spark.dataSource.register(MillraceDataSource)`."""

    _found: TableSchema | None = None                     # by `schema`; nobody calls it when the user gives one

    @classmethod
    def name(cls) -> str:
        return "millrace"

    def schema(self) -> StructType:
        options = with_key(parse_options(self.options))
        with explained():
            self._found = find_table(client_of(options.bootstrap, options.log_key), options)
        return spark_schema(self._found, options.prefix)

    def reader(self, schema: StructType) -> TableReader:
        return TableReader(with_key(parse_options(self.options, streaming=False)), schema, self._found)

    def streamReader(self, schema: StructType) -> TableStream:
        return TableStream(with_key(parse_options(self.options, streaming=True)), schema, self._found)


class TableReader(DataSourceReader):
    def __init__(self, options: Options, schema: StructType, found: TableSchema | None) -> None:
        self._options, self._schema, self._found = options, schema, found

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with explained():
            table = open_table(client_of(options.bootstrap, options.log_key), options, self._found)
        check_columns(layout_of(self._schema, options.prefix), table)
        start, end = table.start(options.starting, "startingOffsets"), table.start(options.ending, "endingOffsets")
        if table.history.copy_pending and not table.history.points:
            raise CopyUnderWay(f"{table.schema.full_name}: its initial copy is not complete yet. Wait for it (millrace "
                               f"source get {options.source}), or set option includeCopy=false")
        table.check_generation(start, end)
        return plan(table, start, end) or [Work((), ())]  # Spark would ask to read None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Work)
        return read_work(partition, layout_of(self._schema, self._options.prefix), self._options)
