"""The parent of Spark's Python workers (`spark.python.daemon.module`): loads what tasks use, then forks workers.

In: Spark starts it once per JVM and Connect session. Out: workers that start within milliseconds, and die with it.
Promise: nothing stays behind: the daemon ends when the JVM closes its pipe (pyspark's own rule), the kernel ends
workers when the daemon does, and a daemon that had no worker for an hour ends by itself, because Spark keeps those of
sessions that are long gone (SPARK-54055). If it is wanted again, Spark starts another.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal

from millrace import limits
from millrace.ops.processes import die_with_parent

LOOKS = 2
LOADED = (
    "pyarrow", "pyarrow.compute", "pyarrow.ipc",
    "pandas",                 # pyarrow imports it when it first makes an array: a third of a second in each worker
    "pyspark.worker", "pyspark.cloudpickle", "pyspark.sql.types", "pyspark.sql.datasource", "pyspark.sql.conversion",
    "pyspark.sql.pandas.types", "pyspark.sql.pandas.serializers",
    "millrace.pipeline.task", "millrace.log.client", "millrace.wire.changes",
)


def end_when_idle(every_s: float) -> None:
    """Ends this process by SIGTERM, as pyspark would, after `LOOKS` looks in a row that saw no worker. A timer, because
    the loop is pyspark's own; workers do not inherit it."""
    seen_idle = 0

    def look(signum: int, frame: object) -> None:
        nonlocal seen_idle
        seen_idle = 0 if has_children() else seen_idle + 1
        if seen_idle >= LOOKS:
            os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, every_s, every_s)


def has_children() -> bool:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def main() -> None:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")      # no thread may exist when a worker is forked
    for name in LOADED:
        with contextlib.suppress(ImportError):              # a worker that needs it will say so
            importlib.import_module(name)
    gc.collect()
    gc.freeze()                                             # workers share these pages: no collector touches them
    os.register_at_fork(after_in_child=lambda: die_with_parent(signal.SIGKILL))
    end_when_idle(limits.SPARK_DAEMON_IDLE_S / LOOKS)
    importlib.import_module("pyspark.daemon").manager()


if __name__ == "__main__":
    main()
