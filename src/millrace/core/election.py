"""Who leads, who is in sync, who may come back: every decision about brokers and their replicas.

In: the replayed ClusterState and a message or an event. Out: Decision(records, reply); nothing changes here.

    registered (fenced) --heartbeat: ready, caught up--> unfenced --silence or proof of death--> fenced
                                                            |  ^                                    |
                                                     stopping  +--heartbeat: ready, caught up-------+
                                                            v
                                                         draining --process gone--> fenced

Promises
- A leader comes from the ISR, else from the ELR; LEO plays no part [L13]. ISR members are always unfenced and not
  draining. A member that leaves while the ISR is below min.insync.replicas (also the last one, which leaves it empty)
  becomes eligible: the high watermark stands still from then on, so it keeps every acknowledged record. As soon as
  the ISR reaches min.insync.replicas the ELR is emptied [L8].
- Every election, also the one that finds nobody, and every registration of a leader raises the leader epoch [L12].
- A replica whose directory is new, empty or foreign leaves ISR and ELR before its broker is unfenced [L19]. Where it
  was the last one the partition stays offline: an emptied directory never leads.
- After an unclean restart (no clean marker and another boot id) of a process that ran with flush=os a replica leaves
  both too, unless nobody else is left in them. That exception trades safety for coming back: records which only the
  lost page cache held are lost, acknowledged or not. With flush=group an unclean restart costs nothing.
- The first record of a fence, a stop or an unfencing implies the rest; `repair` writes what a crash in between left
  out. A registration is the other way round, its own record comes last: until it stands the process has to ask again.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from millrace.core.cluster import BrokerState, ClusterState, PartitionState
from millrace.core.decision import Decision
from millrace.core.flaws import NO_FLAWS, Flaws
from millrace.errors import InvalidRequest, Refused, StaleIncarnation, UnknownTopicOrPartition
from millrace.model.ids import NO_LEADER, BrokerId, TopicPartition
from millrace.model.messages import (
    AlterIsr,
    AlterIsrDone,
    AlterIsrResult,
    ElectUnclean,
    Heartbeat,
    HeartbeatOk,
    IsrChange,
    LeaveReplica,
    RaiseEpoch,
    Register,
    Registered,
)
from millrace.model.records import (
    BrokerDraining,
    BrokerFenced,
    BrokerRegistered,
    BrokerUnfenced,
    ControllerRecord,
    PartitionChanged,
    TopicDeleted,
)

LEADER_EPOCH_MAX = 2**31 - 1_000_000  # an epoch is 32 bits in every batch; a claim above this is not believed
TEXT_CHARS_MAX = 255                  # of a text that a broker sends and a record keeps

# Reported log ends, soft state; only the planted flaw `elect_by_leo` looks at them.
ReportedLeos = Mapping[TopicPartition, Mapping[BrokerId, int]]


@dataclass(frozen=True, slots=True)
class Settling:
    """What one decision assumes: who may lead, who has lost its data, and why. Applied partition by partition."""

    state: ClusterState
    alive: set[BrokerId]
    why: str
    lost: BrokerId = NO_LEADER          # this broker's replica does not hold what it held
    lost_but_last: bool = False         # ...and still stays if nobody else is left
    flaws: Flaws = NO_FLAWS
    leos: ReportedLeos | None = None
    first: Container[TopicPartition] = ()   # somebody waits for these: they come first, whatever they need

    def each(self, partitions: Iterable[TopicPartition]) -> list[ControllerRecord]:
        changes = (self.one(p) for tp in ordered(partitions) if (p := self.state.partition(tp)) is not None)
        return [change for change in changes if change is not None]

    def one(self, p: PartitionState) -> PartitionChanged | None:
        """The partition under these assumptions, or None if they change nothing."""
        min_insync = self.state.min_insync(p.tp.topic_id)
        isr = tuple(b for b in p.isr if b in self.alive)
        elr = () if len(isr) >= min_insync else self._eligible(p, isr)
        leader = p.leader if p.leader in isr else self._elect(p, isr, elr)
        if leader != NO_LEADER and leader not in isr:
            isr = (leader,)
            elr = () if min_insync <= 1 else tuple(b for b in elr if b != leader)
        if (isr, elr, leader) == (p.isr, p.elr, p.leader):
            return None
        return changed(p, isr=isr, elr=elr, leader=leader, why=self._say(leader, elr))

    def _eligible(self, p: PartitionState, isr: tuple[BrokerId, ...]) -> tuple[BrokerId, ...]:
        held = tuple(b for b in p.replicas if (b in p.elr or b in p.isr) and b not in isr)
        if self.lost in held and not (self.lost_but_last and held == (self.lost,) and not isr):
            return tuple(b for b in held if b != self.lost)
        return held

    def _elect(self, p: PartitionState, isr: tuple[BrokerId, ...], elr: tuple[BrokerId, ...]) -> BrokerId:
        if self.flaws.elect_by_leo and self.leos is not None:
            reported = self.leos.get(p.tp, {})
            return max((b for b in p.replicas if b in self.alive), key=lambda b: reported.get(b, -1), default=NO_LEADER)
        for candidates in (isr, elr):
            for broker in p.replicas:
                if broker in candidates and broker in self.alive:
                    return broker
        return NO_LEADER

    def _say(self, leader: BrokerId, elr: tuple[BrokerId, ...]) -> str:
        if leader != NO_LEADER:
            return self.why
        waits = f"waits for {', '.join(map(str, elr))}" if elr else "no replica holds every acknowledged record"
        return f"{self.why}; offline: {waits}"


def ordered(partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """One order everywhere, whatever history built the index."""
    return sorted(partitions, key=lambda tp: (tp.topic_id.int, tp.partition))


def changed(
    p: PartitionState, *, isr: tuple[BrokerId, ...], elr: tuple[BrokerId, ...], leader: BrokerId, why: str,
    leader_epoch: int | None = None,
) -> PartitionChanged:
    """The next record of a partition. Another leader, or none, means the next leader epoch."""
    if leader_epoch is None:
        leader_epoch = p.leader_epoch + (leader != p.leader)
    return PartitionChanged(*p.tp, p.replicas, isr, elr, leader, leader_epoch, p.partition_epoch + 1, why)


# -- brokers: in, out, and back ----------------------------------------------------------------------------------------
def register(
    state: ClusterState, m: Register, *, token: int = 0, flaws: Flaws = NO_FLAWS, leos: ReportedLeos | None = None
) -> Decision[Registered]:
    """A new start is a new incarnation: the index of its own record, so it only grows. Asked again: same answer."""
    _refuse_long_texts(m)
    known = state.brokers.get(m.broker)
    if known is not None and known.start_id == m.start_id:
        return Decision((), Registered(token, known.incarnation, known.incarnation))
    records: list[ControllerRecord] = []
    if known is not None:
        _refuse_older_start(known, m)
        records = _restart(state, known, m, flaws, leos)
    incarnation = state.index + len(records) + 1
    records.append(
        BrokerRegistered(m.broker, incarnation, m.start_id, m.endpoint, m.process, m.directory_id, m.rack, m.host_id,
                         m.flush)
    )
    return Decision(tuple(records), Registered(token, incarnation, incarnation))


def _refuse_long_texts(m: Register) -> None:
    texts = {"host": m.endpoint.host, "rack": m.rack, "host_id": m.host_id, "boot_id": m.process.boot_id}
    for name, text in texts.items():
        if len(text) > TEXT_CHARS_MAX:
            raise InvalidRequest(f"broker {m.broker}: {name} has {len(text)} characters, at most {TEXT_CHARS_MAX}")


def _refuse_older_start(known: BrokerState, m: Register) -> None:
    """A late repeat of an older process's request must not depose the younger one."""
    if m.process.boot == known.process.boot and m.process.start_time < known.process.start_time:
        raise StaleIncarnation(f"broker {m.broker}: a process started later is registered")


def _restart(
    state: ClusterState, known: BrokerState, m: Register, flaws: Flaws, leos: ReportedLeos | None
) -> list[ControllerRecord]:
    broker = m.broker
    lost_directory = m.directory_is_new or m.directory_id != known.directory_id
    rebooted = m.process.boot != known.process.boot
    # What an unclean stop may have lost was written by the former process: its flush mode counts, not the new one's.
    lost_tail = known.flush == "os" and rebooted and not m.clean_stop
    if flaws.same_epoch_after_restart and not lost_directory and not lost_tail:
        return []
    why = f"broker {broker} restarted"
    if lost_directory:
        why += " with another data directory"
    elif lost_tail:
        why += " uncleanly"
    settling = Settling(
        state, state.eligible_brokers() - {broker}, why, lost=broker if lost_directory or lost_tail else NO_LEADER,
        lost_but_last=not lost_directory, flaws=flaws, leos=leos,
    )
    return _leave(settling, broker) + settling.each(state.partitions_eligible_on(broker))


def _leave(settling: Settling, broker: BrokerId) -> list[ControllerRecord]:
    """Out of every leadership and every ISR; busy partitions first, then the led ones, which take no write now."""
    state, first = settling.state, settling.first
    led = state.partitions_led_by(broker)
    in_sync = state.partitions_in_sync_on(broker)
    busy = {tp: None for tp in (*led, *in_sync) if tp in first}
    quiet_led = [tp for tp in led if tp not in busy]
    quiet = [tp for tp in in_sync if tp not in led and tp not in busy]
    return settling.each(busy) + settling.each(quiet_led) + settling.each(quiet)


def fence(
    state: ClusterState, broker: BrokerId, reason: str, *, flaws: Flaws = NO_FLAWS, leos: ReportedLeos | None = None,
    first: Container[TopicPartition] = (),
) -> Decision[None]:
    """Once: one record about the broker, then its partitions. Nothing when it is fenced already [L17]."""
    known = state.brokers.get(broker)
    if known is None or known.fenced:
        return Decision((), None)
    alive = state.eligible_brokers() - {broker}
    settling = Settling(state, alive, f"broker {broker} fenced: {reason}", flaws=flaws, leos=leos, first=first)
    return Decision((BrokerFenced(broker, known.incarnation, reason), *_leave(settling, broker)), None)


def unfence(state: ClusterState, broker: BrokerId, *, flaws: Flaws = NO_FLAWS) -> Decision[None]:
    """It may lead again; offline partitions that waited for it are elected at once."""
    known = state.brokers.get(broker)
    if known is None or not known.fenced or known.draining:
        return Decision((), None)
    settling = Settling(state, state.eligible_brokers() | {broker}, f"broker {broker} is back", flaws=flaws)
    waiting = [tp for tp in state.partitions_eligible_on(broker) if tp in state.offline]
    return Decision((BrokerUnfenced(broker, known.incarnation), *settling.each(waiting)), None)


def stop(
    state: ClusterState, broker: BrokerId, *, flaws: Flaws = NO_FLAWS, leos: ReportedLeos | None = None,
    first: Container[TopicPartition] = (),
) -> Decision[None]:
    """A controlled stop: leaders move at once, no lease is waited for, since the broker itself asked."""
    known = state.brokers.get(broker)
    if known is None or known.draining:
        return Decision((), None)
    alive = state.eligible_brokers() - {broker}
    settling = Settling(state, alive, f"broker {broker} is stopping", flaws=flaws, leos=leos, first=first)
    return Decision((BrokerDraining(broker, known.incarnation), *_leave(settling, broker)), None)


def elect_waiting(state: ClusterState) -> Decision[None]:
    """Offline partitions whose candidate is there."""
    settling = Settling(state, state.eligible_brokers(), "a candidate is back")
    return Decision(tuple(settling.each(state.offline)), None)


def repair(state: ClusterState) -> Decision[None]:
    """At take-over: finish what the former controller's last decision implied, undo half-created topics."""
    cut_off = {topic.topic_id for topic in state.topics.values() if len(topic.partitions) < topic.expected}
    records: list[ControllerRecord] = [TopicDeleted(topic_id) for topic_id in sorted(cut_off, key=lambda t: t.int)]
    affected = dict(state.offline)
    for broker, known in state.brokers.items():
        if not known.eligible:
            affected.update(state.partitions_led_by(broker))
            affected.update(state.partitions_in_sync_on(broker))
    settling = Settling(state, state.eligible_brokers(), "repaired at take-over")
    records += settling.each(tp for tp in affected if tp.topic_id not in cut_off)
    return Decision(tuple(records), None)


# -- heartbeats ------------------------------------------------------------------------------------------------------
def check_incarnation(state: ClusterState, broker: BrokerId, incarnation: int) -> BrokerState:
    known = state.brokers.get(broker)
    if known is None or incarnation > known.incarnation:
        raise Refused(f"broker {broker} is not registered with incarnation {incarnation}: register first")
    if incarnation < known.incarnation:
        raise StaleIncarnation(f"broker {broker}: incarnation {known.incarnation} replaced {incarnation}")
    return known


def heartbeat(
    state: ClusterState, m: Heartbeat, *, token: int = 0, flaws: Flaws = NO_FLAWS, leos: ReportedLeos | None = None,
    first: Container[TopicPartition] = (),
) -> Decision[HeartbeatOk]:
    """Proof of life; may unfence or start a controlled stop. Its reports are soft state and decide nothing [L12]."""
    known = check_incarnation(state, m.broker, m.incarnation)
    fenced, draining = known.fenced, known.draining
    records: tuple[ControllerRecord, ...] = ()
    if m.stopping and not draining:
        records, draining = stop(state, m.broker, flaws=flaws, leos=leos, first=first).records, True
    elif fenced and not draining and m.ready and m.metadata_index >= known.since:
        records, fenced = unfence(state, m.broker, flaws=flaws).records, False
    if flaws.heartbeat_overwrites:
        records += _believe_reports(state, m)
    leads = bool(state.partitions_led_by(m.broker)) and not records
    return Decision(records, HeartbeatOk(token, known.incarnation, m.sent_at, fenced, draining and not leads))


def _believe_reports(state: ClusterState, m: Heartbeat) -> tuple[ControllerRecord, ...]:
    """The planted flaw: what a broker says about its role replaces what was decided."""
    records = []
    for report in m.changed:
        p = state.partition(TopicPartition(report.topic_id, report.partition))
        if p is None or report.role != "leader" or (p.leader, p.leader_epoch) == (m.broker, report.leader_epoch):
            continue
        isr = p.isr if m.broker in p.isr else (*p.isr, m.broker)
        records.append(changed(p, isr=isr, elr=p.elr, leader=m.broker, leader_epoch=report.leader_epoch, why="report"))
    return tuple(records)


# -- replicas --------------------------------------------------------------------------------------------------------
def alter_isr(
    state: ClusterState, m: AlterIsr, *, token: int = 0, flaws: Flaws = NO_FLAWS
) -> Decision[AlterIsrDone]:
    """Compare-and-set per partition; one refused change does not hold up the others [L8]."""
    leader = check_incarnation(state, m.broker, m.incarnation)
    alive = state.eligible_brokers()
    records: dict[TopicPartition, ControllerRecord] = {}
    results = []
    for change in m.changes:
        tp = TopicPartition(change.topic_id, change.partition)
        p = state.partition(tp)
        error = "stale" if tp in records else _refuse_isr(state, p, leader, change, alive, flaws)
        results.append(AlterIsrResult(*tp, error))
        if p is not None and not error:
            # Also when the ISR stays as it is: so a leader withdraws a proposal that was refused, and the next
            # partition epoch makes every copy of it that is still on its way stale.
            records[tp] = _isr_changed(state, p, change)
    return Decision(tuple(records.values()), AlterIsrDone(token, tuple(results)))


def _refuse_isr(
    state: ClusterState, p: PartitionState | None, leader: BrokerState, change: IsrChange, alive: set[BrokerId],
    flaws: Flaws,
) -> str:
    if p is None:
        return "fenced"
    if flaws.leader_owned_isr:
        return ""
    if leader.fenced or p.leader != leader.broker or p.leader_epoch != change.leader_epoch:
        return "fenced"
    if p.partition_epoch != change.partition_epoch:
        return "stale"
    members = set(change.isr)
    if leader.broker not in members or not members <= set(p.replicas) or not members <= alive:
        return "ineligible"
    if change.incarnations and not _same_incarnations(state, change):
        return "ineligible"
    return ""


def _same_incarnations(state: ClusterState, change: IsrChange) -> bool:
    """A member that restarted since the leader saw it may have lost the tail the leader counts on."""
    if len(change.incarnations) != len(change.isr):
        return False
    return all(
        state.brokers[broker].incarnation == incarnation
        for broker, incarnation in zip(change.isr, change.incarnations, strict=True)
    )


def _isr_changed(state: ClusterState, p: PartitionState, change: IsrChange) -> PartitionChanged:
    isr = tuple(b for b in p.replicas if b in change.isr)
    enough = len(isr) >= state.min_insync(p.tp.topic_id)
    elr = () if enough else tuple(b for b in p.replicas if b not in isr and (b in p.isr or b in p.elr))
    return changed(p, isr=isr, elr=elr, leader=p.leader, why="in-sync replicas changed")


def leave_replica(state: ClusterState, m: LeaveReplica, *, token: int = 0) -> Decision[AlterIsrDone]:
    """A damaged replica is out of ISR and ELR before it refetches; the last one leaves the partition offline [L10]."""
    check_incarnation(state, m.broker, m.incarnation)
    tp = TopicPartition(m.topic_id, m.partition)
    p = state.partition(tp)
    if p is None or m.broker not in p.replicas:
        return Decision((), AlterIsrDone(token, (AlterIsrResult(*tp, "fenced"),)))
    why = f"replica on broker {m.broker} left: {m.why[:TEXT_CHARS_MAX]}"
    settling = Settling(state, state.eligible_brokers() - {m.broker}, why, lost=m.broker)
    return Decision(tuple(settling.each([tp])), AlterIsrDone(token, (AlterIsrResult(*tp, ""),)))


def raise_epoch(state: ClusterState, m: RaiseEpoch, *, token: int = 0) -> Decision[AlterIsrDone]:
    """Past the epoch a disk knows, with the same leader, so that no epoch is ever led twice [L19]."""
    check_incarnation(state, m.broker, m.incarnation)
    tp = TopicPartition(m.topic_id, m.partition)
    p = state.partition(tp)
    if m.disk_epoch > LEADER_EPOCH_MAX:
        raise InvalidRequest(f"broker {m.broker}, {tp}: disk epoch {m.disk_epoch} is above {LEADER_EPOCH_MAX}")
    if p is None or m.broker not in p.replicas:
        return Decision((), AlterIsrDone(token, (AlterIsrResult(*tp, "fenced"),)))
    done = AlterIsrDone(token, (AlterIsrResult(*tp, ""),))
    if m.disk_epoch < p.leader_epoch:
        return Decision((), done)
    why = f"broker {m.broker} has epoch {m.disk_epoch} on disk"
    raised = changed(p, isr=p.isr, elr=p.elr, leader=p.leader, leader_epoch=m.disk_epoch + 1, why=why)
    return Decision((raised,), done)


def elect_unclean(state: ClusterState, m: ElectUnclean) -> Decision[PartitionChanged]:
    """An operator's command, for an offline partition only. The new leader's log becomes the truth [L13]."""
    topic = state.topics_by_name.get(m.topic)
    p = topic.partitions.get(m.partition) if topic is not None else None
    if p is None:
        raise UnknownTopicOrPartition(f"{m.topic}/{m.partition} does not exist")
    if not p.is_offline:
        raise InvalidRequest(f"{m.topic}/{m.partition} is led by broker {p.leader}: unclean election is for offline "
                             "partitions only")
    alive = state.eligible_brokers()
    candidates = [b for b in p.replicas if b in alive and m.broker in (b, NO_LEADER)]
    if not candidates:
        raise InvalidRequest(f"broker {m.broker} cannot lead {m.topic}/{m.partition}: replicas are on "
                             f"{list(p.replicas)}, alive are {sorted(alive)}")
    leader = candidates[0]
    why = f"unclean election of broker {leader} by command"
    record = changed(p, isr=(leader,), elr=(), leader=leader, why=why)
    return Decision((record,), record)
