"""A changefeed over a source with a real reader: its real home, captures without Spark, and what its topics hold."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import psycopg

from millrace.changefeed.feeds.ports import Past
from millrace.changefeed.homes.home import LogFeedHome, open_home
from millrace.core.feeds.barrier import SchemaChange
from millrace.core.feeds.checkpoint import Progress
from millrace.log.client import LogClient
from millrace.model.changefeeds import ChangefeedSpec
from millrace.model.feed_messages import StartDispatcher
from millrace.model.spans import TableId, whole
from support_data_path import Capture, LocalJobs, until, without_spark
from support_mover import Message
from support_reader import Rig

SINK = "kafka:?format=debezium-json&tombstones=false&partitions=2&replication=1&topic={source}." + "%s.{table}"
UNAVAILABLE = "__debezium_unavailable_value"
MAINTAINER = 5                                           # its epoch: floors are its own, and its dispatchers name it


class Feed:
    """A changefeed: its real home, and a capture or two."""

    def __init__(self, client: LogClient, rig: Rig, feed: str) -> None:
        self.client, self.rig, self.feed = client, rig, feed
        self.sink = SINK % feed
        self.jobs, self.captures = LocalJobs(), list[Capture]()
        self.progress = Progress()
        self.tables: dict[TableId, int] = {}             # partitions of each
        self.home: LogFeedHome | None = None
        self.epoch = 1
        self.changes: list[SchemaChange] = []            # that nobody has let pass

    async def open(self, tables: int) -> None:
        spec = ChangefeedSpec(id=self.feed, source=self.rig.name, sink=self.sink)
        self.home = await open_home(
            self.client, spec, Past(maintainer=MAINTAINER), database="db", shape=without_spark, wall=time.time)
        home = self.home
        await until(lambda: len(home.tables) == tables, "all tables")
        self._take(home.tables)

    def _take(self, tables: Mapping[TableId, int]) -> None:
        self.tables |= tables
        for table, partitions in tables.items():
            for part in whole(table, partitions).parts:
                self.progress.watch(part)

    def start(self) -> Capture:
        """Another capture takes everything over; nobody tells the one before."""
        capture = Capture(self.client, self.rig.bootstrap, self.jobs, self.rig.name, capture=len(self.captures) + 1,
                          feed=self.feed, sink=self.sink)
        self.captures.append(capture)
        self.place()
        return capture

    def place(self) -> None:
        """As the maintainer does with those it misses."""
        capture = self.captures[-1]
        for number, (table, partitions) in enumerate(self.tables.items()):
            if number not in capture.host.machine.held:
                self.epoch += 1
                start = StartDispatcher(self.feed, MAINTAINER, 1, number, whole(table, partitions), self.epoch)
                capture.host.receive(2, start, "alive")

    @property
    def checkpoint(self) -> int:
        assert self.home is not None
        news = self.home.news()
        for change in news.changes:                      # tables that joined
            self._take(dict.fromkeys(change.tables, change.partitions) if change.kind == "create" else {})
            self.changes.append(change)
        for mark in news.marks:
            self.progress.on_mark(mark.resolved, mark.ends, full=mark.full)
        for part, committed in news.positions.items():
            self.progress.on_position(part, committed)
        return self.progress.lowest(lambda table: True)[0] or 0

    def is_copied(self) -> bool:
        """No copy that is known has anything left."""
        self.place()
        hosted = list(self.captures[-1].path._hosted.values())
        parts = [part for one in hosted for part in one.parts]
        return len(hosted) == len(self.tables) and not any(
            part.must_meet or part.copies or part._meeting.waiting() for part in parts)

    def reaches(self, lsn: int) -> bool:
        self.place()
        return self.checkpoint >= lsn

    async def close(self) -> None:
        for capture in self.captures:
            await capture.close()
        if self.home is not None:
            await self.home.leave()
        self.jobs.close()

    # -- verdict -------------------------------------------------------------------------------------------------------
    async def judged(self, table: str, *, snapshot_rows: int | None = None) -> list[dict[str, Any]]:
        """Whoever upserts by key has the database's rows; nothing came twice; the snapshot came first. What was not
        sent is what the row had."""
        topic = f"{self.rig.name}.{self.feed}.{table}"
        values: list[dict[str, Any]] = []
        held: dict[int, dict[str, Any]] = {}
        for partition in range(2):
            start, end = await self.client.ends(topic, partition)
            records = [r for page in [p async for p in self.client.read(topic, partition, start, end)] for r in page]
            told = [Message(record).told for record in records]
            points = Counter((one.provenance.topic_id, one.provenance.partition, one.point) for one in told)
            assert max(points.values(), default=1) == 1
            found = [json.loads(bytes(record.value or b"{}")) for record in records]
            for record, value in zip(records, found, strict=True):
                key = json.loads(bytes(record.key or b"{}"))["id"]
                had = held.pop(key, {})
                if value["after"] is not None:
                    held[key] = {name: had.get(name) if one == UNAVAILABLE else one
                                 for name, one in value["after"].items()}
            values += found
        copied = [value for value in values if value["op"] == "r"]
        assert {value["source"]["snapshot"] for value in copied} <= {"true"}
        assert {value["source"]["snapshot"] for value in values if value["op"] != "r"} <= {"false"}
        places = Counter((place(value), _key(value)) for value in values)
        assert max(places.values(), default=1) == 1, "twice by table, key, commit LSN and sequence"
        first = min((place(value) for value in copied), default=(0, 0))
        assert snapshot_rows in (None, sum(place(value) == first for value in copied))
        with psycopg.connect(self.rig.url) as db:
            wanted = {row[0]: {"id": row[0], "x": row[1], "n": row[2]} for row in db.execute(f"SELECT * FROM {table}")}
        assert held == wanted
        return values


def place(value: dict[str, Any]) -> tuple[int, int]:
    lsn, seq = json.loads(value["source"]["sequence"])
    return int(lsn), int(seq)


def _key(value: dict[str, Any]) -> int:
    return int((value["after"] or value["before"])["id"])
