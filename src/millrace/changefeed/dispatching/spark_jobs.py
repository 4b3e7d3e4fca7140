"""Jobs of all changefeeds of one capture on its one Spark session [P8].

    plans, questions ─▶ Runner ─▶ endings, answers
         └─▶ SparkPresence ─▶ a look, while nothing comes back ─▶ why no job starts or ends now, since when

In: where Spark is, asked for at the first job: a capture without changefeeds and copies opens nothing. Out: endings,
answers, and why Spark is absent, with its age. Promise: whatever is wrong with Spark, also that nobody has named one,
ends as NotStarted or Unreachable, and the next job tries again; a Spark that takes a job and answers no more is told as
absent while the job goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NoReturn, TypeVar

from millrace import limits
from millrace.changefeed.feeds.tasks import Tasks
from millrace.core.delivery.spark_presence import Absence, SparkPresence
from millrace.errors import ConfigError, Unreachable
from millrace.model.changefeeds import TableSettings
from millrace.model.rounds import TaskPlan
from millrace.model.table_plans import TablePlan
from millrace.model.tables import TableSchema
from millrace.ops.logging import get_logger
from millrace.ops.ports import Clock
from millrace.pipeline.rounds import Ending, Lost, NotStarted, Returned, Runner, shaping
from millrace.pipeline.session import Open, Place, Session

T = TypeVar("T")
log = get_logger(__name__)


class SparkJobs:
    def __init__(self, place: Callable[[], Place], clock: Clock, owner: str = "") -> None:
        self._place, self._clock, self._owner = place, clock, owner
        self._session: Session | None = None
        self._making = threading.Lock()                  # threads ask for the session, too
        self._runner: Runner | None = None
        self._presence, self._watching = SparkPresence(), False
        self._tasks = Tasks("watch over Spark")
        self.jobs = 0                                    # that Spark has been given

    @property
    def session(self) -> Session:
        """Not yet opened, perhaps: that is for whoever calls `spark` on it. ConfigError: nobody has named a Spark."""
        with self._making:
            if self._session is None:
                self._session = Session(self._place())
            return self._session

    @property
    def absence(self) -> Absence | None:
        return self._presence.absence(self._clock.now())

    def _the_runner(self) -> Runner:
        runner = self._runner = self._runner or Runner(self.session, self._owner)
        return runner

    async def run(self, plans: Sequence[TaskPlan]) -> Ending:
        with self._under_way() as note:
            try:
                runner = self._the_runner()
            except ConfigError as error:
                return note(NotStarted(str(error)))
            self._watch(runner)
            ending = note(await runner.run(plans))
        self.jobs += not isinstance(ending, NotStarted)
        return ending

    async def shape(self, where: str, settings: TableSettings, table: TableSchema) -> TablePlan:
        return await self.ask(where, shaping(where, settings, table))

    async def ask(self, what: str, question: Callable[[Open], T], *, within_s: float = limits.SPARK_OPEN_S) -> T:
        """As Runner.ask. Unreachable also if nobody has named a Spark, and the question needs one: it waits as rounds
        do, and is told as they are."""
        with self._under_way() as note:
            try:
                return await self._answer(what, question, within_s)
            except Unreachable as error:
                note(NotStarted(str(error)))
                raise

    async def _answer(self, what: str, question: Callable[[Open], T], within_s: float) -> T:
        try:
            runner = self._the_runner()
        except ConfigError as error:
            return await asyncio.to_thread(question, partial(_refuse, str(error)))
        self._watch(runner)
        return await runner.ask(what, question, within_s=within_s)

    async def close(self) -> None:
        await self._tasks.stop()
        if self._runner is not None:
            await self._runner.close()
        elif self._session is not None:
            await asyncio.to_thread(self._session.close)

    # -- whether Spark is there ----------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def _under_way(self) -> Iterator[Callable[[Ending], Ending]]:
        """What is noted tells how it has ended; else nothing is told by it."""
        endings: list[Ending] = []

        def note(ending: Ending) -> Ending:
            endings.append(ending)
            return ending

        self._presence.began(self._clock.now())
        try:
            yield note
        finally:
            self._tell(partial(self._ended, endings))

    def _ended(self, endings: Sequence[Ending]) -> None:
        now = self._clock.now()
        match endings:
            case [NotStarted() as ending]:
                self._presence.not_started(now, ending.why)
            case [Returned() | Lost(session_lost=False)]:
                self._presence.brought_back(now)
            case _:
                self._presence.unclear(now)

    async def look(self) -> None:
        """Whether Spark answers, while nobody has a job for it; with a job under way that is looked at anyhow."""
        if self._watching:
            return
        asked = self._clock.now()
        try:
            why = "" if await self._the_runner().answers() else f"Spark at {self.session.place.name} does not answer"
        except ConfigError as error:
            why = str(error)
        self._tell(partial(self._presence.looked_idle, asked, self._clock.now(), why))

    def _watch(self, runner: Runner) -> None:
        if not self._watching:
            self._watching = True
            self._tasks.start(self._look_now_and_then(runner))

    async def _look_now_and_then(self, runner: Runner) -> None:
        try:
            while (at := self._presence.look_at()) is not None:
                asked = self._clock.now()
                if asked < at:
                    await asyncio.sleep(at - asked)
                    continue
                why = "" if await runner.answers() else f"Spark at {self.session.place.name} does not answer"
                self._tell(partial(self._presence.looked, asked, self._clock.now(), why))
        finally:
            self._watching = False

    def _tell(self, change: Callable[[], None]) -> None:
        """Many jobs wait: it is said when it begins and when it ends."""
        before = self.absence
        change()
        after = self.absence
        if before is None and after is not None:
            log.warning("no Spark: changefeeds wait", why=after.why)
        elif before is not None and after is None:
            log.info("Spark is there again", absent_s=round(self._clock.now() - before.since, 1))


def _refuse(why: str) -> NoReturn:
    raise Unreachable(why)
