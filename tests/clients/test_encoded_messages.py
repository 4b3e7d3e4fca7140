"""Record batches of the encoders, on a real broker, read by confluent-kafka, whose producer agrees on partitions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

import support_json as judge
from millrace.model.positions import Point
from millrace.model.tables import Column, TableSchema
from millrace.sink.kafka.debezium import Debezium
from millrace.sink.kafka.encode import Encoder, Rows, Target
from millrace.sink.kafka.formats import Origin
from millrace.sink.kafka.headers import Provenance, written
from millrace.wire.batches_out import Codec, OutBatch, sealed
from support_kafka import one_broker

T = TypeVar("T")

pytestmark = pytest.mark.long

TABLE = TableSchema(1, "public", "t", "d", (Column("id", 20, -1, True), Column("x", 25)))
PARTITIONS = 3
ROWS = 500


def encoded(codec: Codec) -> list[OutBatch]:
    rows = [judge.Row(2 if i % 7 == 0 else 0, [] if i % 7 == 0 else [judge.Cell(i), judge.Cell(f"text {i} \"é\"")],
                      [judge.Cell(i), judge.NULL] if i % 7 == 0 else None) for i in range(ROWS)]
    form = Debezium(Origin("shop", "db"), TABLE)
    target = Target(PARTITIONS, batch_bytes=20_000, codec=codec)
    found = Encoder(TABLE, form, target).encode(
        Rows(judge.batch_of(TABLE, rows), np.full(ROWS, 9), np.arange(ROWS)), Provenance(bytes(16), 1, 2, 3),
        now_us=1_800_000_000_000_000)
    assert found.refused == []
    return found.batches


async def on_a_broker(directory: Path, codec: Codec, read: Callable[[str], T]) -> T:
    """What `read` finds at this address, once topic t holds the batches."""
    async with one_broker(directory) as node:
        wire = await node.connect()
        await wire.create("t", partitions=PARTITIONS)
        for batch in encoded(codec):
            answer = await wire.produce("t", b"".join(sealed(batch)), partition=batch.partition)
            assert answer["error_code"] == 0
        return await asyncio.to_thread(read, f"127.0.0.1:{node.port}")


def consume(address: str, count: int) -> list[Message]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "unused", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition("t", partition, 0) for partition in range(PARTITIONS)])
        found: list[Message] = []
        while len(found) < count:
            some = consumer.consume(count - len(found), 20)
            assert some, f"{len(found)} of {count} messages came"
            assert all(message.error() is None for message in some)
            found += some
        return found
    finally:
        consumer.close()


@pytest.mark.parametrize("codec", list(Codec))
def test_K1_librdkafka_reads_every_message(tmp_path: Path, codec: Codec) -> None:
    deleted = len(range(0, ROWS, 7))
    found = asyncio.run(on_a_broker(tmp_path, codec, lambda address: consume(address, ROWS + deleted)))
    seen: dict[int, list[Message]] = {}
    for message in found:
        told = written(message.headers())
        assert told is not None
        row = told.point.row
        assert told.point == Point(9, row)
        assert json.loads(message.key()) == {"id": row}
        seen.setdefault(row, []).append(message)
    assert sorted(seen) == list(range(ROWS))
    for row, messages in seen.items():
        values = [None if message.value() is None else json.loads(message.value()) for message in messages]
        if row % 7 == 0:
            assert [value and value["op"] for value in values] == ["d", None]
        else:
            assert [value["after"] for value in values if value] == [{"id": row, "x": f'text {row} "é"'}]


def test_K2_librdkafka_sends_the_same_keys_to_the_same_partitions(tmp_path: Path) -> None:
    def both(address: str) -> tuple[dict[bytes, int], dict[bytes, int]]:
        ours = {message.key(): message.partition() for message in consume(address, ROWS)}
        theirs: dict[bytes, int] = {}

        def delivered(_: object, message: Message) -> None:
            theirs[message.key()] = message.partition()

        producer = Producer({"bootstrap.servers": address, "partitioner": "murmur2_random"})
        for key in ours:
            producer.produce("t", b"", key, on_delivery=delivered)
        assert producer.flush(30) == 0
        return ours, theirs

    ours, theirs = asyncio.run(on_a_broker(tmp_path, Codec.NONE, both))
    assert theirs == ours
