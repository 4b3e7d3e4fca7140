"""One table of the log as a query sees it: found by name, its history followed.

In: options, a client of the log. Out: `Table` with its topic, its schema versions, its complete positions. Promise: it
reads `progress` once and then only what is new; what it says of a range never changes afterwards.
Errors: UnknownSource, UnknownTable (with the names that there are), InvalidOption, DataLost.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from uuid import UUID

from millrace.core.sources.registry import progress_topic, table_topic
from millrace.core.sources.table_history import Cut, TableHistory, Tables, Version
from millrace.errors import DataLost, InvalidOption, UnknownSource, UnknownTable, UnknownTopicOrPartition
from millrace.log.client import PlainClient
from millrace.model.progress import ProgressRecord, decode_progress, is_mark
from millrace.model.tables import Place, TableSchema
from millrace.pipeline.datasource.options import (
    EARLIEST,
    EARLIEST_OFFSET,
    LATEST,
    LATEST_OFFSET,
    Offsets,
    Options,
)
from millrace.pipeline.datasource.positions import decode_position
from millrace.pipeline.datasource.reading import records
from millrace.pipeline.datasource.work import Span
from millrace.wire.changes import header_of

NAMES_SHOWN = 20
POLL_S = 0.5                                              # of one fetch: a stopping query waits no longer than this


@dataclass
class Table:
    client: PlainClient
    options: Options
    schema: TableSchema                                   # the newest, or the one the option names
    topic: str
    topic_id: UUID
    history: TableHistory
    _stops: dict[tuple[int, Place, int], int] = field(default_factory=dict)

    @property
    def progress(self) -> str:
        return progress_topic(self.options.source)

    def catch_up(self, wait_s: float = 0.0) -> bool:
        """Whatever `progress` has; if that is nothing new, wait for something. Whether anything came."""
        where = (self.progress, 0)
        began_at, came = time.monotonic(), False
        while True:
            left_s = began_at + wait_s - time.monotonic()
            wait = 0.0 if came else max(0.0, min(POLL_S, left_s))
            found = self.client.fetch({where: self.history.next_progress}, wait_s=wait).get(where)
            for record in found.records if found is not None else ():
                self.history.replay(record.offset, decode_progress(bytes(record.value or b"")))
                came = True
            if found is not None:
                self.history.next_progress = max(self.history.next_progress, found.next_offset)
                if found.next_offset < found.hw:
                    continue
            if came or left_s <= 0:
                return came

    def check_topic(self) -> None:
        """It may have been made anew under the same name."""
        found = self.client.topic(self.topic).id
        if found != self.topic_id:
            raise DataLost(f"topic {self.topic} was made anew ({found}, it was {self.topic_id}): start with a new "
                           f"checkpoint")

    # -- positions

    def start(self, given: Offsets, name: str) -> Cut:
        """Where `startingOffsets` or `endingOffsets` points to. `latest`: behind the last complete position."""
        if given == EARLIEST:
            return self._from_log_start(self.history.first())
        if given == LATEST:
            last = self.history.last()
            return last.cut if last is not None else self.history.newest or self.history.first()
        assert isinstance(given, dict)
        if "offsets" in given:
            return decode_position(given, self.topic_id).cut
        count = self.history.partitions
        if sorted(map(int, given)) != list(range(count)):
            raise InvalidOption(f"option {name}: partitions {sorted(map(int, given))}, but {self.schema.full_name} has "
                                f"partitions 0 to {count - 1}")
        ends = {EARLIEST_OFFSET: self.start(EARLIEST, name).offsets, LATEST_OFFSET: self.start(LATEST, name).offsets}
        named = [int(given[str(n)]) for n in range(count)]
        offsets = [ends[at][n] if at < 0 else self._checked(n, at, name) for n, at in enumerate(named)]
        return self.history.at_offsets(offsets)

    def _checked(self, partition: int, offset: int, name: str) -> int:
        first, last = self.client.ends(self.topic, partition)
        if offset > last:
            raise InvalidOption(f"option {name}: partition {partition} has offsets up to {last}, not {offset}")
        if offset < first and self.options.fail_on_data_loss:
            raise DataLost(f"option {name}: partition {partition} begins at offset {first}, {offset} is gone")
        return max(offset, first)

    def _from_log_start(self, cut: Cut) -> Cut:
        starts = (self.client.ends(self.topic, n)[0] for n in range(self.history.partitions))
        return cut._replace(offsets=tuple(map(max, cut.offsets, starts)))

    def check_generation(self, start: Cut, end: Cut) -> None:
        """A range that goes over a break of the source's history has a gap in it [S9]."""
        if start.generation and end.generation > start.generation and self.options.fail_on_data_loss:
            raise DataLost(
                f"{self.schema.full_name}: the source's history broke (generation {start.generation}, now"
                f" {end.generation}): changes were lost, and copies replace the table. Start with a new"
                f" checkpoint, or set option failOnDataLoss=false to go on behind the gap")

    def stop_of(self, version: Version) -> tuple[int, ...]:
        """Per partition the offset of the first record of this version or a later one."""
        offsets = self.history.offsets_at(version.generation, version.place.commit_lsn - 1)
        return tuple(self._first_behind(version, partition, offset) for partition, offset in enumerate(offsets))

    def _first_behind(self, version: Version, partition: int, start: int) -> int:
        key = (version.generation, version.place, partition)
        if key not in self._stops:
            _, end = self.client.ends(self.topic, partition)
            for record in records(self.client, Span(self.topic, partition, start, end, end), fail=False):
                header = header_of(record)
                if (header.generation, header.first) >= key[:2]:
                    self._stops[key] = record.offset
                    break
            else:
                return end                                # nothing yet: the next record may be it
        return self._stops[key]


def find_table(client: PlainClient, options: Options) -> TableSchema:
    """By name, in the version that the options ask for."""
    tables = Tables()
    try:
        for record in _all_progress(client, options.source):
            tables.replay(record)
    except UnknownTopicOrPartition as error:
        where = ",".join(options.bootstrap)
        raise UnknownSource(f"there is no source {options.source!r} in the log at {where}") from error
    schema = tables.find(options.table)
    if schema is None:
        names = tables.names()
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        raise UnknownTable(f"source {options.source} has no table {options.table!r}; there are "
                           f"{', '.join(names[:NAMES_SHOWN]) or 'none'}{more}")
    if options.schema_version == LATEST:
        return schema
    known = {str(schema_id): version for schema_id, version in tables.versions[schema.oid].items()}
    if options.schema_version not in known:
        raise InvalidOption(f"option schemaVersion: {schema.full_name} has no version {options.schema_version!r}; it"
                            f" has {', '.join(known)}")
    return known[options.schema_version]


def open_table(client: PlainClient, options: Options, schema: TableSchema | None) -> Table:
    """`schema`: as `find_table` gave it, if anybody has asked already."""
    schema = schema or find_table(client, options)
    topic = table_topic(options.source, schema.oid)
    info = client.topic(topic)
    history = TableHistory(schema.oid, len(info.partitions), with_copies=options.include_copy)
    table = Table(client, options, schema, topic, info.id, history)
    history.next_progress, _ = client.ends(table.progress, 0)
    table.catch_up()
    return table


def _all_progress(client: PlainClient, source: str) -> Iterator[ProgressRecord]:
    """Without the marks: there are twenty in a second, and nobody asks for them here."""
    topic = progress_topic(source)
    client.topic(topic)                                   # one that is not there is said so at once
    start, end = client.ends(topic, 0)
    for page in client.read(topic, 0, start, end):
        for record in page:
            value = bytes(record.value or b"")
            if not is_mark(value):
                yield decode_progress(value)
