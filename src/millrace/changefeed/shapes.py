"""What a changefeed makes of its tables, version by version: rows and columns that go on, topic, partitions [P4, K2].

In: a spec, versions of tables, whoever asks Spark about expressions, and about topics. Out: plans, topics,
tables as messages show them. Errors: TableRefused: a version that its settings do not fit (any more), or whose topic is
another changefeed's. Unreachable: there are expressions, and no Spark to analyse them. InvalidSinkUri and what else
check_sink raises, for the spec as a whole.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from uuid import UUID

import msgspec

from millrace.changefeed.topic_owners import Owners, Tables, Taken, nobody
from millrace.core.feeds.topic_claims import why
from millrace.errors import TableRefused, UserError
from millrace.limits import VERSIONS_JUDGED_MAX
from millrace.model.changefeeds import ChangefeedSpec, TableSettings
from millrace.model.table_plans import TablePlan, whole
from millrace.model.tables import TableSchema
from millrace.sink.kafka.routing import refuse_unless_routable
from millrace.sink.routes import Router, check_sink

# Where the settings stand, what they say, the table (pipeline.rounds.Runner.shape).
Shape = Callable[[str, TableSettings, TableSchema], Awaitable[TablePlan]]


class Shapes:
    """`present`: the tables that the source has, for `owners` to say whose topics are."""

    def __init__(
        self, spec: ChangefeedSpec, shape: Shape, owners: Owners = nobody, present: Callable[[], Tables] = tuple
    ) -> None:
        self.sink = check_sink(spec)
        self._spec, self._shape, self._owners, self._present = spec, shape, owners, present
        self._router = Router(spec.source, self.sink, spec.settings)
        self._judged: dict[UUID, TablePlan] = {}

    async def plan(self, table: TableSchema) -> TablePlan:
        return (await self.plans([table]))[table.id]

    async def plans(self, tables: Iterable[TableSchema]) -> dict[UUID, TablePlan]:
        """By version. Whose the topics are is asked once for all of them."""
        found: dict[UUID, TablePlan] = {}
        taken: Taken | None = None
        for table in tables:
            plan = await self._fitting(table)
            taken = await self.taken() if taken is None else taken
            if (other := taken.get(self.topic(table))) is not None:
                raise TableRefused(f"its topic is {other.topic!r}, {why(other, self._spec.id)}")
            found[table.id] = plan
        return found

    async def _fitting(self, table: TableSchema) -> TablePlan:
        """A version is judged once: a table has hundreds, and each of its copies asks for those behind it."""
        if table.id not in self._judged:
            _, settings, where = self._router.said(table)
            try:
                plan = whole(table)
                if settings.filter or settings.projection:
                    plan = await self._shape(where, settings, table)
                refuse_unless_routable(self._router.route(table).routing, plan.shown)
            except UserError as error:
                raise TableRefused(str(error)) from error
            while len(self._judged) >= VERSIONS_JUDGED_MAX:
                del self._judged[next(iter(self._judged))]
            self._judged[table.id] = plan
        return self._judged[table.id]

    async def taken(self) -> Taken:
        """Topics to which nothing is written: they are another changefeed's."""
        return await self._owners(self._spec.id, self._present())

    def topics(self, tables: Iterable[TableSchema]) -> list[str]:
        """A renamed table has another one."""
        return list(dict.fromkeys(map(self.topic, tables)))

    def topic(self, table: TableSchema) -> str:
        return self._router.route(table).topic

    async def shown(self, table: TableSchema) -> TableSchema:
        """As messages describe it. A version that its settings do not fit is described by its key alone: its rows wait
        for somebody, but a change of it must not hold up those of other tables [C8]."""
        try:
            return (await self.plan(table)).shown
        except TableRefused:
            return msgspec.structs.replace(table, columns=tuple(one for one in table.columns if one.is_key))
