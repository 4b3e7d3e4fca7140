"""A prober: small requests to some brokers all the time, each timed. What a client of a large cluster would feel.

One thread per broker and kind of request (Produce acks=all, Metadata of one topic, Fetch), each on a connection of its
own, with a short pause between requests. Every answer counts, also "not leader": the question is how long a request
may take, and, from the produced records, how long a partition took none.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from support_raw import Raw

PAUSE_S = 0.01


@dataclass(frozen=True)
class Probe:
    kind: str
    broker: int
    partition: int
    began: float
    took_s: float
    error: int


@dataclass
class Prober:
    """`brokers`: {id: (host, port)}; `topic` has `partitions` partitions, all asked in turn."""

    brokers: Mapping[int, tuple[str, int]]
    topic: str
    partitions: int
    probes: list[Probe] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def __enter__(self) -> Prober:
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(broker, kind), daemon=True, name=f"probe-{kind}-{broker}")
            for broker in self.brokers for kind in ("produce", "metadata", "fetch")
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, broker: int, kind: str) -> None:
        try:
            with Raw(*self.brokers[broker]) as raw:
                ask = self._asker(raw, kind)
                turn = 0
                while not self._stop.is_set():
                    partition = turn % self.partitions
                    began = time.monotonic()
                    error = ask(partition)
                    self.probes.append(Probe(kind, broker, partition, began, time.monotonic() - began, error))
                    turn += 1
                    self._stop.wait(PAUSE_S)
        except (OSError, AssertionError) as error:
            self.failures.append(f"{kind} to broker {broker}: {error!r}")

    def _asker(self, raw: Raw, kind: str) -> Callable[[int], int]:
        def metadata(_: int) -> int:
            raw.leaders(self.topic)
            return 0

        def produce(partition: int) -> int:
            return raw.produce(self.topic, partition, b"probe", acks=-1)[0]

        def fetch(partition: int) -> int:
            return raw.fetch(self.topic, partition, 0)[0]

        return {"metadata": metadata, "produce": produce, "fetch": fetch}[kind]

    def longest(self, began: float, ended: float) -> Probe:
        """The slowest request that was under way between the two times. A fetch may wait 0.1 s by its own wish."""
        return max((p for p in self.probes if p.began + p.took_s > began and p.began < ended), key=lambda p: p.took_s)

    def without_ack_s(self, partition: int, since: float) -> float:
        """From `since` to the first acknowledged write of the partition."""
        acked = [p.began + p.took_s for p in self.probes
                 if p.kind == "produce" and p.partition == partition and p.error == 0 and p.began > since]
        return min(acked) - since if acked else float("inf")
