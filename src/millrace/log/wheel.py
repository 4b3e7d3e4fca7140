"""Deadlines of a whole broker behind one timer.

In: (deadline, thing with `expire(now)`). Out: `expire` is called at or up to a slot after the deadline. A thing that
needs more than one deadline registers the nearest and again from inside `expire`, so a partition with ten thousand
waiting writes costs one entry, and a broker with none costs no timer at all.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from typing import Protocol

from millrace.ops.ports import Clock

SLOT_S = 0.05


class Expiring(Protocol):
    def expire(self, now: float) -> None: ...


class DeadlineWheel:
    __slots__ = ("_clock", "_heap", "_loop", "_slots", "_timer", "_timer_slot")

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self._clock = clock
        self._loop = loop
        self._slots: dict[int, list[Expiring]] = {}
        self._heap: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_slot = 0

    def add(self, deadline: float, thing: Expiring) -> None:
        slot = math.floor(deadline / SLOT_S) + 1
        things = self._slots.get(slot)
        if things is not None:
            things.append(thing)
            return
        self._slots[slot] = [thing]
        heapq.heappush(self._heap, slot)
        if self._timer is None or slot < self._timer_slot:
            self._arm()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._slots.clear()
        self._heap.clear()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._heap:
            self._timer_slot = self._heap[0]
            delay_s = max(0.0, self._timer_slot * SLOT_S - self._clock.now())
            self._timer = self._loop.call_later(delay_s, self._fire)

    def _fire(self) -> None:
        self._timer = None
        now = self._clock.now()
        due = math.floor(now / SLOT_S)      # a slot ends behind all its deadlines: nothing expires early
        while self._heap and self._heap[0] <= due:
            for thing in self._slots.pop(heapq.heappop(self._heap)):
                thing.expire(now)
        self._arm()
