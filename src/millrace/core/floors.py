"""Floors of the log: who still needs which partition, from where on; and how far each log was cut [L23, F10].

    set, below the log start ......... not registered; the answer names the log start: the holder has lost
    set, epoch as before ............. a floor only moves forward; a lower place changes nothing
    set, greater epoch ............... a registration anew: any place, also after a release
    set or remove, lower epoch ....... refused: somebody else is the owner now
    released ......................... by the controller, with a reason; stays so until a greater epoch registers anew
    topic deleted .................... its floors go with it

In: calls and the replayed ClusterState. Out: Decision(records, FloorsTold); `replay` is the only mutation. A log's
start is recorded here before any replica is cut [decision 0011], so a floor that stands holds for every replica, and
whoever registers learns in the same answer whether what it needs is still there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millrace import limits
from millrace.core.decision import Decision
from millrace.errors import InvalidRequest, PolicyViolation, Superseded
from millrace.model.floors import (
    AnyFloorCall,
    Floor,
    FloorAt,
    FloorsTold,
    OwnerFloors,
    ReadFloors,
    Released,
    RemoveFloors,
    SetFloors,
)
from millrace.model.ids import TopicId, TopicPartition
from millrace.model.records import (
    ControllerRecord,
    FloorsReleased,
    FloorsRemoved,
    FloorsSet,
    LogStartsAdvanced,
)

if TYPE_CHECKING:
    from millrace.core.cluster import ClusterState

NO_FLOORS: dict[str, int] = {}


@dataclass(slots=True)
class Owner:
    """`epoch` is kept when its last floor went: a late call of a former holder must not come back [C3]."""

    name: str
    epoch: int
    floors: dict[TopicPartition, int] = field(default_factory=dict)
    released: dict[TopicPartition, Released] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not self.floors and not self.released


class Floors:
    """What the records about floors and log starts replay to."""

    def __init__(self) -> None:
        self.owners: dict[str, Owner] = {}
        self.log_starts: dict[TopicPartition, int] = {}     # only of logs that were ever cut
        self.count = 0
        self._empty: dict[str, None] = {}                   # owners of which only the epoch is left, oldest first
        self._on: dict[TopicPartition, dict[str, int]] = {}
        self._released_on: dict[TopicPartition, dict[str, None]] = {}
        self._partitions: dict[TopicId, dict[TopicPartition, None]] = {}   # of a topic, with anything above

    # -- reading ---------------------------------------------------------------------------------------------------
    def on(self, tp: TopicPartition) -> dict[str, int]:
        """Offsets by owner. A live view."""
        return self._on.get(tp, NO_FLOORS)

    def lowest(self, tp: TopicPartition) -> int | None:
        on = self._on.get(tp)
        return min(on.values()) if on else None

    def was_released(self, tp: TopicPartition) -> bool:
        return tp in self._released_on

    def log_start(self, tp: TopicPartition) -> int:
        """Below it no replica has, or will have, anything."""
        return self.log_starts.get(tp, 0)

    def topic_partitions(self, topic_id: TopicId) -> Iterable[TopicPartition]:
        return self._partitions.get(topic_id, ())

    def all(self) -> Iterator[Floor]:
        for owner in self.owners.values():
            for tp, offset in owner.floors.items():
                yield Floor(owner.name, owner.epoch, *tp, offset)

    def of(self, owner: Owner, topic_id: TopicId | None = None) -> OwnerFloors:
        return OwnerFloors(
            owner.name, owner.epoch,
            tuple(FloorAt(*tp, offset) for tp, offset in owner.floors.items() if topic_id in (None, tp.topic_id)),
            tuple(r for tp, r in owner.released.items() if topic_id in (None, tp.topic_id)),
        )

    def owners_on(self, topic_id: TopicId) -> list[Owner]:
        names = {
            name: None for tp in self.topic_partitions(topic_id)
            for name in (*self._on.get(tp, ()), *self._released_on.get(tp, ()))
        }
        return [self.owners[name] for name in names]

    # -- replaying -------------------------------------------------------------------------------------------------
    def set(self, r: FloorsSet) -> None:
        owner = self.owners.get(r.owner)
        if owner is None:
            owner = self.owners[r.owner] = Owner(r.owner, r.epoch)
        owner.epoch = r.epoch
        for one in r.floors:
            tp = one.tp
            self._forget_released(owner, tp)
            if tp not in owner.floors:
                self.count += 1
            owner.floors[tp] = one.offset
            self._on.setdefault(tp, {})[owner.name] = one.offset
            self._note(tp)
        self._keep_epoch(owner)

    def removed(self, r: FloorsRemoved) -> None:
        owner = self.owners[r.owner]
        owner.epoch = r.epoch
        partitions = [TopicPartition(*tp) for tp in r.partitions] if r.partitions is not None else None
        for tp in partitions if partitions is not None else [*owner.floors, *owner.released]:
            self._forget_floor(owner, tp)
            self._forget_released(owner, tp)
        self._keep_epoch(owner)

    def released(self, r: FloorsReleased) -> None:
        """In a snapshot an owner's releases come behind its floors, without a floor to take away."""
        owner = self.owners[r.owner]
        for one in r.partitions:
            tp = one.tp
            self._forget_floor(owner, tp)
            owner.released[tp] = Released(*tp, one.offset, r.why, r.at_ms)
            self._released_on.setdefault(tp, {})[owner.name] = None
            self._note(tp)
        self._keep_epoch(owner)

    def advanced(self, r: LogStartsAdvanced) -> None:
        for one in r.starts:
            self.log_starts[one.tp] = max(one.offset, self.log_start(one.tp))
            self._note(one.tp)

    def topic_deleted(self, topic_id: TopicId) -> None:
        for tp in self._partitions.pop(topic_id, {}):
            for name in [*self._on.get(tp, ()), *self._released_on.get(tp, ())]:
                owner = self.owners[name]
                self._forget_floor(owner, tp)
                self._forget_released(owner, tp)
                self._keep_epoch(owner)
            self.log_starts.pop(tp, None)

    def _note(self, tp: TopicPartition) -> None:
        self._partitions.setdefault(tp.topic_id, {})[tp] = None

    def _forget_floor(self, owner: Owner, tp: TopicPartition) -> None:
        if owner.floors.pop(tp, None) is None:
            return
        self.count -= 1
        on = self._on[tp]
        del on[owner.name]
        if not on:
            del self._on[tp]

    def _forget_released(self, owner: Owner, tp: TopicPartition) -> None:
        if owner.released.pop(tp, None) is None:
            return
        on = self._released_on[tp]
        del on[owner.name]
        if not on:
            del self._released_on[tp]

    def _keep_epoch(self, owner: Owner) -> None:
        """Of so many owners without floors; a copy is an owner, so their names do not end."""
        self._empty.pop(owner.name, None)
        if not owner.is_empty:
            return
        self._empty[owner.name] = None
        while len(self._empty) > limits.FLOOR_OWNERS_GONE_MAX:
            oldest = next(iter(self._empty))
            del self._empty[oldest], self.owners[oldest]

    def to_records(self) -> list[ControllerRecord]:
        """A snapshot. Owners that are empty come last, the oldest first, as they are forgotten."""
        records: list[ControllerRecord] = []
        full = [owner for owner in self.owners.values() if not owner.is_empty]
        for owner in [*full, *(self.owners[name] for name in self._empty)]:
            at = [FloorAt(*tp, offset) for tp, offset in owner.floors.items()]
            records += [FloorsSet(owner.name, owner.epoch, part) for part in _parts(at)] or [
                FloorsSet(owner.name, owner.epoch, ())
            ]
            records += [
                FloorsReleased(owner.name, (FloorAt(*tp, r.offset),), r.why, r.at_ms)
                for tp, r in owner.released.items()
            ]
        starts = [FloorAt(*tp, offset) for tp, offset in self.log_starts.items()]
        return records + [LogStartsAdvanced(part) for part in _parts(starts)]


# -- calls -------------------------------------------------------------------------------------------------------------
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
        FloorsSet(call.owner, call.epoch, part) for part in _parts(list(moved.values()))
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


def _parts(floors: list[FloorAt]) -> list[tuple[FloorAt, ...]]:
    step = limits.FLOORS_PER_RECORD_MAX
    return [tuple(floors[at : at + step]) for at in range(0, len(floors), step)]
