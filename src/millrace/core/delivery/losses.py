"""Which jobs died by one event: when all of Spark goes, every job in flight tells so by itself, one after the other.

In: jobs that begin and end. Out: jobs to blame together (core.delivery.rounds). Promise: a job is blamed once, and not
before every job that was in flight with it has ended.
"""

from __future__ import annotations


class Losses:
    __slots__ = ("_died", "_running", "_witnesses")

    def __init__(self) -> None:
        self._running: set[int] = set()
        self._witnesses: set[int] = set()               # in flight when the first of those that died did
        self._died: list[int] = []

    def began(self, number: int) -> None:
        self._running.add(number)

    def ended(self, number: int, *, session_lost: bool) -> tuple[int, ...]:
        """Those to blame now, together."""
        self._running.remove(number)
        self._witnesses.discard(number)
        if session_lost:
            if not self._died:
                self._witnesses = set(self._running)
            self._died.append(number)
        if self._witnesses or not self._died:
            return ()
        blamed, self._died = tuple(self._died), []
        return blamed
