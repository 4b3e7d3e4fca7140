"""Health of processes: brokers and their disks, captures, Spark, and the offices that somebody must hold [A9].

In: what the controller's metadata, leases, supervisors and disks say. Out: findings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from millrace import limits
from millrace.core.health.findings import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFacts:
    """The log as its metadata has it. `brokers`: id -> (liveness, reason). A number that is None is unknown."""

    controller: int | None
    brokers: Mapping[int, tuple[str, str]]
    offline: int | None = 0
    under_replicated: int | None = 0


def log_findings(log: LogFacts) -> list[Finding]:
    found = [] if log.controller is not None else [Finding("no_controller", "controller", "no broker is controller")]
    for broker, (liveness, reason) in sorted(log.brokers.items()):
        if liveness not in ("alive", "draining"):
            found.append(Finding("broker_missing", str(broker), reason or f"broker {broker} is {liveness}"))
    if log.offline:
        found.append(Finding("partitions_offline", "partitions", f"{log.offline} partitions have no leader"))
    if log.under_replicated:
        found.append(Finding("partitions_under_replicated", "partitions",
                             f"{log.under_replicated} partitions have fewer in-sync replicas than replicas"))
    return found


def disk_findings(broker: int, *, refuses: str, free_bytes: int, total_bytes: int) -> list[Finding]:
    """`refuses`: why the broker takes no writes; empty: it takes them."""
    if refuses:
        return [Finding("disk_full", str(broker), refuses)]
    share = free_bytes / total_bytes if total_bytes else 1.0
    if share < limits.DISK_WARN_FREE:
        return [Finding("disk_nearly_full", str(broker), f"{100 * share:.0f} % of the disk of broker {broker} is free")]
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkFacts:
    """As one capture sees it."""

    capture: int
    why: str
    age_s: float


def spark_findings(absences: Iterable[SparkFacts]) -> list[Finding]:
    """One for all captures: they share it. The longest absence counts."""
    longest = max(absences, key=lambda one: one.age_s, default=None)
    return [Finding("spark_absent", "spark", longest.why, longest.age_s)] if longest is not None else []


def capture_findings(silent: Mapping[int, float]) -> list[Finding]:
    """`silent`: captures that have a lease and do not answer, and for how long."""
    return [Finding("capture_silent", str(capture), f"capture {capture} has a lease and does not answer", age_s)
            for capture, age_s in sorted(silent.items())]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
    """A process that its supervisor is to keep running. `liveness`: alive, starting, silent, dead, or the cluster's own
    word for it. `last_exit`: how its last life ended; None: it did not."""

    id: int
    liveness: str
    last_exit: int | None = None
    reason: str = ""


def process_findings(brokers: Iterable[ProcessFacts], captures: Iterable[ProcessFacts]) -> list[Finding]:
    found = [Finding("broker_missing", str(one.id), _process(f"broker {one.id}", one)) for one in brokers
             if one.liveness != "alive"]
    return found + [Finding("capture_missing", str(one.id), _process(f"capture {one.id}", one)) for one in captures
                    if one.liveness != "alive"]


def _process(what: str, one: ProcessFacts) -> str:
    ended = f"; its last life ended with {one.last_exit}" if one.last_exit is not None else ""
    return f"{what} is {one.liveness}{f': {one.reason}' if one.reason else ''}{ended}"
