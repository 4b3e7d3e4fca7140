"""`/metrics`: the broker's plain counters as Prometheus text, read when asked [L26, A4]."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from millrace import __version__
from millrace.api.broker_health import cluster_findings, own_findings
from millrace.api.brokers import liveness
from millrace.api.health import not_ready
from millrace.core.groups.state import State
from millrace.core.health.findings import Finding, in_order
from millrace.log.broker import Broker
from millrace.log.kafka.server import KafkaServer
from millrace.log.partition import Partition
from millrace.log.retention import Retention
from millrace.model.ids import TopicPartition
from millrace.ops.metrics import families, family, histogram
from millrace.wire.kafka.apis import Key

PARTITION_SERIES_MAX = 200   # a scrape stays small with any number of partitions

# Plain attributes of the broker's stats and the metrics they are.
FROM_STATS = {
    "millrace_heartbeat_delay_seconds": "heartbeat_delay_s",
    "millrace_heartbeat_delay_max_seconds": "heartbeat_delay_max_s",
    "millrace_heartbeats_sent_total": "heartbeats_sent",
    "millrace_heartbeats_failed_total": "heartbeats_failed",
    "millrace_event_loop_lag_seconds": "loop_lag_s",
    "millrace_event_loop_lag_max_seconds": "loop_lag_max_s",
    "millrace_lease_losses_total": "lease_losses",
    "millrace_controller_changes_total": "controller_changes",
    "millrace_high_watermark_advances_total": "hw_advances",
    "millrace_elections_total": "elections",
    "millrace_leaderships_lost_total": "leaderships_lost",
    "millrace_isr_shrinks_total": "isr_shrinks",
    "millrace_isr_expands_total": "isr_expands",
    "millrace_isr_proposals_refused_total": "isr_proposals_refused",
    "millrace_truncations_total": "truncations",
    "millrace_truncations_below_hw_total": "truncations_below_hw",
    "millrace_disk_epochs_above_total": "disk_epochs_above",
    "millrace_replicas_damaged_total": "replicas_damaged",
    "millrace_replicas_set_aside_total": "replicas_set_aside",
    "millrace_disk_full_refusals_total": "disk_full_refusals",
    "millrace_replica_bytes_out_total": "replica_bytes_out",
    "millrace_replica_bytes_in_total": "replica_bytes_in",
    "millrace_replica_frames_out_total": "replica_frames_out",
    "millrace_replica_frames_in_total": "replica_frames_in",
    "millrace_group_rebalances_total": "group_rebalances",
    "millrace_log_starts_moved_total": "log_starts_moved",
    "millrace_floors_released_total": "floors_released",
}


async def scrape(request: Request) -> Response:
    body = generate_latest(request.app.state.metrics)
    return Response(body, media_type="text/plain; version=0.0.4; charset=utf-8")


def registry(broker: Broker, kafka: KafkaServer) -> CollectorRegistry:
    found = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=found)
    GCCollector(registry=found)
    found.register(BrokerCollector(broker, kafka))
    return found


class BrokerCollector(Collector):
    def __init__(self, broker: Broker, kafka: KafkaServer) -> None:
        self._broker, self._kafka = broker, kafka

    def describe(self) -> list[Metric]:
        """Nothing is read before the first scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        yield from self._membership()
        if self._broker.keeper is not None:
            yield from self._cluster()
            yield from self._replication()
            yield from self._groups()
            yield from self._retention(self._broker.keeper.retention)
            yield families("millrace_health_finding", [
                ((one.kind, one.name, one.code, one.severity), 1.0) for one in self._findings()])
        yield from self._controller()
        yield from self._clients()
        for name, attribute in FROM_STATS.items():
            yield family(name, getattr(self._broker.stats, attribute))

    def _findings(self) -> list[Finding]:
        """Of its own disk; of the log only as controller, so that each has one series."""
        broker = self._broker
        in_office = broker.controller is not None and broker.controller.reign is not None
        return in_order([*own_findings(broker), *(cluster_findings(broker) if in_office else ())])

    def _membership(self) -> Iterator[Metric]:
        broker = self._broker
        config = broker.config
        yield families("millrace_broker_info", [((str(broker.id), __version__, config.flush), 1)])
        yield family("millrace_ready", float(not not_ready(broker)))
        yield family("millrace_lease_valid", float(broker.lease_valid()))
        yield family("millrace_session_seconds", config.session_s)
        yield families("millrace_link_refusals_total", broker.proving.counts())

    def _cluster(self) -> Iterator[Metric]:
        broker = self._broker
        cluster = broker.cluster
        counts = Counter(liveness(state) for state in cluster.brokers.values())
        yield family("millrace_metadata_index", cluster.index)
        yield families("millrace_brokers", [((word,), counts[word]) for word in ("alive", "draining", "fenced")])
        yield family("millrace_topics", len(cluster.topics))
        yield family("millrace_partitions", cluster.partition_count)
        yield family("millrace_offline_partitions", len(cluster.offline))
        yield family("millrace_under_replicated_partitions", len(cluster.under_replicated))

    def _replication(self) -> Iterator[Metric]:
        broker = self._broker
        now = broker.ports.clock.now()
        led = [p for p in broker.partitions.values() if p.replica.is_leader]
        behind = [(lag_s, records, p, follower) for p in led for follower, lag_s, records in p.replica.lagging(now)]
        worst = heapq.nlargest(PARTITION_SERIES_MAX, behind, key=lambda row: row[0])
        yield family("millrace_replicas", len(broker.cluster.partitions_on(broker.id)))
        yield family("millrace_leaders", len(led))
        yield families("millrace_replication_lag_seconds", [((*_labels(p), str(f)), s) for s, _, p, f in worst])
        yield families("millrace_replication_lag_records", [((*_labels(p), str(f)), n) for _, n, p, f in worst])
        yield family("millrace_replication_lag_max_seconds", worst[0][0] if worst else 0.0)
        highest = heapq.nlargest(PARTITION_SERIES_MAX, led, key=lambda p: p.replica.leader_epoch)
        yield families("millrace_partition_leader_epoch", [(_labels(p), p.replica.leader_epoch) for p in highest])

    def _groups(self) -> Iterator[Metric]:
        coordinators = list(self._broker.groups.all())
        serving = [one.groups for one in coordinators if one.groups is not None]
        states = Counter(state for groups in serving for state in groups.states())
        yield families("millrace_groups", [((state.value,), states[state]) for state in State])
        yield family("millrace_group_members", sum(len(g.members) for s in serving for g in s.by_name.values()))
        yield family("millrace_group_coordinators_loading", len(coordinators) - len(serving))

    def _retention(self, retention: Retention) -> Iterator[Metric]:
        broker = self._broker
        logs = [p.log for p in broker.partitions.values() if p.log.is_loaded]
        yield family("millrace_log_bytes", sum(log.size_bytes for log in logs))
        yield family("millrace_floors", broker.cluster.floors.count)
        cut = (broker.partitions.get(tp) for tp in broker.cluster.floors.log_starts)
        led = [p for p in cut if p is not None and p.replica.is_leader][:PARTITION_SERIES_MAX]
        yield families("millrace_partition_log_start", [(_labels(p), p.log.log_start) for p in led])
        held = heapq.nlargest(PARTITION_SERIES_MAX, retention.held_by_owner().items(), key=lambda one: one[1])
        ages = retention.age_by_owner()
        yield families("millrace_floor_held_bytes", [((owner,), size) for owner, size in held])
        yield families("millrace_floor_held_age_seconds", [((owner,), ages[owner]) for owner, _ in held])

    def _controller(self) -> Iterator[Metric]:
        """What only the holder of the office knows: when it last heard each broker, and its elections."""
        shell = self._broker.controller
        if shell is None:
            return
        reign = shell.reign
        now = self._broker.ports.clock.now()
        watched = [b for b, state in reign.state.brokers.items() if not state.fenced] if reign is not None else []
        yield family("millrace_is_controller", float(reign is not None))
        yield families("millrace_broker_silence_seconds", [
            ((str(b),), reign.sessions.age_s(b, now)) for b in sorted(watched) if reign is not None])
        yield families("millrace_partition_leaders_lost_total",
                       self._leaders_lost(shell.stats.leaders_lost) if reign is not None else [])
        yield family("millrace_controller_tenures_total", shell.stats.tenures)
        yield family("millrace_controller_elections_total", shell.stats.elections)
        yield family("millrace_controller_elections_failed_total", shell.stats.elections_failed)
        yield family("millrace_controller_elections_unclean_total", shell.stats.elections_unclean)
        yield family("millrace_controller_fences_total", shell.stats.fences)
        yield family("millrace_controller_append_max_seconds", shell.stats.append_max_s)

    def _leaders_lost(self, lost: Mapping[TopicPartition, int]) -> list[tuple[tuple[str, str], float]]:
        """Of partitions that are there; those that lost none fill up what is left, so that a first loss counts."""
        cluster = self._broker.cluster
        found = [(part.tp, lost.get(part.tp, 0)) for part in cluster.partitions()]
        most = heapq.nlargest(PARTITION_SERIES_MAX, found, key=lambda one: one[1])
        return [((cluster.topics[tp[0]].name, str(tp[1])), float(count)) for tp, count in most]

    def _clients(self) -> Iterator[Metric]:
        broker = self._broker
        stats = self._kafka.stats
        names: dict[int, str] = {key: name for name, key in Key.__members__.items()}
        yield family("millrace_produce_bytes_total", stats.produced_bytes)
        yield family("millrace_fetch_bytes_total", stats.fetched_bytes)
        yield family("millrace_produce_errors_total", stats.produce_errors)
        yield family("millrace_fetch_errors_total", stats.fetch_errors)
        yield families("millrace_requests_total", [
            ((names.get(key, str(key)).lower(),), count) for key, count in sorted(stats.requests.items())])
        yield histogram("millrace_ack_latency_seconds", [
            (("all" if acks == -1 else str(acks),), latency) for acks, latency in stats.ack_latency.items()])
        yield family("millrace_client_connections", len(self._kafka.clients))
        yield family("millrace_client_connections_cut_total", stats.connections_cut)
        yield family("millrace_client_connections_refused_total", stats.connections_refused)
        yield family("millrace_client_proofs_refused_total", stats.proofs_refused)
        yield family("millrace_private_calls_refused_total", stats.private_refused)
        if broker.keeper is not None:
            free, total = broker.ports.fs.usage(broker.config.data_dir)
            yield family("millrace_sync_rounds_total", broker.keeper.logs.syncer.rounds)
            yield family("millrace_disk_free_bytes", free)
            yield family("millrace_disk_total_bytes", total)


def _labels(p: Partition) -> tuple[str, str]:
    return p.name, str(p.index)
