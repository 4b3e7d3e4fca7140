"""One dispatcher here: a part for each source partition of its span, and for each copy of them [V11, P3].

    settle ─▶ parts READY ─▶ goals ─▶ plans ─▶ results ─▶ stored ─▶ READY …
                  └─▶ ended: `stands` says why (core.delivery.standing)

In: what `progress` and the barrier allow, results. Out: goals, and how it stands. Promise: nothing is planned for a
part that is not READY.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from millrace import limits
from millrace.changefeed.dispatching.parts import Part, StreamPart
from millrace.changefeed.dispatching.progress import SourceProgress
from millrace.changefeed.feeds.ports import Rounds, Work
from millrace.core.delivery.failures import Whose
from millrace.core.delivery.looks_around import Behind
from millrace.core.delivery.standing import Standing, Stands, stands
from millrace.core.delivery.taking import State
from millrace.errors import MillraceError
from millrace.model.changefeeds import FeedError
from millrace.model.spans import Dispatcher
from millrace.pipeline.kafka.setup import Setup


@dataclass(slots=True)
class Hosted:
    """`setup`: of the mover, as it was when this dispatcher was started. `refused`: why it will never do anything."""

    work: Work
    rounds: Rounds
    whose: Whose
    progress: SourceProgress
    setup: Setup
    parts: tuple[StreamPart, ...] = ()
    refused: FeedError | None = None
    trouble: FeedError | None = None                     # of its take-over, to be told before it goes
    epoch_seen: int = 0
    stopped: bool = False
    looking: bool = False                                # for other targets, a greater epoch
    look_at: float = 0.0                                 # when it looks again, if it is idle then
    told: bool = False                                   # what its take-over, or its span's former rounds, met with
    erring: bool = False                                 # whoever placed it was told of an error last
    in_round: bool = False                               # planned, and its end not told
    doubted: bool = False                                # a round did nothing: are the targets still those?
    meeting: bool = False                                # copies that came since

    @property
    def dispatcher(self) -> Dispatcher:
        return self.work.dispatcher

    @property
    def all_parts(self) -> list[Part]:
        """With those of copies."""
        return [one for part in self.parts for one in (part, *part.copies.values())]

    def stream_of(self, part: Part) -> StreamPart:
        return next(one for one in self.parts if one.table_partition == part.table_partition)

    async def settle(self) -> None:
        """Until each part is ready or has ended; the stream's first [decision 8]."""
        await asyncio.gather(*(part.taker.run() for part in self.parts))
        if self.parts and self.stands.standing is Standing.WORKING and not self.stopped:
            await self.progress.catch_up()
            await self.meet()

    async def meet(self) -> None:
        self.meeting = True
        try:
            await asyncio.gather(*(part.meet() for part in self.parts))
        finally:
            self.meeting = False

    def stop(self) -> None:
        self.stopped = True
        for part in self.all_parts:
            part.machine.stop()

    @property
    def stands(self) -> Stands:
        return stands((part.machine.why, part.machine.detail) for part in self.all_parts)

    @property
    def may_plan(self) -> bool:
        return not (self.looking or self.meeting or self.must_meet) and all(
            part.machine.state is State.READY for part in self.all_parts)

    @property
    def must_meet(self) -> bool:
        return any(part.must_meet for part in self.parts)

    @property
    def must_look(self) -> bool:
        """Before anything is planned: the list of its targets may be another one by now."""
        return self.doubted or not all(part.lister.is_complete for part in self.all_parts)

    @property
    def behind(self) -> Behind:
        """A look that has ended."""
        return Behind(erring=self.erring, untold=not self.told, may_plan=self.may_plan, must_look=self.must_look)

    def began(self, now: float, look_at: float) -> None:
        self.look_at = look_at
        for part in self.all_parts:
            part.machine.began(now)

    def refresh_due(self, now: float) -> bool:
        return any(part.machine.refresh_due(now) for part in self.all_parts)

    async def look_around(self, now: float) -> MillraceError | None:
        self.looking = True
        try:
            seen = await asyncio.gather(*(part.look_around(now) for part in self.all_parts))
        except MillraceError as error:
            return error
        finally:
            self.looking = False
        self.epoch_seen = max(self.epoch_seen, *seen)
        self.doubted, self.look_at = False, now + limits.LOOK_AROUND_S
        return None
