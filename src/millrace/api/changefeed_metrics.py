"""Changefeeds in `/metrics` of a capture: recorded ones on the coordinator, each one's figures where its maintainer is,
rounds where its dispatchers are; read when asked [A4]."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

from millrace.changefeed.changefeeds import Changefeeds
from millrace.changefeed.quarantine_counts import QuarantineCounts
from millrace.core.feeds.feeds import FeedEntry
from millrace.core.feeds.maintainer import Maintainer
from millrace.ops.metrics import families, family


def changefeed_metrics(changefeeds: Changefeeds, quarantined: QuarantineCounts) -> Iterator[Metric]:
    control, spark = changefeeds.control, changefeeds.spark
    now = control.around.now()
    if control.coordinator is not None:
        yield from quarantine_metrics(control.coordinator.machine.state.feeds, quarantined)
    yield from _maintained(
        {feed: host.machine for feed, host in sorted(control.maintainers.items()) if host.machine is not None}, now)
    managers = sorted(control.managers.items())
    yield families("millrace_changefeed_dispatchers", [((feed,), len(host.machine.held)) for feed, host in managers])
    reports = {feed: changefeeds.data_path.report(feed) for feed, _ in managers}
    yield families("millrace_changefeed_rounds", [((feed,), one.rounds) for feed, one in reports.items()])
    yield families("millrace_changefeed_breaker_open", [
        ((feed,), float(one.outage is not None)) for feed, one in reports.items()])
    yield families("millrace_changefeed_breaker_trips_total", [((feed,), one.trips) for feed, one in reports.items()])
    yield families("millrace_changefeed_breaker_probes_total", [((feed,), one.probes) for feed, one in reports.items()])
    yield family("millrace_spark_jobs_total", spark.jobs)
    absence = spark.absence
    yield families("millrace_spark_up", [((), float(absence is None))] if managers else [])
    yield family("millrace_spark_absent_seconds", now - absence.since if absence is not None else 0.0)


def quarantine_metrics(entries: Mapping[str, FeedEntry], quarantined: QuarantineCounts) -> Iterator[Metric]:
    """A count that nobody knows has no sample."""
    counts = {feed: quarantined.of(feed) for feed in sorted(entries)}
    yield families("millrace_changefeed_quarantined_rows", [
        ((feed,), count) for feed, count in counts.items() if count is not None])


def _maintained(machines: dict[str, Maintainer], now: float) -> Iterator[Metric]:
    reached = {feed: lsn for feed, machine in machines.items() if (lsn := machine.checkpoint) is not None}
    yield families("millrace_changefeed_checkpoint_lsn", [((feed,), lsn) for feed, lsn in reached.items()])
    yield families("millrace_changefeed_checkpoint_age_seconds", [
        ((feed,), max(0.0, now - machine.checkpoint_since)) for feed, machine in machines.items()])
    yield families("millrace_changefeed_errors_total", [
        ((feed,), sum(error.count for error in machine.health.history.values())) for feed, machine in machines.items()])
    yield families("millrace_changefeed_isolated_tables", [
        ((feed,), len(machine.ddl.position.isolated)) for feed, machine in machines.items()
        if machine.ddl.position is not None])
    yield families("millrace_changefeed_needs_copy_tables", [
        ((feed,), len(machine.state.needs)) for feed, machine in machines.items()])
    blockers = {feed: machine.blockers() for feed, machine in machines.items()}
    yield families("millrace_changefeed_blockers", [((feed,), len(found)) for feed, found in blockers.items()])
    yield families("millrace_changefeed_oldest_blocker_seconds", [
        ((feed,), max((now - blocker.since for blocker in found), default=0.0)) for feed, found in blockers.items()])
