"""Metrics: one table of everything that is measured, and cheap things to count with [L26].

In: values read from plain attributes when a scrape asks, so that counting costs the hot path nothing. Out: families for
Prometheus. A metric that is not in `METRICS` cannot be exported; docs/operating.md lists the table.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"


class Measure(NamedTuple):
    kind: str
    help: str
    labels: tuple[str, ...] = ()


PARTITION = ("topic", "partition")
FINDING = ("kind", "name", "code", "severity")

BROKER_METRICS: dict[str, Measure] = {
    # -- membership
    "millrace_broker_info": Measure(GAUGE, "Always 1; labels name the broker.", ("broker", "version", "flush")),
    "millrace_ready": Measure(GAUGE, "1 while the process should get clients."),
    "millrace_link_refusals_total": Measure(
        COUNTER, "Links, accepted and dialled ones, refused before or in their proof of the cluster's secret.",
        ("reason",)),
    "millrace_lease_valid": Measure(GAUGE, "1 while this broker may accept writes as leader."),
    "millrace_lease_losses_total": Measure(COUNTER, "Leases that ended without a fresh answer."),
    "millrace_session_seconds": Measure(GAUGE, "Configured session time-out."),
    "millrace_heartbeat_delay_seconds": Measure(GAUGE, "Send to answer of the last heartbeat."),
    "millrace_heartbeat_delay_max_seconds": Measure(GAUGE, "Largest heartbeat delay since the start."),
    "millrace_heartbeats_sent_total": Measure(COUNTER, "Heartbeats sent to the controller."),
    "millrace_heartbeats_failed_total": Measure(COUNTER, "Heartbeats without a good answer."),
    "millrace_broker_silence_seconds": Measure(
        GAUGE, "On the controller: time since each broker was last heard.", ("broker",)),
    "millrace_event_loop_lag_seconds": Measure(GAUGE, "How late the loop's timers ran, worst of the last second."),
    "millrace_event_loop_lag_max_seconds": Measure(GAUGE, "Largest loop lag since the start."),
    # -- the cluster as this broker knows it
    "millrace_health_finding": Measure(
        GAUGE, "1 for each thing that is not well, as `status` shows it: on the coordinator sources, changefeeds, "
        "tables, Spark and captures, on the controller brokers and partitions, on each broker its disk. At most 500.",
        FINDING),
    "millrace_is_controller": Measure(GAUGE, "1 on the broker that holds the controller's office."),
    "millrace_controller_tenures_total": Measure(COUNTER, "Times this broker won the controller's office."),
    "millrace_controller_elections_total": Measure(COUNTER, "As controller: partitions given another leader."),
    "millrace_controller_elections_failed_total": Measure(
        COUNTER, "As controller: partitions left without a leader because nobody was eligible."),
    "millrace_controller_elections_unclean_total": Measure(
        COUNTER, "As controller: elections outside ISR and ELR, by an operator's command."),
    "millrace_controller_fences_total": Measure(COUNTER, "As controller: brokers fenced."),
    "millrace_controller_append_max_seconds": Measure(GAUGE, "As controller: longest write to the store."),
    "millrace_controller_changes_total": Measure(COUNTER, "Changes of controller this broker has seen."),
    "millrace_metadata_index": Measure(GAUGE, "Last metadata record replayed."),
    "millrace_brokers": Measure(GAUGE, "Registered brokers by liveness.", ("liveness",)),
    "millrace_topics": Measure(GAUGE, "Topics."),
    "millrace_partitions": Measure(GAUGE, "Partitions of all topics."),
    "millrace_offline_partitions": Measure(GAUGE, "Partitions without a leader."),
    "millrace_under_replicated_partitions": Measure(GAUGE, "Partitions with fewer in-sync replicas than replicas."),
    # -- replication
    "millrace_replicas": Measure(GAUGE, "Replicas on this broker."),
    "millrace_leaders": Measure(GAUGE, "Partitions this broker leads."),
    "millrace_replication_lag_seconds": Measure(
        GAUGE, "On the leader: time since a follower had caught up. Only followers that are behind, worst first, at "
        "most 200.", (*PARTITION, "follower")),
    "millrace_replication_lag_records": Measure(
        GAUGE, "On the leader: records a follower misses. The same followers.", (*PARTITION, "follower")),
    "millrace_replication_lag_max_seconds": Measure(GAUGE, "Largest replication lag of all partitions led here."),
    "millrace_partition_leader_epoch": Measure(
        GAUGE, "Leader epoch of partitions led here, highest first, at most 200: each election raises it.", PARTITION),
    "millrace_partition_leaders_lost_total": Measure(
        COUNTER, "As controller: leaders that a partition lost, neither by a clean stop nor to balance; the most "
        "first, at most 200.", PARTITION),
    "millrace_high_watermark_advances_total": Measure(COUNTER, "Moves of a high watermark on this broker."),
    "millrace_elections_total": Measure(COUNTER, "Times this broker became leader of a partition."),
    "millrace_leaderships_lost_total": Measure(COUNTER, "Times this broker stopped leading a partition."),
    "millrace_isr_shrinks_total": Measure(COUNTER, "In-sync sets of partitions led here that lost a member."),
    "millrace_isr_expands_total": Measure(COUNTER, "In-sync sets of partitions led here that gained a member."),
    "millrace_isr_proposals_refused_total": Measure(COUNTER, "Changes of an in-sync set the controller refused."),
    "millrace_truncations_total": Measure(COUNTER, "Logs cut back to their leader's."),
    "millrace_truncations_below_hw_total": Measure(COUNTER, "Logs cut below their own high watermark: look at once."),
    "millrace_disk_epochs_above_total": Measure(COUNTER, "Replicas whose disk knew an epoch the controller did not."),
    "millrace_replicas_damaged_total": Measure(COUNTER, "Replicas that left and fetch again because of damage."),
    "millrace_replicas_set_aside_total": Measure(COUNTER, "Partitions on disk that the controller does not know."),
    "millrace_replica_bytes_out_total": Measure(COUNTER, "Bytes sent to followers."),
    "millrace_replica_bytes_in_total": Measure(COUNTER, "Bytes received from leaders."),
    "millrace_replica_frames_out_total": Measure(COUNTER, "Data frames sent to followers."),
    "millrace_replica_frames_in_total": Measure(COUNTER, "Data frames received from leaders."),
    # -- consumer groups coordinated here
    "millrace_groups": Measure(GAUGE, "Consumer groups this broker coordinates, by state.", ("state",)),
    "millrace_group_members": Measure(GAUGE, "Members of the groups this broker coordinates."),
    "millrace_group_rebalances_total": Measure(COUNTER, "Generations of groups begun on this broker."),
    "millrace_group_coordinators_loading": Measure(
        GAUGE, "Partitions of the group topic led here whose groups are not served yet."),
    # -- clients and disk
    "millrace_produce_bytes_total": Measure(COUNTER, "Bytes appended for clients."),
    "millrace_fetch_bytes_total": Measure(COUNTER, "Bytes read for consumers."),
    "millrace_produce_errors_total": Measure(COUNTER, "Partitions of produce requests refused or failed."),
    "millrace_fetch_errors_total": Measure(COUNTER, "Partitions of fetch requests refused or failed."),
    "millrace_requests_total": Measure(COUNTER, "Requests of clients by kind.", ("api",)),
    "millrace_ack_latency_seconds": Measure(
        HISTOGRAM, "Arrival of a produce request to its acknowledgement.", ("acks",)),
    "millrace_client_connections": Measure(GAUGE, "Open client connections."),
    "millrace_client_connections_cut_total": Measure(COUNTER, "Client connections closed: slow, silent or hostile."),
    "millrace_client_proofs_refused_total": Measure(
        COUNTER, "Connections to the Kafka port that tried to prove the cluster's secret and had another."),
    "millrace_private_calls_refused_total": Measure(
        COUNTER, "Private calls of connections that have not proved the cluster's secret."),
    "millrace_client_connections_refused_total": Measure(COUNTER, "Client connections above the limit."),
    "millrace_sync_rounds_total": Measure(COUNTER, "Disk syncs; each makes many appends durable."),
    "millrace_disk_full_refusals_total": Measure(COUNTER, "Writes refused because the disk is nearly full."),
    # -- retention and floors
    "millrace_log_bytes": Measure(GAUGE, "Bytes of the logs in use on this broker; idle ones since its start are left "
                                  "out."),
    "millrace_log_starts_moved_total": Measure(COUNTER, "Logs whose front was removed on this broker."),
    "millrace_partition_log_start": Measure(
        GAUGE, "Where partitions led here start, of those that were ever cut, at most 200.", PARTITION),
    "millrace_floors": Measure(GAUGE, "Floors registered at the controller, of all holders."),
    "millrace_floor_held_bytes": Measure(
        GAUGE, "On the leader: bytes that could go but for a holder's floors. The largest 200.", ("owner",)),
    "millrace_floor_held_age_seconds": Measure(
        GAUGE, "On the leader: age of the oldest records that a holder's floors keep. The same holders.", ("owner",)),
    "millrace_floors_released_total": Measure(
        COUNTER, "Floors taken from a holder beyond its budget, found by this broker: it needs a copy."),
    "millrace_disk_free_bytes": Measure(GAUGE, "Free bytes of the disk under the data directory."),
    "millrace_disk_total_bytes": Measure(GAUGE, "Size of the disk under the data directory."),
}

SOURCE = ("source",)
CHANGEFEED = ("changefeed",)

CAPTURE_METRICS: dict[str, Measure] = {
    "millrace_capture_info": Measure(GAUGE, "Always 1; labels name the capture.", ("capture", "version")),
    "millrace_ready": BROKER_METRICS["millrace_ready"],
    "millrace_link_refusals_total": BROKER_METRICS["millrace_link_refusals_total"],
    "millrace_capture_lease_valid": Measure(GAUGE, "1 while the store has confirmed that this capture lives."),
    "millrace_health_finding": BROKER_METRICS["millrace_health_finding"],
    "millrace_is_coordinator": Measure(GAUGE, "1 on the capture that holds the coordinator's office."),
    "millrace_coordinator_tenures_total": Measure(COUNTER, "Times this capture won the coordinator's office."),
    # -- on the coordinator: every source
    "millrace_sources": Measure(GAUGE, "On the coordinator: sources by state.", ("state",)),
    "millrace_source_streaming": Measure(GAUGE, "1 while the source's changes flow into the log.", SOURCE),
    "millrace_source_state_age_seconds": Measure(GAUGE, "How long the source has been in its state.",
                                                 ("source", "state")),
    "millrace_source_epoch": Measure(GAUGE, "Reader epoch: each life of a reader has a higher one.", SOURCE),
    "millrace_source_reader_failures_total": Measure(COUNTER, "Lives of the source's reader that ended by an error, "
                                                     "since this capture is coordinator.", SOURCE),
    # -- where its reader runs; numbers count from the reader's start
    "millrace_source_generation": Measure(GAUGE, "Raised when the source's history breaks.", SOURCE),
    "millrace_source_rows_total": Measure(COUNTER, "Changes appended to the log.", SOURCE),
    "millrace_source_bytes_total": Measure(COUNTER, "Bytes of changes appended to the log.", SOURCE),
    "millrace_source_batches_total": Measure(COUNTER, "Records appended to the log.", SOURCE),
    "millrace_source_transactions_total": Measure(COUNTER, "Transactions appended to the log.", SOURCE),
    "millrace_source_marks_total": Measure(COUNTER, "Resolved marks written.", SOURCE),
    "millrace_source_resolved_lsn": Measure(
        GAUGE, "All changes up to this position are in the log, as one number: the WAL's bytes; exact up to 8 PiB.",
        SOURCE),
    "millrace_source_server_lsn": Measure(GAUGE, "End of the server's WAL, as it last said.", SOURCE),
    "millrace_source_lag_seconds": Measure(GAUGE, "Age of the oldest change that is not yet in the log.", SOURCE),
    "millrace_source_lag_bytes": Measure(GAUGE, "WAL of the server behind the resolved position.", SOURCE),
    "millrace_source_pending_bytes": Measure(GAUGE, "Handed to the log and not yet acknowledged.", SOURCE),
    "millrace_source_reconnects_total": Measure(COUNTER, "Connections to the database that ended.", SOURCE),
    "millrace_source_spooled_bytes": Measure(GAUGE, "Of large transactions that have not committed.", SOURCE),
    "millrace_source_retained_wal_bytes": Measure(GAUGE, "WAL that the server keeps for the source's slot.", SOURCE),
    "millrace_source_wal_budget_bytes": Measure(
        GAUGE, "How much WAL the slot may retain before the server throws it away, or a warning is due.", SOURCE),
    "millrace_source_wal_full_seconds": Measure(
        GAUGE, "Time until the budget is used up at the present rate; absent while it does not fill.", SOURCE),
    "millrace_source_slot_lost": Measure(GAUGE, "1 when the server has thrown away WAL that the slot needed.", SOURCE),
    "millrace_source_tables": Measure(GAUGE, "Tables of the source by state.", ("source", "state")),
    "millrace_source_copies": Measure(GAUGE, "Copies of tables by state.", ("source", "state")),
    "millrace_source_copy_ratio": Measure(GAUGE, "Share that is done of a copy under way.", ("source", "copy")),
    # -- changefeeds: on the coordinator, where a maintainer is, where dispatchers are
    "millrace_changefeeds": Measure(
        GAUGE, "On the coordinator: changefeeds by state, as `changefeed list` shows it.", ("state",)),
    "millrace_changefeed_quarantined_rows": Measure(
        GAUGE, "On the coordinator: rows that stand in the quarantine; no sample where that is not known.", CHANGEFEED),
    "millrace_changefeed_checkpoint_lsn": Measure(
        GAUGE, "All changes up to this position are in the sink, as one number.", CHANGEFEED),
    "millrace_changefeed_lag_bytes": Measure(
        GAUGE, "On the coordinator: WAL between the checkpoint and what the source has resolved; no sample where that "
        "is not known.", CHANGEFEED),
    "millrace_changefeed_lag_seconds": Measure(
        GAUGE, "On the coordinator: age of the oldest change that is not in the sink; no sample where that is not "
        "known.", CHANGEFEED),
    "millrace_changefeed_lag_known": Measure(
        GAUGE, "On the coordinator: 1 while the lag is known, 0 while its source or its maintainer says nothing.",
        CHANGEFEED),
    "millrace_changefeed_checkpoint_age_seconds": Measure(
        GAUGE, "Since the checkpoint last moved, or the maintainer began.", CHANGEFEED),
    "millrace_changefeed_errors_total": Measure(
        COUNTER, "Errors of dispatchers that the maintainer was told of, since it began.", CHANGEFEED),
    "millrace_changefeed_isolated_tables": Measure(GAUGE, "Tables that are left behind after an error.", CHANGEFEED),
    "millrace_changefeed_needs_copy_tables": Measure(
        GAUGE, "Tables that are out until they are copied: what they need is not in the log.", CHANGEFEED),
    "millrace_changefeed_blockers": Measure(GAUGE, "Things that wait, as `changefeed blockers` tells.", CHANGEFEED),
    "millrace_changefeed_oldest_blocker_seconds": Measure(
        GAUGE, "How long the oldest of them waits; 0: nothing does.", CHANGEFEED),
    "millrace_changefeed_dispatchers": Measure(GAUGE, "Dispatchers on this capture.", CHANGEFEED),
    "millrace_changefeed_rounds": Measure(GAUGE, "Rounds of dispatchers here that are under way.", CHANGEFEED),
    "millrace_changefeed_breaker_open": Measure(
        GAUGE, "1 while dispatchers here pause since the sink takes no writes.", CHANGEFEED),
    "millrace_changefeed_breaker_trips_total": Measure(
        COUNTER, "How often they paused, since this capture started.", CHANGEFEED),
    "millrace_changefeed_breaker_probes_total": Measure(
        COUNTER, "Probes whether the sink takes writes again.", CHANGEFEED),
    "millrace_spark_jobs_total": Measure(COUNTER, "Jobs that Spark was given by this capture."),
    "millrace_spark_up": Measure(
        GAUGE, "1 while Spark answers this capture; no sample where it has nothing for Spark to do."),
    "millrace_spark_absent_seconds": Measure(
        GAUGE, "How long Spark starts no job, or answers nothing while one is under way; 0: it is there."),
}

METRICS: dict[str, Measure] = {**BROKER_METRICS, **CAPTURE_METRICS}

LATENCY_BOUNDS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class Latency:
    """A histogram of plain integers."""

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self.total_s = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(LATENCY_BOUNDS_S, seconds)] += 1
        self.total_s += seconds


def family(name: str, value: float) -> Metric:
    """One sample without labels."""
    measure = METRICS[name]
    kind = CounterMetricFamily if measure.kind == COUNTER else GaugeMetricFamily
    return kind(name, measure.help, value=value)


def families(name: str, rows: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    """One sample per (label values, value)."""
    measure = METRICS[name]
    kind = CounterMetricFamily if measure.kind == COUNTER else GaugeMetricFamily
    found = kind(name, measure.help, labels=measure.labels)
    for labels, value in rows:
        found.add_metric(labels, value)
    return found


def histogram(name: str, rows: Iterable[tuple[tuple[str, ...], Latency]]) -> Metric:
    measure = METRICS[name]
    found = HistogramMetricFamily(name, measure.help, labels=measure.labels)
    for labels, latency in rows:
        buckets, running = [], 0
        for bound, count in zip((*map(str, LATENCY_BOUNDS_S), "+Inf"), latency.counts, strict=True):
            running += count
            buckets.append((bound, running))
        found.add_metric(labels, buckets, latency.total_s)
    return found
