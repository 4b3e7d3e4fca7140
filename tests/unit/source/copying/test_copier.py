"""The copier's decisions with a runner that answers as it is told; no database, no broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from millrace import limits
from millrace.core.sources.copies import ChunkId, Copies
from millrace.errors import TopicExists
from millrace.model.ids import ProcessIdentity
from millrace.model.progress import ChunksAbandoned, CopyStarted, Manifest, ProgressRecord
from millrace.model.sources import ChunkSpan, SourceSpec
from millrace.model.tables import Column, TableSchema
from millrace.ops.ports import Ports
from millrace.ops.real import BootClock, RealFileSystem, RealRandom
from millrace.source.copying import copier as module
from millrace.source.copying.attempt import FAILED, TABLE_CHANGED, TRANSIENT, ChunkProgress, ChunkResult, ChunkTask
from millrace.source.copying.copier import Copier
from millrace.source.copying.processes import OneByOne, PackReport
from millrace.source.reading.office import SourceOffice
from millrace.store.contract import Candidate
from millrace_sim.store import MemoryStore, MemoryStoreState
from support_brokers import Machine, OneProcess

TABLE = TableSchema(7, "public", "t", "d", (Column("id", 20, is_key=True),))
Answer = Callable[[ChunkTask], ChunkResult | None]


class Runner(OneByOne):
    """`answer` None: the attempt hangs until it is cancelled."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.tasks: list[ChunkTask] = []
        self.running = 0
        self.most = 0
        self.cancelled: list[ChunkTask] = []

    async def run(self, task: ChunkTask, report: Callable[[ChunkProgress], None]) -> ChunkResult:
        self.tasks.append(task)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(0)
            report(ChunkProgress(5, 50, "half"))
            result = self.answer(task)
            if result is None:
                await asyncio.Event().wait()
            assert result is not None
            return result
        except asyncio.CancelledError:
            self.cancelled.append(task)
            raise
        finally:
            self.running -= 1

    async def rest(self) -> None:
        pass

    async def close(self) -> None:
        pass


class Topics:
    key = None                           # this log asks for no proof

    async def create_topic(self, name: str, **_: Any) -> None:
        raise TopicExists(name)


class Host:
    def __init__(self, office: SourceOffice) -> None:
        self.spec = SourceSpec(name="s", url="postgresql://nobody@127.0.0.1:1/none")
        self.epoch, self.office, self.client = office.epoch, office, Topics()
        self.progress: list[ProgressRecord] = []
        self.told: Callable[[], Any] = lambda: None

    async def append_progress(self, *records: ProgressRecord) -> None:
        self.told()
        self.progress += records

    async def name_schema(self, table: TableSchema) -> None:
        pass


class Lives:
    """A snapshot that lives until it is told otherwise."""

    def __init__(self) -> None:
        self.lost, self.reason, self.name = asyncio.Event(), "", "snap"

    async def release(self) -> None:
        self.name = ""


class World:
    def __init__(self) -> None:
        self.ports = Ports(clock=BootClock(), random=RealRandom(), processes=OneProcess(Machine()), fs=RealFileSystem())
        self.disk = MemoryStoreState()
        self.epoch = 0

    async def host(self) -> Host:
        self.epoch += 1
        office = SourceOffice(MemoryStore(self.disk, self.ports), "s", self.epoch)
        await office.open(Candidate(self.epoch, "", ProcessIdentity("t", self.epoch, self.epoch)))
        if self.epoch == 1:
            await office.decide(lambda s: s.raise_generation(generation=1, reason="", at=9, system_id="1", timeline=1))
            await office.decide(lambda s: s.add_table(oid=7, schema="public", name="t", partitions=2))
        return Host(office)

    async def copier(self, host: Host, runner: Runner, *, kind: str = "snapshot", chunks: int = 4, **options: Any,
                     ) -> Copier:
        spans = tuple(ChunkSpan(7, n, n + 1) for n in range(chunks))
        copy = await host.office.decide(lambda s: s.plan_copy(
            7, kind=kind, at=9 if kind == "snapshot" else 0, chunks=spans))  # type: ignore[arg-type]
        copier = Copier(host, self.ports, bootstrap=["b:1"], runner=runner, **options)  # type: ignore[arg-type]
        copier._books.schemas[copy] = TABLE
        if kind == "snapshot":
            copier._holder = Lives()  # type: ignore[assignment]
        return copier


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


async def running(copier: Copier, condition: Callable[[], Any]) -> None:
    work = asyncio.create_task(copier.run())
    try:
        await until(lambda: condition() or work.done())
        assert not work.done() or work.exception() is None
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


def done(host: Host) -> bool:
    return host.office.state.copies.is_done(1)


def copies(host: Host) -> Copies:
    return host.office.state.copies


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COPY_BACKOFF_MIN_S", 0.0005)
    monkeypatch.setattr(module, "COPY_BACKOFF_MAX_S", 0.001)


@pytest.fixture
def catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    async def now(self: Copier, tasks: Any) -> dict[int, TableSchema]:
        return {task.copy: TABLE for task in tasks}
    monkeypatch.setattr(Copier, "_schemas_now", now)


def test_S4_every_attempt_is_on_record_before_it_begins_and_only_so_many_run() -> None:
    async def main() -> None:
        host = await World().host()
        on_record: list[bool] = []

        def answer(task: ChunkTask) -> ChunkResult:
            on_record.append(copies(host).by_id[1].chunks[task.chunk].attempts == task.attempt)
            return ChunkResult(rows=10, bytes=100)

        runner = Runner(answer)
        copier = await World().copier(host, runner, chunks=7, parallel=2)
        await running(copier, lambda: done(host))
        assert on_record == [True] * 7
        assert runner.most <= 2
        assert {(t.snapshot, t.position, t.kind) for t in runner.tasks} == {("snap", 9, "snapshot")}
        [status] = copier.status()
        assert (status.rows, status.bytes, status.share, status.state) == (70, 700, 1.0, "done")

    asyncio.run(main())


def test_S4_copies_of_empty_tables_are_done_together_without_a_worker() -> None:
    async def main() -> None:
        host = await World().host()
        runner = Runner(lambda task: None)
        await host.office.decide(lambda s: s.add_table(oid=8, schema="public", name="u", partitions=1))
        copier = await World().copier(host, runner, chunks=1)
        span = (ChunkSpan(8, by_key=True),)
        await host.office.decide(lambda s: s.plan_copy(8, kind="snapshot", at=9, chunks=span))
        other = msgspec.structs.replace(TABLE, oid=8, name="u")
        copier._books.schemas[2] = other
        copier._books.empty = {1: "7:7:", 2: "7:7:"}
        on_record: list[tuple[int, bool]] = []
        host.told = lambda: on_record.extend(
            (chunk.attempts, chunk.is_done) for copy in copies(host).by_id.values() for chunk in copy.chunks)
        await running(copier, lambda: done(host))
        assert on_record == [(1, False)] * 2, "an attempt is on record before its manifest, which is before its end"
        assert host.progress == [
            Manifest(1, copy, 0, 1, table.oid, "snapshot", table.id, (), 0, 0, snapshot="7:7:")
            for copy, table in ((1, TABLE), (2, other))]
        assert runner.tasks == []
        assert {(one.state, one.share, one.rows, one.eta_s) for one in copier.status()} == {("done", 1.0, 0, 0.0)}

    asyncio.run(main())


def test_S4_a_snapshot_that_was_lost_before_empty_tables_were_done_is_lost_for_them_too(catalogue: None) -> None:
    async def main() -> None:
        host = await World().host()
        runner = Runner(lambda task: None)
        copier = await World().copier(host, runner, chunks=1)
        copier._books.empty = {1: "7:7:"}
        await copier._lose_snapshot("planted")
        await running(copier, lambda: runner.tasks)
        assert [(task.kind, task.attempt) for task in runner.tasks] == [("watermark", 2)]
        assert not done(host)

    asyncio.run(main())


def test_S4_parallel_bounds_what_runs_at_once_and_ending_ends_it() -> None:
    async def main() -> None:
        host = await World().host()
        runner = Runner(lambda task: None)
        copier = await World().copier(host, runner, parallel=3, chunks=9)
        await running(copier, lambda: runner.running == 3)
        assert runner.most == 3
        assert len(runner.cancelled) == 3
        assert copier.status()[0].state == "waiting"

    asyncio.run(main())


def test_S4_failures_are_tried_again_then_seldom_with_their_reason_or_at_retry() -> None:
    async def main() -> None:
        host = await World().host()
        broken = True

        def answer(task: ChunkTask) -> ChunkResult:
            return ChunkResult(error="no such luck", code=FAILED) if broken and task.chunk == 1 else ChunkResult(rows=1)

        copier = await World().copier(host, Runner(answer))
        work = asyncio.create_task(copier.run())
        await until(lambda: copier.status()[0].why.startswith("stopped after 8 attempts: no such luck"))
        assert copies(host).by_id[1].chunks[1].attempts == 8
        assert copies(host).figures(1).chunks_done == 3                # the others went on
        broken = False
        copier.retry(1)
        await until(lambda: done(host))
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        assert copies(host).by_id[1].chunks[1].done_by == 9            # numbers are never used twice

    asyncio.run(main())


def test_S4_a_stopped_chunk_is_tried_again_by_itself_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was missing may have been granted: nobody has to ask for it."""
    monkeypatch.setattr(module, "COPY_STOPPED_S", 0.002)

    async def main() -> None:
        host = await World().host()
        runner = Runner(lambda task: ChunkResult(error="denied", code=FAILED) if task.attempt < 12 else ChunkResult())
        copier = await World().copier(host, runner, chunks=1)
        await running(copier, lambda: done(host))
        assert [task.attempt for task in runner.tasks] == list(range(1, 13))
        assert copier.status()[0].why == ""

    asyncio.run(main())


@pytest.mark.parametrize(("code", "longest_s"), [
    (FAILED, limits.COPY_STOPPED_S), (TRANSIENT, limits.COPY_BACKOFF_MAX_S),
    (TABLE_CHANGED, limits.COPY_BACKOFF_MAX_S)])
def test_S4_pauses_grow_and_have_an_end(code: str, longest_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COPY_BACKOFF_MIN_S", limits.COPY_BACKOFF_MIN_S)
    monkeypatch.setattr(module, "COPY_BACKOFF_MAX_S", limits.COPY_BACKOFF_MAX_S)

    async def main() -> list[float]:
        copier = await World().copier(await World().host(), Runner(lambda task: None), chunks=1)
        clock, chunk, pauses = copier._ports.clock, ChunkId(1, 0), []
        for _ in range(20):
            now = clock.now()
            copier._pause(chunk, ChunkResult(error="no", code=code))
            pauses.append(copier._books.pauses[chunk].until - now)
        return pauses

    pauses = asyncio.run(main())
    assert pauses[0] <= limits.COPY_BACKOFF_MIN_S + 0.1
    assert max(pauses[:7]) <= limits.COPY_BACKOFF_MAX_S + 0.1, "seven failures may be bad luck"
    assert longest_s / 2 <= min(pauses[7:]) <= max(pauses[7:]) <= longest_s + 0.1


def test_S4_what_does_not_answer_is_tried_for_ever() -> None:
    async def main() -> None:
        host = await World().host()
        runner = Runner(lambda task: ChunkResult(error="down", code=TRANSIENT) if task.attempt < 20 else ChunkResult())
        copier = await World().copier(host, runner, chunks=1)
        await running(copier, lambda: done(host))
        assert copies(host).by_id[1].chunks[0].done_by == 20

    asyncio.run(main())


def test_S4_a_lost_snapshot_is_on_record_then_in_progress_and_the_rest_runs_as_windows(catalogue: None) -> None:
    async def main() -> None:
        host = await World().host()

        def answer(task: ChunkTask) -> ChunkResult | None:
            if task.kind == "snapshot":
                return ChunkResult(rows=1) if task.chunk == 0 else None
            copier.high_mark(task.copy, task.chunk, task.attempt)
            return ChunkResult(rows=2)

        runner = Runner(answer)
        copier = await World().copier(host, runner, parallel=2)
        work = asyncio.create_task(copier.run())
        await until(lambda: copies(host).figures(1).chunks_done == 1 and len(runner.tasks) == 3)
        copier._holder.reason = "killed"  # type: ignore[union-attr]
        copier._holder.lost.set()         # type: ignore[union-attr]
        await until(lambda: done(host))
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        assert [c.kind for c in copies(host).by_id[1].chunks] == ["snapshot", "watermark", "watermark", "watermark"]
        assert host.progress == [ChunksAbandoned(1, 1, (1, 2, 3))]
        assert {t.chunk for t in runner.cancelled} == {1, 2}           # under way when it was lost
        assert {(t.position, t.snapshot) for t in runner.tasks if t.kind == "watermark"} == {(0, "")}

    asyncio.run(main())


def test_S4_a_table_that_changed_takes_only_its_own_copy_off_the_snapshot(catalogue: None) -> None:
    async def main() -> None:
        host = await World().host()
        await host.office.decide(lambda s: s.add_table(oid=8, schema="public", name="u", partitions=1))

        def answer(task: ChunkTask) -> ChunkResult:
            if task.kind == "watermark":
                copier.high_mark(task.copy, task.chunk, task.attempt)
            elif task.copy == 1:
                return ChunkResult(error="was rewritten", code=TABLE_CHANGED)
            return ChunkResult(rows=1)

        copier = await World().copier(host, Runner(answer))
        other = await host.office.decide(lambda s: s.plan_copy(8, kind="snapshot", at=9, chunks=(ChunkSpan(8),)))
        copier._books.schemas[other] = TABLE
        await running(copier, lambda: done(host))
        assert {c.kind for c in copies(host).by_id[1].chunks} == {"watermark"}
        assert {c.kind for c in copies(host).by_id[2].chunks} == {"snapshot"}

    asyncio.run(main())


def test_S5_a_window_is_done_by_its_high_mark_not_by_its_worker(catalogue: None) -> None:
    async def main() -> None:
        host = await World().host()
        runner = Runner(lambda task: ChunkResult(rows=3, bytes=30))
        copier = await World().copier(host, runner, kind="watermark", chunks=2)
        work = asyncio.create_task(copier.run())
        await until(lambda: len(copier._books.awaiting) == 2)
        assert not any(c.is_done for c in copies(host).by_id[1].chunks)
        copier.high_mark(1, 0, 1)
        copier.high_mark(1, 1, 1)
        copier.high_mark(1, 1, 1)          # told twice
        copier.high_mark(99, 0, 1)         # of nothing we know
        await until(lambda: done(host))
        assert len(runner.tasks) == 2
        assert copies(host).figures(1).rows == 6
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)

    asyncio.run(main())


def test_S5_a_high_mark_counts_although_its_worker_died_behind_it(catalogue: None) -> None:
    async def main() -> None:
        host = await World().host()

        def answer(task: ChunkTask) -> ChunkResult:
            copier.high_mark(task.copy, task.chunk, task.attempt)
            return ChunkResult(error="killed", code=FAILED)

        runner = Runner(answer)
        copier = await World().copier(host, runner, kind="watermark", chunks=1)
        await running(copier, lambda: done(host))
        assert copies(host).by_id[1].chunks[0].done_by == 1
        assert copies(host).figures(1).rows == 5, "as it last said"

    asyncio.run(main())


def test_S5_a_high_mark_that_is_faster_than_the_result_waits_for_its_figures(catalogue: None) -> None:
    """From Spark a result takes a while; marks come by the stream."""
    async def main() -> None:
        host, arrived = await World().host(), asyncio.Event()

        class Late(Runner):
            async def run(self, task: ChunkTask, report: Callable[[ChunkProgress], None]) -> ChunkResult:
                report(ChunkProgress(1, 10, host="spark"))
                copier.high_mark(task.copy, task.chunk, task.attempt)
                await arrived.wait()
                return ChunkResult(rows=3, bytes=30)

        copier = await World().copier(host, Late(lambda task: None), kind="watermark", chunks=1)
        work = asyncio.create_task(copier.run())
        await until(lambda: copier._highs and not copier._changed.is_set())
        assert copier.status()[0].attempts_on == {"spark": 1}
        assert not done(host)
        arrived.set()
        await until(lambda: done(host))
        assert copies(host).figures(1).rows == 3
        assert copier.status()[0].attempts_on == {"spark": 1}
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)

    asyncio.run(main())


def test_S5_windows_do_not_run_far_ahead_of_the_reader(catalogue: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COPY_AWAITING_MAX", 3)

    async def main() -> None:
        host = await World().host()
        runner = Runner(lambda task: ChunkResult())
        copier = await World().copier(host, runner, kind="watermark", chunks=20, parallel=1)
        work = asyncio.create_task(copier.run())
        await until(lambda: len(copier._books.awaiting) == 3 and not copier._books.running)
        copier.wake()
        await until(lambda: not copier._changed.is_set())              # it has looked again
        assert len(runner.tasks) == 3
        copier.high_mark(1, 0, 1)
        await until(lambda: len(runner.tasks) == 4)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)

    asyncio.run(main())


def test_S4_a_new_copier_says_again_what_the_last_one_may_not_have_said(catalogue: None) -> None:
    async def main() -> None:
        world = World()
        host = await world.host()
        copier = await world.copier(host, Runner(lambda task: None if task.chunk else ChunkResult(rows=1)))
        await running(copier, lambda: copies(host).figures(1).chunks_done == 1)

        host = await world.host()                                      # its predecessor's snapshot is gone with it
        await host.office.decide(lambda s: s.plan_copy(7, kind="watermark", chunks=(ChunkSpan(7, by_key=True),)))

        def answer(task: ChunkTask) -> ChunkResult:
            again.high_mark(task.copy, task.chunk, task.attempt)
            return ChunkResult(rows=1)

        runner = Runner(answer)
        again = Copier(host, world.ports, bootstrap=["b:1"], runner=runner)  # type: ignore[arg-type]
        await running(again, lambda: done(host))
        assert [r for r in host.progress if isinstance(r, CopyStarted)] == [
            CopyStarted(1, 1, 7, "__millrace.s.copy.1", 4, 9, "snapshot"),
            CopyStarted(1, 2, 7, "__millrace.s.copy.2", 1, 0, "watermark")]
        assert ChunksAbandoned(1, 1, (1, 2, 3)) in host.progress
        assert all(t.kind == "watermark" for t in runner.tasks)
        assert (1, 0) not in {(t.copy, t.chunk) for t in runner.tasks}  # done before, not repeated

    asyncio.run(main())


# -- packs -------------------------------------------------------------------------------------------------------------
class Packs(Runner):
    """Remembers what came together."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self.packs: list[list[int]] = []

    async def run_pack(self, pack: Sequence[ChunkTask], report: PackReport) -> None:
        self.packs.append([task.copy for task in pack])
        await super().run_pack(pack, report)


async def small_tables(world: World, host: Host, runner: Runner, count: int, *, kind: Any = "snapshot",
                       sizes: dict[int, int] | None = None, **options: Any) -> Copier:
    """Copies 1 to `count`, of a table each."""
    copier = Copier(host, world.ports, bootstrap=["b:1"], runner=runner, **options)  # type: ignore[arg-type]
    for copy in range(1, count + 1):
        oid = 100 + copy
        span = (ChunkSpan(oid, bytes=(sizes or {}).get(copy, 8192)),)
        await host.office.decide(lambda s, o=oid: s.add_table(  # type: ignore[misc]
            oid=o, schema="public", name=f"t{o}", partitions=1))
        await host.office.decide(lambda s, o=oid, spans=span: s.plan_copy(  # type: ignore[misc]
            o, kind=kind, at=9 if kind == "snapshot" else 0, chunks=spans))
        copier._books.schemas[copy] = msgspec.structs.replace(TABLE, oid=oid)
    if kind == "snapshot":
        copier._holder = Lives()  # type: ignore[assignment]
    return copier


@pytest.mark.parametrize("kind", ["snapshot", "watermark"])
def test_S4_chunks_of_small_tables_run_in_packs_each_with_its_own_attempt(catalogue: None, kind: str) -> None:
    async def main() -> None:
        world = World()
        host = await world.host()

        def answer(task: ChunkTask) -> ChunkResult:
            assert copies(host).by_id[task.copy].chunks[0].attempts == task.attempt == 1
            if kind == "watermark":
                copier.high_mark(task.copy, task.chunk, task.attempt)
            return ChunkResult(rows=task.copy, bytes=10)

        runner = Packs(answer)
        copier = await small_tables(world, host, runner, 100, kind=kind, parallel=1)
        await running(copier, lambda: done(host))
        assert len(runner.packs) == -(-100 // limits.COPY_PACK_CHUNKS)
        assert runner.most == 1
        assert [one.rows for one in copier.status()] == list(range(1, 101))
        assert {one.state for one in copier.status()} == {"done"}

    asyncio.run(main())


def test_S4_a_chunk_that_fails_is_tried_again_alone_and_fails_no_other_of_its_pack() -> None:
    async def main() -> None:
        world = World()
        host = await world.host()
        runner = Packs(lambda task: ChunkResult(error="permission denied", code=FAILED) if task.copy == 3
                       else ChunkResult(rows=1))
        copier = await small_tables(world, host, runner, 6, parallel=1)
        await running(copier, lambda: copies(host).by_id[3].chunks[0].attempts == 3)
        assert runner.packs[:3] == [[1, 2, 3, 4, 5, 6], [3], [3]]
        assert [copy.id for copy in copies(host).by_id.values() if not copy.is_done] == [3]
        assert "permission denied" in copier.status()[2].why

    asyncio.run(main())


def test_S4_a_large_table_among_small_ones_is_in_no_pack_and_behind_them() -> None:
    async def main() -> None:
        world = World()
        host = await world.host()
        runner = Packs(lambda task: ChunkResult(rows=1))
        copier = await small_tables(world, host, runner, 6, parallel=1, sizes={2: limits.COPY_PACK_BYTES + 1})
        await running(copier, lambda: done(host))
        assert runner.packs == [[1, 3, 4, 5, 6], [2]]

    asyncio.run(main())


def test_S4_what_waits_behind_a_slow_chunk_of_its_pack_is_tried_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "gives_back_at", lambda began: began + 0.01)

    async def main() -> None:
        world = World()
        host = await world.host()
        runner = Packs(lambda task: None if task.copy == 2 else ChunkResult(rows=1))
        copier = await small_tables(world, host, runner, 8, parallel=2)
        await running(copier, lambda: sum(copy.is_done for copy in copies(host).by_id.values()) == 7)
        assert runner.packs[:3] == [[1, 2, 3, 4], [5, 6, 7, 8], [3, 4]]
        assert [copies(host).by_id[copy].chunks[0].done_by for copy in (1, 3, 4, 5)] == [1, 2, 2, 1]
        assert copier.status()[2].failures == 0

    asyncio.run(main())


def test_S5_an_attempt_that_was_taken_back_and_comes_to_its_end_all_the_same_counts_with_its_figures(
    catalogue: None, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "gives_back_at", lambda began: began)

    async def main() -> None:
        world = World()
        host, slow = await world.host(), asyncio.Event()

        class Late(Packs):
            async def run(self, task: ChunkTask, report: Callable[[ChunkProgress], None]) -> ChunkResult:
                if task.copy == 1:
                    await slow.wait()
                copier.high_mark(task.copy, task.chunk, task.attempt)      # before its result
                return ChunkResult(rows=3)

        runner = Late(lambda task: None)
        copier = await small_tables(world, host, runner, 2, kind="watermark", parallel=1)
        work = asyncio.create_task(copier.run())
        await until(lambda: copier._books.taken_back)
        slow.set()
        await until(lambda: done(host))
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        assert [copies(host).figures(copy).rows for copy in (1, 2)] == [3, 3]
        assert copier._books.taken_back == set()

    asyncio.run(main())


def test_S4_a_runner_that_breaks_or_says_nothing_stalls_no_chunk() -> None:
    async def main() -> None:
        world = World()
        host = await world.host()

        class Broken(Packs):
            async def run_pack(self, pack: Sequence[ChunkTask], report: PackReport) -> None:
                self.packs.append([task.copy for task in pack])
                if len(self.packs) == 1:
                    raise KeyError("planted")
                if len(self.packs) > 2:
                    await OneByOne.run_pack(self, pack, report)

        runner = Broken(lambda task: ChunkResult(rows=1))
        copier = await small_tables(world, host, runner, 2, parallel=1)
        await running(copier, lambda: done(host))
        assert runner.packs[0] == [1, 2]

    asyncio.run(main())
