"""Rules that can be switched off, one at a time, to show that the checkers notice.

Those of the product's machines are declared beside them; the rest are rules of what surrounds the machines (log,
retention, routing, scan, epochs), which this world plays itself.
"""

from __future__ import annotations

from millrace.core.delivery import positions, takeover, target_ends, writing

AROUND = {
    "fence_at_hw": "a fence is acknowledged before it is below the high watermark [L28]",
    "fence_survives": "writer state is rebuilt from data alone after a fail-over [L28]",
    "fence_once": "a repeated fence of one epoch resets the writer [L28]",
    "sequence": "the log does not check sequences [L28]",
    "acks_all": "a row is acknowledged before it is below the high watermark",
    "one_counter": "each span counts its own dispatcher epochs [V9]",
    "one_round": "a dispatcher is put into a second round [P2]",
    "floor": "the source's floor moves before the commit is durable [F10]",
    "target_floor": "stored ends do not hold back the targets' retention [F10]",
    "writer_per_partition": "the writer id belongs to the span [K3]",
    "scan_by_writer": "the scan takes every row that names the source partition [K3]",
    "skip_exact": "everything up to the last row found is skipped [K3]",
    "fenced_targets": "a task writes to partitions that its epoch has not fenced [V11]",
}

FLAWS = {**AROUND, **positions.FLAWS, **takeover.FLAWS, **target_ends.FLAWS, **writing.FLAWS}
