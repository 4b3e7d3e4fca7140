"""The simulated world: one heap of events, a lossy network, brokers, a store, clients and faults, all from one seed.

    chaos ........ faults strike
    one down ..... everything heals but one broker: writes must go on [one dead follower stops nothing]
    all up ....... writers stop; all replicas must become equal and in sync
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any
from uuid import UUID
from zlib import crc32

from millrace.core.cluster import ClusterState
from millrace.core.decision import Decision
from millrace.core.flaws import NO_FLAWS, Flaws
from millrace.core.lease import check_lease_times
from millrace.model.ids import TopicPartition
from millrace.model.records import BrokerFenced, PartitionChanged, TopicCreated
from millrace_sim.machines.checkers import Checker, Violation
from millrace_sim.machines.clients import KINDS, Client
from millrace_sim.machines.disk import Disk, Entry
from millrace_sim.machines.faults import NEVER, Faults
from millrace_sim.machines.node import Node
from millrace_sim.machines.retention import Retention
from millrace_sim.machines.store import Append, Appended, Call, SimStore
from millrace_sim.machines.wire import CLIENTS, STORE

PAUSE_S_MAX = 3.0  # what healing must outlast


@dataclass(frozen=True, slots=True)
class Times:
    """Everything ten times faster than in the product; the proportions are what matters."""

    tick_s: float = 0.05
    heartbeat_s: float = 0.15
    lease_s: float = 0.75
    session_s: float = 0.8
    tenure_s: float = 0.6
    renew_s: float = 0.15
    store_s: float = 0.3
    drift: float = 0.01
    lag_s: float = 0.6
    balance_s: float = 0.9
    propose_s: float = 0.2
    poll_s: float = 0.5
    fetch_retry_s: float = 0.25
    fetch_entries: int = 8
    client_s: float = 0.5
    think_s: float = 0.03
    chaos_s: float = 12.0
    heal_s: float = 8.0


class World:
    def __init__(
        self, seed: int, flaws: Flaws = NO_FLAWS, times: Times | None = None, *, symptoms_only: bool = False
    ) -> None:
        self.seed = seed
        self.flaws = flaws
        self.times = times or Times()
        check_lease_times(self.times.lease_s, self.times.session_s, self.times.drift)
        self.rng = Random(seed)
        self.faults = Faults(self.rng)
        self.now = 0.0
        self.events = 0
        self.acks = 0
        self.crc = 0
        self.healed = False
        self.log: list[str] | None = None  # of a replayed seed: what happened, in words
        self.checker = Checker(symptoms_only=symptoms_only)
        self.blocked: set[tuple[int, int]] = set()
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._ids = 0
        self._wiped = False
        self._kept_down = -1
        self.retention = Retention(self)
        self._build()

    def _build(self) -> None:
        rng, times = self.rng, self.times
        self.store = SimStore(times.tenure_s)
        self._store_rate = 1 + rng.uniform(-1, 1) * self.faults.drift
        self.nodes: dict[int, Node] = {}
        for broker in range(1, rng.choice((3, 3, 3, 4, 5)) + 1):
            node = self.nodes[broker] = Node(self, broker, Disk(UUID(int=rng.getrandbits(128))))
            node.rate, node.offset = 1 + rng.uniform(-1, 1) * self.faults.drift, rng.uniform(0, 100)
        self.min_insync = rng.choice((1, 2, 2, 2, 2, 2, 3))
        if self.min_insync == 1:
            self.faults.wipe_at_s = NEVER  # the only copy may be the one that goes
        self.topic_id = UUID(int=rng.getrandbits(128))
        self.tps = [TopicPartition(self.topic_id, p) for p in range(rng.choice((1, 1, 2)))]
        self.replicas = {tp: tuple(rng.sample(sorted(self.nodes), 3)) for tp in self.tps}
        kinds = [*rng.sample(KINDS, 2), rng.choice(("idempotent", "plain"))]
        self.clients = {
            CLIENTS + i: Client(self, CLIENTS + i, self.tps[i % len(self.tps)], kind)
            for i, kind in enumerate(reversed(kinds[: 1 + len(self.tps)] if len(self.tps) == 1 else kinds))
        }

    # -- events -------------------------------------------------------------------------------------------------------

    def next_id(self) -> int:
        self._ids += 1
        return self._ids

    def at(self, delay_s: float, action: Callable[..., None], *args: object) -> None:
        self._ids += 1
        heapq.heappush(self._heap, (self.now + delay_s, self._ids, action, args))

    def at_node(self, delay_s: float, node: Node, action: Callable[[], None]) -> None:
        """Something of this life of the node: lost with it, held up while it is paused."""
        self.at(delay_s, self._at_node, node, node.life, action)

    def _at_node(self, node: Node, life: int, action: Callable[[], None]) -> None:
        if node.up and node.life == life:
            if self.now < node.paused_until:
                self.at(node.paused_until - self.now, self._at_node, node, life, action)
            else:
                action()

    def say(self, what: str) -> None:
        if self.log is not None:
            self.log.append(f"{self.now:8.4f} {what}".replace(repr(self.topic_id), "t"))

    def disk_s(self) -> float:
        return self.faults.disk_s * self.rng.uniform(0.3, 2)

    def pick_broker(self) -> int:
        return self.rng.choice(list(self.nodes))

    # -- network ------------------------------------------------------------------------------------------------------

    def send(self, src: int, dst: int, message: object) -> None:
        faults, random = self.faults, self.rng.random
        if (src, dst) in self.blocked or (faults.loss and random() < faults.loss):
            return
        node = self.nodes.get(dst)
        life = node.life if node is not None else 0
        for _ in range(2 if faults.dup and random() < faults.dup else 1):
            delay = faults.latency_s * (0.5 + random())
            if faults.slow and random() < faults.slow:
                delay += faults.slow_s * random()
            self.at(delay, self._deliver, src, dst, life, message)

    def _deliver(self, src: int, dst: int, life: int, message: object) -> None:
        node = self.nodes.get(dst)
        if node is not None:
            if not node.up or node.life != life:
                return
            if self.now < node.paused_until:
                self.at(node.paused_until - self.now, self._deliver, src, dst, life, message)
                return
        self.crc = crc32(b"%d %d %s %.6f" % (src, dst, type(message).__name__.encode(), self.now), self.crc)
        if self.log is not None:
            self.say(f"{src:>3} -> {dst:<3} {message}")
        if node is not None:
            node.on_message(src, message)
        elif dst == STORE:
            self._store_call(src, message)  # type: ignore[arg-type]
        else:
            self.clients[dst].on_message(message)

    def _store_call(self, src: int, call: Call) -> None:
        answer = self.store.handle(self.now * self._store_rate, call)
        if isinstance(answer, Appended) and isinstance(call, Append):
            for record in call.records:
                self.say(f"record {record}")
                self.retention.on_record(record)
                if isinstance(record, PartitionChanged):
                    self.checker.on_record(record)
                elif isinstance(record, BrokerFenced) and record.reason == "silent":
                    self.checker.on_fenced_for_silence(self.nodes[record.broker], record.incarnation)
        self.send(STORE, src, answer)

    # -- faults -------------------------------------------------------------------------------------------------------

    def struck(self, node: Node, point: str) -> None:
        """A point of the machines: perhaps a fault follows at once, before anything else happens there."""
        chance = self.faults.tied.get(point)
        if chance is None or self.rng.random() >= chance:
            return
        kind = self.rng.choice(self.faults.tied_kinds)
        self.say(f"tied to {point}: {kind} of {node.id}")
        if kind == "pause":
            node.paused_until = self.now + min(self.rng.expovariate(1 / self.faults.pause_s), PAUSE_S_MAX)
        elif kind == "crash":
            self.at(0.0, self._crash_if_same, node, node.life)
        else:
            self.at(0.0, self._power_cut)

    def _crash_if_same(self, node: Node, life: int) -> None:
        if node.life == life:
            self.crash(node, power=self.rng.random() < self.faults.power_share)

    def crash(self, node: Node, *, power: bool) -> None:
        if node.up and not self.healed:
            self.say(f"crash of {node.id}, power {power}")
            self._die(node, power=power)

    def replaced(self, node: Node) -> None:
        """Not a fault but what a broker does when another start of it is registered: it ends, and is started again.

        Also after healing: a request of its former life, sent before, may be late.
        """
        self.say(f"end of {node.id}: replaced")
        self.checker.on_replaced(node, self.store.records)
        self._die(node, power=False)

    def _die(self, node: Node, *, power: bool) -> None:
        node.down()
        node.clean = False
        if power:
            node.boot += 1
            for log in node.disk.logs.values():
                log.power_cut(self.rng)
        if self.faults.proof:
            self.at(0.03, self._prove, node.id, node.incarnation)
        self.at(self.rng.expovariate(1 / self.faults.down_s), self.restart, node)

    def clean_stop(self, node: Node) -> None:
        self.say(f"clean stop of {node.id}")
        node.down()
        node.clean = True
        self.at(self.rng.expovariate(1 / self.faults.down_s), self.restart, node)

    def restart(self, node: Node) -> None:
        if not node.up and node.id != self._kept_down:
            self.say(f"start of {node.id}")
            node.start()

    def _prove(self, broker: int, incarnation: int) -> None:
        for node in self.nodes.values():
            if node.up and self.now >= node.paused_until:
                node.office.gone(broker, incarnation)

    def _crashes(self) -> None:
        self._crash_if_same(node := self.nodes[self.pick_broker()], node.life)
        self._again(self.faults.crash_every_s, self._crashes)

    def _power_cut(self) -> None:
        """Of all brokers at once: the fault that replication alone does not cover."""
        for node in self.nodes.values():
            self.crash(node, power=True)

    def _power_cuts(self) -> None:
        self._power_cut()
        self._again(self.faults.power_cut_every_s, self._power_cuts)

    def _pauses(self) -> None:
        node = self.nodes[self.pick_broker()]
        node.paused_until = self.now + min(self.rng.expovariate(1 / self.faults.pause_s), PAUSE_S_MAX)
        self.say(f"pause of {node.id} until {node.paused_until:.4f}")
        self._again(self.faults.pause_every_s, self._pauses)

    def _cuts(self) -> None:
        everyone = [*self.nodes, STORE, *self.clients]
        side = {n for n in everyone if self.rng.random() < 0.4}
        cut = {(a, b) for a in side for b in everyone if b not in side}
        self.blocked = cut if self.faults.one_way else cut | {(b, a) for a, b in cut}
        self.say(f"cut of {sorted(side)}, one way {self.faults.one_way}")
        self.at(self.rng.expovariate(1 / self.faults.cut_s), self._uncut)

    def _uncut(self) -> None:
        self.blocked = set()
        self._again(self.faults.cut_every_s, self._cuts)

    def _stops(self) -> None:
        node = self.nodes[self.pick_broker()]
        if node.up:
            node.stopping = True
            life = node.life
            self.at(1.0, self._crash_if_same, node, life)
        self._again(self.faults.stop_every_s, self._stops)

    def _suspicions(self) -> None:
        broker = self.pick_broker()
        for node in self.nodes.values():
            if node.up and node.office.state is not None:
                node.office.sessions.suspect(broker)
        self._again(self.faults.suspect_every_s, self._suspicions)

    def _wipe(self) -> None:
        """One broker of a seed comes back with an empty disk."""
        node = self.nodes[self.pick_broker()]
        self.crash(node, power=True)
        if not node.up:
            self._wiped = True
            self.checker.wiped = 1
            node.disk = Disk(UUID(int=self.rng.getrandbits(128)))

    def _again(self, every_s: float, action: Callable[[], None]) -> None:
        if every_s < NEVER and not self.healed:
            self.at(self.rng.expovariate(1 / every_s), self._strike, action)

    def _strike(self, action: Callable[[], None]) -> None:
        if not self.healed:
            action()

    # -- the run ------------------------------------------------------------------------------------------------------

    def run(self) -> World:
        for node in self.nodes.values():
            self.at(self.rng.uniform(0, 0.05), node.start)
        self.at(0.1, self._create_topic)
        self._until(lambda: self._has_topic() and all(n.parts for n in self._hosts()), 20.0, "the topic is not there")
        for client in self.clients.values():
            self.at(self.rng.uniform(0, 0.05), client.step)
        faults, start = self.faults, self.now
        faults.begin()
        for every_s, action in (
            (faults.crash_every_s, self._crashes),
            (faults.power_cut_every_s, self._power_cuts),
            (faults.pause_every_s, self._pauses),
            (faults.cut_every_s, self._cuts),
            (faults.stop_every_s, self._stops),
            (faults.suspect_every_s, self._suspicions),
        ):
            self._again(every_s, action)
        self.retention.begin()
        if faults.wipe_at_s < NEVER:
            self.at(faults.wipe_at_s, self._strike, self._wipe)
        self._until(lambda: self.now >= start + self.times.chaos_s, NEVER, "")
        self._heal()
        return self

    def _hosts(self) -> list[Node]:
        hosts = {broker for replicas in self.replicas.values() for broker in replicas}
        return [self.nodes[b] for b in sorted(hosts)]

    def _has_topic(self) -> bool:
        return any(isinstance(r, PartitionChanged) for r in self.store.records)

    def _create_topic(self) -> None:
        if not self._has_topic():
            for node in self.nodes.values():
                node.office.propose(self._topic)
            self.at(0.1, self._create_topic)

    def _topic(self, state: ClusterState) -> Decision[None]:
        if state.topics or state.eligible_brokers() != set(self.nodes):
            return Decision((), None)
        configs = {"min.insync.replicas": str(self.min_insync)}
        partitions = [
            PartitionChanged(*tp, replicas, replicas, (), replicas[0], 0, 0, "created")
            for tp, replicas in self.replicas.items()
        ]
        return Decision((TopicCreated(self.topic_id, "t", configs, len(self.tps)), *partitions), None)

    def _until(self, done: Callable[[], bool], limit_s: float, why: str) -> None:
        """Runs the heap until `done`, looked at every tenth of a second."""
        end, look_at, heap, pop = self.now + limit_s, self.now, self._heap, heapq.heappop
        while True:
            if self.now >= look_at:
                if done():
                    return
                look_at = self.now + 0.1
                if self.now > end:
                    raise Violation(f"liveness: {why}")
            self.now, _, action, args = pop(heap)
            self.events += 1
            action(*args)

    def _heal(self) -> None:
        self.healed = True
        self.blocked = set()
        self.faults.clear()
        self.faults.down_s = 0.1
        if self.min_insync == 2 and not self._wiped and self.rng.random() < 0.5:
            self._one_down()
        self._kept_down = -1
        for node in self.nodes.values():
            node.paused_until = 0.0
            self.restart(node)
        since = self.now
        self._until(lambda: self._writes_since(since), self.times.heal_s, "not all writers are served after healing")
        for client in self.clients.values():
            client.stopped = True
        self._until(self._is_quiet, self.times.heal_s, "the replicas do not become equal and in sync")
        for tp in self.tps:
            leader = self.nodes[self.replicas[tp][0]].parts[tp].replica.leader
            self.checker.at_end(tp, self.nodes[leader].parts[tp].log)
            self.retention.at_end(tp, [self.nodes[b].parts[tp].log for b in self.replicas[tp]])
        self._check_metadata()

    def _one_down(self) -> None:
        """[L7] With one broker dead, and all else well, writes go on."""
        for node in self.nodes.values():
            node.paused_until = 0.0
        victim = self.nodes[self.pick_broker()]
        self._kept_down = victim.id
        if victim.up:
            victim.down()
            victim.clean = False
        self.say(f"{victim.id} stays down")
        for node in self.nodes.values():
            self.restart(node)
        since = self.now
        self._until(lambda: self._writes_since(since), self.times.heal_s, f"no writes while broker {victim.id} is down")

    def _writes_since(self, since: float) -> bool:
        return all(client.last_ack_at > since for client in self.clients.values())

    def _is_quiet(self) -> bool:
        return all(self._is_in_sync(tp) for tp in self.tps)

    def _is_in_sync(self, tp: TopicPartition) -> bool:
        hosts = [self.nodes[b] for b in self.replicas[tp]]
        if not all(node.up and tp in node.parts for node in hosts):
            return False
        parts = [node.parts[tp] for node in hosts]
        first = parts[0]
        leading = [p for p in parts if p.replica.is_leader]
        return (
            len(leading) == 1
            and all(p.replica.leader_epoch == leading[0].replica.leader_epoch for p in parts)
            and leading[0].replica.isr == frozenset(self.replicas[tp])
            and all((p.log.start, p.log.entries) == (first.log.start, first.log.entries) for p in parts)
            and all(p.replica.hw == p.replica.leo == p.log.end for p in parts)
            and not leading[0].replica.needs_tick
        )

    def _check_metadata(self) -> None:
        """Everyone replayed one history."""
        for node in self.nodes.values():
            expected = ClusterState()
            for index, record in enumerate(self.store.records[: node.cluster.index], 1):
                expected.replay(index, record)
            if expected.to_records() != node.cluster.to_records():
                raise Violation(f"metadata of broker {node.id} is not what the records give")

    def check_copies(self, tp: TopicPartition, offset: int, entry: Entry, min_insync: int) -> None:
        logs = [self.nodes[b].disk.log(tp) for b in self.replicas[tp]]
        self.checker.on_durable_copies(logs, offset, entry, min_insync)
