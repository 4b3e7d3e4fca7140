"""Fixed work on a data directory, step by step, for the crash sweep: run as a process it says which steps are done.

Every step is one operation, so after a kill inside step n each log is as it was after step n - 1 or as after step n.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from hashlib import sha256
from uuid import UUID

from millrace.errors import MillraceError
from millrace.log.files.home import Sizes
from millrace.log.files.log_dir import LogDir
from millrace.log.files.partition_log import PartitionLog
from millrace.model.ids import TopicPartition
from millrace.ops.real import RealFileSystem
from millrace.wire.records import Record, build_batch

SIZES = Sizes(
    log_file_bytes=6_000, journal_file_bytes=2_000, journal_batch_bytes=1_000, journal_round_bytes=3_000, fds=3
)
LOGS = 3
Step = tuple[str, Callable[[LogDir], object]]


def tp(n: int) -> TopicPartition:
    return TopicPartition(UUID(int=3), n)


def open_dir(path: str, boot: str = "boot-1") -> LogDir:
    return LogDir.open(
        path, RealFileSystem(), cluster_id=UUID(int=1), broker_id=0, boot_id=boot, new_id=UUID(int=2), sizes=SIZES
    )


def append(n: int, size: int, epoch: int) -> Step:
    data = build_batch([Record(bytes([65 + n]) * size, timestamp_ms=1_000 + size)])
    return f"append {n}", lambda directory: directory.partition(tp(n)).append(bytearray(data), epoch=epoch)


def sync(directory: LogDir) -> None:
    syncer = directory.syncer
    tasks = syncer.begin_round([directory.partition(tp(n)) for n in range(LOGS)])
    failed = syncer.run_round(tasks)
    syncer.end_round(tasks, failed, None)
    for error in failed.values():
        raise error


def on(n: int, name: str, *args: int) -> Step:
    return f"{name} {n}", lambda directory: getattr(directory.partition(tp(n)), name)(*args)


SYNC: Step = ("sync", sync)
CATCH_UP: Step = ("catch up", lambda directory: directory._catch_up_now())

def steps(past: int) -> list[Step]:
    """The work of one life; `past` raises the epochs above those of the lives before."""
    return [
        append(0, 100, past + 1), append(1, 3_000, past + 1), append(2, 100, past + 1), SYNC,
        append(0, 200, past + 1), append(0, 1_500, past + 2), append(0, 300, past + 2), SYNC,
        on(0, "truncate", 2), append(0, 400, past + 3), append(0, 100, past + 3), SYNC,
        ("checkpoint", lambda directory: directory.checkpoint_hw({tp(0): 3, tp(1): 1})),
        append(1, 3_100, past + 1), append(1, 700, past + 4), SYNC, CATCH_UP,
        on(1, "truncate", 2), append(1, 600, past + 5), on(1, "delete_before", 1),
        on(0, "roll"), append(0, 800, past + 5), SYNC,
        ("delete 2", lambda directory: directory.delete(tp(2))),
        append(2, 50, past + 6), append(2, 2_000, past + 6), SYNC,
        on(2, "restart_at", 9), append(2, 90, past + 7), SYNC, CATCH_UP, append(0, 10, past + 8), SYNC,
        ("close", lambda directory: directory.close_now(clean=True)),
    ]


def digest(log: PartitionLog) -> str:
    """What the log holds, in one word."""
    seen = sha256()
    offset = log.log_start
    while offset < log.log_end:
        chunk = log.read(offset, 1 << 20, upto=log.log_end)
        assert chunk is not None
        seen.update(chunk.bytes())
        offset = chunk.end
    return f"{log.log_start}..{log.log_end} {seen.hexdigest()[:16]} {log.epochs.entries}"


def digests(directory: LogDir) -> list[str]:
    return [digest(directory.partition(tp(n))) for n in range(LOGS)]


def main(path: str, past: int) -> int:
    try:
        directory = open_dir(path)
    except MillraceError as error:
        os.write(1, f"refused open: {error}\n".encode())
        return 1
    os.write(1, b"open\n")
    for number, (name, step) in enumerate(steps(past)):
        try:
            step(directory)
        except MillraceError as error:
            os.write(1, f"refused {number} {name}: {error}\n".encode())
            return 1
        os.write(1, f"done {number}\n".encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
