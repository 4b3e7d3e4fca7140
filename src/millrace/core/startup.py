"""Whether the start of a cluster still makes progress: a busy machine is waited for, a start that stands still is not.

    what each process shows (ready, why not, CPU time) ─▶ look ─▶ wait on, or give up

In: looks at the processes that a start waits for. Out: whether the start stands still. Promise: it is given up only
after `still_s` in which no process became ready, no process gave a reason that it had not given before, and none that
is not ready used `cpu_s` of CPU time. Reasons that differ in numbers only are one: a counter is no progress.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_NUMBER = re.compile(r"\d+(?:\.\d+)?")


class Starting(NamedTuple):
    """One process of a start. `why`: it is not ready; empty: it is. `cpu_s`: used so far; None: not known."""

    name: str
    why: str
    cpu_s: float | None = None


class StartProgress:
    __slots__ = ("_cpu_s", "_cpu_step_s", "_moved_at", "_reasons", "_still_s")

    def __init__(self, now: float, *, still_s: float, cpu_s: float) -> None:
        self._still_s, self._cpu_step_s = still_s, cpu_s
        self._moved_at = now
        self._reasons: set[tuple[str, str]] = set()    # every (name, reason) seen, numbers left out
        self._cpu_s: dict[str, float] = {}             # name -> CPU time at the last progress of the start

    def stands_still(self, now: float, processes: Iterable[Starting]) -> bool:
        """After a look at all processes that the start waits for."""
        processes = list(processes)
        if [one for one in processes if self._is_news(one)] or any(map(self._works, processes)):
            self._moved_at = now
            self._cpu_s = {one.name: one.cpu_s for one in processes if one.cpu_s is not None}
        return now - self._moved_at > self._still_s

    def _is_news(self, one: Starting) -> bool:
        reason = (one.name, _NUMBER.sub("", one.why))
        is_news = reason not in self._reasons
        self._reasons.add(reason)
        return is_news

    def _works(self, one: Starting) -> bool:
        return bool(one.why) and one.cpu_s is not None and (
            one.cpu_s - self._cpu_s.setdefault(one.name, one.cpu_s) >= self._cpu_step_s)


def waits_for(processes: Iterable[Starting]) -> str:
    """Who is not ready and why, for people."""
    return "; ".join(f"{one.name} ({one.why})" for one in processes if one.why)
