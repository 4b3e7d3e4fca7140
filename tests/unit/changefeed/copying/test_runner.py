"""What the runner makes of a Spark that is away, lost, silent or full; no Spark, no database, no broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec
import pytest

from millrace import limits
from millrace.changefeed.copying import task as errand
from millrace.changefeed.copying import words as words_module
from millrace.changefeed.copying.runner import Room, SparkRunner
from millrace.changefeed.copying.words import Word
from millrace.errors import ReferenceRefused, Unreachable
from millrace.log.client.reading import Fetched
from millrace.model.sources import ChunkSpan
from millrace.model.tables import Column, TableSchema
from millrace.ops.real import BootClock
from millrace.ops.secrets import NOWHERE, Places
from millrace.pipeline.errands import ErrandFailed
from millrace.source.copying.attempt import FAILED, HANDED_BACK, TRANSIENT, ChunkProgress, ChunkResult, ChunkTask
from millrace.source.copying.processes import OneByOne
from millrace.wire.records import Record

TABLE = TableSchema(7, "public", "t", "d", (Column("id", 20, is_key=True),))
TASK = ChunkTask(source="s", url="postgresql://nobody@127.0.0.1:1/none", generation=1, copy=1, chunk=0, attempt=1,
                 kind="snapshot", span=ChunkSpan(7, 0, 1), table=TABLE, topic="c", progress="p", partitions=1,
                 bootstrap=("b:1",))
Chunk = Callable[[ChunkTask], Coroutine[Any, Any, ChunkResult]]


def again(attempt: int, chunk: int = 0) -> ChunkTask:
    return msgspec.structs.replace(TASK, attempt=attempt, chunk=chunk)


class Spark:
    """As `Errands`. `trial`: what workers say to one, or what is raised."""

    def __init__(self, chunk: Chunk, trial: bytes | Exception = b"") -> None:
        self.chunk, self.trial, self.alive = chunk, trial, True
        self.trials = 0
        self.packs: list[errand.Pack] = []
        self.cancelled: list[ChunkTask] = []

    @property
    def ran(self) -> list[ChunkTask]:
        return [task for pack in self.packs for task in pack.tasks]

    def word(self, number: int, said: ChunkProgress | ChunkResult) -> Word:
        """As the worker of the last pack says it."""
        return Word(self.packs[-1].name, number, said)

    async def run(self, what: object, payload: bytes, _: str) -> bytes:
        if what is errand.trial:
            self.trials += 1
            if isinstance(self.trial, Exception):
                raise self.trial
            return self.trial
        pack = msgspec.msgpack.decode(payload, type=errand.Pack)
        self.packs.append(pack)
        try:
            return msgspec.msgpack.encode([await self.chunk(task) for task in pack.tasks])
        except asyncio.CancelledError:
            self.cancelled += pack.tasks
            raise

    async def is_alive(self) -> bool:
        return self.alive


class Here(OneByOne):
    """As `ProcessRunner`."""

    def __init__(self) -> None:
        self.ran: list[ChunkTask] = []

    async def run(self, task: ChunkTask, report: Callable[[ChunkProgress], None]) -> ChunkResult:
        self.ran.append(task)
        report(ChunkProgress(1, 1))
        return ChunkResult(1, 1)

    async def rest(self) -> None: ...
    async def close(self) -> None: ...


class Log:
    """As a client of one topic. Told words come at once; else a fetch waits as long as it was asked to."""

    def __init__(self) -> None:
        self.words: list[bytes] = []
        self.came = asyncio.Event()
        self.answers = True

    def say(self, word: Word) -> None:
        self.words.append(msgspec.msgpack.encode(word))
        self.came.set()

    async def create_topic(self, name: str, **_: Any) -> None:
        assert name == "__millrace.s.copying"

    async def ends(self, *_: Any) -> tuple[int, int]:
        return 0, len(self.words)

    async def fetch(self, wanted: dict[Any, int], *, wait_s: float) -> dict[Any, Fetched]:
        if not self.answers:
            await asyncio.Event().wait()
        [(where, at)] = wanted.items()
        if len(self.words) == at:
            self.came.clear()
            try:
                await asyncio.wait_for(self.came.wait(), wait_s)
            except TimeoutError:
                return {}
        records = [Record(word) for word in self.words[at:]]
        page: Any = type("Page", (), {"records": records, "next_offset": len(self.words)})
        return {where: page}


class World:
    def __init__(self, chunk: Chunk, *, trial: bytes | Exception = b"", silence_s: float = 60.0) -> None:
        self.spark, self.here, self.log, self.room = Spark(chunk, trial), Here(), Log(), Room(1)
        stands_in: Any = self.spark
        log: Any = self.log
        self.runner = SparkRunner("s", stands_in, self.room, log, BootClock(), here=self.here, silence_s=silence_s)
        self.said: list[ChunkProgress] = []

    async def run(self, task: ChunkTask = TASK) -> ChunkResult:
        [result] = await self.run_pack([task])
        return result

    async def run_pack(self, pack: Sequence[ChunkTask]) -> list[ChunkResult]:
        def report(number: int, said: ChunkProgress | ChunkResult) -> None:
            if isinstance(said, ChunkProgress):
                self.said.append(said)
            else:
                assert number not in self.results, "one result each"
                self.results[number] = said

        self.results: dict[int, ChunkResult] = {}
        await self.runner.run_pack(pack, report)
        return [self.results[number] for number in range(len(pack))]


async def done(_: ChunkTask) -> ChunkResult:
    return ChunkResult(5, 50)


async def hangs(_: ChunkTask) -> ChunkResult:
    await asyncio.Event().wait()
    raise AssertionError


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    async def identity(_: ChunkTask) -> str:
        return "the server"

    monkeypatch.setattr(SparkRunner, "_identity", staticmethod(identity))


def test_S4_a_chunk_goes_to_spark_when_the_trial_is_back() -> None:
    async def main() -> None:
        world = World(done)
        assert (await world.run()).rows == 5
        assert [one.host for one in world.said] == ["spark"]
        assert (world.here.ran, world.spark.trials, world.room.free) == ([], 1, 1)
        await world.runner.close()

    asyncio.run(main())


@pytest.mark.parametrize("trial", [Unreachable("no server"), ErrandFailed("no module"), ValueError("?"), b"no route"])
def test_P8_without_a_spark_that_is_fit_a_chunk_runs_here_at_once(trial: bytes | Exception) -> None:
    async def main() -> None:
        world = World(done, trial=trial)
        for attempt in (1, 2, 3):
            assert (await world.run(again(attempt))).ok
        assert len(world.here.ran) == 3
        assert {one.host for one in world.said} == {"process"}
        assert world.spark.trials == 1, "not tried anew for each chunk"
        assert world.spark.ran == []
        await world.runner.close()

    asyncio.run(main())


def test_P8_a_trial_that_hangs_holds_a_chunk_up_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.core.sources.copy_hosts.COPY_TRIAL_WAIT_S", 0.05)

    async def main() -> None:
        world = World(done)

        async def never(*_: Any) -> bytes:
            await asyncio.Event().wait()
            raise AssertionError

        world.spark.run = never  # type: ignore[method-assign]
        assert (await world.run()).ok
        assert len(world.here.ran) == 1
        await world.runner.close()
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("trial")]

    asyncio.run(main())


def test_P8_spark_lost_is_no_fault_of_the_chunk_and_the_next_attempt_runs_here() -> None:
    async def lost(_: ChunkTask) -> ChunkResult:
        raise Unreachable("connection refused")

    async def main() -> None:
        world = World(lost)
        result = await world.run()
        assert (result.code, world.here.ran) == (TRANSIENT, [])
        assert "connection refused" in result.error
        assert (await world.run(again(2))).ok
        assert [task.attempt for task in world.here.ran] == [2]
        await world.runner.close()

    asyncio.run(main())


def test_S4_a_worker_that_died_counts_and_the_next_attempt_runs_here_while_others_go_to_spark() -> None:
    async def dies(task: ChunkTask) -> ChunkResult:
        if task.chunk == 0:
            raise ErrandFailed("the worker has ended")
        return ChunkResult(5, 50)

    async def main() -> None:
        world = World(dies)
        assert (await world.run()).code == FAILED
        assert (await world.run(again(1, chunk=1))).rows == 5
        assert (await world.run(again(2))).rows == 1
        assert [task.chunk for task in world.spark.ran] == [0, 1]
        await world.runner.close()

    asyncio.run(main())


def test_S4_what_finds_no_place_on_spark_runs_here() -> None:
    async def main() -> None:
        world = World(hangs)
        first = asyncio.create_task(world.run())
        while not world.spark.ran:
            await asyncio.sleep(0)
        assert (await world.run(again(1, chunk=1))).ok
        assert len(world.here.ran) == 1
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert (world.spark.cancelled, world.room.free) == ([TASK], 1)
        await world.runner.close()

    asyncio.run(main())


def test_S4_progress_comes_by_the_log_and_is_that_of_the_attempt() -> None:
    async def main() -> None:
        world = World(hangs)
        work = asyncio.create_task(world.run())
        while not world.spark.ran:
            await asyncio.sleep(0)
        world.log.words.append(b"of another version")
        world.log.say(Word("another pack", 0, ChunkProgress(777, 777)))
        world.log.say(world.spark.word(0, ChunkProgress(3, 30, "waits for rows")))
        while len(world.said) < 2:
            await asyncio.sleep(0.001)
        assert world.said[1] == ChunkProgress(3, 30, "waits for rows", "spark")
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await world.runner.close()

    asyncio.run(main())


@pytest.mark.parametrize("alive", [True, False])
def test_S4_a_worker_that_fell_silent_is_given_up(alive: bool) -> None:
    async def main() -> None:
        world = World(hangs, silence_s=0.1)
        world.spark.alive = alive
        work = asyncio.create_task(world.run())
        while not world.spark.ran:
            await asyncio.sleep(0)
        world.log.say(world.spark.word(0, ChunkProgress(3, 30)))
        result = await work
        assert "said nothing for 0.1 s" in result.error
        assert result.code == (FAILED if alive else TRANSIENT)
        assert len(world.spark.cancelled) == 1
        await world.runner.close()

    asyncio.run(main())


def test_P8_a_chunk_that_no_worker_begins_is_no_fault_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COPY_SPARK_START_S", 0.1)

    async def main() -> None:
        world = World(hangs)
        result = await world.run()
        assert result.code == TRANSIENT
        assert "no worker has begun for 0.1 s" in result.error
        assert (await world.run(again(2))).ok
        assert len(world.here.ran) == 1
        await world.runner.close()

    asyncio.run(main())


def test_S4_while_the_log_does_not_answer_silence_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words_module, "DEAF_S", 0.05)

    async def main() -> None:
        world = World(hangs, silence_s=0.1)
        world.log.answers = False
        monkeypatch.setattr(limits, "COPY_SPARK_START_S", 0.1)
        work = asyncio.create_task(world.run())
        done, _ = await asyncio.wait([work], timeout=0.5)
        assert not done
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await world.runner.close()

    asyncio.run(main())


def test_secrets_are_resolved_by_the_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "p/w")
    task = msgspec.structs.replace(TASK, url="postgresql://u:${env:SHOP_PASSWORD}@h/d",
                                   places=Places(env=("SHOP_PASSWORD",)))
    with pytest.raises(ReferenceRefused):
        errand.encode_pack("p", [msgspec.structs.replace(task, places=NOWHERE)])
    sent = msgspec.msgpack.decode(errand.encode_pack("p", [task, task]), type=errand.Pack)
    assert [one.url for one in sent.tasks] == ["postgresql://u:p%2Fw@h/d"] * 2
    assert "p/w" not in repr(task)


# -- packs -------------------------------------------------------------------------------------------------------------
PACK = [msgspec.structs.replace(TASK, copy=copy) for copy in (1, 2, 3)]


def test_S4_a_pack_is_one_errand_with_one_result_for_each_chunk() -> None:
    async def second_fails(task: ChunkTask) -> ChunkResult:
        return ChunkResult(error="permission denied", code=FAILED) if task.copy == 2 else ChunkResult(task.copy, 50)

    async def main() -> None:
        world = World(second_fails)
        assert [(one.rows, one.error) for one in await world.run_pack(PACK)] == [
            (1, ""), (0, "permission denied"), (3, "")]
        assert (len(world.spark.packs), world.here.ran, world.room.free) == (1, [], 1)
        assert [one.begun for one in world.said] == [False] * 3, "until a word comes, nobody has begun"
        await world.run_pack([PACK[0]])
        await world.run_pack([PACK[1]])
        assert [task.copy for task in world.here.ran] == [2], "what failed there is tried here, the others are not"
        await world.runner.close()

    asyncio.run(main())


def test_S4_what_was_done_before_the_worker_of_a_pack_died_stays_done_and_the_rest_is_no_fault_of_its_own() -> None:
    died = asyncio.Event()

    async def dies(_: ChunkTask) -> ChunkResult:
        await died.wait()
        raise ErrandFailed("the worker has ended")

    async def main() -> None:
        world = World(dies)
        work = asyncio.create_task(world.run_pack(PACK))
        while not world.spark.packs:
            await asyncio.sleep(0)
        world.log.say(world.spark.word(0, ChunkResult(7, 70)))
        world.log.say(world.spark.word(0, ChunkProgress(9, 90)))       # said again behind its result
        world.log.say(world.spark.word(1, ChunkProgress(1, 10)))
        while not any(one.rows == 1 for one in world.said):
            await asyncio.sleep(0.001)
        assert world.results == {0: ChunkResult(7, 70)}, "known before the others have ended"
        died.set()
        results = await work
        assert [(one.rows, one.code) for one in results] == [(7, ""), (0, TRANSIENT), (0, TRANSIENT)]
        assert not any(one.rows == 9 for one in world.said)
        await world.run_pack(PACK[1:])
        assert [task.copy for task in world.here.ran] == [2, 3]
        await world.runner.close()

    asyncio.run(main())


def test_P8_spark_lost_in_mid_pack_is_a_fault_of_none_of_its_chunks() -> None:
    async def lost(_: ChunkTask) -> ChunkResult:
        raise Unreachable("connection refused")

    async def main() -> None:
        world = World(lost)
        assert [one.code for one in await world.run_pack(PACK)] == [TRANSIENT] * 3
        assert all(one.ok for one in await world.run_pack(PACK))
        assert len(world.here.ran) == 3
        await world.runner.close()

    asyncio.run(main())


class Silent:
    """As the worker's voice."""

    def progress(self, number: int, progress: ChunkProgress) -> None: ...
    def result(self, number: int, result: ChunkResult) -> None: ...


def test_S4_on_the_worker_a_chunk_that_breaks_fails_no_other_and_a_slow_one_holds_none_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran: list[int] = []
    now = 0.0

    def run_chunk(task: ChunkTask, **_: Any) -> ChunkResult:
        nonlocal now
        ran.append(task.copy)
        if task.copy == 1:
            raise ValueError("a value that no decoder knows")
        now += limits.COPY_PACK_S + 1 if task.copy == 2 else 0.1
        return ChunkResult(rows=1)

    monkeypatch.setattr(errand, "run_chunk", run_chunk)
    monkeypatch.setattr(errand.time, "monotonic", lambda: now)
    voice: Any = Silent()
    results = errand._run_all(PACK, voice)
    assert [(one.ok, one.code) for one in results] == [(False, FAILED), (True, ""), (False, HANDED_BACK)]
    assert "ValueError" in results[0].error
    assert ran == [1, 2]


@pytest.mark.parametrize("is_lost", [False, True])
def test_S4_the_last_result_of_a_pack_is_told_when_its_place_on_spark_is_free(is_lost: bool) -> None:
    """The next pack would find no place there."""
    answers = asyncio.Event()

    async def held(task: ChunkTask) -> ChunkResult:
        await answers.wait()
        if is_lost:
            raise Unreachable("connection refused")
        return ChunkResult(5, 50)

    async def main() -> None:
        world = World(held)
        work = asyncio.create_task(world.run_pack(PACK[:2]))
        while not world.spark.packs:
            await asyncio.sleep(0)
        for number in (0, 1):
            world.log.say(world.spark.word(number, ChunkResult(5, 50)))
        while not world.results:
            await asyncio.sleep(0.001)
        assert (set(world.results), world.room.free) == ({0}, 0)
        answers.set()
        assert [one.rows for one in await work] == [5, 5], "what its worker said before Spark was lost is done"
        assert world.room.free == 1
        await world.runner.close()

    asyncio.run(main())
