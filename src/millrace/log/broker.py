"""The broker: one process of the log, on one loop. Builds its parts, and does once per turn what they ask for.

In: frames of peers and clients, answers of the controller, the disk. Out: a served, replicated log.

    Kafka port ─▶ Partition.append ─▶ LogDir (sync round) ─▶ Partition.synced ─▶ HW ─▶ acknowledgements
                        │ streams                                  ▲ FETCH = durable on the follower
                        └▶ Session ── DATA ──▶ Fetcher of a follower ─▶ append ─▶ sync

Nothing here waits per request: plain calls on the hot path, coroutines for start, stop and the controller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol
from uuid import UUID

import structlog

from millrace import limits
from millrace.core.cluster import ClusterState
from millrace.core.lease import check_lease_times
from millrace.core.retention import Held
from millrace.core.suspects import Suspects
from millrace.errors import MillraceError, NotLeader
from millrace.link.pool import LinkPool
from millrace.link.proving import Proving
from millrace.link.server import LinkServer, Peer
from millrace.log.config import BrokerConfig
from millrace.log.controller import CONTROLLER_MESSAGES, ControllerConfig, ControllerShell
from millrace.log.controller_client import ControllerClient
from millrace.log.files.home import Sizes
from millrace.log.files.log_dir import LogDir
from millrace.log.groups import Coordinators
from millrace.log.keeper import Keeper
from millrace.log.membership import Membership
from millrace.log.partition import Partition
from millrace.log.stats import BrokerStats
from millrace.model.ids import ProcessIdentity, TopicPartition
from millrace.model.messages import (
    AskProducerIds,
    Hello,
    Message,
    MetadataRecords,
    ProducerIds,
    Register,
    ReplicaReport,
)
from millrace.model.records import Endpoint
from millrace.ops.cluster_secret import Key
from millrace.ops.ports import Ports
from millrace.store.contract import Candidate, Store
from millrace.wire import links

log = structlog.get_logger(__name__)


class Listener(Protocol):
    """The Kafka port."""

    async def listen(self, host: str, port: int) -> None: ...
    async def close(self) -> None: ...


ListenerFactory = Callable[["Broker"], Listener]


class Broker:
    """What the Kafka handlers, the controller and the composition root see of one broker."""

    def __init__(
        self, config: BrokerConfig, ports: Ports, store: Store, *, listener: ListenerFactory,
        fatal: Callable[[MillraceError], None], link_key: Key, controller: ControllerConfig | None = None,
    ) -> None:
        """`link_key`: what links prove. `controller`: how to rule when this broker wins the office; None: it is no
        candidate."""
        check_lease_times(config.lease_s, config.session_s, config.clock_drift_max)
        self.id = config.broker_id
        self.config, self.ports, self.store = config, ports, store
        self.loop = asyncio.get_running_loop()
        self.stats = BrokerStats()
        self.proving = Proving(link_key, "broker", ports.random)
        self.pool = LinkPool(self._hello, ports, self.proving, on_up=self._link_up, on_down=self._link_down)
        self.server = LinkServer(self._hello, self.proving)
        self._fatal = fatal
        self._suspects = Suspects()
        self.failed: MillraceError | None = None
        self.controller = self._candidate(controller) if controller is not None else None
        self.client = ControllerClient(self.id, ports, store, self.pool, self.controller, self.stats)
        self.membership = Membership(config, ports, self.client, self, self.stats)
        self.listener = listener(self)
        self.keeper: Keeper | None = None
        self._groups: Coordinators | None = None
        self._producer_ids = range(0)
        self._asking_ids = asyncio.Lock()
        self._start_id = ports.random.uuid()
        self.serving = False

    # -- what Kafka handlers use -----------------------------------------------------------------------------------

    @property
    def cluster(self) -> ClusterState:
        return self._keeper().roles.cluster

    @property
    def controller_id(self) -> int:
        return self.client.id

    @property
    def groups(self) -> Coordinators:
        assert self._groups is not None, "the broker has not been started"
        return self._groups

    @property
    def partitions(self) -> dict[TopicPartition, Partition]:
        return self._keeper().roles.partitions

    def partition(self, name: bytes, index: int) -> Partition | None:
        topic = self._keeper().roles.by_name.get(name)
        return topic.get(index) if topic is not None else None

    def partition_by_id(self, topic_id: UUID, index: int) -> Partition | None:
        return self._keeper().roles.partitions.get(TopicPartition(topic_id, index))

    def suspects(self) -> frozenset[int]:
        """Brokers a client should not be sent to right now; ourselves, too, while we have no lease [L16]."""
        lost = self._suspects.at(self.ports.clock.now())
        lost |= {b.broker for b in self.cluster.brokers.values() if not b.fenced and self._is_gone(b.process)}
        return lost if self.lease_valid() else lost | {self.id}

    def _is_gone(self, process: ProcessIdentity) -> bool:
        # A client may ask before the broken link is noticed here: its one second of patience starts with this answer.
        return self.ports.processes.is_gone(process)

    def lease_valid(self) -> bool:
        return self.membership.lease_valid()

    async def ask_controller(self, message: Message, timeout_s: float = limits.LINK_CALL_S) -> Message:
        return await self.client.ask(message, timeout_s)

    async def wait_for_index(self, index: int, timeout_s: float | None = None) -> None:
        """Metadata of this broker has been replayed up to `index`. Raises TimedOut."""
        await self._keeper().roles.wait_for_index(index, timeout_s)

    async def next_producer_id(self) -> int:
        """Never handed out before, by anyone [L20]."""
        async with self._asking_ids:
            if not self._producer_ids:
                answer = await self.client.ask(AskProducerIds(self.id, self.membership.incarnation))
                assert isinstance(answer, ProducerIds)
                self._producer_ids = range(answer.first, answer.first + answer.count)
            first, self._producer_ids = self._producer_ids[0], self._producer_ids[1:]
            return first

    async def delete_records(self, partition: Partition, offset: int) -> int:
        """The new log start [L23]."""
        return await self._keeper().retention.delete_records(partition, offset)

    def held_on(self, tp: TopicPartition) -> tuple[Held, ...]:
        """What floors hold back, as this leader's last pass found."""
        return self._keeper().retention.held.get(tp, ())

    # -- start and stop --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Returns when this broker has its roles, listens, and tells the controller that it is ready."""
        config = self.config
        logs = LogDir.open(
            config.data_dir, self.ports.fs, cluster_id=config.cluster_id, broker_id=self.id, flush=config.flush,
            boot_id=self.ports.processes.me().boot_id, new_id=self.ports.random.uuid(),
            sizes=Sizes(log_file_bytes=config.log_file_bytes),
        )
        self.keeper = Keeper(config, self.ports, self.stats, logs, self.pool, self.client, self.membership, self.fatal)
        self._groups = Coordinators(self.keeper, self.keeper.roles, self.client.ask)
        self._connect(self.keeper)
        await self.server.listen(config.listen_host, config.link_port)
        if self.controller is not None:
            self.controller.start()
        await self.membership.register(self._registration(logs))
        self.pool.greet_again()
        self.membership.start_heartbeats()
        await self.membership.catch_up()
        self.keeper.set_aside_unknown()
        await self.listener.listen(config.listen_host, config.kafka_port)
        self.serving = self.membership.ready = True
        self.membership.beat()
        log.info("broker serves", broker=self.id, partitions=len(self.partitions), kafka_port=config.kafka_port)

    def _connect(self, keeper: Keeper) -> None:
        self.server.on(links.ATTACH, keeper.leaders.on_attach)
        self.server.on(links.FETCH, keeper.leaders.on_fetch)
        self.server.on(links.DETACH, keeper.leaders.on_detach)
        self.server.on_closed(keeper.leaders.on_closed)
        self.pool.on(links.DATA, keeper.followers.on_data)
        if self.controller is not None:
            for kind in CONTROLLER_MESSAGES:
                self.server.handle(kind, self._for_controller)
            self.server.on_closed(lambda peer: self._suspect(peer.member))

    def _candidate(self, config: ControllerConfig) -> ControllerShell:
        address = f"{self.config.host}:{self.config.link_port}"
        me = Candidate(self.id, address, self.ports.processes.me())
        return ControllerShell(self.store, self.ports, config, me, busy=self._busy)

    def _busy(self) -> list[TopicPartition]:
        return self.keeper.busy() if self.keeper is not None else []

    async def _for_controller(self, peer: Peer, message: Message) -> Message:
        assert self.controller is not None
        return await self.controller.handle(peer.member, message)

    def _suspect(self, broker: int) -> None:
        if self.controller is not None:
            self.controller.connection_lost(broker)

    def _registration(self, logs: LogDir) -> Register:
        config = self.config
        return Register(
            broker=self.id, start_id=self._start_id,
            endpoint=Endpoint(config.host, config.kafka_port, config.link_port, config.http_port),
            process=self.ports.processes.me(), directory_id=logs.directory_id, directory_is_new=logs.is_new,
            clean_stop=logs.clean_stop, flush=config.flush, rack=config.rack, host_id=config.host_id,
        )

    async def stop(self) -> None:
        """A clean stop, bounded in time: leaders move first, then all is on disk, then the clean marker is written."""
        if self.serving and self.failed is None:
            let_go = await self.membership.stop(self.config.stop_grace_s)
            if not let_go:
                log.warning("stopping without the controller's consent", after_s=self.config.stop_grace_s)
        await self.close(clean=self.failed is None)

    async def close(self, *, clean: bool) -> None:
        self.serving = False
        if self._groups is not None:
            self._groups.close()
        await self.listener.close()
        await self.membership.close()
        if self.controller is not None:
            await self.controller.stop()
        await self.client.close()
        if self.keeper is not None:
            await self.keeper.close(NotLeader("the broker is stopping"))
        await self.pool.close()
        await self.server.close()
        if self.keeper is not None:
            clean = await self._close_logs(self.keeper.logs, clean=clean)
        log.info("broker stopped", broker=self.id, clean=clean)

    async def _close_logs(self, logs: LogDir, *, clean: bool) -> bool:
        """A disk that cannot take the last checkpoint (full, failed) costs the clean marker, not the stop."""
        try:
            await logs.close(clean=clean)
        except MillraceError as error:
            log.error("stopped without the clean marker: the next start recovers", error=str(error), code=error.code)
            return False
        return clean

    def _keeper(self) -> Keeper:
        assert self.keeper is not None, "the broker has not been started"
        return self.keeper

    # -- links -----------------------------------------------------------------------------------------------------

    def _hello(self) -> Hello:
        return Hello(
            format=links.FORMAT, cluster_id=self.config.cluster_id, member=self.id,
            incarnation=self.membership.incarnation,
        )

    def _link_up(self, peer: int) -> None:
        self._suspects.back(peer)
        if self.keeper is not None:
            self.keeper.followers.on_up(peer)

    def _link_down(self, peer: int) -> None:
        self._suspects.lost(peer, self.ports.clock.now())
        self.client.link_down(peer)
        self._suspect(peer)
        if self.keeper is not None:
            self.keeper.followers.on_down(peer)

    # -- membership.Member -----------------------------------------------------------------------------------------

    def metadata_index(self) -> int:
        return self._keeper().roles.applied

    def registered(self, index: int) -> None:
        self._keeper().roles.live_from(index)

    async def replay(self, answer: MetadataRecords) -> None:
        await self._keeper().roles.replay(answer)
        self.stats.metadata_index = self.metadata_index()

    def changed_replicas(self) -> tuple[ReplicaReport, ...]:
        return self._keeper().changed_replicas()

    def disk_free_bytes(self) -> int:
        keeper = self._keeper()
        keeper.look_at_disk()
        return keeper.disk_free_bytes

    def disk_is_full(self) -> bool:
        return self._keeper().disk_is_full

    def trouble(self) -> str:
        """What is wrong here, in one line: the controller repeats it when this broker is gone."""
        return str(self.failed or self._keeper().disk_trouble)

    def lease_lost(self, why: str) -> None:
        self._keeper().lease_lost(why)

    def fatal(self, error: MillraceError) -> None:
        """This process cannot go on: say why once, let its owner end it."""
        if self.failed is None:
            self.failed = error
            self.membership.end_lease(str(error))
            log.error("broker ends", broker=self.id, code=error.code, error=str(error))
            self._fatal(error)
