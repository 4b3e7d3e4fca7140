"""The world of a source, in bulk."""

from __future__ import annotations

from millrace_sim.bulk import Bulk
from millrace_sim.source.flaws import FLAWS
from millrace_sim.source.world import World

BULK = Bulk("source", World, tuple(FLAWS))
