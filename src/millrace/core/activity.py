"""Which partitions are written to just now: soft state of the controller.

In: partitions whose log was seen to grow, time. Out: membership. When a broker goes, thousands of partitions change;
the few that clients wait for go first. It orders work and decides nothing.
"""

from __future__ import annotations

from millrace.model.ids import TopicPartition


class Activity:
    """Two generations, each `keep_s` long: a partition is forgotten after one to two of them."""

    __slots__ = ("_keep_s", "_now", "_turn_at", "_was")

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._turn_at = 0.0
        self._now: set[TopicPartition] = set()
        self._was: set[TopicPartition] = set()

    def grew(self, tp: TopicPartition, now: float) -> None:
        if now >= self._turn_at:
            self._was = self._now if now < self._turn_at + self._keep_s else set()
            self._now = set()
            self._turn_at = now + self._keep_s
        self._now.add(tp)

    def __contains__(self, tp: object) -> bool:
        return tp in self._now or tp in self._was
