"""Brokers that have just vanished from our sight, as clients should hear of it.

In: links lost and found, time. Out: whose leaderships not to recommend right now. A client that loses its leader asks
another broker at once, often before the election that follows; told the old leader it would wait for its own slow
refresh, told "leader not available" it asks again within a tenth of a second. A broken link is only suspicion, so it
counts for a moment and then the metadata speaks again; nothing is decided by it.
"""

from __future__ import annotations

from millrace.limits import SUSPECT_S
from millrace.model.ids import BrokerId


class Suspects:
    __slots__ = ("_lost",)

    def __init__(self) -> None:
        self._lost: dict[BrokerId, float] = {}

    def lost(self, broker: BrokerId, now: float) -> None:
        self._lost[broker] = now

    def back(self, broker: BrokerId) -> None:
        self._lost.pop(broker, None)

    def at(self, now: float) -> frozenset[BrokerId]:
        """Empty, and cheap, nearly always."""
        if not self._lost:
            return frozenset()
        self._lost = {broker: since for broker, since in self._lost.items() if now - since < SUSPECT_S}
        return frozenset(self._lost)
