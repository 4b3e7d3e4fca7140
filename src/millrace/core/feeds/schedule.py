"""Who gets what: basic, balance. Both choose from the captures they are given, all of them schedulable [C5].

In: how much each capture has. Out: captures to place on, pairs (from, to) to move between.
Promises: least load, ties by id, counted again for each one in a batch [D7]; a choice costs the logarithm of the
captures, not their number.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping

from millrace.model.spans import CaptureId

BALANCE_SLACK = 2         # a move that would only swap the two loads is none


class Picker:
    """One batch's choices: each one taken counts for the next."""

    __slots__ = ("_heap",)

    def __init__(self, loads: Mapping[CaptureId, int], among: Iterable[CaptureId], *, first: CaptureId = 0) -> None:
        """Ties by id, counted from `first` on: holders of many small changefeeds do not all begin with the same one."""
        self._heap = [(loads.get(capture, 0), capture < first, capture) for capture in among]
        heapq.heapify(self._heap)

    def __bool__(self) -> bool:
        return bool(self._heap)

    def take(self) -> CaptureId:
        load, turn, capture = self._heap[0]
        heapq.heapreplace(self._heap, (load + 1, turn, capture))
        return capture


def least_loaded(loads: Mapping[CaptureId, int], among: Iterable[CaptureId]) -> CaptureId | None:
    return min(among, key=lambda capture: (loads.get(capture, 0), capture), default=None)


def balance(
    loads: Mapping[CaptureId, int], among: Iterable[CaptureId], *, batch: int
) -> Iterator[tuple[CaptureId, CaptureId]]:
    """Up to `batch` moves that make the loads as equal as they can be."""
    counts = {capture: loads.get(capture, 0) for capture in among}
    if len(counts) < 2:
        return
    for _ in range(batch):
        most = max(counts, key=lambda capture: (counts[capture], -capture))
        least = min(counts, key=lambda capture: (counts[capture], capture))
        if counts[most] - counts[least] < BALANCE_SLACK:
            return
        counts[most] -= 1
        counts[least] += 1
        yield most, least
