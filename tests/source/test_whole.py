"""A table without a key is copied again under writers, where the numbers of transactions begin anew [S5, S10].

Every transaction stands where it can go wrong: it ends between the marks before the snapshot, runs in it, begins behind
it; with numbers from both sides of 2^32. A truncation stands before the snapshot, another right behind the reading.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

from millrace.source.copying.attempt import ChunkProgress, ChunkResult, ChunkTask
from millrace.source.server.embedded import PostgresServer
from support_cluster import Cluster
from support_postgres import run, server_of
from support_reader import InThread, Life, Rig

EPOCH = 1 << 32
SEGMENT_BYTES = 256 << 10       # of pg_xact


class Hooked(InThread):
    """Calls back from inside an attempt: once while it waits for writers, once while it has read rows."""

    def __init__(self) -> None:
        self.while_waiting: Callable[[], Any] | None = None
        self.while_reading: Callable[[], Any] | None = None
        self.done = 0

    async def run(self, task: ChunkTask, report: Callable[[ChunkProgress], None]) -> ChunkResult:
        def told(progress: ChunkProgress) -> None:
            report(progress)
            if "waits for a transaction" in progress.note:
                act, self.while_waiting = self.while_waiting, None
            elif progress.rows:
                act, self.while_reading = self.while_reading, None
            else:
                return
            if act is not None:
                act()
                self.done += 1

        return await super().run(task, told)


@pytest.fixture
def old_server() -> Iterator[PostgresServer]:
    """Its next transactions have the last numbers before 2^32."""
    with server_of(18) as server:
        run(server.url(), "VACUUM FREEZE")
        run(server.url("template1"), "VACUUM FREEZE")       # no row is left of a number that is now to come
        server.stop()
        server.run("pg_resetwal", "-x", str(EPOCH - 2000), server.data_dir)
        segment = os.path.join(server.data_dir, "pg_xact", "0FFF")
        with open(segment, "wb") as file:
            file.write(bytes(SEGMENT_BYTES))
        owner = os.stat(server.data_dir)
        os.chown(segment, owner.st_uid, owner.st_gid)
        server.start()
        yield server


def use_up(url: str, upto: int) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        while next(db.execute("SELECT pg_current_xact_id()::text::int8"))[0] < upto:
            pass


class Writers:
    """Transactions that stay open until they are told."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        self._url, self._stack = url, stack

    def open(self, *statements: str) -> psycopg.Connection[Any]:
        made = self._stack.enter_context(psycopg.connect(self._url))
        for statement in statements:
            made.execute(statement.encode())
        return made


def test_S5_a_table_without_a_key_is_copied_under_writers(
    old_server: PostgresServer, broker: Cluster, tmp_path: Path
) -> None:
    url, runner = old_server.url(), Hooked()
    run(url, "CREATE TABLE w (v int)", "ALTER TABLE w REPLICA IDENTITY FULL",
        "INSERT INTO w SELECT g % 7 FROM generate_series(1, 60) g")
    rig = Rig(broker.bootstrap.split(","), url, str(tmp_path), name="whole", carry_whole=("public.w",), partitions=2)
    rig.runner = runner
    with ExitStack() as stack, rig.reader() as reader:
        reader.wait(lambda s: s.state == "streaming", "the first copy", 60)
        writers = Writers(url, stack)
        across_the_turn(reader, runner, writers, url)
        counts = rig.verify(reader).counts           # now: the next window replaces whatever this one did
        assert (counts["whole"], min(counts["whole_contained"], counts["whole_unseen"]) > 9) == (2, True)
        truncated(reader, runner, writers, url)
        assert rig.verify(reader).counts["whole"] == 3


def across_the_turn(reader: Life, runner: Hooked, writers: Writers, url: str) -> None:
    use_up(url, EPOCH - 10)
    early = writers.open("INSERT INTO w VALUES (100)", "DELETE FROM w WHERE v = 1")
    run_in_it: list[psycopg.Connection[Any]] = []

    def before_the_snapshot() -> None:
        run(url, "INSERT INTO w VALUES (101)")
        run_in_it.append(writers.open("INSERT INTO w VALUES (102), (102)", "DELETE FROM w WHERE v = 2"))
        use_up(url, EPOCH + 5)
        run_in_it.append(writers.open("INSERT INTO w VALUES (103)", "DELETE FROM w WHERE v = 3"))
        run(url, "UPDATE w SET v = 104 WHERE v = 4")
        early.commit()

    def behind_the_snapshot() -> None:
        for transaction in run_in_it:
            transaction.commit()
        run(url, "INSERT INTO w VALUES (105), (100)", "DELETE FROM w WHERE v = 101")

    copy_again(reader, runner, before_the_snapshot, behind_the_snapshot)


def truncated(reader: Life, runner: Hooked, writers: Writers, url: str) -> None:
    writer = writers.open("INSERT INTO w VALUES (200)")

    def before_the_snapshot() -> None:
        writer.commit()
        run(url, "TRUNCATE w", "INSERT INTO w VALUES (201), (202), (202)")

    def behind_the_snapshot() -> None:
        thread.start()           # waits for the lock of the window, which is let go before its high mark

    thread = threading.Thread(target=run, args=(url, "TRUNCATE w", "INSERT INTO w VALUES (203), (201)"))
    copy_again(reader, runner, before_the_snapshot, behind_the_snapshot)
    thread.join()


def copy_again(reader: Life, runner: Hooked, waiting: Callable[[], None], reading: Callable[[], None]) -> None:
    runner.while_waiting, runner.while_reading, runner.done = waiting, reading, 0
    copy = reader.call(reader.copy_table("public.w"))
    reader.wait(lambda s: any(c.copy == copy and c.state == "done" for c in s.copies), "the copy", 60)
    assert runner.done == 2
