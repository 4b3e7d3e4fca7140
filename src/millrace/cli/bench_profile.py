"""Where the Python workers of Spark spend their time: looked at from outside, by py-spy, while they work.

In: the parents of the workers. Out: our own functions with their shares of the samples; what they call in libraries
counts as theirs. Without py-spy, or where it may not look, there is no profile, and the page says why.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

RATE = 100                             # samples a second of each worker
PLACES = 14                            # that a page shows
END_S = 60.0
_OURS = re.compile(r"(?:^|;)([^;()]+) \(([^;()]*\bmillrace/[^;():]+)\.py(?::\d+)?\)")


@dataclass
class Profile:
    """`places`: (function, share), the largest first. `trouble`: why there is none."""

    samples: int = 0
    places: list[tuple[str, float]] = field(default_factory=list)
    trouble: str = ""


@contextmanager
def profiled(parents: Iterable[int]) -> Iterator[Profile]:
    """What these processes and those that they start do inside the block."""
    made, program = Profile(), _program()
    if program is None:
        made.trouble = "py-spy is not installed"
        yield made
        return
    with tempfile.TemporaryDirectory() as directory:
        looking = [subprocess.Popen(
            [program, "record", "--pid", str(pid), "--subprocesses", "--nonblocking", "--function", "--rate", str(RATE),
             "--duration", "unlimited", "--format", "raw", "--output", os.path.join(directory, str(pid))],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for pid in parents]
        try:
            yield made
        finally:
            said = [_ended(one) for one in looking]
        stacks = [line for path in Path(directory).iterdir()
                  for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    made.samples, made.places = shares(stacks)
    if not made.samples:
        made.trouble = "py-spy saw nothing" + "".join(f": {text}" for text in said[:1])


def shares(stacks: Iterable[str]) -> tuple[int, list[tuple[str, float]]]:
    """Each line: a stack from its root on, and how often it was seen."""
    found = Counter[str]()
    for line in stacks:
        stack, _, count = line.rpartition(" ")
        if count.strip().isdigit():
            found[_place(stack)] += int(count)
    samples = found.total()
    return samples, [(place, count / samples) for place, count in found.most_common()]


def _place(stack: str) -> str:
    """The last frame of ours."""
    ours = _OURS.findall(stack)
    if not ours:
        return "PySpark's worker"
    function, path = ours[-1]
    return f"{path.rpartition('millrace/')[2].replace('/', '.')}.{function}"


def _program() -> str | None:
    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
    return beside if os.access(beside, os.X_OK) else shutil.which("py-spy")


def _ended(looking: subprocess.Popen[str]) -> str:
    if looking.poll() is None:
        looking.send_signal(signal.SIGINT)
    try:
        return (looking.communicate(timeout=END_S)[1] or "").strip().splitlines()[-1:][0]
    except subprocess.TimeoutExpired:
        looking.kill()
        looking.communicate()
        return "it did not end"
    except IndexError:
        return ""
