"""What the controller is told at its start; the same on every candidate."""

from __future__ import annotations

from dataclasses import dataclass, field

from millrace import limits
from millrace.core.admin import Defaults
from millrace.store.campaign import CampaignTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    lease_s: float = limits.LEASE_S
    session_s: float = limits.SESSION_S
    tenure_s: float = limits.TENURE_S
    renew_s: float = limits.TENURE_RENEW_S
    clock_drift_max: float = limits.CLOCK_DRIFT_MAX
    leader_balance_s: float = limits.LEADER_BALANCE_S  # 0: leaders stay where elections put them
    tick_s: float = 0.5                # how late silence may be noticed; proof of death too when no link broke
    eager_s: float = 0.5               # after a lost connection the process is looked for in short steps, this long
    eager_step_s: float = 0.01         # a killed process closes its sockets a little before it is gone
    snapshot_every_records: int = limits.SNAPSHOT_EVERY_RECORDS
    defaults: Defaults = field(default_factory=Defaults)

    @property
    def campaign(self) -> CampaignTimes:
        return CampaignTimes(
            tenure_s=self.tenure_s, renew_s=self.renew_s, clock_drift_max=self.clock_drift_max, tick_s=self.tick_s,
            eager_s=self.eager_s, eager_step_s=self.eager_step_s,
        )
