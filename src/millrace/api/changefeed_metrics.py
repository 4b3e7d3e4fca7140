"""Changefeeds in `/metrics`: on the coordinator how many there are, where a maintainer runs its word [A4, C9]."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from prometheus_client.core import Metric

from millrace.api.maintainers import in_short
from millrace.changefeed.capture import Capture
from millrace.model.tables import parse_lsn
from millrace.ops.metrics import families, family

COUNTS = {
    "millrace_changefeed_maintainer_epoch": "epoch",
    "millrace_changefeed_lag_bytes": "lag_bytes",
    "millrace_changefeed_checkpoint_age_seconds": "checkpoint_age_s",
    "millrace_changefeed_tables": "tables_count",
    "millrace_changefeed_isolated_tables": "isolated_count",
    "millrace_changefeed_dispatchers": "dispatchers_count",
    "millrace_changefeed_working_dispatchers": "working_count",
    "millrace_changefeed_operators": "operators_count",
    "millrace_changefeed_blockers": "blockers_count",
}
PLACES = {"millrace_changefeed_checkpoint_lsn": "checkpoint", "millrace_changefeed_resolved_lsn": "resolved"}


def changefeeds(capture: Capture) -> Iterator[Metric]:
    feeds = capture.feeds
    if feeds is None:
        return
    if feeds.coordinator is not None:
        counts = Counter(entry.state for entry in feeds.coordinator.machine.state.feeds.values())
        yield families("millrace_changefeeds", [((state,), count) for state, count in sorted(counts.items())])
    said = in_short(capture, feeds)
    words: list[dict[str, Any]] = said["items"]
    for name, field in COUNTS.items():
        yield families(name, [((w["changefeed"],), float(w[field])) for w in words if w.get(field) is not None])
    for name, field in PLACES.items():
        yield families(name, [((w["changefeed"],), parse_lsn(w[field])) for w in words if w.get(field) is not None])
    yield families("millrace_changefeed_oldest_blocker_seconds", [
        ((w["changefeed"],), w["oldest_blocker"]["age_s"] if w["oldest_blocker"] is not None else 0.0)
        for w in words if "oldest_blocker" in w])
    yield family("millrace_spark_waits_seconds", said["spark"]["age_s"] if said["spark"] is not None else 0.0)
