"""The shell of a take-over: what it asks again, and what it tells of fences [V11, V12]."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast
from uuid import UUID

import pytest

from millrace.core.delivery.takeover import Takeover
from millrace.core.delivery.taking import State
from millrace.errors import MillraceError, NotEnoughReplicas
from millrace.model.ids import TopicPartition
from millrace.model.positions import PositionKey, StoredPosition, TargetEnd, WriterId
from millrace.model.writes import Targets
from millrace.pipeline.kafka import takeover
from millrace.pipeline.kafka.takeover import Taker

TOPIC = UUID(int=1)
ONE, QUARANTINE = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)


class World:
    """A client, a home, a lister and turns in one: every fence stands at 0 unless `refuse` names an error."""

    def __init__(self) -> None:
        self.machine = Takeover(PositionKey("f", TOPIC, 0), 3)
        self.told: list[str] = []
        self.fences = 0
        self.refuse: Callable[[int], MillraceError | None] = lambda partition: None
        self.turn: Callable[[], None] = lambda: None

    async def take(self, key: PositionKey, epoch: int, *, new_writer_id: int | None) -> StoredPosition:
        ends = (TargetEnd(*ONE, 0), TargetEnd(*QUARANTINE, 0))
        return StoredPosition(epoch, 0, 0, ends, (WriterId(9, 1),), 0)

    async def targets(self, stored: frozenset[UUID]) -> Targets:
        return Targets((ONE,), QUARANTINE)

    def name_of(self, topic_id: UUID) -> str:
        return "t"

    async def fence(self, topic: str, partition: int, *, writer_id: int, epoch: int) -> int:
        self.fences += 1
        if (error := self.refuse(partition)) is not None:
            raise error
        return 0

    async def ends(self, topic: str, partition: int) -> tuple[int, int]:
        return 0, 0

    @asynccontextmanager
    async def fencing(self) -> AsyncIterator[None]:
        self.turn()
        yield

    def refused(self, error: MillraceError) -> None:
        self.told.append(error.code)

    def took(self) -> None:
        self.told.append("took")

    async def run(self) -> None:
        await Taker(self.machine, *cast(Any, (self, self, self, self))).run()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover.Backoff, "next_s", lambda self: 0.0)


def test_V12_fences_that_are_refused_are_told_once_for_all_targets_and_asked_again() -> None:
    world = World()
    world.refuse = lambda partition: NotEnoughReplicas("1 in sync") if world.fences <= 4 else None
    asyncio.run(world.run())
    assert world.told == ["not_enough_replicas", "not_enough_replicas", "took"]
    assert world.machine.state is State.READY


def test_V12_one_target_that_takes_no_fence_is_a_failure_of_the_dispatcher() -> None:
    world = World()
    world.refuse = lambda partition: NotEnoughReplicas("1 in sync") if partition and world.fences < 4 else None
    asyncio.run(world.run())
    assert world.told == ["not_enough_replicas", "not_enough_replicas", "took"]
    assert world.fences == 4, "the one that stands is not asked for again"


def test_V12_who_is_stopped_while_it_waits_for_its_turn_says_nothing_of_the_sink() -> None:
    world = World()
    world.turn = world.machine.stop
    asyncio.run(world.run())
    assert (world.told, world.fences, world.machine.state) == ([], 0, State.ENDED)
