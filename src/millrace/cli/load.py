"""A checked load: a producer that remembers what was acknowledged, a reader that says what is there.

Every message carries its number; number n goes to partition n mod partitions. So the reader can tell what was lost,
read twice, or out of order, without asking the system under test.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition


@dataclass(slots=True)
class Acked:
    """One acknowledged message: where it is, and when we learned it."""

    number: int
    partition: int
    offset: int
    at: float
    latency_s: float


@dataclass
class SteadyProducer:
    """Sends `rate` messages a second, acks=all, until `stop`; `acked` grows as answers come."""

    bootstrap: str
    topic: str
    partitions: int
    rate: float
    settings: dict[str, Any] = field(default_factory=dict)
    payload_bytes: int = 100
    acked: list[Acked] = field(default_factory=list)
    failed: int = 0

    def start(self) -> None:
        self._stop = threading.Event()
        self._producer = Producer({"bootstrap.servers": self.bootstrap, "acks": "all", **QUIET, **self.settings})
        self._thread = threading.Thread(target=self._run, name="producer", daemon=True)
        self._thread.start()

    def stop(self, flush_s: float = 60.0) -> int:
        """Waits for outstanding answers; returns how many messages were sent."""
        self._stop.set()
        self._thread.join()
        self._producer.flush(flush_s)
        return self._sent

    def _run(self) -> None:
        self._sent = 0
        began = time.monotonic()
        while not self._stop.is_set():
            due = int((time.monotonic() - began) * self.rate)
            while self._sent < due:
                self._send(self._sent)
                self._sent += 1
            self._producer.poll(0.001)

    def _send(self, number: int) -> None:
        value = str(number).encode().ljust(self.payload_bytes, b".")
        while True:
            try:
                self._producer.produce(
                    self.topic, value, partition=number % self.partitions, on_delivery=self._answered)
                return
            except BufferError:   # the queue is full while no leader answers: keep the order, wait for room
                self._producer.poll(0.05)

    def _answered(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self.failed += 1
            return
        number = int(message.value().rstrip(b"."))
        self.acked.append(Acked(number, message.partition(), message.offset(), time.monotonic(), message.latency()))


QUIET = {"log_level": 0, "error_cb": lambda error: None, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200}


class Reader:
    """Reads every partition from its beginning; `seen[partition]` is [(offset, number)] in the order read."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.seen: list[list[tuple[int, int]]] = [[] for _ in range(partitions)]
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False,
                                   "auto.offset.reset": "error", **QUIET})
        self._consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(partitions)])
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.read_some(0.1)

    def read_some(self, timeout_s: float) -> int:
        messages: list[Any] = self._consumer.consume(10_000, timeout_s)
        count = 0
        for message in messages:
            if message.error() is None:
                self.seen[message.partition()].append((message.offset(), int(message.value().rstrip(b"."))))
                count += 1
        return count

    def read_up_to(self, ends: dict[int, int], timeout_s: float = 60.0) -> bool:
        """Reads until each partition has shown its offset `ends[p] - 1`; False at the deadline."""
        deadline = time.monotonic() + timeout_s
        while any(not self.seen[p] or self.seen[p][-1][0] < end - 1 for p, end in ends.items()):
            if time.monotonic() > deadline:
                return False
            self.read_some(0.1)
        return True

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._consumer.close()


@dataclass(frozen=True, slots=True)
class Verdict:
    acked: int
    read: int
    lost: int              # acknowledged, and not there
    moved: int             # acknowledged at one offset, found at another
    doubled: int           # there more than once (a retried send without idempotence may do that)
    out_of_order: int      # first appearances that go back

    @property
    def ok(self) -> bool:
        return self.acked > 0 and not (self.lost or self.moved or self.out_of_order)


def judge(acked: list[Acked], seen: list[list[tuple[int, int]]]) -> Verdict:
    """Compares what was promised with what is there."""
    at = {(p, offset): number for p, rows in enumerate(seen) for offset, number in rows}
    numbers = {number for rows in seen for _, number in rows}
    lost = sum(a.number not in numbers for a in acked)
    moved = sum(a.number in numbers and at.get((a.partition, a.offset)) != a.number for a in acked)
    return Verdict(
        acked=len(acked), read=len(at), lost=lost, moved=moved, doubled=len(at) - len(numbers),
        out_of_order=sum(_steps_back(rows) for rows in seen),
    )


def _steps_back(rows: list[tuple[int, int]]) -> int:
    highest, back = -1, 0
    seen: set[int] = set()
    for _, number in sorted(rows):
        if number not in seen and number < highest:
            back += 1
        seen.add(number)
        highest = max(highest, number)
    return back
