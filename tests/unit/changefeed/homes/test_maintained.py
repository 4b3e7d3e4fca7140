"""A maintainer's host on a real home: from the tables' positions to a schema change in its place, and to removal."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from millrace.changefeed.feeds.maintainer_host import MaintainerHost
from millrace.changefeed.feeds.manager_host import ManagerHost
from millrace.core.feeds.effects import Send
from millrace.model.changefeeds import FeedError
from millrace.model.feed_messages import (
    DispatcherRefused,
    MaintainerPing,
    ManagerAnswer,
    PrepareDispatcher,
    StartDispatcher,
    StopDispatcher,
    View,
)
from millrace.model.progress import Change
from millrace.model.spans import TablePartition
from support_feeds import Alone, until
from support_homes import FEED, Dispatchers, Log, entry, homes, id_of, run, table

EPOCH = 3
VIEW = View(1, 1, schedulable=((1, 1),), living=(1,), running={FEED: EPOCH}, epochs_upto=EPOCH)
T = table(16400, "t", "x")


class Story:
    """A maintainer and a manager on one capture."""

    def __init__(self, a: Alone, log: Log) -> None:
        self.a = a
        self.errors: list[FeedError] = []
        a.around = dataclasses.replace(a.around, homes=homes(log), dispatching=Dispatchers(log))
        self.host = MaintainerHost(
            a.around, FEED, EPOCH, view=lambda: VIEW, failing=self.errors.append, ended=lambda: None)
        self.manager = ManagerHost(a.around, FEED)
        a.deliver = self._deliver

    def _deliver(self, send: Send) -> None:
        match send.message:
            case ManagerAnswer() | DispatcherRefused():
                self.host.receive(send.message)
            case MaintainerPing() | PrepareDispatcher() | StartDispatcher() | StopDispatcher():
                self.manager.receive(1, send.message, "alive")

    def works(self) -> bool:
        machine = self.host.machine
        return machine is not None and machine.ready and bool(machine.state.spans) and all(
            span.place is not None and machine.sight.seen(span.id, span.place) == "working"
            for span in machine.state.spans.values())

    def checkpoint(self) -> int:
        return self.host.machine.state.checkpoint if self.host.machine is not None else -1

    def stands(self, partition: int) -> int | None:
        """The change at whose marker a position is known to stand."""
        committed = self.host.machine.progress.committed if self.host.machine is not None else {}
        found = committed.get(TablePartition(id_of(T.oid), partition))
        return found.marker if found is not None else None

    def passed(self) -> int:
        machine = self.host.machine
        return machine.ddl.position.next if machine is not None and machine.ddl.position is not None else -1

    async def again(self) -> None:
        """Thrown away, and another one in its place."""
        await self.host.stop()
        self.host = MaintainerHost(
            self.a.around, FEED, EPOCH, view=lambda: VIEW, failing=self.errors.append, ended=lambda: None)
        self.host.start()


async def begun(directory: Path, log: Log, then: Callable[[Story, Log], Awaitable[None]]) -> None:
    """Two partitions of table t, with rows, and a table `secret`."""
    await log.add(T, partitions=2)
    await log.add(table(16401, "secret"))
    await log.rows(T.oid, 0, 3, lsn=10)
    await log.rows(T.oid, 1, 2, lsn=11)
    await log.mark(20)
    a = Alone(directory)
    await a.created(FEED, tables=("public.*",))
    s = Story(a, log)
    s.host.start()
    try:
        await then(s, log)
    finally:
        await s.host.stop()
        await s.manager.stop()
        await a.plain.close()


def test_C6_C7_a_maintainer_on_the_log_goes_from_tables_to_a_schema_change_and_to_removal(tmp_path: Path) -> None:
    run(tmp_path, lambda log: begun(tmp_path / "feeds", log, _story))


def test_C7_a_table_that_is_renamed_away_and_back_is_maintained_again(tmp_path: Path) -> None:
    run(tmp_path, lambda log: begun(tmp_path / "feeds", log, _away_and_back))


async def _away_and_back(s: Story, log: Log) -> None:
    hidden, of_t = msgspec.structs.replace(T, schema="hidden"), id_of(T.oid)
    await until(s.works, 20)
    away = await log.change(Change(1, T.oid, 30, 0, "alter", hidden.id, T.id), hidden)
    await log.rows(T.oid, 0, 2, lsn=35)                      # under a name that the rules do not take
    back = await log.change(Change(1, T.oid, 40, 0, "alter", T.id, hidden.id), T)
    await log.mark(50)
    await log.move(T.oid, 0, 3, resolved=29)
    await log.move(T.oid, 1, 2, resolved=29)
    await until(lambda: s.passed() == back + 1 and s.works(), 20)
    assert away < back
    machine = s.host.machine
    assert machine is not None
    assert [span.born for span in machine.state.by_table[of_t].values()] == [back]
    stored = await log.stored()
    assert [stored[log.key(T.oid, n)].at for n in (0, 1)] == [(6, 0), (3, 0)], "where it comes back"
    for partition, end in ((0, 7), (1, 4)):
        await log.move(T.oid, partition, end, resolved=50)
    await until(lambda: s.checkpoint() == 50, 20)


async def _story(s: Story, log: Log) -> None:
    await until(s.works, 20)
    assert s.host.machine is not None
    assert set(s.host.machine.state.by_table) == {id_of(T.oid), id_of(16401)}
    await log.move(T.oid, 0, 3, resolved=10)
    assert s.checkpoint() == 0                               # the other partition is behind the mark
    await log.move(T.oid, 1, 2, resolved=11)
    await until(lambda: s.checkpoint() == 20, 20)

    wider = table(T.oid, "t", "x", "y")
    change = Change(1, T.oid, 30, 0, "alter", wider.id, T.id, "ALTER TABLE t ADD y text")
    await log.rows(T.oid, 1, 1, lsn=25)
    number = await log.change(change, wider)
    await log.rows(T.oid, 0, 1, lsn=31)
    await log.mark(40)
    await until(lambda: s.stands(0) == number, 20)
    assert s.passed() <= number                              # a row before it is not delivered in the other partition
    await log.move(T.oid, 1, 3, resolved=29)
    await until(lambda: s.passed() == number + 1, 20)
    topic = "shop.schema-changes"
    (told, value), = await log.messages(topic)
    assert (told.point, b'"ddl":"ALTER TABLE t ADD y text"' in value) == ((number, 0), True)

    await s.again()
    await until(s.works, 20)
    await log.move(T.oid, 0, 5, resolved=40)
    await log.move(T.oid, 1, 4, resolved=40)
    await until(lambda: s.checkpoint() == 40, 20)
    assert len(await log.messages(topic)) == 1

    await s.host.stop()
    for _ in range(2):                                       # may be repeated
        await homes(log).remove(entry().spec, 1000, maintainer=1000)
        assert await log.stored() == {}
