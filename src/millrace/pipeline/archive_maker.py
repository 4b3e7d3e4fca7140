"""Makes the class archive: a server of its own, at the lowest priority, runs what a round runs and writes at its end
which classes that took. The file is renamed into place whole.

    python -m millrace.pipeline.archive_maker       makes it, if it is missing; dies with its parent
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from millrace.errors import MillraceError, Unreachable
from millrace.ops.processes import die_with_supervisor
from millrace.pipeline import archive, server, settings
from millrace.pipeline.jvm import class_path, find_java
from millrace.pipeline.session import Place, Session

if TYPE_CHECKING:
    import pyarrow

START_S = 300.0          # at the lowest priority beside a busy cluster
STOP_S = 300.0           # writes 150 MB
KEPT = 3                 # files: an upgrade and the way back
NICE = 19


def make() -> str:
    """The file, made now if it was missing; nothing when somebody else makes it."""
    java, jars = find_java(), class_path()
    if found := archive.find(java, jars):
        return found
    os.makedirs(archive.directory(), exist_ok=True)
    with _alone() as first:
        if not first:
            return ""
        with tempfile.TemporaryDirectory(prefix="spark-", dir=archive.directory()) as work:
            part = os.path.join(work, "classes.jsa")
            _train(part, os.path.join(work, "server"))
            os.replace(part, path := archive.path_of(java, jars))
        _forget_old()
    return path


@contextlib.contextmanager
def _alone() -> Iterator[bool]:
    fd = os.open(os.path.join(archive.directory(), "spark.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(fd)


def _train(part: str, work: str) -> None:
    port, token = server.free_port(), secrets.token_hex(32)
    plan = server.ServerPlan(dir=work, port=port, master=settings.local_master(2), token=token, archive_to=part,
                             log_path=os.path.join(work, "spark.log"))
    os.makedirs(work)
    process = server.start(plan, stderr_path=os.path.join(work, "stderr"))
    try:
        _until_it_answers(process, port)
        session = Session(Place(remote=server.own_session(port, token)))
        for _ in range(3):
            session.spark().range(2, numPartitions=2).mapInArrow(_same, "id long").toArrow()
        session.close()
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_S)
    finally:
        process.kill()
        process.wait()


def _same(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    return batches


def _until_it_answers(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_S
    while not server.answers("127.0.0.1", port):
        if process.poll() is not None or time.monotonic() > deadline:
            raise Unreachable("Spark did not start for its class archive")
        time.sleep(0.2)


def _forget_old() -> None:
    found = [entry.path for entry in os.scandir(archive.directory()) if entry.name.endswith(".jsa")]
    for path in sorted(found, key=os.path.getmtime)[:-KEPT]:
        os.unlink(path)


def main() -> int:
    die_with_supervisor()
    os.nice(NICE)
    try:
        make()
    except (MillraceError, OSError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"class archive of Spark: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
