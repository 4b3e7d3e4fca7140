"""`millrace bench log`: the log under a plain client (confluent-kafka), acks=all, three copies of everything.

Each case starts a fresh cluster, fills it for a while as fast as one producer process can, then measures the latency
of acknowledgements at a modest fixed rate. Beside it stands the floor: the same bytes written and synced by three plain
loops at once, in chunks as large as the brokers' sync rounds were, same disk, right after. Nothing is typed in by hand:
the report is made from what was measured.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

from millrace import __version__
from millrace.cli.load import QUIET, SteadyProducer
from millrace.cli.local import LocalCluster

BROKERS = 3
LATENCY_RATE = 1000.0
LATENCY_S = 5.0
WARM_S = 1.0
FLOOR_FILE_BYTES = 1 << 30
OTHERS_CPU_CORES_MAX = 0.2     # above this a case says more about its neighbours than about the log
TICKS = os.sysconf("SC_CLK_TCK")
BATCH_BYTES = 128 * 1024      # the producer's batch.size: larger than a client's default, as one would set it for speed
LINGER_MS = 5

METHOD = (
    "Three brokers and the client on one machine; replication factor 3, acks=all, one confluent-kafka producer process "
    f"(batch.size {BATCH_BYTES}, linger.ms {LINGER_MS}). Latency: send to acknowledgement at {LATENCY_RATE:.0f} "
    "messages/s with linger.ms 0. CPU: user + system seconds of all three brokers per million messages. Floor: three "
    "plain loops at once, one file each, that write the same bytes in chunks of the brokers' mean sync round (os: of "
    "the mean append) with one fdatasync per chunk (os: none), run right after the case. It moves nothing over a "
    "network and knows no partitions: a bound, not a peer."
)
COLUMNS = (
    "message", "partitions", "flush", "messages/s", "MB/s", "floor MB/s", "of floor", "ack p50 ms", "ack p99 ms",
    "floor p50 ms", "floor p99 ms", "broker CPU s/M", "client CPU s/M", "broker RSS MB", "others' CPU cores",
)


@dataclass(frozen=True, slots=True)
class Case:
    message_bytes: int
    partitions: int
    flush: str

    @property
    def name(self) -> str:
        return f"{self.message_bytes} B, {self.partitions} partitions, flush={self.flush}"


@dataclass(frozen=True, slots=True)
class Floor:
    """What the disk does with the same bytes: three writers, `chunk_bytes` a time, synced (or not) each time."""

    chunk_bytes: int
    mb_per_s: float
    chunk_ms_p50: float
    chunk_ms_p99: float


@dataclass(frozen=True, slots=True)
class Result:
    case: Case
    messages: int
    seconds: float
    messages_per_s: float
    mb_per_s: float
    failed: int
    latency_ms_p50: float
    latency_ms_p99: float
    latency_ms_max: float
    broker_cpu_s_per_million: float
    client_cpu_s_per_million: float
    broker_rss_mb: float
    others_cpu_cores: float        # taken by processes that are not ours, during the throughput measurement
    floor: Floor

    @property
    def share_of_floor(self) -> float:
        return self.mb_per_s / self.floor.mb_per_s


def cases(*, quick: bool) -> list[Case]:
    if quick:
        return [Case(100, 3, "group"), Case(1000, 300, "group")]
    return [Case(size, n, flush) for flush in ("group", "os") for n in (3, 300) for size in (100, 1000)]


def run(*, quick: bool, out: str, seconds: float) -> None:
    say = Console(stderr=True).print
    facts = machine_facts()
    results = []
    for case in cases(quick=quick):
        say(f"[bold]{case.name}[/]")
        result = measure(case, seconds=2.0 if quick else seconds)
        say(f"  {result.messages_per_s:,.0f} messages/s, {result.mb_per_s:.1f} MB/s, ack p50 "
            f"{result.latency_ms_p50:.2f} ms p99 {result.latency_ms_p99:.2f} ms, broker CPU "
            f"{result.broker_cpu_s_per_million:.2f} s per million; floor {result.floor.mb_per_s:.1f} MB/s")
        results.append(result)
    write_report(out, facts, results, quick=quick)
    say(f"wrote {out}/log.md and {out}/log.json")


def measure(case: Case, *, seconds: float) -> Result:
    settings = {"MILLRACE_BROKER__FLUSH": case.flush}
    with LocalCluster(BROKERS, settings=settings) as cluster:
        cluster.create_topic("bench", partitions=case.partitions)
        flood(cluster.bootstrap, case, WARM_S)
        before, cpu_before_s, busy_before_s = Written.by(cluster), cpu_s(cluster), busy_s()
        flooded = flood(cluster.bootstrap, case, seconds)
        broker_cpu_s = cpu_s(cluster) - cpu_before_s
        others_cpu_s = busy_s() - busy_before_s - broker_cpu_s - flooded["cpu_s"]
        chunk_bytes = Written.by(cluster).mean_chunk_bytes(before)
        latencies = _latencies_ms(cluster, case)
        rss_mb = sum(_rss_bytes(pid) for pid in cluster.pids().values()) / BROKERS / 1e6
    million = flooded["messages"] / 1e6
    mb = flooded["messages"] * case.message_bytes / 1e6
    return Result(
        case=case, messages=flooded["messages"], seconds=flooded["seconds"], failed=flooded["failed"],
        messages_per_s=flooded["messages"] / flooded["seconds"], mb_per_s=mb / flooded["seconds"],
        latency_ms_p50=quantile(latencies, 0.50), latency_ms_p99=quantile(latencies, 0.99),
        latency_ms_max=max(latencies), broker_cpu_s_per_million=broker_cpu_s / million,
        client_cpu_s_per_million=flooded["cpu_s"] / million, broker_rss_mb=rss_mb,
        others_cpu_cores=max(0.0, others_cpu_s / flooded["seconds"]),
        floor=floor(chunk_bytes, sync=case.flush == "group", seconds=min(3.0, seconds)),
    )


@dataclass(frozen=True, slots=True)
class Written:
    """What the brokers have written so far, and in how many pieces."""

    bytes: float
    rounds: float
    appends: float

    @classmethod
    def by(cls, cluster: LocalCluster) -> Written:
        samples = [cluster.metrics(broker) for broker in range(BROKERS)]

        def total(*names: str) -> float:
            return sum(sample.get(f"millrace_{name}", 0.0) for sample in samples for name in names)

        return cls(total("produce_bytes_total", "replica_bytes_in_total"), total("sync_rounds_total"),
                   total('requests_total{api="produce"}', "replica_frames_in_total"))

    def mean_chunk_bytes(self, before: Written) -> int:
        pieces = (self.rounds - before.rounds) or (self.appends - before.appends)
        return max(1, int((self.bytes - before.bytes) / pieces))


def flood(bootstrap: str, case: Case, seconds: float) -> dict[str, Any]:
    """One producer process as fast as it can; a process of its own, so that its CPU is not ours."""
    command = [sys.executable, "-m", "millrace.cli.flood", bootstrap, "bench", str(case.partitions),
               str(case.message_bytes), str(seconds), str(BATCH_BYTES), str(LINGER_MS)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _latencies_ms(cluster: LocalCluster, case: Case) -> list[float]:
    """Send to acknowledgement at a fixed rate, without lingering."""
    producer = SteadyProducer(cluster.bootstrap, "bench", case.partitions, LATENCY_RATE,
                              settings={"linger.ms": 0, **QUIET}, payload_bytes=case.message_bytes)
    producer.start()
    time.sleep(LATENCY_S)
    producer.stop()
    settled = [a.latency_s * 1000 for a in producer.acked if a.number > LATENCY_RATE / 2]
    return settled or [a.latency_s * 1000 for a in producer.acked]


def floor(chunk_bytes: int, *, sync: bool, seconds: float) -> Floor:
    """Three writers at once, as three brokers are; the rate is that of one of them, as each broker has every byte."""
    directory = tempfile.mkdtemp(prefix="millrace-floor-")
    chunk = os.urandom(chunk_bytes)
    times: list[list[float]] = [[] for _ in range(BROKERS)]
    writers = [
        threading.Thread(target=_write, args=(os.path.join(directory, str(n)), chunk, times[n]),
                         kwargs={"sync": sync, "seconds": seconds})
        for n in range(BROKERS)
    ]
    began = time.monotonic()
    try:
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        elapsed = time.monotonic() - began
    finally:
        shutil.rmtree(directory)
    every = [taken for of_one in times for taken in of_one]
    return Floor(chunk_bytes, len(every) / BROKERS * chunk_bytes / 1e6 / elapsed, quantile(every, 0.5),
                 quantile(every, 0.99))


def _write(path: str, chunk: bytes, times: list[float], *, sync: bool, seconds: float) -> None:
    """Within a file of bounded size: a floor must not fill the disk."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    at, deadline = 0, time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            start = time.perf_counter()
            os.pwrite(fd, chunk, at)
            if sync:
                os.fdatasync(fd)
            times.append((time.perf_counter() - start) * 1000)
            at = (at + len(chunk)) % FLOOR_FILE_BYTES
    finally:
        os.close(fd)


def quantile(values: list[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def cpu_s(cluster: LocalCluster) -> float:
    """User and system time of all brokers so far."""
    total = 0
    for pid in cluster.pids().values():
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            fields = file.read().rpartition(") ")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def busy_s() -> float:
    """CPU time of the whole machine spent on anything but waiting."""
    with open("/proc/stat", encoding="utf-8") as file:
        user, nice, system, _, _, irq, softirq, steal = map(int, file.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / TICKS


def _rss_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm", encoding="utf-8") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def machine_facts() -> dict[str, Any]:
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        models = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "millrace": __version__, "python": platform.python_version(), "kernel": platform.release(),
        "cpu": models[0] if models else platform.machine(), "cores": os.cpu_count(),
        "memory_gb": round(memory / 1e9, 1),
        "disk": _disk(tempfile.gettempdir()), "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "load_before": round(os.getloadavg()[0], 2),
    }


def _disk(path: str) -> str:
    """File system and device under `path`."""
    best = ("", "", "")
    with open("/proc/self/mounts", encoding="utf-8") as file:
        for line in file:
            device, mount, kind = line.split()[:3]
            if os.path.realpath(path).startswith(mount) and len(mount) > len(best[1]):
                best = (device, mount, kind)
    return f"{best[2]} on {best[0]}"


# -- report ------------------------------------------------------------------------------------------------------


def write_report(out: str, facts: dict[str, Any], results: list[Result], *, quick: bool) -> None:
    os.makedirs(out, exist_ok=True)
    body = {"facts": facts, "quick": quick, "settings": {"batch_bytes": BATCH_BYTES, "linger_ms": LINGER_MS,
            "latency_rate": LATENCY_RATE}, "results": [asdict(result) for result in results]}
    with open(os.path.join(out, "log.json"), "w", encoding="utf-8") as file:
        json.dump(body, file, indent=2)
        file.write("\n")
    with open(os.path.join(out, "log.md"), "w", encoding="utf-8") as file:
        file.write(render(facts, results, quick=quick))


def render(facts: dict[str, Any], results: list[Result], *, quick: bool) -> str:
    lines = [
        "# The log: throughput, latency, CPU",
        "",
        "Made by `millrace bench log" + (" --quick" if quick else "") + "`; nothing here is typed in by hand.",
        "",
        METHOD,
        "",
        *(f"- {key.replace('_', ' ')}: {value}" for key, value in facts.items()),
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|" + "---:|" * len(COLUMNS),
    ]
    lines += [_row(result) for result in results]
    spread = statistics.median(result.share_of_floor for result in results)
    failed = sum(result.failed for result in results)
    lines += ["", f"Messages that failed: {failed}. Median share of the floor: {spread:.0%}.", ""]
    disturbed = [result for result in results if result.others_cpu_cores > OTHERS_CPU_CORES_MAX]
    if disturbed:
        why = (f"**{len(disturbed)} of {len(results)} cases were disturbed**: other processes took more than "
               f"{OTHERS_CPU_CORES_MAX} cores meanwhile. Do not compare rows; run it again on a quiet machine.")
        lines += [why, ""]
    return "\n".join(lines)


def _row(r: Result) -> str:
    cells = [
        f"{r.case.message_bytes} B", str(r.case.partitions), r.case.flush, f"{r.messages_per_s:,.0f}",
        f"{r.mb_per_s:.1f}", f"{r.floor.mb_per_s:.1f}", f"{r.share_of_floor:.0%}", f"{r.latency_ms_p50:.2f}",
        f"{r.latency_ms_p99:.2f}", f"{r.floor.chunk_ms_p50:.2f}", f"{r.floor.chunk_ms_p99:.2f}",
        f"{r.broker_cpu_s_per_million:.2f}", f"{r.client_cpu_s_per_million:.2f}", f"{r.broker_rss_mb:.0f}",
        f"{r.others_cpu_cores:.2f}",
    ]
    return "| " + " | ".join(cells) + " |"
