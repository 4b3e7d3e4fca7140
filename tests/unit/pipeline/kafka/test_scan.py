"""What a take-over finds in a target, on a real broker [V11, K3]."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

from millrace.core.delivery.takeover import Takeover
from millrace.core.delivery.takeover_asks import ScanTarget
from millrace.log.client import LogClient
from millrace.model.ids import TopicPartition
from millrace.model.positions import Point, PositionKey
from millrace.pipeline.kafka.takeover import Taker
from millrace.sink.kafka.headers import NAME, Provenance, value_of
from millrace.wire.records import Record
from support_kafka import one_broker
from support_secret import LOG_KEY

SOURCE = UUID(int=1)


class Lister:
    def name_of(self, topic_id: UUID) -> str:
        return "target"


def record(writer_id: int, offset: int, *, partition: int = 0, topic: UUID = SOURCE) -> Record:
    return Record(b"v", None, ((NAME, value_of(Provenance(topic.bytes, partition, writer_id, 1), Point(offset, 0))),))


def test_V11_a_scan_finds_the_rows_of_its_own_source_partition_up_to_its_fence(tmp_path: Path) -> None:
    async def main() -> None:
        async with one_broker(tmp_path) as node, LogClient([f"127.0.0.1:{node.port}"], key=LOG_KEY) as client:
            await client.create_topic("target", partitions=1)
            target = TopicPartition((await client.topic("target")).id, 0)
            writer_id, other_id = await client.new_writer_id(), await client.new_writer_id()
            mine = client.writer("target", 0, writer_id=writer_id, epoch=0, sequence=0)
            other = client.writer("target", 0, writer_id=other_id, epoch=0, sequence=0)
            await mine.append([record(writer_id, 5), record(writer_id, 6, partition=1),
                               record(writer_id, 7, topic=UUID(int=2)), Record(b"of somebody without a header")])
            await other.append([record(other_id, 8)])
            await mine.append([record(writer_id, 9)])
            end = (await client.ends("target", 0))[1]
            await mine.append([record(writer_id, 10)])           # behind the fence: of a later writer
            machine = Takeover(PositionKey("orders", SOURCE, 0), 4)
            taker = Taker(machine, client, None, Lister(), None)  # type: ignore[arg-type]
            log_start, rows = await taker._scan(ScanTarget(target, 0, end, frozenset({writer_id})))
            assert log_start == 0
            assert [(row.point, row.target, row.offset) for row in rows] == [
                (Point(5, 0), target, 0), (Point(9, 0), target, 5)]
            mine.close()
            other.close()

    asyncio.run(main())
