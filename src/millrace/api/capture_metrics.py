"""`/metrics` of a capture: what its membership, its office and its readers count, read when asked [A4]."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from millrace import __version__
from millrace.api.changefeed_metrics import changefeed_metrics
from millrace.api.health_facts import state_of
from millrace.api.health_metrics import look_metrics
from millrace.api.health_watch import HealthWatch
from millrace.changefeed.capture import Capture
from millrace.changefeed.coordinator import Reign
from millrace.changefeed.reader_host import Reader
from millrace.core.health.sources import FLOWING
from millrace.ops.metrics import families, family
from millrace.source.reading.status import ReaderStatus

Value = Callable[[ReaderStatus], float | None]      # None: unknown, no sample

FROM_STATUS: dict[str, Value] = {
    "millrace_source_generation": lambda s: s.generation,
    "millrace_source_rows_total": lambda s: s.rows,
    "millrace_source_bytes_total": lambda s: s.bytes,
    "millrace_source_batches_total": lambda s: s.batches,
    "millrace_source_transactions_total": lambda s: s.transactions,
    "millrace_source_marks_total": lambda s: s.marks,
    "millrace_source_resolved_lsn": lambda s: s.resolved,
    "millrace_source_server_lsn": lambda s: s.server_end,
    "millrace_source_lag_seconds": lambda s: s.lag_s,
    "millrace_source_lag_bytes": lambda s: max(0, s.server_end - s.resolved),
    "millrace_source_pending_bytes": lambda s: s.pending_bytes,
    "millrace_source_reconnects_total": lambda s: s.reconnects,
    "millrace_source_spooled_bytes": lambda s: s.spooled_bytes,
    "millrace_source_retained_wal_bytes": lambda s: s.slot.retained_bytes,
    "millrace_source_wal_budget_bytes": lambda s: s.slot.budget_bytes,
    "millrace_source_wal_full_seconds": lambda s: s.slot.full_in_s,
    "millrace_source_slot_lost": lambda s: float(s.slot.state == "lost"),
}


def registry(capture: Capture, watch: HealthWatch) -> CollectorRegistry:
    found = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=found)
    GCCollector(registry=found)
    found.register(CaptureCollector(capture, watch))
    return found


class CaptureCollector(Collector):
    def __init__(self, capture: Capture, watch: HealthWatch) -> None:
        self._capture, self._watch = capture, watch

    def describe(self) -> list[Metric]:
        """Nothing is read before the first scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        capture = self._capture
        reign = capture.reign
        yield families("millrace_capture_info", [((str(capture.id), __version__), 1)])
        yield family("millrace_ready", float(not capture.not_ready()))
        yield family("millrace_capture_lease_valid", float(capture.membership.valid))
        yield family("millrace_is_coordinator", float(reign is not None))
        yield family("millrace_coordinator_tenures_total", capture.shell.tenures if capture.shell is not None else 0)
        if capture.changefeeds is not None:
            yield families("millrace_link_refusals_total", capture.changefeeds.control.proving.counts())
            yield from changefeed_metrics(capture.changefeeds, capture.quarantined)
        if reign is not None:
            yield from look_metrics(self._watch.latest)
            yield from self._sources(reign)
            yield from self._readers({name: host.reader for name, host in reign.hosts.items() if host.reader})

    def _sources(self, reign: Reign) -> Iterator[Metric]:
        entries = sorted(reign.state.sources.items())
        states = {name: state_of(entry, reign) for name, entry in entries}
        counts = Counter(state for state, _, _ in states.values())
        now = reign.now()
        yield families("millrace_sources", [((state,), count) for state, count in sorted(counts.items())])
        yield families("millrace_source_streaming", [((n,), float(s[0] in FLOWING)) for n, s in states.items()])
        yield families("millrace_source_state_age_seconds", [
            ((name, state), max(0.0, now - since)) for name, (state, _, since) in states.items() if since is not None])
        yield families("millrace_source_epoch", [((name,), entry.epoch) for name, entry in entries])
        yield families("millrace_source_reader_failures_total", [
            ((name,), host.failures) for name, host in sorted(reign.hosts.items())])

    def _readers(self, readers: dict[str, Reader]) -> Iterator[Metric]:
        for metric, value_of in FROM_STATUS.items():
            values = [(name, value_of(reader.status)) for name, reader in readers.items()]
            yield families(metric, [((name,), value) for name, value in values if value is not None])
        tables, copies, shares = [], [], []
        for name, reader in readers.items():
            by_state = Counter(table.state for table in reader.state.tables.values())
            tables += [((name, state), float(count)) for state, count in sorted(by_state.items())]
            copied_now = reader.status.copies
            copied = Counter(copy.state for copy in copied_now)
            copies += [((name, state), float(copied[state])) for state in ("waiting", "running", "done")]
            shares += [((name, str(copy.copy)), copy.share) for copy in copied_now if copy.state != "done"]
        yield families("millrace_source_tables", tables)
        yield families("millrace_source_copies", copies)
        yield families("millrace_source_copy_ratio", shares)
