"""What the Kafka port uses of its broker, and what it is told at its start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from millrace import limits
from millrace.core.cluster import ClusterState
from millrace.log.config import BrokerConfig
from millrace.log.groups import Coordinators
from millrace.log.partition import Partition
from millrace.model.messages import Message
from millrace.ops.cluster_secret import Key
from millrace.ops.metrics import Latency
from millrace.ops.ports import Ports
from millrace.wire.kafka.codec import Encoded

PRINCIPAL = ":principal"     # beside the fields of each request; no field of the protocol is named so
LIBRDKAFKA = ":librdkafka"   # beside them, too: whether that library sends it
WHO = ":who"     # beside the fields of a JoinGroup: who asks, as (client id, address)
COUNT_EVERY_BYTES = 64 * limits.MIB


class Shell(Protocol):
    """The broker, as far as its clients' requests reach into it."""

    @property
    def id(self) -> int: ...
    @property
    def ports(self) -> Ports: ...
    @property
    def config(self) -> BrokerConfig: ...
    @property
    def cluster(self) -> ClusterState: ...
    @property
    def controller_id(self) -> int: ...
    @property
    def groups(self) -> Coordinators: ...

    def suspects(self) -> frozenset[int]: ...
    def partition(self, name: bytes, index: int) -> Partition | None: ...
    def partition_by_id(self, topic_id: UUID, index: int) -> Partition | None: ...
    async def ask_controller(self, message: Message, timeout_s: float = ...) -> Message: ...
    async def wait_for_index(self, index: int, timeout_s: float | None = None) -> None: ...
    async def next_producer_id(self) -> int: ...
    async def delete_records(self, partition: Partition, offset: int) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaOptions:
    key: Key | None = None              # what our own clients prove; None: nobody can
    auto_create_topics: bool = True     # a producer that names an unknown topic gets it, as with Apache Kafka
    connections_max: int = limits.CONNECTIONS_MAX
    frame_bytes_max: int = limits.FRAME_BYTES_MAX
    in_flight_max: int = limits.IN_FLIGHT_MAX


@dataclass(slots=True)
class KafkaStats:
    """Plain counters; the exporter reads them."""

    requests: dict[int, int] = field(default_factory=dict)   # by api key
    connections_opened: int = 0
    connections_refused: int = 0
    connections_cut: int = 0             # slow, silent or hostile peers
    proofs_refused: int = 0              # connections that offered a proof of the secret and had another
    private_refused: int = 0             # private calls of connections that have proved nothing
    produce_errors: int = 0              # partitions of Produce requests that were refused or failed
    fetch_errors: int = 0
    produced_bytes: int = 0
    fetched_bytes: int = 0
    handler_failures: int = 0            # our own faults: each has a line in the log
    ack_latency: dict[int, Latency] = field(default_factory=lambda: {1: Latency(), -1: Latency()})   # by acks [L26]


@dataclass(slots=True)
class Service:
    """What every handler is given."""

    shell: Shell
    options: KafkaOptions
    queued_bytes: Callable[[], int]      # answers of all connections that their clients have not read yet
    stats: KafkaStats = field(default_factory=KafkaStats)
    # Metadata answers, topic by topic as encoded at one metadata index: 1,000 partitions cost milliseconds to encode.
    topic_parts: dict[tuple[int, str], Encoded] = field(default_factory=dict)
    topic_parts_of: tuple[int, frozenset[int]] = (-1, frozenset())     # metadata index, suspects
    _counted: int = 0
    _since: int = 0

    def room_bytes(self) -> int:
        """How much more may be read into memory for all clients together; counted anew every so many bytes."""
        if self._since > COUNT_EVERY_BYTES:
            self._counted, self._since = self.queued_bytes(), 0
        return limits.MEMORY_IN_FLIGHT_MAX - self._counted - self._since

    def fetched(self, size: int) -> None:
        self._since += size
        self.stats.fetched_bytes += size
