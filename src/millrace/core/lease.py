"""A broker's lease to lead, and the arithmetic that makes it safe.

In: when a heartbeat was sent, and that it was answered. Out: whether the lease holds at a moment.
Promise: counted from the SEND time [L16], so it ends on the broker before the controller's session for it ends,
whatever the network did in between. The clock must run during suspend.

    controller:      heard ........................ + session_s -> may elect another leader
    broker:     sent ................ + lease_s -> refuses writes        (sent <= heard; clocks drift by at most r)
"""

from __future__ import annotations

import math

from millrace.errors import ConfigError


class Lease:
    __slots__ = ("expires_at", "last_sent_at", "lease_s")

    def __init__(self, lease_s: float) -> None:
        self.lease_s = lease_s
        self.expires_at = -math.inf
        self.last_sent_at = -math.inf

    def sent(self, now: float) -> None:
        self.last_sent_at = now

    def answered(self, sent_at: float) -> None:
        """The heartbeat sent at `sent_at` was answered well. Answers may come late and in any order."""
        if sent_at <= self.last_sent_at:  # a time we never sent extends nothing
            self.expires_at = max(self.expires_at, sent_at + self.lease_s)

    def revoked(self) -> None:
        """The controller fenced us, or another incarnation is registered."""
        self.expires_at = -math.inf

    def valid(self, now: float) -> bool:
        return now < self.expires_at


def lease_s_max(session_s: float, drift: float) -> float:
    """The lease must stay below this: a session as the fastest clock counts it, seen by the slowest."""
    return session_s * (1 - drift) / (1 + drift)


def check_lease_times(lease_s: float, session_s: float, drift: float) -> None:
    if not 0 <= drift < 1:
        raise ConfigError(f"clock_drift_max is {drift}: give a rate from 0 up to, not including, 1")
    if lease_s <= 0:
        raise ConfigError(f"lease_s is {lease_s}: give a time above 0")
    bound = lease_s_max(session_s, drift)
    if not lease_s < bound:
        raise ConfigError(
            f"lease_s is {lease_s}, session_s {session_s} with clock_drift_max {drift} allows less than {bound:.3f}: "
            "lower lease_s or raise session_s"
        )
