"""Calls about floors, and cuts of logs, as the controller decides them [L23, F10].

    set, below the log start ......... not registered; the answer names the log start: the holder has lost
    set, epoch as before ............. a floor only moves forward; a lower place changes nothing
    set, greater epoch ............... a registration anew: any place, also after a release
    set or remove, lower epoch ....... refused: somebody else is the owner now
    cut above a floor ................ refused, and the holder is named
    release .......................... only where the floor still stands as its judge saw it

In: the replayed ClusterState and a call. Out: Decision(records, answer); nothing changes here. A log's start is
recorded before any replica is cut [decision 0011], so a floor that stands holds for every replica, and whoever
registers learns in the same answer whether what it needs is still there.
"""

from __future__ import annotations

from millrace import limits
from millrace.core.cluster import ClusterState
from millrace.core.decision import Decision
from millrace.core.election import check_incarnation
from millrace.core.flaws import NO_FLAWS, Flaws
from millrace.core.floors import Floors, Owner, parts
from millrace.errors import InvalidRequest, PolicyViolation, Superseded
from millrace.model.floors import (
    AnyFloorCall,
    FloorAt,
    FloorsTold,
    OwnerFloors,
    ReadFloors,
    Released,
    RemoveFloors,
    SetFloors,
)
from millrace.model.ids import BrokerId, TopicPartition
from millrace.model.messages import AdvanceLogStarts, Cut, CutResult, LogStartsRecorded
from millrace.model.records import (
    ControllerRecord,
    FloorsReleased,
    FloorsRemoved,
    FloorsSet,
    LogStartsAdvanced,
)


def decide(state: ClusterState, call: AnyFloorCall) -> Decision[FloorsTold]:
    match call:
        case SetFloors():
            return _set(state, call)
        case RemoveFloors():
            return _remove(state, call)
        case ReadFloors():
            return Decision((), FloorsTold(_read(state.floors, call)))


def _set(state: ClusterState, call: SetFloors) -> Decision[FloorsTold]:
    _check(call)
    floors = state.floors
    owner = _owner(floors, call.owner, call.epoch)
    anew = owner is None or call.epoch > owner.epoch
    moved: dict[TopicPartition, FloorAt] = {}
    gone: dict[TopicPartition, FloorAt] = {}
    unknown: dict[TopicPartition, None] = {}
    for one in call.floors:
        tp = one.tp
        if state.partition(tp) is None:
            unknown[tp] = None
        elif not anew and owner is not None and (tp in owner.released or one.offset <= owner.floors.get(tp, -1)):
            continue                        # taken away, or there already
        elif one.offset < floors.log_start(tp):
            gone[tp] = FloorAt(*tp, floors.log_start(tp))
        else:
            moved[tp] = one
    added = sum(owner is None or tp not in owner.floors for tp in moved)
    if added and floors.count + added > limits.FLOORS_MAX:
        raise PolicyViolation(f"{floors.count} floors are registered, and at most {limits.FLOORS_MAX} may be")
    records: list[ControllerRecord] = [
        FloorsSet(call.owner, call.epoch, part) for part in parts(list(moved.values()))
    ]
    if anew and not records:
        records.append(FloorsSet(call.owner, call.epoch, ()))
    still = [one.tp for one in call.floors if one.tp not in moved and one.tp not in gone]
    standing = _standing(call, owner, moved, still)
    return Decision(tuple(records), FloorsTold((standing,), tuple(gone.values()), tuple(unknown)))


def _standing(
    call: SetFloors, owner: Owner | None, moved: dict[TopicPartition, FloorAt], still: list[TopicPartition]
) -> OwnerFloors:
    """The owner's floors in the partitions of a call, once its records are replayed. `still`: as they were."""
    held = list(moved.values())
    released: list[Released] = []
    for tp in dict.fromkeys(still):
        if owner is None:
            break
        if tp in owner.floors:
            held.append(FloorAt(*tp, owner.floors[tp]))
        elif tp in owner.released:
            released.append(owner.released[tp])
    return OwnerFloors(call.owner, call.epoch, tuple(held), tuple(released))


def _remove(state: ClusterState, call: RemoveFloors) -> Decision[FloorsTold]:
    _check_owner(call.owner, call.epoch)
    owner = _owner(state.floors, call.owner, call.epoch)
    if owner is None:
        return Decision((), FloorsTold())
    had = {*owner.floors, *owner.released}
    partitions = None if call.partitions is None else tuple(tp for tp in call.partitions if TopicPartition(*tp) in had)
    if call.epoch == owner.epoch and not (had if partitions is None else partitions):
        return Decision((), FloorsTold())
    return Decision((FloorsRemoved(call.owner, call.epoch, partitions),), FloorsTold())


def _read(floors: Floors, call: ReadFloors) -> tuple[OwnerFloors, ...]:
    if call.owner is not None:
        owner = floors.owners.get(call.owner)
        owners = [owner] if owner is not None else []
    else:
        owners = floors.owners_on(call.topic_id) if call.topic_id is not None else list(floors.owners.values())
    return tuple(floors.of(owner, call.topic_id) for owner in owners)


# -- cuts --------------------------------------------------------------------------------------------------------------
def advance(
    state: ClusterState, m: AdvanceLogStarts, *, token: int = 0, flaws: Flaws = NO_FLAWS
) -> Decision[LogStartsRecorded]:
    """What a leader may remove, recorded before it does; floors beyond their budget are released before that.

    A cut of somebody who does not lead in that epoch any more, and one above a floor, changes nothing."""
    check_incarnation(state, m.broker, m.incarnation)
    floors = state.floors
    let_go = {(one.owner, TopicPartition(one.topic_id, one.partition)): one for one in m.release}
    released = tuple(
        one for (name, tp), one in let_go.items()
        if name in floors.owners and floors.owners[name].floors.get(tp) == one.offset
    )
    gone = {(one.owner, TopicPartition(one.topic_id, one.partition)) for one in released}
    records: list[ControllerRecord] = [
        FloorsReleased(one.owner, (FloorAt(one.topic_id, one.partition, one.offset),), one.why, m.at_ms)
        for one in released
    ]
    moved: list[FloorAt] = []
    results: list[CutResult] = []
    for cut in m.cuts:
        tp = TopicPartition(cut.topic_id, cut.partition)
        start, held_by = _cut(state, m.broker, cut, tp, gone, flaws)
        results.append(CutResult(*tp, start, held_by))
        if start > floors.log_start(tp):
            moved.append(FloorAt(*tp, start))
    records += [LogStartsAdvanced(part) for part in parts(moved)]
    told = LogStartsRecorded(token, state.index + len(records), tuple(results), released)
    return Decision(tuple(records), told)


def _cut(
    state: ClusterState, broker: BrokerId, cut: Cut, tp: TopicPartition, gone: set[tuple[str, TopicPartition]],
    flaws: Flaws,
) -> tuple[int, str]:
    before = state.floors.log_start(tp)
    p = state.partition(tp)
    if p is None or (p.leader, p.leader_epoch) != (broker, cut.leader_epoch):
        return before, ""
    for owner, floor in state.floors.on(tp).items():
        if floor < cut.start and (owner, tp) not in gone and not flaws.cut_above_floor:
            return before, owner
    return max(before, cut.start), ""


def _owner(floors: Floors, name: str, epoch: int) -> Owner | None:
    owner = floors.owners.get(name)
    if owner is not None and epoch < owner.epoch:
        raise Superseded(f"floors of {name}: epoch {owner.epoch} stands, this call has {epoch}")
    return owner


def _check(call: SetFloors) -> None:
    _check_owner(call.owner, call.epoch)
    if len(call.floors) > limits.FLOORS_PER_CALL_MAX:
        raise InvalidRequest(f"{len(call.floors)} floors in one call: at most {limits.FLOORS_PER_CALL_MAX}")
    if any(one.offset < 0 for one in call.floors):
        raise InvalidRequest("a floor is an offset: it is not negative")


def _check_owner(owner: str, epoch: int) -> None:
    if not 0 < len(owner) <= limits.FLOOR_OWNER_CHARS_MAX or not owner.isprintable():
        raise InvalidRequest(f"the owner of a floor is a text of 1 to {limits.FLOOR_OWNER_CHARS_MAX} characters")
    if epoch < 0:
        raise InvalidRequest("an epoch is not negative")
