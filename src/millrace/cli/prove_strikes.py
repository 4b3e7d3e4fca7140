"""Harm for the proof: one process after another is killed with -9, or paused longer than its session.

    deck (kinds shuffled, each once before any comes again) ──▶ Strikes ──SIGKILL | SIGSTOP … SIGCONT──▶ who it is now

In: a cluster, who is what in it at this moment. Out: signals, and how many of each. Promise: whatever was paused runs
again when the strikes are over; the supervisor is never hurt, it is what brings the dead back.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Literal, NamedTuple

from millrace.cli.exits import CommandFailed
from millrace.ops import processes

Kind = Literal["capture", "coordinator", "maintainer", "reader", "broker", "controller", "spark", "worker"]
How = Literal["kill", "pause"]
KINDS: tuple[Kind, ...] = ("capture", "coordinator", "maintainer", "reader", "broker", "controller", "spark", "worker")
HOWS: tuple[How, ...] = ("kill", "pause")
LOOK_AGAIN_S = 0.2                     # for somebody who is just being started

Victims = Callable[[Kind], list[int]]  # pids of those who are it now


class Stroke(NamedTuple):
    kind: Kind
    how: How


class Times(NamedTuple):
    """`pause_s`: longer than a session."""

    between_s: tuple[float, float]
    pause_s: tuple[float, float]
    wait_s: float                      # for a victim of the kind that is due


def deck(rng: random.Random) -> Iterator[Stroke]:
    """Every kind once before any comes again; half of them are killed, half paused, and the next time the other way."""
    while True:
        hows: list[How] = rng.sample(HOWS * (len(KINDS) // len(HOWS)), len(KINDS))
        for turned in (False, True):
            for kind, how in rng.sample(list(zip(KINDS, hows, strict=True)), len(KINDS)):
                yield Stroke(kind, HOWS[HOWS.index(how) - turned])


class Strikes:
    """A thread that strikes until it is left."""

    def __init__(self, victims: Victims, seed: int, times: Times, say: Callable[[str], None]) -> None:
        self._victims, self._rng, self._times, self._say = victims, random.Random(seed), times, say
        self.count: Counter[Stroke] = Counter()
        self.missed: Counter[Kind] = Counter()
        self._stop = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="strikes", daemon=True)

    def __enter__(self) -> Strikes:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None and kind is None:
            raise self._error

    def wait_for(self, each: int, timeout_s: float) -> None:
        """Until every kind was struck so often, or for so long."""
        deadline = time.monotonic() + timeout_s
        while self._thread.is_alive() and time.monotonic() < deadline and any(
                sum(hows.values()) < each for hows in self.by_kind().values()):
            time.sleep(LOOK_AGAIN_S)

    def by_kind(self) -> dict[Kind, dict[How, int]]:
        return {kind: {"kill": self.count[Stroke(kind, "kill")], "pause": self.count[Stroke(kind, "pause")]}
                for kind in KINDS}

    def _run(self) -> None:
        try:
            missed: list[Stroke] = []
            for stroke in deck(self._rng):
                missed, tried = [], [stroke, *missed]      # who was not met may take long to come back
                for one in tried:
                    if self._stop.wait(self._rng.uniform(*self._times.between_s)):
                        return
                    if not self._strike(one):
                        missed.append(one)
        except Exception as error:
            self._error = error

    def _strike(self, stroke: Stroke) -> bool:
        """Whether somebody of the kind was there."""
        pid = self._find(stroke.kind)
        started = None if pid is None else processes.start_time(pid)
        number = signal.SIGKILL if stroke.how == "kill" else signal.SIGSTOP
        if pid is None or not processes.send(pid, started, number):
            self.missed[stroke.kind] += 1
            return False
        if stroke.how == "kill":
            self._say(f"kill -9 {pid}: {stroke.kind}")
            self.count[stroke] += 1
            return True
        pause_s = self._rng.uniform(*self._times.pause_s)
        try:
            self._say(f"pause {pid} for {pause_s:.1f} s: {stroke.kind}")
            is_cut = self._stop.wait(pause_s)
        finally:
            processes.send(pid, started, signal.SIGCONT)
        self.count[stroke] += not is_cut       # shorter than a session it hurts nobody
        return True

    def _find(self, kind: Kind) -> int | None:
        """Somebody may be dead or not yet in office; nobody comes back for ever."""
        for _ in range(max(1, round(self._times.wait_s / LOOK_AGAIN_S))):
            try:
                found = self._victims(kind)
            except CommandFailed:      # nobody answers just now
                found = []
            if found:
                return self._rng.choice(sorted(found))
            if self._stop.wait(LOOK_AGAIN_S):
                return None
        return None


def workers_of(spark: int) -> list[int]:
    """Python workers of a Spark process: children of its children; those where there are no others."""
    daemons = processes.children_of(spark)
    return [worker for daemon in daemons for worker in processes.children_of(daemon)] or daemons


def told(count: Mapping[Kind, Mapping[How, int]]) -> str:
    """One line for people."""
    return ", ".join(f"{kind} {hows['kill']} + {hows['pause']}" for kind, hows in count.items())
