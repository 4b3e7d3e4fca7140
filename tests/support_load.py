"""Load and its judge: an unmodified confluent-kafka producer, and a reader that checks the history from outside.

A record's value is its number; numbers of one partition only grow. What the client was told (acknowledged at offset n,
failed, never answered) is the history; what a fresh consumer reads afterwards is judged against it:

- lost: acknowledged, yet not at its offset [L22]
- changed: another value stands at an acknowledged offset
- disorder: first appearances of numbers in a partition that do not grow
- doubled: a number at two offsets (a violation only with an idempotent producer)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition


@dataclass
class Ack:
    number: int
    partition: int
    offset: int
    sent_at: float
    acked_at: float


@dataclass
class Load:
    """A steady producer in a thread. `rate` messages a second, round robin over `partitions`."""

    bootstrap: str
    topic: str
    partitions: int
    rate: int = 300
    config: Mapping[str, Any] = field(default_factory=dict)
    padding: int = 0
    first: int = 0          # numbers count from here, so that several producers can share a partition
    acks: list[Ack] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)
    sent: int = 0

    def __enter__(self) -> Load:
        self._stop = threading.Event()
        self._producer = Producer({"bootstrap.servers": self.bootstrap, "acks": "all", **self.config})
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stop(60.0 if kind is None else 0.0)   # a test that failed is not kept waiting

    def stop(self, flush_s: float = 60.0) -> None:
        """Ends the load and waits until every message is acknowledged or failed."""
        self._stop.set()
        self._thread.join()
        self._producer.flush(flush_s)

    def _run(self) -> None:
        pad = b"." * self.padding
        due = time.monotonic()
        while not self._stop.is_set():
            number = self.first + self.sent
            partition = self.sent % self.partitions
            self.sent += 1
            at = time.monotonic()
            try:
                self._producer.produce(
                    self.topic, b"%d " % number + pad, partition=partition, on_delivery=self._delivered(number, at)
                )
            except BufferError:
                self.sent -= 1
            due = max(due + 1 / self.rate, time.monotonic() - 0.1)
            self._producer.poll(max(0.0, due - time.monotonic()))

    def _delivered(self, number: int, sent_at: float) -> Any:
        def done(error: Any, message: Any) -> None:
            if error is not None:
                self.failed[number] = str(error)
            else:
                self.acks.append(Ack(number, message.partition(), message.offset(), sent_at, time.monotonic()))
        return done

    def first_ack_after(self, at: float, partitions: set[int], timeout_s: float = 60.0) -> float:
        """Seconds from `at` to the first acknowledgement, in `partitions`, of a message sent after `at`."""
        deadline = time.monotonic() + timeout_s
        seen = 0
        while time.monotonic() < deadline:
            now = len(self.acks)
            for ack in self.acks[seen:now]:
                if ack.sent_at > at and ack.partition in partitions:
                    return ack.acked_at - at
            seen = now
            time.sleep(0.002)
        some = list(self.failed.items())[:3]
        raise AssertionError(f"no write was acknowledged within {timeout_s} s (failed: {some})")

    def wait_acks(self, count: int, timeout_s: float = 30.0) -> None:
        """Until `count` more messages are acknowledged."""
        target = len(self.acks) + count
        deadline = time.monotonic() + timeout_s
        while len(self.acks) < target:
            assert time.monotonic() < deadline, f"{len(self.acks)} of {target} acknowledged after {timeout_s} s"
            time.sleep(0.005)


def read_all(bootstrap: str, topic: str, partitions: int, timeout_s: float = 60.0) -> dict[int, dict[int, int]]:
    """{partition: {offset: number}} from the earliest to the end, by a fresh consumer."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "judge", "enable.auto.commit": False,
                         "auto.offset.reset": "earliest", "enable.partition.eof": True, "check.crcs": True})
    found: dict[int, dict[int, int]] = {p: {} for p in range(partitions)}
    try:
        consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
        deadline = time.monotonic() + timeout_s
        open_partitions = set(range(partitions))
        while open_partitions:
            assert time.monotonic() < deadline, f"partitions {sorted(open_partitions)} not read to their end"
            for message in consumer.consume(1000, 0.2):
                error = message.error()
                if error is None:
                    number = int(message.value().split(b" ", 1)[0])
                    found[message.partition()][message.offset()] = number
                elif error.name() == "_PARTITION_EOF":
                    open_partitions.discard(message.partition())
    finally:
        consumer.close()
    return found


@dataclass
class Verdict:
    acked: int
    read: int
    lost: list[Ack]
    changed: list[tuple[Ack, int]]
    disorder: list[tuple[int, int]]
    doubled: list[int]

    def assert_nothing_lost(self, *, idempotent: bool = False, ordered: bool = True) -> None:
        assert not self.lost, f"{len(self.lost)} acknowledged records lost, first {self.lost[:3]}"
        assert not self.changed, f"{len(self.changed)} acknowledged offsets changed, first {self.changed[:3]}"
        assert not (ordered and self.disorder), f"order broken at {self.disorder[:3]}"
        if idempotent:
            assert not self.doubled, f"{len(self.doubled)} records doubled, first {self.doubled[:3]}"


def judge(acks: list[Ack], found: Mapping[int, Mapping[int, int]]) -> Verdict:
    lost, changed = [], []
    for ack in acks:
        there = found[ack.partition].get(ack.offset)
        if there is None:
            lost.append(ack)
        elif there != ack.number:
            changed.append((ack, there))
    disorder, doubled = [], []
    for partition, log in found.items():
        seen: set[int] = set()
        last = -1
        for offset in sorted(log):
            number = log[offset]
            if number in seen:
                doubled.append(number)
                continue
            seen.add(number)
            if number < last:
                disorder.append((partition, offset))
            last = max(last, number)
    return Verdict(len(acks), sum(map(len, found.values())), lost, changed, disorder, doubled)
