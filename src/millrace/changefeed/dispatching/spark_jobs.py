"""Jobs of all changefeeds of one capture on its one Spark session [P8].

In: where Spark is, asked for at the first job: a capture without changefeeds and copies opens none. Out: endings, and
why no job starts now, with its age. Promise: whatever is wrong with Spark, also that nobody has named one, ends as
NotStarted, and the next job tries again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

from millrace.errors import ConfigError, Unreachable
from millrace.model.changefeeds import TableSettings
from millrace.model.rounds import TaskPlan
from millrace.model.table_plans import TablePlan
from millrace.model.tables import TableSchema
from millrace.ops.logging import get_logger
from millrace.ops.ports import Clock
from millrace.pipeline.rounds import Ending, NotStarted, Runner
from millrace.pipeline.session import Place, Session

log = get_logger(__name__)


class SparkJobs:
    def __init__(self, place: Callable[[], Place], clock: Clock, owner: str = "") -> None:
        self._place, self._clock, self._owner = place, clock, owner
        self._session: Session | None = None
        self._making = threading.Lock()                  # threads ask for the session, too
        self._runner: Runner | None = None
        self.why = ""                                    # no job starts; empty: the last one did
        self.since = clock.now()
        self.jobs = 0                                    # that Spark has been given

    @property
    def session(self) -> Session:
        """Not yet opened, perhaps: that is for whoever calls `spark` on it. ConfigError: nobody has named a Spark."""
        with self._making:
            if self._session is None:
                self._session = Session(self._place())
            return self._session

    def _the_runner(self) -> Runner:
        runner = self._runner = self._runner or Runner(self.session, self._owner)
        return runner

    async def run(self, plans: Sequence[TaskPlan]) -> Ending:
        try:
            runner = self._the_runner()
        except ConfigError as error:
            return self._noted(NotStarted(str(error)))
        return self._noted(await runner.run(plans))

    async def shape(self, where: str, settings: TableSettings, table: TableSchema) -> TablePlan:
        """Unreachable also if nobody has named a Spark: it waits as rounds do, and is told as they are."""
        try:
            return await self._the_runner().shape(where, settings, table)
        except (ConfigError, Unreachable) as error:
            self._noted(NotStarted(str(error)))
            raise Unreachable(str(error)) from error

    def _noted(self, ending: Ending) -> Ending:
        why = ending.why if isinstance(ending, NotStarted) else ""
        self.jobs += not why
        if bool(why) != bool(self.why):                  # many jobs wait: it is said when it begins and when it ends
            absent_s, self.since = self._clock.now() - self.since, self._clock.now()
            if why:
                log.warning("no Spark: changefeeds wait", why=why)
            else:
                log.info("Spark is there again", absent_s=round(absent_s, 1))
        self.why = why
        return ending

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.close()
        elif self._session is not None:
            await asyncio.to_thread(self._session.close)
