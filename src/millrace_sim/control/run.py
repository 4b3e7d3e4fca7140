"""The world of the control plane, in bulk."""

from __future__ import annotations

from millrace_sim.bulk import Bulk
from millrace_sim.control.flaws import FLAWS
from millrace_sim.control.world import World

BULK = Bulk("control", World, tuple(FLAWS))
