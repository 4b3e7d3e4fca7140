"""A finding: one thing that is not well, with its name, how bad it is, the reason, its age and the next step [A9].

In: what the machines of this room found. Out: findings in the order in which people should read them. Promise: every
code is in `CODES`, so that severity and next step stand in one place and the number of series in metrics is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

Kind = Literal["source", "slot", "table", "changefeed", "spark", "capture", "broker", "disk"]
Severity = Literal["critical", "warning"]


class Code(NamedTuple):
    """What a code means. `next_step` may name the thing as {name}."""

    kind: Kind
    severity: Severity
    next_step: str


LOOK_AT_SOURCE = "see: millrace source get {name}"
LOOK_AT_FEED = "see: millrace changefeed get {name}"
BLOCKERS = "see: millrace changefeed blockers {name}"
ROOM = "free space there: lower retention.ms or retention.bytes, delete topics, or end what holds the log"

CODES: Mapping[str, Code] = {
    # -- sources: their changes do not reach the log
    "source_failed": Code("source", "critical", LOOK_AT_SOURCE),
    "source_auth_failed": Code("source", "critical", "correct user, password or database of its URL where the "
                               "captures resolve it; then it goes on by itself"),
    "source_misconfigured": Code("source", "critical", "set the variable or write the file that its URL names, for "
                                 "every capture; then it goes on by itself"),
    "source_unreachable": Code("source", "critical", "start the database, or mend the network to it; the server keeps "
                               "WAL for the slot meanwhile"),
    "source_retrying": Code("source", "critical", LOOK_AT_SOURCE),
    "source_waiting": Code("source", "warning", LOOK_AT_SOURCE),
    "source_starting": Code("source", "warning", LOOK_AT_SOURCE),
    "source_behind": Code("source", "warning", "look at the load of the brokers and of its capture; a large "
                          "transaction counts until it is in the log"),
    # -- slots
    "slot_filling": Code("slot", "warning", "get the source to stream, or raise max_slot_wal_keep_size"),
    "slot_nearly_full": Code("slot", "critical", "get the source to stream now, or raise max_slot_wal_keep_size: a "
                             "lost slot means a copy of every table"),
    "slot_lost": Code("slot", "critical", "its tables are copied again; see: millrace source get {name}"),
    # -- tables: named after their changefeed or source
    "table_isolated": Code("table", "critical", "see: millrace changefeed tables {name}"),
    "table_needs_copy": Code("table", "critical", "see: millrace changefeed tables {name}; mostly: millrace table "
                             "copy"),
    "table_not_carried": Code("table", "warning", LOOK_AT_FEED),
    "table_target_lost": Code("table", "critical", "see: millrace changefeed tables {name}"),
    "rows_in_quarantine": Code("table", "warning", "see: millrace quarantine list {name}; mend that and replay the "
                               "rows, or drop them"),
    # -- changefeeds
    "changefeed_failed": Code("changefeed", "critical", "mend what the reason names, then: millrace changefeed resume "
                              "{name}"),
    "changefeed_unknown": Code("changefeed", "warning", BLOCKERS),
    "changefeed_without_source": Code("changefeed", "warning", "mend its source; it goes on by itself"),
    "changefeed_without_spark": Code("changefeed", "warning", "start Spark; it goes on by itself"),
    "changefeed_stuck": Code("changefeed", "critical", "look at Spark's executors and Python workers: a round does "
                             "not end"),
    "changefeed_retrying": Code("changefeed", "warning", LOOK_AT_FEED),
    "changefeed_blocked": Code("changefeed", "warning", BLOCKERS),
    "changefeed_lagging": Code("changefeed", "warning", BLOCKERS),
    # -- processes
    "spark_absent": Code("spark", "critical", "see .millrace/logs/spark.stderr, or the Spark that spark.remote or "
                         "spark.master names"),
    "capture_missing": Code("capture", "critical", "start it or its machine; its log says what became of it"),
    "capture_silent": Code("capture", "critical", "look at its machine and network: it does not answer"),
    "no_coordinator": Code("capture", "critical", "look whether captures run and the store answers"),
    "broker_missing": Code("broker", "critical", "start it or its machine; its log says what became of it"),
    "no_controller": Code("broker", "critical", "look whether brokers run and the store answers"),
    "partitions_offline": Code("broker", "critical", "start the brokers in their ISR or ELR; see: millrace topic "
                               "describe"),
    "partitions_under_replicated": Code("broker", "warning", "start the missing broker, or find why it lags"),
    "disk_full": Code("disk", "critical", ROOM),
    "disk_nearly_full": Code("disk", "warning", ROOM),
    "cluster_down": Code("broker", "critical", "start it with: millrace up"),
}


class Finding(NamedTuple):
    """`name`: of the thing, as users write it. `age_s`: how long it is known to last; None: unknown."""

    code: str
    name: str
    reason: str
    age_s: float | None = None
    step: str = ""                           # a better next step than the code's own

    @property
    def kind(self) -> Kind:
        return CODES[self.code].kind

    @property
    def severity(self) -> Severity:
        return CODES[self.code].severity

    @property
    def next_step(self) -> str:
        return self.step or CODES[self.code].next_step.format(name=self.name)

    @property
    def key(self) -> tuple[str, str]:
        return self.code, self.name


ORDER = {code: number for number, code in enumerate(CODES)}


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """The bad ones first; then as `CODES` has them, causes before what follows from them. Each (code, name) once."""
    once = {finding.key: finding for finding in findings}
    return sorted(once.values(), key=lambda one: (one.severity != "critical", ORDER[one.code], one.name))


class Memory:
    """Since when findings stand, for those whose facts have no age of their own."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], float] = {}

    def aged(self, findings: Iterable[Finding], now: float) -> list[Finding]:
        found = in_order(findings)
        self._since = {one.key: self._since.get(one.key, now) for one in found}
        return [one if one.age_s is not None else one._replace(age_s=now - self._since[one.key]) for one in found]
