"""Members of consumer groups in processes of their own, one per client library, and what they say of their positions.

A reader prints `A partition -1` when a partition is assigned to it, `R partition offset` for each record, and
`C partition offset` for each commit that was acknowledged.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition

HERE = Path(__file__).parent / "clients" / "readers"
BUILD_S = 600


class Positions:
    """The words of one reader, checked as they come.

    `wrong`: a position that went back although the partition was not assigned anew, or below an acknowledged commit; or
    one that left records out."""

    def __init__(self) -> None:
        self.next: dict[int, int] = {}
        self.committed: dict[int, int] = {}
        self.fresh: set[int] = set()
        self.records = self.assignments = 0
        self.wrong: list[str] = []

    def take(self, line: str) -> None:
        kind, partition, offset = line.split()
        at, to = int(partition), int(offset)
        if kind == "A":
            self.fresh.add(at)
            self.assignments += 1
        elif kind == "C":
            self.committed[at] = max(to, self.committed.get(at, 0))
        else:
            self._read(at, to)

    def _read(self, at: int, to: int) -> None:
        expected = self.next.get(at, 0)
        lowest = self.committed.get(at, 0) if at in self.fresh else expected
        if not lowest <= to <= expected:
            self.wrong.append(f"partition {at}: read {to}, expected {lowest}..{expected}")
        self.fresh.discard(at)
        self.next[at] = to + 1
        self.records += 1


class Reader:
    """A reader process; its words are taken in a thread."""

    def __init__(self, name: str, command: list[str]) -> None:
        self.name = name
        self.positions = Positions()
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith("\n"):             # the last one of a process that was killed may be half of one
                self.positions.take(line)

    def check(self) -> None:
        assert self._process.poll() is None, f"the reader of {self.name} ended with {self._process.returncode}"
        assert not self.positions.wrong, f"{self.name}: {self.positions.wrong[:5]}"

    def close(self) -> None:
        self._process.kill()
        self._process.wait(30)
        self._thread.join(30)
        assert self._process.stdout is not None
        self._process.stdout.close()


# -- one per library ---------------------------------------------------------------------------------------------------
def librdkafka() -> list[str]:
    return [sys.executable, __file__]


def java(directory: Path, program: str = "Reader.java") -> list[str]:
    """The jars come by name, as Maven is set up on this machine."""
    jars = directory / "jars"
    subprocess.run(
        ["mvn", "-q", "-B", "-f", str(HERE / "java" / "pom.xml"), "dependency:copy-dependencies",
         f"-DoutputDirectory={jars}"], check=True, timeout=BUILD_S,
    )
    return ["java", "-Xmx256m", "-cp", f"{jars}/*", str(HERE / "java" / program)]


def franz_go(directory: Path, package: str = ".") -> list[str]:
    program = directory / "reader"
    subprocess.run(["go", "build", "-o", str(program), package], cwd=HERE / "go", check=True, timeout=BUILD_S)
    return [str(program)]


def _main(bootstrap: str, group: str, topic: str) -> None:
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest", "log_level": 0,
        "enable.auto.commit": False, "topic.metadata.refresh.interval.ms": 2000, "reconnect.backoff.max.ms": 1000,
    })
    consumer.subscribe([topic], on_assign=lambda _, found: [print("A", p.partition, -1) for p in found])
    while True:
        read = [message for message in consumer.consume(500, 0.2) if message.error() is None]
        done = {message.partition(): message.offset() + 1 for message in read}
        for message in read:
            print("R", message.partition(), message.offset())
        if not done:
            continue
        try:
            stored = consumer.commit(offsets=[TopicPartition(topic, *one) for one in done.items()], asynchronous=False)
        except KafkaException:
            stored = []                    # read on: the next commit covers it
        for one in stored or []:
            if one.error is None:
                print("C", one.partition, one.offset)
        sys.stdout.flush()


if __name__ == "__main__":
    _main(*sys.argv[1:])
