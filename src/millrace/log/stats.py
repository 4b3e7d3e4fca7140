"""Counters of one broker: plain integers, so that counting costs nothing; the exporter reads them [L26]."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class BrokerStats:
    heartbeats_sent: int = 0
    heartbeats_failed: int = 0
    heartbeat_delay_s: float = 0.0        # send to answer, of the last one
    heartbeat_delay_max_s: float = 0.0
    loop_lag_s: float = 0.0               # of the last second
    loop_lag_max_s: float = 0.0
    lease_losses: int = 0
    hw_advances: int = 0
    elections: int = 0                    # this broker became leader of a partition
    leaderships_lost: int = 0
    isr_shrinks: int = 0
    isr_expands: int = 0
    isr_proposals_refused: int = 0
    truncations: int = 0
    truncations_below_hw: int = 0         # an alert: acknowledged records may have been cut
    disk_epochs_above: int = 0            # an alert: a replica knew an epoch the controller did not
    replicas_damaged: int = 0
    replicas_set_aside: int = 0
    disk_full_refusals: int = 0
    log_starts_moved: int = 0             # the front of a log was removed here
    floors_released: int = 0              # an alert: a holder was found beyond its budget by this broker
    metadata_index: int = 0
    controller_changes: int = 0
    replica_bytes_out: int = 0            # as leader, to followers
    replica_bytes_in: int = 0             # as follower, from leaders
    replica_frames_out: int = 0
    replica_frames_in: int = 0
    group_rebalances: int = 0             # generations of consumer groups begun here
