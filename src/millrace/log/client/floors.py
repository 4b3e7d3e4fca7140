"""Floors at the controller, through any broker: down to where the log is kept for somebody [L23, F10].

In: an owner, its epoch and places. Out: which of them hold, which are gone, which were released; or Superseded where
another epoch is the owner's. Promise: a call whose answer was lost is repeated, and changes nothing twice. What `held`
names is kept, on every replica, until the owner moves on or is released.

A holder registers first and then goes by the answer: what is in `gone` or `released` is lost for it. It moves its
floors only after its own checkpoint is durable, and not more often than every FLOOR_MOVE_S: each move is a record.
Within an epoch it never asks for less than it has asked for before: a call that got no answer may still be carried out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from millrace import limits
from millrace.errors import from_code
from millrace.log.client.client import LogClient
from millrace.model.floors import (
    AnyFloorCall,
    FloorAt,
    FloorsTold,
    OwnerFloors,
    ReadFloors,
    Released,
    RemoveFloors,
    SetFloors,
    decode_told,
    encode_call,
)
from millrace.model.ids import TopicId, TopicPartition


@dataclass(slots=True)
class Holding:
    """What an owner holds. After `set`, of the partitions it named: `held` is where the floor stands now, which is
    above the place asked for if it stood there before; `gone`: not registered, the log starts above it, at this
    offset; `released`: taken away before, and not held again until a greater epoch registers; `unknown`: no such
    partition."""

    owner: str
    epoch: int = -1
    held: dict[TopicPartition, int] = field(default_factory=dict)
    released: dict[TopicPartition, Released] = field(default_factory=dict)
    gone: dict[TopicPartition, int] = field(default_factory=dict)
    unknown: list[TopicPartition] = field(default_factory=list)

    def add(self, told: FloorsTold) -> None:
        for one in told.owners:
            self.epoch = one.epoch
            self.held.update((floor.tp, floor.offset) for floor in one.floors)
            self.released.update((released.tp, released) for released in one.released)
        self.gone.update((floor.tp, floor.offset) for floor in told.gone)
        self.unknown += [TopicPartition(*tp) for tp in told.unknown]


class FloorClient:
    def __init__(self, client: LogClient) -> None:
        self._client = client

    async def set(self, owner: str, epoch: int, floors: Mapping[TopicPartition, int]) -> Holding:
        """Registers or moves. Under a greater epoch than before it is a registration: any place, also a lower one."""
        holding = Holding(owner)
        at = (FloorAt(*tp, offset) for tp, offset in floors.items())
        for part in _parts(at):
            holding.add(await self._ask(SetFloors(owner, epoch, part)))
        return holding

    async def remove(self, owner: str, epoch: int, partitions: Iterable[TopicPartition] | None = None) -> None:
        """None: all of them. What was released is forgotten, too."""
        await self._ask(RemoveFloors(owner, epoch, None if partitions is None else tuple(partitions)))

    async def of_owner(self, owner: str) -> Holding:
        """Epoch -1: it never held anything, or so long ago that it was forgotten."""
        holding = Holding(owner)
        holding.add(await self._ask(ReadFloors(owner=owner)))
        return holding

    async def of_topic(self, topic_id: TopicId) -> list[OwnerFloors]:
        """Every owner with a floor, or one released, on a topic; only those floors."""
        return list((await self._ask(ReadFloors(topic_id=topic_id))).owners)

    async def all(self) -> list[OwnerFloors]:
        return list((await self._ask(ReadFloors())).owners)

    async def _ask(self, call: AnyFloorCall) -> FloorsTold:
        answer = await self._client.ask_anybody("Floors", {"call": encode_call(call)})
        if answer["refused"]:
            raise from_code(answer["refused"], answer["error_message"] or "")
        return decode_told(bytes(answer["told"]))


def _parts(floors: Iterator[FloorAt]) -> Iterator[tuple[FloorAt, ...]]:
    """At least one, be it empty: a call without floors still raises the epoch."""
    yield tuple(islice(floors, limits.FLOORS_PER_CALL_MAX))
    while part := tuple(islice(floors, limits.FLOORS_PER_CALL_MAX)):
        yield part
