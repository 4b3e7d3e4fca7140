"""The world of take-over, in bulk."""

from __future__ import annotations

from millrace_sim.bulk import Bulk
from millrace_sim.takeover.flaws import FLAWS
from millrace_sim.takeover.world import World

BULK = Bulk("takeover", World, tuple(FLAWS))
