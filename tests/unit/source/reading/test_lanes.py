"""The writers of a reader on a real broker: fences, room, acknowledgements, the end [L28, S3, S8]."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from millrace import limits
from millrace.core.sources.registry import progress_topic
from millrace.errors import InvalidProducerEpoch
from millrace.model.progress import LowMark
from millrace.ops.real import real_ports
from millrace.source.reading.lanes import EpochUsed, Lanes
from millrace.wire.records import Record
from support_session import EPOCH, OID, SOURCE, TABLE, World, a_session

P = (OID, 0)


def run(tmp_path: Path, story: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        async with a_session(tmp_path) as world:
            await story(world)

    asyncio.run(main())


def later(world: World, *fences: tuple[int, int]) -> Lanes:
    return Lanes(world.client, clock=real_ports().clock, progress=progress_topic(SOURCE), fences=fences)


def test_L28_every_writer_a_source_ever_had_is_fenced_before_anything_is_written(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        writer_id, new_id = world.lanes._fences[-1][0], await world.client.new_writer_id()
        lanes = later(world, (writer_id, EPOCH + 1), (new_id, EPOCH + 1))
        await lanes.open_progress()
        opened = await lanes.open_tables([TABLE])
        assert opened[P].end == (await world.client.ends(TABLE.topic, 0))[1]
        world.lanes.append(P, [Record(b"late")], lambda end: None)
        await asyncio.wait((world.lanes.failed,), timeout=20)
        with pytest.raises(InvalidProducerEpoch):
            world.lanes.failed.result()
        with pytest.raises(InvalidProducerEpoch):
            await world.lanes.flush()
        lanes.close()

    run(tmp_path, story)


def test_S3_records_behind_the_fence_of_our_own_epoch_mean_that_it_is_used(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        world.lanes.append(P, [Record(b"of a twin")], lambda end: None)
        await world.lanes.flush()
        twin = later(world, *world.lanes._fences)
        await twin.open_progress()
        with pytest.raises(EpochUsed):
            await twin.open_tables([TABLE])
        twin.close()

    run(tmp_path, story)


def test_S8_parts_are_acknowledged_together_with_the_end_behind_the_last(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        ends: list[int] = []
        start = (await world.client.ends(TABLE.topic, 0))[1]
        world.lanes.append(P, [Record(b"a"), Record(b"b"), Record(b"c")], ends.append)
        assert world.lanes.pending_bytes == 3
        await world.lanes.flush()
        assert (ends, world.lanes.pending_bytes, world.lanes.silent_s) == ([start + 3], 0, 0.0)

    run(tmp_path, story)


def test_S8_room_ends_above_the_limit_and_comes_back_at_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOG_PENDING_BYTES_MAX", 100)

    async def story(world: World) -> None:
        lanes, loop = world.lanes, asyncio.get_running_loop()
        futures = [loop.create_future() for _ in range(3)]
        for future in futures:
            lanes._watch(future, 45, None)
        assert not lanes.has_room
        waiting = asyncio.create_task(lanes.room())
        flushed = asyncio.create_task(lanes.flush())
        futures[0].set_result(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (lanes.has_room, lanes.pending_bytes) == (False, 90), "below the limit is not enough"
        futures[1].set_result(0)
        await waiting
        assert lanes.has_room
        assert not flushed.done(), "one is not acknowledged"
        assert lanes.silent_s > 0
        futures[2].set_result(0)
        await flushed

    run(tmp_path, story)


def test_S3_what_is_told_to_progress_counts_though_its_teller_is_cancelled(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        telling = asyncio.create_task(world.lanes.tell(LowMark(1, 1, 2, 3, 300)))
        async with asyncio.timeout(20):
            while not world.lanes.pending_bytes:     # every turn of the loop: the acknowledgement is a few turns away
                assert not telling.done()
                await asyncio.sleep(0)
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)
        await world.lanes.flush()
        assert await world.progress() == [LowMark(1, 1, 2, 3, 300)]

    run(tmp_path, story)
