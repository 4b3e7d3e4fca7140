"""Processes of this machine: who is who, for as long as the machine is up.

A pid alone proves nothing, it is used again; a pid with its start time does [L17].
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

from millrace.ops.real import process_stat

PR_SET_PDEATHSIG = 1
SUPERVISOR_PID = "MILLRACE_SUPERVISOR_PID"


def start_time(pid: int) -> int | None:
    """Clock ticks between boot and the start of `pid`; None when there is no such process (or only its remains)."""
    stat = process_stat(pid)
    return None if stat is None or stat.state in "ZX" else stat.start_time


def cpu_s(pid: int) -> float | None:
    """CPU time that the process has used; None when there is no such process."""
    stat = process_stat(pid)
    return None if stat is None else stat.cpu_ticks / os.sysconf("SC_CLK_TCK")


def is_running(pid: int, started: int | None) -> bool:
    now = start_time(pid)
    return now is not None and now == started


def children_of(pid: int) -> list[int]:
    """Those that run now; none of a process that is gone. The kernel keeps them by the thread that made them."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, task.read_text(encoding="ascii").split())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def die_with_supervisor() -> None:
    """Called first in a child: the kernel kills it when its supervisor dies, however that happens."""
    parent = os.environ.get(SUPERVISOR_PID)
    if parent is None or sys.platform != "linux":
        return
    die_with_parent(signal.SIGKILL)
    if os.getppid() != int(parent):   # it died before we asked
        os._exit(1)


def die_with_parent(sig: int) -> None:
    """The kernel sends `sig` to this process when the thread that started it ends; also after exec."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, sig)


def send(pid: int, started: int | None, sig: int) -> bool:
    """Signals exactly that process; False when it is gone."""
    if not is_running(pid, started):
        return False
    try:
        os.kill(pid, sig)
    except ProcessLookupError:
        return False
    return True
