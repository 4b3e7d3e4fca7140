"""A whole broker killed at each of its file calls: in append, journal, roll, checkpoint, and in the recovery after it.

The one broker of a cluster runs under strace, which kills it at the n-th call of a kind while a client writes; then it
starts again, is killed at the n-th call of its recovery, and starts a third time. Every acknowledged record must be
there, once, at its offset. (test_crash_sweep.py does the same to the storage layer alone, truncations included.)
"""

from __future__ import annotations

import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from millrace.wire.records import parse_batches, records_of
from support_cluster import Cluster, wait_for
from support_raw import Raw
from support_secret import write_secret

TOPIC = "swept"
CALLS = ("pwrite64", "pwritev", "fdatasync", "fsync", "rename", "ftruncate", "unlink")
CONFIG = {"broker": {"log_file_bytes": 1 << 20, "leader_balance_s": 0}}
SIZES = (100, 5_000, 100_000, 300, 400_000, 70_000)     # through the journal and past it; a log file rolls every few
ROUNDS = 24                                             # ten log files' worth
PARTITIONS = 3


@dataclass
class Life:
    """A cluster of one broker whose next start may run under strace."""

    dir: Path
    strace: list[str] = field(default_factory=list)
    acked: dict[tuple[int, int], bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cluster = Cluster(1, dir=self.dir, config=CONFIG, wait=False, prefix_of=lambda broker: self.strace)

    def kill_at(self, call: str, n: int) -> None:
        self.strace = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}",
                       "-e", f"inject={call}:signal=KILL:when={n}"]

    def start(self) -> bool:
        """False when it was killed before it was ready."""
        self.cluster.start_broker(0)
        broker = self.cluster.brokers[0]
        wait_for(lambda: not broker.alive or self.cluster.is_ready(0), "the broker to be ready or dead", 60)
        return broker.alive

    def end(self) -> None:
        """kill -9, whatever runs: strace's child first, then strace itself."""
        process = self.cluster.brokers[0].process
        assert process is not None
        if process.poll() is None:
            subprocess.run(["pkill", "-KILL", "-P", str(process.pid)], check=False)
            if not self.strace:
                process.send_signal(signal.SIGKILL)
        process.wait(timeout=30)

    def write(self) -> bool:
        """Until done or dead; True when the broker lived to the end."""
        broker = self.cluster.brokers[0]
        try:
            with Raw(broker.host, broker.kafka_port) as raw:
                for n in range(ROUNDS * len(SIZES)):
                    value = f"{len(self.acked)}:{n}:".encode().ljust(SIZES[n % len(SIZES)], b"x")
                    error, offset = raw.produce(TOPIC, n % PARTITIONS, value, acks=-1)
                    if error == 0:
                        self.acked[n % PARTITIONS, offset] = value
        except (OSError, AssertionError):
            return False
        return True

    def check(self) -> None:
        broker = self.cluster.brokers[0]
        for partition in range(PARTITIONS):
            found = read_all(broker.host, broker.kafka_port, partition)
            mine = {offset: value for (p, offset), value in self.acked.items() if p == partition}
            lost = [offset for offset, value in mine.items() if found.get(offset) != value]
            assert not lost, f"partition {partition}: acknowledged and not there: {lost[:5]}"


def read_all(host: str, port: int, partition: int) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    with Raw(host, port) as raw:
        at = 0
        while True:
            error, hw, data = raw.fetch(TOPIC, partition, at)
            assert error == 0, error
            if at >= hw:
                return found
            whole = data[: whole_bytes(data)]
            for header in parse_batches(whole):
                found |= {r.offset: r.value or b"" for r in records_of(whole, header)}
                at = header.base_offset + header.last_offset_delta + 1


def whole_bytes(data: bytes) -> int:
    """A fetch may end inside a batch."""
    at = 0
    while at + 12 <= len(data):
        end = at + 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        if end > len(data):
            break
        at = end
    return at


def swept(tmp: Path, call: str, n: int) -> tuple[bool, bool]:
    """(killed while it worked, killed while it recovered), checked."""
    life = Life(tmp / f"{call}-{n}")
    life.dir.mkdir()
    life.cluster.cluster_id = "5f3f5b0a-6a57-4d55-9a52-1d9b7e4c0f11"
    write_secret(life.dir / "secret")
    life.cluster.add_broker(0)
    try:
        assert life.start()
        life.cluster.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=1)
        life.end()
        life.kill_at(call, n)
        working = not (life.start() and life.write())
        life.end()
        life.kill_at(call, n)
        recovering = not life.start()
        life.end()
        life.strace = []
        assert life.start()
        life.check()
        assert life.write(), "it does not work on"
        life.check()
    except BaseException:
        life.cluster.print_tails()
        raise
    finally:
        life.end()
    return working, recovering


FEW = (("fdatasync", 5), ("pwrite64", 20), ("rename", 2))
ALL = [(call, n) for call in CALLS for n in (*range(1, 25), *range(25, 200, 7))]


def test_L10_a_broker_killed_at_a_file_call_loses_nothing_acknowledged(tmp_path: Path) -> None:
    assert any(swept(tmp_path, call, n)[0] for call, n in FEW)


@pytest.mark.long
@pytest.mark.timeout(0)
def test_L10_a_broker_killed_at_any_file_call_loses_nothing_acknowledged(tmp_path: Path) -> None:
    killed = {"working": 0, "recovering": 0}
    over: set[str] = set()          # kinds of call of which there were fewer than n
    for call, n in ALL:
        if call in over:
            continue
        working, recovering = swept(tmp_path, call, n)
        killed["working"] += working
        killed["recovering"] += recovering
        if not working and not recovering:
            over.add(call)
    print(f"a broker killed at a file call: {killed}")
    assert killed["working"] > 50
    assert killed["recovering"] > 20
