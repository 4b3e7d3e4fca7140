"""One dispatcher here: a take-over machine for each source partition of its span [V11, P3].

    settle ─▶ parts READY ─▶ goals ─▶ plans ─▶ results ─▶ stored ─▶ READY …
                  └─▶ ended: `stands` says why (core.delivery.standing)

In: what `progress` and the barrier allow, results. Out: goals, and how it stands. Promise: nothing is planned for a
part that is not READY.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from uuid import UUID

from millrace import limits
from millrace.changefeed.dispatching.progress import SourceProgress
from millrace.changefeed.dispatching.targets import LogTargets
from millrace.changefeed.feeds.ports import Rounds, Work
from millrace.core.delivery.failures import Whose
from millrace.core.delivery.source_marks import Goal, Look, next_step
from millrace.core.delivery.standing import Stands, stands
from millrace.core.delivery.takeover import Takeover
from millrace.core.delivery.taking import State
from millrace.errors import MillraceError
from millrace.log.client import LogClient
from millrace.log.client.positions import PositionClient
from millrace.model.changefeeds import FeedError
from millrace.model.positions import Point, PositionKey
from millrace.model.spans import Dispatcher, TablePartition
from millrace.model.tables import TableSchema
from millrace.model.writes import WriteResult
from millrace.pipeline.kafka.home import LogHome
from millrace.pipeline.kafka.setup import Setup
from millrace.pipeline.kafka.takeover import Taker
from millrace.sink.uri import KafkaSink


class Part:
    """One source partition."""

    def __init__(
        self, client: LogClient, progress: SourceProgress, sink: KafkaSink, *, work: Work, topic_id: UUID,
        partition: int,
    ) -> None:
        table = work.span.table
        self.table_partition = TablePartition(table, partition)
        self.machine = Takeover(PositionKey(work.feed, topic_id, partition), work.dispatcher.epoch)
        self._client, self._progress, self._step = client, progress, limits.ROUND_OFFSETS_FIRST
        self.lister = LogTargets(client, feed=work.feed, source=table.source, sink=sink, tables=self.versions)
        self.taker = Taker(self.machine, client, LogHome(client), self.lister)

    def versions(self) -> list[TableSchema]:
        resolved = self.machine.position.resolved if self.machine.position is not None else 0
        return self._progress.marks.versions(self.table_partition.table.oid, resolved)

    def goal(self, passed: int) -> Goal | Look | None:
        """None: nothing to do, or not ready for it."""
        machine, (table, partition) = self.machine, self.table_partition
        if machine.state is not State.READY:
            return None
        assert machine.position is not None
        found = self._progress.found(self.table_partition)
        goal = self._progress.marks.goal(table.oid, partition, machine.position.at, passed, found, self._step)
        if isinstance(goal, Goal):
            return goal._replace(resolved=max(goal.resolved, machine.position.resolved))
        return goal

    def moved(self, result: WriteResult, from_: Point) -> None:
        if result.outcome != "unknown":
            moved = result.to.offset - from_.offset
            self._step = next_step(self._step, done=result.outcome == "done", moved=moved)

    async def look_around(self, now: float) -> int:
        """Between rounds: greater epochs and other targets are seen, ends move up. The epoch that is stored."""
        machine = self.machine
        stored = await PositionClient(self._client).read(machine.key)
        machine.epoch_seen(stored.epoch)
        if machine.state is State.ENDED:
            return stored.epoch
        targets = await self.lister.targets(frozenset(end.topic_id for end in stored.ends))
        machine.targets_seen(targets)
        if machine.refresh_due(now):
            ends = await asyncio.gather(*(
                self._client.ends(self.lister.name_of(one.topic_id), one.partition) for one in targets.writable))
            machine.refresh(now, {one: end for one, (_, end) in zip(targets.writable, ends, strict=True)})
            await self.taker.run()
        return stored.epoch


@dataclass(slots=True)
class Hosted:
    """`setup`: of the mover, as it was when this dispatcher was started. `refused`: why it will never do anything."""

    work: Work
    rounds: Rounds
    whose: Whose
    progress: SourceProgress
    setup: Setup
    source_topic: tuple[UUID, str]
    parts: tuple[Part, ...] = ()
    refused: FeedError | None = None
    trouble: FeedError | None = None                     # of its take-over, to be told before it goes
    epoch_seen: int = 0
    stopped: bool = False
    looking: bool = False                                # for fresh ends, other targets
    told: bool = False                                   # what its take-over, or its span's former rounds, met with
    erring: bool = False                                 # whoever placed it was told of an error last
    doubted: bool = False                                # a round did nothing: are the targets still those?

    @property
    def dispatcher(self) -> Dispatcher:
        return self.work.dispatcher

    async def settle(self) -> None:
        """Until each part is ready or has ended."""
        await asyncio.gather(*(part.taker.run() for part in self.parts))

    def stop(self) -> None:
        self.stopped = True
        for part in self.parts:
            part.machine.stop()

    @property
    def stands(self) -> Stands:
        return stands((part.machine.why, part.machine.detail) for part in self.parts)

    @property
    def may_plan(self) -> bool:
        return not self.looking and all(part.machine.state is State.READY for part in self.parts)

    @property
    def must_look(self) -> bool:
        """Before anything is planned: the list of its targets may be another one by now."""
        return self.doubted or not all(part.lister.is_complete for part in self.parts)

    def refresh_due(self, now: float) -> bool:
        return any(part.machine.refresh_due(now) for part in self.parts)

    async def look_around(self, now: float) -> MillraceError | None:
        self.looking = True
        try:
            seen = await asyncio.gather(*(part.look_around(now) for part in self.parts))
        except MillraceError as error:
            return error
        finally:
            self.looking = False
        self.epoch_seen = max(self.epoch_seen, *seen)
        self.doubted = False
        return None
