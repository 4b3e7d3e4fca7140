"""Every message of a changefeed's topics, as an unmodified Kafka client reads them.

In: brokers, the front of the topics' names. Out: messages in the order of their partitions.
"""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from millrace.cli.exits import TIMED_OUT, CommandFailed
from millrace.cli.prove_messages import Told, understand
from millrace.log.client import Record

READ_S = 120.0


def read_messages(bootstrap: str, prefix: str) -> Told:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "judge", "enable.auto.commit": False,
                         "enable.partition.eof": True, "log_level": 0})
    try:
        return _read_all(consumer, prefix)
    except KafkaException as error:
        raise CommandFailed(f"the topics cannot be read: {error}") from None
    finally:
        consumer.close()


def _read_all(consumer: Consumer, prefix: str) -> Told:
    """To the end of every partition; fences at the end are no messages, so offsets alone do not tell."""
    topics = {name: found for name, found in consumer.list_topics(timeout=30).topics.items() if name.startswith(prefix)}
    told: Told = {(name, partition): [] for name, found in topics.items() for partition in found.partitions}
    left = set(told)
    consumer.assign([TopicPartition(*where, OFFSET_BEGINNING) for where in told])
    deadline = time.monotonic() + READ_S
    while left:
        if time.monotonic() > deadline:
            raise CommandFailed(f"the topics could not be read within {READ_S:g} s", TIMED_OUT)
        for message in consumer.consume(5000, timeout=0.5):
            where, error = (str(message.topic()), int(message.partition() or 0)), message.error()
            if error is None:
                told[where].append(understand(*where, _record(message)))
            elif error.code() == KafkaError._PARTITION_EOF:
                left.discard(where)
    return told


def _record(message: Any) -> Record:
    return Record(message.value(), message.key(), tuple(message.headers() or ()), 0, message.offset())
