"""Rows of one source partition on their way to the encoder, by either path: as the sink will see them, in order [P4].

    fused:  groups of the log ─▶ shape ─▶ Portion
    SQL:    groups of the log ─▶ Asked, with a tag ─▶ Spark ─▶ Heard ─▶ Portion

Promise: both give the same portions of the same rows. `upto` tells how far rows were handed over, whether any of them
goes on or not: positions advance by plan.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

import msgspec

from millrace.core.feeds.culprits import Culprit
from millrace.log.client import LogClient
from millrace.model.positions import Point
from millrace.model.rounds import Broken, TaskPlan
from millrace.model.table_plans import TablePlan, whole
from millrace.pipeline.kafka.copied import copied_groups
from millrace.pipeline.kafka.reading import Group, Range, groups
from millrace.pipeline.shape.paths import Asked, Heard, Told, fused
from millrace.sink.kafka.encode import Rows

PlansById = Mapping[UUID, TablePlan]


class Portion(NamedTuple):
    """`told`: None if there is nothing to tell. Everything before `upto` has been handed over."""

    told: Told | None
    upto: Point
    read_bytes: int


class Tag(msgspec.Struct, frozen=True, array_like=True):
    """What travels with rows through Spark."""

    upto: Point
    read_bytes: int


_tags: msgspec.msgpack.Decoder[Tag] = msgspec.msgpack.Decoder(Tag)


def plans_of(plan: TaskPlan) -> dict[UUID, TablePlan]:
    """Of every version that its rows may have."""
    return {table.id: whole(table) for table in plan.schemas} | {table.table.id: table for table in plan.tables}


async def read(client: LogClient, wanted: Range, plans: PlansById) -> AsyncIterator[Portion]:
    """Of tables whose rows Spark need not see."""
    async for group in _groups(client, wanted, plans):
        told = None
        if group.schema is not None and group.rows.batch.num_rows:
            plan = plans[group.schema.id]
            told = Told(plan, group.rows, fused(group.rows, plan))
        yield Portion(told, group.upto, group.read_bytes)


async def asked(
    client: LogClient, wanted: Range, plans: Sequence[TablePlan], broken: Sequence[Broken]
) -> AsyncIterator[Asked]:
    """What Spark is to be asked. Where no rows are left the tag goes alone: whoever writes must know how far it is."""
    by_id = {plan.table.id: plan for plan in plans}
    order, why = list(by_id), {one.point: one.why for one in broken}
    async for group in _groups(client, wanted, by_id):
        tag = msgspec.msgpack.encode(Tag(group.upto, group.read_bytes))
        if group.schema is None or not group.rows.batch.num_rows:
            yield Asked(None, tag)
        else:
            yield Asked(group.rows, tag, _culprits(group.rows, why), order.index(group.schema.id))


def _culprits(rows: Rows, why: Mapping[Point, str]) -> tuple[Culprit, ...]:
    if not why:
        return ()
    points = map(Point, rows.offset.tolist(), rows.row.tolist())
    return tuple(Culprit(place, why[point]) for place, point in enumerate(points) if point in why)


def heard_portion(heard: Heard) -> Portion:
    tag = _tags.decode(heard.tag)
    return Portion(heard.told, tag.upto, tag.read_bytes)


def _groups(client: LogClient, wanted: Range, plans: PlansById) -> AsyncIterator[Group]:
    read = groups if wanted.copied is None else copied_groups
    return read(client, wanted, {id_: plan.table for id_, plan in plans.items()})
