"""What one broker is told at its start. Built by the composition root out of the configuration file; never changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from millrace import limits
from millrace.core.retention import RetentionConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    broker_id: int
    cluster_id: UUID
    data_dir: str
    host: str = "127.0.0.1"          # what clients and brokers are told to dial
    bind_host: str = ""              # what the listeners bind; empty: the same
    kafka_port: int = 9092
    link_port: int = 9192
    http_port: int = 8400
    rack: str = ""
    host_id: str = ""                # equal on brokers of one machine: placement treats it as a rack [L3]
    flush: str = "group"             # group | os [L11]
    heartbeat_s: float = limits.HEARTBEAT_S
    lease_s: float = limits.LEASE_S
    session_s: float = limits.SESSION_S
    tenure_s: float = limits.TENURE_S
    clock_drift_max: float = limits.CLOCK_DRIFT_MAX
    replica_lag_s: float = limits.REPLICA_LAG_S
    stop_grace_s: float = 10.0       # a clean stop takes no longer than this, whatever the controller answers
    disk_used_max: float = limits.DISK_USED_MAX
    log_file_bytes: int = limits.LOG_FILE_BYTES
    retention: RetentionConfig = field(default_factory=RetentionConfig)
    http_key: bytes = field(default=b"", repr=False)   # proves this process to the others over HTTP

    @property
    def listen_host(self) -> str:
        return self.bind_host or self.host
