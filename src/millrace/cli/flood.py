"""One producer process that sends as fast as it can, for `millrace bench log`.

In: bootstrap, topic, partitions, message bytes, seconds, batch bytes, linger. Out: one JSON line. Everything counted
was acknowledged: the clock stops when the last answer is in.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any

from confluent_kafka import Producer

from millrace.cli.load import QUIET

BURST = 1000     # messages between two looks at the clock


def flood(
    bootstrap: str, topic: str, partitions: int, message_bytes: int, seconds: float, batch_bytes: int, linger_ms: int
) -> dict[str, Any]:
    failed = 0

    def answered(error: Any, message: Any) -> None:   # only errors are reported, so that counting costs nothing
        nonlocal failed
        failed += error is not None

    producer = Producer({
        "bootstrap.servers": bootstrap, "acks": "all", "linger.ms": linger_ms, "batch.size": batch_bytes,
        "queue.buffering.max.messages": 500_000, "queue.buffering.max.kbytes": 262_144,
        "delivery.report.only.error": True, "compression.type": "none", **QUIET,
    })
    value = b"x" * message_bytes
    sent = 0
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        for _ in range(BURST):
            _send(producer, topic, value, sent % partitions, answered)
            sent += 1
        producer.poll(0)
    failed += producer.flush(120)
    elapsed = time.monotonic() - began
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {"messages": sent - failed, "failed": failed, "seconds": elapsed, "cpu_s": usage.ru_utime + usage.ru_stime}


def _send(producer: Any, topic: str, value: bytes, partition: int, answered: Any) -> None:
    while True:
        try:
            producer.produce(topic, value, partition=partition, on_delivery=answered)
            return
        except BufferError:
            producer.poll(0.01)


if __name__ == "__main__":
    kinds = (str, str, int, int, float, int, int)
    print(json.dumps(flood(*(kind(text) for kind, text in zip(kinds, sys.argv[1:], strict=True)))))
