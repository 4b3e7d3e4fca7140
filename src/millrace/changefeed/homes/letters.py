"""Which messages a change of a table becomes in its changefeed's topics [C7, K2, S12].

    truncate ─▶ a truncation in every partition of the table's topic
    drop, another name ─▶ a truncation in every partition of the topic that it leaves, under the name that it had
    create, alter, drop, unless `ddl` is off ─▶ the schema change, in the topic of schema changes or, inline, in the
                                                first partition of the table's

In: a change. Out: letters. Promise: truncations are data, whatever the sink says of schema changes: whoever reads any
one partition and upserts by key has no row left that the table has not. Nothing is written into a topic of others.
"""

from __future__ import annotations

import msgspec

from millrace.changefeed.homes.ddl import Letter
from millrace.changefeed.homes.targets import Targets
from millrace.changefeed.shapes import Shapes
from millrace.core.feeds.source_story import Told
from millrace.model.progress import Change
from millrace.model.tables import TableSchema
from millrace.sink.kafka.choice import change_message
from millrace.sink.kafka.formats import Origin

SCHEMA_CHANGE, TRUNCATION = 0, 1       # kinds of letters, stored in messages' headers


class Letters:
    def __init__(self, targets: Targets, shapes: Shapes, origin: Origin) -> None:
        self._targets, self._shapes, self._origin = targets, shapes, origin

    async def of(self, told: Told, *, now_us: int) -> list[Letter]:
        found: list[Letter | None] = []
        if told.kind != "truncate" and self._targets.sink.ddl != "off":
            found.append(await self._letter(told.table, told.shown, SCHEMA_CHANGE, now_us))
        if told.kind == "truncate":
            found.append(await self.truncation(told.table, told.change, now_us=now_us))
        if told.left is not None:
            emptied = msgspec.structs.replace(told.change, kind="truncate", schema_id=told.left.id, begins=True)
            found.append(await self.truncation(told.left, emptied, now_us=now_us))
        return [letter for letter in found if letter is not None]

    async def truncation(self, table: TableSchema, change: Change, *, now_us: int) -> Letter | None:
        """None: its topic is another changefeed's, or its consumers have asked for none."""
        if self._targets.sink.skipped_operations == "t":
            return None
        return await self._letter(table, change, TRUNCATION, now_us)

    async def _letter(self, table: TableSchema, change: Change, kind: int, now_us: int) -> Letter | None:
        name = self._targets.topic_of(table)
        if name in await self._shapes.taken():
            return None
        shown = await self._shapes.shown(table)
        message = change_message(self._targets.sink, self._origin, shown, change, now_us=now_us)
        if kind == SCHEMA_CHANGE and self._targets.sink.ddl == "topic":
            return Letter(await self._targets.of_schema_changes(), kind, message)
        return Letter(await self._targets.ensure(name), kind, message, everywhere=kind == TRUNCATION)
