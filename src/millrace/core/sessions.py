"""Who has been heard lately: the controller's soft state about brokers.

In: heartbeats, suspicions, time. Out: the brokers to fence for silence. It starts empty with each tenure, and counts
everyone as just heard then: a new controller does not know what the former one heard [L18].

A broken connection is suspicion, not proof [L17]: it shortens the wait from a session to the time after which the
broker's lease, granted from the last heartbeat, is over on every clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from millrace.model.ids import BrokerId


@dataclass(slots=True)
class Heard:
    at: float
    directly: bool           # a heartbeat to this controller, not the grace of a take-over
    suspected: bool = False


class Sessions:
    def __init__(self, *, session_s: float, lease_s: float, drift: float) -> None:
        self.session_s = session_s
        self.lease_over_s = lease_s * (1 + drift) / (1 - drift)
        self._heard: dict[BrokerId, Heard] = {}

    def took_over(self, now: float, brokers: list[BrokerId]) -> None:
        """A new tenure: nobody is silent before one full session from now."""
        self._heard = {broker: Heard(now, directly=False) for broker in brokers}

    def heard(self, broker: BrokerId, now: float) -> float:
        """A heartbeat arrived. Returns the time since the one before, 0 for the first."""
        before = self._heard.get(broker)
        self._heard[broker] = Heard(now, directly=True)
        return now - before.at if before is not None and before.directly else 0.0

    def suspect(self, broker: BrokerId) -> None:
        known = self._heard.get(broker)
        if known is not None:
            known.suspected = True

    def forget(self, broker: BrokerId) -> None:
        """Fenced: it counts again from its next heartbeat."""
        self._heard.pop(broker, None)

    def is_known(self, broker: BrokerId) -> bool:
        """Heard in this tenure, or waited for since its beginning."""
        return broker in self._heard

    def is_silent(self, broker: BrokerId, now: float) -> bool:
        known = self._heard.get(broker)
        return known is not None and now >= known.at + self._patience_s(known)

    def silent(self, now: float) -> list[BrokerId]:
        return [broker for broker in sorted(self._heard) if self.is_silent(broker, now)]

    def age_s(self, broker: BrokerId, now: float) -> float:
        """Since it was last heard; 0 for a broker nobody waits for."""
        known = self._heard.get(broker)
        return now - known.at if known is not None else 0.0

    def _patience_s(self, known: Heard) -> float:
        # After a take-over a lease may have been granted by the former controller: only a full session covers it.
        return self.lease_over_s if known.suspected and known.directly else self.session_s
