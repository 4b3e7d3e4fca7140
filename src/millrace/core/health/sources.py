"""A source's health: whether its changes reach the log, how late, and how long its slot will last [S9, S13, A9].

In: what the source's host and reader report. Out: findings. Promise: a source that is new, or being moved to another
capture, is given `START_S` before it is called anything.
"""

from __future__ import annotations

from dataclasses import dataclass

from millrace import limits
from millrace.core.health.findings import Finding

FLOWING = frozenset(("streaming", "copying", "needs_copy"))     # changes reach the log as they are committed
START_S = 10.0                       # a reader that is placed anew connects, reads its progress and streams
WAIT_S = 5.0                         # the log has not acknowledged for so long
BY_ERROR = {
    "source_auth_failed": "source_auth_failed",
    "source_unreachable": "source_unreachable",
    "source_not_ready": "source_unreachable",
    "invalid_configuration": "source_misconfigured",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """`error`: the code of what ended its last connection. `lag_s` None: unknown. `slot_left`: the share of the WAL
    budget that is left; None: there is no budget, or it is unknown."""

    name: str
    state: str
    why: str = ""
    age_s: float | None = None
    error: str = ""
    refused: str = ""                        # why new connections are refused though the stream goes on
    next_step: str = ""
    lag_s: float | None = None
    slot_state: str = "unknown"
    slot_left: float | None = None
    slot_full_in_s: float | None = None
    slot_warning: str = ""
    needs_copy: tuple[str, ...] = ()         # tables, by name

    @property
    def flows(self) -> bool:
        return self.state in FLOWING


def source_findings(s: SourceFacts) -> list[Finding]:
    return [*_flow(s), *_slot(s), *_tables(s)]


def trouble(s: SourceFacts) -> Finding | None:
    """Why its changes do not reach the log; None: they do, or it has just begun."""
    return next(iter(_flow(s)), None) if not s.flows else None


def _flow(s: SourceFacts) -> list[Finding]:
    if s.flows:
        if s.refused:
            return [Finding("source_auth_failed", s.name, s.refused, None, s.next_step)]
        if s.lag_s is not None and s.lag_s > limits.SOURCE_LAG_WARN_S:
            return [Finding("source_behind", s.name, f"changes reach the log {s.lag_s:.0f} s late")]
        return []
    if s.state in ("retrying", "failed"):
        return [_ended(s)]
    age_s = s.age_s or 0.0
    if s.state == "starting" and s.error:
        return [_ended(s)]                               # another attempt after one that failed
    if (s.state == "waiting" and age_s > WAIT_S) or (s.state == "starting" and age_s > START_S):
        return [Finding(f"source_{s.state}", s.name, s.why or f"it is {s.state}", s.age_s, s.next_step)]
    return []


def _ended(s: SourceFacts) -> Finding:
    code = BY_ERROR.get(s.error, "source_failed" if s.state == "failed" else "source_retrying")
    return Finding(code, s.name, s.why or f"it is {s.state}", None, s.next_step)


def _slot(s: SourceFacts) -> list[Finding]:
    if s.slot_state == "lost":
        return [Finding("slot_lost", s.name, "the server has thrown away WAL that the slot needed")]
    if s.slot_state == "unreserved":
        return [Finding("slot_nearly_full", s.name, s.slot_warning or "the slot's WAL is no longer reserved")]
    if s.slot_left is None:
        return []
    soon = s.slot_full_in_s is not None and s.slot_full_in_s < limits.SLOT_FULL_SOON_S
    if s.slot_left <= limits.SLOT_URGENT_LEFT or (soon and s.slot_left <= limits.SLOT_WARN_LEFT):
        return [Finding("slot_nearly_full", s.name, s.slot_warning or _left(s))]
    return [Finding("slot_filling", s.name, s.slot_warning or _left(s))] if s.slot_left <= limits.SLOT_WARN_LEFT else []


def _left(s: SourceFacts) -> str:
    return f"{100 * (s.slot_left or 0.0):.0f} % of the slot's WAL budget is left"


def _tables(s: SourceFacts) -> list[Finding]:
    if not s.needs_copy:
        return []
    return [Finding("table_needs_copy", s.name, f"{counted(s.needs_copy)} of the source must be copied", None,
                    f"see: millrace source get {s.name}")]


def counted(names: tuple[str, ...]) -> str:
    """`table a`, or `3 tables: a, b, c`, never a long list."""
    return f"table {names[0]}" if len(names) == 1 else f"{len(names)} tables: {named(names)}"


def named(names: tuple[str, ...]) -> str:
    return ", ".join(names[:limits.HEALTH_NAMES_MAX]) + (", …" if len(names) > limits.HEALTH_NAMES_MAX else "")
