"""Health in `/metrics`: findings, states and lags of the coordinator's last look; findings of a broker [A9].

Promise: what is not known has no sample, and a capture that is not coordinator shows none of it, so that each finding
has one series in the cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from prometheus_client.core import Metric

from millrace import limits
from millrace.api.health_watch import Look
from millrace.core.health.findings import Finding
from millrace.ops.metrics import families


def finding_metric(findings: Sequence[Finding]) -> Metric:
    """In the order of `findings`: the worst first."""
    return families("millrace_health_finding", [
        ((one.kind, one.name, one.code, one.severity), 1.0) for one in findings[:limits.HEALTH_SERIES_MAX]])


def look_metrics(look: Look | None) -> Iterator[Metric]:
    """None: nobody has looked yet, or for too long."""
    yield finding_metric(look.findings if look is not None else [])
    states = Counter(health.state for health in look.feeds.values()) if look is not None else {}
    yield families("millrace_changefeeds", [((state,), count) for state, count in sorted(states.items())])
    lags = sorted(look.lags.items()) if look is not None else []
    yield families("millrace_changefeed_lag_seconds", [((feed,), h.lag_s) for feed, h in lags if h.lag_s is not None])
    yield families("millrace_changefeed_lag_bytes", [
        ((feed,), h.lag_bytes) for feed, h in lags if h.lag_bytes is not None])
    yield families("millrace_changefeed_lag_known", [((feed,), float(h.lag_s is not None)) for feed, h in lags])
