"""Floors of the log: who still needs which partition, from where on; and how far each log was cut [L23, F10].

In: the controller's records. Out: the floors on a partition, of an owner; where logs start. Floors go with their topic.
Replaying is the only mutation; core.floor_calls decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from millrace import limits
from millrace.model.floors import Floor, FloorAt, OwnerFloors, Released
from millrace.model.ids import TopicId, TopicPartition
from millrace.model.records import (
    ControllerRecord,
    FloorsReleased,
    FloorsRemoved,
    FloorsSet,
    LogStartsAdvanced,
)

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
            records += [FloorsSet(owner.name, owner.epoch, part) for part in parts(at)] or [
                FloorsSet(owner.name, owner.epoch, ())
            ]
            records += [
                FloorsReleased(owner.name, (FloorAt(*tp, r.offset),), r.why, r.at_ms)
                for tp, r in owner.released.items()
            ]
        starts = [FloorAt(*tp, offset) for tp, offset in self.log_starts.items()]
        return records + [LogStartsAdvanced(part) for part in parts(starts)]


def parts(floors: list[FloorAt]) -> list[tuple[FloorAt, ...]]:
    step = limits.FLOORS_PER_RECORD_MAX
    return [tuple(floors[at : at + step]) for at in range(0, len(floors), step)]
