"""What a leader knows of one follower, and when that follower counts as in sync [L5, L8].

In: fetches of the follower. Out: its durable end, whether it lags. Promise: a follower is credited with the offset it
asks for next (what it has made durable), never with what was sent to it; an unknown one counts as behind.
"""

from __future__ import annotations

from millrace.model.ids import BrokerId

UNKNOWN = -1


class Follower:
    """Progress of one follower within one leader epoch."""

    __slots__ = ("_end_at_fetch", "_fetched_at", "broker", "caught_up_at", "incarnation", "leo")

    def __init__(self, broker: BrokerId, now: float) -> None:
        self.broker = broker
        self.incarnation = UNKNOWN
        self.leo = UNKNOWN
        self.caught_up_at = now  # a new leader gives everyone the lag time to show up
        self._fetched_at = now
        self._end_at_fetch = 0

    def fetched(self, now: float, *, incarnation: int, offset: int, log_end: int) -> None:
        """It has everything below `offset`. It may go back: a damaged replica refetches [L10]."""
        if offset >= log_end:
            self.caught_up_at = now
        elif self.leo != UNKNOWN and offset >= self._end_at_fetch:
            # Under constant writes it is never at the end, but it was where the end was when it asked before.
            self.caught_up_at = self._fetched_at
        self.incarnation = incarnation
        self.leo = offset
        self._fetched_at = now
        self._end_at_fetch = log_end

    def lags(self, now: float, *, log_end: int, lag_s: float) -> bool:
        return self.leo < log_end and now - self.caught_up_at > lag_s

    def forget(self) -> None:
        """It left the ISR behind the end of the log: it must fetch again before it may join."""
        self.leo = UNKNOWN
