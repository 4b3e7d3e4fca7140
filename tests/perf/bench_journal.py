"""What a sync round costs, and what a log alone carries. Writes docs/benchmarks/journal.md and journal.json.

    python tests/perf/bench_journal.py [--quick] [--dir DIR] [--out DIR]

Part 1 compares the forms group commit could take, with plain files: a sync of each, threads, syncfs, one journal that
grows, one that is used again. Part 2 is the log itself: rounds with 1 to 300 partitions, the share that catching up
takes, appends and reads, the check of cold data, and the start of a directory with 10,000 partitions.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import os
import shutil
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

sys.path.insert(0, str(Path(__file__).parents[1]))

from millrace.limits import MIB
from millrace.log.files.home import Sizes
from millrace.log.files.log_dir import LogDir
from millrace.log.files.partition_log import PartitionLog
from millrace.model.ids import TopicPartition
from millrace.ops.real import RealFileSystem
from millrace.wire.records import Record, build_batch

ROOT = Path(__file__).parents[2]
PARTITIONS = (1, 10, 100, 300)
TOPIC = UUID(int=5)


def quantiles_ms(seconds: list[float]) -> tuple[float, float]:
    ordered = sorted(seconds)
    return round(ordered[len(ordered) // 2] * 1e3, 3), round(ordered[int(len(ordered) * 0.99)] * 1e3, 3)


# -- forms of group commit -------------------------------------------------------------------------------------------

def forms(folder: str, files: int, size: int, rounds: int) -> dict[str, tuple[float, float]]:
    data, position = os.urandom(size), 0
    fds = [os.open(f"{folder}/{n}", os.O_RDWR | os.O_CREAT) for n in range(files)]
    grows, again = (os.open(f"{folder}/{name}", os.O_RDWR | os.O_CREAT) for name in ("grows", "again"))
    os.pwrite(again, b"\1" * (size * files * rounds + 1), 0)
    os.sync()
    libc, pool, places = ctypes.CDLL(None), ThreadPoolExecutor(8), {grows: 0, again: 0}

    def journal(fd: int) -> None:
        os.pwrite(fd, data * files, places[fd])
        places[fd] += size * files
        os.fdatasync(fd)

    def threads() -> None:
        list(pool.map(lambda some: [os.fdatasync(fd) for fd in some], [fds[n::8] for n in range(8)]))

    ways: dict[str, Callable[[], object]] = {
        "fdatasync each": lambda: [os.fdatasync(fd) for fd in fds],
        "8 threads": threads,
        "syncfs": lambda: libc.syncfs(fds[0]),
        "journal that grows": lambda: journal(grows),
        "journal used again": lambda: journal(again),
    }
    found = {}
    for name, way in ways.items():
        taken = []
        for _ in range(rounds):
            for fd in fds:
                os.pwrite(fd, data, position)
            position += size
            begun = time.perf_counter()
            way()
            taken.append(time.perf_counter() - begun)
        found[name] = quantiles_ms(taken)
        os.sync()
    pool.shutdown()
    for fd in (*fds, grows, again):
        os.close(fd)
    return found


# -- the log itself --------------------------------------------------------------------------------------------------

def open_dir(path: str, flush: str = "group", sizes: Sizes | None = None) -> LogDir:
    return LogDir.open(
        path, RealFileSystem(), cluster_id=UUID(int=1), broker_id=0, flush=flush, boot_id="bench", sizes=sizes
    )


def one_batch(size: int, record: int = 100) -> bytearray:
    return build_batch([Record(b"x" * record, timestamp_ms=1)] * max(1, size // (record + 14)))


async def rounds(path: str, partitions: int, size: int, count: int, sizes: Sizes) -> dict[str, float]:
    """Every partition gets one batch, all wait for the round; then the next."""
    directory = open_dir(path, sizes=sizes)
    logs = [directory.partition(TopicPartition(TOPIC, n)) for n in range(partitions)]
    loop, data = asyncio.get_running_loop(), one_batch(size, min(100, size))
    left, ended = 0, loop.create_future()

    def durable(_: PartitionLog, error: object) -> None:
        nonlocal left
        assert error is None
        left -= 1
        if not left:
            ended.set_result(None)

    for log in logs:
        log.on_durable = durable
    taken, appending = [], 0.0
    for _ in range(count):
        left, ended = partitions, loop.create_future()
        begun = time.perf_counter()
        for log in logs:
            log.append(bytearray(data), epoch=0)
            directory.request_sync(log)
        appended = time.perf_counter()
        await ended
        taken.append(time.perf_counter() - appended)
        appending += appended - begun
    await directory.close()
    median, p99 = quantiles_ms(taken)
    return {"round_ms": median, "round_p99_ms": p99, "append_us": round(appending / count / partitions * 1e6, 1)}


def throughput(path: str, record: int, total: int) -> dict[str, float]:
    directory = open_dir(path, "os")
    log = directory.partition(TopicPartition(TOPIC, 0))
    data = one_batch(MIB - 2_000, record)
    count = total // len(data)
    begun = time.perf_counter()
    for _ in range(count):
        log.append(data, epoch=0)
    written = time.perf_counter()
    offset = 0
    while (chunk := log.read(offset, MIB, upto=log.log_end)) is not None:
        chunk.bytes()
        offset = chunk.end
    read = time.perf_counter()
    directory.close_now(clean=True)
    directory = open_dir(path, "os")
    log, offset = directory.partition(TopicPartition(TOPIC, 0)), 0
    cold_begun = time.perf_counter()
    while (chunk := log.read(offset, MIB, upto=log.log_end)) is not None:
        chunk.bytes()
        offset = chunk.end
    cold = time.perf_counter()
    directory.close_now(clean=True)
    megabytes = count * len(data) / MIB
    return {
        "append_MiB_s": round(megabytes / (written - begun)), "read_MiB_s": round(megabytes / (read - written)),
        "first_read_MiB_s": round(megabytes / (cold - cold_begun)),
    }


def small_appends(path: str, count: int) -> dict[str, float]:
    found = {}
    for flush in ("os", "group"):
        directory = open_dir(f"{path}-{flush}", flush)
        log, data = directory.partition(TopicPartition(TOPIC, 0)), one_batch(100, 100)
        begun = time.perf_counter()
        for _ in range(count):
            log.append(data, epoch=0)
        found[f"append_100B_us_{flush}"] = round((time.perf_counter() - begun) / count * 1e6, 1)
        begun = time.perf_counter()
        for offset in range(count):
            log.read(offset, 1, upto=count)
        found[f"read_one_batch_us_{flush}"] = round((time.perf_counter() - begun) / count * 1e6, 1)
        directory.close_now(clean=True)
    return found


def start(path: str, partitions: int) -> dict[str, float]:
    directory = open_dir(path)
    data = one_batch(100)
    for n in range(partitions):
        directory.partition(TopicPartition(TOPIC, n)).append(data, epoch=0)
    directory.close_now(clean=True)
    found: dict[str, float] = {}
    for how in ("clean", "unclean"):
        begun = time.perf_counter()
        directory = open_dir(path)
        logs = [directory.partition(TopicPartition(TOPIC, n)) for n in range(partitions)]
        found[f"{how}_start_s"] = round(time.perf_counter() - begun, 3)
        found[f"{how}_open_files"] = directory.measures()["open_files"]
        assert logs[-1].log_end == 1
        directory.close_now(clean=False)
    tracemalloc.start()                    # slows everything down: not while the clock runs
    directory = open_dir(path)
    logs = [directory.partition(TopicPartition(TOPIC, n)) for n in range(partitions)]
    found["KiB_per_partition"] = round(tracemalloc.get_traced_memory()[0] / partitions / 1024, 2)
    tracemalloc.stop()
    directory.close_now(clean=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--dir", default="/var/tmp")
    parser.add_argument("--out", default=str(ROOT / "docs" / "benchmarks"))
    options = parser.parse_args()
    counts = {1: 200, 10: 100, 100: 40, 300: 20} if not options.quick else dict.fromkeys(PARTITIONS, 5)
    base = tempfile.mkdtemp(prefix="millrace-bench-", dir=options.dir)
    try:
        report = measure(base, counts, quick=options.quick)
    finally:
        shutil.rmtree(base)
    os.makedirs(options.out, exist_ok=True)
    Path(options.out, "journal.json").write_text(json.dumps(report, indent=1) + "\n")
    Path(options.out, "journal.md").write_text(render(report))
    print(render(report))


def measure(base: str, counts: dict[int, int], *, quick: bool) -> dict[str, object]:
    plain, logs = [], []
    no_journal = Sizes(journal_batch_bytes=0)
    for size in (170, 4096):
        for files, count in counts.items():
            folder = tempfile.mkdtemp(dir=base)
            plain.append({"files": files, "bytes": size, "ms": forms(folder, files, size, count)})
            shutil.rmtree(folder)
            for name, sizes in (("journal", Sizes()), ("no journal", no_journal)):
                path = tempfile.mkdtemp(dir=base)
                found = asyncio.run(rounds(path, files, size, max(count, 10), sizes))
                logs.append({"partitions": files, "bytes": size, "form": name, **found})
                shutil.rmtree(path)
    total = (64 if quick else 1024) * MIB
    return {
        "forms": plain, "rounds": logs,
        "throughput": {f"{n} B": throughput(f"{base}/t{n}", n, total) for n in (100, 1_000)},
        "small": small_appends(f"{base}/small", 2_000 if quick else 50_000),
        "start_10000": start(f"{base}/start", 500 if quick else 10_000),
    }


def render(report: dict[str, object]) -> str:
    about = "Written by tests/perf/bench_journal.py; medians / 99th percentiles in ms."
    lines = ["# Journal and log files", "", about, ""]
    forms_of: list[dict[str, object]] = report["forms"]  # type: ignore[assignment]
    names = list(forms_of[0]["ms"])  # type: ignore[call-overload]
    lines += ["| dirty files x bytes | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for row in forms_of:
        cells = [f"{a:.2f} / {b:.2f}" for a, b in row["ms"].values()]  # type: ignore[attr-defined]
        lines.append(f"| {row['files']} x {row['bytes']} | " + " | ".join(cells) + " |")
    lines += ["", "The log itself, from the last append to the durable end of all:", ""]
    lines += ["| partitions x bytes | form | round | append, us |", "|---|---|---|---|"]
    for row in report["rounds"]:  # type: ignore[attr-defined]
        cells = f"{row['round_ms']:.2f} / {row['round_p99_ms']:.2f} | {row['append_us']}"
        lines.append(f"| {row['partitions']} x {row['bytes']} | {row['form']} | {cells} |")
    for part in ("throughput", "small", "start_10000"):
        lines += ["", f"{part}: `{json.dumps(report[part])}`"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
